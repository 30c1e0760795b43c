//! Egress: replies of a node's pods get back the address that the client talks to.
//!
//! The TC egress program runs [`process`] over every packet that leaves by an uplink or towards a pod. Such a packet
//! is not finished: its checksum may be left to the device, and it may be many merged segments. So the kernel's
//! helper, which knows about both ([`Skb`]), changes the transport checksum, unless the packet itself shows that its
//! checksum is finished.
//!
//! ```text
//! packet
//!  | mark of a check -------- PROBES                                 -> the way of a client's packet
//!  | headers::read        not IP, nonsense                          -> untouched
//!  v
//! TCP, UDP, SCTP -------- from no port in EGRESS_PORTS              -> untouched
//! hairpin flow ---------- of the ways below                         -> destination too, back to the stack
//! later fragment -------- FRAGMENTS -> FLOWS                        -> source address
//! TCP, UDP, SCTP -------- FLOW_NOTES, FLOWS, FLOWS_EMBRYONIC        -> source address and port, MSS of a SYN+ACK
//!  |                      none that this answers (`decide::node::unproved`), but from a NodePort of this machine
//!  |                                                                -> LOCAL_FLOWS, untouched
//!  |                      none, while flows of former tables are copied -> dropped
//! ICMP, ICMPv6 error ---- quotes a flow of FLOWS, FLOWS_EMBRYONIC   -> quoted destination, source where it is the pod's
//! else                                                              -> untouched
//! ```
//!
//! The program reads everything that it needs from the packet before its first change, because helpers that change a
//! packet invalidate pointers into it.

mod flows;
mod fragments;
mod hairpin;
pub mod headers;
mod icmp;
mod local_flows;
mod mss;
mod probe;
mod reply;
mod rewrite;

#[cfg(not(target_arch = "bpf"))]
pub mod host;

use self::headers::{Headers, Part};
use crate::{
    abi::{
        AddressKey, Config, IndexEntry, LocalFlow, Probe, Service, ServiceKeyV4, ServiceKeyV6,
        Tuple,
    },
    csum::Sum,
    family::Family,
    frame::{Frame, Wire},
    reason::{DropReason, PassReason},
    wire::{protocol, transport::Ports},
    world::{Counters, Flows, Fragments, Relay},
};

/// An outgoing packet, with the kernel's helpers to change it.
///
/// [`Frame::view`] shows the linear part only.
pub trait Skb: Frame {
    /// Returns the length of the whole frame in bytes.
    fn length(&self) -> usize;

    /// Makes the first `length` bytes linear, if the frame has them.
    fn pull(&mut self, length: usize);

    /// Returns the header at `offset` for writing, if it is in the linear part.
    ///
    /// For such a program, the kernel makes the linear part writable before the program runs, and drops the packet if
    /// it cannot (`bpf_unclone_prologue` in `net/core/filter.c`).
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T>;

    /// Overwrites the first `length` bytes at `offset`, in the linear part or behind it.
    ///
    /// # Errors
    ///
    /// [`DropReason::NotWritable`] if the kernel has no memory for it.
    fn store(&mut self, offset: usize, bytes: [u64; 2], length: usize) -> Result<(), DropReason>;

    /// Tells whether the packet is many merged segments, which the device or the kernel will cut apart.
    fn is_merged(&self) -> bool;

    /// Returns the packet's mark.
    fn mark(&self) -> u32;

    /// Clears the packet's mark.
    fn unmark(&mut self);

    /// Tells whether [`Self::mark_translated`] was called, at another device that the packet has passed.
    fn is_translated(&self) -> bool;

    /// Marks the packet as translated, for as long as it lives.
    fn mark_translated(&mut self);

    /// Makes room for an outer header of `length` bytes in front of the IP header. The new bytes are undefined.
    ///
    /// # Errors
    ///
    /// [`DropReason::NotWritable`] if the kernel has no memory for it.
    fn grow(&mut self, outer: Family, length: usize) -> Result<(), DropReason>;

    /// Updates a transport checksum after a change that `difference` records.
    ///
    /// # Errors
    ///
    /// [`DropReason::NotWritable`] if the kernel has no memory for it.
    fn replace_checksum(
        &mut self,
        field: ChecksumField,
        difference: Sum,
        covered: Covered,
    ) -> Result<(), DropReason>;
}

/// The place of a transport checksum, and the meaning of zero in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumField {
    /// Offset in the frame.
    pub offset: usize,
    /// Whether zero means that there is no checksum, as in UDP; a computed zero is then written as all ones.
    pub zero_is_none: bool,
}

