//! Metrics of the exchange of owners with other edges.

use std::fmt;

use super::Metrics;
use crate::api::PeersStatus;

pub(super) fn encode(peers: Option<&PeersStatus>, metrics: &mut Metrics<'_>) -> fmt::Result {
    let of_all = peers.map(|status| {
        let answering = status.peers.iter().filter(|peer| peer.refused.is_none());
        let agreeing = status.peers.iter().filter(|peer| peer.agrees);
        [
            ("all", status.peers.len()),
            ("answering", answering.count()),
            ("agreeing", agreeing.count()),
        ]
    });
    metrics.gauges(
        "peers",
        "Other edges that were asked for their owners: all, those whose last answer was taken, and those that left nothing to take",
        of_all
            .into_iter()
            .flatten()
            .map(|(state, number)| ([("state", state)], number)),
    )?;
    let Some(status) = peers else {
        return Ok(());
    };
    metrics.gauge(
        "peers_key_missing",
        "Whether the key that edges share is not known here, so that nothing is exchanged",
        u64::from(status.missing_key.is_some()),
    )?;
    metrics.counter(
        "peer_exchanges",
        "Exchanges of owners that this edge began",
        status.asked,
    )?;
    metrics.counter(
        "peer_requests_answered",
        "Requests of other edges that were answered",
        status.answered,
    )?;
    let refused = status.refused.iter();
    metrics.counters(
        "peer_refusals",
        "Exchanges and requests of other edges that failed or were refused, by reason; they changed nothing",
        refused.map(|(reason, count)| ([("reason", reason.as_str())], *count)),
    )?;
    metrics.counter(
        "peer_slots_taken",
        "Slots of lookup tables that got past owners from other edges",
        status.slots_taken,
    )?;
    metrics.counter(
        "peer_owners_left_out",
        "Owners of other edges that were left out, because their nodes are not known here or a table is full",
        status.owners_left_out,
    )
}
