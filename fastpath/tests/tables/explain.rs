//! What `which` and `trace` say of packets.

use std::{collections::BTreeSet, net::SocketAddr};

use aya::maps::{HashMap, Map};
use etherparse::PacketBuilder;
use fastpath::{
    clock::coarse_ns,
    nexthop::{Reason, Resolution},
    tables::{
        Addresses, BackendSpec, ForwardMode, NatSettings, Outcome, ServiceSpec, Settings, Tables,
        Trace,
    },
};

use xdp_prog::abi::{AddressKey, Backend, PastPair, Pin, Tuple, map};

use crate::example::{address, array, node, pods, resolved, service, small, spec, spec_for};

#[test]
fn a_flow_is_explained_down_to_its_next_hop() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    tables.put_service(key, &spec(&[("10.0.0.1", 1)])).unwrap();
    let from: SocketAddr = "192.0.2.1:4711".parse().unwrap();

    let unresolved = tables.which(&key, from, 0).unwrap();
    assert_eq!(unresolved.choice.unwrap().backend, node("10.0.0.1"));
    assert_eq!(unresolved.verdict, Outcome::Drop("next_hop_unresolved"));

    tables
        .set_next_hop(address("10.0.0.1"), resolved(7))
        .unwrap();
    let verdict = tables.which(&key, from, 0).unwrap().verdict;
    assert_eq!(verdict, Outcome::Forward(7));

    tables
        .set_next_hop(address("10.0.0.1"), Resolution::Local)
        .unwrap();
    assert_eq!(
        tables.which(&key, from, 0).unwrap().verdict,
        Outcome::Pass("local_backend")
    );
    let reason = Resolution::Unresolved(Reason::LinkDown);
    tables.set_next_hop(address("10.0.0.1"), reason).unwrap();
    let verdict = tables.which(&key, from, 0).unwrap().verdict;
    assert_eq!(verdict, Outcome::Drop("next_hop_unresolved"));

    let other_family: SocketAddr = "[2001:db8::1]:4711".parse().unwrap();
    assert_eq!(tables.which(&key, other_family, 0), None);
    let unknown = tables.which(&service("10.99.0.1:81/tcp"), from, 0).unwrap();
    assert_eq!(
        (unknown.choice, unknown.verdict),
        (None, Outcome::Pass("no_service"))
    );
}

