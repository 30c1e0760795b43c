//! Answers that this machine gives itself: ICMP errors, TCP RSTs, echo replies.
//!
//! Whoever finds that an answer is due says so with [`Verdict::Answer`](super::Verdict::Answer); a
//! stage of its own judges whether the packet may be answered and makes the
//! answer out of the frame at hand. Errors and RSTs cost the source some of its
//! allowance. An echo reply does not: it is as large as its request and no
//! worse a reflector than any host.

use super::{
    Action, Clock, Family, Ip, World, balance, deliver::addresses, outer_source, relay::OFFSETS,
    send,
};
use crate::{
    abi::{AddressKey, EdgeMac},
    flow::{V4, V6},
    frame::{Frame, FrameMut, FrameSum},
    parse::{self, Packet},
    reason::{DropReason, PassReason, ReplyReason},
    rewrite,
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
    },
};

/// What is to be answered, in one word that is handed over in `HANDOVER`.
///
/// As wide as what other verdicts carry, which spares the program a register that
/// only some of its paths have filled.
///
/// ```text
/// 31  16 15              8 7    0
/// | MTU | inner IP version | kind |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub u32);

impl Answer {
    const KIND_TOO_BIG: u32 = 1;
    const KIND_TIME_EXCEEDED: u32 = 2;
    const KIND_REFUSE: u32 = 3;
    const KIND_ECHO: u32 = 4;

    /// The packet's TTL or hop limit is used up.
    pub const TIME_EXCEEDED: Self = Self(Self::KIND_TIME_EXCEEDED);
    /// Nobody serves the packet.
    pub const REFUSE: Self = Self(Self::KIND_REFUSE);
    /// An echo request.
    pub const ECHO: Self = Self(Self::KIND_ECHO);

    /// The packet is larger than `mtu`, which the path takes and 16 bits can state.
    #[inline(always)]
    pub const fn too_big(mtu: u32) -> Self {
        Self(mtu << 16 | Self::KIND_TOO_BIG)
    }

    /// Nobody serves the packet of this family that an outer header carries.
    #[inline(always)]
    pub const fn refuse_inner(inner: Family) -> Self {
        let version = match inner {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        Self(version << 8 | Self::KIND_REFUSE)
    }

    /// Returns what a packet of this protocol gets, if it may be answered at all.
    #[inline(always)]
    pub const fn reason(self, protocol: u8) -> ReplyReason {
        match self.kind() {
            Self::KIND_TOO_BIG => ReplyReason::PacketTooBig,
            Self::KIND_TIME_EXCEEDED => ReplyReason::TimeExceeded,
            Self::KIND_ECHO => ReplyReason::EchoReply,
            _ if protocol == protocol::TCP => ReplyReason::Reset,
            _ => ReplyReason::PortUnreachable,
        }
    }

    const fn kind(self) -> u32 {
        self.0 & 0xff
    }

    /// Returns the family of the packet where an outer header carries it.
    const fn inner(self) -> Option<Family> {
        match self.0 >> 8 & 0xff {
            4 => Some(Family::V4),
            6 => Some(Family::V6),
            _ => None,
        }
    }

    /// Returns the MTU that is told; 0 where it is about something else.
    pub const fn mtu(self) -> u32 {
        self.0 >> 16
    }
}

/// An answer on its way.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// What it says.
    pub answer: Answer,
    /// Protocol of the packet that is answered.
    pub protocol: u8,
    /// Family of that packet, and of the answer.
    pub family: Family,
    /// Offset of that packet's IP header.
    pub l3: usize,
    /// Offset of its transport header.
    pub l4: usize,
    /// Length of the packet.
    pub length: usize,
}

impl Reply {
    /// Returns what it is counted under.
    #[inline(always)]
    pub const fn reason(&self) -> ReplyReason {
        self.answer.reason(self.protocol)
    }

