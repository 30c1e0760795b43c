//! Pinned links between programs and devices: their names, their contents, and their removal.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use aya::programs::links::{FdLink, LinkError, PinnedLink};

use super::{PinError, Pins, devices, entries, rename, unpin};
use crate::{
    facts::{self, Interface},
    sys::{self, LinkInfo},
};

/// How long to wait for the kernel to detach a program whose last pin is gone.
const DETACH_DEADLINE: Duration = Duration::from_secs(15);
const DETACH_POLL: Duration = Duration::from_millis(5);

/// The hook at which a pinned link attaches its program.
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

    /// Returns the file name of a link's pin. Names on a BPF file system must not contain dots, but VLAN interfaces
    /// have them (`eth0.100`).
    pub(super) fn name_of_link(self, interface: &str) -> String {
        let escaped = interface.replace('%', "%25").replace('.', "%2e");
        format!("{}{escaped}", self.prefix())
    }

    fn interface_of(self, path: &Path) -> Option<String> {
        let escaped = path.file_name()?.to_str()?.strip_prefix(self.prefix())?;
        Some(escaped.replace("%2e", ".").replace("%25", "%"))
    }

    /// Tells whether a device of this namespace runs the program of the link.
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

impl Pins {
    /// Renames the pins of links after the present names of their interfaces, and removes those whose interface is
    /// gone.
    ///
    /// A link belongs to a device, which can be renamed; another device may have its old name. Links in another
    /// network namespace stay as they are.
    ///
    /// # Errors
    ///
    /// Fails if the devices cannot be listed, or if a pin cannot be opened, renamed or removed.
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
                // The pin first gets a name that no interface has, because two interfaces may have swapped names.
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

    pub(crate) fn detach_at(&self, hook: Hook, interface: &str) -> Result<bool, PinError> {
        let links = self.links_of(hook, interface)?;
        for path in &links {
            remove_link(hook, interface, path)?;
        }
        Ok(!links.is_empty())
    }

    /// Lists the pins of an interface's links at one hook; that of this layout version comes first.
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
    pub(super) fn pinned(&self) -> Result<Vec<(Hook, String, PathBuf)>, PinError> {
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
}

/// Opens a pinned link, so that its program can be replaced.
pub(crate) fn open_link(path: &Path) -> Result<FdLink, PinError> {
    let link = PinnedLink::from_pin(path).map_err(|error| match error {
        LinkError::SyscallError(error) => PinError::link(path, error.io_error),
        error => PinError::link(path, io::Error::other(error)),
    })?;
    Ok(link.into())
}

/// Reads the kernel's information about a pinned link.
pub(crate) fn read_link(path: &Path) -> Result<LinkInfo, PinError> {
    let link = sys::open_pinned(path).and_then(|link| sys::link_info(link.as_fd()));
    link.map_err(|source| PinError::link(path, source))
}

fn remove_link(hook: Hook, interface: &str, path: &Path) -> Result<(), PinError> {
    // The device is looked up by its index, because it may have another name by now.
    let link = read_link(path).ok();
    unpin(path)?;
    link.map_or(Ok(()), |link| wait_until_detached(hook, interface, &link))
}

/// Waits until a device no longer runs a link's program: the kernel frees a link in a worker, after its last
/// reference is gone.
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
}
