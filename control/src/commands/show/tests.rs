mod screens;

use super::services::NO_WEIGHT;
use super::*;
use crate::api::{
    Announced, Backend, Choice, ConfigStatus, Counts, Egress, Flow, Flows, HashSeed, Health,
    Interface, Kubernetes, MendStatus, Peer, PeersStatus, Reason, Service, Status, Step, Table,
    Trace, Untrusted, Which,
};
use crate::clock::unix_time;
use crate::reasons::EXPLANATIONS;

/// A page of some width.
fn drawn(width: usize, draw: impl FnOnce(&mut Page)) -> String {
    let mut page = Page::new(width);
    draw(&mut page);
    page.into_text()
}

fn services(rows: &[Service], columns: Columns) -> String {
    drawn(80, |page| super::services(rows, columns, page))
}

fn backends(rows: &[Backend], columns: Columns) -> String {
    drawn(80, |page| super::backends(rows, columns, page))
}

fn status(status: &Status) -> String {
    drawn(80, |page| super::status(status, page))
}

fn drops(reasons: &[Reason], all: bool) -> String {
    drawn(80, |page| super::drops(reasons, all, page))
}

fn flows(flows: &Flows) -> String {
    drawn(80, |page| super::flows(flows, page))
}

const USUAL: Columns = Columns {
    is_wide: false,
    stats: false,
};
const WIDE: Columns = Columns {
    is_wide: true,
    stats: false,
};
const STATS: Columns = Columns {
    is_wide: false,
    stats: true,
};

fn web() -> Service {
    Service {
        name: "web-v6".to_owned(),
        service: "[2001:db8:10::10]:8080/tcp".to_owned(),
        mode: "l2dsr".to_owned(),
        backends: 120,
        slots: 16_384,
        packets: 123_456_789,
        bytes: 98_765_432_100,
        ..Service::default()
    }
}

fn backend() -> Backend {
    Backend {
        name: "web-v6".to_owned(),
        service: "[2001:db8::10]:80/tcp".to_owned(),
        backend: "2001:db8::112".to_owned(),
        weight: 65_535,
        slots: 5_462,
        table_size: 16_384,
        state: "resolved".to_owned(),
        next_hop: "eth0".to_owned(),
        packets: 1_234_567,
        bytes: 1,
        ..Backend::default()
    }
}

fn assert_fits(page: &str) {
    for line in page.lines() {
        assert!(
            line.chars().count() <= 80,
            "{} columns: {line}",
            line.chars().count()
        );
        assert_eq!(line.trim_end(), line);
    }
}

#[test]
fn long_notes_wrap_at_80_columns_and_lose_no_word() {
    let reason = ["the lookup tables are full;"; 9].join(" ");
    let texts = || vec![reason.clone()];
    let service = Service {
        problem: Some(reason.clone()),
        ..web()
    };
    let backend = Backend {
        health: Some("unhealthy".to_owned()),
        reason: Some(reason.clone()),
        ..backend()
    };
    let status_of_all = Status {
        roles: vec!["edge".to_owned()],
        config: ConfigStatus {
            loaded_at: unix_time(),
            error: Some(reason.clone()),
            ..ConfigStatus::default()
        },
        kubernetes: Some(Kubernetes {
            missing: texts(),
            broken: texts(),
            ..Kubernetes::default()
        }),
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            note: Some(reason.clone()),
            ..Interface::default()
        }],
        health: Health {
            all_fail: texts(),
            ..Health::default()
        },
        problems: texts(),
        warnings: texts(),
        ..Status::default()
    };
    for (page, notes) in [
        (services(&[service], USUAL), 1),
        (backends(&[backend], USUAL), 1),
        (status(&status_of_all), 7),
    ] {
        assert_fits(&page);
        let words: Vec<&str> = page.split_whitespace().collect();
        assert_eq!(words.join(" ").matches(&reason).count(), notes, "{page}");
    }
}

#[test]
fn service_with_a_problem_is_named() {
    let mut service = web();
    service.problem = Some("the LUT arena is full".to_owned());
    assert!(services(&[service], USUAL).contains("  web-v6: the LUT arena is full\n"));
}

