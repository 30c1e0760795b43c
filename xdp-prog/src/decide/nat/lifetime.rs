//! NAT mode: how long a flow lives, and what its packets say about its end.

use super::arrived::{ACCEPTS, BEGINS, DATA, DATAGRAM, ENDS, RESETS};
use crate::{
    abi::{
        NAT_ANSWERED, NAT_CONDEMNED, NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET,
        NatForward, NatMark, NatReverse, Tuple,
    },
    flow_state::{IDLE_TCP_NS, IDLE_UDP_NS},
    parse::TcpFlags,
    wire::protocol,
    world::NatFlows,
};

/// How long a flow that may not be renewed any more keeps its port.
pub const GUARD_NS: u64 = 20_000_000_000;
/// Longest idle time of a half-open TCP flow.
pub const IDLE_HALF_OPEN_TCP_NS: u64 = 10_000_000_000;
/// Longest idle time of a half-open flow of another protocol.
pub const IDLE_HALF_OPEN_NS: u64 = 30_000_000_000;
/// Longest idle time of a TCP connection that both ends have closed.
pub const IDLE_CLOSED_NS: u64 = 60_000_000_000;
/// How long the backend must be silent after a RST before another flow may take the port.
pub const QUIET_RESET_NS: u64 = 60_000_000_000;
/// How long a half-open TCP flow keeps its port at least: a round trip over a continent. With the default number of
/// ports, a backend takes 30 000 SYNs a second before this makes it refuse any.
pub const HANDSHAKE_NS: u64 = 150_000_000;
/// As [`HANDSHAKE_NS`], for other protocols. It is longer, because only the port tells a late answer from another
/// flow's.
pub const ANSWER_NS: u64 = 1_000_000_000;
/// How long the backend must be silent on an open UDP flow before another flow may take the port.
pub const QUIET_DATAGRAMS_NS: u64 = 30_000_000_000;
/// How long a UDP flow must be in use to count as open under pressure: anybody can open one by two datagrams.
pub const SPAN_OF_USE_NS: u64 = 2_000_000_000;

#[inline(always)]
pub(super) fn is_known(entry: &NatForward, key: &Tuple, now: u64) -> bool {
    entry.is_for(key) && !is_over(entry, key.protocol(), now)
}

#[inline(always)]
pub(super) fn is_live(entry: &NatForward, key: &Tuple, reply: &Tuple, now: u64) -> bool {
    entry.is_for(key) && entry.is_answered_as(reply) && !is_over(entry, key.protocol(), now)
}

/// Tells whether a flow was idle for so long that no packet may renew it.
#[inline(always)]
pub(super) const fn is_over(entry: &NatForward, protocol: u8, now: u64) -> bool {
    entry.mark.idle(now) >= idle_limit(protocol, entry.mark)
}

/// Flags of a TCP connection that both ends have closed with a FIN.
pub(super) const CLOSED: u8 = NAT_FIN_CLIENT | NAT_FIN_BACKEND;

/// Returns how long a flow may be idle, in ns.
#[inline(always)]
pub const fn idle_limit(protocol: u8, mark: NatMark) -> u64 {
    if mark.has(NAT_CONDEMNED) {
        0
    } else if !mark.has(NAT_OPEN) {
        if protocol == protocol::TCP {
            IDLE_HALF_OPEN_TCP_NS
        } else {
            IDLE_HALF_OPEN_NS
        }
    } else if protocol != protocol::TCP {
        IDLE_UDP_NS
    } else if is_closed(mark.flags()) {
        IDLE_CLOSED_NS
    } else {
        IDLE_TCP_NS
    }
}

/// Tells whether both ends have closed a connection. A RST does not count, because anybody can forge one.
#[inline(always)]
pub(super) const fn is_closed(noted: u8) -> bool {
    noted & CLOSED == CLOSED
}

/// Returns the flags of an open flow after this packet of the client.
#[inline(always)]
pub(super) const fn after_client(protocol: u8, noted: u8, flags: TcpFlags) -> u8 {
    if protocol != protocol::TCP || flags.begins_connection() {
        return noted;
    }
    noted | (if flags.fin() { NAT_FIN_CLIENT } else { 0 })
}

