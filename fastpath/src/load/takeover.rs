//! What becomes of pinned maps when the programs of this build take over from those that run.
//!
//! Over pins of an earlier version, maps of equal layout are adopted by groups ([`CONTINUITY`]): the old programs and
//! the new share them. [`tables`](crate::tables) converts others. With pins of this version, every map is adopted; if
//! tables get other sizes, flows and counters are converted.

use std::collections::{BTreeMap, BTreeSet};

use xdp_prog::abi::{CONTINUITY, MapContinuity, MapGroup, VERSION};

use super::{LoadError, Loader};
use crate::{
    facts,
    pins::{FormerVersion, Pins},
    tables,
};

/// What becomes of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Adopted,
    /// A new map takes its place and gets its contents.
    Converted,
    /// A new map takes its place, and its contents are lost.
    Replaced,
    /// There was none of its name.
    New,
}

/// What becomes of the maps when the programs of a build take over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takeover {
    /// The version that is taken over from; `None` if there is none, or if it is this one.
    pub(super) former: Option<FormerVersion>,
    /// The layout version of the maps that are pinned; `None` if there are none in force.
    pub layout: Option<u32>,
    /// The maps of this build.
    pub maps: BTreeMap<String, Fate>,
}

impl Takeover {
    /// Makes what becomes of maps of a layout version that are not taken over by a [`Loader`].
    #[must_use]
    pub const fn new(layout: Option<u32>, maps: BTreeMap<String, Fate>) -> Self {
        Self {
            former: None,
            layout,
            maps,
        }
    }

    /// Lists the maps that the former version and this one share.
    pub fn adopted(&self) -> impl Iterator<Item = &str> {
        self.of(Fate::Adopted)
    }

    /// Lists the maps of one fate.
    pub fn of(&self, fate: Fate) -> impl Iterator<Item = &str> {
        let maps = self.maps.iter().filter(move |(_, one)| **one == fate);
        maps.map(|(map, _)| map.as_str())
    }
}

impl Loader {
    /// Tells what [`Self::load`] would do with the maps that are pinned. It changes nothing.
    ///
    /// # Errors
    ///
    /// As for [`Self::load`], where a pin cannot be used.
    pub fn takeover(&self) -> Result<Takeover, LoadError> {
        let Some(pins) = &self.pins else {
            return Ok(Takeover::default());
        };
        let loader = self.for_kernel(&facts::kernel())?;
        let declared = loader.declared_maps()?;
        let is_resized = !loader.check_pinned(pins, &declared)?.is_empty();
        loader.takeover_of(pins, &declared, is_resized)
    }

    /// Tells what becomes of the maps; `is_resized` says whether those of this version get other sizes.
    pub(super) fn takeover_of(
        &self,
        pins: &Pins,
        declared: &BTreeMap<String, aya_obj::Map>,
        is_resized: bool,
    ) -> Result<Takeover, LoadError> {
        if !pins.is_unused()? {
            return Ok(Takeover::within_version(pins, declared, is_resized));
        }
        let mut earlier = pins.versions_in_force()?.into_iter();
        let Some(former) = earlier.rfind(|version| version.layout < VERSION) else {
            return Takeover::of_nothing_known(pins, declared);
        };
        let adopted = self.adoptable(&former, declared);
        let converted = tables::converted_maps(former.layout);
        let fate = |map: &str| match map {
            map if !former.map(map).exists() => Fate::New,
            map if adopted.contains(map) => Fate::Adopted,
            map if converted.contains(&map) => Fate::Converted,
            _ => Fate::Replaced,
        };
        Ok(Takeover {
            layout: Some(former.layout),
            maps: fates(declared, fate),
            former: Some(former),
        })
    }

    /// Lists the maps of an earlier version that are as this build has them, with all maps of their group.
    fn adoptable(
        &self,
        former: &FormerVersion,
        declared: &BTreeMap<String, aya_obj::Map>,
    ) -> BTreeSet<&'static str> {
        let is_equal = |known: &MapContinuity| {
            let pin = former.map(known.map);
            known.layout <= former.layout
                && declared
                    .get(known.map)
                    .is_some_and(|map| self.is_as_declared(&pin, known.map, map))
        };
        let others = CONTINUITY.iter().filter(|known| !is_equal(known));
        let broken: BTreeSet<MapGroup> = others.map(|known| known.group).collect();
        let whole = CONTINUITY
            .iter()
            .filter(|known| !broken.contains(&known.group));
        whole.map(|known| known.map).collect()
    }
}

impl Takeover {
    /// Tells what becomes of the maps of a newer version, or of none.
    fn of_nothing_known(
        pins: &Pins,
        declared: &BTreeMap<String, aya_obj::Map>,
    ) -> Result<Self, LoadError> {
        let newer = pins.versions_in_force()?.pop();
        let fate = |map: &str| match &newer {
            Some(newer) if newer.map(map).exists() => Fate::Replaced,
            _ => Fate::New,
        };
        Ok(Self {
            former: None,
            layout: newer.as_ref().map(|newer| newer.layout),
            maps: fates(declared, fate),
        })
    }

    /// Tells what becomes of the maps of this version.
    fn within_version(
        pins: &Pins,
        declared: &BTreeMap<String, aya_obj::Map>,
        is_resized: bool,
    ) -> Self {
        let converted = tables::converted_maps(VERSION);
        let fate = |map: &str| match is_resized {
            _ if !pins.map(map).exists() => Fate::New,
            false => Fate::Adopted,
            true if converted.contains(&map) => Fate::Converted,
            true => Fate::Replaced,
        };
        Self {
            former: None,
            layout: Some(VERSION),
            maps: fates(declared, fate),
        }
    }
}

/// Lists what becomes of each map that the object declares.
fn fates(
    declared: &BTreeMap<String, aya_obj::Map>,
    fate: impl Fn(&str) -> Fate,
) -> BTreeMap<String, Fate> {
    let maps = declared.keys();
    maps.map(|map| (map.clone(), fate(map))).collect()
}

#[cfg(test)]
mod tests;