    /// Packs it into numbers, for [`Relay`](super::relay::Relay).
    #[inline(always)]
    const fn to_words(self) -> [u64; 4] {
        [
            self.answer.0 as u64,
            (self.protocol as u64) << 1 | self.family.bit(),
            (self.l3 as u64) << 32 | self.l4 as u64,
            self.length as u64,
        ]
    }

    /// Takes it out of the numbers again.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    const fn from_words([answer, protocol, offsets, length]: [u64; 4]) -> Self {
        Self {
            answer: Answer(answer as u32),
            protocol: (protocol >> 1) as u8,
            family: Family::of_bit(protocol),
            l3: (offsets >> 32) as usize & OFFSETS,
            l4: offsets as usize & OFFSETS,
            length: length as usize & 0xffff,
        }
    }
}

/// The memory of answers, and the hand-over to the stage that gives them.
///
/// An allowance is kept as the time at which it is full again (the generic cell
/// rate algorithm's theoretical arrival time): one word. Two CPUs that update it
/// at once give one answer too many.
pub trait Answers: Clock {
    /// Keeps what is to be answered until the next stage asks.
    fn hand_over(&self, answer: Answer);
    /// Returns what was handed over.
    fn handed_over(&self) -> Answer;
    /// Returns when a source's allowance is full again, in ns.
    fn full_at(&self, source: &AddressKey) -> u64;
    /// Notes when a source's allowance is full again.
    fn set_full_at(&self, source: &AddressKey, time: u64);
    /// Returns when the allowance of all sources on this CPU is full again, in ns.
    fn all_full_at(&self) -> u64;
    /// Notes when the allowance of all sources on this CPU is full again.
    fn set_all_full_at(&self, time: u64);
}

/// A rate and how much may be saved up.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    interval_ns: u64,
    burst: u64,
}

impl Allowance {
    /// Ten answers a second to one source, ten at once. Linux grants one ICMP
    /// error a second to a destination, six at once; a source that is refused is
    /// often an address shared by many.
    pub const OF_SOURCE: Self = Self {
        interval_ns: 100_000_000,
        burst: 10,
    };
    /// Ten thousand a second on one CPU, a thousand at once: spoofed sources have
    /// a full allowance each.
    pub const OF_ALL: Self = Self {
        interval_ns: 100_000,
        burst: 1_000,
    };

    /// Returns when the allowance is full again after one more answer; nothing where it is used up.
    #[inline(always)]
    pub const fn take(self, full_at: u64, now: u64) -> Option<u64> {
        if full_at > now + self.interval_ns * (self.burst - 1) {
            return None;
        }
        let from = if full_at > now { full_at } else { now };
        Some(from + self.interval_ns)
    }
}

/// Takes a frame through this stage.
///
/// A reply is no [`Verdict`](super::Verdict): each kind of those costs every stage, in
/// registers that only some of its paths fill and the verifier refuses.
#[inline(always)]
pub fn process<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let reason = match decide(frame, tables) {
        Ok(reply) => match give(frame, tables, reply, ingress) {
            Ok(action) => {
                tables.count_reason(reply.reason().index());
                return action;
            }
            Err(reason) => reason,
        },
        Err(Ending::Drop(reason)) => reason,
        Err(Ending::Pass(reason)) => {
            tables.count_reason(reason.index());
            return Action::Pass;
        }
    };
    tables.count_reason(reason.index());
    Action::Drop
}

/// Makes the frame of an answer and returns how it is sent.
#[inline(always)]
fn give<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    reply: Reply,
    ingress: u32,
) -> Result<Action, DropReason> {
    let words = tables
        .relay(reply.to_words())
        .ok_or(DropReason::StageMissing)?;
    let reply = Reply::from_words(words);
    let (way, action) = match reply.answer.inner() {
        None => (None, Action::Transmit),
        Some(_) => {
            let (way, action) = way_to_client(frame, tables, &reply, ingress)?;
            (Some(way), action)
        }
    };
    rewrite::reply(frame, &reply, way)?;
    Ok(action)
}

