//! Computes the tables of a service from its specification; changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use xdp_prog::{
    abi::Tag,
    maglev::{LENGTH_CLASSES, MAX_LOG2_LEN},
};

use super::{
    BackendKey, BackendSpec, ForwardMode, Protocol, ServiceKey, ServiceSpec, TableError,
    TrafficPolicy,
    lut::{self, Lut},
    types::address_key,
};

/// A service's tables without places and ids.
pub(super) struct Layout {
    /// The backends that this machine uses; those that take new connections come first.
    pub(super) backends: Vec<BackendKey>,
    /// How many of them take new connections.
    pub(super) sharing: usize,
    /// The lookup table; its owners are indices into `backends`.
    pub(super) table: Lut,
    /// The table of this machine's pods alone, if it has any.
    pub(super) local: Option<LocalTable>,
    /// This machine's pods: from the pod's bits of the tag to the index into `backends`.
    pub(super) pods: BTreeMap<u16, usize>,
    /// Pods that are left out because another pod of their node has the same tag.
    pub(super) left_out: Vec<BackendKey>,
}

/// The table that chooses among a service's local pods.
pub(super) enum LocalTable {
    /// The service's own table, because there are no other backends.
    Same,
    /// A separate table; its owners are indices into [`Layout::backends`].
    Own(Lut),
}

/// Computes a service's tables on a machine that has the pods of some nodes. The lookup table has 2^`least` slots at least.
///
/// # Errors
///
/// Fails if the specification cannot be met.
pub(super) fn layout(
    key: &ServiceKey,
    spec: &ServiceSpec,
    least: u8,
    seed: u64,
    is_local: impl Fn(IpAddr) -> bool,
) -> Result<Layout, TableError> {
    for backend in &spec.backends {
        check(key, spec.mode, backend)?;
    }
    let has_pods = spec.mode != ForwardMode::Nat;
    let is_local_pod =
        |backend: &BackendSpec| has_pods && backend.pod.is_some() && is_local(backend.address);

    let hidden = if has_pods {
        hidden(&spec.backends)
    } else {
        BTreeSet::new()
    };
    let mut used = spec.backends.clone();
    used.retain(|backend| !hidden.contains(backend));
    if spec.traffic_policy == TrafficPolicy::Local {
        used.retain(is_local_pod);
    }
    // Backends without a share come last, so that the tables are built over the front.
    used.sort_by_key(|backend| !backend.is_sharing());
    let sharing = used.partition_point(BackendSpec::is_sharing);
    let pods = (0..used.len()).filter(|index| is_local_pod(&used[*index]));
    let pods: Vec<usize> = pods.collect();
    let sharing_here = &pods[..pods.partition_point(|index| *index < sharing)];
    // With L2 DSR, no tag names the pod that an edge means. If this machine has no pod with a share, the edge may
    // still know one, or not know yet of its end.
    let uses_pods_without_share = sharing_here.is_empty() && spec.mode == ForwardMode::L2dsr;
    let local = if uses_pods_without_share {
        &pods
    } else {
        sharing_here
    };

    let table = lut::build(key, spec, &used[..sharing], least, seed)?;
    // The length of a table without members says nothing.
    let largest = match sharing {
        0 => MAX_LOG2_LEN,
        _ => table.log2,
    };
    let local_table = match local.len() {
        0 => None,
        // By L2 DSR, its slots have pasts of their own.
        all if all == sharing && spec.mode != ForwardMode::L2dsr => Some(LocalTable::Same),
        _ => Some(LocalTable::Own(local_lut(
            key, spec, &used, local, seed, largest,
        )?)),
    };
    let tag = |index: usize| used[index].pod.map(|pod| Tag::pod(address_key(pod.ip())));
    Ok(Layout {
        pods: pods
            .iter()
            .filter_map(|index| Some((tag(*index)?.pod_bits(), *index)))
            .collect(),
        backends: used.iter().map(|backend| backend.key(spec.mode)).collect(),
        sharing,
        table,
        local: local_table,
        left_out: hidden.iter().map(|hidden| hidden.key(spec.mode)).collect(),
    })
}

