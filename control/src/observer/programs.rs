//! Checks whether our programs are still attached. Nothing reports their removal.

use fastpath::facts::Devices;

use super::Observation;
use crate::agent::Running;
use crate::api::{Egress, Interface};
use crate::chain::chain;

impl Observation<'_> {
    /// Lists interfaces and devices with what runs there now. If a program is missing, the agent is told to
    /// attach it again.
    pub(super) fn programs(&self) -> (Vec<Interface>, Vec<Egress>) {
        let view = &self.view;
        let (mut interfaces, mut egress) = (view.interfaces.clone(), view.egress.clone());
        if view.xdp_programs.is_empty() && view.egress_programs.is_empty() {
            return (interfaces, egress);
        }
        let mut devices = match Devices::list() {
            Ok(devices) => devices,
            Err(error) => {
                // The agent's last look stays.
                tracing::warn!(error = chain(&error), "cannot list the network devices");
                return (interfaces, egress);
            }
        };
        let mut is_any_lost = false;
        for one in &view.xdp_programs {
            let Running {
                wanted,
                device,
                ifindex,
                program,
            } = one;
            let runs = devices
                .find(device)
                .is_some_and(|device| device.index == *ifindex && device.runs(*program));
            let mut rows = interfaces.iter_mut();
            if !runs && let Some(row) = rows.find(|row| row.name == *wanted) {
                (row.mode, row.note) = (None, None);
                is_any_lost = true;
            }
        }
        for one in &view.egress_programs {
            let runs = devices.runs_at_egress(&one.device, one.ifindex, one.program);
            let mut rows = egress.iter_mut();
            // If the kernel does not answer, the agent's next look will tell.
            if !runs.unwrap_or(true)
                && let Some(row) = rows.find(|row| row.device == one.wanted)
            {
                (row.mode, row.note) = (None, None);
                is_any_lost = true;
            }
        }
        if is_any_lost {
            self.have_programs_looked_at();
        }
        (interfaces, egress)
    }
}
