//! What is to be done with a packet: what code that decides hands to code that rewrites.

mod deliver;
mod reply;
mod translate;

pub use self::{
    deliver::{Deliver, DeliverError, SeenAs, Shown},
    reply::{Reply, Way},
    translate::{Translate, TranslateError},
};
use crate::{
    abi::{AddressKey, Backend, EdgeMac, NextHop, Tag},
    family::Family,
    reason::{DropReason, PassReason},
    stage::Stage,
    wire::{ipv4::Ipv4, ipv6::Ipv6},
    world::{Answer, HandOver, OFFSETS, Relay, Tables},
};

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'t> {
    /// Hand it to the kernel's stack, unchanged.
    Pass(PassReason),
    /// End it here.
    Drop(DropReason),
    /// Send it to a backend.
    Forward(Forward<'t>),
    /// Take the outer header off and hand the rest to the stack.
    Decap(Decap),
    /// Hand it to a pod of this machine, by way of the stack.
    Deliver(Deliver<'t>),
    /// Send it to the other end of a NAT mode flow.
    Translate(Translate<'t>),
    /// Begin anew in another stage.
    Continue(Stage),
    /// An answer is due: begin anew in the stage that judges and gives it.
    Answer(Answer),
}

/// A packet on its way to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub backend: u32,
    /// Offset of the packet's IP header.
    pub l3: usize,
    /// The packet's family.
    pub inner: Family,
    /// Length of the packet before encapsulation.
    pub length: usize,
    /// DSCP and ECN, copied to the outer header.
    pub traffic_class: u8,
    /// The outer header, if any.
    pub outer: Outer,
    /// Names the pod in the outer header.
    pub tag: u16,
    /// Outer source address, IPv4 in the first four bytes.
    pub source: &'t [u8; 16],
    /// What the flow adds to the last two bytes of the source, as a big-endian number; a word, because verdicts lie on
    /// the BPF stack.
    pub spread: u32,
    /// Outer destination address: the backend's node.
    pub destination: &'t [u8; 16],
    /// Where the frame goes.
    pub hop: &'t NextHop,
}

/// The header to be put in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// L2 DSR: none.
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
        match self {
            Self::None => 0,
            Self::V4 => Ipv4::LENGTH,
            Self::V6 => Ipv6::LENGTH,
        }
    }
}

/// An encapsulated packet from a trusted edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decap {
    /// Offset of the outer header.
    pub l3: usize,
    /// Offset of the inner header.
    pub inner_l3: usize,
    /// Bytes between the inner header's start and the outer packet's end.
    pub inner_room: usize,
    /// Whether the outer header has neither options nor extension headers: no edge of ours writes any.
    pub is_plain: bool,
    /// The inner family, as the outer header announces it.
    pub inner: Family,
    /// The outer header's DSCP and ECN.
    pub outer_class: u8,
    /// The outer header's word about the pod.
    pub tag: Tag,
}

impl Decap {
    /// Carries it through [`Relay`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    pub(crate) fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
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

    /// Tells whether there is an outer header at all.
    #[inline(always)]
    pub const fn is_encapsulated(&self) -> bool {
        self.inner_l3 != self.l3
    }
}

/// What becomes of a packet that gets no answer.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// The stack gets it.
    Pass(PassReason),
    /// It ends here.
    Drop(DropReason),
}

/// An answer that gives the MAC of an announced address; the question's layer 3 begins at `l3`.
#[derive(Clone, Copy, Debug)]
pub enum Advertise {
    /// To an ARP request.
    Arp {
        /// Offset of the question.
        l3: usize,
        /// The MAC to give.
        mac: EdgeMac,
    },
    /// To a neighbour solicitation.
    Neighbour {
        /// Offset of the question.
        l3: usize,
        /// The MAC to give.
        mac: EdgeMac,
    },
}

/// The answer to a check of this machine, which gets the source address that the check's socket is connected to.
#[derive(Clone, Copy, Debug)]
pub struct RestoreSource {
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the TCP header.
    pub l4: usize,
    /// The packet's family.
    pub family: Family,
    /// The source address.
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
    /// The flow's hash; 0 where a tag names the backend.
    pub hash: u32,
}

impl<'t> Owner<'t> {
    /// Returns the pod of this machine that an earlier stage has found.
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
