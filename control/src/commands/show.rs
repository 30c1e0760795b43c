//! The agent's answers as pages for people, 80 columns wide for usual addresses.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Sampled;
use crate::api::{Backend, Detached, Kubernetes, Reason, Service, Status, Trace, Untrusted, Which};
use crate::render::Align::{Left, Right};
use crate::render::{Table, count, duration, percent, printable};

/// Problems on the status page: a full table refuses thousands of services.
const PROBLEMS_SHOWN: usize = 10;
/// Egress devices on the status page: a node has one for each of its pods.
const DEVICES_SHOWN: usize = 20;

/// Shows the agent's state.
pub fn status(sampled: &Sampled<Status>) -> String {
    let status = &sampled.current;
    let config = &status.config;
    let mut page = format!(
        "guideway {}, pid {}, up {}, roles: {}\n",
        status.version,
        status.pid,
        duration(status.uptime_seconds),
        status.roles.join(", "),
    );
    page.push_str(&format!(
        "config {}, loaded {} ago (loads {}, refused {})\n",
        config.path,
        duration(now().saturating_sub(config.loaded_at)),
        config.reloads,
        config.failures,
    ));
    if let Some(error) = &config.error {
        page.push_str("the file as it is was REFUSED, the last good state serves:\n");
        page.push_str(&indented(error));
    }
    if !config.needs_restart.is_empty() {
        page.push_str(&format!(
            "after a restart: {}\n",
            config.needs_restart.join(", ")
        ));
    }
    if let Some(kubernetes) = &status.kubernetes {
        page.push_str(&cluster(kubernetes));
    }
    page.push('\n');
    page.push_str(&interfaces(status));
    page.push_str(&egress(status));
    page.push('\n');
    page.push_str(&tables(status));
    let hops: Vec<String> = status
        .next_hops
        .iter()
        .map(|(state, number)| format!("{number} {state}"))
        .collect();
    if !hops.is_empty() {
        page.push_str(&format!("\nnext hops: {}\n", hops.join(", ")));
    }
    page.push_str(&health(status));
    if let Some(untrusted) = &status.untrusted {
        page.push_str(&refused(untrusted));
    }
    if !status.problems.is_empty() {
        page.push_str("\nPROBLEMS");
        if status.unapplied > 0 {
            let tried = format!(
                " (not applied, tried again by themselves: {})",
                status.unapplied
            );
            page.push_str(&tried);
        }
        page.push('\n');
        for problem in status.problems.iter().take(PROBLEMS_SHOWN) {
            page.push_str(&indented(problem));
        }
        let more = status.problems.len().saturating_sub(PROBLEMS_SHOWN);
        if more > 0 {
            page.push_str(&format!("  and {more} more; --json lists all\n"));
        }
    }
    if !status.warnings.is_empty() {
        page.push_str("\nWARNINGS\n");
        for warning in &status.warnings {
            page.push_str(&indented(warning));
        }
    }
    page
}

fn cluster(kubernetes: &Kubernetes) -> String {
    let mut page = match kubernetes.synced_seconds {
        Some(seconds) => format!(
            "kubernetes {}, in step for {}",
            kubernetes.server,
            duration(seconds)
        ),
        None => format!("kubernetes {}, NOT IN STEP YET", kubernetes.server),
    };
    if let Some(seconds) = kubernetes.last_event_seconds {
        page.push_str(&format!(", last event {} ago", duration(seconds)));
    }
    page.push('\n');
    let objects: Vec<String> = kubernetes
        .objects
        .iter()
        .map(|(kind, number)| format!("{number} {kind}"))
        .collect();
    page.push_str(&indented(&objects.join(", ")));
    for reason in &kubernetes.missing {
        page.push_str(&indented(&format!("waits for {reason}")));
    }
    for reason in &kubernetes.broken {
        page.push_str(&indented(&format!("BROKEN {reason}")));
    }
    page
}

/// Names the last machine whose outer headers were refused.
fn refused(untrusted: &Untrusted) -> String {
    format!(
        "last untrusted outer source: {}, {} ago\n",
        untrusted.source,
        duration(untrusted.seconds_ago)
    )
}

