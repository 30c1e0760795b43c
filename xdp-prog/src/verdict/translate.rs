//! Packets and ICMP errors of NAT mode.

use crate::{family::Family, world::Translation};

/// A packet of NAT mode that leaves with other addresses.
#[derive(Clone, Copy, Debug)]
pub struct Translate<'t> {
    /// The family.
    pub family: Family,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// Length of the packet.
    pub length: usize,
    /// What it gets.
    pub by: &'t Translation,
}

/// An ICMP error that leaves with other addresses, and its quote with other ends.
#[derive(Clone, Copy, Debug)]
pub struct TranslateError<'t> {
    /// The error itself.
    pub error: Translate<'t>,
    /// Offset of the quoted IP header.
    pub quoted_l3: usize,
    /// Offset of the quoted transport header.
    pub quoted_l4: usize,
    /// Whether the quote reaches as far as its transport checksum; a word, because this may lie on the BPF stack.
    pub has_checksum: u32,
}
