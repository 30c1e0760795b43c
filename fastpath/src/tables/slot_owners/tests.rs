use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use xdp_prog::abi::map;

use super::*;
use crate::{
    load::{Loaded, Loader},
    object::testing::stubs,
    tables::BackendSpec,
};

const SERVICE: &str = "10.99.0.1:80/tcp";
const NODE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const DAY: u32 = PAST_OWNER_SECONDS;

/// An edge with small tables.
struct Edge {
    tables: Tables,
    _loaded: Loaded,
}

/// A slot's owner and its past owners, by the last bytes of their addresses.
type Members = (u8, BTreeSet<u8>);

fn key() -> ServiceKey {
    SERVICE.parse().unwrap()
}

fn pod(number: u8) -> BackendSpec {
    let address = Ipv4Addr::new(10, 244, 0, number);
    BackendSpec::pod(NODE.into(), (address, 8080).into(), 1)
}

fn spec(pods: &[u8], log2: Option<u8>) -> ServiceSpec {
    ServiceSpec {
        log2_slots: log2,
        backends: pods.iter().copied().map(pod).collect(),
        ..ServiceSpec::default()
    }
}

fn number(backend: &BackendKey) -> u8 {
    let address = backend.pod.unwrap().ip().to_string();
    address.rsplit('.').next().unwrap().parse().unwrap()
}

impl Edge {
    fn new() -> Self {
        let sizes = [
            (map::SERVICE, 16),
            (map::SERVICE_TRAFFIC, 16),
            (map::NEXTHOPS, 16),
            (map::LUT, 1 << 12),
            (map::HISTORY, 1 << 12),
            (map::BACKENDS, 64),
            (map::BACKEND_TRAFFIC, 64),
        ];
        let loader = Loader::unpinned().object(stubs());
        let sized = sizes.into_iter().fold(loader, |loader, (name, size)| {
            loader.max_entries(name, size)
        });
        let loaded = sized.load().unwrap();
        Self {
            tables: Tables::open(&loaded).unwrap(),
            _loaded: loaded,
        }
    }

    fn put(&mut self, pods: &[u8], log2: u8) {
        let spec = spec(pods, Some(log2));
        self.tables.put_service(key(), &spec).unwrap();
    }

    fn told(&self) -> SlotOwners {
        let told = self.tables.slot_owners(&key()).unwrap();
        assert!(told.is_consistent(), "{told:?}");
        told
    }

    fn take(&mut self, told: &SlotOwners) -> TakenOwners {
        self.tables.take_slot_owners(&key(), told, 1, |_| true)
    }

    fn members(&self) -> Vec<Members> {
        let told = self.told();
        let name = |index: u32| number(&told.backends[index as usize]);
        let slots = told.slots.iter().map(|slot| {
            let list = slot.past.map(|list| &told.lists[list as usize]);
            let past = list.into_iter().flatten();
            let past = past.map(|former| name(former.backend));
            (slot.owner.map_or(0, name), past.collect())
        });
        slots.collect()
    }
}

#[test]
fn owner_of_another_edge_becomes_a_past_owner_as_of_now() {
    let (mut one, mut other) = (Edge::new(), Edge::new());
    one.put(&[1], 0);
    other.put(&[2], 0);
    let taken = one.take(&other.told());
    assert_eq!(
        taken,
        TakenOwners {
            slots: 1,
            left_out: 0
        }
    );
    assert_eq!(one.members(), [(1, [2].into())]);
    let told = one.told();
    let seconds_ago = told.lists[0][0].seconds_ago;
    assert!((1..5).contains(&seconds_ago), "{seconds_ago}");
    assert_eq!(one.take(&other.told()).slots, 0, "it is known now");

    other.put(&[3], 0);
    other.put(&[1], 0);
    one.take(&other.told());
    assert_eq!(one.members(), [(1, [2, 3].into())]);
    other.take(&one.told());
    assert_eq!(other.members(), one.members());
}

#[test]
fn past_owner_lives_by_its_own_moment_however_often_it_is_told() {
    let (mut one, mut other) = (Edge::new(), Edge::new());
    one.put(&[1], 0);
    one.put(&[2], 0);
    other.put(&[2], 0);
    let begin = second_now();
    for second in (begin..begin + DAY - LAST_SECONDS).step_by(5_000) {
        let told = one.tables.slot_owners_at(&key(), second).unwrap();
        other
            .tables
            .take_slot_owners_at(&key(), &told, second, |_| true);
        let told = other.tables.slot_owners_at(&key(), second).unwrap();
        one.tables
            .take_slot_owners_at(&key(), &told, second, |_| true);
    }
    assert_eq!(one.members(), [(2, [1].into())]);
    assert_eq!(other.members(), one.members());
    for edge in [&mut one, &mut other] {
        let run = edge.tables.service(&key()).unwrap().run;
        let list = edge.tables.list_of(run.base).unwrap();
        assert!(list[0].second() <= begin, "{list:?} {begin}");
    }
    // What is as good as over is not taken.
    let mut third = Edge::new();
    third.put(&[2], 0);
    let late = begin + DAY - LAST_SECONDS;
    let told = one.tables.slot_owners_at(&key(), late).unwrap();
    let taken = third
        .tables
        .take_slot_owners_at(&key(), &told, late, |_| true);
    assert_eq!(taken.slots, 0);
    third.tables.reclaim();
    assert_eq!(third.tables.fill().backends.used, 1);
}

