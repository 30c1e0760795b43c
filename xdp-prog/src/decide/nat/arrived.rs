//! NAT mode: the fields of a packet that the mode needs, for either family and direction.

use crate::{
    abi::Tuple,
    decide::edge::balance::LARGEST_PACKET,
    family::Family,
    flow::FlowKey,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Link, Packet, Segment, TcpFlags},
    reason::DropReason,
    stage::Stage,
    verdict::Verdict,
    wire::{protocol, transport::Tcp},
    world::{Answer, HandOver, HandOvers, OFFSETS, Relay, World},
};

/// [`HandOver::detail`]: stage `NatProof` has taken note of the packet.
pub(super) const HEEDED: u32 = 1 << 31;
/// [`HandOver::detail`]: stage `NatShare` has looked for a flow of the service that gives way.
pub(super) const SOUGHT: u32 = 1 << 30;
/// [`HandOver::detail`]: such a flow was removed. The lowest bits count the flows that were looked at.
pub(super) const MADE_ROOM: u32 = 1 << 29;

/// Continues with a client's packet in another stage of the mode.
#[inline(always)]
pub(super) fn go_on<'t, T: HandOvers>(
    tables: &T,
    service: u32,
    progress: u32,
    stage: Stage,
) -> Verdict<'t> {
    tables.hand_over(HandOver {
        service,
        detail: progress,
        ..HandOver::default()
    });
    Verdict::Continue(stage)
}

/// A packet of either family and direction.
///
/// The families share all code that takes one, and its place on the BPF stack.
pub(super) struct Arrived {
    /// Service id; 0 for a reply.
    pub(super) service: u32,
    pub(super) family: Family,
    pub(super) l3: usize,
    pub(super) l4: usize,
    pub(super) length: usize,
    /// TTL or hop limit; a word, because this lies on the BPF stack.
    pub(super) hop_limit: u32,
    /// TCP flags, and [`DATA`] if the segment has a payload.
    pub(super) flags: u32,
    /// [`Arrived::of_client`] above [`Arrived::of_backend`]; one word, because this lies on the BPF stack.
    pub(super) numbers: u64,
    pub(super) key: Tuple,
}

/// Bit of [`Arrived::flags`]: the TCP segment has a payload.
pub(super) const DATA: u32 = 1 << 8;

/// How far behind its SYN+ACK a backend's data count as its first. More bytes than a backend sends before the first
/// ACK (RFC 6928), and so few that only one of 65536 forged segments is believed.
pub(super) const FIRST_DATA: u32 = 1 << 16;

impl Arrived {
    #[inline(always)]
    pub(super) fn new<F: Frame, A: Ip>(
        frame: &F,
        packet: &Packet<A>,
        flow: &FlowKey<A>,
        service: u32,
    ) -> Self {
        let (flags, numbers) = read_segment(frame, packet, service);
        Self {
            service,
            family: A::FAMILY,
            l3: packet.l3,
            l4: packet.l4,
            length: packet.length,
            hop_limit: packet.hop_limit.into(),
            flags,
            numbers,
            key: flow.tuple(),
        }
    }

