//! The page about the agent: configuration, interfaces, tables and problems.

use std::net::IpAddr;

use super::{NOTES_SHOWN, first_notes, last_untrusted, more_than};
use crate::api::{Announced, Health, Kubernetes, MendStatus, PeersStatus, Status};
use crate::clock::unix_time;
use crate::next_hop::CARRY_COST;
use crate::render::{Page, Table, duration, percent};

/// Most egress devices on the page. A node has one for each of its pods.
const DEVICES_SHOWN: usize = 20;

/// Formats the agent's status.
pub fn status(status: &Status, page: &mut Page) {
    let config = &status.config;
    page.line(&format!(
        "guideway {}, pid {}, up {}, roles: {}",
        status.version,
        status.pid,
        duration(status.uptime_seconds),
        status.roles.join(", "),
    ));
    page.line(&format!(
        "config {}, loaded {} ago (loads {}, refused {})",
        config.path,
        duration(unix_time().saturating_sub(config.loaded_at)),
        config.reloads,
        config.failures,
    ));
    if let Some(error) = &config.error {
        page.line("the file as it is was REFUSED, the last good state serves:");
        page.note(error);
    }
    if !config.needs_restart.is_empty() {
        page.line(&format!(
            "after a restart: {}",
            config.needs_restart.join(", ")
        ));
    }
    let seed = &status.hash_seed;
    page.line(&match &seed.fingerprint {
        Some(fingerprint) => format!(
            "hash seed {}, fingerprint {fingerprint}: the same on all edges",
            seed.source
        ),
        None => format!("hash seed {}, not known yet", seed.source),
    });
    if let Some(kubernetes) = &status.kubernetes {
        cluster(kubernetes, page);
    }
    interfaces(status, page);
    egress(status, page);
    tables(status, page);
    let hops = status.next_hops.iter();
    let hops: Vec<String> = hops.map(|(state, n)| format!("{n} {state}")).collect();
    if !hops.is_empty() {
        page.line("");
        page.line(&format!("next hops: {}", hops.join(", ")));
    }
    announced(&status.announced, page);
    health(&status.health, page);
    mend(status.mend.as_ref(), page);
    peers(status.peers.as_ref(), page);
    if let Some(untrusted) = &status.untrusted {
        page.line(&last_untrusted(untrusted));
    }
    if !status.problems.is_empty() {
        page.line("");
        page.line(&match status.unapplied {
            0 => "PROBLEMS".to_owned(),
            unapplied => {
                format!("PROBLEMS (not applied, tried again by themselves: {unapplied})")
            }
        });
        first_notes(page, status.problems.iter());
    }
    if !status.warnings.is_empty() {
        page.line("");
        page.line("WARNINGS");
        for warning in &status.warnings {
            page.note(warning);
        }
    }
}

fn cluster(kubernetes: &Kubernetes, page: &mut Page) {
    let in_step = match kubernetes.synced_seconds {
        Some(seconds) => format!("in step for {}", duration(seconds)),
        None => "NOT IN STEP YET".to_owned(),
    };
    let last_event = kubernetes.last_event_seconds;
    let last_event = last_event.map(|seconds| format!(", last event {} ago", duration(seconds)));
    page.line(&format!(
        "kubernetes {}, {in_step}{}",
        kubernetes.server,
        last_event.unwrap_or_default()
    ));
    let objects = kubernetes.objects.iter();
    let objects: Vec<String> = objects.map(|(kind, n)| format!("{n} {kind}")).collect();
    page.note(&objects.join(", "));
    for reason in &kubernetes.missing {
        page.note(&format!("waits for {reason}"));
    }
    for reason in &kubernetes.broken {
        page.note(&format!("BROKEN {reason}"));
    }
}

/// Adds the addresses for which neighbours are answered.
fn announced(announced: &Announced, page: &mut Page) {
    if announced.drained {
        page.line("");
        page.line("DRAINED: other edges get its addresses, until `guideway undrain-edge`");
    }
    if announced.addresses.is_empty() {
        return;
    }
    let on = match announced.interfaces.as_slice() {
        [] => "NOWHERE: see PROBLEMS".to_owned(),
        interfaces => format!("on {}", interfaces.join(", ")),
    };
    let addresses: Vec<String> = announced.addresses.iter().map(IpAddr::to_string).collect();
    page.line("");
    page.line(&format!("announced {on}: {} addresses", addresses.len()));
    first_notes(page, addresses.iter());
}

