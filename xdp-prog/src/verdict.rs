//! Verdicts: `decide` says by them what becomes of a packet, and `rewrite` carries them out.

mod delivery;
mod reply;
mod translate;

pub use self::{
    delivery::{ClientAtPod, Delivery, ErrorDelivery, SeenByPod},
    reply::{Reply, ReplyPath},
    translate::{Translate, TranslateError},
};
use crate::{
    abi::{AddressKey, Backend, EdgeMac, NextHop, Tag},
    family::Family,
    frame::Frame,
    ip::Ip,
    parse::{Packet, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    wire::{ipv4::Ipv4, ipv6::Ipv6},
    world::{Answer, HandOver, OFFSETS, Relay, Tables},
};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'t> {
    /// Hand it to the kernel's stack, unchanged.
    Pass(PassReason),
    /// End it here, counted under the reason.
    Drop(DropReason),
    /// Send it to a backend.
    Forward(Forward<'t>),
    /// Take the outer header off and hand the rest to the stack.
    Decap(Decap),
    /// Translate it for a pod of this machine and hand it to the stack.
    Deliver(Delivery<'t>),
    /// Send it, translated, to the other end of a NAT mode flow.
    Translate(Translate<'t>),
    /// Leave the frame to another stage, which parses it anew.
    Continue(Stage),
    /// Leave the frame to [`Stage::Answer`], which judges whether this answer may be given.
    Answer(Answer),
}

/// A packet on its way to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'t> {
    /// Service id, for the counters.
    pub service: u32,
    /// Backend id, for the counters.
    pub backend: u32,
    /// Offset of the packet's IP header.
    pub l3: usize,
    /// The packet's family.
    pub inner: Family,
    /// Length of the packet in bytes, before encapsulation.
    pub length: usize,
    /// DSCP and ECN, copied to the outer header.
    pub traffic_class: u8,
    /// The outer header, if any.
    pub outer: Outer,
    /// The pod's tag: the outer IPv4 identification, or the low bits of the outer IPv6 flow label.
    pub tag: u16,
    /// Outer source address, IPv4 in the first four bytes.
    pub source: &'t [u8; 16],
    /// The flow's bits for the last two bytes of the source, as a big-endian number; a word, because verdicts lie on
    /// the BPF stack.
    pub spread: u32,
    /// Outer destination address: the backend's node.
    pub destination: &'t [u8; 16],
    /// The next hop: device, MACs and VLAN tag.
    pub hop: &'t NextHop,
}

impl Forward<'_> {
    /// Returns the same with so many tries in its tag.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn with_tries(self, tries: u32) -> Self {
        Self {
            tag: self.tag | Tag::tries_bits(tries),
            ..self
        }
    }
}

/// The outer header that goes in front of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// None: L2 DSR.
    None,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Outer {
    /// Returns the length of the header in bytes.
    #[inline(always)]
    pub const fn length(self) -> usize {
        // A product, because the compiler would make branches of a choice.
        self as usize * Ipv4::LENGTH
    }
}

const _: () = assert!(Outer::None.length() == 0 && Outer::V6.length() == Ipv6::LENGTH);

/// The place of a packet in its frame: behind the outer header of a trusted edge, or of a node that has returned it; or
/// bare, with `l3` and `inner_l3` the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decap {
    /// Offset of the outer header.
    pub l3: usize,
    /// Offset of the inner header.
    pub inner_l3: usize,
    /// Bytes between the inner header's start and the outer packet's end.
    pub inner_room: usize,
    /// Whether the outer header has no options or extension headers. Edges of ours write none.
    pub is_plain: bool,
    /// Family of the inner packet, by the outer header's protocol number.
    pub inner: Family,
    /// The outer header's DSCP and ECN.
    pub outer_class: u8,
    /// The pod's tag in the outer header.
    pub tag: Tag,
}

impl Decap {
    /// Tells whether a packet is returned to the edge if its flow is not known here; `flags` are zero if it is no TCP segment.
    #[inline(always)]
    pub(crate) fn is_returned_if_unknown(&self, flags: TcpFlags) -> bool {
        self.tag.may_be_returned() && !flags.begins_connection()
    }

    /// Returns the place of a packet of the family `inner` behind this outer header.
    #[inline(always)]
    pub(crate) fn of<A: Ip>(outer: &Packet<A>, inner: Family) -> Self {
        Self {
            l3: outer.l3,
            inner_l3: outer.l4,
            inner_room: outer.l3 + outer.length - outer.l4,
            is_plain: outer.l4 - outer.l3 == A::HEADER_LENGTH,
            inner,
            outer_class: outer.traffic_class,
            tag: outer.tag,
        }
    }

    /// Passes all fields through [`Relay`]. The verifier knows nothing of the frame either from here on.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    pub(crate) fn relayed<F: Frame, T: Relay>(self, frame: &F, tables: &T) -> Option<Self> {
        frame.forget_views();
        let [offsets, flags, tag, _] = tables.relay([
            (self.l3 as u64) << 48 | (self.inner_l3 as u64) << 32 | self.inner_room as u64,
            u64::from(self.outer_class) << 2 | u64::from(self.is_plain) << 1 | self.inner.bit(),
            u64::from(self.tag.0),
            0,
        ])?;
        Some(Self {
            l3: (offsets >> 48) as usize & OFFSETS,
            inner_l3: (offsets >> 32) as usize & OFFSETS,
            inner_room: offsets as u32 as usize,
            is_plain: flags & 2 != 0,
            inner: Family::of_bit(flags),
            outer_class: (flags >> 2) as u8,
            tag: Tag(tag as u16),
        })
    }

    /// Tells whether the packet came with an outer header.
    #[inline(always)]
    pub const fn is_encapsulated(&self) -> bool {
        self.inner_l3 != self.l3
    }
}

/// The end of a packet that gets no answer.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// The stack gets the packet, unchanged.
    Pass(PassReason),
    /// The packet ends here, counted under the reason.
    Drop(DropReason),
    /// The agent gets the packet, for the reason that is left for [`Stage::Punt`].
    Punt,
}

/// An answer that gives the MAC of an announced address.
#[derive(Clone, Copy, Debug)]
pub enum Advertise {
    /// The answer to an ARP request.
    Arp {
        /// Offset of the ARP message.
        l3: usize,
        /// The MAC to give.
        mac: EdgeMac,
    },
    /// The answer to a neighbour solicitation.
    Neighbour {
        /// Offset of the IPv6 header.
        l3: usize,
        /// The MAC to give.
        mac: EdgeMac,
    },
}

/// The answer to a check of this machine. It gets the source address to which the check's socket is connected.
#[derive(Clone, Copy, Debug)]
pub struct RestoreSource {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the TCP header.
    pub l4: usize,
    /// The packet's family.
    pub family: Family,
    /// The new source address.
    pub source: AddressKey,
}

/// The backend that a flow belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub id: u32,
    /// The backend.
    pub backend: &'t Backend,
    /// The flow's hash; 0 if a tag named the backend.
    pub hash: u32,
}

impl<'t> Owner<'t> {
    /// Returns the pod of this machine that an earlier stage has chosen; `None` if it has gone since.
    #[inline(always)]
    pub(crate) fn handed_over<T: Tables>(tables: &'t T, known: &HandOver) -> Option<Self> {
        let backend = tables.backend(known.backend)?;
        backend.is_own_pod().then_some(Self {
            service: known.service,
            id: known.backend,
            backend,
            hash: 0,
        })
    }
}
