//! The tables as user space sees them: adding, changing, removing, adopting.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use aya::maps::{Array, HashMap, Map};
use fastpath::{
    load::{Loaded, Loader},
    nexthop::{NextHop, Resolution},
    tables::{
        Addresses, BackendKey, BackendSpec, ForwardMode, NatSettings, Outcome, Protocol,
        ServiceKey, ServiceSpec, Settings, TableError, Tables,
    },
};
use xdp_prog::abi::{
    AddressKey, BACKEND_V4, Backend, Bucket, Config, IndexEntry, IndexKey, PathReport,
    ServiceKeyV4, Slot, SlotPair, Tag, Traffic, map,
};
use xdp_prog::reason::PassReason;

use crate::example::{
    TestPins, address, array, nobodys, node, pod_count, pods, resolved, service, sized, small,
    spec, spec_for, stray_pod,
};

#[test]
fn a_service_leads_to_its_backends_in_proportion_to_their_weights() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let change = tables
        .put_service(key, &spec(&[("10.0.0.1", 1), ("10.0.0.2", 3)]))
        .unwrap();
    assert!(change.new_table);

    let installed = tables.services().next().unwrap().1;
    let slots = tables.slots_by_backend(installed);
    assert_eq!(slots[&node("10.0.0.1")], 64);
    assert_eq!(slots[&node("10.0.0.2")], 192);
}

#[test]
fn outer_headers_leave_from_the_source_that_is_configured() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
    tables
        .set_next_hop(address("10.0.0.1"), resolved(7))
        .unwrap();
    // Of the route.
    assert_eq!(outer_source(&tables, 4711), [10, 0, 0, 100]);
    let given = Settings {
        source_v4: Some([192, 0, 2, 9].into()),
        ..Settings::default()
    };
    tables.set_settings(given).unwrap();
    assert_eq!(outer_source(&tables, 4711), [192, 0, 2, 9]);

    let spread = Settings {
        prefix_v4: Some("10.9.8.0/22".parse().unwrap()),
        ..given
    };
    tables.set_settings(spread).unwrap();
    let sources: BTreeSet<[u8; 4]> = (1..=50).map(|port| outer_source(&tables, port)).collect();
    assert!(sources.len() > 40, "{sources:?}");
    for source in &sources {
        assert_eq!(source[..2], [10, 9], "{source:?}");
        assert!((8..12).contains(&source[2]), "{source:?}");
    }
    assert_eq!(outer_source(&tables, 1), outer_source(&tables, 1));
    tables
        .set_next_hop(address("10.0.0.1"), resolved(8))
        .unwrap();
    assert!(sources.contains(&outer_source(&tables, 1)));
    tables.set_settings(Settings::default()).unwrap();
    assert_eq!(outer_source(&tables, 1), [10, 0, 0, 100]);
}

/// The source of the outer IPv4 header that a client's packet gets.
fn outer_source(tables: &Tables, port: u16) -> [u8; 4] {
    let key = service("10.99.0.1:80/tcp");
    let from = SocketAddr::new(address("192.0.2.1"), port);
    let after = tables.trace(&key, from, 0).unwrap().after;
    after[26..30].try_into().unwrap()
}

#[test]
fn a_service_without_backends_refuses() {
    let (_loaded, mut tables) = small();
    let key = service("[fd00:99::1]:53/udp");
    tables.put_service(key, &spec(&[])).unwrap();
    let explanation = tables
        .which(&key, "[2001:db8::1]:9".parse().unwrap(), 0)
        .unwrap();
    assert_eq!(explanation.verdict, Outcome::Reply("port_unreachable"));
}

#[test]
fn the_same_specification_changes_nothing() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let wanted = spec(&[("10.0.0.1", 1), ("10.0.0.2", 1)]);
    tables.put_service(key, &wanted).unwrap();
    let again = tables.put_service(key, &wanted).unwrap();
    assert_eq!((again.slots, again.new_table), (0, false));
}

#[test]
fn removing_a_service_gives_everything_back() {
    let (_loaded, mut tables) = small();
    let before = tables.fill();
    let key = service("10.99.0.1:80/tcp");
    tables
        .put_service(key, &spec(&[("10.0.0.1", 1), ("10.0.0.2", 1)]))
        .unwrap();
    tables
        .set_next_hop(address("10.0.0.1"), resolved(7))
        .unwrap();
    assert_ne!(tables.fill(), before);

    assert!(tables.remove_service(&key).unwrap());
    assert!(!tables.remove_service(&key).unwrap());
    tables.retain_next_hops(&BTreeSet::new());
    tables.reclaim();
    assert_eq!(tables.fill(), before);
}

