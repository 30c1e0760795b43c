//! NAT mode: DNAT and SNAT at the edge, and back.
//!
//! ```text
//! client:port -> VIP:80          NAT_FORWARD            edge:61234 -> backend:8080
//! client:port <- VIP:80          NAT_REVERSE            edge:61234 <- backend:8080
//! ```
//!
//! A flow has an entry in each table. `NAT_REVERSE` is what reserves the
//! source port: its key is what the reply looks like, and it is inserted only
//! where no such key is there, so two flows never share a port towards one
//! backend, whatever CPUs they come in on. It is there before the forward entry
//! and goes after it.
//!
//! **Whether a flow lives** is told by the mark of its forward entry alone. Packets
//! of both directions renew it, at most once a second unless they tell something new,
//! so that a reply costs one look-up. A flow that was idle for too long is never renewed, and its
//! port is given out again only [`GUARD_NS`] later: whoever removes it need not
//! fear a packet that has just found it.
//!
//! **What is proved.** Anybody can send a SYN, and a backend that lives answers it. So a TCP flow is half-open until its
//! client acknowledges the very sequence number of the SYN+ACK, which lies in the reverse entry, or the backend sends
//! the first data after it; others until the client goes on after an answer. What a half-open flow's packets say
//! otherwise renews nothing, but a SYN. Nor does a RST or a SYN end anything: the backend shows whether it heeds them by
//! what it sends next. A client's RST counts only with a number that the backend may wait for, which lies in the reverse
//! entry too. Where the backend accepts another connection after a RST or the FINs of both ends, that one is proved in the
//! same way.
//!
//! **Under pressure**, where the ports that are tried are all taken, or the service has its share of the table
//! ([`crate::abi::NatCount::leaves_room`], [`share`]), a flow gives its port to the new one: the half-open one that is silent for
//! longest, which is the oldest, after [`HANDSHAKE_NS`]. Unless it is half-open flows that take the ports, an open one
//! does of which the backend has said nothing for long: for [`QUIET_RESET_NS`] after a RST, or of UDP for
//! [`QUIET_DATAGRAMS_NS`]. Anybody can open a flow of UDP by two datagrams that the backend answers, so one in use for
//! less than [`SPAN_OF_USE_NS`] counts as half-open here; an association of SCTP has only one port to be tried, which a
//! single packet would take from it, so none gives way. A flow is condemned first, by an exchange of its
//! mark that fails if the mark is not what was judged: so no packet renews a flow that goes, and none goes that was renewed.
//! The backend may remember it still. Then it answers the new SYN for the old flow, at which the new client resets it
//! (RFC 9293 section 3.5.1) and sends its SYN again.
//!
//! **Removal.** Entries go in pairs, by whoever holds the flow's claim in
//! `NAT_CLAIMS` and has looked again under it: the sweep of user space, a packet
//! that found every port taken and takes one of them, or one that begins its own
//! old flow anew.
//!
//! **Fragments.** The first one goes the way of any packet, the later ones follow by its ports. All keep their
//! identification: two clients whose datagrams have the same one at the same time meet in the backend, as behind
//! every NAT of this kind, and the checksums tell.

pub mod begin;
mod follow;
pub mod fragment;
pub mod icmp;
pub mod proof;
pub mod share;

use super::{
    edge::balance::{self, LARGEST_PACKET},
    node::deliver::{IDLE_TCP_NS, IDLE_UDP_NS},
};
use crate::{
    abi::{
        ADDRESS_VIP, AddressKey, BACKEND_LOCAL, BACKEND_NAT, Backend, NAT_ANSWERED, NAT_CONDEMNED,
        NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatForward, NatLink, NatMark,
        NatReverse, NextHop, RENEWAL_NS, Tuple,
    },
    family::Family,
    flow::FlowKey,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Link, Packet, Segment, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Translate, Verdict},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        protocol,
        transport::Tcp,
    },
    world::{Answer, NatFlows, NatState, OFFSETS, Origin, Relay, Tables, Translation, World},
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
/// How far the backend's first data are from its SYN+ACK: more than what is sent before anything is acknowledged
/// (RFC 6928), and so little that one forged segment in 65536 is believed.
const FIRST_DATA: u32 = 1 << 16;