/// A way that is not just the one by which the frame came.
#[derive(Clone, Copy, Debug)]
pub struct Way<'t> {
    /// Destination MAC, then source MAC.
    pub macs: &'t [u8; 12],
    /// The tag to write; zero to write none.
    pub vlan: [u8; 2],
    /// Where the IP header is written: behind that tag, or those that the frame came with and keeps, or without any.
    pub l3: usize,
}

/// Asks the FIB for the way to the client of a packet that an edge sent in an outer header: the edge need not
/// forward what is for clients.
///
/// Some devices take no frames from XDP, or their tags are not known here: a bridge, stacked VLANs. But where the device leads
/// to the edge as well, and has the MAC that the edge has sent to, the frame is taken to have come in by it, unless its tag
/// says otherwise: the answer goes out as the frame came in, tags included.
#[inline(always)]
fn way_to_client<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
    reply: &Reply,
    ingress: u32,
) -> Result<(Way<'t>, Action), DropReason> {
    let Ok(link) = parse::link(frame) else {
        return Err(DropReason::NoHeadroom);
    };
    let edge = outer_source(frame, link.l3).ok_or(DropReason::NoHeadroom)?;
    let (client, _) = addresses(frame, reply.family, reply.l3).ok_or(DropReason::NoHeadroom)?;
    let hop = tables.fib_route(&client).ok_or(DropReason::UnknownPod)?;
    let header: &Ethernet = frame.view(0).ok_or(DropReason::NoHeadroom)?;
    let [.., a, b, c, d, e, f] = hop.macs;
    let is_own_mac = EdgeMac::new([a, b, c, d, e, f]) == EdgeMac::new(header.destination());
    let is_tagged = hop.vlan != [0; 2];
    let may_be_the_same = is_own_mac && (!is_tagged || hop.vlan == only_vlan(frame, link.l3));
    let is_the_same = may_be_the_same
        && match tables.fib_device(&client) {
            Some(device) => tables.fib_device(&edge) == Some(device),
            None => false,
        };
    if is_the_same {
        let way = Way {
            macs: &hop.macs,
            vlan: [0; 2],
            l3: link.l3,
        };
        return Ok((way, Action::Transmit));
    }
    let l3 = if is_tagged {
        Ethernet::LENGTH + VlanTag::LENGTH
    } else {
        Ethernet::LENGTH
    };
    let way = Way {
        macs: &hop.macs,
        vlan: hop.vlan,
        l3,
    };
    Ok((way, send(hop.ifindex, ingress)))
}

/// Returns the VLAN id of a frame with one tag, as next hops spell it; else 0.
#[inline(always)]
fn only_vlan<F: Frame>(frame: &F, l3: usize) -> [u8; 2] {
    match frame.view::<VlanTag>(Ethernet::LENGTH) {
        Some(tag) if l3 == Ethernet::LENGTH + VlanTag::LENGTH => {
            let [high, low] = tag.control;
            [high & 0x0f, low]
        }
        _ => [0; 2],
    }
}

/// What becomes of a packet that gets no answer.
enum Ending {
    Pass(PassReason),
    Drop(DropReason),
}

#[inline(always)]
fn decide<F: Frame, T: World>(frame: &F, tables: &T) -> Result<Reply, Ending> {
    let answer = tables.handed_over();
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Err(Ending::Pass(reason)),
    };
    let (outer, header_length) = match link.ether_type {
        ethernet::IPV4 => (Family::V4, Ipv4::LENGTH),
        ethernet::IPV6 => (Family::V6, Ipv6::LENGTH),
        _ => return Err(Ending::Pass(PassReason::NotIp)),
    };
    // Outer headers with more than the fixed part are never opened.
    let (family, l3) = match answer.inner() {
        Some(inner) => (inner, link.l3 + header_length),
        None => (outer, link.l3),
    };
    match family {
        Family::V4 => match parse::ipv4(frame, l3) {
            Ok(packet) => reply(frame, tables, &packet, answer),
            Err(reason) => Err(Ending::Pass(reason)),
        },
        Family::V6 => match parse::ipv6(frame, l3) {
            Ok(packet) => reply(frame, tables, &packet, answer),
            Err(reason) => Err(Ending::Pass(reason)),
        },
    }
}