#[test]
fn trace_shows_steps_and_bytes() {
    let traced = Trace {
        steps: vec![Step {
            name: "slot".to_owned(),
            text: "3 of 256".to_owned(),
        }],
        before: "00".repeat(17),
        after: "01".to_owned(),
        action: "forward".to_owned(),
        reason: None,
        device: Some("eth0".to_owned()),
    };
    let page = drawn(80, |page| trace(&traced, page));
    let sixteen = ["00"; 16].join(" ");
    let wanted = format!(
        "slot     3 of 256\nbefore   {sixteen}\n         00\nafter    01\nverdict  forward by eth0\n"
    );
    assert_eq!(page, wanted);
}

#[test]
fn pods_are_shown_with_their_node() {
    let pod = Backend {
        backend: "10.244.0.5:8080".to_owned(),
        node: "10.0.0.1".to_owned(),
        left_out: true,
        ..backend()
    };
    let page = backends(&[pod], USUAL);
    assert!(page.contains("10.0.0.1, eth0"), "{page}");
    assert!(page.contains("10.244.0.5:8080 left out"), "{page}");
    let nat = Backend {
        backend: "10.0.0.7:80".to_owned(),
        node: "10.0.0.7".to_owned(),
        ..backend()
    };
    assert!(!backends(&[nat], USUAL).contains("10.0.0.7, "));
}

