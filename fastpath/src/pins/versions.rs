//! The directories of other tables: of another layout version, or set aside because tables got other sizes.

use std::path::{Path, PathBuf};

use aya::maps::MapData;

use super::{PinError, Pins, entries, open_map, pin, remove_directory, rename, unpin};

/// Another directory, whose programs are still attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerVersion {
    directory: PathBuf,
    /// The layout version.
    pub(crate) layout: u32,
    /// The number by which it was set aside; 0 if it was not.
    number: u32,
}

impl FormerVersion {
    /// Returns the path of the pin of a map.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.directory.join("maps").join(name)
    }

    /// Opens maps.
    ///
    /// # Errors
    ///
    /// Fails if a map does not exist, or cannot be opened.
    pub(crate) fn open_maps<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[MapData; N], PinError> {
        let maps = names.map(|name| open_map(self.directory.join("maps"), name));
        let maps: Vec<MapData> = maps.into_iter().collect::<Result<_, _>>()?;
        Ok(<[MapData; N]>::try_from(maps).expect("there is one map for each name"))
    }
}

impl Pins {
    /// Opens maps of each other directory whose programs are still attached. A directory with a map that cannot be
    /// opened, or does not exist, is left out.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read.
    pub fn open_maps_in_force<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<Vec<[MapData; N]>, PinError> {
        let versions = self.versions_in_force()?;
        let maps = versions.iter().map(|version| version.open_maps(names));
        Ok(maps.filter_map(Result::ok).collect())
    }

    /// Lists the other directories whose programs are still attached, from the oldest to the newest.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read.
    pub(crate) fn versions_in_force(&self) -> Result<Vec<FormerVersion>, PinError> {
        let mut versions = Vec::new();
        for directory in self.other_versions()? {
            if let Some((layout, number)) = version_of(&directory)
                && !entries(&directory.join("links"))?.is_empty()
            {
                versions.push(FormerVersion {
                    directory,
                    layout,
                    number,
                });
            }
        }
        // What was set aside is older than what took its place.
        versions.sort_by_key(|version| (version.layout, version.number == 0, version.number));
        Ok(versions)
    }

    /// Tells whether nothing is pinned for this layout yet: neither a map nor a link.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read.
    pub(crate) fn is_unused(&self) -> Result<bool, PinError> {
        Ok(entries(&self.maps())?.is_empty() && entries(&self.links())?.is_empty())
    }

    /// Pins maps of another version as maps of this one too, all of them in one step. This layout must be unused.
    pub(crate) fn adopt_maps<'m>(
        &self,
        from: &FormerVersion,
        maps: impl IntoIterator<Item = &'m str>,
    ) -> Result<(), PinError> {
        let prepared = self.root.join(BEING_ADOPTED);
        remove_version(&prepared)?;
        for name in maps {
            let [map] = from.open_maps([name])?;
            pin(&prepared.join("maps").join(name), |path| map.pin(path))?;
        }
        let own = self.directory();
        remove_version(&own)?;
        rename(&prepared, &own)?;
        self.prepare()
    }

    /// Lists the other directories that have pins.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read.
    pub fn other_versions(&self) -> Result<Vec<PathBuf>, PinError> {
        let own = self.directory();
        let mut others = self.versions()?;
        others.retain(|version| *version != own);
        Ok(others)
    }

    /// Removes the other directories that have no link left, with their pins, and what an adoption has left that was cut off.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be removed.
    pub fn remove_other_versions(&self) -> Result<(), PinError> {
        for version in self.other_versions()? {
            if entries(&version.join("links"))?.is_empty() {
                remove_version(&version)?;
            }
        }
        self.remove_half_adopted()
    }

    /// Sets the pins of this layout aside, in one step, so that new maps can take their place. Programs stay attached.
    pub(crate) fn set_aside(&self) -> Result<PathBuf, PinError> {
        let own = self.directory();
        let numbered = |number| self.root.join(format!("v{}-{number}", self.version));
        let mut number = 1;
        while numbered(number).exists() {
            number += 1;
        }
        rename(&own, &numbered(number))?;
        self.prepare()?;
        Ok(numbered(number))
    }

    /// Puts pins back that were set aside, in place of those that were made since.
    pub(crate) fn put_back(&self, aside: &Path) -> Result<(), PinError> {
        let own = self.directory();
        remove_version(&own)?;
        rename(aside, &own)
    }

    pub(super) fn versions(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut versions = entries(&self.root)?;
        versions.retain(|path| version_of(path).is_some());
        Ok(versions)
    }

    /// Removes what an agent has left that ended while it adopted maps.
    pub(super) fn remove_half_adopted(&self) -> Result<(), PinError> {
        remove_version(&self.root.join(BEING_ADOPTED))
    }
}

/// Name of the directory in which the pins of adopted maps are made.
const BEING_ADOPTED: &str = "adopted";

/// Returns the layout version of a directory, and the number by which it was set aside: 4 and 0 of `v4`, 4 and 1 of
/// `v4-1`.
fn version_of(directory: &Path) -> Option<(u32, u32)> {
    let name = directory.file_name()?.to_str()?.strip_prefix('v')?;
    let (version, number) = name.split_once('-').unwrap_or((name, "0"));
    Some((version.parse().ok()?, number.parse().ok()?))
}

pub(super) fn remove_version(version: &Path) -> Result<(), PinError> {
    for kind in ["maps", "programs"] {
        for pin in entries(&version.join(kind))? {
            unpin(&pin)?;
        }
    }
    for kind in ["maps", "programs", "links"] {
        remove_directory(&version.join(kind))?;
    }
    remove_directory(version)?;
    Ok(())
}