#[inline(always)]
fn reply<F: Frame, A: Answerable, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
    answer: Answer,
) -> Result<Reply, Ending> {
    // The edge knows a service that is about to be known here too. But where the stack would send on what
    // came for an address of ours, it would sooner or later be an edge that gets it, and sends it here again.
    if answer == Answer::REFUSE && balance::is_from_edge(frame, tables) {
        let is_sent_on = tables.fib_device(&packet.destination.key()).is_some();
        return Err(if is_sent_on {
            Ending::Drop(DropReason::SentBack)
        } else {
            Ending::Pass(PassReason::NoService)
        });
    }
    let reason = match judge(frame, packet, answer) {
        Ok(reason) => reason,
        Err(reason) => return Err(Ending::Drop(reason)),
    };
    let source = packet.source.key();
    if reason != ReplyReason::EchoReply && !take_allowance(tables, &source) {
        return Err(Ending::Drop(DropReason::AnswerLimited));
    }
    Ok(Reply {
        answer: if reason == ReplyReason::PacketTooBig {
            Answer::too_big(answer.mtu().max(A::SMALLEST_MTU))
        } else {
            answer
        },
        protocol: packet.protocol,
        family: A::FAMILY,
        l3: packet.l3,
        l4: packet.l4,
        length: packet.length,
    })
}

/// Judges whether a packet may be answered, and by what (RFC 1122 section 3.2.2, RFC 4443 section 2.4(e)).
#[inline(always)]
fn judge<F: Frame, A: Answerable>(
    frame: &F,
    packet: &Packet<A>,
    answer: Answer,
) -> Result<ReplyReason, DropReason> {
    let kind = answer.kind();
    if kind == Answer::KIND_TOO_BIG {
        // A host never goes below the smallest MTU: what does not exceed it is beyond help.
        let told = answer.mtu().max(A::SMALLEST_MTU) as usize;
        if A::may_be_fragmented(frame, packet) {
            return Err(DropReason::FragmentationNeeded);
        }
        if packet.length <= told {
            return Err(DropReason::MtuExceeded);
        }
    }
    if !packet.source.is_host() {
        return Err(DropReason::Unanswerable);
    }
    if kind == Answer::KIND_ECHO {
        // Options and extension headers would have to be answered in kind.
        let is_plain = packet.l4 - packet.l3 == A::HEADER_LENGTH;
        return if is_plain && packet.protocol == A::ICMP {
            Ok(ReplyReason::EchoReply)
        } else {
            Err(DropReason::Unanswerable)
        };
    }
    let is_later_fragment = packet.is_fragment && packet.piece.offset != 0;
    // Of ICMP, nothing but errors gets this far.
    if is_later_fragment || packet.protocol == A::ICMP {
        return Err(DropReason::Unanswerable);
    }
    let reason = answer.reason(packet.protocol);
    if answer.inner().is_some() && reason != ReplyReason::Reset {
        return Err(DropReason::Unanswerable);
    }
    if reason == ReplyReason::Reset {
        let has_ports = !packet.is_fragment && parse::flow(frame, packet).is_ok();
        if !has_ports || parse::tcp_flags(frame, packet).rst() {
            return Err(DropReason::Unanswerable);
        }
    }
    Ok(reason)
}

/// Takes one answer from the allowances; a source that has used up its own costs the others nothing.
#[inline(always)]
fn take_allowance<T: Answers>(tables: &T, source: &AddressKey) -> bool {
    let now = tables.now();
    let Some(all_full_at) = Allowance::OF_ALL.take(tables.all_full_at(), now) else {
        return false;
    };
    let Some(full_at) = Allowance::OF_SOURCE.take(tables.full_at(source), now) else {
        return false;
    };
    tables.set_full_at(source, full_at);
    tables.set_all_full_at(all_full_at);
    true
}

