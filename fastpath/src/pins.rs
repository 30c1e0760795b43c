//! Where maps and links are pinned, so that they outlive the agent.
//!
//! ```text
//! <root>/v<layout version>/maps/<MAP>
//!                         /programs/capture
//!                                  /trace-<tracepoint>
//!                         /links/xdp-<interface>
//!                               /egress-<device>
//! ```
//!
//! The version is that of the table layouts: a changed layout never meets an old map.
//! A link found under another version is taken over by [`attach`](crate::attach), so traffic
//! meets either the old program with the old tables or the new one with the new tables.
//!
//! Where the egress program is in a filter, for want of tcx, there is no link to pin: the kernel
//! keeps the filter, and it is found again on the device.

use std::{
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use aya::{
    maps::{MapData, MapError},
    pin::PinError as PinFailure,
    programs::links::{FdLink, LinkError, PinnedLink},
};
use xdp_prog::abi;

use crate::{
    clsact,
    facts::{self, Bpffs, Interface, RequestError},
    refusal::{Refusal, is_refusal},
    sys::{self, LinkInfo},
};

/// Where pins live unless the configuration says otherwise.
pub const DEFAULT_ROOT: &str = "/sys/fs/bpf/guideway";

/// How long the kernel may take to detach a program whose last pin is gone.
const DETACH_DEADLINE: Duration = Duration::from_secs(5);
const DETACH_POLL: Duration = Duration::from_millis(5);

/// Why pins could not be made, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    #[error(
        "pin directory {}: {} is not on a BPF file system (magic {magic:#x}); \
         mount one with `mount -t bpf bpf /sys/fs/bpf`, in a container mount the host's /sys/fs/bpf",
        .root.display(), .directory.display()
    )]
    NotBpffs {
        root: PathBuf,
        directory: PathBuf,
        magic: u64,
    },
    #[error("pin {}: {refusal}", .path.display())]
    Refused {
        path: PathBuf,
        refusal: Refusal,
        #[source]
        source: io::Error,
    },
    #[error("pin {}: cannot {attempt}", .path.display())]
    Io {
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("map {map}: not pinned in {}; is the agent running with this pin directory?", .directory.display())]
    NoMap { map: String, directory: PathBuf },
    #[error("map {map}: cannot open its pin {}", .path.display())]
    Map {
        map: String,
        path: PathBuf,
        #[source]
        source: Box<MapError>,
    },
    #[error(
        "interface {interface}: program {program} is still attached although its pin is removed: \
         another process holds the link; `bpftool link` names it"
    )]
    StillAttached { interface: String, program: u32 },
    #[error("cannot {attempt}")]
    Devices {
        attempt: String,
        #[source]
        source: RequestError,
    },
}

impl PinError {
    pub(crate) fn io(attempt: &'static str, path: &Path, source: io::Error) -> Self {
        if is_refusal(&source) {
            return Self::Refused {
                path: path.to_owned(),
                refusal: Refusal::Ownership,
                source,
            };
        }
        Self::Io {
            attempt,
            path: path.to_owned(),
            source,
        }
    }

    fn link(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if is_refusal(&source) {
            return Self::Refused {
                path,
                refusal: Refusal::of_bpf(),
                source,
            };
        }
        Self::Io {
            attempt: "open it as a link",
            path,
            source,
        }
    }
}

/// Where a pinned link attaches its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Xdp,
    Egress,
}

