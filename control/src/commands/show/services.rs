//! The pages about services and their backends.

use std::net::SocketAddr;

use super::{Sampled, count_or_rate, indented};
use crate::api::{Backend, Service};
use crate::render::{Table, duration, percent};

/// Shows the services.
pub fn services(sampled: &Sampled<Vec<Service>>) -> String {
    let (packets, bytes) = match sampled.previous {
        None => (">PACKETS", ">BYTES"),
        Some(_) => (">PKT/S", ">BYTE/S"),
    };
    let columns = [
        "NAME",
        "SERVICE",
        "MODE",
        ">BACKENDS",
        ">SLOTS",
        packets,
        bytes,
    ];
    let mut table = Table::new(columns);
    let mut notes = String::new();
    for service in &sampled.current {
        let traffic = |of: fn(&Service) -> u64| {
            count_or_rate(sampled, of(service), |previous| {
                let same = |other: &&Service| other.service == service.service;
                previous.iter().find(same).map(of)
            })
        };
        table.row([
            &service.name,
            &service.service,
            &mode(service),
            &service.backends,
            &service.slots,
            &traffic(|service| service.packets),
            &traffic(|service| service.bytes),
        ]);
        let name = &service.name;
        if let Some(problem) = &service.problem {
            notes += &indented(&format!("{name}: {problem}"));
        }
        notes += &policies(service);
        if service.all_fail {
            notes += &indented(&format!("{name}: every backend fails, so all serve"));
        }
    }
    table.render("no services") + &notes
}

/// Names the mode, and the traffic policy where it is not the common one.
fn mode(service: &Service) -> String {
    match service.traffic_policy.as_str() {
        "local" => format!("{}, local", service.mode),
        _ => service.mode.clone(),
    }
}

/// Says what else bears on who is served by what.
fn policies(service: &Service) -> String {
    let mut notes = Vec::new();
    if service.source_ranges > 0 {
        notes.push(format!("{} source ranges", service.source_ranges));
    }
    if service.session_affinity {
        notes.push("affinity by client address".to_owned());
    }
    if service.local_pods > 0 {
        notes.push(format!("{} pods here", service.local_pods));
    }
    if service.left_out > 0 {
        let left_out = service.left_out;
        notes.push(format!("{left_out} PODS LEFT OUT, see `guideway backends`"));
    }
    if notes.is_empty() {
        return String::new();
    }
    indented(&format!("{}: {}", service.service, notes.join(", ")))
}

/// What [`backends`] says where some have no weight.
pub(super) const NO_WEIGHT: &str = "\
weight 0: takes no new connections from here; a pod of this machine gets what
other machines send to it
";

/// Shows the backends of every service.
pub fn backends(sampled: &Sampled<Vec<Backend>>) -> String {
    let packets = match sampled.previous {
        None => ">PACKETS",
        Some(_) => ">PKT/S",
    };
    let columns = [
        "SERVICE", "ADDRESS", "BACKEND", ">WEIGHT", ">SHARE", "NEXT HOP", packets,
    ];
    let mut table = Table::new(columns);
    let mut notes = String::new();
    for backend in &sampled.current {
        let packets = count_or_rate(sampled, backend.packets, |previous| {
            let same = previous.iter().find(|other| is_same(other, backend))?;
            Some(same.packets)
        });
        table.row([
            &backend.name,
            &backend.service,
            &backend.backend,
            &backend.weight,
            &percent(backend.slots.into(), backend.table_size.into()),
            &next_hop(backend),
            &packets,
        ]);
        let Backend {
            name,
            backend: address,
            node,
            ..
        } = backend;
        notes += &health_note(backend);
        if backend.draining {
            notes += &indented(&format!(
                "{name} {address}: terminating, takes no new connections"
            ));
        }
        if backend.left_out {
            notes += &indented(&format!(
                "{name}: {address} left out: another pod of {node} has the same low 11 bits of its address"
            ));
        }
    }
    if sampled.current.iter().any(|backend| backend.weight == 0) {
        notes += NO_WEIGHT;
    }
    table.render("no backends") + &notes
}

/// Tells whether two rows are of one backend of a service.
fn is_same(one: &Backend, other: &Backend) -> bool {
    (&one.service, &one.backend, &one.node) == (&other.service, &other.backend, &other.node)
}

/// Says how packets leave, and to which node where that is not the backend itself.
fn next_hop(backend: &Backend) -> String {
    let at_node = backend.backend == backend.node || backend.node.is_empty();
    let pod = backend.backend.parse::<SocketAddr>();
    let own = pod.is_ok_and(|pod| pod.ip().to_string() == backend.node);
    let mut hop = if at_node || own {
        backend.next_hop.clone()
    } else {
        format!("{}, {}", backend.node, backend.next_hop)
    };
    if let Some(mtu) = backend.path_mtu {
        hop += &format!(", path MTU {mtu}");
    }
    hop
}

/// Says why a backend does not serve, or might soon not.
fn health_note(backend: &Backend) -> String {
    let (Some(health), Some(reason)) = (&backend.health, &backend.reason) else {
        return String::new();
    };
    let state = if health == "healthy" {
        health.clone()
    } else {
        let since = duration(backend.since_seconds.unwrap_or(0));
        let so = if backend.all_fail {
            "SERVES AS ALL FAIL"
        } else {
            "left out"
        };
        format!("{} for {since}, {so}", health.to_uppercase())
    };
    indented(&format!(
        "{} {}: {state}: {reason}",
        backend.name, backend.backend
    ))
}