#[test]
fn a_full_arena_refuses_the_newest_and_keeps_the_rest() {
    let (_loaded, mut tables) = small();
    let wanted = spec(&[("10.0.0.1", 1), ("10.0.0.2", 1)]);
    let mut accepted = 0;
    let refused = loop {
        let key = service(&format!("10.99.0.1:{}/tcp", 1000 + accepted));
        match tables.put_service(key, &wanted) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, TableError::ArenaFull { wanted: 256, .. }),
        "{refused}"
    );
    let message = refused.to_string();
    assert!(
        message.contains(&format!("10.99.0.1:{}/tcp", 1000 + accepted)),
        "{message}"
    );
    assert!(message.contains("lut_arena_mib"), "{message}");
    assert_eq!(
        accepted, 15,
        "16 runs of 256 fit, but for the one that holds slot 0"
    );
    assert_eq!(tables.services().count(), 15);
    let users: BTreeSet<u32> = tables
        .backends()
        .map(|(_, backend)| backend.services)
        .collect();
    assert_eq!(
        users,
        BTreeSet::from([15]),
        "the refused service holds no backend"
    );
}

#[test]
fn bad_specifications_are_refused_and_name_the_service() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
    let twice = spec(&[("10.0.0.1", 1), ("10.0.0.1", 1)]);
    let crowded = ServiceSpec {
        log2_slots: Some(0),
        ..spec(&[("10.0.0.1", 1), ("10.0.0.2", 1)])
    };
    for bad in [twice, crowded] {
        let error = tables.put_service(key, &bad).unwrap_err();
        assert!(error.to_string().contains("10.99.0.1:80/tcp"), "{error}");
        assert_eq!(*tables.specs()[&key], spec(&[("10.0.0.1", 1)]));
        assert_eq!(tables.backends().count(), 1);
    }
}

#[test]
fn a_backend_without_weight_keeps_its_entry_and_has_no_slot() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let wanted = spec(&[("10.0.0.1", 0), ("10.0.0.2", 1)]);
    tables.put_service(key, &wanted).unwrap();
    assert_eq!(tables.backends().count(), 2);
    let slots = tables.slots_by_backend(tables.service(&key).unwrap());
    let owners: Vec<BackendKey> = slots.into_keys().collect();
    assert_eq!(owners, [node("10.0.0.2")]);
}

#[test]
fn a_weight_too_small_for_the_table_names_the_backend() {
    let (_loaded, mut tables) = small();
    let uneven = spec(&[("10.0.0.2", 1000), ("10.0.0.1", 1)]);
    let error = tables
        .put_service(service("10.99.0.1:80/tcp"), &uneven)
        .unwrap_err();
    assert!(
        matches!(error, TableError::WeightTooSmall { backend, slots: 256, .. } if backend == node("10.0.0.1")),
        "{error}"
    );
}

#[test]
fn every_change_ends_what_programs_have_noted() {
    let (loaded, mut tables) = small();
    let config = array::<Config>(&loaded, map::CONFIG);
    let mut before = config.get(&0, 0).unwrap().notes_generation;
    let key = service("10.99.0.1:80/tcp");
    let changes: [&dyn Fn(&mut Tables); 6] = [
        &|tables| tables.set_addresses(Addresses::default().into()).unwrap(),
        &|tables| tables.set_trusted_edges(&BTreeSet::new()).unwrap(),
        &|tables| tables.set_settings(Settings::default()).unwrap(),
        &|tables| {
            tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
        },
        &|tables| {
            tables.remove_service(&key).unwrap();
        },
        &|tables| *tables = Tables::open(&loaded).unwrap(),
    ];
    for (index, change) in changes.iter().enumerate() {
        change(&mut tables);
        let after = config.get(&0, 0).unwrap().notes_generation;
        assert_ne!(after, before, "change {index}");
        before = after;
    }
}

