mod room;

use std::{cell::Cell, mem::offset_of, net::Ipv4Addr};

use xdp_prog::abi::{
    BACKEND_DOWN, Backend, NAMESPACE_OWN, NAMESPACE_UNKNOWN, PAST_OWNER_SECONDS, map,
};

use super::*;
use crate::{
    load::{Loaded, Loader},
    nexthop::{NextHop, Resolution},
    object::testing::stubs,
    tables::{BackendSpec, InstalledService, PodNamespace},
};

const SERVICE: &str = "10.99.0.1:80/tcp";
const NODE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const DAY: u32 = PAST_OWNER_SECONDS;

thread_local! {
    static AHEAD: Cell<u32> = const { Cell::new(0) };
}

/// The seconds that the clock of this thread is ahead.
pub(super) fn ahead() -> u32 {
    AHEAD.get()
}

/// Lets seconds pass.
fn wait(seconds: u32) {
    AHEAD.set(AHEAD.get() + seconds);
}

fn load() -> Loaded {
    let sizes = [
        (map::SERVICE, 16),
        (map::SERVICE_TRAFFIC, 16),
        (map::NEXTHOPS, 16),
        (map::LUT, 1 << 9),
        (map::HISTORY, 64),
        (map::BACKENDS, 32),
        (map::BACKEND_TRAFFIC, 32),
    ];
    let loader = Loader::unpinned().object(stubs());
    let sized = sizes.into_iter().fold(loader, |loader, (name, size)| {
        loader.max_entries(name, size)
    });
    sized.load().unwrap()
}

fn open(loaded: &Loaded) -> Tables {
    let mut tables = Tables::open(loaded).unwrap();
    let hop = Resolution::Resolved(NextHop {
        ifindex: 1,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        is_carried: false,
        via_gateway: false,
        vlan: None,
        mtu: 1500,
        source: None,
    });
    tables.set_next_hop(NODE.into(), hop).unwrap();
    tables
}

/// Opens the tables of the machine that has the pods.
fn open_at_node(loaded: &Loaded) -> Tables {
    let mut tables = open(loaded);
    tables.set_next_hop(NODE.into(), Resolution::Local).unwrap();
    tables
}

fn key() -> ServiceKey {
    SERVICE.parse().unwrap()
}

fn pod(number: u8) -> BackendSpec {
    let address = Ipv4Addr::new(10, 244, 0, number);
    BackendSpec::pod(NODE.into(), (address, 8080).into(), 1)
}

fn spec(pods: &[u8], log2: u8) -> ServiceSpec {
    ServiceSpec {
        log2_slots: Some(log2),
        backends: pods.iter().copied().map(pod).collect(),
        ..ServiceSpec::default()
    }
}

fn by(mode: ForwardMode, spec: ServiceSpec) -> ServiceSpec {
    ServiceSpec { mode, ..spec }
}

fn put(tables: &mut Tables, pods: &[u8], log2: u8) {
    tables.put_service(key(), &spec(pods, log2)).unwrap();
}

fn number(tables: &Tables, id: u32) -> u8 {
    match tables.backends.get(id) {
        Some(backend) if id != 0 => {
            let key = backend_key(backend);
            key.pod.map_or(key.address, |pod| pod.ip()).to_string()
        }
        _ => "0.0.0.0".to_owned(),
    }
    .rsplit('.')
    .next()
    .unwrap()
    .parse()
    .unwrap()
}

fn service(tables: &Tables) -> InstalledService {
    tables.service(&key()).unwrap().clone()
}

/// The owner of each slot, and its past owners, as programs find them.
fn slots(tables: &Tables) -> Vec<(u8, Vec<u8>)> {
    slots_of(tables, &key())
}

fn slots_of(tables: &Tables, key: &ServiceKey) -> Vec<(u8, Vec<u8>)> {
    slots_in(tables, tables.service(key).unwrap().run)
}

