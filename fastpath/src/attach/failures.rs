//! Counts frames that the kernel could not send, by programs at its tracepoints.

use std::collections::BTreeMap;

use aya::programs::{ProgramError, links::FdLink};
use xdp_prog::failure::TRACEPOINTS;

use crate::{
    facts,
    load::{LoadError, Loaded, explain},
    pins::unpin,
};

impl Loaded {
    /// Starts to count the frames of the whole machine that XDP could not send, on top of the earlier count. A
    /// program that already counts stays.
    ///
    /// The dataplane works without these counters, because kernels do not promise to keep their tracepoints.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a program or its tracepoint, or if the link cannot be pinned. The other tracepoint
    /// may be in use then.
    pub fn count_failures(&mut self) -> Result<(), LoadError> {
        for (tracepoint, program) in TRACEPOINTS {
            let pin = self.pins().map(|pins| pins.trace_link(tracepoint));
            let is_loaded = self.trace_program_mut(program).fd().is_ok();
            if is_loaded && pin.as_ref().is_none_or(|pin| pin.exists()) {
                continue;
            }
            // Such a link keeps its program, so the link of an earlier agent is removed first. Failures in between
            // are not counted; with both links, they would be counted twice.
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