#[test]
fn ports_of_nat_mode_are_asked_about_while_a_service_has_one() {
    let (loaded, mut tables) = small();
    let config = array::<Config>(&loaded, map::CONFIG);
    let only_nat = || config.get(&0, 0).unwrap().nat_only_ports;
    let nat = NatSettings {
        first_port: 30_000,
        ports: 100,
        ..NatSettings::default()
    };
    let settings = Settings {
        nat: Some(nat),
        ..Settings::default()
    };
    tables.set_settings(settings).unwrap();
    for outside in ["10.99.0.1:29999/tcp", "10.99.0.1:30100/tcp"] {
        let outside = service(outside);
        tables
            .put_service(outside, &spec(&[("10.0.0.1", 1)]))
            .unwrap();
        assert_eq!(only_nat(), 100, "{outside}");
    }
    let among = service("10.99.0.1:30099/tcp");
    tables
        .put_service(among, &spec(&[("10.0.0.1", 1)]))
        .unwrap();
    assert_eq!(only_nat(), 0);
    let mut tables = Tables::open(&loaded).unwrap();
    tables.set_settings(settings).unwrap();
    assert_eq!(only_nat(), 0, "the next agent finds the service");
    tables.remove_service(&among).unwrap();
    tables.set_settings(settings).unwrap();
    assert_eq!(only_nat(), 100);
}

#[test]
fn addresses_and_edges_become_exactly_what_was_asked() {
    let (_loaded, mut tables) = small();
    let own = BTreeSet::from([address("10.0.0.9")]);
    let addresses = Addresses {
        vips: BTreeSet::from([address("10.99.0.1"), address("fd00:99::1")]),
        shared: BTreeSet::from([address("192.0.2.1"), address("10.0.0.9")]),
        local: own.clone(),
        node_ports: own.clone(),
        nat: own,
        inner: BTreeSet::from([address("192.0.2.1"), address("192.0.2.2")]),
    };
    let fewer = Addresses {
        vips: BTreeSet::from([address("10.99.0.2")]),
        ..Addresses::default()
    };
    for wanted in [addresses, fewer] {
        let wanted = Arc::new(wanted);
        tables.set_addresses(Arc::clone(&wanted)).unwrap();
        assert_eq!(tables.addresses(), wanted);
    }

    for prefixes in [
        &["10.0.0.0/8", "fd00::/16", "192.0.2.1/32"][..],
        &["fd00::1/128"],
        &["0.0.0.0/0"],
    ] {
        let wanted: BTreeSet<_> = prefixes.iter().map(|net| net.parse().unwrap()).collect();
        tables.set_trusted_edges(&wanted).unwrap();
        assert_eq!(tables.trusted_edges(), wanted);
    }

    let with_host_bits = BTreeSet::from(["10.0.0.9/24".parse().unwrap()]);
    for _ in 0..2 {
        tables.set_trusted_edges(&with_host_bits).unwrap();
        let kept = BTreeSet::from(["10.0.0.0/24".parse().unwrap()]);
        assert_eq!(tables.trusted_edges(), kept);
    }
}

#[test]
fn another_agent_adopts_ids_runs_and_slots() {
    let pins = TestPins::new("adoption");
    let settings = Settings {
        hash_seed: 42,
        ..Settings::default()
    };
    let keys = [service("10.99.0.1:80/tcp"), service("[fd00:99::1]:80/tcp")];
    let wanted = spec(&[("10.0.0.1", 1), ("10.0.0.2", 2), ("fd00::3", 1)]);
    let (left, owners) = {
        let loaded = pins.load();
        let mut tables = Tables::open(&loaded).unwrap();
        tables.set_settings(settings).unwrap();
        for key in keys {
            tables.put_service(key, &wanted).unwrap();
        }
        tables
            .set_next_hop(address("10.0.0.1"), resolved(7))
            .unwrap();
        (installed(&tables), slots(&tables))
    };

    let loaded = pins.load();
    let mut tables = Tables::open(&loaded).unwrap();
    assert_eq!(installed(&tables), left);
    assert_eq!(slots(&tables), owners);
    let explanation = tables
        .which(&keys[0], "192.0.2.1:1".parse().unwrap(), 0)
        .unwrap();
    assert!(explanation.choice.is_some());
    for key in keys {
        let change = tables.put_service(key, &wanted).unwrap();
        assert_eq!((change.slots, change.new_table), (0, false), "{key}");
    }
    // What was adopted is not given out a second time.
    tables
        .put_service(service("10.99.0.1:81/tcp"), &spec(&[("10.0.0.9", 1)]))
        .unwrap();
    let ids: BTreeSet<u32> = tables.backends().map(|(_, backend)| backend.id).collect();
    assert_eq!(ids.len(), 4);
    let bases: BTreeSet<u32> = tables
        .services()
        .map(|(_, service)| service.run.base)
        .collect();
    assert_eq!(bases.len(), 3);
}