/// Beside the service of the packet under way: what it proves has been taken note of.
const HEEDED: u32 = 1 << 31;
/// The same: a flow of the service was looked for that gives way.
const SOUGHT: u32 = 1 << 30;
/// The same: one has gone.
const MADE_ROOM: u32 = 1 << 29;
/// From this bit on, below these: how many were looked at.
const LOOKS_AT: u32 = 24;

/// Returns the service out of a note of it.
#[inline(always)]
const fn service_of(noted: u32) -> u32 {
    noted & ((1 << LOOKS_AT) - 1)
}

/// Returns how many flows were looked at, out of a note of the service.
#[inline(always)]
const fn looks_of(noted: u32) -> u32 {
    noted >> LOOKS_AT & 0xf
}

/// Decides what is to be done with a frame of this stage: a client's packet.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T, ingress: u32) -> Verdict<'t> {
    let (link, arrived) = match requested(frame, tables) {
        Ok(requested) => requested,
        Err(verdict) => return verdict,
    };
    let Some(origin) = origin(frame, &link, ingress) else {
        return Verdict::Pass(PassReason::VlanDepth);
    };
    to_backend(tables, &arrived, &origin)
}

/// Decides what is to be done with a frame of this stage: a reply.
#[inline(always)]
pub fn decide_reply<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => reply(frame, tables, &packet), reason => Verdict::Pass(reason))
}

/// A packet of either family and direction.
///
/// From here on the families share their code, and the BPF stack.
struct Arrived {
    /// Service id; 0 for a reply.
    service: u32,
    family: Family,
    l3: usize,
    l4: usize,
    length: usize,
    /// Words, because this lies on the BPF stack.
    hop_limit: u32,
    /// TCP flags, and [`DATA`].
    flags: u32,
    /// [`Arrived::of_client`], then [`Arrived::of_backend`]; in one word, because this lies on the BPF stack.
    numbers: u64,
    key: Tuple,
}

/// [`Arrived::flags`]: a TCP segment with data.
const DATA: u32 = 1 << 8;