/// Refuses a backend if the service's packets cannot be translated for it.
fn check(key: &ServiceKey, mode: ForwardMode, backend: &BackendSpec) -> Result<(), TableError> {
    let Some(pod) = backend.pod else {
        return Ok(());
    };
    if pod.is_ipv4() != key.address.is_ipv4() {
        return Err(TableError::OtherFamily {
            service: *key,
            backend: backend.key(mode),
        });
    }
    if key.protocol == Protocol::Sctp && pod.port() != key.port {
        return Err(TableError::SctpPort {
            service: *key,
            backend: backend.key(mode),
        });
    }
    Ok(())
}

/// Returns the pods whose node cannot distinguish them: another pod there has the same tag and comes first, by having
/// a share of the table or by its lower address.
fn hidden(backends: &[BackendSpec]) -> BTreeSet<BackendSpec> {
    let mut pods: Vec<&BackendSpec> = backends
        .iter()
        .filter(|backend| backend.pod.is_some())
        .collect();
    pods.sort_unstable_by_key(|backend| (!backend.is_sharing(), backend.pod));
    let mut taken = BTreeSet::new();
    let is_hidden = |backend: &&&BackendSpec| {
        backend.pod.is_some_and(|pod| {
            !taken.insert((backend.address, Tag::pod(address_key(pod.ip())).pod_bits()))
        })
    };
    pods.iter().filter(is_hidden).map(|pod| **pod).collect()
}

