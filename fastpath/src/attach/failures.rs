//! Counts what the kernel could not send, by programs at its tracepoints.

use std::collections::BTreeMap;

use aya::programs::{ProgramError, links::FdLink};
use xdp_prog::failure::TRACEPOINTS;

use crate::{
    facts,
    load::{LoadError, Loaded, explain},
    pins::unpin,
};

impl Loaded {
    /// Counts from now on the frames of the whole machine that XDP could not send, beside what was counted before.
    /// What is in place stays.
    ///
    /// The dataplane serves without: kernels make no promise about their tracepoints.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a program or its place, or the link cannot be pinned; another tracepoint may be in use then.
    pub fn count_failures(&mut self) -> Result<(), LoadError> {
        for (tracepoint, program) in TRACEPOINTS {
            let pin = self.pins().map(|pins| pins.trace_link(tracepoint));
            let is_loaded = self.trace_program_mut(program).fd().is_ok();
            if is_loaded && pin.as_ref().is_none_or(|pin| pin.exists()) {
                continue;
            }
            // Such a link keeps its program, so an earlier agent's goes first: what fails in between is not counted,
            // where else it would be twice.
            if let Some(pin) = &pin {
                unpin(pin)?;
            }
            let link = self.link_tracepoint(tracepoint, program).map_err(|error| {
                explain(error.into(), &BTreeMap::new(), &facts::kernel().release)
            })?;
            self.keep(link, pin.as_deref())?;
        }
        Ok(())
    }

    fn link_tracepoint(&mut self, tracepoint: &str, program: &str) -> Result<FdLink, ProgramError> {
        let program = self.trace_program_mut(program);
        if program.fd().is_err() {
            program.load()?;
        }
        let id = program.attach(tracepoint)?;
        Ok(program.take_link(id)?.into())
    }
}
