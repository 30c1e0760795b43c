//! The devices that lead to this machine's pods. Replies to clients that are pods here leave by these.

use std::collections::BTreeSet;
use std::net::IpAddr;

use fastpath::facts;

use super::next_hops::NextHops;
use crate::chain::chain;

/// The pods, and the devices that the kernel named.
#[derive(Debug, Default)]
pub(super) struct PodDevices {
    /// The pods that the kernel was asked about; `None` if it has to be asked again.
    asked: Option<BTreeSet<IpAddr>>,
    pub(super) devices: BTreeSet<String>,
}

impl PodDevices {
    /// Makes the next call ask the kernel again.
    pub(super) fn forget(&mut self) {
        self.asked = None;
    }

    /// Asks the kernel if the pods have changed.
    pub(super) fn follow(&mut self, pods: BTreeSet<IpAddr>, next_hops: &mut NextHops) {
        if self.asked.as_ref() != Some(&pods) {
            self.look(pods, next_hops);
        }
    }

    /// Asks the kernel for the devices that lead to these pods. Returns whether they changed. If the kernel
    /// does not answer, the known devices stay and the next attempt asks again.
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
