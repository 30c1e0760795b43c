//! The network namespaces of this machine's pods, which have the sockets of the pods' connections.
//!
//! `pod_devices` finds the devices by which replies leave to pods; `departed_pods` keeps pods that left their services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use fastpath::facts::{self, NamespaceDevices, PodAddresses, RequestError};
use fastpath::tables::PodNamespace;

use super::next_hops::NextHops;
use crate::chain::chain;

/// The namespaces that the kernel named.
#[derive(Debug, Default)]
pub(super) struct PodNamespaces {
    /// For what it was asked; `None` if it has to be asked again.
    answered_for: Option<Inputs>,
    by_pod: BTreeMap<IpAddr, PodNamespace>,
}

/// What shows that the namespaces may have changed. The kernel tells of no address that is added in one of them.
#[derive(Debug, PartialEq, Eq)]
struct Inputs {
    /// The pods that services list; their addresses are set by then.
    listed: BTreeSet<IpAddr>,
    /// These, and pods that have left their services.
    pods: BTreeSet<IpAddr>,
    /// Those of the pods that have an address of this machine.
    on_host_network: BTreeSet<IpAddr>,
    devices: NamespaceDevices,
}

impl PodNamespaces {
    /// Returns the known namespaces, by the pods' addresses.
    pub(super) const fn by_pod(&self) -> &BTreeMap<IpAddr, PodNamespace> {
        &self.by_pod
    }

    /// Asks the kernel if the pods, or the devices that lead to them, have changed. `listed` are the pods that services list,
    /// `departed` those that have left, `own` this machine's own addresses. If the kernel does not answer, what is known
    /// stays and the next call asks again.
    pub(super) fn follow(
        &mut self,
        listed: BTreeSet<IpAddr>,
        departed: &BTreeSet<IpAddr>,
        own: &BTreeSet<IpAddr>,
        next_hops: &mut NextHops,
    ) {
        let pods = &listed | departed;
        if pods.is_empty() {
            *self = Self::default();
            return;
        }
        let outcome = facts::devices_to_namespaces().and_then(|devices| {
            let inputs = Inputs {
                listed,
                on_host_network: &pods & own,
                pods,
                devices,
            };
            self.ask_for(inputs, next_hops)
        });
        if let Err(error) = outcome {
            self.answered_for = None;
            let error = chain(&error);
            tracing::warn!(error, "cannot find the network namespaces of the pods");
        }
    }

    fn ask_for(&mut self, inputs: Inputs, next_hops: &mut NextHops) -> Result<(), RequestError> {
        if self.answered_for.as_ref() == Some(&inputs) {
            return Ok(());
        }
        let there = facts::addresses_in(&inputs.devices)?;
        let mut has_all_routes = true;
        let leading = |pod: &IpAddr| {
            let devices = next_hops.devices(&[*pod].into());
            devices.unwrap_or_else(|_| {
                has_all_routes = false;
                BTreeSet::new()
            })
        };
        self.by_pod = choose_namespaces(&inputs.pods, &there, leading);
        let host_pods = inputs.on_host_network.iter();
        self.by_pod
            .extend(host_pods.map(|pod| (*pod, PodNamespace::Own)));
        self.answered_for = has_all_routes.then_some(inputs);
        Ok(())
    }
}

/// Chooses the namespace of each pod. If several have its address, the one counts to which the route leads.
fn choose_namespaces(
    pods: &BTreeSet<IpAddr>,
    there: &PodAddresses,
    mut leading: impl FnMut(&IpAddr) -> BTreeSet<u32>,
) -> BTreeMap<IpAddr, PodNamespace> {
    let mut chosen = BTreeMap::new();
    for pod in pods {
        let Some(namespaces) = there.get(pod) else {
            continue;
        };
        let mut ids: Vec<u32> = namespaces.keys().copied().collect();
        if ids.len() > 1 {
            let leading = leading(pod);
            ids.retain(|id| !namespaces[id].is_disjoint(&leading));
        }
        if let [id] = ids[..] {
            chosen.insert(*pod, PodNamespace::Other(id));
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_two_namespaces_have_the_address_of_a_pod_the_one_counts_that_the_route_leads_to() {
        let [alone, shared, absent, nobodys] =
            [5, 6, 7, 8].map(|host| IpAddr::from([10, 244, 0, host]));
        let there: PodAddresses = [
            (alone, [(0, [7].into())].into()),
            (shared, [(1, [8].into()), (2, [9, 10].into())].into()),
            (nobodys, [(3, [11].into())].into()),
        ]
        .into();
        let of_alone = (alone, PodNamespace::Other(0));
        for (leading, expected) in [
            (&[10][..], vec![of_alone, (shared, PodNamespace::Other(2))]),
            (&[8], vec![of_alone, (shared, PodNamespace::Other(1))]),
            // Both are behind one bridge, or nobody knows the way.
            (&[3], vec![of_alone]),
            (&[8, 9], vec![of_alone]),
        ] {
            let pods = [alone, shared, absent].into();
            let chosen = choose_namespaces(&pods, &there, |pod| {
                assert_eq!(*pod, shared);
                leading.iter().copied().collect()
            });
            let chosen: Vec<_> = chosen.into_iter().collect();
            assert_eq!(chosen, expected, "{leading:?}");
        }
    }
}
