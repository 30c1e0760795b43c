//! The directories of other tables: of another layout version, or set aside because tables got other sizes.

use std::path::{Path, PathBuf};

use aya::maps::MapData;

use super::{PinError, Pins, entries, open_map, remove_directory, rename, unpin};

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
        let mut found = Vec::new();
        for version in self.other_versions()? {
            found.extend(maps_in_force(&version, names)?.and_then(Result::ok));
        }
        Ok(found)
    }

    /// Opens maps of each other directory of a layout version whose programs are still attached.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read, or if a map cannot be opened.
    pub(crate) fn open_maps_of<const N: usize>(
        &self,
        layout: u32,
        names: [&str; N],
    ) -> Result<Vec<[MapData; N]>, PinError> {
        let mut found = Vec::new();
        for version in self.other_versions()? {
            if layout_of(&version) == Some(layout)
                && let Some(maps) = maps_in_force(&version, names)?
            {
                found.push(maps?);
            }
        }
        Ok(found)
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

    /// Removes the other directories that have no link left, with their pins.
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
        Ok(())
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
        versions.retain(|path| layout_of(path).is_some());
        Ok(versions)
    }
}

/// Returns the layout version of a directory: `v4`, or `v4-1` if it was set aside.
fn layout_of(directory: &Path) -> Option<u32> {
    let name = directory.file_name()?.to_str()?.strip_prefix('v')?;
    let (version, number) = name.split_once('-').unwrap_or((name, "0"));
    number.parse::<u32>().ok()?;
    version.parse().ok()
}

/// Opens maps of a version; `None` if none of its programs is attached.
fn maps_in_force<const N: usize>(
    version: &Path,
    names: [&str; N],
) -> Result<Option<Result<[MapData; N], PinError>>, PinError> {
    if entries(&version.join("links"))?.is_empty() {
        return Ok(None);
    }
    let maps = names.map(|name| open_map(version.join("maps"), name));
    let maps: Result<Vec<MapData>, PinError> = maps.into_iter().collect();
    Ok(Some(maps.map(|maps| {
        <[MapData; N]>::try_from(maps).expect("there is one map for each name")
    })))
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
