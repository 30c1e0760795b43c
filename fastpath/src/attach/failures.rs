//! Counts what the kernel could not send, by programs at its tracepoints.

use std::{collections::BTreeMap, io};

use aya::{
    pin::PinError as PinFailure,
    programs::{ProgramError, links::FdLink},
};
use xdp_prog::failure::TRACEPOINTS;

use crate::{
    facts,
    load::{LoadError, Loaded, explain},
    pins::{PinError, unpin},
};

impl Loaded {
    /// Counts from now on the frames of the whole machine that XDP could not send, beside what was counted before.
    ///
    /// The dataplane goes on without, as kernels make no promise about their tracepoints.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a program or its place, or the link cannot be pinned; other tracepoints may be in use then.
    pub fn count_failures(&mut self) -> Result<(), LoadError> {
        for (tracepoint, program) in TRACEPOINTS {
            // Such a link keeps its program. So the old one goes first: what fails in between is not counted, where else
            // it would be twice.
            let pin = self.pins().map(|pins| pins.trace_link(tracepoint));
            if let Some(pin) = &pin {
                unpin(pin)?;
            }
            let link = self.link_tracepoint(tracepoint, program).map_err(|error| {
                explain(error.into(), &BTreeMap::new(), &facts::kernel().release)
            })?;
            let Some(pin) = pin else {
                self.keep(link);
                continue;
            };
            link.pin(&pin).map_err(|error| {
                let source = match error {
                    PinFailure::SyscallError(error) => error.io_error,
                    error => io::Error::other(error),
                };
                PinError::io("pin the link", &pin, source)
            })?;
        }
        Ok(())
    }

    fn link_tracepoint(&mut self, tracepoint: &str, program: &str) -> Result<FdLink, ProgramError> {
        let program = self.load_trace_program(program)?;
        let id = program.attach(tracepoint)?;
        Ok(program.take_link(id)?.into())
    }
}
