//! Objects as programs of the cluster would write them.

use serde_json::{Value, json};

use super::ControlPlane;
use crate::{Machine, Result};

impl ControlPlane {
    /// Creates the [`node`] of a machine.
    ///
    /// # Errors
    ///
    /// As for [`ControlPlane::apply`].
    pub fn add_node(&self, machine: &Machine) -> Result<()> {
        self.apply(&node(machine).to_string()).map(drop)
    }
}

/// Returns a machine's Node as its kubelet would write it: ready, with the machine's name and addresses and the
/// prefixes of its pods.
pub fn node(machine: &Machine) -> Value {
    let prefixes = machine.pod_prefixes().into_iter().flatten();
    let prefixes: Vec<_> = prefixes.map(|prefix| prefix.to_string()).collect();
    let addresses: Vec<_> = [machine.v4(), machine.v6()]
        .map(|address| json!({"type": "InternalIP", "address": address.to_string()}))
        .into();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": machine.label(),
            "labels": {"kubernetes.io/hostname": machine.label()},
        },
        "spec": {"podCIDR": prefixes.first(), "podCIDRs": prefixes},
        "status": {
            "addresses": addresses,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}