impl Hook {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Xdp => "xdp-",
            Self::Egress => "egress-",
        }
    }

    /// A file name on a BPF file system has no dots, which VLAN interfaces do (`eth0.100`).
    fn name_of_link(self, interface: &str) -> String {
        let escaped = interface.replace('%', "%25").replace('.', "%2e");
        format!("{}{escaped}", self.prefix())
    }

    fn interface_of(self, path: &Path) -> Option<String> {
        let escaped = path.file_name()?.to_str()?.strip_prefix(self.prefix())?;
        Some(escaped.replace("%2e", ".").replace("%25", "%"))
    }

    /// Tells whether a device of this namespace runs what the link holds there.
    pub(crate) fn runs(self, device: &Interface, link: &LinkInfo) -> bool {
        match self {
            Self::Xdp => device.runs(link.program),
            Self::Egress => facts::tcx_programs(device.index).is_ok_and(|programs| {
                let mut programs = programs.iter().flatten();
                programs.any(|program| program.link == link.id)
            }),
        }
    }
}

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
    /// Names the pins below `root` for the layouts of this build.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            version: abi::VERSION,
        }
    }

    /// Returns the directory below which everything is pinned.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a map's pin.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Returns the path of the pin of the program to capture with.
    pub(crate) fn capture_program(&self) -> PathBuf {
        self.programs().join("capture")
    }

    /// Returns the path of the pin of the link to a tracepoint.
    ///
    /// Among the programs: those that are not on a device are removed together.
    pub(crate) fn trace_link(&self, tracepoint: &str) -> PathBuf {
        self.programs().join(format!("trace-{tracepoint}"))
    }

    /// Returns the path of the pin of an interface's XDP link.
    #[must_use]
    pub fn link(&self, interface: &str) -> PathBuf {
        self.link_at(Hook::Xdp, interface)
    }

    /// Returns the path of the pin of a device's egress link, where the kernel has tcx.
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
    /// When there is no such pin, or it may not be opened.
    pub fn open_map(&self, name: &str) -> Result<MapData, PinError> {
        open_map(self.maps(), name)
    }

    /// Opens maps of each other layout version whose programs are attached yet; one that cannot be opened, as where
    /// the version has no such map, counts for a version without them.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read.
    pub fn open_maps_in_force<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<Vec<[MapData; N]>, PinError> {
        let mut found = Vec::new();
        for version in self.other_versions()? {
            if entries(&version.join("links"))?.is_empty() {
                continue;
            }
            let maps = names.map(|name| open_map(version.join("maps"), name));
            let maps: Result<Vec<MapData>, PinError> = maps.into_iter().collect();
            found.extend(
                maps.ok()
                    .and_then(|maps| <[MapData; N]>::try_from(maps).ok()),
            );
        }
        Ok(found)
    }

    /// Lists the interfaces with a pinned XDP link, of any layout version.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read.
    pub fn interfaces(&self) -> Result<Vec<String>, PinError> {
        let pinned = self.pinned()?.into_iter();
        let xdp = pinned.filter(|(hook, ..)| *hook == Hook::Xdp);
        Ok(sorted(xdp.map(|(_, interface, _)| interface).collect()))
    }

    /// Lists the devices with a pinned egress link, of any layout version, or with our filter.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read, or the kernel does not list the devices.
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
    /// When the pin cannot be removed, or the program still runs after it is.
    pub fn detach(&self, interface: &str) -> Result<bool, PinError> {
        self.detach_at(Hook::Xdp, interface)
    }

    /// Detaches the egress program from a device; false if it was not there.
    ///
    /// # Errors
    ///
    /// When the pin or filter cannot be removed, or the program still runs after the pin is.
    pub fn detach_egress(&self, device: &str) -> Result<bool, PinError> {
        let in_link = self.detach_at(Hook::Egress, device)?;
        let in_filter = match facts::link(device) {
            Ok(link) => clsact::remove(link.index).map_err(|source| PinError::Devices {
                attempt: format!("remove the egress filter from device {device}"),
                source,
            })?,
            // Gone with the device.
            Err(_) => false,
        };
        Ok(in_link || in_filter)
    }

    pub(crate) fn detach_at(&self, hook: Hook, interface: &str) -> Result<bool, PinError> {
        let links = self.links_of(hook, interface)?;
        for path in &links {
            remove_link(hook, interface, path)?;
        }
        Ok(!links.is_empty())
    }

    /// Gives the pins of links the names that their interfaces have today, and removes those whose
    /// interface is gone.
    ///
    /// A link belongs to a device, which can be renamed; another may have its name by now. Links
    /// that work in another network namespace stay as they are.
    ///
    /// # Errors
    ///
    /// When the devices cannot be listed, or a pin not opened, renamed or removed.
    pub fn follow_renames(&self) -> Result<(), PinError> {
        let mut renamed = Vec::new();
        let devices = devices()?;
        for (hook, interface, path) in self.pinned()? {
            let link = read_link(&path)?;
            if link.ifindex == 0 {
                unpin(&path)?;
                continue;
            }
            let device = devices.iter().find(|device| device.index == link.ifindex);
            let Some(device) = device.filter(|device| device.name != interface) else {
                continue;
            };
            if hook.runs(device, &link) {
                // By a name that no interface has: two may have swapped theirs.
                let between = path.with_file_name(format!("{}%link{}", hook.prefix(), link.id));
                rename(&path, &between)?;
                renamed.push((
                    between,
                    path.with_file_name(hook.name_of_link(&device.name)),
                ));
            }
        }
        for (between, path) in renamed {
            rename(&between, &path)?;
        }
        Ok(())
    }

    /// Detaches every program and removes every pin and directory, of every layout version.
    ///
    /// Returns the interfaces and devices that were detached. Files that Guideway does not make
    /// stay, and then so do their directories.
    ///
    /// # Errors
    ///
    /// When something cannot be removed, or a program still runs after its pin is.
    pub fn remove_all(&self) -> Result<Vec<String>, PinError> {
        let mut interfaces = self.interfaces()?;
        // Links first: a program without its maps is impossible, a map without its program is not.
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
        remove_directory(&self.root)?;
        Ok(sorted(interfaces))
    }

    /// Lists the other layout versions of which there are pins.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read.
    pub fn other_versions(&self) -> Result<Vec<PathBuf>, PinError> {
        let own = self.directory();
        let mut others = self.versions()?;
        others.retain(|version| *version != own);
        Ok(others)
    }

    /// Removes the pins of other layout versions once no link is left among them.
    ///
    /// # Errors
    ///
    /// When something cannot be removed.
    pub fn remove_other_versions(&self) -> Result<(), PinError> {
        for version in self.other_versions()? {
            if entries(&version.join("links"))?.is_empty() {
                remove_version(&version)?;
            }
        }
        Ok(())
    }

    /// Makes the directories.
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

    /// Lists the pins of an interface's links at one hook, this layout version's first.
    pub(crate) fn links_of(&self, hook: Hook, interface: &str) -> Result<Vec<PathBuf>, PinError> {
        let name = hook.name_of_link(interface);
        let mut links: Vec<_> = self
            .versions()?
            .iter()
            .map(|version| version.join("links").join(&name))
            .filter(|path| path.exists())
            .collect();
        links.sort_by_key(|path| *path != self.link_at(hook, interface));
        Ok(links)
    }

    /// Lists every pinned link, of any layout version.
    fn pinned(&self) -> Result<Vec<(Hook, String, PathBuf)>, PinError> {
        let mut pinned = Vec::new();
        for version in self.versions()? {
            for path in entries(&version.join("links"))? {
                let hooks = [Hook::Xdp, Hook::Egress].into_iter();
                let named = hooks.filter_map(|hook| Some((hook, hook.interface_of(&path)?)));
                pinned.extend(named.map(|(hook, interface)| (hook, interface, path.clone())));
            }
        }
        Ok(pinned)
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

    fn versions(&self) -> Result<Vec<PathBuf>, PinError> {
        let is_version = |path: &PathBuf| {
            path.file_name()
                .and_then(|name| name.to_str()?.strip_prefix('v')?.parse::<u32>().ok())
                .is_some()
        };
        Ok(entries(&self.root)?
            .into_iter()
            .filter(is_version)
            .collect())
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

/// Removes a pin; a pin that is gone already is as good.
pub(crate) fn unpin(path: &Path) -> Result<(), PinError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PinError::io("remove it", path, source))
        }
        _ => Ok(()),
    }
}