fn slots_in(tables: &Tables, run: Run) -> Vec<(u8, Vec<u8>)> {
    let slot = |index| {
        let slot = tables.lut.get(index).unwrap();
        let word = tables.pasts.word(index);
        let places = word.offset()..word.offset() + word.count();
        let places = places.filter(|_| slot.has_past());
        let ids = places.map(|place| tables.pasts.owner(place).backend());
        let past: Vec<u8> = ids.map(|id| number(tables, id)).collect();
        assert_eq!(slot.has_past(), !past.is_empty());
        (number(tables, slot.owner()), past)
    };
    run.slots().map(slot).collect()
}

fn id_of(tables: &Tables, number: u8) -> Option<u32> {
    let mut backends = tables.backends();
    let pod = pod(number).pod;
    backends.find_map(|(owned, backend)| (owned.key.pod == pod).then_some(backend.id))
}

#[test]
fn slot_that_changes_hands_lists_its_former_owner_and_others_stay_quiet() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1, 2], 4);
    let before = slots(&tables);
    assert!(before.iter().all(|(_, past)| past.is_empty()));

    put(&mut tables, &[2], 4);

    for ((old, _), (new, past)) in before.iter().zip(slots(&tables)) {
        assert_eq!(new, 2);
        let expected: &[u8] = if *old == 1 { &[1] } else { &[] };
        assert_eq!(past, expected);
    }
    assert_eq!(
        tables.pasts.lists().count(),
        1,
        "equal lists are stored once"
    );
    assert_eq!(tables.nodes_of_past_owners(), [NODE.into()].into());
}

#[test]
fn list_has_the_newest_first_and_not_the_owner_itself() {
    let loaded = load();
    let mut tables = open(&loaded);
    for pods in [&[1][..], &[2], &[3], &[2]] {
        put(&mut tables, pods, 0);
    }
    assert_eq!(slots(&tables), [(2, vec![3, 1])]);
    for number in 4..=20 {
        put(&mut tables, &[number], 0);
    }
    let (_, past) = &slots(&tables)[0];
    let expected: Vec<u8> = (6..=19).rev().collect();
    assert_eq!(*past, expected, "the oldest go");
}

#[test]
fn backend_keeps_its_id_while_a_list_names_it() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1], 0);
    let first = id_of(&tables, 1).unwrap();
    put(&mut tables, &[2], 0);
    tables.reclaim();
    assert_eq!(id_of(&tables, 1), Some(first));
    put(&mut tables, &[3], 0);
    assert_ne!(id_of(&tables, 3), Some(first));
    put(&mut tables, &[1], 0);
    assert_eq!(id_of(&tables, 1), Some(first), "it comes back under its id");

    tables.remove_service(&key()).unwrap();
    tables.reclaim();
    assert_eq!(tables.fill().backends.used, 0);
    assert_eq!(tables.fill().past_owners.used, 0);
    assert!(tables.nodes_of_past_owners().is_empty());
}

#[test]
fn owner_leaves_after_a_day() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1], 0);
    put(&mut tables, &[2], 0);
    let second = second_now();
    tables.expire_past_owners_at(second + DAY - 60);
    assert_eq!(slots(&tables), [(2, vec![1])]);
    tables.expire_past_owners_at(second + DAY + 60);
    assert_eq!(slots(&tables), [(2, vec![])]);
    tables.reclaim();
    assert_eq!(id_of(&tables, 1), None);
    assert_eq!(tables.fill().past_owners.used, 0);
}

#[test]
fn another_length_carries_owners_over_by_the_same_part_of_the_table() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1, 2, 3], 4);
    let short = slots(&tables);

    put(&mut tables, &[1, 2, 3, 4], 6);
    let long = slots(&tables);
    for (place, (owner, past)) in long.iter().enumerate() {
        let (former, _) = short[place / 4];
        let expected = if *owner == former {
            vec![]
        } else {
            vec![former]
        };
        assert_eq!(*past, expected, "slot {place}");
    }
    tables.reclaim();

    put(&mut tables, &[1, 2, 3], 4);
    for (place, (owner, past)) in slots(&tables).iter().enumerate() {
        let part = &long[place * 4..place * 4 + 4];
        let owners = part
            .iter()
            .flat_map(|(owner, past)| [&[*owner][..], past].concat());
        let mut owners: Vec<u8> = owners.filter(|one| one != owner).collect();
        let mut past = past.clone();
        owners.sort_unstable();
        owners.dedup();
        past.sort_unstable();
        assert_eq!(past, owners, "slot {place}");
    }
}

