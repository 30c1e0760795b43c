//! Packets and ICMP errors for pods of this machine.

use super::{Decap, Owner};
use crate::{
    abi::{AddressKey, Backend, DeliveryKey, FLOW_HAIRPIN, PodFlow, Tag, Tuple},
    family::Family,
    ip::Ip,
    parse::{Packet, TcpFlags},
    words::{join_u32, split_u64},
    world::{HandOver, HandOvers, OFFSETS, Relay, Tables},
};

/// A packet on its way to a pod of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub id: u32,
    /// The pod.
    pub backend: &'t Backend,
    /// The outer header, if the packet came with one.
    pub decap: Option<Decap>,
    /// Offset of the packet's IP header.
    pub l3: usize,
    /// Offset of its transport header.
    pub l4: usize,
    /// Length of the packet in bytes, without the outer header.
    pub length: usize,
    /// The packet's family.
    pub family: Family,
    /// Its transport protocol.
    pub protocol: u8,
    /// Its TCP flags.
    pub flags: TcpFlags,
    /// Whether the packet is a fragment other than the first; it has no transport header.
    pub is_later: bool,
    /// Source and destination port as the client sent them, in wire order; a word, because this lies on the BPF
    /// stack.
    pub ports: u32,
    /// The key of this delivery's note, if one is to be made.
    pub note_key: DeliveryKey,
}

impl<'t> Delivery<'t> {
    /// Builds the delivery of a packet to the pod that owns its flow. `ports` are in wire order, the source's first.
    #[inline(always)]
    pub fn new<A: Ip>(
        packet: &Packet<A>,
        ports: u32,
        flags: TcpFlags,
        owner: &Owner<'t>,
        decap: Option<Decap>,
    ) -> Self {
        Self {
            service: owner.service,
            id: owner.id,
            backend: owner.backend,
            decap,
            l3: packet.l3,
            l4: packet.l4,
            length: packet.length,
            family: A::FAMILY,
            protocol: packet.protocol,
            flags,
            is_later: packet.is_later_fragment(),
            ports,
            note_key: DeliveryKey::NONE,
        }
    }

    /// Returns the flow's key if the pod sees the client at this address and port.
    #[inline(always)]
    pub(crate) fn key(&self, client: AddressKey, port: [u8; 2]) -> Tuple {
        let pod = self.backend;
        Tuple::new(client, pod.pod, port, pod.port, self.protocol)
    }

    /// Returns the client's port, in wire order.
    #[inline(always)]
    pub const fn source_port(&self) -> [u8; 2] {
        let [a, b, ..] = self.ports.to_ne_bytes();
        [a, b]
    }

    /// Returns the port that the client talks to, in wire order.
    #[inline(always)]
    pub const fn destination_port(&self) -> [u8; 2] {
        let [.., a, b] = self.ports.to_ne_bytes();
        [a, b]
    }

    /// Returns the client's own address and port, for a pod that sees them.
    #[inline(always)]
    pub(crate) const fn unchanged_client(&self) -> ClientAtPod {
        ClientAtPod {
            seen_by_pod: SeenByPod::Client,
            port: u16::from_be_bytes(self.source_port()),
        }
    }

    /// Passes everything but the backend, and the note's key, through [`Relay`].
    #[inline(always)]
    pub fn relayed<T: Relay>(&self, tables: &T) -> Option<Self> {
        let words = tables.relay(self.to_words(false))?;
        Some(Self {
            note_key: self.note_key,
            ..Self::from_words(words, self.backend)
        })
    }

    /// Tells whether an entry under the packet's key is that of its flow. `unseen` is the one that the pod does not see of
    /// the client's address and the address that the client talks to.
    #[inline(always)]
    pub(crate) fn is_of(&self, flow: &PodFlow, unseen: AddressKey, seen_by_pod: SeenByPod) -> bool {
        let (client, to) = (self.source_port(), self.destination_port());
        flow.is_between(client, unseen, to, seen_by_pod.flag())
    }

