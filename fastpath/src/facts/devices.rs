//! The devices of a network namespace and what they run, by one list of them.

use std::collections::BTreeMap;

use super::{
    Interface, RequestError, connection::Connection, egress::tcx_programs, interface::links_over,
};
use crate::clsact::filters_over;

/// The devices of one moment, as far as one list of them tells, and a way to ask for the rest.
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
    /// When the kernel does not answer.
    pub fn list() -> Result<Self, RequestError> {
        let mut route = Connection::route()?;
        let links = links_over(&mut route)?.into_iter();
        Ok(Self {
            by_name: links.map(|link| (link.name.clone(), link)).collect(),
            route,
        })
    }

    /// Returns the device of a name; what only its driver tells is not filled in.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Interface> {
        self.by_name.get(name)
    }

    /// Tells whether the device still has this number and runs this program at its egress; a device that is gone
    /// does not.
    ///
    /// # Errors
    ///
    /// When the kernel does not answer.
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