/// Returns the flags of a flow after this packet of the backend.
///
/// After a RST or both FINs, another connection may use the same ports. The flow stays the old one until the new
/// connection is proved: a forged RST and the SYN+ACK that follows it end nothing.
#[inline(always)]
pub(super) const fn after_backend(noted: u8, says: u32) -> u8 {
    let fin = if says & ENDS != 0 { NAT_FIN_BACKEND } else { 0 };
    if says & DATAGRAM != 0 || (says & ACCEPTS != 0 && accepts_anew(noted)) {
        noted | NAT_ANSWERED
    } else if says & BEGINS != 0 && noted & NAT_ANSWERED != 0 {
        NAT_OPEN | fin
    } else if says & ACCEPTS != 0 || noted & NAT_OPEN == 0 {
        noted
    } else if says & RESETS != 0 {
        noted | NAT_RESET
    } else if says & DATA != 0 {
        noted & !(NAT_RESET | NAT_ANSWERED) | fin
    } else {
        noted & !NAT_RESET | fin
    }
}

/// Tells whether a backend's SYN+ACK begins a connection. On an open connection, it is an old one.
#[inline(always)]
pub(super) const fn accepts_anew(noted: u8) -> bool {
    noted & NAT_OPEN == 0 || noted & NAT_RESET != 0 || is_closed(noted)
}

/// Returns a flow's mark after this packet of the backend.
#[inline(always)]
pub(super) const fn marked_by_backend(mark: NatMark, says: u32, now: u64) -> NatMark {
    let noted = after_backend(mark.flags(), says);
    // A SYN+ACK does not renew a half-open connection: the backend repeats it for a minute.
    let renews = says & DATAGRAM != 0 || noted & NAT_OPEN != 0;
    NatMark::new(if renews { now } else { mark.time() }, noted)
}

/// Removes a forward entry that is over. If `current_reply` is the flow's present reply key, it also removes an entry
/// with another one: the backend or the NAT address has changed.
#[inline(always)]
pub(super) fn forget<T: NatFlows>(
    tables: &T,
    key: &Tuple,
    current_reply: Option<&Tuple>,
    now: u64,
) {
    if !tables.claim_nat(key) {
        return;
    }
    if let Some(entry) = tables.see_nat_forward(key, |_| None) {
        let is_stale = match current_reply {
            Some(reply) => !entry.is_answered_as(reply),
            None => false,
        };
        if is_stale || is_over(&entry, key.protocol(), now) {
            tables.remove_nat_forward(key);
        }
    }
    tables.release_nat(key);
}

/// The fate of a flow's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Both entries stay.
    Lives,
    /// Both entries may be removed.
    Over,
    /// The forward entry has gone or belongs to another flow, so the reverse entry may be removed.
    Orphan,
}

/// Judges a flow by its reverse entry, and by the entry found under its forward key.
#[inline(always)]
pub fn fate(
    key: &Tuple,
    forward: Option<&NatForward>,
    reply: &Tuple,
    reverse: &NatReverse,
    now: u64,
) -> Fate {
    match forward {
        Some(entry) if entry.is_for(key) && entry.is_answered_as(reply) => {
            let limit = idle_limit(key.protocol(), entry.mark);
            if entry.mark.idle(now) >= limit + GUARD_NS {
                Fate::Over
            } else {
                Fate::Lives
            }
        }
        // The port stays reserved for a while, because the backend may still remember the flow.
        _ if reverse.mark.idle(now) >= may_be_over_after(key.protocol(), reverse.mark) => {
            Fate::Orphan
        }
        _ => Fate::Lives,
    }
}

/// Returns the idle time in ns after which a flow may be over, by its reverse entry alone. Before that, nobody need
/// read the forward entry.
#[inline(always)]
pub const fn may_be_over_after(protocol: u8, reverse: NatMark) -> u64 {
    // The reverse entry learns of the client's FIN only with a packet of the backend, so an open flow may be closed.
    let limit = if reverse.has(NAT_OPEN) {
        IDLE_CLOSED_NS
    } else {
        idle_limit(protocol, reverse)
    };
    limit + GUARD_NS
}