#[test]
fn another_agent_adopts_pods_and_policies() {
    let pins = TestPins::new("pods");
    let key = service("10.99.0.1:80/tcp");
    let nat = service("10.99.0.1:81/tcp");
    let wanted = ServiceSpec {
        source_ranges: BTreeSet::from(["192.0.2.0/24".parse().unwrap()]),
        affinity: Some(9),
        ..pods(&[("10.0.0.1", "10.244.0.5:80"), ("10.0.0.2", "10.244.1.6:80")])
    };
    let by_nat = ServiceSpec {
        mode: ForwardMode::Nat,
        backends: vec![BackendSpec::nat("10.0.0.7:8080".parse().unwrap(), 1)],
        ..ServiceSpec::default()
    };
    let left = {
        let loaded = pins.load();
        let mut tables = Tables::open(&loaded).unwrap();
        tables
            .set_next_hop(address("10.0.0.1"), Resolution::Local)
            .unwrap();
        tables.put_service(key, &wanted).unwrap();
        tables.put_service(nat, &by_nat).unwrap();
        (installed(&tables), slots(&tables), tables.fill())
    };
    assert_eq!((left.2.pods.used, left.2.source_ranges.used), (1, 1));

    let loaded = pins.load();
    // What a killed agent may leave under an id that is free.
    stray_pod(&loaded);
    let mut tables = Tables::open(&loaded).unwrap();
    assert_eq!((installed(&tables), slots(&tables), tables.fill()), left);
    assert_eq!(pod_count(&loaded), 1);
    let modes: Vec<ForwardMode> = tables.services().map(|(_, service)| service.mode).collect();
    assert_eq!(modes, [ForwardMode::Ipip, ForwardMode::Nat]);
    for (key, spec) in [(key, &wanted), (nat, &by_nat)] {
        let change = tables.put_service(key, spec).unwrap();
        assert_eq!((change.slots, change.new_table), (0, false), "{key}");
    }
    assert_eq!(tables.fill(), left.2);

    let open = ServiceSpec {
        source_ranges: BTreeSet::new(),
        ..wanted
    };
    tables.put_service(key, &open).unwrap();
    assert_eq!(tables.fill().source_ranges.used, 0);
    for key in [key, nat] {
        tables.remove_service(&key).unwrap();
    }
    // Under other rules it has another id; what lies under the old one waits for packets that have met it.
    tables.reclaim();
    assert_eq!(pod_count(&loaded), 0);
}

#[test]
fn source_ranges_of_the_other_family_let_nobody_in() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let wanted = spec_for("192.0.2.0/24", &[("10.0.0.1", 1)]);
    tables.put_service(key, &wanted).unwrap();
    let verdict = |tables: &Tables, from: &str| {
        tables
            .which(&key, from.parse().unwrap(), 0)
            .unwrap()
            .verdict
    };
    assert_eq!(
        verdict(&tables, "192.0.2.1:1"),
        Outcome::Drop("next_hop_unresolved")
    );
    assert_eq!(
        verdict(&tables, "192.0.3.1:1"),
        Outcome::Drop("source_range")
    );
    let other = ServiceSpec {
        source_ranges: BTreeSet::from(["2001:db8::/32".parse().unwrap()]),
        ..spec(&[("10.0.0.1", 1)])
    };
    tables.put_service(key, &other).unwrap();
    assert_eq!(
        verdict(&tables, "192.0.2.1:1"),
        Outcome::Drop("source_range")
    );
    tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
    assert_eq!(
        verdict(&tables, "192.0.3.1:1"),
        Outcome::Drop("next_hop_unresolved")
    );
}

