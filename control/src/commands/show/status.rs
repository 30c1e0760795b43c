//! The page about the agent: configuration, interfaces, tables and problems.

use std::net::IpAddr;

use super::{NOTES_SHOWN, first_notes, indented, last_untrusted, more_than};
use crate::api::{Announced, Health, Kubernetes, Status};
use crate::clock::unix_time;
use crate::render::{Table, duration, percent};

/// Most egress devices on the page. A node has one for each of its pods.
const DEVICES_SHOWN: usize = 20;

/// Formats the agent's status.
pub fn status(status: &Status) -> String {
    let config = &status.config;
    let mut page = format!(
        "guideway {}, pid {}, up {}, roles: {}\nconfig {}, loaded {} ago (loads {}, refused {})\n",
        status.version,
        status.pid,
        duration(status.uptime_seconds),
        status.roles.join(", "),
        config.path,
        duration(unix_time().saturating_sub(config.loaded_at)),
        config.reloads,
        config.failures,
    );
    if let Some(error) = &config.error {
        page += "the file as it is was REFUSED, the last good state serves:\n";
        page += &indented(error);
    }
    if !config.needs_restart.is_empty() {
        page += &format!("after a restart: {}\n", config.needs_restart.join(", "));
    }
    let seed = &status.hash_seed;
    page += &match &seed.fingerprint {
        Some(fingerprint) => format!(
            "hash seed {}, fingerprint {fingerprint}: the same on all edges\n",
            seed.source
        ),
        None => format!("hash seed {}, not known yet\n", seed.source),
    };
    page += &status.kubernetes.as_ref().map(cluster).unwrap_or_default();
    page += &format!(
        "\n{}{}\n{}",
        interfaces(status),
        egress(status),
        tables(status)
    );
    let hops = status.next_hops.iter();
    let hops: Vec<String> = hops.map(|(state, n)| format!("{n} {state}")).collect();
    if !hops.is_empty() {
        page += &format!("\nnext hops: {}\n", hops.join(", "));
    }
    page += &announced(&status.announced);
    page += &health(&status.health);
    page += &status
        .untrusted
        .as_ref()
        .map(last_untrusted)
        .unwrap_or_default();
    if !status.problems.is_empty() {
        page += "\nPROBLEMS";
        if status.unapplied > 0 {
            let unapplied = status.unapplied;
            page += &format!(" (not applied, tried again by themselves: {unapplied})");
        }
        page += "\n";
        page += &first_notes(status.problems.iter());
    }
    if !status.warnings.is_empty() {
        page += "\nWARNINGS\n";
        page.extend(status.warnings.iter().map(|warning| indented(warning)));
    }
    page
}

fn cluster(kubernetes: &Kubernetes) -> String {
    let in_step = match kubernetes.synced_seconds {
        Some(seconds) => format!("in step for {}", duration(seconds)),
        None => "NOT IN STEP YET".to_owned(),
    };
    let mut page = format!("kubernetes {}, {in_step}", kubernetes.server);
    if let Some(seconds) = kubernetes.last_event_seconds {
        page += &format!(", last event {} ago", duration(seconds));
    }
    let objects = kubernetes.objects.iter();
    let objects: Vec<String> = objects.map(|(kind, n)| format!("{n} {kind}")).collect();
    page += &format!("\n{}", indented(&objects.join(", ")));
    for reason in &kubernetes.missing {
        page += &indented(&format!("waits for {reason}"));
    }
    for reason in &kubernetes.broken {
        page += &indented(&format!("BROKEN {reason}"));
    }
    page
}

/// Formats the addresses for which neighbours are answered.
fn announced(announced: &Announced) -> String {
    let drained = match announced.drained {
        true => "\nDRAINED: other edges get its addresses, until `guideway undrain-edge`\n",
        false => "",
    };
    if announced.addresses.is_empty() {
        return drained.to_owned();
    }
    let on = match announced.interfaces.as_slice() {
        [] => "NOWHERE: see PROBLEMS".to_owned(),
        interfaces => format!("on {}", interfaces.join(", ")),
    };
    let addresses: Vec<String> = announced.addresses.iter().map(IpAddr::to_string).collect();
    format!(
        "{drained}\nannounced {on}: {} addresses\n{}",
        addresses.len(),
        first_notes(addresses.iter())
    )
}

fn health(health: &Health) -> String {
    let mut page = String::new();
    if health.backends + health.nodes > 0 {
        page += &format!(
            "health: {} of {} checked backends unhealthy, {} of {} nodes unreachable\n",
            health.unhealthy, health.backends, health.unreachable, health.nodes
        );
    }
    if health.unknown > 0 {
        page += &format!(
            "health: {} nodes NOT KNOWN YET: no check has come to a result\n",
            health.unknown
        );
    }
    if health.unchecked > 0 {
        page += &format!(
            "health: {} checks NOT MADE, see PROBLEMS\n",
            health.unchecked
        );
    }
    if !health.all_fail.is_empty() {
        page += "\nEVERY BACKEND FAILS, SO ALL SERVE\n";
        page += &first_notes(health.all_fail.iter());
    }
    page
}

fn interfaces(status: &Status) -> String {
    let mut table = Table::new(["INTERFACE", "MODE", "ALLOWED"]);
    let mut notes = String::new();
    for interface in &status.interfaces {
        let mode = interface.mode.as_deref().unwrap_or("DETACHED");
        table.row([&interface.name, &mode, &interface.wanted]);
        notes.extend(interface.note.as_deref().map(indented));
    }
    table.render("no interfaces") + &notes
}

/// Formats the devices that replies leave by. A machine that is only an edge has none.
fn egress(status: &Status) -> String {
    if status.egress.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["EGRESS", "MODE"]);
    for egress in status.egress.iter().take(DEVICES_SHOWN) {
        let mode = egress.mode.as_deref().unwrap_or("DETACHED");
        table.row([&egress.device, &mode]);
    }
    let notes = status
        .egress
        .iter()
        .filter_map(|egress| egress.note.as_deref());
    let notes: String = notes.take(NOTES_SHOWN).map(indented).collect();
    let more = more_than(DEVICES_SHOWN, status.egress.len());
    format!("\n{}{notes}{more}", table.render("none"))
}

fn tables(status: &Status) -> String {
    let mut table = Table::new(["TABLE", ">USED", ">CAPACITY", ">FILL", ">LARGEST FREE RUN"]);
    for row in &status.tables {
        let run = row.largest_free_run.map(|run| run.to_string());
        table.row([
            &row.name,
            &row.used,
            &row.capacity,
            &percent(row.used, row.capacity),
            &run.unwrap_or_default(),
        ]);
    }
    table.render("no tables")
}
