//! Packets and ICMP errors of NAT mode.

use crate::{family::Family, world::Translation};

/// A packet of NAT mode on its way to the other end of its flow.
#[derive(Clone, Copy, Debug)]
pub struct Translate<'t> {
    /// Service id, for the counters; 0 towards the client.
    pub service: u32,
    /// Family of the packet, which stays.
    pub family: Family,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// Length of the packet in bytes.
    pub length: usize,
    /// New addresses, ports and Ethernet header.
    pub by: &'t Translation,
}

/// An ICMP error of NAT mode: it leaves with new addresses, and its quote with the reverse translation.
#[derive(Clone, Copy, Debug)]
pub struct TranslateError<'t> {
    /// The error itself.
    pub error: Translate<'t>,
    /// Offset of the quoted IP header.
    pub quoted_l3: usize,
    /// Offset of the quoted transport header.
    pub quoted_l4: usize,
    /// Not 0 if the quote includes the transport checksum; a word, because this may lie on the BPF stack.
    pub has_checksum: u32,
}