impl Arrived {
    #[inline(always)]
    fn new<F: Frame, A: Ip>(
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

    /// Carries everything but the key through [`Relay`]: for stages that do not see most packets.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
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

    /// Returns what keeps the packet from leaving by a device with this MTU.
    #[inline(always)]
    const fn obstacle(&self, mtu: u32) -> Option<Answer> {
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
    const fn flags(&self) -> TcpFlags {
        TcpFlags(self.flags as u8)
    }

    /// Returns the number of a TCP segment that counts what the client sends: of a client's its sequence number, of a
    /// backend's what it acknowledges.
    #[inline(always)]
    const fn of_client(&self) -> u32 {
        (self.numbers >> 32) as u32
    }

    /// Returns the number of a TCP segment that counts what the backend sends.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    const fn of_backend(&self) -> u32 {
        self.numbers as u32
    }

    /// Returns what a backend says by this packet, on a connection that it has accepted with this number.
    #[inline(always)]
    fn says(&self, accepted_with: u32) -> u32 {
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

/// A backend's packet: of a protocol other than TCP.
const DATAGRAM: u32 = 1;
/// A backend's segment: a SYN+ACK.
const ACCEPTS: u32 = 2;
/// A backend's segment: a RST.
const RESETS: u32 = 4;
/// A backend's segment: a FIN.
const ENDS: u32 = 8;
/// A backend's segment: the first data of a connection that was just accepted, or the end if there are none.
const BEGINS: u32 = 16;

/// Reads [`Arrived::flags`] and [`Arrived::numbers`].
#[inline(always)]
fn read_segment<F: Frame, A>(frame: &F, packet: &Packet<A>, service: u32) -> (u32, u64) {
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

/// Reads a client's packet for a stage that not all come to.
#[inline(always)]
fn requested_aside<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<Arrived, Verdict<'t>> {
    let (_, arrived) = requested(frame, tables)?;
    match arrived.relayed(tables) {
        Some(arrived) => Ok(arrived),
        None => Err(Verdict::Drop(DropReason::StageMissing)),
    }
}

/// Reads a client's packet, and how its frame begins.
#[inline(always)]
fn requested<'t, F: Frame, T: World>(
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

#[inline(always)]
fn request<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Result<Arrived, Verdict<'t>> {
    let flow = match parse::flow(frame, packet) {
        Ok(flow) => flow,
        Err(reason) => return Err(Verdict::Pass(reason)),
    };
    let service = service_of(tables.nat_service());
    Ok(Arrived::new(frame, packet, &flow, service))
}

#[inline(always)]
fn reply<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    let flow = match parse::flow(frame, packet) {
        Ok(flow) => flow,
        Err(reason) => return Verdict::Pass(reason),
    };
    to_client(tables, &Arrived::new(frame, packet, &flow, 0))
}

/// Returns where a frame came from; nothing with tags other than one of 802.1Q.
#[inline(always)]
fn origin<F: Frame>(frame: &F, link: &Link, ingress: u32) -> Option<Origin> {
    Some(Origin {
        link: way_back(frame, link)?,
        ifindex: ingress,
    })
}

/// Makes the beginning of frames to where this one came from; nothing with tags other than one of 802.1Q.
#[inline(always)]
fn way_back<F: Frame>(frame: &F, link: &Link) -> Option<NatLink> {
    const TAGGED: usize = Ethernet::LENGTH + VlanTag::LENGTH;
    let header: &Ethernet = frame.view(0)?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header.macs;
    let vlan = match link.l3 {
        Ethernet::LENGTH => [0; 2],
        TAGGED if header.ether_type == ethernet::VLAN => {
            frame.view::<VlanTag>(Ethernet::LENGTH)?.control
        }
        _ => return None,
    };
    Some(NatLink::new([g, h, i, j, k, l, a, b, c, d, e, f], vlan, 0))
}

/// Takes a client's packet to the backend that its flow has.
#[inline(always)]
fn to_backend<'t, T: World>(tables: &'t T, arrived: &Arrived, origin: &Origin) -> Verdict<'t> {
    let now = tables.now();
    let key = &arrived.key;
    let Some(entry) = look_up_client_flow(tables, key, arrived.flags(), now) else {
        return Verdict::Continue(Stage::NatBegin);
    };
    if proof::is_of_use(&entry, arrived, now) && tables.nat_service() & HEEDED == 0 {
        return Verdict::Continue(Stage::NatProof);
    }
    let Some(backend) = tables.backend(entry.backend()) else {
        return Verdict::Drop(DropReason::NatUnknownFlow);
    };
    let way = match way(tables, arrived.family, backend) {
        Ok(way) => way,
        Err(reason) => return Verdict::Drop(reason),
    };
    let reply = reply_key(backend, way.address, entry.port(), key.protocol());
    if !is_by_nat(backend) || !entry.is_answered_as(&reply) {
        forget(tables, key, Some(&reply), now);
        return Verdict::Drop(DropReason::NatUnknownFlow);
    }
    if entry.fingerprint() != origin.fingerprint() {
        let mtu = tables.device_mtu(origin.ifindex).unwrap_or(0);
        let client = Origin {
            link: origin.link.with_mtu(mtu),
            ..*origin
        };
        tables.move_nat_client(key, &reply, &client);
    }
    if let Some(answer) = arrived.obstacle(way.hop.mtu) {
        return Verdict::Answer(answer);
    }
    send_translated(tables, arrived, as_edge(arrived, &entry, backend, &way))
}

/// Makes what a client's packet gets.
#[inline(always)]
fn as_edge(arrived: &Arrived, entry: &NatForward, backend: &Backend, way: &Way<'_>) -> Translation {
    let [a, b] = entry.port();
    let [c, d] = backend.port;
    Translation {
        source: way.address,
        destination: backend.pod,
        link: NatLink::new(way.hop.macs, way.hop.vlan, 0),
        ports: u32::from_ne_bytes([a, b, c, d]),
        protocol: arrived.key.protocol().into(),
        ifindex: way.hop.ifindex,
        service: arrived.service,
        backend: entry.backend(),
        reserved: 0,
    }
}

/// Tells whether a backend takes part by NAT.
#[inline(always)]
const fn is_by_nat(backend: &Backend) -> bool {
    backend.flags & (BACKEND_NAT | BACKEND_LOCAL) == BACKEND_NAT
}

