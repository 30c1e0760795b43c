//! The devices of a network namespace and the programs that they run, read with one list.

use std::collections::BTreeMap;

use super::{
    Interface, RequestError, connection::Connection, egress::tcx_programs, interface::links_over,
};
use crate::clsact::filters_over;

/// The devices at one moment, and a connection for questions that the list does not answer.
#[derive(Debug)]
pub struct Devices {
    by_name: BTreeMap<String, Interface>,
    route: Connection,
}

impl Devices {
    /// Lists the devices of this thread's network namespace.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not answer.
    pub fn list() -> Result<Self, RequestError> {
        let mut route = Connection::route()?;
        let links = links_over(&mut route)?.into_iter();
        Ok(Self {
            by_name: links.map(|link| (link.name.clone(), link)).collect(),
            route,
        })
    }

    /// Returns the device with this name, without the facts that only its driver knows.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Interface> {
        self.by_name.get(name)
    }

    /// Tells whether the device still has this interface index and runs this program at its egress; false for a
    /// device that is gone.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not answer.
    pub fn runs_at_egress(
        &mut self,
        name: &str,
        index: u32,
        program: u32,
    ) -> Result<bool, RequestError> {
        if self.find(name).is_none_or(|device| device.index != index) {
            return Ok(false);
        }
        let tcx = tcx_programs(index)?;
        if tcx.iter().flatten().any(|other| other.program == program) {
            return Ok(true);
        }
        let filters = filters_over(&mut self.route, index)?;
        Ok(filters.iter().any(|filter| filter.program == Some(program)))
    }
}
