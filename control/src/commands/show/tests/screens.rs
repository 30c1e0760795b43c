//! Every screen at 80 and at 160 columns: what is usual has a line of its own, and of the longest nothing is lost.

use super::*;
use crate::api::{AtAddress, Detached};

/// The longest address of a client or backend, and that of a service.
const CLIENT: &str = "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535";
const ADDRESS: &str = "[2001:db8:1234:5678:9abc:def0:aaaa:bbbb]:65535/sctp";
const NODE: &str = "2001:db8:1234:5678:9abc:def0:cccc:dddd";
const RATES: Option<Counts> = Some(Counts {
    packets: 123_456_789,
    bytes: u64::MAX,
});
const ALL: [Columns; 4] = [
    USUAL,
    WIDE,
    STATS,
    Columns {
        is_wide: true,
        stats: true,
    },
];

type Screen = (String, Box<dyn Fn(&mut Page)>);

fn screen(name: impl Into<String>, draw: impl Fn(&mut Page) + 'static) -> Screen {
    (name.into(), Box::new(draw))
}

#[test]
fn screens_fit_their_terminals_and_lose_nothing() {
    for (name, draw) in longest() {
        let whole = drawn(Page::ENDLESS, &draw);
        for width in [80, 160] {
            let page = drawn(width, &draw);
            for line in page.lines() {
                let length = line.chars().count();
                assert!(length <= width, "{name}: {length} of {width}: {line}");
                assert_eq!(line.trim_end(), line, "{name}");
            }
            for address in [CLIENT, ADDRESS, NODE] {
                let count = |page: &str| page.matches(address).count();
                assert_eq!(count(&page), count(&whole), "{name}: {address}:\n{page}");
            }
            let letters = |page: &str| page.split_whitespace().collect::<String>();
            assert_eq!(letters(&page), letters(&whole), "{name}");
        }
    }
}

#[test]
fn usual_screens_have_a_line_for_each_row() {
    let rates = Some(Counts {
        packets: 12_345_678,
        bytes: 9_876_543_210,
    });
    let service = Service {
        name: "shop/checkout:https".to_owned(),
        service: "203.0.113.110:443/tcp".to_owned(),
        traffic_policy: "cluster".to_owned(),
        connections: Some(1_234_567),
        rates,
        ..web()
    };
    let backend = Backend {
        name: "web".to_owned(),
        service: "192.0.2.10:443/tcp".to_owned(),
        backend: "10.244.110.15:8443".to_owned(),
        node: "10.244.110.15".to_owned(),
        health: Some("unreachable".to_owned()),
        mac: Some("52:54:00:12:34:56".to_owned()),
        connections: Some(1_234_567),
        bytes: 98_765_432_100,
        rates,
        ..backend()
    };
    for (columns, width) in [(USUAL, 80), (WIDE, 160)] {
        for page in [web(), service.clone()].map(|service| {
            drawn(width, |page| {
                super::super::services([service].to_vec(), columns, page)
            })
        }) {
            assert_eq!(page.lines().count(), 2, "{page}");
        }
        let page = drawn(width, |page| {
            super::super::backends(vec![backend.clone()], columns, page);
        });
        assert_eq!(page.lines().count(), 2, "{page}");
        for text in ["PKT/S", "12.3M", "192.0.2.10:443/tcp", "33.33%"] {
            assert!(page.contains(text), "{text}:\n{page}");
        }
    }
    assert!(services(&[service], WIDE).contains("9.87G"));
    assert!(backends(&[backend], STATS).contains("1.23M"));
}

/// Every screen with the longest names and addresses and the largest numbers.
fn longest() -> Vec<Screen> {
    let mut screens = vec![
        screen("drops", |page| super::super::drops(&reasons(), true, page)),
        screen("flows", |page| super::super::flows(&flow(), page)),
        screen("status", |page| super::super::status(&full_status(), page)),
        screen("trace", |page| trace(&traced(), page)),
        screen("which", |page| which(&found(), page)),
        screen("which --address", |page| at_address(&at(), page)),
        screen("detach", |page| {
            let interfaces = vec!["enp129s0f1np1v2".to_owned(); 20];
            detached(&Detached { interfaces }, page);
        }),
    ];
    for explanation in EXPLANATIONS {
        screens.push(screen(explanation.reason, move |page| {
            explained(explanation, page);
        }));
    }
    for columns in ALL {
        screens.push(screen(format!("services {columns:?}"), move |page| {
            super::super::services(vec![long_service()], columns, page);
        }));
        screens.push(screen(format!("backends {columns:?}"), move |page| {
            super::super::backends(vec![long_backend()], columns, page);
        }));
    }
    screens
}

/// A Service's name at its longest.
fn name() -> String {
    let [namespace, service] = ["n", "s"].map(|letter| letter.repeat(63));
    format!("{namespace}/{service}:{}", "p".repeat(15))
}

/// A sentence for a note, with addresses in it.
fn sentence() -> String {
    format!("{} of {CLIENT} and {ADDRESS} at {NODE}", name())
}

fn long_service() -> Service {
    Service {
        name: name(),
        service: ADDRESS.to_owned(),
        traffic_policy: "cluster".to_owned(),
        session_affinity: true,
        source_ranges: 65_535,
        local_pods: 65_535,
        left_out: 65_535,
        past_owners_dropped: u64::MAX,
        packets: u64::MAX,
        bytes: u64::MAX,
        connections: Some(u64::MAX),
        rates: RATES,
        problem: Some(sentence()),
        all_fail: true,
        ..web()
    }
}

