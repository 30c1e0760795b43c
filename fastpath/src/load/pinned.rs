//! Pinned maps of an earlier run: whether they are adopted, or other sizes are asked for.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use aya::maps::{MapError, MapInfo};
use xdp_prog::abi::map;

use super::{LoadError, Loader, error::pinned_map_error, takeover::Takeover};
use crate::pins::Pins;

/// Arrays whose length is fixed by the build: their indices have a meaning, such as a reason or a stage.
const OF_ONE_LENGTH: [&str; 8] = [
    map::CAPTURE,
    map::CONFIG,
    map::CPU_SCRATCH,
    map::FAILURES,
    map::REASONS,
    map::STAGES,
    map::UNTRUSTED,
    map::XSKS,
];

/// The properties of a pinned map that must be equal for it to be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    /// The kernel's number of the map's type.
    pub kind: u32,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Creation flags.
    pub flags: u32,
}

impl MapLayout {
    /// The kernel sets `BPF_F_RDONLY_PROG` on device maps by itself.
    const FLAGS_OF_THE_KERNEL: u32 = 1 << 7;

    fn declared(map: &aya_obj::Map) -> Self {
        Self {
            kind: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            flags: map.map_flags() & !Self::FLAGS_OF_THE_KERNEL,
        }
    }

    fn pinned(info: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            kind: info.map_type()? as u32,
            key_size: info.key_size(),
            value_size: info.value_size(),
            flags: info.map_flags() & !Self::FLAGS_OF_THE_KERNEL,
        })
    }
}

impl fmt::Display for MapLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of type {} with keys of {} and values of {} bytes, flags {:#x}",
            self.kind, self.key_size, self.value_size, self.flags
        )
    }
}

/// A map that was made anew, because the pinned one had another size than the options ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    pub map: String,
    pub pinned: u32,
    pub asked: u32,
}

/// The pins that a load meets, and what it does to them.
pub(super) struct Prepared<'p> {
    pins: &'p Pins,
    /// Where the pins were set aside.
    aside: Option<PathBuf>,
    /// The pins that the load makes.
    new: Vec<PathBuf>,
    pub(super) resized: Vec<Resized>,
    pub(super) takeover: Takeover,
}

impl Prepared<'_> {
    /// Pins maps of an earlier version here too, if there is one to take over from.
    fn adopt(&self) -> Result<(), LoadError> {
        if let Some(former) = &self.takeover.former
            && self.takeover.adopted().next().is_some()
        {
            self.pins.adopt_maps(former, self.takeover.adopted())?;
        }
        Ok(())
    }

    /// Leaves the pins as they were before a load that failed, whose error is the one to report.
    pub(super) fn undo(&self) {
        for pin in &self.new {
            // If the pin was not made, there is nothing to remove.
            _ = fs::remove_file(pin);
        }
        if let Some(aside) = &self.aside {
            // Where that fails, the next start goes on with what was set aside.
            _ = self.pins.put_back(aside);
        }
    }
}

impl Loader {
    /// Sets the pinned maps aside if the options ask for other sizes. Adopts maps of an earlier version if this one has
    /// none.
    pub(super) fn prepare<'p>(
        &self,
        pins: &'p Pins,
        declared: &BTreeMap<String, aya_obj::Map>,
    ) -> Result<Prepared<'p>, LoadError> {
        pins.prepare()?;
        let resized = self.check_pinned(pins, declared)?;
        let takeover = self.takeover_of(pins, declared, !resized.is_empty())?;
        let aside = match resized.is_empty() {
            true => None,
            false => Some(pins.set_aside()?),
        };
        let maps = declared.keys().map(|map| pins.map(map));
        let prepared = Prepared {
            pins,
            aside,
            new: maps.filter(|pin| !pin.exists()).collect(),
            resized,
            takeover,
        };
        prepared.adopt().inspect_err(|_| prepared.undo())?;
        Ok(prepared)
    }

    /// Compares the pinned maps with those that the object declares; returns those of other sizes.
    pub(super) fn check_pinned(
        &self,
        pins: &Pins,
        declared: &BTreeMap<String, aya_obj::Map>,
    ) -> Result<Vec<Resized>, LoadError> {
        let mut resized = Vec::new();
        for (name, map) in declared {
            let path = pins.map(name);
            let is_stand_in = name == map::XSKS && !self.has_af_xdp;
            if is_stand_in || !path.exists() {
                continue;
            }
            let (info, pinned) = MapInfo::from_pin(&path)
                .and_then(|info| MapLayout::pinned(&info).map(|layout| (info, layout)))
                .map_err(|error| pinned_map_error(name, error))?;
            let needed = MapLayout::declared(map);
            if pinned != needed {
                return Err(LoadError::Layout {
                    map: name.clone(),
                    pinned,
                    needed,
                });
            }
            let (pinned, asked) = (info.max_entries(), map.max_entries());
            if OF_ONE_LENGTH.contains(&name.as_str()) && pinned != asked {
                return Err(LoadError::Length {
                    map: name.clone(),
                    pinned,
                    needed: asked,
                });
            }
            if self.max_entries.contains_key(name) && pinned != asked {
                resized.push(Resized {
                    map: name.clone(),
                    pinned,
                    asked,
                });
            }
        }
        Ok(resized)
    }

    /// Tells whether a pinned map is as the object and the options ask for.
    pub(super) fn is_as_declared(&self, pin: &Path, name: &str, map: &aya_obj::Map) -> bool {
        let Ok(info) = MapInfo::from_pin(pin) else {
            return false;
        };
        let is_sized = self.max_entries.contains_key(name) || OF_ONE_LENGTH.contains(&name);
        MapLayout::pinned(&info).is_ok_and(|pinned| pinned == MapLayout::declared(map))
            && (!is_sized || info.max_entries() == map.max_entries())
    }
}