#[test]
fn a_trace_tells_every_step_and_changes_nothing() {
    let (_loaded, mut tables) = small();
    tables
        .set_next_hop(address("10.0.0.2"), resolved(7))
        .unwrap();
    tables
        .set_next_hop(address("10.0.0.1"), Resolution::Local)
        .unwrap();
    let there = service("10.99.0.1:80/tcp");
    tables
        .put_service(there, &pods(&[("10.0.0.2", "10.244.1.6:8080")]))
        .unwrap();
    let here = service("10.99.0.2:80/tcp");
    tables
        .put_service(here, &pods(&[("10.0.0.1", "10.244.0.5:8080")]))
        .unwrap();
    let before = tables.counters().unwrap();
    let from: SocketAddr = "192.0.2.1:4711".parse().unwrap();

    let trace = tables.trace(&there, from, 0).unwrap();
    assert_eq!(trace.verdict, Outcome::Forward(7));
    said(&trace, "parse", "TCP from 192.0.2.1 to 10.99.0.1");
    said(&trace, "ports", "4711 to 80");
    said(&trace, "service", "10.99.0.1:80, mode ipip (pods)");
    said(&trace, "slot", "of 1");
    said(&trace, "backend", "10.244.1.6:8080 on 10.0.0.2, tag 262");
    said(&trace, "next hop", "device 7, MAC 02:00:00:00:00:02");
    said(&trace, "count", "1 packet, 40 bytes");
    // The outer header carries the pod's tag: 10.244.1.6's low eleven bits are 0x106.
    assert_eq!(trace.after.len(), trace.before.len() + 20);
    assert_eq!(trace.after[18..20], [0x01, 0x06]);

    let delivered = tables.trace(&here, from, 0).unwrap();
    assert_eq!(delivered.verdict, Outcome::Pass("delivered"));
    said(&delivered, "stage", "guideway_local");
    said(&delivered, "next hop", "this machine");
    assert_eq!(delivered.after[30..34], [10, 244, 0, 5]);
    assert_eq!(
        tables.which(&here, from, 0).unwrap().verdict,
        Outcome::Pass("delivered")
    );

    // What the edge sent, as its node sees it.
    let local = Addresses {
        local: BTreeSet::from([address("10.0.0.2")]),
        ..Addresses::default()
    };
    tables.set_addresses(local.into()).unwrap();
    tables
        .set_trusted_edges(&BTreeSet::from(["10.0.0.100/32".parse().unwrap()]))
        .unwrap();
    tables
        .set_next_hop(address("10.0.0.2"), Resolution::Local)
        .unwrap();
    let received = tables.trace_frame(&trace.after, 1);
    assert_eq!(received.verdict, Outcome::Pass("delivered"), "{received:?}");
    said(&received, "parse", "IP-in-IP from 10.0.0.100 to 10.0.0.2");
    said(&received, "inner", "TCP from 192.0.2.1 to 10.99.0.1");
    said(&received, "pod", "tag 262 is backend");
    assert_eq!(received.after[30..34], [10, 244, 1, 6]);

    let short = tables.trace_frame(&trace.after[..20], 1);
    assert_eq!(short.verdict, Outcome::Pass("truncated_ip"));
    assert_eq!(tables.counters().unwrap(), before);
}

#[test]
fn a_trace_follows_nat() {
    let (_loaded, mut tables) = small();
    let settings = Settings {
        nat: Some(NatSettings::default()),
        ..Settings::default()
    };
    tables.set_settings(settings).unwrap();
    tables
        .set_next_hop(address("10.0.0.7"), resolved(7))
        .unwrap();
    let key = service("10.99.0.1:80/tcp");
    let spec = ServiceSpec {
        mode: ForwardMode::Nat,
        backends: vec![BackendSpec::nat("10.0.0.7:8080".parse().unwrap(), 1)],
        ..ServiceSpec::default()
    };
    tables.put_service(key, &spec).unwrap();
    let trace = tables
        .trace(&key, "192.0.2.1:4711".parse().unwrap(), 0)
        .unwrap();
    assert_eq!(trace.verdict, Outcome::Forward(7), "{trace:?}");
    assert_eq!(trace.after[26..34], [10, 0, 0, 100, 10, 0, 0, 7]);
    assert_eq!(trace.after[36..38], 8080_u16.to_be_bytes());
}

