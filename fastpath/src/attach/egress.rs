//! Attaches the egress program to a device: in a tcx link if the kernel has tcx, else in a clsact filter.
//!
//! The program runs before those of other owners and passes every packet on to them. An owner who later puts a
//! program in front of it decides which packets it sees; such a program is reported and left alone.

use std::{fmt, io, os::fd::AsFd};

use aya::programs::{
    LinkOrder, ProgramError,
    links::FdLink,
    tc::{SchedClassifierLink, TcAttachOptions, TcAttachType},
};

use super::{AttachError, LinkFailure, READ, REPLACE, diagnosis::program_name, link_error};
use crate::{
    clsact::{self, OwnedFilter},
    facts::{self, Filter, Interface, RequestError},
    load::Loaded,
    pins::Hook,
    refusal::{Refusal, is_refusal},
};

const ATTACH: &str = "attach the egress program";
const FILTER: &str = "read or change the filters at its egress";

/// The allowed ways of attaching to a device's egress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EgressHook {
    /// A tcx link if the kernel has tcx, else a clsact filter.
    #[default]
    TcxOrClsact,
    /// A clsact filter, even if the kernel has tcx.
    Clsact,
}

/// The way in which the egress program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressMode {
    Tcx,
    /// In a filter of the clsact qdisc.
    Clsact,
}

impl fmt::Display for EgressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

/// An egress program that runs on a device.
#[derive(Debug)]
pub struct EgressAttachment {
    pub device: String,
    pub ifindex: u32,
    pub mode: EgressMode,
    /// The kernel's id of the program.
    pub program: u32,
    /// Id of the program that was replaced inside an adopted link or filter; `None` if that is new.
    pub replaced: Option<u32>,
    /// Programs and filters that run before it and decide which packets it sees.
    pub ahead: Vec<Ahead>,
}

/// A program or filter of another owner that runs before the egress program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ahead {
    Program {
        /// The kernel's id of the program.
        id: u32,
        /// Its name, if this process may look it up (`CAP_SYS_ADMIN`).
        name: Option<String>,
    },
    /// A filter of the clsact qdisc.
    Filter(Filter),
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { id, name } => {
                write!(f, "tcx program {id}")?;
                name.iter().try_for_each(|name| write!(f, " ({name})"))
            }
            Self::Filter(filter) => {
                let Filter { priority, kind, .. } = filter;
                write!(f, "{kind} filter of priority {priority}")?;
                let mut name = filter.name.iter();
                name.try_for_each(|name| write!(f, " ({name})"))
            }
        }
    }
}

impl Loaded {
    /// Attaches the egress program to a device, or replaces the one that an earlier run left there.
    ///
    /// # Errors
    ///
    /// Each error names the device, the cause and the remedy. A program that was attached before stays.
    pub fn attach_egress(
        &mut self,
        device: &str,
        hook: EgressHook,
    ) -> Result<EgressAttachment, AttachError> {
        let device = facts::link(device)?;
        let programs = match hook {
            EgressHook::TcxOrClsact => facts::tcx_programs(device.index)
                .map_err(|error| refused(&device, "list its tcx programs", error))?,
            EgressHook::Clsact => None,
        };
        let (mode, replaced) = match programs {
            Some(_) => (EgressMode::Tcx, self.attach_tcx(&device)?),
            None => (EgressMode::Clsact, self.attach_filter(&device)?),
        };
        self.leave_other(&device, mode)?;
        let program = self.egress_program().info();
        let program = program.map_err(link_error(&device, READ))?.id();
        Ok(EgressAttachment {
            device: device.name.clone(),
            ifindex: device.index,
            mode,
            program,
            replaced,
            ahead: ahead(&device, program)?,
        })
    }

    /// Attaches by tcx; returns the id of the program that was replaced.
    fn attach_tcx(&mut self, device: &Interface) -> Result<Option<u32>, AttachError> {
        if let Some(pinned) = self.pinned_link(Hook::Egress, device)? {
            self.replace_in_tcx(pinned.link)
                .map_err(|error| failed(device, REPLACE, error))?;
            self.repin(Hook::Egress, device, &pinned.path, &pinned.info)?;
            return Ok(Some(pinned.info.program));
        }
        let link = self
            .tcx_link(&device.name)
            .map_err(|error| failed(device, ATTACH, error))?;
        let path = self.pins().map(|pins| pins.egress_link(&device.name));
        self.keep(link, path.as_deref())?;
        Ok(None)
    }

