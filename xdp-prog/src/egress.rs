//! What a node sends: replies of its pods get back the address that the client talks to.
//!
//! The TC egress program runs [`process`] over every packet that leaves by an
//! uplink or towards a pod. The packet is not finished there: its checksum may
//! be left to the device, and it may be a hundred segments at once. Hence a
//! transport checksum is changed by the kernel's helper, which knows about both ([`Skb`]), unless the packet
//! itself tells that the checksum is finished.
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
//! ICMP, ICMPv6 error ---- quotes a flow of FLOWS, FLOWS_EMBRYONIC   -> quoted destination, source where it is the pod's
//! else                                                              -> untouched
//! ```
//!
//! The program reads all it needs of the packet before the first change: helpers that change a packet invalidate
//! pointers into it.

mod flows;
mod fragments;
mod hairpin;
pub mod headers;
mod icmp;
mod mss;
mod own;
mod probe;
mod reply;
mod rewrite;

#[cfg(not(target_arch = "bpf"))]
pub mod host;

use self::headers::{Headers, Part};
use crate::{
    abi::{
        AddressKey, Config, Datagram, LocalFlow, Probe, Service, ServiceKeyV4, ServiceKeyV6, Tuple,
    },
    csum::Sum,
    family::Family,
    frame::{Frame, Wire},
    reason::{DropReason, PassReason},
    wire::{protocol, transport::Ports},
    world::{Counters, Flows, Relay},
};

/// A packet that is about to be sent, with the kernel's helpers to change it.
///
/// [`Frame::view`] shows the linear part only.
pub trait Skb: Frame {
    /// Returns the length of the whole frame.
    fn length(&self) -> usize;

    /// Makes the first `length` bytes linear, if the frame has them.
    fn pull(&mut self, length: usize);

    /// Returns the header at `offset` for writing, if it is in the linear part.
    ///
    /// For a program that does so the kernel makes the linear part writable before the program runs, and drops
    /// the packet if it cannot (`bpf_unclone_prologue` in `net/core/filter.c`).
    fn view_mut<T: Wire>(&mut self, offset: usize) -> Option<&mut T>;

    /// Overwrites the first `length` bytes at `offset`, wherever they lie.
    ///
    /// # Errors
    ///
    /// [`DropReason::NotWritable`].
    fn store(&mut self, offset: usize, bytes: [u64; 2], length: usize) -> Result<(), DropReason>;

    /// Tells whether it is many segments, which are still to be cut apart.
    fn is_merged(&self) -> bool;

    /// Returns the packet's mark.
    fn mark(&self) -> u32;

    /// Takes the packet's mark off.
    fn unmark(&mut self);

    /// Tells whether [`Self::mark_translated`] was called, by another device that the packet has passed.
    fn is_translated(&self) -> bool;

    /// Marks the packet as a reply that has been translated, for as long as the packet lives.
    fn mark_translated(&mut self);

    /// Makes room for an outer header of `length` bytes in front of the IP header, whose bytes are
    /// then undefined.
    ///
    /// # Errors
    ///
    /// [`DropReason::NotWritable`].
    fn grow(&mut self, outer: Family, length: usize) -> Result<(), DropReason>;

    /// Makes a transport checksum right again after a change that `difference` records.
    ///
    /// # Errors
    ///
    /// [`DropReason::NotWritable`].
    fn replace_checksum(
        &mut self,
        field: ChecksumField,
        difference: Sum,
        covered: Covered,
    ) -> Result<(), DropReason>;
}

/// Where a transport checksum lies and how it is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumField {
    /// Offset in the frame.
    pub offset: usize,
    /// Zero means that there is none, and a computed zero is all ones: UDP.
    pub zero_is_none: bool,
}

/// Where the bytes lie that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// In the pseudo-header: a device that finishes the checksum does not add them.
    PseudoHeader,
    /// In the segment: a device that finishes the checksum adds them.
    Segment,
}

/// What is looked up and remembered of packets that leave.
pub trait Memory: Flows + Counters + Relay {
    /// Returns the machine-wide settings.
    fn config(&self) -> Option<&Config>;
    /// Returns the id of an IPv4 service.
    fn service_v4(&self, key: &ServiceKeyV4) -> Option<u32>;
    /// Returns the id of an IPv6 service.
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<u32>;
    /// Returns a service, its word read with one load.
    fn service(&self, id: u32) -> Option<Service>;
    /// Tells whether pods of this machine answer from a port, or it is a NodePort.
    fn is_egress_port(&self, port: u16) -> bool;
    /// Returns what the first fragment of a datagram told.
    fn datagram(&self, key: &Tuple) -> Option<Datagram>;
    /// Notes what the first fragment of a datagram tells.
    fn publish(&self, key: &Tuple, datagram: &Datagram);
    /// Returns the way of a check.
    fn probe(&self, index: u32) -> Option<&Probe>;
    /// Notes how a check's answer comes in, and what its socket is connected to.
    fn remember_probe(&self, answer: &Tuple, peer: &AddressKey);
    /// Replaces what is known of a flow of this machine's kernel, as its answers will come in. What stays unknown is not
    /// kept.
    fn renew_local(&self, flow: &Tuple, renew: impl Fn(LocalFlow) -> LocalFlow);
}

/// Whether a packet was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Untouched,
    Translated,
    Turned,
    Diverted,
}

/// Where a packet goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Out of the device.
    Out,
    /// Back to the stack, as if it had come in by the device: its client is on this machine.
    Back,
}

/// Takes one packet all the way: finds its flow, translates and counts it.
///
/// # Errors
///
/// The packet is half translated and must be dropped; the reason has been counted.
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

/// Tells most of what is not ours by its source port alone: flows to pods end there at a pod's port, and the kernel's
/// own flows count where they leave from a NodePort.
#[inline(always)]
fn may_be_ours<S: Skb, T: Memory>(skb: &S, tables: &T, packet: &Headers) -> bool {
    match (packet.protocol, packet.part) {
        // A later fragment has no ports, and an error quotes those of the other direction.
        (protocol::TCP | protocol::UDP | protocol::SCTP, Part::Later)
        | (protocol::ICMP | protocol::ICMPV6, Part::Whole) => true,
        (protocol::TCP | protocol::UDP | protocol::SCTP, _) => match skb.view::<Ports>(packet.l4) {
            Some(ports) => tables.is_egress_port(u16::from_be_bytes(ports.source)),
            // They lie outside of the linear part.
            None => true,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests;
