//! The devices that lead to this machine's pods, by which replies leave to clients that are pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use fastpath::facts;

use super::next_hops::NextHops;
use crate::chain::chain;

/// The pods, and what the kernel said of them.
#[derive(Debug, Default)]
pub(super) struct PodDevices {
    /// The pods that the kernel was asked for; none if it has to be asked again.
    asked: Option<BTreeSet<IpAddr>>,
    pub(super) devices: BTreeSet<String>,
}

impl PodDevices {
    /// Has the kernel asked again.
    pub(super) fn forget(&mut self) {
        self.asked = None;
    }

    /// Asks the kernel if these are other pods than it was asked for.
    pub(super) fn follow(&mut self, pods: BTreeSet<IpAddr>, next_hops: &mut NextHops) {
        if self.asked.as_ref() != Some(&pods) {
            self.look(pods, next_hops);
        }
    }

    /// Asks the kernel for the devices that lead to these pods, and tells whether they are others than before; when it
    /// does not answer, those stay, and the next attempt asks again.
    pub(super) fn look(&mut self, pods: BTreeSet<IpAddr>, next_hops: &mut NextHops) -> bool {
        match devices_of(&pods, next_hops) {
            Ok(devices) => {
                self.asked = Some(pods);
                let moved = devices != self.devices;
                self.devices = devices;
                moved
            }
            Err(error) => {
                self.asked = None;
                tracing::warn!(error, "cannot find the devices of the pods");
                false
            }
        }
    }
}

fn devices_of(
    pods: &BTreeSet<IpAddr>,
    next_hops: &mut NextHops,
) -> Result<BTreeSet<String>, String> {
    if pods.is_empty() {
        return Ok(BTreeSet::new());
    }
    let leading = next_hops.devices(pods).map_err(|error| chain(&error))?;
    facts::pod_devices(&leading).map_err(|error| chain(&error))
}