    /// Replaces the program in a link, in one step. The link stays the same, and its pin holds it.
    fn replace_in_tcx(&mut self, link: FdLink) -> Result<(), LinkFailure> {
        let program = self.egress_program_mut();
        let id = program.attach_to_link(SchedClassifierLink::try_from(link)?)?;
        program.take_link(id)?;
        Ok(())
    }

    fn tcx_link(&mut self, device: &str) -> Result<FdLink, LinkFailure> {
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let program = self.egress_program_mut();
        let id = program.attach_with_options(device, TcAttachType::Egress, first)?;
        Ok(FdLink::try_from(program.take_link(id)?)?)
    }

    /// Attaches by a clsact filter; returns the id of the program that was replaced.
    fn attach_filter(&mut self, device: &Interface) -> Result<Option<u32>, AttachError> {
        let failed = |error| refused(device, FILTER, error);
        let program = self.egress_program().fd();
        let program = program.map_err(link_error(device, READ))?.as_fd();
        if let Some(filter) = clsact::ours(device.index).map_err(failed)? {
            clsact::replace(device.index, &filter, program).map_err(failed)?;
            return Ok(filter.program);
        }
        if !clsact::prepare(device.index).map_err(failed)? {
            return Err(AttachError::IngressQdisc {
                interface: device.name.clone(),
            });
        }
        clsact::add(device.index, program).map_err(failed)?;
        if self.pins().is_none() {
            self.keep_filter(OwnedFilter {
                ifindex: device.index,
            });
        }
        Ok(None)
    }

    /// Removes the program that an earlier run attached in the other mode, so that no packet is translated twice.
    fn leave_other(&self, device: &Interface, mode: EgressMode) -> Result<(), AttachError> {
        match (mode, self.pins()) {
            (EgressMode::Tcx, _) => {
                clsact::remove(device.index).map_err(|error| refused(device, FILTER, error))?;
            }
            (EgressMode::Clsact, Some(pins)) => {
                pins.detach_at(Hook::Egress, &device.name)?;
            }
            (EgressMode::Clsact, None) => {}
        }
        Ok(())
    }
}

/// Lists the programs and filters that run before `program` at the device's egress.
fn ahead(device: &Interface, program: u32) -> Result<Vec<Ahead>, AttachError> {
    let egress = facts::egress(&device.name)?;
    let programs = egress.tcx.unwrap_or_default();
    let before: Vec<_> = programs
        .iter()
        .take_while(|other| other.program != program)
        .map(|other| Ahead::Program {
            id: other.program,
            name: program_name(other.program),
        })
        .collect();
    if before.len() < programs.len() {
        return Ok(before);
    }
    let filters = egress.filters.into_iter();
    // Packets enter other chains only by a jump.
    let filters = filters.filter(|filter| filter.chain == 0);
    let filters = filters.take_while(|filter| filter.program != Some(program));
    Ok(before
        .into_iter()
        .chain(filters.map(Ahead::Filter))
        .collect())
}

fn failed(device: &Interface, attempt: &'static str, error: LinkFailure) -> AttachError {
    match error {
        LinkFailure::Program(ProgramError::SyscallError(error)) if is_refusal(&error.io_error) => {
            not_permitted(device, error.io_error)
        }
        error => link_error(device, attempt)(error),
    }
}

fn refused(device: &Interface, attempt: &'static str, error: RequestError) -> AttachError {
    match error {
        RequestError::Refused { source, .. } if is_refusal(&source) => {
            not_permitted(device, source)
        }
        // The kernel lacks this kind of qdisc or filter.
        error if matches!(error.errno(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {
            AttachError::NoEgress {
                interface: device.name.clone(),
                release: facts::kernel().release,
                source: error,
            }
        }
        error => link_error(device, attempt)(LinkFailure::from(error)),
    }
}

fn not_permitted(device: &Interface, source: io::Error) -> AttachError {
    AttachError::Refused {
        interface: device.name.clone(),
        refusal: Refusal::of_bpf(),
        source,
    }
}