fn health(health: &Health, page: &mut Page) {
    if health.backends + health.nodes > 0 {
        page.line(&format!(
            "health: {} of {} checked backends unhealthy, {} of {} nodes unreachable",
            health.unhealthy, health.backends, health.unreachable, health.nodes
        ));
    }
    if health.unknown > 0 {
        page.line(&format!(
            "health: {} nodes NOT KNOWN YET: no check has come to a result",
            health.unknown
        ));
    }
    if health.unchecked > 0 {
        page.line(&format!(
            "health: {} checks NOT MADE, see PROBLEMS",
            health.unchecked
        ));
    }
    if !health.all_fail.is_empty() {
        page.line("");
        page.line("EVERY BACKEND FAILS, SO ALL SERVE");
        first_notes(page, health.all_fail.iter());
    }
}

/// Adds what is held of packets that XDP cannot finish.
fn mend(mend: Option<&MendStatus>, page: &mut Page) {
    let Some(mend) = mend else {
        return;
    };
    page.line(&format!(
        "mend: {} of {} queues open; packets: {} punted, {} taken, {} lost",
        mend.open, mend.queues, mend.punted, mend.taken, mend.lost,
    ));
    page.note(&format!(
        "{} held, in {} of {} KiB",
        mend.held,
        mend.held_bytes.div_ceil(1 << 10),
        mend.memory_bytes >> 10,
    ));
    let carried: Vec<String> = mend
        .carried
        .iter()
        .map(|(device, next_hops)| format!("{next_hops} next hops by {device}"))
        .collect();
    if !carried.is_empty() {
        page.note(&format!("carried, {CARRY_COST}: {}", carried.join(", ")));
    }
    first_notes(page, mend.problems.iter());
}

/// Adds how the exchange with other edges goes.
fn peers(peers: Option<&PeersStatus>, page: &mut Page) {
    let Some(status) = peers else {
        return;
    };
    let all = &status.peers;
    let answering = all.iter().filter(|peer| peer.refused.is_none()).count();
    let agreeing = all.iter().filter(|peer| peer.agrees).count();
    let begun = match status.begun.as_str() {
        "from_peer" => "; began with the past of a peer",
        "without" => "; began WITHOUT THE PAST of others",
        "waits" => "; WAITS for the past of a peer",
        _ => "",
    };
    page.line(&format!(
        "peers: {answering} of {} answer, {agreeing} agree{begun}",
        all.len()
    ));
    if let Some(reason) = &status.missing_key {
        page.note(&format!("NO KEY: {reason}"));
    }
    let refused = status.refused.iter().filter(|(_, count)| **count > 0);
    let refused: Vec<String> = refused
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    let refused = match refused.as_slice() {
        [] => "nothing".to_owned(),
        refused => refused.join(", "),
    };
    page.note(&format!(
        "{} slots taken, {} owners left out; refused: {refused}",
        status.slots_taken, status.owners_left_out
    ));
    let failing = all.iter().filter_map(|peer| {
        let refused = peer.refused.as_ref()?;
        let answered = peer.answered_seconds_ago;
        let answered = answered.map_or_else(
            || "never answered".to_owned(),
            |seconds| format!("answered {} ago", duration(seconds)),
        );
        Some(format!(
            "NOTHING TAKEN from {}, which {answered}: {refused}",
            peer.address
        ))
    });
    let failing: Vec<String> = failing.collect();
    first_notes(page, failing.iter());
}

fn interfaces(status: &Status, page: &mut Page) {
    let mut table = Table::new(["INTERFACE", "MODE", "ALLOWED"]);
    for interface in &status.interfaces {
        let mode = interface.mode.as_deref().unwrap_or("DETACHED");
        table.row([&interface.name, &mode, &interface.wanted]);
    }
    page.line("");
    page.table(&table, "no interfaces");
    let notes = status.interfaces.iter();
    let notes = notes.filter_map(|interface| interface.note.as_deref());
    notes.for_each(|note| page.note(note));
}

/// Adds the devices that replies leave by. A machine that is only an edge has none.
fn egress(status: &Status, page: &mut Page) {
    if status.egress.is_empty() {
        return;
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
    page.line("");
    page.table(&table, "none");
    notes.take(NOTES_SHOWN).for_each(|note| page.note(note));
    more_than(page, DEVICES_SHOWN, status.egress.len());
}

fn tables(status: &Status, page: &mut Page) {
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
    page.line("");
    page.table(&table, "no tables");
}
