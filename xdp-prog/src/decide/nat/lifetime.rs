//! NAT mode: for how long a flow lives, and what its packets say of its end.

use super::arrived::{ACCEPTS, BEGINS, DATA, DATAGRAM, ENDS, RESETS};
use crate::{
    abi::{
        NAT_ANSWERED, NAT_CONDEMNED, NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET,
        NatForward, NatMark, NatReverse, Tuple,
    },
    decide::node::deliver::{IDLE_TCP_NS, IDLE_UDP_NS},
    parse::TcpFlags,
    wire::protocol,
    world::NatFlows,
};

/// How long an idle flow that nobody may renew any more keeps its port.
pub const GUARD_NS: u64 = 20_000_000_000;
/// Idle time of a half-open TCP flow.
pub const IDLE_HALF_OPEN_TCP_NS: u64 = 10_000_000_000;
/// Idle time of a half-open flow of another protocol.
pub const IDLE_HALF_OPEN_NS: u64 = 30_000_000_000;
/// Idle time of a TCP connection that both ends have closed.
pub const IDLE_CLOSED_NS: u64 = 60_000_000_000;
/// How long the backend must have been silent on a flow with a RST before another one may take its port.
pub const QUIET_RESET_NS: u64 = 60_000_000_000;
/// How long a half-open TCP flow keeps its port from others, at the least: a round trip over a continent. At the
/// default number of ports, a backend takes 30 000 SYNs a second before any is refused for its sake.
pub const HANDSHAKE_NS: u64 = 150_000_000;
/// The same of a flow of another protocol: nothing but its port tells its late answer from a stranger's.
pub const ANSWER_NS: u64 = 1_000_000_000;
/// How long the backend must have been silent on an open flow of UDP before another one may take its port.
pub const QUIET_DATAGRAMS_NS: u64 = 30_000_000_000;
/// From when on a flow of UDP is believed to be in use: anybody can make one open by two datagrams.
pub const SPAN_OF_USE_NS: u64 = 2_000_000_000;

#[inline(always)]
pub(super) fn is_known(entry: &NatForward, key: &Tuple, now: u64) -> bool {
    entry.is_for(key) && !is_over(entry, key.protocol(), now)
}

#[inline(always)]
pub(super) fn is_live(entry: &NatForward, key: &Tuple, reply: &Tuple, now: u64) -> bool {
    entry.is_for(key) && entry.is_answered_as(reply) && !is_over(entry, key.protocol(), now)
}

/// Tells whether a flow was idle for so long that nobody may renew it.
#[inline(always)]
pub(super) const fn is_over(entry: &NatForward, protocol: u8, now: u64) -> bool {
    entry.mark.idle(now) >= idle_limit(protocol, entry.mark)
}

/// Flags of a TCP connection that both ends have closed.
pub(super) const CLOSED: u8 = NAT_FIN_CLIENT | NAT_FIN_BACKEND;

/// Returns for how long a flow may be idle.
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

/// Tells whether both ends have closed a connection. A RST may be anybody's.
#[inline(always)]
pub(super) const fn is_closed(noted: u8) -> bool {
    noted & CLOSED == CLOSED
}

/// Returns what an open flow's packets have told once the client has sent this one.
#[inline(always)]
pub(super) const fn after_client(protocol: u8, noted: u8, flags: TcpFlags) -> u8 {
    if protocol != protocol::TCP || flags.begins_connection() {
        return noted;
    }
    noted | (if flags.fin() { NAT_FIN_CLIENT } else { 0 })
}

/// Returns what a flow's packets have told once the backend has sent this one.
///
/// A connection that was closed, or had a RST, may be followed by another one of the same ports. The flow is the old
/// one until that is proved: a SYN+ACK that somebody forged, and a RST before it, end nothing.
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

/// Tells whether a SYN+ACK of the backend begins a connection. On one that goes on, it is an old one.
#[inline(always)]
pub(super) const fn accepts_anew(noted: u8) -> bool {
    noted & NAT_OPEN == 0 || noted & NAT_RESET != 0 || is_closed(noted)
}

/// Returns a flow's mark once the backend has sent this packet.
#[inline(always)]
pub(super) const fn marked_by_backend(mark: NatMark, says: u32, now: u64) -> NatMark {
    let noted = after_backend(mark.flags(), says);
    // A half-open connection is not renewed: a backend repeats its SYN+ACK for a minute.
    let renews = says & DATAGRAM != 0 || noted & NAT_OPEN != 0;
    NatMark::new(if renews { now } else { mark.time() }, noted)
}

/// Removes a forward entry that is over, or that says of its flow what no longer holds: that it is answered
/// as `not`.
#[inline(always)]
pub(super) fn forget<T: NatFlows>(tables: &T, key: &Tuple, not: Option<&Tuple>, now: u64) {
    if !tables.claim_nat(key) {
        return;
    }
    if let Some(entry) = tables.see_nat_forward(key, |_| None) {
        let is_stale = match not {
            Some(reply) => !entry.is_answered_as(reply),
            None => false,
        };
        if is_stale || is_over(&entry, key.protocol(), now) {
            tables.remove_nat_forward(key);
        }
    }
    tables.release_nat(key);
}

/// What is to become of a flow's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They stay.
    Lives,
    /// Both may go.
    Over,
    /// The forward entry has gone, or is another flow's: the reverse one may go too.
    Orphan,
}

/// Judges the entries of a flow, by a reverse entry and what was found under its forward key.
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
        // The port is still not for others: the backend may remember the flow.
        _ if reverse.mark.idle(now) >= may_be_over_after(key.protocol(), reverse.mark) => {
            Fate::Orphan
        }
        _ => Fate::Lives,
    }
}

/// Returns from when on a flow may be over, by its reverse entry alone: before that nobody need look at the other.
#[inline(always)]
pub const fn may_be_over_after(protocol: u8, reverse: NatMark) -> u64 {
    // The client's FIN is noted with the backend's.
    let limit = if reverse.has(NAT_OPEN) {
        IDLE_CLOSED_NS
    } else {
        idle_limit(protocol, reverse)
    };
    limit + GUARD_NS
}