#[test]
fn owner_that_another_edge_keeps_gets_a_new_moment_now_and_then() {
    let (mut one, mut other) = (Edge::new(), Edge::new());
    one.put(&[1], 0);
    other.put(&[2], 0);
    let told = other.told();
    let begin = second_now();
    let mut take = |second| {
        let taken = one
            .tables
            .take_slot_owners_at(&key(), &told, second, |_| true);
        taken.slots
    };
    assert_eq!(take(begin), 1);
    assert_eq!(take(begin + REFRESH_SECONDS - 1), 0);
    assert_eq!(take(begin + REFRESH_SECONDS), 1);
}

#[test]
fn tables_of_other_lengths_tell_the_same_part() {
    let (mut short, mut long) = (Edge::new(), Edge::new());
    short.put(&[1, 2], 2);
    long.put(&[2, 3, 4], 4);
    let (before, others) = (short.members(), long.members());
    short.take(&long.told());
    long.take(&Edge::told(&short));
    for (slot, (owner, past)) in short.members().into_iter().enumerate() {
        let part = &others[slot * 4..slot * 4 + 4];
        let mut expected: BTreeSet<u8> = part.iter().map(|(owner, _)| *owner).collect();
        expected.remove(&owner);
        assert_eq!((owner, past), (before[slot].0, expected), "slot {slot}");
    }
    for (slot, (owner, past)) in long.members().into_iter().enumerate() {
        let former = before[slot / 4].0;
        assert_eq!(past.contains(&former), former != owner, "slot {slot}");
    }
}

#[test]
fn services_that_edges_do_not_share_are_not_told() {
    let mut edge = Edge::new();
    let whole = spec(&[1, 2], None);
    let local = ServiceSpec {
        traffic_policy: TrafficPolicy::Local,
        ..whole.clone()
    };
    let node_port = ServiceSpec {
        node_port: true,
        ..whole.clone()
    };
    let hinted = ServiceSpec {
        hinted: true,
        ..whole.clone()
    };
    for (service, spec, is_told) in [
        (SERVICE, &whole, true),
        (SERVICE, &local, false),
        (SERVICE, &node_port, false),
        (SERVICE, &hinted, false),
        ("0.0.0.0:30080/tcp", &whole, false),
        ("10.99.0.1:80/udp", &whole, true),
    ] {
        let key = service.parse().unwrap();
        edge.tables.put_service(key, spec).unwrap();
        assert_eq!(
            edge.tables.slot_owners(&key).is_some(),
            is_told,
            "{service}"
        );
        let mut other = Edge::new();
        other.put(&[3], 0);
        let taken = edge
            .tables
            .take_slot_owners(&key, &other.told(), 1, |_| true);
        assert_eq!(taken.slots > 0, is_told, "{service}");
        edge.tables.remove_service(&key).unwrap();
    }
    assert_eq!(edge.tables.slot_owners(&key()), None);
}

#[test]
fn service_with_other_owners_past_owners_or_sharing_is_another_one() {
    let (mut one, mut other) = (Edge::new(), Edge::new());
    one.put(&[1, 2], 3);
    let installed = |edge: &Edge| edge.tables.service(&key()).unwrap().clone();
    let first = installed(&one);
    one.put(&[1, 2], 3);
    assert_eq!(installed(&one), first);

    let mut spec = spec(&[1, 2], Some(3));
    spec.backends[0].weight = 3;
    one.tables.put_service(key(), &spec).unwrap();
    let reweighted = installed(&one);
    assert_ne!(reweighted, first);

    other.put(&[3], 3);
    one.take(&other.told());
    let told = installed(&one);
    assert_ne!(told, reweighted);
    one.take(&other.told());
    assert_eq!(installed(&one), told);

    spec.hinted = true;
    one.tables.put_service(key(), &spec).unwrap();
    let hinted = installed(&one);
    assert_ne!(hinted, told);
    let late = second_now() + DAY + 60;
    one.tables.expire_past_owners_at(late);
    assert_ne!(installed(&one), hinted);

    one.tables.remove_service(&key()).unwrap();
    one.put(&[1, 2], 3);
    assert_ne!(installed(&one), first, "its slots may be others");
}

