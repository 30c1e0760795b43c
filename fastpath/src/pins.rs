//! The pins of maps and links, by which they outlive the agent.
//!
//! ```text
//! <root>/v<layout version>/maps/<MAP>
//!                         /programs/capture
//!                                  /trace-<tracepoint>
//!                         /links/xdp-<interface>
//!                               /egress-<device>
//!       /v<layout version>-<number>/...
//! ```
//!
//! The version is that of the table layouts, so a changed layout never meets an old map. Maps whose own layout is the same
//! in another version are pinned in both directories ([`load`](crate::load)). If tables get other sizes, the
//! directory is set aside: it gets a number, and new maps take its place. [`attach`](crate::attach) adopts a link that
//! it finds in another directory. So traffic meets either the old program with the old tables, or the new one with the
//! new tables.
//!
//! Without tcx, the egress program is in a filter, which needs no pin: the kernel keeps the filter, and the next
//! agent finds it on the device.

mod error;
mod links;
mod versions;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{maps::MapData, pin::PinError as PinFailure};
use xdp_prog::abi;

pub use self::error::PinError;
pub(crate) use self::links::{Hook, open_link, read_link};
pub(crate) use self::versions::FormerVersion;
use self::versions::remove_version;
use crate::{
    clsact,
    facts::{self, Bpffs, Interface},
};

/// The pin directory, unless the configuration names another one.
pub const DEFAULT_ROOT: &str = "/sys/fs/bpf/guideway";

/// The pin directory of one layout version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    root: PathBuf,
    version: u32,
}

impl Default for Pins {
    fn default() -> Self {
        Self::new(DEFAULT_ROOT)
    }
}

impl Pins {
    /// Returns the pins below `root` for the layouts of this build.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            version: abi::VERSION,
        }
    }

    /// Returns the directory that contains all pins.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the pin of a map.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Returns the path of the pin of the program that captures.
    pub(crate) fn capture_program(&self) -> PathBuf {
        self.programs().join("capture")
    }

    /// Returns the path of the pin of the link to a tracepoint.
    ///
    /// It is among the programs, because all that are not on a device are removed together.
    pub(crate) fn trace_link(&self, tracepoint: &str) -> PathBuf {
        self.programs().join(format!("trace-{tracepoint}"))
    }

    /// Returns the path of the pin of an interface's XDP link.
    #[must_use]
    pub fn link(&self, interface: &str) -> PathBuf {
        self.link_at(Hook::Xdp, interface)
    }

    /// Returns the path of the pin of a device's egress link; only kernels with tcx have one.
    #[must_use]
    pub fn egress_link(&self, device: &str) -> PathBuf {
        self.link_at(Hook::Egress, device)
    }

    pub(crate) fn link_at(&self, hook: Hook, interface: &str) -> PathBuf {
        self.links().join(hook.name_of_link(interface))
    }

    /// Opens a pinned map, without loading anything.
    ///
    /// # Errors
    ///
    /// Fails if there is no such pin, or if it may not be opened.
    pub fn open_map(&self, name: &str) -> Result<MapData, PinError> {
        open_map(self.maps(), name)
    }

    /// Lists the interfaces with a pinned XDP link, of any layout version.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read.
    pub fn interfaces(&self) -> Result<Vec<String>, PinError> {
        let pinned = self.pinned()?.into_iter();
        let xdp = pinned.filter(|(hook, ..)| *hook == Hook::Xdp);
        Ok(sorted(xdp.map(|(_, interface, _)| interface).collect()))
    }

    /// Lists the devices that have a pinned egress link of any layout version, or our filter.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read, or if the kernel does not list the devices.
    pub fn egress_devices(&self) -> Result<Vec<String>, PinError> {
        let pinned = self.pinned()?.into_iter();
        let mut names: Vec<_> = pinned
            .filter(|(hook, ..)| *hook == Hook::Egress)
            .map(|(_, device, _)| device)
            .collect();
        for device in devices()? {
            if clsact::ours(device.index).is_ok_and(|filter| filter.is_some()) {
                names.push(device.name);
            }
        }
        Ok(sorted(names))
    }

    /// Detaches the XDP program from an interface; false if nothing was pinned for it.
    ///
    /// # Errors
    ///
    /// Fails if the pin cannot be removed, or if the program still runs after that.
    pub fn detach(&self, interface: &str) -> Result<bool, PinError> {
        self.detach_at(Hook::Xdp, interface)
    }

    /// Detaches the egress program from a device; false if it was not attached.
    ///
    /// # Errors
    ///
    /// Fails if the pin or filter cannot be removed, or if the program still runs after that.
    pub fn detach_egress(&self, device: &str) -> Result<bool, PinError> {
        let in_link = self.detach_at(Hook::Egress, device)?;
        let in_filter = match facts::link(device) {
            Ok(link) => clsact::remove(link.index).map_err(|source| PinError::Devices {
                attempt: format!("remove the egress filter from device {device}"),
                source,
            })?,
            // The filter is gone with the device.
            Err(_) => false,
        };
        Ok(in_link || in_filter)
    }

    /// Detaches every program and removes every pin and directory, of every layout version.
    ///
    /// Returns the interfaces and devices that were detached. Files that Guideway did not make stay, and so do their
    /// directories.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be removed, or if a program still runs after its pin is removed.
    pub fn remove_all(&self) -> Result<Vec<String>, PinError> {
        let mut interfaces = self.interfaces()?;
        // Links first: a program must not run without its maps, but maps may exist without their program.
        for interface in &interfaces {
            self.detach(interface)?;
        }
        let devices = self.egress_devices()?;
        for device in &devices {
            self.detach_egress(device)?;
        }
        interfaces.extend(devices);
        for version in self.versions()? {
            remove_version(&version)?;
        }
        self.remove_half_adopted()?;
        remove_directory(&self.root)?;
        Ok(sorted(interfaces))
    }

    pub(crate) fn prepare(&self) -> Result<(), PinError> {
        match facts::bpffs(&self.root) {
            Ok(Bpffs::Mounted) => {}
            Ok(Bpffs::Other { directory, magic }) => {
                return Err(PinError::NotBpffs {
                    root: self.root.clone(),
                    directory,
                    magic,
                });
            }
            Err(source) => return Err(PinError::io("find its file system", &self.root, source)),
        }
        for directory in [self.maps(), self.programs(), self.links()] {
            fs::create_dir_all(&directory)
                .map_err(|source| PinError::io("create it", &directory, source))?;
        }
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        self.root.join(format!("v{}", self.version))
    }

    fn maps(&self) -> PathBuf {
        self.directory().join("maps")
    }

    fn programs(&self) -> PathBuf {
        self.directory().join("programs")
    }

    fn links(&self) -> PathBuf {
        self.directory().join("links")
    }
}

