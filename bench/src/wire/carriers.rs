//! Whether the devices on a system's way have a carrier, and how often that changed.

use anyhow::Result;
use lab::Link;

use super::{Counts, Lab};
use crate::scenario::System;

/// A device on the way has no carrier.
#[derive(Debug, thiserror::Error)]
#[error("{0} is down or has no carrier: bring it up, check cable and driver")]
pub struct LinkDown(
    /// The machine and its device.
    pub String,
);

impl Lab {
    /// Reads how often each device on a system's way has got or lost its carrier so far.
    ///
    /// # Errors
    ///
    /// [`LinkDown`] when one has none.
    pub(super) fn read_carriers(&self, system: System) -> Result<Counts> {
        let (net, router) = (&self.net, self.net.router());
        let machines = net.clients()[..1].iter().chain(self.edge(system).ok());
        let machines = machines.chain(self.nodes(system));
        let own = machines.map(|machine| machine.link());
        let mut changes = Counts::new();
        for link in own.chain([router.link("fabric")]) {
            let link: Link<'_> = link?;
            let name = format!("{}: {}", link.namespace().label(), link.name());
            match link.carrier_changes()? {
                Some(count) => changes.insert(name, count),
                None => return Err(LinkDown(name).into()),
            };
        }
        Ok(changes)
    }
}
