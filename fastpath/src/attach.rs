//! Attaches the loaded programs to interfaces, and adopts programs that an earlier run attached.
//!
//! A link is pinned from the start and outlives the agent. The next agent replaces the program inside the pinned link
//! in one step, so that every packet meets either the old program or the new. A program of another owner is named and
//! left alone.

mod diagnosis;
mod egress;
mod error;
mod failures;
mod words;

use std::path::{Path, PathBuf};

use aya::programs::{
    links::FdLink,
    xdp::{XdpLink, XdpMode as AyaMode},
};

use self::error::{link_error, other_namespace};
pub use self::{
    diagnosis::{Obstacle, ObstacleKind, Owner},
    egress::{Ahead, EgressAttachment, EgressHook, EgressMode},
    error::{AttachError, LinkFailure},
};
use crate::{
    facts::{self, Features, Interface, XdpMode},
    load::Loaded,
    pins::{Hook, open_link, read_link, rename, unpin},
    sys::LinkInfo,
};

/// The allowed ways of attaching the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Native mode only.
    #[default]
    Native,
    /// Native mode; generic mode if the driver cannot run the program.
    NativeOrGeneric,
    /// Generic mode only.
    Generic,
}

/// What to do if generic mode meets offloads that merge packets (GRO, LRO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// Switch them off; they stay off after `detach`.
    #[default]
    SwitchOff,
    /// Refuse to attach.
    Refuse,
}

/// Options for attaching the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The allowed modes.
    pub mode: Mode,
    /// What to do in generic mode with offloads that merge packets.
    pub merging: Merging,
}

/// An XDP program that runs on an interface.
#[derive(Debug)]
pub struct Attachment {
    pub interface: String,
    pub ifindex: u32,
    pub mode: XdpMode,
    /// The kernel's id of the link; it stays the same for as long as a program is attached.
    pub link: u32,
    /// The kernel's id of the program.
    pub program: u32,
    /// Id of the program that was replaced inside an adopted link; `None` if the link is new.
    pub replaced: Option<u32>,
    /// Why native mode was not possible, if generic mode is the fallback.
    pub fallback: Option<Box<AttachError>>,
    /// The offload features that were switched off.
    pub switched_off: Vec<String>,
}

impl Loaded {
    /// Attaches the program to an interface, or replaces the program in its pinned link.
    ///
    /// # Errors
    ///
    /// Each error names the interface, the cause and the remedy. A program that was attached before stays.
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
        let Some(pinned) = self.pinned_link(Hook::Xdp, device)? else {
            return Ok(None);
        };
        let program = pinned.info.program;
        let in_force = device.programs.iter().find(|other| other.id == program);
        let mode = in_force.ok_or_else(|| other_namespace(device, &pinned.path))?;
        let mode = mode.mode;
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
        self.replace_in(pinned.link).map_err(|error| match error {
            LinkFailure::Program(error) => diagnosis::attach_error(device, mode, error, None),
            error => link_error(device, REPLACE)(error),
        })?;
        self.repin(Hook::Xdp, device, &pinned.path, &pinned.info)?;
        Ok(Some(Attachment {
            replaced: Some(program),
            switched_off,
            ..self.attachment(device, mode, pinned.info.id)?
        }))
    }

    /// Replaces the program in a link, in one step. The link stays the same, and its pin holds it.
    fn replace_in(&mut self, link: FdLink) -> Result<(), LinkFailure> {
        let program = self.program_mut();
        let id = program.attach_to_link(XdpLink::try_from(link)?)?;
        program.take_link(id)?;
        Ok(())
    }

    /// Opens the live link that an earlier run has pinned for a device.
    fn pinned_link(
        &self,
        hook: Hook,
        device: &Interface,
    ) -> Result<Option<PinnedLink>, AttachError> {
        let Some(pins) = self.pins() else {
            return Ok(None);
        };
        for path in pins.links_of(hook, &device.name)? {
            let info = read_link(&path)?;
            if info.ifindex == 0 {
                // Its device is gone, so no packet will pass this link again.
                unpin(&path)?;
                continue;
            }
            if info.ifindex != device.index || !hook.runs(device, &info) {
                return Err(other_namespace(device, &path));
            }
            let link = open_link(&path)?;
            return Ok(Some(PinnedLink { path, info, link }));
        }
        Ok(None)
    }

    /// Moves the pin of an adopted link to this layout version's directory, in one step, and removes the device's
    /// other pins. An agent of another version that ended between the two steps has left the link two pins.
    fn repin(
        &self,
        hook: Hook,
        device: &Interface,
        path: &Path,
        adopted: &LinkInfo,
    ) -> Result<(), AttachError> {
        let Some(pins) = self.pins() else {
            return Ok(());
        };
        let own = pins.link_at(hook, &device.name);
        if path != own {
            rename(path, &own)?;
        }
        for other in pins.links_of(hook, &device.name)? {
            if other == own {
                continue;
            }
            let link = read_link(&other)?;
            // A link in another network namespace, on a device of the same name, stays.
            if link.id == adopted.id || link.ifindex == 0 || hook.runs(device, &link) {
                unpin(&other)?;
            }
        }
        Ok(())
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
                // Best effort: the first error is the one to report.
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
        let link = self.program_mut().take_link(id);
        let link = link.map_err(link_error(device, READ))?;
        let link = FdLink::try_from(link).map_err(link_error(device, READ))?;
        let id = link.info().map_err(link_error(device, READ))?.id();
        let path = self.pins().map(|pins| pins.link(&device.name));
        self.keep(link, path.as_deref())?;
        self.attachment(device, mode, id)
    }

    /// Attaches the program for mended frames, in place of one that this process attached before. Its link is not
    /// pinned: without the agent, no frame comes there.
    pub(crate) fn attach_mended(&mut self, device: u32) -> Result<(), LinkFailure> {
        let program = self.mended_program_mut();
        let id = program.attach_to_if_index(device, AyaMode::Driver)?;
        let link = FdLink::try_from(program.take_link(id)?)?;
        self.keep_mended(link);
        Ok(())
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

/// A live link that an earlier run has pinned.
struct PinnedLink {
    path: PathBuf,
    info: LinkInfo,
    link: FdLink,
}

/// Ensures that generic mode meets no merged packets; returns the features that it switched off.
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