fn open_map(directory: PathBuf, name: &str) -> Result<MapData, PinError> {
    let path = directory.join(name);
    MapData::from_pin(&path).map_err(|source| {
        let map = name.to_owned();
        if path.exists() {
            PinError::Map {
                map,
                path,
                source: Box::new(source),
            }
        } else {
            PinError::NoMap { map, directory }
        }
    })
}

/// Removes a pin; succeeds if the pin is gone already.
pub(crate) fn unpin(path: &Path) -> Result<(), PinError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PinError::io("remove it", path, source))
        }
        _ => Ok(()),
    }
}

/// Pins an object by `pin`, a call of aya, and makes the directory first.
pub(crate) fn pin<T>(
    path: &Path,
    pin: impl FnOnce(&Path) -> Result<T, PinFailure>,
) -> Result<T, PinError> {
    // Somebody may have removed the directory under a running agent, and so detached everything; this brings it back.
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .map_err(|source| PinError::io("create it", directory, source))?;
    }
    pin(path).map_err(|error| {
        let source = match error {
            PinFailure::SyscallError(error) => error.io_error,
            error => io::Error::other(error),
        };
        PinError::io("make it", path, source)
    })
}

fn devices() -> Result<Vec<Interface>, PinError> {
    facts::links().map_err(|source| PinError::Devices {
        attempt: "list the network devices".to_owned(),
        source,
    })
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), PinError> {
    fs::rename(from, to).map_err(|source| PinError::io("rename it", from, source))
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}

fn remove_directory(path: &Path) -> Result<(), PinError> {
    use io::ErrorKind::{DirectoryNotEmpty, NotFound, ResourceBusy};
    match fs::remove_dir(path) {
        // In a container, the directory itself is the mount point.
        Err(source) if !matches!(source.kind(), NotFound | DirectoryNotEmpty | ResourceBusy) => {
            Err(PinError::io("remove it", path, source))
        }
        _ => Ok(()),
    }
}

/// Lists a directory, sorted by name; a directory that does not exist is empty.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, PinError> {
    let failed = |source| PinError::io("list it", directory, source);
    let listing = match fs::read_dir(directory) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = listing
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(failed)?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