/// Pins something by a call of aya's.
pub(crate) fn pin<T>(
    path: &Path,
    pin: impl FnOnce(&Path) -> Result<T, PinFailure>,
) -> Result<T, PinError> {
    // Whoever removed the directory under a running agent has detached everything; this brings it back.
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

/// Opens a pinned link, to put another program into it.
pub(crate) fn open_link(path: &Path) -> Result<FdLink, PinError> {
    let link = PinnedLink::from_pin(path).map_err(|error| match error {
        LinkError::SyscallError(error) => PinError::link(path, error.io_error),
        error => PinError::link(path, io::Error::other(error)),
    })?;
    Ok(link.into())
}

/// Reads what a pinned link is.
pub(crate) fn read_link(path: &Path) -> Result<LinkInfo, PinError> {
    let link = sys::open_pinned(path).and_then(|link| sys::link_info(link.as_fd()));
    link.map_err(|source| PinError::link(path, source))
}

fn remove_link(hook: Hook, interface: &str, path: &Path) -> Result<(), PinError> {
    // Asked by number: the interface may have another name by now.
    let link = read_link(path).ok();
    unpin(path)?;
    link.map_or(Ok(()), |link| wait_until_detached(hook, interface, &link))
}

/// The kernel frees a link after its last reference has gone, in a worker: not at once.
fn wait_until_detached(hook: Hook, interface: &str, link: &LinkInfo) -> Result<(), PinError> {
    let deadline = Instant::now() + DETACH_DEADLINE;
    loop {
        let attached = devices().is_ok_and(|devices| {
            let mut there = devices.iter().filter(|device| device.index == link.ifindex);
            there.any(|device| hook.runs(device, link))
        });
        if !attached {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(PinError::StillAttached {
                interface: interface.to_owned(),
                program: link.program,
            });
        }
        thread::sleep(DETACH_POLL);
    }
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

fn remove_version(version: &Path) -> Result<(), PinError> {
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

fn remove_directory(path: &Path) -> Result<(), PinError> {
    use io::ErrorKind::{DirectoryNotEmpty, NotFound, ResourceBusy};
    match fs::remove_dir(path) {
        // In a container the directory itself is what is mounted.
        Err(source) if !matches!(source.kind(), NotFound | DirectoryNotEmpty | ResourceBusy) => {
            Err(PinError::io("remove it", path, source))
        }
        _ => Ok(()),
    }
}

/// Lists a directory in order of names; one that does not exist is empty.
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
mod tests {
    use super::*;

    #[test]
    fn link_names_have_no_dots_and_map_back() {
        for interface in ["eth0", "eth0.100", "a%2eb", "bond0.1.2"] {
            let name = Hook::Egress.name_of_link(interface);
            assert!(!name.contains('.'), "{name}");
            let path = Path::new(&name);
            assert_eq!(
                Hook::Egress.interface_of(path).as_deref(),
                Some(interface),
                "{name}"
            );
            assert_eq!(Hook::Xdp.interface_of(path), None, "{name}");
        }
    }

    #[test]
    fn directory_on_another_file_system_is_refused_with_the_remedy() {
        let error = Pins::new("/proc/guideway").prepare().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/proc/guideway"), "{text}");
        assert!(text.contains("magic 0x9fa0"), "{text}");
        assert!(text.contains("mount -t bpf"), "{text}");
    }

    #[test]
    fn map_without_a_pin_is_named_with_its_directory() {
        let error = Pins::new("/sys/fs/bpf/nowhere")
            .open_map("LUT")
            .unwrap_err();
        assert!(matches!(&error, PinError::NoMap { map, .. } if map == "LUT"));
        let directory = format!("/sys/fs/bpf/nowhere/v{}/maps", xdp_prog::abi::VERSION);
        assert!(error.to_string().contains(&directory));
    }
}
