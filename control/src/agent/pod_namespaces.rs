//! The network namespaces of this machine's pods, which have the sockets of the pods' connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use fastpath::facts::{self, Cables, PodAddresses, RequestError};
use fastpath::tables::PodNamespace;

use super::next_hops::NextHops;
use crate::chain::chain;

/// The pods, and the namespaces that the kernel named.
#[derive(Debug, Default)]
pub(super) struct PodNamespaces {
    /// What the namespaces follow from; `None` if the kernel has to be asked again.
    asked: Option<Question>,
    by_pod: BTreeMap<IpAddr, PodNamespace>,
}

/// What the namespaces of pods follow from.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    pods: BTreeSet<IpAddr>,
    /// Those of the pods that have an address of this machine.
    on_host_network: BTreeSet<IpAddr>,
    cables: Cables,
}

impl PodNamespaces {
    /// Returns the known namespaces, by the pods' addresses.
    pub(super) const fn by_pod(&self) -> &BTreeMap<IpAddr, PodNamespace> {
        &self.by_pod
    }

    /// Asks the kernel if the pods, or the cables to their namespaces, have changed; `own` are this machine's own addresses.
    /// If the kernel does not answer, what is known stays and the next call asks again.
    pub(super) fn follow(
        &mut self,
        pods: BTreeSet<IpAddr>,
        own: &BTreeSet<IpAddr>,
        next_hops: &mut NextHops,
    ) {
        if pods.is_empty() {
            *self = Self::default();
        } else if let Err(error) = self.ask(pods, own, next_hops) {
            self.asked = None;
            let error = chain(&error);
            tracing::warn!(error, "cannot find the network namespaces of the pods");
        }
    }

    fn ask(
        &mut self,
        pods: BTreeSet<IpAddr>,
        own: &BTreeSet<IpAddr>,
        next_hops: &mut NextHops,
    ) -> Result<(), RequestError> {
        let question = Question {
            on_host_network: &pods & own,
            pods,
            cables: facts::namespace_cables()?,
        };
        if self.asked.as_ref() == Some(&question) {
            return Ok(());
        }
        let there = facts::addresses_behind(&question.cables)?;
        // Without a route, none of several namespaces is chosen.
        let leading = |pod: &IpAddr| next_hops.devices(&[*pod].into()).unwrap_or_default();
        self.by_pod = choose_namespaces(&question.pods, &there, leading);
        let own = question.on_host_network.iter();
        self.by_pod.extend(own.map(|pod| (*pod, PodNamespace::Own)));
        self.asked = Some(question);
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
