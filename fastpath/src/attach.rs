//! Attaches the loaded programs to interfaces, and takes over what an earlier run attached.
//!
//! A link is pinned from the start and outlives the agent. The next agent replaces the program
//! inside the pinned link in one step, so that every packet meets either the old program or the new.
//! A program of someone else is named and left alone.

mod diagnosis;
mod egress;
mod failures;
mod words;

use std::{fs, io, path::Path};

use aya::{
    pin::PinError as PinFailure,
    programs::{
        ProgramError,
        links::{FdLink, LinkError, LinkInfo},
        xdp::{XdpLink, XdpLinkId, XdpMode as AyaMode},
    },
};

pub use self::{
    diagnosis::{Obstacle, ObstacleKind, Owner},
    egress::{Ahead, EgressAttachment, EgressHook, EgressMode},
};
use crate::{
    facts::{self, Features, Interface, InterfaceError, RequestError, XdpMode},
    load::Loaded,
    pins::{Hook, PinError, Pins, ifindex_of, open_link, read_link, rename, unpin},
    refusal::Refusal,
};

/// Which way of attaching is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver or not at all.
    #[default]
    Native,
    /// In the driver, else in the stack.
    NativeOrGeneric,
    /// In the stack.
    Generic,
}

/// What to do when generic mode meets offloads that merge packets (GRO, LRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// Switch them off; they stay off after `detach`.
    #[default]
    SwitchOff,
    /// Refuse to attach.
    Refuse,
}

/// How to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which way of attaching is allowed.
    pub mode: Mode,
    /// What to do about offloads that merge packets, in generic mode.
    pub merging: Merging,
}

/// A program in force on an interface.
#[derive(Debug)]
pub struct Attachment {
    /// The interface.
    pub interface: String,
    /// Its number.
    pub ifindex: u32,
    /// The mode in force.
    pub mode: XdpMode,
    /// The kernel's number for the link: the same for as long as the program stays attached.
    pub link: u32,
    /// The kernel's number for the program.
    pub program: u32,
    /// The program that was replaced inside an adopted link; `None` when the link is new.
    pub replaced: Option<u32>,
    /// Why native mode was not possible, when generic mode was the fallback.
    pub fallback: Option<Box<AttachError>>,
    /// The offload features that were switched off.
    pub switched_off: Vec<String>,
}

/// Why a program could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The interface cannot be found or read.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The pins cannot be used.
    #[error(transparent)]
    Pins(#[from] PinError),
    /// The kernel does not let this process do it.
    #[error("interface {interface}: cannot attach: {refusal}")]
    Refused {
        /// The interface.
        interface: String,
        /// The cause, and what to do.
        refusal: Refusal,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Another XDP program is there; it was not touched.
    #[error("interface {interface}: {owner}")]
    Occupied {
        /// The interface.
        interface: String,
        /// Whose program it is, as far as can be told.
        owner: Owner,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The driver or the stack refuses.
    #[error("interface {interface}: {mode} XDP is not possible: {obstacle}")]
    Impossible {
        /// The interface.
        interface: String,
        /// The mode that was tried.
        mode: XdpMode,
        /// The cause, and what to do.
        obstacle: Obstacle,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Generic mode, and offloads merge packets.
    #[error(
        "interface {interface}: generic XDP would see packets merged by {}; switch that off: \
         `ethtool -K {interface}{}`", .features.join(", "), off(.features)
    )]
    Merging {
        /// The interface.
        interface: String,
        /// The features that are on.
        features: Vec<String>,
    },
    /// The offload features could not be changed.
    #[error("interface {interface}: cannot switch off {}", .features.join(", "))]
    Offloads {
        /// The interface.
        interface: String,
        /// The features that should go off.
        features: Vec<String>,
        /// What the kernel said.
        #[source]
        source: RequestError,
    },
    /// The adopted link is in a mode that is not allowed.
    #[error(
        "interface {interface}: an earlier run attached in {in_force} mode, which the configuration does not allow; \
         `guideway detach` first (packets pass unbalanced until the next start), or allow that mode"
    )]
    OtherMode {
        /// The interface.
        interface: String,
        /// The mode of the adopted link.
        in_force: XdpMode,
    },
    /// The pinned link works in another network namespace.
    #[error(
        "interface {interface}: the link pinned as {pin} works in another network namespace; \
         give each its own pin directory"
    )]
    OtherNamespace {
        /// The interface.
        interface: String,
        /// The pin.
        pin: String,
    },
    /// The kernel lets no program run for packets that leave.
    #[error(
        "interface {interface}: kernel {release} has no place for a program at egress: neither tcx (6.6 or \
         later) nor the clsact qdisc with BPF filters; `modprobe -a sch_ingress cls_bpf`, or upgrade the kernel"
    )]
    NoEgress {
        /// The interface.
        interface: String,
        /// The running release.
        release: String,
        /// What the kernel said.
        #[source]
        source: RequestError,
    },
    /// An ingress qdisc, which excludes clsact.
    #[error(
        "interface {interface}: its ingress qdisc stands in the way of clsact, and this kernel has no tcx; \
         have its owner use clsact, which takes the same filters (`tc qdisc del dev {interface} ingress` \
         removes it with them)"
    )]
    IngressQdisc {
        /// The interface.
        interface: String,
    },
    /// The link could not be used for another reason.
    #[error("interface {interface}: cannot {attempt}")]
    Link {
        /// The interface.
        interface: String,
        /// What was attempted.
        attempt: &'static str,
        /// What went wrong.
        #[source]
        source: Box<LinkFailure>,
    },
}