/// The place of the changed bytes that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// The pseudo-header: a device that finishes the checksum does not add these bytes.
    PseudoHeader,
    /// The segment: a device that finishes the checksum adds these bytes.
    Segment,
}

/// The tables that egress looks up and writes.
pub trait Memory: Flows + Fragments + Counters + Relay {
    /// Returns the machine-wide settings.
    fn config(&self) -> Option<&Config>;
    /// Returns what the index says of an IPv4 service.
    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry>;
    /// Returns what the index says of an IPv6 service.
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry>;
    /// Returns a service, its word read with one load.
    fn service(&self, id: u32) -> Option<Service>;
    /// Tells whether a port is a NodePort, or one from which pods of this machine answer.
    fn is_egress_port(&self, port: u16) -> bool;
    /// Returns the way of a check, by the index in its mark.
    fn probe(&self, index: u32) -> Option<&Probe>;
    /// Notes the tuple of a check's answer as it comes in, and the address to which the check's socket is connected.
    fn remember_probe(&self, answer: &Tuple, peer: &AddressKey);
    /// Replaces the state of a flow of this machine's kernel by the result of `renew`; `flow` is the tuple of its
    /// answers. An unknown flow that `renew` leaves unknown is not stored.
    fn renew_local(&self, flow: &Tuple, renew: impl Fn(LocalFlow) -> LocalFlow);
}

/// The change that was made to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Untouched,
    Translated,
    Turned,
    Diverted,
}

/// The way on of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Out of the device.
    Out,
    /// Back to the stack, as if it had come in by the device, because its client is on this machine.
    Back,
}

/// Processes one packet: finds its flow, translates it and counts it.
///
/// # Errors
///
/// Returns the reason, already counted, why the packet is half translated and must be dropped.
#[inline(always)]
pub fn process<S: Skb, T: Memory>(skb: &mut S, tables: &T) -> Result<Next, DropReason> {
    let outcome = match probe::index(skb.mark()) {
        Some(index) => probe::divert(skb, tables, index),
        None => translate(skb, tables),
    };
    match outcome {
        Ok(Outcome::Untouched) => Ok(Next::Out),
        Ok(Outcome::Diverted) => {
            tables.count_reason(PassReason::ProbeSent.index());
            Ok(Next::Out)
        }
        Ok(Outcome::Translated) => {
            skb.mark_translated();
            tables.count_reason(PassReason::Translated.index());
            Ok(Next::Out)
        }
        Ok(Outcome::Turned) => {
            tables.count_reason(PassReason::Translated.index());
            Ok(Next::Back)
        }
        Err(reason) => {
            tables.count_reason(reason.index());
            Err(reason)
        }
    }
}

#[inline(always)]
fn translate<S: Skb, T: Memory>(skb: &mut S, tables: &T) -> Result<Outcome, DropReason> {
    let Some(packet) = headers::read(skb) else {
        return Ok(Outcome::Untouched);
    };
    if !may_be_ours(skb, tables, &packet) {
        return Ok(Outcome::Untouched);
    }
    let Some(packet) = packet.relayed(tables) else {
        return Ok(Outcome::Untouched);
    };
    match (packet.protocol, packet.part) {
        (protocol::TCP | protocol::UDP | protocol::SCTP, Part::Later) => {
            fragments::later(skb, tables, &packet)
        }
        (protocol::TCP | protocol::UDP | protocol::SCTP, _) => {
            reply::translate(skb, tables, &packet)
        }
        (protocol::ICMP | protocol::ICMPV6, Part::Whole) => icmp::translate(skb, tables, &packet),
        _ => Ok(Outcome::Untouched),
    }
}

/// Sorts out most other packets by their source port alone: a reply comes from a pod's port, and flows of the kernel
/// count only if they leave from a NodePort.
#[inline(always)]
fn may_be_ours<S: Skb, T: Memory>(skb: &S, tables: &T, packet: &Headers) -> bool {
    match (packet.protocol, packet.part) {
        // A later fragment has no ports, and the quote of an error has those of the other direction.
        (protocol::TCP | protocol::UDP | protocol::SCTP, Part::Later)
        | (protocol::ICMP | protocol::ICMPV6, Part::Whole) => true,
        (protocol::TCP | protocol::UDP | protocol::SCTP, _) => match skb.view::<Ports>(packet.l4) {
            Some(ports) => tables.is_egress_port(u16::from_be_bytes(ports.source)),
            // The ports are behind the linear part.
            None => true,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests;
