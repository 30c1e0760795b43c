//! Floods of fragments whose datagrams have no first one.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::Duration,
};

use lab::{Topology, vip_v4, wait_until};

use super::{MEND, assert_all_arrive, assert_ledger_adds_up, count, services, wait_until_mending};
use crate::support::{Agent, Sender, TIMEOUT, cluster_config, number, serve_on_pods};

/// Variable with the number of fragments that one source sends without their first ones; `make soak` asks for a million.
const ORPHANS: &str = "GUIDEWAY_ORPHANS";
const ORPHANS_BY_DEFAULT: u64 = 2000;
/// A queue of the agent's has room for 512. So many are sent at once, up to 100 000 a second.
const BURST: u64 = 100;
const PAUSE: Duration = Duration::from_millis(1);
/// Pause of those that ask meanwhile.
const BETWEEN: Duration = Duration::from_millis(100);

#[test]
fn flood_of_orphans_keeps_to_its_limits_and_keeps_nobody_out() {
    const LIMIT_KIB: u64 = 512;
    let net = Topology::builder().pods(1).build().unwrap();
    let all = services();
    let services = &all[..2];
    let _echoes = serve_on_pods(&net, services);
    let config = cluster_config(&net, services)
        + MEND
        + "mend_limits: { memory_kib: 512, source_kib: 64, wait: 10s }\n";
    let agents: Vec<Agent<'_>> = Agent::start_all(net.nodes().iter().chain(net.edges()), &config);
    let agent = agents.last().unwrap();
    wait_until_mending(agent);
    let mut sender = Sender::new(&net);
    let client = net.clients()[0].v4();
    let vip = vip_v4(1).into();
    let held = || {
        let mend = agent.json(&["status"])["mend"].clone();
        let bytes = mend["held_bytes"].as_u64().unwrap();
        assert!(bytes <= LIMIT_KIB << 10, "{mend}");
        bytes
    };
    // One source floods, and gets its share alone. Others ask meanwhile in `make soak`; a busy machine may keep the thread from
    // its queue, which the flood fills then.
    let flooder = IpAddr::from([198, 51, 100, 1]);
    let flood = |orphans| {
        let mut flooding = Sender::new(&net);
        for orphan in 1..=orphans {
            flooding.send_orphan(flooder, vip);
            if orphan % BURST == 0 {
                thread::sleep(PAUSE);
            }
        }
    };
    match number(ORPHANS) {
        None => flood(ORPHANS_BY_DEFAULT),
        Some(orphans) => thread::scope(|scope| {
            let flood = scope.spawn(|| flood(orphans));
            loop {
                for service in services {
                    assert_all_arrive(&mut sender, service.service.address);
                }
                if flood.is_finished() {
                    break;
                }
                // Copies of fragments stay where datagrams are joined, for half a minute, and take memory there.
                thread::sleep(BETWEEN);
            }
        }),
    }
    wait_until("the source's share is refused", TIMEOUT, || {
        count(agent, "mend", "mend_source_share") > 0
    })
    .unwrap();
    assert!(held() <= 64 << 10);
    assert_ne!(client, flooder);
    for service in services {
        assert_all_arrive(&mut sender, service.service.address);
    }
    // Forged sources fill the memory, and the newest packets have it.
    for number in 0..4000u16 {
        let [a, b] = number.to_be_bytes();
        sender.send_orphan(Ipv4Addr::new(198, 18, a, b).into(), vip);
        if number % 500 == 0 {
            held();
        }
    }
    wait_until("the oldest make room", TIMEOUT, || {
        count(agent, "mend", "mend_out_of_memory") > 0
    })
    .unwrap();
    assert!(held() > 0);
    for service in services {
        assert_all_arrive(&mut sender, service.service.address);
    }
    assert_ledger_adds_up(agent);
    wait_until("the rest has waited in vain", TIMEOUT, || {
        count(agent, "mend", "mend_timed_out") > 0
    })
    .unwrap();
    assert!(agent.page(&["status"]).contains("mend: "));
    assert!(agent.get("/metrics").contains("guideway_mend_held_bytes"));
}