    /// As [`Self::relayed`]; tells too whether the edge has other owners for the packet, if its connection is not known
    /// here.
    #[inline(always)]
    pub(crate) fn relayed_with_return<T: Relay>(&self, tables: &T) -> Option<(Self, bool)> {
        let words = tables.relay(self.to_words(false))?;
        let [.., is_returned_if_unknown] = words[3].to_ne_bytes();
        let delivery = Self {
            note_key: self.note_key,
            ..Self::from_words(words, self.backend)
        };
        Some((delivery, is_returned_if_unknown != 0))
    }

    /// Leaves the packet for [`Stage::PodFlow`](crate::stage::Stage::PodFlow). `is_new` says that no table has the
    /// flow's key.
    #[inline(always)]
    pub(crate) fn hand_over<T: Relay>(&self, tables: &T, is_new: bool) {
        // The relayed words stay behind for the next stage; this one has no use for them.
        let _ = tables.relay(self.to_words(is_new));
    }

    /// Returns the packet that [`Self::hand_over`] left, and its `is_new`.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the id")]
    pub(crate) fn handed_over<T: Tables + Relay>(tables: &'t T) -> Option<(Self, bool)> {
        let words = tables.relayed()?;
        let [ids, _, _, rest] = words;
        let [.., is_new, _] = rest.to_ne_bytes();
        let backend = tables.backend(ids as u32)?;
        Some((Self::from_words(words, backend), is_new != 0))
    }

    /// Packs everything but the backend, and `is_new`, into four words.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one bit")]
    fn to_words(self, is_new: bool) -> [u64; 4] {
        let (outer, room, class, is_returned_if_unknown) = match &self.decap {
            Some(decap) => (
                decap.l3,
                decap.inner_room,
                decap.outer_class,
                decap.is_returned_if_unknown(self.flags),
            ),
            None => (0, 0, 0, false),
        };
        [
            u64::from(self.service) << 32 | u64::from(self.id),
            (self.length as u64) << 32 | u64::from(self.ports),
            (self.l3 as u64) << 48 | (self.l4 as u64) << 32 | (outer as u64) << 16 | room as u64,
            u64::from_ne_bytes([
                self.family.bit() as u8,
                self.protocol,
                self.flags.0,
                u8::from(self.is_later),
                u8::from(self.decap.is_some()),
                class,
                u8::from(is_new),
                u8::from(is_returned_if_unknown),
            ]),
        ]
    }

    /// Unpacks [`Self::to_words`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    fn from_words(words: [u64; 4], backend: &'t Backend) -> Self {
        let [ids, length, offsets, rest] = words;
        let [is_v6, protocol, flags, is_later, is_within, outer_class, ..] = rest.to_ne_bytes();
        let family = Family::of_bit(is_v6.into());
        let l3 = (offsets >> 48) as usize & OFFSETS;
        let decap = (is_within != 0).then_some(Decap {
            l3: (offsets >> 16) as usize & OFFSETS,
            inner_l3: l3,
            inner_room: (offsets & 0xffff) as usize,
            is_plain: true,
            inner: family,
            outer_class,
            tag: Tag::default(),
        });
        Self {
            service: (ids >> 32) as u32,
            id: ids as u32,
            backend,
            decap,
            l3,
            l4: (offsets >> 32) as usize & OFFSETS,
            length: (length >> 32) as usize,
            family,
            protocol,
            flags: TcpFlags(flags),
            is_later: is_later != 0,
            ports: length as u32,
            note_key: DeliveryKey::NONE,
        }
    }

    /// Returns the length of the outer header in bytes; 0 if there was none.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "20 or 40")]
    pub(crate) const fn outer_length(&self) -> u8 {
        match &self.decap {
            Some(decap) => (decap.inner_l3 - decap.l3) as u8,
            None => 0,
        }
    }
}

impl DeliveryKey {
    /// Leaves the key for [`Stage::Decap`](crate::stage::Stage::Decap).
    #[inline(always)]
    pub(crate) fn hand_over<T: Relay>(self, tables: &T) {
        let _ = tables.relay([self.fingerprint, u64::from(self.line), 0, 0]);
    }

