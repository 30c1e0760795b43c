//! Metrics of the agent, its configuration, its programs and its tables.

use std::fmt;

use super::encoder::MOST_SERIES;
use super::{Metrics, Snapshot};

pub(super) fn encode(snapshot: &Snapshot, metrics: &mut Metrics<'_>) -> fmt::Result {
    let status = &snapshot.status;
    let config = &status.config;
    metrics.gauges(
        "build_info",
        "Always 1; the label tells the agent's version",
        [([("version", status.version.as_str())], 1)],
    )?;
    metrics.gauge(
        "start_time_seconds",
        "When the agent started, since 1970",
        snapshot.started_at,
    )?;
    let reloads = [("success", config.reloads), ("failure", config.failures)];
    metrics.counters(
        "config_reloads",
        "Times the configuration was read, by result",
        reloads.map(|(result, times)| ([("result", result)], times)),
    )?;
    metrics.gauge(
        "config_last_reload_successful",
        "1 if the file as it is is in force, 0 if it was refused",
        u64::from(config.error.is_none()),
    )?;
    metrics.gauge(
        "config_last_reload_success_timestamp_seconds",
        "When the configuration in force was loaded, since 1970",
        config.loaded_at,
    )?;
    metrics.gauge(
        "unapplied_changes",
        "Services, interfaces and next hops that could not be brought to their desired state",
        status.unapplied,
    )?;
    let interfaces = status.interfaces.iter();
    metrics.gauges(
        "interface_attached",
        "1 if the program is attached to the interface, by mode; 0 with mode none",
        interfaces.map(|one| attached("interface", &one.name, one.mode.as_deref())),
    )?;
    let egress = status.egress.iter();
    let announced = &status.announced;
    let addresses = announced.addresses.iter().take(MOST_SERIES);
    metrics.gauges(
        "announced",
        "1 for each address that neighbours are told to send here, by interface",
        addresses.flat_map(|address| {
            let interfaces = announced.interfaces.iter();
            interfaces.map(move |name| {
                let labels = [
                    ("address", address.to_string()),
                    ("interface", name.clone()),
                ];
                (labels, 1)
            })
        }),
    )?;
    metrics.gauges(
        "egress_attached",
        "1 if the egress program is on the device, by mode; 0 with mode none",
        egress.map(|one| attached("device", &one.device, one.mode.as_deref())),
    )?;
    let tables = status.tables.iter();
    let tables = tables.map(|table| ([("table", table.name.as_str())], table));
    metrics.gauges(
        "table_entries",
        "Entries in use, those about to be freed included",
        tables.clone().map(|(labels, table)| (labels, table.used)),
    )?;
    metrics.gauges(
        "table_capacity",
        "Entries possible",
        tables
            .clone()
            .map(|(labels, table)| (labels, table.capacity)),
    )?;
    metrics.gauges(
        "table_largest_free_run",
        "Longest run of free entries, where one is needed: the largest lookup table that still fits",
        tables.filter_map(|(labels, table)| Some((labels, table.largest_free_run?))),
    )?;
    let dropped = status.past_owners_dropped.iter();
    metrics.counters(
        "past_owners_dropped",
        "Past owners that slots have lost before their day was over, once for each slot, by cause",
        dropped.map(|(cause, count)| ([("cause", cause.as_str())], *count)),
    )?;
    let next_hops = status.next_hops.iter();
    metrics.gauges(
        "next_hops",
        "Node addresses by state of their next hop",
        next_hops.map(|(state, number)| ([("state", state.as_str())], *number)),
    )
}

fn attached<'a>(
    kind: &'static str,
    device: &'a str,
    mode: Option<&'a str>,
) -> ([(&'static str, &'a str); 2], u64) {
    let labels = [(kind, device), ("mode", mode.unwrap_or("none"))];
    (labels, mode.is_some().into())
}