#[test]
fn service_without_backends_keeps_its_length_and_lists() {
    let loaded = load();
    let mut tables = open(&loaded);
    let by_count = |pods: &[u8]| ServiceSpec {
        log2_slots: None,
        ..spec(pods, 0)
    };
    tables.put_service(key(), &by_count(&[1, 2])).unwrap();
    let before = slots(&tables);
    tables.put_service(key(), &by_count(&[])).unwrap();
    for ((owner, _), (nobody, past)) in before.iter().zip(slots(&tables)) {
        assert_eq!((nobody, past), (0, vec![*owner]));
    }
    tables.put_service(key(), &by_count(&[1, 2])).unwrap();
    assert_eq!(slots(&tables), before, "nobody is no past owner");
}

#[test]
fn what_nodes_do_not_return_has_a_past_and_nat_mode_has_none() {
    let loaded = load();
    let mut tables = open(&loaded);
    let nodes = |number| ServiceSpec {
        backends: vec![BackendSpec::node([10, 9, 0, number].into(), 1)],
        ..spec(&[], 0)
    };
    let pods = |number: u8| spec(&[number], 0);
    for (first, second) in [
        (nodes(1), nodes(2)),
        (
            by(ForwardMode::L2dsr, nodes(1)),
            by(ForwardMode::L2dsr, nodes(2)),
        ),
        (
            by(ForwardMode::L2dsr, pods(1)),
            by(ForwardMode::L2dsr, pods(2)),
        ),
    ] {
        tables.put_service(key(), &first).unwrap();
        assert!(tables.pasts.is_empty());
        tables.put_service(key(), &second).unwrap();
        let lists = slots(&tables);
        assert!(lists.iter().all(|(_, past)| past.len() == 1), "{second:?}");
        tables.remove_service(&key()).unwrap();
        assert!(tables.pasts.is_empty());
    }
    put(&mut tables, &[1], 0);
    put(&mut tables, &[2], 0);
    let by_nat = by(ForwardMode::Nat, spec(&[2], 0));
    tables.put_service(key(), &by_nat).unwrap();
    assert!(tables.pasts.is_empty(), "it goes with the mode");
    tables.reclaim();
    assert_eq!(id_of(&tables, 1), None);
}

#[test]
fn datagrams_have_a_past_as_well() {
    let loaded = load();
    let mut tables = open(&loaded);
    let udp: ServiceKey = "10.99.0.1:80/udp".parse().unwrap();
    tables.put_service(udp, &spec(&[1], 0)).unwrap();
    assert!(tables.pasts.is_empty());
    tables.put_service(udp, &spec(&[2], 0)).unwrap();
    assert!(!tables.pasts.is_empty());
    tables.remove_service(&udp).unwrap();
    assert!(tables.pasts.is_empty());
}

#[test]
fn agent_that_follows_adopts_the_lists() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1, 2, 3], 4);
    put(&mut tables, &[2, 3], 4);
    put(&mut tables, &[3, 4], 4);
    tables.reclaim();
    let (before, fill) = (slots(&tables), tables.fill());
    let ids: Vec<Option<u32>> = (1..=4).map(|number| id_of(&tables, number)).collect();
    drop(tables);

    let mut tables = open(&loaded);
    assert_eq!(slots(&tables), before);
    assert_eq!(tables.fill(), fill);
    put(&mut tables, &[3, 4], 4);
    assert_eq!(slots(&tables), before);
    let adopted: Vec<Option<u32>> = (1..=4).map(|number| id_of(&tables, number)).collect();
    assert_eq!(adopted, ids);
    tables.expire_past_owners_at(second_now() + DAY + 60);
    tables.reclaim();
    assert!(slots(&tables).iter().all(|(_, past)| past.is_empty()));
    assert_eq!((id_of(&tables, 1), id_of(&tables, 2)), (None, None));
    assert_eq!(tables.fill().past_owners.used, 0);
}