fn long_backend() -> Backend {
    Backend {
        name: name(),
        service: ADDRESS.to_owned(),
        backend: CLIENT.to_owned(),
        node: NODE.to_owned(),
        left_out: true,
        draining: true,
        weight: 0,
        next_hop: "unresolved: no neighbour".to_owned(),
        mac: Some("52:54:00:12:34:56".to_owned()),
        path_mtu: Some(1_280),
        health: Some("unreachable".to_owned()),
        since_seconds: Some(266_400),
        reason: Some(sentence()),
        packets: u64::MAX,
        bytes: u64::MAX,
        connections: Some(u64::MAX),
        rates: RATES,
        ..backend()
    }
}

fn reasons() -> Vec<Reason> {
    let reason = |known: &crate::reasons::Explanation| Reason {
        action: known.action.to_owned(),
        reason: known.reason.to_owned(),
        packets: u64::MAX,
        rates: RATES,
        drivers: [(
            "enp129s0f1np1v2 rx_queue_0_xdp_tx_errors".to_owned(),
            u64::MAX,
        )]
        .into(),
        last: Some(Untrusted {
            source: NODE.to_owned(),
            seconds_ago: 266_400,
        }),
    };
    EXPLANATIONS.iter().map(reason).collect()
}

fn flow() -> Flows {
    Flows {
        flows: vec![Flow {
            client: CLIENT.to_owned(),
            name: name(),
            service: ADDRESS.to_owned(),
            backend: CLIENT.to_owned(),
            table: "nat".to_owned(),
            open: true,
            idle_seconds: 266_400,
        }],
        more: u64::MAX,
    }
}

fn full_status() -> Status {
    Status {
        version: "10.20.30".to_owned(),
        pid: 4_194_304,
        uptime_seconds: 266_400,
        roles: vec!["edge".to_owned(), "node".to_owned()],
        config: ConfigStatus {
            path: format!("/etc/{}/guideway.yaml", "directory/".repeat(20)),
            loaded_at: u64::MAX,
            error: Some(sentence()),
            needs_restart: vec!["announce.interfaces".to_owned(); 12],
            ..ConfigStatus::default()
        },
        hash_seed: HashSeed {
            source: "of the cluster's Secret".to_owned(),
            fingerprint: Some("3fa1".to_owned()),
        },
        kubernetes: Some(Kubernetes {
            server: format!("https://{CLIENT}"),
            last_event_seconds: Some(266_400),
            missing: vec![sentence()],
            broken: vec![sentence()],
            objects: (0..9)
                .map(|kind| (format!("kinds{kind}"), 250_000))
                .collect(),
            ..Kubernetes::default()
        }),
        interfaces: vec![Interface {
            name: "enp129s0f1np1v2".to_owned(),
            wanted: "native-or-generic".to_owned(),
            mode: None,
            note: Some(sentence()),
        }],
        egress: vec![Egress {
            device: "cali0123456789a".to_owned(),
            mode: Some("tcx".to_owned()),
            note: Some(sentence()),
        }],
        tables: vec![Table {
            name: "lut_slots".to_owned(),
            used: u64::MAX,
            capacity: u64::MAX,
            largest_free_run: Some(u64::MAX),
        }],
        next_hops: (0..9)
            .map(|state| (format!("unresolved{state}"), 250_000))
            .collect(),
        announced: Announced {
            interfaces: vec!["enp129s0f1np1v2".to_owned(); 9],
            addresses: vec![NODE.parse().unwrap()],
            drained: true,
        },
        health: Health {
            backends: 250_000,
            unhealthy: 250_000,
            nodes: 250_000,
            unreachable: 250_000,
            unknown: 250_000,
            unchecked: 250_000,
            all_fail: vec![format!("{} ({ADDRESS})", name())],
        },
        problems: vec![sentence()],
        unapplied: 250_000,
        warnings: vec![sentence()],
        untrusted: Some(Untrusted {
            source: NODE.to_owned(),
            seconds_ago: 266_400,
        }),
        ..Status::default()
    }
}

fn traced() -> Trace {
    Trace {
        steps: vec![Step {
            name: "slot".to_owned(),
            text: sentence(),
        }],
        before: "00".repeat(60),
        after: "01".repeat(60),
        action: "forward".to_owned(),
        reason: None,
        device: Some("enp129s0f1np1v2".to_owned()),
    }
}

fn found() -> Which {
    Which {
        name: Some(name()),
        service: ADDRESS.to_owned(),
        from: CLIENT.to_owned(),
        choice: Some(Choice {
            mode: "nat".to_owned(),
            hash: u32::MAX,
            slot: u32::MAX,
            table_size: u32::MAX,
            backend: format!("{CLIENT} at {NODE}"),
            weight: Some(u32::MAX),
            slots: u32::MAX,
        }),
        translated: Some(format!("{CLIENT} -> {CLIENT}")),
        action: "drop".to_owned(),
        reason: Some("next_hop_unresolved".to_owned()),
        next_hop: Some(format!("enp129s0f1np1v2, path MTU 1280, at {NODE}")),
    }
}

fn at() -> AtAddress {
    AtAddress {
        address: NODE.parse().unwrap(),
        services: vec![name(); 4],
        announced_on: vec!["enp129s0f1np1v2".to_owned(); 9],
    }
}