/// What of a packet decides whether it is answered, and differs between the families.
trait Answerable: Ip {
    /// The smallest MTU that a host takes to heart (RFC 791 section 3.2, RFC 8200 section 5).
    const SMALLEST_MTU: u32;
    /// Tells whether an address is one that a single host may have on a network.
    fn is_host(self) -> bool;
    /// Tells whether the packet may be cut into fragments on its way.
    fn may_be_fragmented<F: Frame>(frame: &F, packet: &Packet<Self>) -> bool;
}

impl Answerable for V4 {
    const SMALLEST_MTU: u32 = 68;

    #[inline(always)]
    fn is_host(self) -> bool {
        // This network, loopback, multicast and beyond (RFC 1122 section 3.2.1.3).
        !matches!(self.0[0], 0 | 127 | 224..)
    }

    #[inline(always)]
    fn may_be_fragmented<F: Frame>(frame: &F, packet: &Packet<Self>) -> bool {
        frame
            .view::<Ipv4>(packet.l3)
            .is_some_and(|header| !header.must_not_be_fragmented())
    }
}

impl Answerable for V6 {
    const SMALLEST_MTU: u32 = 1280;

    #[inline(always)]
    fn is_host(self) -> bool {
        // ::/64 has the unspecified, the loopback and the mapped addresses (RFC 4291 section 2.5).
        let [high, _] = self.key().words();
        high != 0 && self.0[0] != 0xff
    }

    #[inline(always)]
    fn may_be_fragmented<F: Frame>(_: &F, _: &Packet<Self>) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowance_is_used_up_by_a_burst_and_grows_back_one_by_one() {
        let allowance = Allowance::OF_SOURCE;
        let (mut full_at, now) = (0, 1_000_000_000_000);
        for answer in 0..10 {
            full_at = allowance.take(full_at, now).expect("one of the burst");
            assert_eq!(full_at, now + (answer + 1) * 100_000_000);
        }
        assert_eq!(allowance.take(full_at, now), None);
        assert_eq!(allowance.take(full_at, now + 99_999_999), None);
        full_at = allowance
            .take(full_at, now + 100_000_000)
            .expect("one has grown back");
        assert_eq!(allowance.take(full_at, now + 100_000_000), None);
    }

    #[test]
    fn answer_keeps_its_fields_apart() {
        let answer = Answer::too_big(0xffff);
        assert_eq!(
            (answer.kind(), answer.inner(), answer.mtu()),
            (1, None, 0xffff)
        );
        let answer = Answer::refuse_inner(Family::V6);
        assert_eq!(
            (answer.kind(), answer.inner(), answer.mtu()),
            (3, Some(Family::V6), 0)
        );
    }

    #[test]
    fn only_addresses_that_a_host_may_have_are_answered() {
        for (address, is_host) in [
            ([0, 0, 0, 0], false),
            ([0, 1, 2, 3], false),
            ([1, 0, 0, 1], true),
            ([127, 0, 0, 1], false),
            ([128, 0, 0, 1], true),
            ([223, 255, 255, 255], true),
            ([224, 0, 0, 1], false),
            ([255, 255, 255, 255], false),
        ] {
            assert_eq!(V4(address).is_host(), is_host, "{address:?}");
        }
        let mut address = [0; 16];
        assert!(!V6(address).is_host(), "unspecified");
        address[15] = 1;
        assert!(!V6(address).is_host(), "loopback");
        assert!(
            !V6(AddressKey::v4([1, 2, 3, 4]).octets()).is_host(),
            "mapped"
        );
        address[0] = 0xff;
        assert!(!V6(address).is_host(), "multicast");
        address[0] = 0x20;
        assert!(V6(address).is_host());
    }
}