#[test]
fn list_that_cannot_be_is_not_adopted() {
    let loaded = load();
    for (word, owner) in [
        (Past(0xf000_0001), None),
        (Past::new(63, 3), None),
        (Past::new(1, 0), None),
        (Past::new(1, 1), Some(PastOwner::new(31, 7))),
        (Past::new(1, 1), Some(PastOwner::default())),
    ] {
        let mut tables = open(&loaded);
        put(&mut tables, &[1], 0);
        put(&mut tables, &[2], 0);
        let index = service(&tables).run.base;
        tables.pasts.store_word(index, word, false);
        if let Some(owner) = owner {
            tables.pasts.set_owner(1, owner);
        }
        drop(tables);
        let mut tables = open(&loaded);
        assert_eq!(slots(&tables), [(2, vec![])], "{word:?} {owner:?}");
        assert_eq!(tables.fill().past_owners.used, 0);
        tables.remove_service(&key()).unwrap();
        tables.reclaim();
    }
}

#[test]
fn backends_that_serve_push_past_owners_out_of_a_full_table() {
    let loaded = load();
    let mut tables = open(&loaded);
    let all: Vec<u8> = (1..=20).collect();
    put(&mut tables, &all, 5);
    let others: Vec<u8> = (101..=131).collect();
    put(&mut tables, &others[..11], 5);
    assert!(slots(&tables).iter().any(|(_, past)| !past.is_empty()));
    tables.remove_service(&key()).unwrap();
    put(&mut tables, &all, 5);
    put(&mut tables, &all[..10], 5);
    put(&mut tables, &others[..20], 5);
    let owners: BTreeSet<u8> = slots(&tables).iter().map(|(owner, _)| *owner).collect();
    assert_eq!(owners.len(), 20);
}

#[test]
fn mark_of_pins_stays_with_another_list_and_goes_with_the_last() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1], 0);
    put(&mut tables, &[2], 0);
    let index = service(&tables).run.base;
    tables.pasts.mark_pinned(index);
    put(&mut tables, &[3], 0);
    assert!(tables.pasts.word(index).is_pinned());
    assert_eq!(slots(&tables), [(3, vec![2, 1])]);
    tables.expire_past_owners_at(second_now() + DAY + 60);
    put(&mut tables, &[4], 0);
    assert!(!tables.pasts.word(index).is_pinned());
}

#[test]
fn mark_of_pins_stays_with_another_length() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1], 2);
    put(&mut tables, &[2], 2);
    let run = service(&tables).run;
    tables.pasts.mark_pinned(run.base + 2);
    let marked = |tables: &Tables| -> Vec<u32> {
        let run = service(tables).run;
        let slots = (0..run.length()).filter(|place| tables.is_pinned(run.base + place));
        slots.collect()
    };
    put(&mut tables, &[2], 4);
    assert_ne!(service(&tables).run, run);
    assert_eq!(marked(&tables), [8, 9, 10, 11]);
    put(&mut tables, &[2, 3], 1);
    assert_eq!(marked(&tables), [1]);
}

#[test]
fn backends_on_unreachable_nodes_are_marked() {
    let loaded = load();
    let mut tables = open(&loaded);
    let is_down = |tables: &Tables, number| {
        let id = id_of(tables, number).unwrap();
        tables.backends.get(id).unwrap().flags & BACKEND_DOWN != 0
    };
    put(&mut tables, &[1], 0);
    tables.set_unreachable_nodes(&[NODE.into()].into());
    put(&mut tables, &[1, 2], 1);
    assert!(is_down(&tables, 1) && is_down(&tables, 2));
    tables.set_next_hop(NODE.into(), Resolution::Local).unwrap();
    assert!(is_down(&tables, 1));
    drop(tables);
    let mut tables = open(&loaded);
    assert!(!is_down(&tables, 1), "it has to be found out anew");
    tables.set_unreachable_nodes(&[NODE.into()].into());
    tables.set_unreachable_nodes(&BTreeSet::new());
    assert!(!is_down(&tables, 1) && !is_down(&tables, 2));
}