/// How a packet gets to its backend, and as whose.
struct Way<'t> {
    hop: &'t NextHop,
    address: AddressKey,
}

/// Finds the way to a backend.
///
/// # Errors
///
/// Returns why the packet cannot be sent.
#[inline(always)]
fn way<'t, T: World>(
    tables: &'t T,
    family: Family,
    backend: &Backend,
) -> Result<Way<'t>, DropReason> {
    let hop = balance::next_hop(tables, backend)?;
    let address = nat_address(tables, family, hop);
    Ok(Way {
        hop,
        address: address.ok_or(DropReason::NoOuterSource)?,
    })
}

/// Returns the address that backends behind this next hop reply to.
#[inline(always)]
fn nat_address<T: Tables>(tables: &T, family: Family, hop: &NextHop) -> Option<AddressKey> {
    let config = tables.config()?;
    let (nat, source) = match family {
        Family::V4 => (&config.nat_v4, &config.source_v4),
        Family::V6 => (&config.nat_v6, &config.source_v6),
    };
    let address = if !balance::is_unspecified(nat) {
        nat
    } else if !balance::is_unspecified(&hop.own) {
        &hop.own
    } else if !balance::is_unspecified(source) {
        source
    } else {
        return None;
    };
    Some(match family {
        Family::V4 => {
            let [a, b, c, d, ..] = *address;
            AddressKey::v4([a, b, c, d])
        }
        Family::V6 => AddressKey::v6(*address),
    })
}

/// Returns the key of a backend's replies.
#[inline(always)]
fn reply_key(backend: &Backend, address: AddressKey, port: [u8; 2], protocol: u8) -> Tuple {
    Tuple::new(backend.pod, address, backend.port, port, protocol)
}

/// Sends a packet on with what it gets.
#[inline(always)]
fn send_translated<'t, T: NatFlows>(
    tables: &'t T,
    arrived: &Arrived,
    translation: Translation,
) -> Verdict<'t> {
    match tables.keep(translation) {
        Some(by) => Verdict::Translate(Translate {
            family: arrived.family,
            l3: arrived.l3,
            l4: arrived.l4,
            length: arrived.length,
            by,
        }),
        None => Verdict::Drop(DropReason::NoHeadroom),
    }
}

/// Looks a client's flow up, and renews it by the packet at hand unless it is half-open.
#[inline(always)]
fn look_up_client_flow<T: NatFlows>(
    tables: &T,
    key: &Tuple,
    flags: TcpFlags,
    now: u64,
) -> Option<NatForward> {
    let entry = tables.see_nat_forward(key, |entry| {
        if !is_known(entry, key, now) || !entry.mark.has(NAT_OPEN) {
            return None;
        }
        let noted = after_client(key.protocol(), entry.mark.flags(), flags);
        let is_due = noted != entry.mark.flags() || entry.mark.idle(now) >= RENEWAL_NS;
        is_due.then_some(NatMark::new(now, noted))
    });
    match entry {
        Some(entry) if is_known(&entry, key, now) => Some(entry),
        _ => None,
    }
}

#[inline(always)]
fn is_known(entry: &NatForward, key: &Tuple, now: u64) -> bool {
    entry.is_for(key) && !is_over(entry, key.protocol(), now)
}

/// Tells whether a flow was idle for so long that nobody may renew it.
#[inline(always)]
const fn is_over(entry: &NatForward, protocol: u8, now: u64) -> bool {
    entry.mark.idle(now) >= idle_limit(protocol, entry.mark)
}

/// Flags of a TCP connection that both ends have closed.
const CLOSED: u8 = NAT_FIN_CLIENT | NAT_FIN_BACKEND;

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
const fn is_closed(noted: u8) -> bool {
    noted & CLOSED == CLOSED
}