fn health(status: &Status) -> String {
    let health = &status.health;
    let mut page = String::new();
    if health.backends + health.nodes > 0 {
        page.push_str(&format!(
            "health: {} of {} checked backends unhealthy, {} of {} nodes unreachable\n",
            health.unhealthy, health.backends, health.unreachable, health.nodes
        ));
    }
    if health.unknown > 0 {
        page.push_str(&format!(
            "health: {} nodes NOT KNOWN YET: no check has come to a result\n",
            health.unknown
        ));
    }
    if health.unchecked > 0 {
        page.push_str(&format!(
            "health: {} checks NOT MADE, see PROBLEMS\n",
            health.unchecked
        ));
    }
    if !health.all_fail.is_empty() {
        page.push_str("\nEVERY BACKEND FAILS, SO ALL SERVE\n");
        for service in health.all_fail.iter().take(PROBLEMS_SHOWN) {
            page.push_str(&indented(service));
        }
        let more = health.all_fail.len().saturating_sub(PROBLEMS_SHOWN);
        if more > 0 {
            page.push_str(&format!("  and {more} more; --json lists all\n"));
        }
    }
    page
}

fn interfaces(status: &Status) -> String {
    let mut table = Table::new(&[("INTERFACE", Left), ("MODE", Left), ("ALLOWED", Left)]);
    let mut notes = String::new();
    for interface in &status.interfaces {
        let mode = interface
            .mode
            .clone()
            .unwrap_or_else(|| "DETACHED".to_owned());
        table.row([interface.name.clone(), mode, interface.wanted.clone()]);
        if let Some(note) = &interface.note {
            notes.push_str(&indented(note));
        }
    }
    table.render("no interfaces") + &notes
}

/// Shows the devices by which replies leave; an edge alone has none.
fn egress(status: &Status) -> String {
    if status.egress.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[("EGRESS", Left), ("MODE", Left)]);
    let mut notes = String::new();
    for egress in status.egress.iter().take(DEVICES_SHOWN) {
        let mode = egress.mode.clone();
        table.row([
            egress.device.clone(),
            mode.unwrap_or_else(|| "DETACHED".to_owned()),
        ]);
    }
    let noted = status
        .egress
        .iter()
        .filter_map(|egress| egress.note.as_ref());
    for note in noted.take(PROBLEMS_SHOWN) {
        notes.push_str(&indented(note));
    }
    let more = status.egress.len().saturating_sub(DEVICES_SHOWN);
    if more > 0 {
        notes.push_str(&format!("  and {more} more; --json lists all\n"));
    }
    format!("\n{}{notes}", table.render("none"))
}

fn tables(status: &Status) -> String {
    let mut table = Table::new(&[
        ("TABLE", Left),
        ("USED", Right),
        ("CAPACITY", Right),
        ("FILL", Right),
        ("LARGEST FREE RUN", Right),
    ]);
    for row in &status.tables {
        table.row([
            row.name.clone(),
            row.used.to_string(),
            row.capacity.to_string(),
            percent(row.used, row.capacity),
            row.largest_free_run
                .map_or_else(String::new, |run| run.to_string()),
        ]);
    }
    table.render("no tables")
}

/// Shows the services.
pub fn services(sampled: &Sampled<Vec<Service>>) -> String {
    let mut table = Table::new(&[
        ("NAME", Left),
        ("SERVICE", Left),
        ("MODE", Left),
        ("BACKENDS", Right),
        ("SLOTS", Right),
        traffic_title(sampled, "PACKETS", "PKT/S"),
        traffic_title(sampled, "BYTES", "BYTE/S"),
    ]);
    let mut problems = String::new();
    for service in &sampled.current {
        let before = |previous: &Vec<Service>| find_service(previous, service).cloned();
        let shown = |value: u64, of: fn(&Service) -> u64| {
            shown(sampled, value, |previous| {
                before(previous).map(|service| of(&service))
            })
        };
        table.row([
            service.name.clone(),
            service.service.clone(),
            mode(service),
            service.backends.to_string(),
            service.slots.to_string(),
            shown(service.packets, |service| service.packets),
            shown(service.bytes, |service| service.bytes),
        ]);
        if let Some(problem) = &service.problem {
            problems.push_str(&indented(&format!("{}: {problem}", service.name)));
        }
        problems.push_str(&policies(service));
        if service.all_fail {
            let note = format!("{}: every backend fails, so all serve", service.name);
            problems.push_str(&indented(&note));
        }
    }
    table.render("no services") + &problems
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
        notes.push(format!(
            "{} PODS LEFT OUT, see `guideway backends`",
            service.left_out
        ));
    }
    if notes.is_empty() {
        return String::new();
    }
    indented(&format!("{}: {}", service.service, notes.join(", ")))
}