#[test]
fn own_pods_of_a_service_are_known() {
    let loaded = load();
    let mut tables = open(&loaded);
    put(&mut tables, &[1, 2], 1);
    assert!(tables.own_pods(&key()).is_empty());
    tables.set_next_hop(NODE.into(), Resolution::Local).unwrap();
    let own = tables.own_pods(&key());
    let pods: Vec<Option<_>> = own.iter().map(|own| own.pod).collect();
    assert_eq!(pods, [pod(1).pod, pod(2).pod]);
}

const OTHER_NODE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A service in this mode with these pods of this machine, and one of another node.
fn beside_another_node(mode: ForwardMode, pods: &[u8], log2: u8) -> ServiceSpec {
    let mut spec = by(mode, spec(pods, log2));
    let elsewhere = Ipv4Addr::new(10, 244, 1, 99);
    let elsewhere = BackendSpec::pod(OTHER_NODE.into(), (elsewhere, 8080).into(), 1);
    spec.backends.push(elsewhere);
    spec
}

/// The slots of this machine's own pods.
fn own_slots(tables: &Tables) -> Vec<(u8, Vec<u8>)> {
    let service = service(tables);
    let local = service.local.unwrap();
    assert_ne!(local, service.run);
    slots_in(tables, local)
}

#[test]
fn own_pods_have_a_past_where_the_node_chooses_the_pod() {
    let loaded = load();
    let mut tables = open_at_node(&loaded);
    let put = |tables: &mut Tables, mode, pods: &[u8], log2| {
        let spec = beside_another_node(mode, pods, log2);
        tables.put_service(key(), &spec).unwrap();
    };
    put(&mut tables, ForwardMode::L2dsr, &[1], 4);
    let before = own_slots(&tables);
    assert!(before.iter().all(|slot| *slot == (1, vec![])));

    put(&mut tables, ForwardMode::L2dsr, &[1, 2], 4);
    let added = own_slots(&tables);
    assert!(added.contains(&(2, vec![1])) && added.contains(&(1, vec![])));
    assert!(
        added
            .iter()
            .all(|(owner, past)| past.is_empty() == (*owner == 1)),
        "{added:?}"
    );

    // Another length is another run.
    put(&mut tables, ForwardMode::L2dsr, &[1, 2], 5);
    tables.reclaim();
    let doubled = own_slots(&tables);
    assert!(doubled.iter().any(|(_, past)| *past == [1]));

    drop(tables);
    let mut tables = open(&loaded);
    assert_eq!(
        own_slots(&tables),
        doubled,
        "an agent that follows adopts them"
    );
    tables.set_next_hop(NODE.into(), Resolution::Local).unwrap();
    tables.expire_past_owners_at(second_now() + DAY + 60);
    put(&mut tables, ForwardMode::L2dsr, &[1, 2], 5);
    assert!(own_slots(&tables).iter().all(|(_, past)| past.is_empty()));

    put(&mut tables, ForwardMode::L2dsr, &[2], 5);
    assert!(own_slots(&tables).contains(&(2, vec![1])));
    put(&mut tables, ForwardMode::Ipip, &[2], 5);
    assert!(
        own_slots(&tables).iter().all(|(_, past)| past.is_empty()),
        "the edge's tag names the pod"
    );
    tables.remove_service(&key()).unwrap();
    tables.reclaim();
    assert!(tables.pasts.is_empty());
    assert_eq!(tables.fill().backends.used, 0);
}

