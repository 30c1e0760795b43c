//! The checks of backends and nodes: what is checked, and which backends serve by what came of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::Agent;
use crate::chain::chain;
use crate::health::targets::{Surroundings, Targets};

impl Agent {
    /// Has everything checked that the configuration asks for.
    pub(super) fn aim(&mut self) {
        let mut interfaces = self.config.desired.interfaces.keys();
        let around = Surroundings {
            own: &self.machine.addresses,
            diverts: self.census.diverts_checks(&self.config.desired)
                && interfaces.all(|name| self.egress.contains_key(name)),
            source_towards,
        };
        let desired = &self.config.desired;
        let targets = Targets::of(desired, &self.census, &around, &mut self.ways);
        if self.targets.as_ref() == Some(&targets) {
            return;
        }
        let mut unset = 0;
        for (index, way) in &targets.ways {
            if let Err(error) = self.tables.set_probe(*index, way) {
                tracing::debug!(error = chain(&error), "the way of a check is not set");
                unset += 1;
            }
        }
        let left = targets.left + unset;
        if left != self.unchecked && left > 0 {
            tracing::warn!(
                checks = left,
                "not made: their packets cannot be put on the way of a client's"
            );
        }
        self.unchecked = left;
        self.targets = (unset == 0).then(|| targets.clone());
        self.health.set_targets(targets);
    }

    /// Selects the backends that serve; true if that is another selection than before.
    pub(super) fn select(&mut self) -> bool {
        let before = self.selection.all_fail.clone();
        let changed = self.selection.follow(
            &self.config.desired,
            self.health.left_out(),
            &self.machine.addresses,
        );
        let all_fail = &self.selection.all_fail;
        for key in all_fail.difference(&before) {
            tracing::warn!(service = %self.title(key), "every backend should be left out, so all serve");
        }
        for key in before.difference(all_fail) {
            tracing::info!(service = %self.title(key), "some backends can serve again, the others are left out");
        }
        changed
    }
}

/// Finds the address that the kernel would send from; nothing is sent for that.
fn source_towards(node: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match node {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((node, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