/// What went wrong with a link.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum LinkFailure {
    /// With the program inside it.
    Program(#[from] ProgramError),
    /// With the link itself.
    Link(#[from] LinkError),
    /// With its entry below `/proc`.
    Io(#[from] io::Error),
    /// With a filter that stands in for it.
    Request(#[from] RequestError),
}

impl AttachError {
    /// Tells whether the other mode may succeed where this one failed.
    const fn allows_fallback(&self) -> bool {
        matches!(self, Self::Impossible { .. })
    }
}

impl Loaded {
    /// Attaches the program to an interface, or replaces the one in its pinned link.
    ///
    /// # Errors
    ///
    /// Each names the interface, the cause and the remedy. What was attached before stays.
    pub fn attach(
        &mut self,
        interface: &str,
        options: &Options,
    ) -> Result<Attachment, AttachError> {
        let device = facts::interface(interface)?;
        if let Some(pins) = self.pins() {
            pins.follow_renames()?;
        }
        if let Some(adopted) = self.adopt(&device, options)? {
            return Ok(adopted);
        }
        match options.mode {
            Mode::Native => self.attach_in(&device, XdpMode::Native),
            Mode::Generic => self.attach_generic(&device, options.merging),
            Mode::NativeOrGeneric => match self.attach_in(&device, XdpMode::Native) {
                Err(error) if error.allows_fallback() => Ok(Attachment {
                    fallback: Some(Box::new(error)),
                    ..self.attach_generic(&device, options.merging)?
                }),
                result => result,
            },
        }
    }

    /// Replaces the program in the interface's pinned link, if there is a live one.
    fn adopt(
        &mut self,
        device: &Interface,
        options: &Options,
    ) -> Result<Option<Attachment>, AttachError> {
        let Some(pins) = self.pins().cloned() else {
            return Ok(None);
        };
        for path in pins.links_of(Hook::Xdp, &device.name)? {
            let link = FdLink::from(open_link(&path)?);
            let info = link.info().map_err(link_error(device, READ))?;
            let ifindex = ifindex_of(info.id()).map_err(link_error(device, READ))?;
            if ifindex == 0 {
                // Its interface is gone: this link will see no packet again.
                unpin(&path)?;
                continue;
            }
            if ifindex != device.index {
                return Err(other_namespace(device, &path));
            }
            let mode = mode_in_force(device, &info, &path)?;
            if !options.mode.allows(mode) {
                return Err(AttachError::OtherMode {
                    interface: device.name.clone(),
                    in_force: mode,
                });
            }
            let switched_off = match mode {
                XdpMode::Generic => stop_merging(device, options.merging)?,
                XdpMode::Native | XdpMode::Offloaded => Vec::new(),
            };
            let link = self.replace(device, mode, link)?;
            repin(&path, &pins, Hook::Xdp, device, &link)?;
            return Ok(Some(Attachment {
                replaced: Some(info.program_id()),
                switched_off,
                ..self.attachment(device, mode, info.id())?
            }));
        }
        Ok(None)
    }

    /// Puts this program into a link, in one step; the link stays the same.
    fn replace(
        &mut self,
        device: &Interface,
        mode: XdpMode,
        link: FdLink,
    ) -> Result<FdLink, AttachError> {
        let link = XdpLink::try_from(link).map_err(link_error(device, REPLACE))?;
        let id = self
            .program_mut()
            .attach_to_link(link)
            .map_err(|error| diagnosis::attach_error(device, mode, error, None))?;
        self.take_link(device, id)
    }

    fn attach_generic(
        &mut self,
        device: &Interface,
        merging: Merging,
    ) -> Result<Attachment, AttachError> {
        let switched_off = stop_merging(device, merging)?;
        match self.attach_in(device, XdpMode::Generic) {
            Ok(attachment) => Ok(Attachment {
                switched_off,
                ..attachment
            }),
            Err(error) => {
                // Best effort: the error to report is the first one.
                let _ = facts::set_features(device.index, &switched_off, true);
                Err(error)
            }
        }
    }

    fn attach_in(&mut self, device: &Interface, mode: XdpMode) -> Result<Attachment, AttachError> {
        let flag = match mode {
            XdpMode::Native => AyaMode::Driver,
            XdpMode::Generic => AyaMode::Skb,
            XdpMode::Offloaded => AyaMode::Hardware,
        };
        let program = self.program_mut();
        let id = program
            .attach_to_if_index(device.index, flag)
            .map_err(|error| {
                let words = words::of_refusal(program, device.index, mode);
                diagnosis::attach_error(device, mode, error, words)
            })?;
        let link = self.take_link(device, id)?;
        let id = link.info().map_err(link_error(device, READ))?.id();
        match self.pins().map(|pins| pins.link(&device.name)) {
            Some(path) => pin(&path, device, link)?,
            None => self.keep(link),
        }
        self.attachment(device, mode, id)
    }

    fn take_link(&mut self, device: &Interface, id: XdpLinkId) -> Result<FdLink, AttachError> {
        let link = self
            .program_mut()
            .take_link(id)
            .map_err(link_error(device, READ))?;
        FdLink::try_from(link).map_err(link_error(device, READ))
    }

    fn attachment(
        &self,
        device: &Interface,
        mode: XdpMode,
        link: u32,
    ) -> Result<Attachment, AttachError> {
        let program = self.program().info().map_err(link_error(device, READ))?;
        Ok(Attachment {
            interface: device.name.clone(),
            ifindex: device.index,
            mode,
            link,
            program: program.id(),
            replaced: None,
            fallback: None,
            switched_off: Vec::new(),
        })
    }
}

impl Mode {
    const fn allows(self, mode: XdpMode) -> bool {
        matches!(
            (self, mode),
            (Self::Native | Self::NativeOrGeneric, XdpMode::Native)
                | (Self::Generic | Self::NativeOrGeneric, XdpMode::Generic)
        )
    }
}

const READ: &str = "read the link";
const REPLACE: &str = "replace the program in the pinned link";

fn link_error<E: Into<LinkFailure>>(
    device: &Interface,
    attempt: &'static str,
) -> impl Fn(E) -> AttachError {
    let interface = device.name.clone();
    move |source| AttachError::Link {
        interface: interface.clone(),
        attempt,
        source: Box::new(source.into()),
    }
}

/// Finds the mode of the pinned link by the program that the interface runs.
fn mode_in_force(device: &Interface, info: &LinkInfo, pin: &Path) -> Result<XdpMode, AttachError> {
    device
        .programs
        .iter()
        .find(|program| program.id == info.program_id())
        .map(|program| program.mode)
        .ok_or_else(|| other_namespace(device, pin))
}

fn other_namespace(device: &Interface, pin: &Path) -> AttachError {
    AttachError::OtherNamespace {
        interface: device.name.clone(),
        pin: pin.display().to_string(),
    }
}

fn pin(path: &Path, device: &Interface, link: FdLink) -> Result<(), AttachError> {
    // Whoever removed the directory under a running agent has detached everything; this brings it back.
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .map_err(|source| PinError::io("create it", directory, source))?;
    }
    // Dropped after a failure, the link detaches: nothing unpinned is left running.
    link.pin(path).map_err(|source| match source {
        PinFailure::SyscallError(error) => {
            PinError::io("pin the link", path, error.io_error).into()
        }
        source => link_error(device, "pin the link")(io::Error::other(source)),
    })?;
    Ok(())
}

/// Moves the pin of an adopted link to this layout version's directory, in one step, and removes what other pins the
/// device has: an agent of another version that ended between two steps has left the link two.
fn repin(
    path: &Path,
    pins: &Pins,
    hook: Hook,
    device: &Interface,
    link: &FdLink,
) -> Result<(), AttachError> {
    let own = pins.link_at(hook, &device.name);
    if path != own {
        rename(path, &own)?;
    }
    let ours = link.info().map_err(link_error(device, READ))?.id();
    for other in pins.links_of(hook, &device.name)? {
        if other == own {
            continue;
        }
        let (id, program, ifindex) = read_link(&other)?;
        // One in another network namespace stays, which has a device of the same name.
        if id == ours || ifindex == 0 || hook.runs(device, id, program) {
            unpin(&other)?;
        }
    }
    Ok(())
}

/// Sees to it that generic mode meets no merged packets; returns what it switched off.
fn stop_merging(device: &Interface, merging: Merging) -> Result<Vec<String>, AttachError> {
    let features = device
        .features
        .as_ref()
        .map(Features::merging)
        .unwrap_or_default();
    if features.is_empty() {
        return Ok(features);
    }
    let interface = device.name.clone();
    if merging == Merging::Refuse {
        return Err(AttachError::Merging {
            interface,
            features,
        });
    }
    match facts::set_features(device.index, &features, false) {
        Ok(stayed) if stayed.is_empty() => Ok(features),
        Ok(features) => Err(AttachError::Merging {
            interface,
            features,
        }),
        Err(source) => Err(AttachError::Offloads {
            interface,
            features,
            source,
        }),
    }
}

fn off(features: &[String]) -> String {
    features
        .iter()
        .map(|feature| format!(" {feature} off"))
        .collect()
}
