//! The devices by which a node reaches its pods.

use std::collections::{BTreeMap, BTreeSet};

use super::{Interface, RequestError, links};

/// Kinds of devices that come in pairs, one end in the pod.
pub(super) const CABLES: [&str; 2] = ["veth", "netkit"];

/// Names the devices by which pods are reached, from the interface indices of some of them.
///
/// If those are cables to one pod each, the result has every cable of that kind: at its other end may be a pod that
/// is only a client, and that nobody has named. Pods behind a bridge share the bridge.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn pod_devices(leading: &BTreeSet<u32>) -> Result<BTreeSet<String>, RequestError> {
    Ok(choose(links()?, leading))
}

fn choose(devices: Vec<Interface>, leading: &BTreeSet<u32>) -> BTreeSet<String> {
    let by_index: BTreeMap<u32, &Interface> = devices.iter().map(|one| (one.index, one)).collect();
    let known = leading.iter().filter_map(|index| by_index.get(index));
    let kinds: BTreeSet<&str> = known.filter_map(|device| cable(device)).collect();
    let chosen = devices.iter().filter(|device| {
        leading.contains(&device.index) || cable(device).is_some_and(|kind| kinds.contains(kind))
    });
    chosen.map(|device| device.name.clone()).collect()
}

/// Returns the kind of a cable whose end here belongs to no bridge; `None` for other devices.
fn cable(device: &Interface) -> Option<&str> {
    let kind = device.kind.as_deref()?;
    (CABLES.contains(&kind) && device.controller.is_none()).then_some(kind)
}

#[cfg(test)]
pub(super) mod testing {
    use crate::facts::{Interface, NativeXdp};

    /// Returns a device with the facts that decide what it leads to.
    pub(in crate::facts) fn device(
        index: u32,
        name: &str,
        kind: Option<&str>,
        controller: Option<u32>,
    ) -> Interface {
        Interface {
            name: name.to_owned(),
            index,
            up: true,
            mtu: 1500,
            mtu_max: None,
            kind: kind.map(str::to_owned),
            driver: None,
            lower: None,
            controller,
            rx_queues: 1,
            channels: None,
            features: None,
            native_xdp: NativeXdp::Unknown,
            programs: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::device;
    use super::*;

    fn node() -> Vec<Interface> {
        vec![
            device(1, "lo", None, None),
            device(2, "eth0", None, None),
            device(3, "cni0", Some("bridge"), None),
            device(4, "port", Some("veth"), Some(3)),
            device(5, "cali5", Some("veth"), None),
            device(6, "cali6", Some("veth"), None),
            device(7, "nk7", Some("netkit"), None),
        ]
    }

    fn chosen(leading: &[u32]) -> Vec<String> {
        choose(node(), &leading.iter().copied().collect())
            .into_iter()
            .collect()
    }

    #[test]
    fn one_cable_stands_for_all_of_its_kind() {
        assert_eq!(chosen(&[5]), ["cali5", "cali6"]);
        assert_eq!(chosen(&[7]), ["nk7"]);
    }

    #[test]
    fn bridge_stands_for_its_ports() {
        assert_eq!(chosen(&[3]), ["cni0"]);
    }

    #[test]
    fn device_that_is_gone_leads_nowhere() {
        assert_eq!(chosen(&[9]), Vec::<String>::new());
    }
}
