//! Metrics of forwarded packets by service and backend, and of packets that were not forwarded.

use std::fmt;

use super::encoder::{OTHERS, key_labels, series, service_labels, with_series};
use super::others::Row;
use super::{Metrics, Snapshot};
use crate::desired::ServiceKey;

pub(super) fn encode(snapshot: &Snapshot, metrics: &mut Metrics<'_>) -> fmt::Result {
    let reasons = snapshot.reasons.iter();
    metrics.counters(
        "packets",
        "Packets dropped, passed to the kernel's stack, answered, sent on to a client, punted to the agent, or mended there, by reason",
        reasons.map(|row| {
            let labels = [("action", row.action.as_str()), ("reason", &row.reason)];
            (labels, row.packets)
        }),
    )?;
    let mend = snapshot.status.mend.as_ref();
    metrics.gauges(
        "mend_held_packets",
        "Packets that are held until the first fragment of their datagram comes, or their next hop is known; only if packets are mended",
        mend.map(|mend| ([("of", "all")], mend.held)),
    )?;
    metrics.gauges(
        "mend_held_bytes",
        "Memory that held packets take, with what is noted of each; only if packets are mended",
        mend.map(|mend| ([("of", "all")], mend.held_bytes)),
    )?;
    metrics.gauges(
        "mend_carried_next_hops",
        "Nodes that are reached by a device that takes no frames from XDP, so that the agent sends them; only if packets are mended",
        mend.into_iter()
            .flat_map(|mend| &mend.carried)
            .map(|(device, nodes)| ([("device", device.as_str())], *nodes)),
    )?;
    let queues = mend.map(|mend| [("wanted", mend.queues), ("open", mend.open)]);
    metrics.gauges(
        "mend_queues",
        "Queues by which packets come that are mended: those that are to be open, and those that are; only if packets are mended",
        queues
            .into_iter()
            .flatten()
            .map(|(state, number)| ([("state", state)], number)),
    )?;
    let failures = snapshot.failures.iter();
    metrics.counters(
        "transmit_failures",
        "Frames that XDP sent and the kernel or the driver could not, of all XDP programs of the machine, by cause",
        failures.map(|row| ([("cause", row.reason.as_str())], row.packets)),
    )?;
    metrics.gauge(
        "services",
        "Services by address, port and protocol; of more than 5000 those with the most packets have series of their own, and the others share one",
        snapshot.services.len(),
    )?;
    metrics.gauge(
        "backends",
        "Backends, each once for every service that has it; of more than 5000 those with the most packets have series of their own, and the others share one",
        snapshot.backends.len(),
    )?;
    let services = || {
        let own = with_series(&snapshot.services).map(|row| (service_labels(row), row.counts()));
        let others = snapshot.other_services;
        own.chain(others.map(|counts| (key_labels(OTHERS, None), counts)))
    };
    metrics.counters(
        "service_packets",
        "Packets forwarded to backends of the service",
        services().map(|(labels, counts)| (labels, counts.packets)),
    )?;
    metrics.counters(
        "service_bytes",
        "Bytes of these packets as they came in, from the IP header on",
        services().map(|(labels, counts)| (labels, counts.bytes)),
    )?;
    metrics.gauges(
        "service_backends",
        "Backends of the service",
        with_series(&snapshot.services).map(|row| (service_labels(row), row.backends)),
    )?;
    metrics.gauges(
        "service_left_out_backends",
        "Pods without traffic because they share their node and tag with another one; of more than 5000 services those with such pods come first",
        series(&snapshot.services, |row| row.left_out > 0)
            .map(|row| (service_labels(row), row.left_out)),
    )?;
    let backends = || {
        let labels = |name: &str, key: Option<ServiceKey>, backend: &str| {
            let [service, namespace, name, _, port, _] = key_labels(name, key);
            [
                service,
                namespace,
                name,
                port,
                ("backend", backend.to_owned()),
            ]
        };
        let own = with_series(&snapshot.backends).map(move |row| {
            let key = row.service.parse().ok();
            (labels(&row.name, key, &row.backend), row.counts())
        });
        let others = snapshot.other_backends;
        own.chain(others.map(|counts| (labels(OTHERS, None, OTHERS), counts)))
    };
    metrics.counters(
        "backend_packets",
        "Packets forwarded to the backend for the service, at whichever of its addresses",
        backends().map(|(labels, counts)| (labels, counts.packets)),
    )?;
    metrics.counters(
        "backend_bytes",
        "Bytes of these packets as they came in, from the IP header on",
        backends().map(|(labels, counts)| (labels, counts.bytes)),
    )
}