/// While all backends are pods of this machine, too.
#[test]
fn past_of_own_pods_stays_when_the_last_other_backend_goes_and_comes_back() {
    let loaded = load();
    let mut tables = open_at_node(&loaded);
    let beside = |pods: &[u8]| beside_another_node(ForwardMode::L2dsr, pods, 4);
    let alone = |pods: &[u8]| by(ForwardMode::L2dsr, spec(pods, 4));
    tables.put_service(key(), &beside(&[1])).unwrap();
    tables.put_service(key(), &beside(&[1, 2])).unwrap();
    let before = own_slots(&tables);
    assert!(before.contains(&(2, vec![1])));
    tables.put_service(key(), &alone(&[1, 2])).unwrap();
    assert_eq!(own_slots(&tables), before);
    tables.put_service(key(), &beside(&[1, 2])).unwrap();
    assert_eq!(own_slots(&tables), before);
}

#[test]
fn past_of_own_pods_goes_with_the_service() {
    let loaded = load();
    let mut tables = open_at_node(&loaded);
    for pods in [&[1][..], &[2]] {
        let spec = beside_another_node(ForwardMode::L2dsr, pods, 3);
        tables.put_service(key(), &spec).unwrap();
    }
    assert!(own_slots(&tables).contains(&(2, vec![1])));
    tables.remove_service(&key()).unwrap();
    tables.reclaim();
    assert_eq!(tables.fill().past_owners.used, 0);
    assert_eq!(tables.fill().backends.used, 0);
}

#[test]
fn backends_tell_whether_they_take_new_connections() {
    let loaded = load();
    let mut tables = open(&loaded);
    let entry = |tables: &Tables, number| tables.backends.read(id_of(tables, number).unwrap());
    let takes_new = |tables: &Tables| [1, 2].map(|number| entry(tables, number).unwrap().takes_new);
    put(&mut tables, &[1, 2], 4);
    assert_eq!(takes_new(&tables), [1, 1]);
    put(&mut tables, &[1], 4);
    assert_eq!(takes_new(&tables), [1, 0], "a past owner");

    let other: ServiceKey = "10.99.0.2:80/tcp".parse().unwrap();
    tables.put_service(other, &spec(&[2], 4)).unwrap();
    assert_eq!(takes_new(&tables), [1, 1], "another service of the owner");
    let mut drained = spec(&[2], 4);
    drained.backends[0].weight = 0;
    tables.put_service(other, &drained).unwrap();
    assert_eq!(takes_new(&tables), [1, 0], "it drains");
    tables.put_service(other, &spec(&[2], 4)).unwrap();
    tables.remove_service(&other).unwrap();
    assert_eq!(takes_new(&tables), [1, 0]);

    // An agent ends before it says so.
    let ids = [1, 2].map(|number| id_of(&tables, number).unwrap());
    for (id, word) in ids.into_iter().zip([0, 1]) {
        tables.store_backend_word(id, offset_of!(Backend, takes_new), word);
    }
    drop(tables);
    assert_eq!(takes_new(&open(&loaded)), [1, 0]);
}

#[test]
fn backends_tell_the_namespaces_of_their_pods() {
    let loaded = load();
    let mut tables = open(&loaded);
    let words = |tables: &Tables| {
        [1, 2].map(|number| {
            let id = id_of(tables, number).unwrap();
            tables.backends.read(id).unwrap().namespace
        })
    };
    let pod = |number| spec(&[number], 4).backends[0].pod.unwrap().ip();
    put(&mut tables, &[1], 4);
    let known = [
        (pod(1), PodNamespace::Other(6)),
        (pod(2), PodNamespace::Own),
    ];
    tables.set_pod_namespaces(&known.into());
    put(&mut tables, &[1, 2], 4);
    assert_eq!(
        words(&tables),
        [7, NAMESPACE_OWN],
        "known before, and after"
    );
    tables.set_pod_namespaces(&[(pod(1), PodNamespace::Other(0))].into());
    assert_eq!(words(&tables), [1, NAMESPACE_UNKNOWN]);

    drop(tables);
    let mut tables = open(&loaded);
    assert_eq!(
        words(&tables),
        [NAMESPACE_UNKNOWN; 2],
        "to be found out anew"
    );
    tables.set_pod_namespaces(&known.into());
    assert_eq!(words(&tables), [7, NAMESPACE_OWN]);
}
