//! The egress program: on which devices it has to be, and putting it there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use fastpath::attach::{AttachError, EgressAttachment, EgressHook};
use fastpath::facts::{self, Devices};
use fastpath::pins::PinError;

use super::Agent;
use super::problems::Item;
use crate::api::Egress;
use crate::chain::chain;

impl Agent {
    /// Asks the kernel for the devices that lead to the pods of this machine, and tells whether they are
    /// others than before; when it does not answer, those stay, and the next attempt asks again.
    pub(super) fn look_for_pod_devices(&mut self) -> bool {
        let pods = self.census.own_pods();
        match self.devices_of(&pods) {
            Ok(devices) => {
                self.pods = Some(pods);
                let moved = devices != self.pod_devices;
                self.pod_devices = devices;
                moved
            }
            Err(error) => {
                self.pods = None;
                tracing::warn!(error, "cannot find the devices of the pods");
                false
            }
        }
    }

    fn devices_of(&mut self, pods: &BTreeSet<IpAddr>) -> Result<BTreeSet<String>, String> {
        if pods.is_empty() {
            return Ok(BTreeSet::new());
        }
        let leading = self.next_hops.devices(pods);
        let leading = leading.map_err(|error| chain(&error))?;
        facts::pod_devices(&leading).map_err(|error| chain(&error))
    }

    /// Lists the devices with the egress program, and whether this agent has put its own there.
    pub(super) fn egress_in_force(&self) -> BTreeMap<String, bool> {
        let inherited = self.inherited_egress.iter().map(|name| (name, false));
        let attached = self.egress.keys().map(|name| (name, true));
        let all = inherited.chain(attached);
        all.map(|(name, ours)| (name.clone(), ours)).collect()
    }

    pub(super) fn attach_egress(&mut self, device: &str) -> Result<(), AttachError> {
        let attachment = self.loaded.attach_egress(device, EgressHook::TcxOrClsact)?;
        tracing::info!(
            device,
            mode = %attachment.mode,
            adopted = attachment.replaced.is_some(),
            "egress program attached"
        );
        for other in &attachment.ahead {
            tracing::warn!(
                device,
                ahead = %other,
                "runs before the egress program: replies that it ends with anything but TC_ACT_UNSPEC are not translated"
            );
        }
        self.inherited_egress.remove(device);
        self.egress.insert(device.to_owned(), attachment);
        Ok(())
    }

    pub(super) fn detach_egress(&mut self, device: &str) -> Result<(), PinError> {
        self.pins.detach_egress(device)?;
        tracing::info!(device, "egress program detached");
        self.inherited_egress.remove(device);
        self.egress.remove(device);
        Ok(())
    }

    /// Takes devices that lost the egress program for what an earlier agent left: a pin at most.
    ///
    /// Returns whether there are any.
    pub(super) fn forget_egress(&mut self, devices: &mut Devices) -> bool {
        let lost = self.egress.iter().filter(|(_, attachment)| {
            let EgressAttachment {
                device,
                ifindex,
                program,
                ..
            } = attachment;
            let runs = devices.runs_at_egress(device, *ifindex, *program);
            // Where the kernel does not answer, the next event or the timer tells.
            !runs.unwrap_or(true)
        });
        let lost: Vec<String> = lost.map(|(name, _)| name.clone()).collect();
        for device in &lost {
            tracing::info!(device, "the egress program is gone, or the device is");
            self.egress.remove(device);
            self.inherited_egress.insert(device.clone());
        }
        !lost.is_empty()
    }

    /// Lists the devices that have the egress program or should have it.
    pub(super) fn egress_status(&self) -> Vec<Egress> {
        let mut devices: BTreeSet<String> = self.egress.keys().cloned().collect();
        if self.config.desired.is_node(&self.machine.addresses) {
            devices.extend(self.config.desired.interfaces.keys().cloned());
            devices.extend(self.pod_devices.iter().cloned());
        }
        let row = |device: String| {
            let attachment = self.egress.get(&device);
            let problem = self.problems.of(&Item::Egress(device.clone())).cloned();
            let ahead = attachment.and_then(|attachment| attachment.ahead.first());
            Egress {
                mode: attachment.map(|attachment| attachment.mode.to_string()),
                note: problem.or_else(|| {
                    ahead.map(|other| {
                        format!(
                            "device {device}: {other} runs first and may end replies untranslated"
                        )
                    })
                }),
                device,
            }
        };
        devices.into_iter().map(row).collect()
    }
}