fn find_service<'a>(services: &'a [Service], wanted: &Service) -> Option<&'a Service> {
    services
        .iter()
        .find(|service| service.service == wanted.service)
}

/// Shows the backends of every service.
pub fn backends(sampled: &Sampled<Vec<Backend>>) -> String {
    let mut notes = String::new();
    let mut table = Table::new(&[
        ("SERVICE", Left),
        ("ADDRESS", Left),
        ("BACKEND", Left),
        ("WEIGHT", Right),
        ("SHARE", Right),
        ("NEXT HOP", Left),
        traffic_title(sampled, "PACKETS", "PKT/S"),
    ]);
    for backend in &sampled.current {
        let packets = shown(sampled, backend.packets, |previous| {
            let same = previous.iter().find(|other| is_same(other, backend))?;
            Some(same.packets)
        });
        table.row([
            backend.name.clone(),
            backend.service.clone(),
            backend.backend.clone(),
            backend.weight.to_string(),
            percent(backend.slots.into(), backend.table_size.into()),
            way(backend),
            packets,
        ]);
        notes.push_str(&health_note(backend));
        if backend.draining {
            notes.push_str(&indented(&format!(
                "{} {}: terminating, takes no new connections",
                backend.name, backend.backend
            )));
        }
        if backend.left_out {
            notes.push_str(&indented(&format!(
                "{}: {} left out: another pod of {} has the same low 11 bits of its address",
                backend.name, backend.backend, backend.node
            )));
        }
    }
    if sampled.current.iter().any(|backend| backend.weight == 0) {
        notes.push_str(NO_WEIGHT);
    }
    table.render("no backends") + &notes
}

/// Tells whether two rows are of one backend of a service.
fn is_same(one: &Backend, other: &Backend) -> bool {
    (&one.service, &one.backend, &one.node) == (&other.service, &other.backend, &other.node)
}

/// What [`backends`] says where some have no weight.
const NO_WEIGHT: &str = "\
weight 0: takes no new connections from here; a pod of this machine gets what
other machines send to it
";

/// Says how packets leave, and to which node where that is not the backend itself.
fn way(backend: &Backend) -> String {
    let at_node = backend.backend == backend.node || backend.node.is_empty();
    let own = backend
        .backend
        .parse::<SocketAddr>()
        .is_ok_and(|pod| pod.ip().to_string() == backend.node);
    let mut way = if at_node || own {
        backend.next_hop.clone()
    } else {
        format!("{}, {}", backend.node, backend.next_hop)
    };
    if let Some(mtu) = backend.path_mtu {
        way.push_str(&format!(", path MTU {mtu}"));
    }
    way
}

/// Says why a backend does not serve, or might soon not.
fn health_note(backend: &Backend) -> String {
    let (Some(health), Some(reason)) = (&backend.health, &backend.reason) else {
        return String::new();
    };
    let since = backend.since_seconds.unwrap_or(0);
    let state = match (health.as_str(), backend.all_fail) {
        ("healthy", _) => "healthy".to_owned(),
        (_, true) => format!(
            "{} for {}, SERVES AS ALL FAIL",
            health.to_uppercase(),
            duration(since)
        ),
        (_, false) => format!(
            "{} for {}, left out",
            health.to_uppercase(),
            duration(since)
        ),
    };
    indented(&format!(
        "{} {}: {state}: {reason}",
        backend.name, backend.backend
    ))
}