    /// Leaves the key beside the packet for [`Stage::Ask`](crate::stage::Stage::Ask).
    #[inline(always)]
    pub(crate) fn hand_over_aside<T: HandOvers>(self, tables: &T) {
        let [first, last] = split_u64(self.fingerprint);
        tables.hand_over(HandOver {
            service: first,
            backend: last,
            ports: self.line,
            detail: 0,
        });
    }

    /// Returns the key that [`Self::hand_over_aside`] left.
    #[inline(always)]
    pub(crate) fn handed_over_aside<T: HandOvers>(tables: &T) -> Self {
        let known = tables.handed_over();
        Self {
            fingerprint: join_u32(known.service, known.backend),
            line: known.ports,
        }
    }

    /// Leaves a packet for [`Stage::Decap`](crate::stage::Stage::Decap) that no node has returned, although its tag says
    /// so: not every edge writes tags.
    #[inline(always)]
    pub(crate) fn hand_over_not_returned<T: Relay>(tables: &T) {
        let Self { fingerprint, line } = Self::NONE;
        let _ = tables.relay([fingerprint, u64::from(line), 1, 0]);
    }

    /// Returns the key that [`Self::hand_over`] left, and whether a node may have returned the packet.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the index")]
    pub(crate) fn handed_over<T: Relay>(tables: &T) -> (Self, bool) {
        match tables.relayed() {
            Some([fingerprint, line, is_judged, _]) => {
                let key = Self {
                    fingerprint,
                    line: line as u32,
                };
                (key, is_judged == 0)
            }
            None => (Self::NONE, false),
        }
    }
}

/// The address that the pod sees as its client's; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SeenByPod {
    /// The client's own address.
    Client,
    /// The address that the client talks to: the client is hidden.
    Destination,
}

impl SeenByPod {
    /// Returns two ends of a packet that the client sends as `forward`: the address that the pod sees as its client,
    /// and the one that it does not see.
    #[inline(always)]
    pub(crate) const fn seen_and_unseen(self, forward: &Tuple) -> (AddressKey, AddressKey) {
        let (client, address) = (forward.source(), forward.destination());
        match self {
            Self::Client => (client, address),
            Self::Destination => (address, client),
        }
    }

    /// Returns the flag for the flow's entry.
    #[inline(always)]
    pub(crate) const fn flag(self) -> u8 {
        match self {
            Self::Client => 0,
            Self::Destination => FLOW_HAIRPIN,
        }
    }
}

/// Address and port by which the pod sees its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAtPod {
    /// The address.
    pub seen_by_pod: SeenByPod,
    /// The port, in host order.
    pub port: u16,
}

impl ClientAtPod {
    /// Passes both through [`Relay`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the port")]
    pub(crate) fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
        let words = [self.port.into(), self.seen_by_pod as u64, 0, 0];
        let [port, is_hidden, ..] = tables.relay(words)?;
        Some(Self {
            seen_by_pod: if is_hidden == 0 {
                SeenByPod::Client
            } else {
                SeenByPod::Destination
            },
            port: port as u16,
        })
    }
}

/// An ICMP error on its way to a pod of this machine.
#[derive(Clone, Copy, Debug)]
pub struct ErrorDelivery<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub id: u32,
    /// The pod.
    pub backend: &'t Backend,
    /// The places of outer and inner header; both are the same if the error came bare.
    pub place: Decap,
    /// Offset of the ICMP header in the frame.
    pub l4: usize,
    /// Length of the error in bytes, without the outer header.
    pub length: usize,
    /// Offset of the quoted IP header.
    pub quoted_l3: usize,
    /// Offset of the quoted transport header.
    pub quoted_l4: usize,
    /// The quoted transport protocol.
    pub protocol: u8,
    /// Whether the quote includes the transport checksum.
    pub has_checksum: bool,
    /// The client's address and port in the packet that the pod sent.
    pub client_at_pod: ClientAtPod,
}