#[test]
fn a_trace_tells_past_owners_and_the_pin_of_a_flow() {
    let (loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    for node in ["10.0.0.1", "10.0.0.2"] {
        tables.set_next_hop(address(node), resolved(7)).unwrap();
    }
    for (node, pod) in [
        ("10.0.0.1", "10.244.0.5:8080"),
        ("10.0.0.2", "10.244.1.6:8080"),
    ] {
        tables.put_service(key, &pods(&[(node, pod)])).unwrap();
    }
    let from: SocketAddr = "192.0.2.1:4711".parse().unwrap();
    let choice = |tables: &Tables| tables.which(&key, from, 0).unwrap().choice.unwrap();
    assert_eq!(choice(&tables).backend.address, address("10.0.0.2"));

    let mut segment = Vec::new();
    PacketBuilder::ethernet2([2; 6], [2; 6])
        .ipv4([192, 0, 2, 1], [10, 99, 0, 1], 64)
        .tcp(4711, 80, 1, 1024)
        .ack(1)
        .write(&mut segment, &[])
        .unwrap();
    let trace = tables.trace_frame(&segment, 0);
    assert_eq!(trace.verdict, Outcome::Forward(7));
    said(&trace, "past", "past owners of the slot: 1");
    said(&trace, "backend", "10.244.1.6:8080 on 10.0.0.2");

    // As if the past owner had kept the flow.
    let past_owner = tables
        .backends()
        .find(|(owned, _)| owned.key.address == address("10.0.0.1"));
    let id = past_owner.unwrap().1.id;
    let backend = array::<Backend>(&loaded, map::BACKENDS)
        .get(&id, 0)
        .unwrap();
    let [client, vip] = [[192, 0, 2, 1], [10, 99, 0, 1]].map(AddressKey::v4);
    let flow = Tuple::new(client, vip, 4711_u16.to_be_bytes(), [0, 80], 6);
    let mut pins: HashMap<_, Tuple, u64> =
        HashMap::try_from(Map::LruHashMap(loaded.map(map::PINS).unwrap())).unwrap();
    let pin = Pin::new(&flow, id, &backend, coarse_ns());
    pins.insert(flow, pin.0, 0).unwrap();
    let slot = tables.services().next().unwrap().1.run.base;
    let mut pasts = array::<u64>(&loaded, map::PASTS);
    let pair = PastPair(pasts.get(&(slot / 2), 0).unwrap()).pinned(slot);
    pasts.set(slot / 2, pair.0, 0).unwrap();
    let trace = tables.trace_frame(&segment, 0);
    said(&trace, "pin", &format!("pinned, to backend {id}"));
    said(&trace, "backend", "10.244.0.5:8080 on 10.0.0.1");
    assert_eq!(trace.after[30..34], [10, 0, 0, 1]);

    // As if a SYN of the flow had come.
    pins.insert(flow, pin.marked(1).0, 0).unwrap();
    let trace = tables.trace_frame(&segment, 0);
    let text = format!("pinned, to backend {id}; a SYN has come since");
    said(&trace, "pin", &text);
    assert_eq!(trace.after[30..34], [10, 0, 0, 2]);
}

#[test]
fn a_datagram_meets_the_newest_past_owner_first() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/udp");
    for node in ["10.0.0.1", "10.0.0.2"] {
        tables.set_next_hop(address(node), resolved(7)).unwrap();
    }
    let from: SocketAddr = "192.0.2.1:4711".parse().unwrap();
    for (node, pod) in [
        ("10.0.0.1", "10.244.0.5:8080"),
        ("10.0.0.2", "10.244.1.6:8080"),
    ] {
        tables.put_service(key, &pods(&[(node, pod)])).unwrap();
        let choice = tables.which(&key, from, 0).unwrap().choice.unwrap();
        assert_eq!(choice.backend.address, address("10.0.0.1"));
    }
    let trace = tables.trace(&key, from, 0).unwrap();
    said(&trace, "past", "past owners of the slot: 1");
    said(&trace, "backend", "10.244.0.5:8080 on 10.0.0.1");
    assert_eq!(trace.after[30..34], [10, 0, 0, 1]);
}

#[test]
fn a_packet_that_is_refused_meets_no_backend() {
    let (_loaded, mut tables) = small();
    let key = service("10.99.0.1:80/tcp");
    let wanted = spec_for("192.0.2.0/24", &[("10.0.0.1", 1)]);
    tables.put_service(key, &wanted).unwrap();
    for (from, meets) in [("192.0.2.1:1", true), ("192.0.3.1:1", false)] {
        let explained = tables.which(&key, from.parse().unwrap(), 0).unwrap();
        assert_eq!(explained.choice.is_some(), meets, "{explained:?}");
    }
}

fn said(trace: &Trace, name: &str, text: &str) {
    let mut steps = trace.steps.iter().filter(|step| step.name == name);
    assert!(
        steps.any(|step| step.text.contains(text)),
        "{name}: {text}: {trace:?}"
    );
}