#[test]
fn clients_with_affinity_keep_their_backend_whatever_their_port() {
    let (_loaded, mut tables) = small();
    let keys = [service("10.99.0.1:80/tcp"), service("10.99.0.2:30080/tcp")];
    let wanted = ServiceSpec {
        affinity: Some(9),
        ..spec(&[("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)])
    };
    for key in keys {
        tables.put_service(key, &wanted).unwrap();
    }
    for client in 1..40 {
        let chosen: BTreeSet<_> = keys
            .iter()
            .flat_map(|key| [1024, 1025, 40_000].map(|port| (key, port)))
            .map(|(key, port)| {
                let from = SocketAddr::new(address(&format!("192.0.2.{client}")), port);
                tables.which(key, from, 0).unwrap().choice.unwrap().backend
            })
            .collect();
        assert_eq!(chosen.len(), 1, "client {client}");
    }
}

#[test]
fn edge_macs_become_exactly_what_was_asked() {
    let (_loaded, mut tables) = small();
    for wanted in [
        vec![[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        vec![[2, 0, 0, 0, 0, 3]],
        vec![],
    ] {
        let wanted = BTreeSet::from_iter(wanted);
        tables.set_edge_macs(&wanted).unwrap();
        assert_eq!(tables.edge_macs(), wanted);
    }
}

#[test]
fn counters_begin_at_zero_where_a_killed_agent_used_the_id() {
    let pins = TestPins::new("counters");
    let loaded = pins.load();
    let key = service("10.99.0.1:80/tcp");
    let mut tables = Tables::open(&loaded).unwrap();
    tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
    count_for_all_ids(&loaded, 3);
    assert_ne!(
        tables.counters().unwrap().services,
        [(key, Traffic::default())]
    );
    tables.remove_service(&key).unwrap();
    drop(tables);

    let mut tables = Tables::open(&loaded).unwrap();
    let key = service("10.99.0.2:80/tcp");
    tables.put_service(key, &spec(&[("10.0.0.2", 1)])).unwrap();
    let counters = tables.counters().unwrap();
    assert_eq!(counters.services, [(key, Traffic::default())]);
    let backend = nobodys("10.0.0.2");
    assert_eq!(counters.backends, [(backend, Traffic::default())]);
}

#[test]
fn who_reads_beside_takes_no_counter_for_that_of_another_service_that_got_its_id() {
    let (loaded, mut tables) = small();
    let reader = tables.reader(&loaded).unwrap();
    let [gone, changed, new] =
        ["10.99.0.1:80/tcp", "10.99.0.2:80/tcp", "10.99.0.3:80/tcp"].map(service);
    tables.put_service(gone, &spec(&[("10.0.0.1", 1)])).unwrap();
    tables
        .put_service(changed, &spec(&[("10.0.0.2", 1)]))
        .unwrap();
    let view = tables.publish();
    count_for_all_ids(&loaded, 7);
    let cpus = u64::from(fastpath::cpus::possible().unwrap());
    let all = Traffic {
        packets: 7 * cpus,
        bytes: 700 * cpus,
    };
    assert_eq!(
        reader.service_traffic(&view),
        BTreeMap::from([(gone, all), (changed, all)])
    );
    let slots = reader.slots_by_id(view.service(&gone).unwrap());
    let backend = view.backend(&nobodys("10.0.0.1")).unwrap();
    let length = view.service(&gone).unwrap().run.length();
    assert_eq!(slots, [(backend.id, length)].into());

    // By another mode a service gets another id; the ids of both are given out again.
    let by_l2 = ServiceSpec {
        mode: ForwardMode::L2dsr,
        ..spec(&[("10.0.0.2", 1)])
    };
    tables.put_service(changed, &by_l2).unwrap();
    tables.remove_service(&gone).unwrap();
    tables.reclaim();
    tables.put_service(new, &spec(&[("10.0.0.3", 1)])).unwrap();
    let old = |key| view.service(key).unwrap().id;
    assert_eq!(tables.service(&new).unwrap().id, old(&gone));
    assert_ne!(tables.service(&changed).unwrap().id, old(&changed));
    assert_eq!(
        reader.service_traffic(&view),
        BTreeMap::from([(changed, all)]),
        "what was counted goes on under the other id"
    );
    assert_eq!(
        reader.backend_traffic(&view),
        BTreeMap::from([(nobodys("10.0.0.2"), all)])
    );
    assert_eq!(view.services().len(), 2, "a view stays as it is");
    let fill = tables.publish().fill();
    assert_eq!(fill, tables.fill());
    assert_eq!(fill.services.used, 2);
}

/// Has every CPU count so many packets, of 100 bytes, for every service and backend.
fn count_for_all_ids(loaded: &Loaded, packets: u64) {
    for traffic in [map::SERVICE_TRAFFIC, map::BACKEND_TRAFFIC] {
        let map = Map::Array(loaded.map(traffic).unwrap());
        let mut map = Array::<_, Traffic>::try_from(map).unwrap();
        let counted = Traffic {
            packets,
            bytes: 100 * packets,
        };
        for place in 0..map.len() {
            map.set(place, counted, 0).unwrap();
        }
    }
}

#[test]
fn a_change_that_a_killed_agent_began_is_finished() {
    const NEW_BACKEND: u32 = 40;
    let pins = TestPins::new("change");
    let loaded = pins.load();
    let key = service("10.99.0.1:80/tcp");
    let mut tables = Tables::open(&loaded).unwrap();
    tables
        .put_service(key, &spec(&[("10.0.0.1", 1), ("10.0.0.2", 1)]))
        .unwrap();
    let base = tables.services().next().unwrap().1.run.base;
    drop(tables);
    let entry = Backend {
        address: [10, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        flags: BACKEND_V4,
        ..Backend::default()
    };
    array(&loaded, map::BACKENDS)
        .set(NEW_BACKEND, entry, 0)
        .unwrap();
    let owned = SlotPair([Slot(NEW_BACKEND); 2]);
    for pair in base / 2..base / 2 + 5 {
        array(&loaded, map::LUT).set(pair, owned, 0).unwrap();
    }

    let mut tables = Tables::open(&loaded).unwrap();
    tables
        .put_service(key, &spec(&[("10.0.0.1", 1), ("10.0.0.3", 1)]))
        .unwrap();
    let shares = vec![(node("10.0.0.1"), 128), (node("10.0.0.3"), 128)];
    assert_eq!(slots(&tables), [(key, shares)]);
    let id = |address| {
        let mut backends = tables.backends();
        let found = backends.find(|(backend, _)| backend.key == node(address));
        found.map(|(_, backend)| backend.id)
    };
    // Who has ceased to own a slot keeps its entry.
    let ids = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(id);
    assert_eq!(ids, [Some(1), Some(2), Some(NEW_BACKEND)]);
}

#[test]
fn services_whose_buckets_are_full_are_found_all_the_same() {
    let pins = TestPins::new("overflow");
    // One bucket, with room for four.
    let load = || {
        let loader = sized(Loader::pinned(pins.0.clone()));
        loader.max_entries(map::SERVICE_INDEX, 1).load().unwrap()
    };
    let keys = [80, 81, 82, 83, 84, 85].map(|port| service(&format!("10.99.0.1:{port}/tcp")));
    let wanted = spec(&[("10.0.0.1", 1)]);
    let served = |tables: &Tables| -> Vec<ServiceKey> {
        let from: SocketAddr = "192.0.2.1:4711".parse().unwrap();
        let is_found = |key: &&ServiceKey| tables.which(key, from, 0).unwrap().choice.is_some();
        keys.iter().filter(is_found).copied().collect()
    };
    let aside = |tables: &Tables| tables.fill().service_overflow.used;
    {
        let loaded = load();
        let mut tables = Tables::open(&loaded).unwrap();
        for key in &keys[..4] {
            tables.put_service(*key, &wanted).unwrap();
        }
        assert_eq!(aside(&tables), 0);
        for key in &keys[4..] {
            tables.put_service(*key, &wanted).unwrap();
        }
        assert_eq!((served(&tables), aside(&tables)), (keys.to_vec(), 2));
    }
    let loaded = load();
    let mut tables = Tables::open(&loaded).unwrap();
    assert_eq!((served(&tables), aside(&tables)), (keys.to_vec(), 2));
    // Another rule, and so another id, from the overflow and from the bucket.
    let other = ServiceSpec {
        affinity: Some(7),
        ..wanted.clone()
    };
    for key in [keys[0], keys[5]] {
        tables.put_service(key, &other).unwrap();
    }
    assert_eq!((served(&tables), aside(&tables)), (keys.to_vec(), 2));
    for key in [keys[1], keys[4]] {
        tables.remove_service(&key).unwrap();
    }
    assert_eq!(aside(&tables), 1);
    let left = [keys[0], keys[2], keys[3], keys[5]];
    assert_eq!(served(&tables), left);
    // The place of a key that was removed, once no packet can look at it.
    tables.put_service(keys[4], &wanted).unwrap();
    assert_eq!(aside(&tables), 1);
    tables.put_service(keys[1], &wanted).unwrap();
    assert_eq!((served(&tables), aside(&tables)), (keys.to_vec(), 2));
}

#[test]
fn index_names_the_table_of_a_plain_service() {
    let pins = TestPins::new("plain");
    let loaded = pins.load();
    let key = service("10.99.0.1:80/tcp");
    let of_length = |log2| ServiceSpec {
        log2_slots: Some(log2),
        ..spec(&[("10.0.0.1", 1)])
    };
    let found = || {
        let index = array::<Bucket>(&loaded, map::SERVICE_INDEX);
        let buckets = (0..index.len()).map(|bucket| index.get(&bucket, 0).unwrap());
        let known = buckets.zip(0..).find_map(|(bucket, at)| {
            let way = bucket.keys.iter().position(|key| *key != 0)?;
            Some((at, way, bucket))
        });
        known.unwrap()
    };
    let named = |tables: &Tables| {
        let (_, way, bucket) = found();
        let place = bucket.entries[way].plain().unwrap();
        let run = tables.service(&key).unwrap().run;
        (place.base(), place.log2_length()) == (run.base, run.log2)
    };
    let mut tables = Tables::open(&loaded).unwrap();
    tables.put_service(key, &of_length(4)).unwrap();
    assert!(named(&tables));
    let (at, way, first) = found();
    tables.put_service(key, &of_length(5)).unwrap();
    assert!(named(&tables));
    drop(tables);
    // What an agent leaves that is killed before its last store.
    let (_, _, mut last) = found();
    assert_ne!(last.entries[way], first.entries[way]);
    last.entries[way] = first.entries[way];
    array::<Bucket>(&loaded, map::SERVICE_INDEX)
        .set(at, last, 0)
        .unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    assert!(named(&tables));
    let restricted = ServiceSpec {
        affinity: Some(7),
        ..of_length(5)
    };
    tables.put_service(key, &restricted).unwrap();
    let (_, way, bucket) = found();
    assert_eq!(bucket.entries[way].plain(), None);
    assert_eq!(bucket.entries[way].id(), tables.service(&key).unwrap().id);
}

#[test]
fn a_key_that_leads_to_another_services_entry_is_removed() {
    let pins = TestPins::new("contradiction");
    let loaded = pins.load();
    let key = service("10.99.0.1:80/tcp");
    let mut tables = Tables::open(&loaded).unwrap();
    tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
    let id = tables.services().next().unwrap().1.id;
    drop(tables);
    let keys = || {
        let index = array::<Bucket>(&loaded, map::SERVICE_INDEX);
        let buckets = (0..index.len()).map(|bucket| index.get(&bucket, 0).unwrap());
        let keys = buckets.flat_map(|bucket| bucket.keys);
        keys.filter(|key| *key != 0).count()
    };
    let mut index = array::<Bucket>(&loaded, map::SERVICE_INDEX);
    let mut bucket: Bucket = index.get(&0, 0).unwrap();
    let stray = ServiceKeyV4::new([10, 99, 0, 2], [0, 80], Protocol::Tcp.number());
    let way = bucket.keys.iter().position(|key| *key == 0).unwrap();
    (bucket.keys[way], bucket.entries[way]) = (IndexKey::v4(stray).0, IndexEntry::of_id(id));
    index.set(0, bucket, 0).unwrap();
    assert_eq!(keys(), 2);

    let tables = Tables::open(&loaded).unwrap();
    assert_eq!(
        tables.services().map(|(key, _)| *key).collect::<Vec<_>>(),
        [key]
    );
    assert_eq!(keys(), 1);
}

/// Opens an array map, to leave what an agent that is killed would.
type Slots = Vec<(ServiceKey, Vec<(BackendKey, u32)>)>;

fn slots(tables: &Tables) -> Slots {
    tables
        .services()
        .map(|(key, service)| (*key, tables.slots_by_backend(service).into_iter().collect()))
        .collect()
}

fn installed(tables: &Tables) -> Vec<(ServiceKey, u32, u32, u8)> {
    tables
        .services()
        .map(|(key, service)| (*key, service.id, service.run.base, service.run.log2))
        .collect()
}

/// Loads the object with an arena of 4096 slots.
/// What the program would note about a node.
fn says(loaded: &Loaded, node: &str, report: PathReport) {
    let key = match address(node) {
        IpAddr::V4(node) => AddressKey::v4(node.octets()),
        IpAddr::V6(node) => AddressKey::v6(node.octets()),
    };
    let paths = Map::HashMap(loaded.map(map::PATHS).unwrap());
    let mut paths: HashMap<_, AddressKey, PathReport> = HashMap::try_from(paths).unwrap();
    // The program writes to what is there.
    paths.insert(key, report, 2).unwrap();
    let reasons = Map::Array(loaded.map(map::REASONS).unwrap());
    let mut reasons: Array<_, u64> = Array::try_from(reasons).unwrap();
    let index = PassReason::PathMtu.index();
    let count = reasons.get(&index, 0).unwrap();
    reasons.set(index, count + 1, 0).unwrap();
}

#[test]
fn a_path_is_as_small_as_a_router_says_that_knows_the_tag() {
    let (loaded, mut tables) = small();
    let behind_a_router = |mtu| match resolved(7) {
        Resolution::Resolved(hop) => Resolution::Resolved(NextHop {
            via_gateway: true,
            mtu,
            ..hop
        }),
        other => other,
    };
    for (node, answer) in [
        ("10.0.0.1", behind_a_router(1500)),
        ("10.0.0.2", behind_a_router(1500)),
        ("fd00::1", behind_a_router(1500)),
        ("10.0.0.3", resolved(7)),
    ] {
        tables.set_next_hop(address(node), answer).unwrap();
    }
    let pods = [
        ("10.0.0.1", "10.244.0.5:80"),
        ("10.0.0.2", "10.244.1.6:80"),
        ("fd00::1", "[fd01::5]:80"),
    ];
    let pods = pods.map(|(node, pod)| BackendSpec::pod(address(node), pod.parse().unwrap(), 1));
    let spec = ServiceSpec {
        backends: pods[..2].to_vec(),
        ..ServiceSpec::default()
    };
    let spec_v6 = ServiceSpec {
        backends: pods[2..].to_vec(),
        ..ServiceSpec::default()
    };
    tables
        .put_service(service("10.99.0.1:80/tcp"), &spec)
        .unwrap();
    tables
        .put_service(service("[fd99::1]:80/tcp"), &spec_v6)
        .unwrap();
    tables.watch_paths().unwrap();
    assert!(tables.has_paths());
    let (tag, other) = (Tag(5), Tag(0x106));
    let mut learnt = |node: &str, mtu, length, tag| {
        says(&loaded, node, PathReport::new(mtu, length, tag));
        let smaller = tables.take_path_mtus().unwrap();
        assert_eq!(tables.take_path_mtus().unwrap(), [], "it is taken once");
        for (node, mtu) in &smaller {
            tables.set_path_mtu(*node, Some(*mtu)).unwrap();
        }
        smaller
    };
    // A tag of another node's pod, and a packet that is larger than any that was sent.
    assert_eq!(learnt("10.0.0.1", 1400, 1500, other), []);
    assert_eq!(learnt("10.0.0.1", 1400, 1501, tag), []);
    let node = address("10.0.0.1");
    assert_eq!(learnt("10.0.0.1", 1400, 1500, tag), [(node, 1400)]);
    assert_eq!(learnt("10.0.0.1", 1400, 1500, tag), [], "no news");
    assert_eq!(learnt("10.0.0.1", 1450, 1500, tag), [], "not smaller");
    assert_eq!(learnt("10.0.0.1", 0, 1500, tag), [(node, 596)], "bounded");
    assert_eq!(
        learnt("fd00::1", 68, 1500, tag),
        [(address("fd00::1"), 1280)]
    );

    // That node's next hop alone, also when the kernel says something new of it, until it is taken back.
    let mtu_in_use = |loaded: &Loaded, tables: &Tables, node: &str| {
        let backends = Map::Array(loaded.map(map::BACKENDS).unwrap());
        let backends: Array<_, Backend> = Array::try_from(backends).unwrap();
        let hops = Map::Array(loaded.map(map::NEXTHOPS).unwrap());
        let hops: Array<_, xdp_prog::abi::NextHop> = Array::try_from(hops).unwrap();
        let mut backends_there = tables
            .backends()
            .filter(|(owned, _)| owned.key.address == address(node));
        let (_, backend) = backends_there.next().unwrap();
        let hop = backends.get(&backend.id, 0).unwrap().next_hop;
        hops.get(&hop, 0).unwrap().mtu
    };
    assert_eq!(mtu_in_use(&loaded, &tables, "10.0.0.1"), 596);
    assert_eq!(mtu_in_use(&loaded, &tables, "10.0.0.2"), 1500);
    tables.set_next_hop(node, behind_a_router(1400)).unwrap();
    assert_eq!(mtu_in_use(&loaded, &tables, "10.0.0.1"), 596);
    assert_eq!(tables.next_hop(node), Some(behind_a_router(1400)));
    tables.set_path_mtu(node, None).unwrap();
    assert_eq!(mtu_in_use(&loaded, &tables, "10.0.0.1"), 1400);
    assert_eq!(tables.path_mtu(node), None);

    // A node on the segment has no router in front.
    for node in ["10.0.0.1", "10.0.0.2", "fd00::1"] {
        tables.set_next_hop(address(node), resolved(7)).unwrap();
    }
    tables.watch_paths().unwrap();
    assert!(!tables.has_paths());
}