    /// Passes everything but the key through [`Relay`], for stages that few packets reach.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    pub(super) fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
        let [ids, offsets, rest, numbers] = tables.relay([
            u64::from(self.service) << 32 | self.length as u64,
            (self.l3 as u64) << 32 | self.l4 as u64,
            u64::from(self.hop_limit) << 32 | u64::from(self.flags) << 1 | self.family.bit(),
            self.numbers,
        ])?;
        Some(Self {
            service: (ids >> 32) as u32,
            family: Family::of_bit(rest),
            l3: (offsets >> 32) as usize & OFFSETS,
            l4: offsets as usize & OFFSETS,
            length: ids as u32 as usize,
            hop_limit: (rest >> 32) as u32,
            flags: rest as u32 >> 1,
            numbers,
            key: self.key,
        })
    }

    /// Returns the answer for a packet that cannot leave by a device with this MTU, or whose TTL is used up.
    #[inline(always)]
    pub(super) const fn obstacle(&self, mtu: u32) -> Option<Answer> {
        let mtu = if mtu > LARGEST_PACKET {
            LARGEST_PACKET
        } else {
            mtu
        };
        if self.hop_limit <= 1 {
            Some(Answer::TIME_EXCEEDED)
        } else if self.length > mtu as usize {
            Some(Answer::too_big(mtu))
        } else {
            None
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "was eight bits")]
    pub(super) const fn flags(&self) -> TcpFlags {
        TcpFlags(self.flags as u8)
    }

    /// Returns the TCP number that counts the client's bytes: the sequence number of a client's segment, the
    /// acknowledgement number of a backend's.
    #[inline(always)]
    pub(super) const fn of_client(&self) -> u32 {
        (self.numbers >> 32) as u32
    }

    /// Returns the TCP number that counts the backend's bytes.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    pub(super) const fn of_backend(&self) -> u32 {
        self.numbers as u32
    }

    /// Returns the meaning of a backend's packet, if the sequence number of the backend's last SYN+ACK was
    /// `accepted_with`: the bits from [`DATAGRAM`] to [`BEGINS`], and [`DATA`].
    #[inline(always)]
    pub(super) fn says(&self, accepted_with: u32) -> u32 {
        if self.key.protocol() != protocol::TCP {
            return DATAGRAM;
        }
        let flags = self.flags();
        if flags.accepts_connection() {
            return ACCEPTS;
        }
        if flags.rst() {
            return RESETS;
        }
        let fin = if flags.fin() { ENDS } else { 0 };
        let sent = self.flags & DATA | fin;
        let first = accepted_with.wrapping_add(1);
        if sent != 0 && !flags.syn() && self.of_backend().wrapping_sub(first) < FIRST_DATA {
            sent | BEGINS
        } else {
            sent
        }
    }
}

/// Backend's packet: not TCP.
pub(super) const DATAGRAM: u32 = 1;
/// Backend's segment: a SYN+ACK.
pub(super) const ACCEPTS: u32 = 2;
/// Backend's segment: a RST.
pub(super) const RESETS: u32 = 4;
/// Backend's segment: a FIN.
pub(super) const ENDS: u32 = 8;
/// Backend's segment: the first data, or the FIN, of a connection that the backend has just accepted.
pub(super) const BEGINS: u32 = 16;

/// Reads [`Arrived::flags`] and [`Arrived::numbers`].
#[inline(always)]
pub(super) fn read_segment<F: Frame, A>(frame: &F, packet: &Packet<A>, service: u32) -> (u32, u64) {
    if packet.protocol != protocol::TCP {
        return (0, 0);
    }
    let Some(header) = frame.view::<Tcp>(packet.l4) else {
        return (0, 0);
    };
    let data = packet.l4 + header.header_length() < packet.l3 + packet.length;
    let segment = Segment::of(header);
    let (of_client, of_backend) = if service == 0 {
        (segment.acknowledgement, segment.sequence)
    } else {
        (segment.sequence, segment.acknowledgement)
    };
    (
        u32::from(segment.flags.0) | if data { DATA } else { 0 },
        u64::from(of_client) << 32 | u64::from(of_backend),
    )
}

/// Reads a client's packet, and its frame's link header.
#[inline(always)]
pub(super) fn requested<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<(Link, Arrived), Verdict<'t>> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Err(Verdict::Pass(reason)),
    };
    let arrived = with_packet!(frame, behind link,
        packet => request(frame, tables, &packet),
        reason => Err(Verdict::Pass(reason)))?;
    Ok((link, arrived))
}

/// Reads a client's packet for a stage that few packets reach.
#[inline(always)]
pub(super) fn requested_aside<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<Arrived, Verdict<'t>> {
    let (_, arrived) = requested(frame, tables)?;
    match arrived.relayed(tables) {
        Some(arrived) => Ok(arrived),
        None => Err(Verdict::Drop(DropReason::StageMissing)),
    }
}

#[inline(always)]
pub(super) fn request<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Result<Arrived, Verdict<'t>> {
    let flow = match parse::flow(frame, packet) {
        Ok(flow) => flow,
        Err(reason) => return Err(Verdict::Pass(reason)),
    };
    let service = tables.handed_over().service;
    Ok(Arrived::new(frame, packet, &flow, service))
}