/// Builds the table of the local pods. The length of the service's own table has a slot for each of them at the
/// latest.
fn local_lut(
    key: &ServiceKey,
    spec: &ServiceSpec,
    used: &[BackendSpec],
    local: &[usize],
    seed: u64,
    largest: u8,
) -> Result<Lut, TableError> {
    let member = |index: &usize| BackendSpec {
        weight: used[*index].weight.max(1),
        ..used[*index]
    };
    let members: Vec<BackendSpec> = local.iter().map(member).collect();
    let by_count = ServiceSpec::default().log2_slots_for(members.len());
    let smallest = by_count.unwrap_or(MAX_LOG2_LEN).min(largest);
    let lengths = LENGTH_CLASSES.into_iter().chain([largest]);
    let mut outcome = Err(TableError::TooManyBackends {
        service: *key,
        backends: members.len(),
        slots: 1 << largest,
    });
    for log2 in lengths.filter(|log2| (smallest..=largest).contains(log2)) {
        let spec = ServiceSpec {
            mode: spec.mode,
            log2_slots: Some(log2),
            ..ServiceSpec::default()
        };
        outcome = lut::build(key, &spec, &members, 0, seed);
        if !matches!(outcome, Err(TableError::WeightTooSmall { .. })) {
            break;
        }
    }
    let mut table = outcome?;
    for owner in &mut table.owners {
        // There are at most as many owners as backends, which were counted in 32 bits.
        *owner = u32::try_from(local[*owner as usize]).unwrap_or(0);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const HERE: &str = "10.0.0.1";
    const THERE: &str = "10.0.0.2";

    #[test]
    fn higher_of_two_pods_with_one_tag_is_left_out() {
        // 10.244.8.5 and 10.244.0.5 share the low eleven bits of their addresses.
        let layout = layout_of(&spec(&[
            (HERE, "10.244.8.5:80"),
            (HERE, "10.244.0.5:80"),
            (HERE, "10.244.0.6:80"),
            (THERE, "10.244.16.5:80"),
        ]));
        assert_eq!(pods(&layout.left_out), ["10.244.8.5:80"]);
        assert_eq!(
            pods(&layout.backends),
            ["10.244.0.5:80", "10.244.0.6:80", "10.244.16.5:80"]
        );
        let tags: Vec<u16> = layout.pods.keys().copied().collect();
        assert_eq!(tags, [5, 6]);
    }

    #[test]
    fn local_pods_have_a_table_of_their_own() {
        let layout = layout_of(&spec(&[
            (HERE, "10.244.0.5:80"),
            (THERE, "10.244.1.5:80"),
            (HERE, "10.244.0.6:80"),
        ]));
        let Some(LocalTable::Own(local)) = &layout.local else {
            panic!("no table of their own");
        };
        let owners: BTreeSet<u32> = local.owners.iter().copied().collect();
        assert_eq!(owners, BTreeSet::from([0, 2]));
        let all: BTreeSet<u32> = layout.table.owners.iter().copied().collect();
        assert_eq!(all, BTreeSet::from([0, 1, 2]));
    }

    #[test]
    fn only_local_pods_need_no_second_table() {
        let layout = layout_of(&spec(&[(HERE, "10.244.0.5:80")]));
        assert!(matches!(layout.local, Some(LocalTable::Same)));
        let elsewhere = layout_of(&spec(&[(THERE, "10.244.0.5:80")]));
        assert!(elsewhere.local.is_none() && elsewhere.pods.is_empty());
    }

    #[test]
    fn by_l2dsr_local_pods_have_a_table_of_their_own_in_any_case() {
        let wanted = ServiceSpec {
            mode: ForwardMode::L2dsr,
            ..spec(&[(HERE, "10.244.0.5:80")])
        };
        assert!(matches!(layout_of(&wanted).local, Some(LocalTable::Own(_))));
    }

    #[test]
    fn local_policy_uses_local_pods_only() {
        let mut wanted = spec(&[(HERE, "10.244.0.5:80"), (THERE, "10.244.1.5:80")]);
        wanted.traffic_policy = TrafficPolicy::Local;
        assert_eq!(pods(&layout_of(&wanted).backends), ["10.244.0.5:80"]);
        let mut elsewhere = spec(&[(THERE, "10.244.1.5:80")]);
        elsewhere.traffic_policy = TrafficPolicy::Local;
        let layout = layout_of(&elsewhere);
        assert!(layout.backends.is_empty());
        assert_eq!(layout.table.owners, [lut::NOBODY]);
    }

    #[test]
    fn local_pod_of_small_weight_has_a_slot_in_a_longer_table() {
        let mut wanted = spec(&[
            (HERE, "10.244.0.5:80"),
            (HERE, "10.244.0.6:80"),
            (THERE, "10.244.1.5:80"),
        ]);
        wanted.log2_slots = Some(11);
        wanted.backends[1].weight = 1000;
        let Some(LocalTable::Own(local)) = layout_of(&wanted).local else {
            panic!("no table of their own");
        };
        assert_eq!(local.log2, 11);
    }

    #[test]
    fn pod_of_no_weight_is_delivered_to_and_gets_no_slot() {
        let mut wanted = spec(&[
            (HERE, "10.244.0.5:80"),
            (HERE, "10.244.0.6:80"),
            (THERE, "10.244.1.5:80"),
        ]);
        wanted.backends[0].weight = 0;
        let layout = layout_of(&wanted);
        assert_eq!(
            pods(&layout.backends),
            ["10.244.0.6:80", "10.244.1.5:80", "10.244.0.5:80"]
        );
        let owners: BTreeSet<u32> = layout.table.owners.iter().copied().collect();
        assert_eq!(owners, BTreeSet::from([0, 1]));
        assert_eq!(layout.pods, BTreeMap::from([(5, 2), (6, 0)]));
        let Some(LocalTable::Own(local)) = &layout.local else {
            panic!("no table of their own");
        };
        assert!(local.owners.iter().all(|owner| *owner == 0));
    }

    #[test]
    fn node_of_no_weight_gets_no_slot() {
        let mut wanted = ServiceSpec {
            backends: ["10.0.0.1", "10.0.0.2"]
                .map(|node| BackendSpec::node(node.parse().unwrap(), 1))
                .into(),
            ..ServiceSpec::default()
        };
        wanted.backends[0].weight = 0;
        let layout = layout_of(&wanted);
        assert_eq!(layout.backends[0].address.to_string(), "10.0.0.2");
        assert!(layout.table.owners.iter().all(|owner| *owner == 0));
    }

    #[test]
    fn pods_of_no_weight_alone_leave_the_table_empty() {
        let mut wanted = spec(&[(HERE, "10.244.0.5:80")]);
        wanted.backends[0].weight = 0;
        let layout = layout_of(&wanted);
        assert_eq!(layout.table.owners, [lut::NOBODY]);
        assert!(layout.local.is_none());
        assert_eq!(layout.pods, BTreeMap::from([(5, 0)]));
    }

    #[test]
    fn pods_of_no_weight_are_chosen_among_for_l2dsr_where_there_are_no_others() {
        let mut wanted = spec(&[(HERE, "10.244.0.5:80"), (THERE, "10.244.1.5:80")]);
        wanted.mode = ForwardMode::L2dsr;
        wanted.backends[0].weight = 0;
        let layout = layout_of(&wanted);
        assert_eq!(pods(&layout.backends), ["10.244.1.5:80", "10.244.0.5:80"]);
        assert!(layout.table.owners.iter().all(|owner| *owner == 0));
        let Some(LocalTable::Own(local)) = &layout.local else {
            panic!("no table of their own");
        };
        assert!(local.owners.iter().all(|owner| *owner == 1));
        wanted.backends[1] = wanted.backends[0];
        wanted.backends[1].pod = "10.244.0.6:80".parse().ok();
        let layout = layout_of(&wanted);
        assert_eq!(layout.table.owners, [lut::NOBODY]);
        let Some(LocalTable::Own(local)) = &layout.local else {
            panic!("no table of their own");
        };
        let owners: BTreeSet<u32> = local.owners.iter().copied().collect();
        assert_eq!(owners, BTreeSet::from([0, 1]));
    }

    #[test]
    fn pod_of_no_weight_hides_none_that_shares_its_tag() {
        let mut wanted = spec(&[(HERE, "10.244.0.5:80"), (HERE, "10.244.8.5:80")]);
        wanted.backends[0].weight = 0;
        assert_eq!(pods(&layout_of(&wanted).left_out), ["10.244.0.5:80"]);
    }

    #[test]
    fn what_cannot_be_translated_is_refused() {
        let key = "10.99.0.1:9899/sctp".parse().unwrap();
        let refused = |pod: &str, mode| {
            let mut wanted = spec(&[(HERE, pod)]);
            wanted.mode = mode;
            layout(&key, &wanted, 0, 7, is_here)
                .err()
                .unwrap()
                .to_string()
        };
        for mode in [ForwardMode::Ipip, ForwardMode::L2dsr, ForwardMode::Nat] {
            let ports = refused("10.244.0.5:80", mode);
            assert!(ports.contains("10.244.0.5:80"), "{ports}");
            let family = refused("[fd00::5]:9899", mode);
            assert!(family.contains("other family"), "{family}");
        }
    }

    #[test]
    fn nat_has_neither_tags_nor_local_pods() {
        let mut wanted = spec(&[(HERE, "10.244.8.5:80"), (HERE, "10.244.0.5:80")]);
        wanted.mode = ForwardMode::Nat;
        let layout = layout_of(&wanted);
        assert_eq!(layout.backends.len(), 2);
        assert!(layout.local.is_none() && layout.pods.is_empty() && layout.left_out.is_empty());
    }

    fn layout_of(spec: &ServiceSpec) -> Layout {
        let key = "10.99.0.1:80/tcp".parse().unwrap();
        layout(&key, spec, 0, 7, is_here).unwrap()
    }

    fn is_here(node: IpAddr) -> bool {
        node == HERE.parse::<IpAddr>().unwrap()
    }

    fn spec(pods: &[(&str, &str)]) -> ServiceSpec {
        let backend = |(node, pod): &(&str, &str)| {
            BackendSpec::pod(node.parse().unwrap(), pod.parse().unwrap(), 1)
        };
        ServiceSpec {
            backends: pods.iter().map(backend).collect(),
            ..ServiceSpec::default()
        }
    }

    fn pods(backends: &[BackendKey]) -> Vec<String> {
        let pods = backends.iter().filter_map(|backend| backend.pod);
        pods.map(|pod: SocketAddr| pod.to_string()).collect()
    }
}