/// Returns what an open flow's packets have told once the client has sent this one.
#[inline(always)]
const fn after_client(protocol: u8, noted: u8, flags: TcpFlags) -> u8 {
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
const fn after_backend(noted: u8, says: u32) -> u8 {
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
const fn accepts_anew(noted: u8) -> bool {
    noted & NAT_OPEN == 0 || noted & NAT_RESET != 0 || is_closed(noted)
}

/// Returns a flow's mark once the backend has sent this packet.
#[inline(always)]
const fn marked_by_backend(mark: NatMark, says: u32, now: u64) -> NatMark {
    let noted = after_backend(mark.flags(), says);
    // A half-open connection is not renewed: a backend repeats its SYN+ACK for a minute.
    let renews = says & DATAGRAM != 0 || noted & NAT_OPEN != 0;
    NatMark::new(if renews { now } else { mark.time() }, noted)
}

/// Removes a forward entry that is over, or that says of its flow what no longer holds: that it is answered
/// as `not`.
#[inline(always)]
fn forget<T: NatFlows>(tables: &T, key: &Tuple, not: Option<&Tuple>, now: u64) {
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

/// Takes a backend's packet to its client.
#[inline(always)]
fn to_client<'t, T: World>(tables: &'t T, arrived: &Arrived) -> Verdict<'t> {
    let Some(entry) = answer(tables, arrived) else {
        return not_ours(tables, arrived);
    };
    match arrived.obstacle(entry.link.mtu().into()) {
        None => send_translated(tables, arrived, as_vip(arrived, &entry)),
        Some(answer) => Verdict::Answer(answer),
    }
}

/// Ends what came to a port of the mode and is of no flow: at a VIP it is as to any port that nothing serves.
#[inline(always)]
fn not_ours<'t, T: Tables>(tables: &T, arrived: &Arrived) -> Verdict<'t> {
    if is_to_vip(tables, arrived) {
        Verdict::Answer(Answer::REFUSE)
    } else {
        Verdict::Pass(PassReason::NatNotOurs)
    }
}

#[inline(always)]
fn is_to_vip<T: Tables>(tables: &T, arrived: &Arrived) -> bool {
    tables.address_flags(&arrived.key.destination()) == ADDRESS_VIP
}

/// Makes what a backend's packet gets.
#[inline(always)]
fn as_vip(arrived: &Arrived, entry: &NatReverse) -> Translation {
    let [a, b] = entry.port();
    let [c, d] = entry.client_port();
    Translation {
        source: entry.address,
        destination: entry.client,
        link: entry.link,
        ports: u32::from_ne_bytes([a, b, c, d]),
        protocol: arrived.key.protocol().into(),
        ifindex: entry.ifindex,
        service: 0,
        backend: 0,
        reserved: 0,
    }
}

/// Looks a backend's flow up, and renews it by the packet at hand if that is due.
#[inline(always)]
fn answer<T: NatFlows>(tables: &T, arrived: &Arrived) -> Option<NatReverse> {
    let reply = &arrived.key;
    let now = tables.now();
    let protocol = reply.protocol();
    let entry = tables.see_nat_reverse(reply)?;
    if !entry.is_for(reply) {
        return None;
    }
    let says = arrived.says(entry.began_with);
    let noted = entry.mark.flags();
    let is_news = says & ACCEPTS != 0 || after_backend(noted, says) != noted;
    if !is_news && entry.mark.idle(now) < RENEWAL_NS {
        return Some(entry);
    }
    let key = entry.forward_key(protocol);
    let mut seen = None;
    tables.see_nat_forward(&key, |forward| {
        if !is_live(forward, &key, reply, now) {
            return None;
        }
        seen = Some(forward.mark);
        let mark = marked_by_backend(forward.mark, says, now);
        (mark != forward.mark).then_some(mark)
    });
    let mark = seen?;
    let mut state = NatState::of(&entry).marked(marked_by_backend(mark, says, now));
    let begins = says & ACCEPTS != 0 && accepts_anew(mark.flags());
    if begins {
        state.began_with = arrived.of_backend();
    }
    // An old SYN+ACK acknowledges what is long past.
    if begins || (says & (ACCEPTS | RESETS) == 0 && arrived.flags().acknowledges()) {
        state.expects = arrived.of_client();
    }
    tables.note_nat_reverse(reply, state);
    Some(entry)
}

#[inline(always)]
fn is_live(entry: &NatForward, key: &Tuple, reply: &Tuple, now: u64) -> bool {
    entry.is_for(key) && entry.is_answered_as(reply) && !is_over(entry, key.protocol(), now)
}