/// Shows why packets were dropped or passed; those without packets only if `all`.
pub fn drops(sampled: &Sampled<Vec<Reason>>, all: bool) -> String {
    let mut table = Table::new(&[
        ("ACTION", Left),
        ("REASON", Left),
        ("PACKETS", Right),
        ("PER SECOND", Right),
    ]);
    for reason in sampled
        .current
        .iter()
        .filter(|reason| all || reason.packets > 0)
    {
        let rate = sampled.rate(reason.packets, |previous| {
            let same =
                |other: &&Reason| other.reason == reason.reason && other.action == reason.action;
            Some(previous.iter().find(same)?.packets)
        });
        table.row([
            reason.action.clone(),
            reason.reason.clone(),
            reason.packets.to_string(),
            rate.map_or_else(String::new, |rate| rate.to_string()),
        ]);
    }
    let mut page = table.render("nothing dropped or passed");
    for reason in &sampled.current {
        for (counter, frames) in &reason.drivers {
            page.push_str(&format!(
                "{}: the driver counts {counter} {frames}\n",
                reason.reason
            ));
        }
        page.push_str(&reason.last.as_ref().map(refused).unwrap_or_default());
    }
    page
}

/// Shows the way of one frame.
pub fn trace(trace: &Trace) -> String {
    let mut page = String::new();
    for step in &trace.steps {
        page.push_str(&format!("{:<9}{}\n", step.name, printable(&step.text)));
    }
    page.push_str(&bytes("before", &trace.before));
    if trace.after != trace.before {
        page.push_str(&bytes("after", &trace.after));
    }
    let verdict = match (&trace.reason, &trace.device) {
        (Some(reason), _) => format!("{}: {reason}", trace.action),
        (None, Some(device)) => format!("{} by {device}", trace.action),
        (None, None) => trace.action.clone(),
    };
    page.push_str(&format!("{:<9}{verdict}\n", "verdict"));
    page
}

/// Shows hexadecimal digits, 16 bytes to the line.
fn bytes(title: &str, digits: &str) -> String {
    let mut page = String::new();
    for (index, line) in digits.as_bytes().chunks(32).enumerate() {
        let pairs: Vec<String> = line
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect();
        let title = if index == 0 { title } else { "" };
        page.push_str(&format!("{title:<9}{}\n", pairs.join(" ")));
    }
    page
}

/// Shows the steps of a look-up.
pub fn which(which: &Which) -> String {
    let mut page = String::new();
    let mut line = |title: &str, text: String| page.push_str(&format!("{title:<9}{text}\n"));
    line(
        "service",
        match &which.name {
            Some(name) => format!("{} ({name})", which.service),
            None => which.service.clone(),
        },
    );
    line("from", which.from.clone());
    if let Some(choice) = &which.choice {
        line("hash", format!("{:#010x}", choice.hash));
        line("slot", format!("{} of {}", choice.slot, choice.table_size));
        let weight = choice
            .weight
            .map_or_else(String::new, |weight| format!("weight {weight}, "));
        line(
            "backend",
            format!(
                "{} ({weight}owns {} slots, {})",
                choice.backend,
                choice.slots,
                percent(choice.slots.into(), choice.table_size.into())
            ),
        );
        line("mode", choice.mode.clone());
    }
    if let Some(ends) = &which.translated {
        line("nat", ends.clone());
    }
    line(
        "verdict",
        match &which.reason {
            // The agent cannot ask the FIB as the datapath does for each packet.
            Some(reason) if reason == "next_hop_unresolved" => {
                format!(
                    "{}: {reason}, unless the kernel's FIB has one",
                    which.action
                )
            }
            Some(reason) => format!("{}: {reason}", which.action),
            None => which.action.clone(),
        },
    );
    if let Some(next_hop) = &which.next_hop {
        line("next hop", next_hop.clone());
    }
    page
}

/// Shows what a detach removed.
pub fn detached(detached: &Detached) -> String {
    if detached.interfaces.is_empty() {
        return "nothing was attached; no pins are left\n".to_owned();
    }
    format!(
        "detached from {}; no pins are left\n",
        detached.interfaces.join(", ")
    )
}

