//! Pages about services and their backends.

use std::borrow::Cow;
use std::net::SocketAddr;

use super::{Columns, only_if, rate};
use crate::api::{Backend, Service};
use crate::render::{Page, Table, count, duration, percent};

/// Formats the services.
pub fn services<'r>(services: impl Into<Cow<'r, [Service]>>, columns: Columns, page: &mut Page) {
    let services = services.into();
    let Columns { is_wide, stats } = columns;
    let rates = services.iter().any(|service| service.rates.is_some());
    let exchanges = is_wide && services.iter().any(|service| service.owners.is_some());
    let totals = is_wide || stats || !rates;
    let mut table = Table::new([
        "NAME",
        "SERVICE",
        only_if(!stats, "MODE"),
        only_if(is_wide, "POLICY"),
        only_if(is_wide, "AFFINITY"),
        only_if(is_wide, ">RANGES"),
        only_if(!stats, ">BACKENDS"),
        only_if(is_wide, ">HERE"),
        only_if(is_wide || !(stats || rates), ">SLOTS"),
        only_if(exchanges, "OWNERS"),
        only_if(stats, ">CONNS"),
        only_if(totals, ">PACKETS"),
        only_if(totals, ">BYTES"),
        only_if(rates, ">PKT/S"),
        only_if(rates, ">BYTE/S"),
    ]);
    let mut notes = Vec::new();
    for service in services.into_owned() {
        let service = &service;
        table.row([
            &service.name,
            &service.service,
            &if is_wide {
                service.mode.clone()
            } else {
                mode(service)
            },
            &service.traffic_policy,
            &if service.session_affinity {
                "client-ip"
            } else {
                "none"
            },
            &service.source_ranges,
            &service.backends,
            &service.local_pods,
            &service.slots,
            &service.owners.as_deref().unwrap_or("-"),
            &rate(service.connections),
            &count(service.packets),
            &count(service.bytes),
            &rate(service.rates.map(|rates| rates.packets)),
            &rate(service.rates.map(|rates| rates.bytes)),
        ]);
        let name = &service.name;
        if let Some(problem) = &service.problem {
            notes.push(format!("{name}: {problem}"));
        }
        if !is_wide && !stats {
            notes.extend(policies(service));
        }
        if service.left_out > 0 {
            let left_out = service.left_out;
            notes.push(format!(
                "{name}: {left_out} PODS LEFT OUT, see `guideway backends`"
            ));
        }
        if service.past_owners_dropped > 0 {
            let dropped = count(service.past_owners_dropped);
            notes.push(format!(
                "{name}: slots lost {dropped} past owners early, whose connections end"
            ));
        }
        if service.all_fail {
            notes.push(format!("{name}: every backend fails, so all serve"));
        }
    }
    page.table(&table, "no services");
    notes.iter().for_each(|note| page.note(note));
}

/// Returns the mode, with the traffic policy if that is `local`.
fn mode(service: &Service) -> String {
    match service.traffic_policy.as_str() {
        "local" => format!("{}, local", service.mode),
        _ => service.mode.clone(),
    }
}

/// Returns a note about source ranges, affinity and other rules of a service, if it has any.
fn policies(service: &Service) -> Option<String> {
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
    (!notes.is_empty()).then(|| format!("{}: {}", service.service, notes.join(", ")))
}

/// The note of [`backends`] if some have weight 0.
pub(super) const NO_WEIGHT: &str = "\
weight 0: takes no new connections from here; a pod of this machine gets what other machines send to it";

/// Formats the backends of every service. Rows that it owns are freed one after the other: there may be 250 000.
pub fn backends<'r>(backends: impl Into<Cow<'r, [Backend]>>, columns: Columns, page: &mut Page) {
    let backends = backends.into();
    let Columns { is_wide, stats } = columns;
    let rates = backends.iter().any(|backend| backend.rates.is_some());
    let totals = is_wide || stats || !rates;
    let mut table = Table::new([
        "SERVICE",
        "ADDRESS",
        "BACKEND",
        only_if(is_wide, "NODE"),
        only_if(is_wide, "HEALTH"),
        only_if(!stats, ">WEIGHT"),
        only_if(!stats, ">SHARE"),
        only_if(!stats, "NEXT HOP"),
        only_if(is_wide, "MAC"),
        only_if(stats, ">CONNS"),
        only_if(totals, ">PACKETS"),
        only_if(totals && (is_wide || stats), ">BYTES"),
        only_if(rates, ">PKT/S"),
        only_if(rates && (is_wide || stats), ">BYTE/S"),
    ]);
    let mut notes = Vec::new();
    let has_weightless = backends.iter().any(|backend| backend.weight == 0);
    for backend in backends.into_owned() {
        let backend = &backend;
        table.row([
            &backend.name,
            &backend.service,
            &backend.backend,
            &backend.node,
            &backend.health.as_deref().unwrap_or("-"),
            &backend.weight,
            &percent(backend.slots.into(), backend.table_size.into()),
            &if is_wide {
                at_next_hop(backend)
            } else {
                next_hop(backend)
            },
            &backend.mac.as_deref().unwrap_or("-"),
            &rate(backend.connections),
            &count(backend.packets),
            &count(backend.bytes),
            &rate(backend.rates.map(|rates| rates.packets)),
            &rate(backend.rates.map(|rates| rates.bytes)),
        ]);
        let Backend {
            name,
            backend: address,
            node,
            ..
        } = backend;
        notes.extend(health_note(backend));
        if backend.draining {
            notes.push(format!(
                "{name} {address}: draining, takes no new connections"
            ));
        }
        if backend.left_out {
            notes.push(format!(
                "{name}: {address} left out: another pod of {node} has the same low 11 bits of its address"
            ));
        }
    }
    page.table(&table, "no backends");
    notes.iter().for_each(|note| page.note(note));
    if has_weightless {
        page.line(NO_WEIGHT);
    }
}

/// Returns how packets leave, with the node if that is not the backend itself.
fn next_hop(backend: &Backend) -> String {
    let at_node = backend.backend == backend.node || backend.node.is_empty();
    let pod = backend.backend.parse::<SocketAddr>();
    let own = pod.is_ok_and(|pod| pod.ip().to_string() == backend.node);
    let hop = at_next_hop(backend);
    if at_node || own {
        hop
    } else {
        format!("{}, {hop}", backend.node)
    }
}

fn at_next_hop(backend: &Backend) -> String {
    let mtu = backend.path_mtu.map(|mtu| format!(", path MTU {mtu}"));
    backend.next_hop.clone() + &mtu.unwrap_or_default()
}

/// Returns why a backend gets no traffic or may soon get none, if there is anything to say.
fn health_note(backend: &Backend) -> Option<String> {
    let (health, reason) = (backend.health.as_ref()?, backend.reason.as_ref()?);
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
    let Backend { name, backend, .. } = backend;
    Some(format!("{name} {backend}: {state}: {reason}"))
}