#[test]
fn backends_of_unknown_nodes_and_other_families_are_left_out() {
    let (mut one, mut other) = (Edge::new(), Edge::new());
    one.put(&[1], 0);
    other.put(&[2], 0);
    other.put(&[3], 0);
    let told = other.told();
    let taken = one.tables.take_slot_owners(&key(), &told, 1, |_| false);
    assert_eq!(
        taken,
        TakenOwners {
            slots: 0,
            left_out: 2
        }
    );
    let mut forged = told.clone();
    forged.backends[0].pod = Some("[fd00::1]:80".parse().unwrap());
    forged.backends[1].pod = None;
    let taken = one.take(&forged);
    assert_eq!(
        taken,
        TakenOwners {
            slots: 0,
            left_out: 2
        }
    );
    one.tables.reclaim();
    assert_eq!(one.tables.fill().backends.used, 1, "none has an entry");
}

#[test]
fn owners_for_which_the_tables_have_no_room_are_left_out() {
    let mut one = Edge::new();
    one.put(&[1, 2], 6);
    let mut told = one.told();
    for number in 3..=100 {
        let backend = pod(number).key(Default::default());
        told.backends.push(backend);
    }
    told.backends.sort_unstable();
    let count = u32::try_from(told.backends.len()).unwrap();
    for (slot, index) in told.slots.iter_mut().zip((0..count).cycle()) {
        slot.owner = Some(index);
    }
    assert!(told.is_consistent());
    let taken = one.take(&told);
    assert!(taken.left_out >= 37 && taken.slots > 20, "{taken:?}");
    let others: Vec<u8> = (101..=150).collect();
    one.put(&others, 6);
    assert!(
        one.members()
            .iter()
            .all(|(owner, _)| others.contains(owner))
    );
}

#[test]
fn what_does_not_fit_together_is_not_consistent() {
    let mut edge = Edge::new();
    edge.put(&[1, 2], 1);
    edge.put(&[2, 3], 1);
    edge.put(&[3, 4], 1);
    let good = edge.told();
    type Forge = fn(&mut SlotOwners);
    let forgeries: [Forge; 11] = [
        |told| told.log2 = 2,
        |told| told.log2 = 21,
        |told| told.slots.clear(),
        |told| told.backends.reverse(),
        |told| told.backends = vec![told.backends[0]; 4],
        |told| told.lists[0].clear(),
        |told| told.lists[0] = vec![told.lists[0][0]; 15],
        |told| told.lists[0][0].backend = 4,
        |told| told.slots[0].owner = Some(4),
        |told| told.slots[0].past = Some(7),
        |told| told.needs = vec![(21, 0)],
    ];
    for forge in forgeries {
        let mut forged = good.clone();
        forge(&mut forged);
        assert!(!forged.is_consistent(), "{forged:?}");
    }
}

#[test]
fn length_of_a_larger_set_is_taken_and_kept() {
    let (mut one, mut other) = (Edge::new(), Edge::new());
    let many: Vec<u8> = (1..=20).collect();
    let put = |edge: &mut Edge, pods: &[u8]| {
        edge.tables.put_service(key(), &spec(pods, None)).unwrap();
    };
    put(&mut one, &many[..2]);
    put(&mut other, &many);
    put(&mut other, &many[..2]);
    let length = |edge: &Edge| edge.tables.service(&key()).unwrap().run.log2;
    assert_eq!((length(&one), length(&other)), (8, 11));
    one.take(&other.told());
    assert_eq!(length(&one), 11);
    other.take(&one.told());
    assert_eq!(one.members(), other.members());
    put(&mut one, &many[..3]);
    put(&mut other, &many[..3]);
    assert_eq!(one.members(), other.members());
    for edge in [&mut one, &mut other] {
        edge.tables.expire_needs_at(second_now() + DAY + 1);
        assert_eq!(length(edge), 8);
    }
}

/// Numbers that look random, the same for each seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % end
    }
}

/// Two edges see the same changes, each some of them together, and now and then exchange what they have.
#[test]
fn edges_with_any_histories_agree_after_an_exchange() {
    const HISTORIES: u64 = 10_000;
    let (mut one, mut other) = (Edge::new(), Edge::new());
    let mut differed = BTreeMap::<bool, u64>::new();
    for seed in 0..HISTORIES {
        let mut random = Numbers(seed);
        one.put(&[1, 2, 3], 3);
        other.put(&[1, 2, 3], 3);
        let changes = 2 + random.below(5);
        for _ in 0..changes {
            let pods: Vec<u8> = (1..=6).filter(|_| random.below(2) == 0).collect();
            let log2 = if random.below(4) == 0 { 4 } else { 3 };
            for edge in [&mut one, &mut other] {
                if random.below(3) > 0 {
                    edge.put(&pods, log2);
                }
            }
            if random.below(4) == 0 {
                one.take(&other.told());
            }
        }
        let last = [u8::try_from(1 + seed % 6).unwrap(), 7];
        one.put(&last, 3);
        other.put(&last, 3);
        *differed
            .entry(one.members() != other.members())
            .or_default() += 1;
        one.take(&other.told());
        other.take(&one.told());
        assert_eq!(one.members(), other.members(), "history {seed}");
        for edge in [&mut one, &mut other] {
            edge.tables.remove_service(&key()).unwrap();
        }
    }
    assert!(differed[&true] > HISTORIES / 2, "{differed:?}");
}