fn traffic_title<T>(
    sampled: &Sampled<T>,
    total: &'static str,
    rate: &'static str,
) -> (&'static str, crate::render::Align) {
    (
        if sampled.previous.is_some() {
            rate
        } else {
            total
        },
        Right,
    )
}

/// Writes a counter, or its rate when there is a sample before it.
fn shown<T>(sampled: &Sampled<T>, value: u64, before: impl FnOnce(&T) -> Option<u64>) -> String {
    match &sampled.previous {
        None => count(value),
        Some(_) => sampled
            .rate(value, before)
            .map_or_else(|| "-".to_owned(), count),
    }
}

fn indented(text: &str) -> String {
    text.lines()
        .map(|line| format!("  {}\n", printable(line)))
        .collect()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::{Choice, ConfigStatus, Egress, Health, Interface, Table as TableFill};

    fn once<T>(current: T) -> Sampled<T> {
        Sampled {
            current,
            previous: None,
        }
    }

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
    fn services_fit_80_columns() {
        let page = services(&once(vec![web()]));
        assert_fits(&page);
        assert!(page.contains("123M"), "{page}");
    }

    #[test]
    fn watched_services_show_rates() {
        let mut before = web();
        before.packets -= 2_500;
        before.bytes -= 1_000_000;
        let page = services(&Sampled {
            current: vec![web()],
            previous: Some((vec![before], Duration::from_millis(500))),
        });
        assert!(
            page.contains("PKT/S") && page.contains("5000") && page.contains("2.00M"),
            "{page}"
        );
    }

    #[test]
    fn service_with_a_problem_is_named() {
        let mut service = web();
        service.problem = Some("the LUT arena is full".to_owned());
        assert!(services(&once(vec![service])).contains("  web-v6: the LUT arena is full\n"));
    }

    #[test]
    fn trace_shows_steps_and_bytes() {
        let page = trace(&Trace {
            steps: vec![crate::api::Step {
                name: "slot".to_owned(),
                text: "3 of 256".to_owned(),
            }],
            before: "00".repeat(17),
            after: "01".to_owned(),
            action: "forward".to_owned(),
            reason: None,
            device: Some("eth0".to_owned()),
        });
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
        let page = backends(&once(vec![pod]));
        assert!(page.contains("10.0.0.1, eth0"), "{page}");
        assert!(page.contains("10.244.0.5:8080 left out"), "{page}");
        let nat = Backend {
            backend: "10.0.0.7:80".to_owned(),
            node: "10.0.0.7".to_owned(),
            ..backend()
        };
        assert!(!backends(&once(vec![nat])).contains("10.0.0.7, "));
    }

    #[test]
    fn policies_of_a_service_are_named() {
        let service = Service {
            traffic_policy: "local".to_owned(),
            source_ranges: 2,
            session_affinity: true,
            local_pods: 3,
            left_out: 1,
            ..web()
        };
        let page = services(&once(vec![service]));
        for text in [
            "l2dsr, local",
            "2 source ranges, affinity by client address, 3 pods here, 1 PODS LEFT OUT",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn backends_fit_80_columns_and_show_address_and_share() {
        let usual = Backend {
            name: "web".to_owned(),
            service: "192.0.2.10:80/tcp".to_owned(),
            backend: "10.244.0.5:8080".to_owned(),
            ..backend()
        };
        let page = backends(&once(vec![usual]));
        assert_fits(&page);
        for text in ["192.0.2.10:80/tcp", "33.33%"] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn rates_of_two_services_with_one_backend_are_their_own() {
        let other = |packets| Backend {
            service: "[2001:db8::10]:443/tcp".to_owned(),
            packets,
            ..backend()
        };
        let page = backends(&Sampled {
            current: vec![backend(), other(3_000)],
            previous: Some((vec![backend(), other(1_000)], Duration::from_secs(1))),
        });
        let rates = page.lines().skip(1);
        let rates: Vec<_> = rates.map(|row| row.split(' ').next_back()).collect();
        assert_eq!(rates, [Some("0"), Some("2000")], "{page}");
    }

    #[test]
    fn draining_backends_are_named() {
        let draining = Backend {
            weight: 0,
            draining: true,
            ..backend()
        };
        let page = backends(&once(vec![backend(), draining]));
        let note = "  web-v6 2001:db8::112: terminating, takes no new connections\n";
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
        let reasons = once(vec![reason("no_backend", 3), reason("fragment", 0)]);
        assert!(!drops(&reasons, false).contains("fragment"));
        assert!(drops(&reasons, true).contains("fragment"));
        assert_fits(&drops(&reasons, true));
        let mut refused = reason("encap_untrusted", 2);
        refused.last = Some(Untrusted {
            source: "198.51.100.1".to_owned(),
            seconds_ago: 75,
        });
        let page = drops(&once(vec![refused]), false);
        let line = "last untrusted outer source: 198.51.100.1, 1m 15s ago\n";
        assert!(page.ends_with(line), "{page}");
        let mut lost = reason("transmit", 7);
        lost.drivers = [("eth0 rx_queue_xdp_tx_errors".to_owned(), 7)].into();
        let page = drops(&once(vec![lost]), false);
        let line = "transmit: the driver counts eth0 rx_queue_xdp_tx_errors 7\n";
        assert!(page.ends_with(line), "{page}");
        assert_eq!(drops(&once(vec![]), false), "nothing dropped or passed\n");
    }

    #[test]
    fn status_fits_80_columns_and_names_what_is_wrong() {
        let page = status(&once(Status {
            version: "0.1.0".to_owned(),
            pid: 4_194_304,
            uptime_seconds: 266_400,
            roles: vec!["edge".to_owned(), "node".to_owned()],
            config: ConfigStatus {
                path: "/etc/guideway/edge.yaml".to_owned(),
                loaded_at: now(),
                reloads: 3,
                failures: 1,
                error: Some("edge.yaml:7:11: port 0\nedge.yaml:9:1: x".to_owned()),
                needs_restart: vec!["tables".to_owned()],
            },
            kubernetes: Some(Kubernetes {
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
            tables: vec![TableFill {
                name: "lut_slots".to_owned(),
                used: 16_384,
                capacity: 16_777_216,
                largest_free_run: Some(8_388_608),
            }],
            next_hops: [("resolved".to_owned(), 3), ("unresolved".to_owned(), 1)].into(),
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
            problems: vec!["service web: full".to_owned(); 12],
            unapplied: 12,
            warnings: vec!["rules masquerade".to_owned()],
            untrusted: Some(Untrusted {
                source: "198.51.100.1".to_owned(),
                seconds_ago: 75,
            }),
        }));
        assert_fits(&page);
        for part in [
            "REFUSED",
            "  edge.yaml:7:11: port 0\n  edge.yaml:9:1: x\n",
            "after a restart: tables",
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
            "EVERY BACKEND FAILS, SO ALL SERVE\n  web (192.0.2.10:80/tcp)\n",
            "PROBLEMS (not applied, tried again by themselves: 12)\n  service web: full\n",
            "  and 2 more; --json lists all\n",
            "WARNINGS\n  rules masquerade\n",
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
        let page = backends(&once(vec![backend(), weightless]));
        assert!(page.ends_with(NO_WEIGHT), "{page}");
        assert_fits(&page);
        assert!(!backends(&once(vec![backend()])).contains(NO_WEIGHT));
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
            ..Backend::default()
        };
        let page = backends(&once(vec![
            failing("unhealthy", "HTTP 503", false),
            failing("unreachable", "node unreachable: 3 echoes missed", true),
            failing("healthy", "1 of 3 failures: timeout 2 s", false),
            Backend {
                reason: None,
                ..failing("healthy", "", false)
            },
        ]));
        let notes: Vec<&str> = page.lines().filter(|line| line.starts_with("  ")).collect();
        assert_eq!(
            notes,
            [
                "  web 10.0.0.1: UNHEALTHY for 1m 15s, left out: HTTP 503",
                "  web 10.0.0.1: UNREACHABLE for 1m 15s, SERVES AS ALL FAIL: node unreachable: 3 echoes missed",
                "  web 10.0.0.1: healthy: 1 of 3 failures: timeout 2 s",
            ]
        );
    }

    #[test]
    fn which_shows_every_step() {
        let page = which(&Which {
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
        });
        assert_eq!(
            page,
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
}