#[test]
fn policies_of_a_service_are_named() {
    let service = Service {
        traffic_policy: "local".to_owned(),
        source_ranges: 2,
        session_affinity: true,
        local_pods: 3,
        left_out: 1,
        past_owners_dropped: 12,
        ..web()
    };
    let page = services(&[service], USUAL);
    for text in [
        "l2dsr, local",
        "2 source ranges, affinity by client address, 3\n    pods here\n",
        "web-v6: 1 PODS LEFT OUT",
        "web-v6: slots lost 12 past owners early",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn draining_backends_are_named() {
    let draining = Backend {
        weight: 0,
        draining: true,
        ..backend()
    };
    let page = backends(&[backend(), draining], USUAL);
    let note = "  web-v6 2001:db8::112: draining, takes no new connections\n";
    assert_eq!(page.matches(note).count(), 1, "{page}");
    assert_fits(&page);
}

#[test]
fn drops_hide_reasons_without_packets_unless_all() {
    let reason = |reason: &str, packets| Reason {
        action: "drop".to_owned(),
        reason: reason.to_owned(),
        packets,
        ..Reason::default()
    };
    let reasons = [reason("no_backend", 3), reason("fragment", 0)];
    assert!(!drops(&reasons, false).contains("fragment"));
    assert!(drops(&reasons, true).contains("fragment"));
    assert_fits(&drops(&reasons, true));
    let watched = [Reason {
        rates: Some(Counts {
            packets: 123_456_789,
            bytes: 0,
        }),
        ..reason("fragment_out_of_order", 123_456_789)
    }];
    assert_fits(&drops(&watched, false));
    let mut refused = reason("encap_untrusted", 2);
    refused.last = Some(Untrusted {
        source: "198.51.100.1".to_owned(),
        seconds_ago: 75,
    });
    let page = drops(&[refused], false);
    let line = "last untrusted outer source: 198.51.100.1, 1m 15s ago\n";
    assert!(page.ends_with(line), "{page}");
    let mut lost = reason("transmit", 7);
    lost.drivers = [("eth0 rx_queue_xdp_tx_errors".to_owned(), 7)].into();
    let page = drops(&[lost], false);
    let line = "transmit: the driver counts eth0 rx_queue_xdp_tx_errors 7\n";
    assert!(page.ends_with(line), "{page}");
    assert_eq!(drops(&[], false), "nothing dropped or passed\n");
}

#[test]
fn flows_fit_80_columns_and_those_beyond_are_counted() {
    let flow = Flow {
        client: "198.51.100.217:40000".to_owned(),
        service: "203.0.113.10:443/tcp".to_owned(),
        backend: "10.244.11.15:8443".to_owned(),
        table: "node".to_owned(),
        idle_seconds: 75,
        ..Flow::default()
    };
    let page = flows(&Flows {
        flows: vec![flow],
        more: 7,
    });
    assert_fits(&page);
    assert!(page.contains("new") && page.contains("1m 15s"), "{page}");
    assert!(
        page.ends_with("and 7 more; --limit lists more of them\n"),
        "{page}"
    );
    assert_eq!(flows(&Flows::default()), "no flows\n");
}

#[test]
fn explanations_fit_80_columns() {
    for explanation in EXPLANATIONS {
        let page = drawn(80, |page| explained(explanation, page));
        assert_fits(&page);
        let words: Vec<&str> = page.split_whitespace().collect();
        assert!(words.join(" ").contains(explanation.meaning), "{page}");
    }
}

#[test]
fn status_fits_80_columns_and_names_what_is_wrong() {
    let page = status(&Status {
        version: "0.1.0".to_owned(),
        pid: 4_194_304,
        uptime_seconds: 266_400,
        roles: vec!["edge".to_owned(), "node".to_owned()],
        config: ConfigStatus {
            path: "/etc/guideway/edge.yaml".to_owned(),
            loaded_at: unix_time(),
            reloads: 3,
            failures: 1,
            error: Some("edge.yaml:7:11: port 0\nedge.yaml:9:1: x".to_owned()),
            needs_restart: vec!["tables".to_owned()],
        },
        hash_seed: HashSeed {
            source: "of the cluster's Secret".to_owned(),
            fingerprint: Some("3fa1".to_owned()),
        },
        kubernetes: Some(Kubernetes {
            node_name: "node-17".to_owned(),
            server: "https://10.96.0.1:443".to_owned(),
            synced_seconds: None,
            last_event_seconds: Some(75),
            missing: vec!["the list of nodes".to_owned()],
            objects: [("nodes".to_owned(), 0), ("services".to_owned(), 7)].into(),
            broken: vec!["nodes: forbidden".to_owned()],
        }),
        interfaces: vec![Interface {
            name: "enp1s0f0np0".to_owned(),
            wanted: "native-or-generic".to_owned(),
            mode: None,
            note: Some("no such interface".to_owned()),
        }],
        egress: vec![
            Egress {
                device: "cali0123456789a".to_owned(),
                mode: Some("tcx".to_owned()),
                note: Some("tcx program 7 runs first".to_owned()),
            };
            22
        ],
        tables: vec![Table {
            name: "lut_slots".to_owned(),
            used: 16_384,
            capacity: 16_777_216,
            largest_free_run: Some(8_388_608),
        }],
        past_owners_dropped: [("list_full".to_owned(), 3)].into(),
        next_hops: [("resolved".to_owned(), 3), ("unresolved".to_owned(), 1)].into(),
        announced: Announced {
            interfaces: vec!["eth0".to_owned()],
            addresses: (1..13).map(|n| [192, 0, 2, n].into()).collect(),
            drained: true,
        },
        services: 1,
        health: Health {
            backends: 9,
            unhealthy: 2,
            nodes: 4,
            unreachable: 1,
            unknown: 2,
            unchecked: 3,
            all_fail: vec!["web (192.0.2.10:80/tcp)".to_owned()],
        },
        mend: Some(MendStatus {
            queues: 4,
            open: 3,
            punted: 1_000_000,
            taken: 999_000,
            lost: 1000,
            held: 7,
            held_bytes: 12_345,
            memory_bytes: 4 << 20,
            carried: [("br0".to_owned(), 4), ("br1".to_owned(), 2)].into(),
            problems: vec!["another AF_XDP socket has queue 3".to_owned()],
        }),
        peers: Some(PeersStatus {
            begun: "without".to_owned(),
            missing_key: Some("there is no Secret".to_owned()),
            asked: 120_000,
            answered: 240_000,
            refused: [("timed_out".to_owned(), 17)].into(),
            slots_taken: 4_096,
            owners_left_out: 3,
            peers: vec![
                Peer {
                    address: "192.0.2.1:9754".to_owned(),
                    answered_seconds_ago: Some(75),
                    agrees: true,
                    refused: None,
                },
                Peer {
                    address: "[2001:db8::1]:9754".to_owned(),
                    refused: Some("it took too long".to_owned()),
                    ..Peer::default()
                },
            ],
        }),
        problems: vec!["service web: full".to_owned(); 12],
        unapplied: 12,
        warnings: vec!["rules masquerade".to_owned()],
        untrusted: Some(Untrusted {
            source: "198.51.100.1".to_owned(),
            seconds_ago: 75,
        }),
    });
    assert_fits(&page);
    for part in [
        "REFUSED",
        "  edge.yaml:7:11: port 0\n  edge.yaml:9:1: x\n",
        "after a restart: tables",
        "hash seed of the cluster's Secret, fingerprint 3fa1: the same on all edges\n",
        "kubernetes https://10.96.0.1:443, NOT IN STEP YET, last event 1m 15s ago\n",
        "  0 nodes, 7 services\n  waits for the list of nodes\n  BROKEN nodes: forbidden\n",
        "DETACHED",
        "  no such interface\n",
        "EGRESS           MODE\ncali0123456789a  tcx\n",
        "  tcx program 7 runs first\n",
        "next hops: 3 resolved, 1 unresolved",
        "health: 2 of 9 checked backends unhealthy, 1 of 4 nodes unreachable\n",
        "health: 2 nodes NOT KNOWN YET: no check has come to a result\n",
        "health: 3 checks NOT MADE, see PROBLEMS\n",
        "mend: 3 of 4 queues open; packets: 1000000 punted, 999000 taken, 1000 lost\n  7 held, in 13 of 4096 KiB\n",
        "  carried, about 1 us of one CPU for each packet: 4 next hops by br0",
        "  another AF_XDP socket has queue 3\n",
        "peers: 1 of 2 answer, 1 agree; began WITHOUT THE PAST of others\n  NO KEY: there is no Secret\n",
        "  4096 slots taken, 3 owners left out; refused: timed_out 17\n",
        "  NOTHING TAKEN from [2001:db8::1]:9754, which never answered: it took too long\n",
        "EVERY BACKEND FAILS, SO ALL SERVE\n  web (192.0.2.10:80/tcp)\n",
        "PROBLEMS (not applied, tried again by themselves: 12)\n  service web: full\n",
        "  and 2 more; --json lists all\n",
        "WARNINGS\n  rules masquerade\n",
        "announced on eth0: 12 addresses\n  192.0.2.1\n",
        "last untrusted outer source: 198.51.100.1, 1m 15s ago\n",
    ] {
        assert!(page.contains(part), "{part:?} is not in:\n{page}");
    }
}

#[test]
fn backends_without_weight_are_explained_where_there_are_some() {
    let weightless = Backend {
        weight: 0,
        ..backend()
    };
    let whole = |rows: &[Backend]| drawn(Page::ENDLESS, |page| super::backends(rows, USUAL, page));
    let page = whole(&[backend(), weightless]);
    assert!(page.trim_end().ends_with(NO_WEIGHT), "{page}");
    assert!(!whole(&[backend()]).contains(NO_WEIGHT));
}

#[test]
fn backends_that_fail_are_listed_with_the_reason() {
    let failing = |health: &str, reason: &str, all_fail| Backend {
        name: "web".to_owned(),
        backend: "10.0.0.1".to_owned(),
        health: Some(health.to_owned()),
        since_seconds: Some(75),
        reason: Some(reason.to_owned()),
        all_fail,
        weight: 1,
        ..Backend::default()
    };
    let page = backends(
        &[
            failing("unhealthy", "HTTP 503", false),
            failing("unreachable", "node unreachable: 3 echoes missed", true),
            failing("healthy", "1 of 3 failures: timeout 2 s", false),
            Backend {
                reason: None,
                ..failing("healthy", "", false)
            },
        ],
        USUAL,
    );
    let notes: Vec<&str> = page.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(
        notes,
        [
            "  web 10.0.0.1: UNHEALTHY for 1m 15s, left out: HTTP 503",
            "  web 10.0.0.1: UNREACHABLE for 1m 15s, SERVES AS ALL FAIL: node unreachable: 3",
            "    echoes missed",
            "  web 10.0.0.1: healthy: 1 of 3 failures: timeout 2 s",
        ]
    );
}

#[test]
fn which_shows_every_step() {
    let found = Which {
        name: Some("web".to_owned()),
        service: "192.0.2.10:80/tcp".to_owned(),
        from: "198.51.100.7:40000".to_owned(),
        choice: Some(Choice {
            mode: "nat".to_owned(),
            hash: 0x1234,
            slot: 7,
            table_size: 256,
            backend: "10.0.0.1".to_owned(),
            weight: Some(2),
            slots: 128,
        }),
        translated: Some("10.0.0.9:61001 -> 10.0.0.1:8080".to_owned()),
        action: "forward".to_owned(),
        reason: None,
        next_hop: Some("eth0".to_owned()),
    };
    assert_eq!(
        drawn(80, |page| which(&found, page)),
        "service  192.0.2.10:80/tcp (web)\n\
         from     198.51.100.7:40000\n\
         hash     0x00001234\n\
         slot     7 of 256\n\
         backend  10.0.0.1 (weight 2, owns 128 slots, 50.00%)\n\
         mode     nat\n\
         nat      10.0.0.9:61001 -> 10.0.0.1:8080\n\
         verdict  forward\n\
         next hop eth0\n"
    );
}
