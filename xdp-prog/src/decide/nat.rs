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
//! **Removal.** Entries go in pairs, by whoever holds the flow's claim in
//! `NAT_CLAIMS` and has looked again under it: the sweep of user space, a packet
//! that found every port taken and one of them idle, or one that begins its own
//! old flow anew.
//!
//! **Fragments.** The first one goes the way of any packet, the later ones follow by its ports. All keep their
//! identification: two clients whose datagrams have the same one at the same time meet in the backend, as behind
//! every NAT of this kind, and the checksums tell.

use super::{
    Clock, Family, Ip, Stage, Tables, Verdict, World,
    answer::Answer,
    balance::{self, LARGEST_PACKET},
    deliver::{IDLE_TCP_NS, IDLE_TRANSITORY_NS, IDLE_UDP_NS},
    relay::{OFFSETS, Relay},
};
pub mod begin;
mod follow;
pub mod fragment;
pub mod icmp;

use crate::{
    abi::{
        AddressKey, BACKEND_LOCAL, BACKEND_NAT, Backend, NAT_ANSWERED, NAT_FIN_BACKEND,
        NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatForward, NatLink, NatMark, NatReverse, NextHop,
        RENEWAL_NS, Tuple,
    },
    flow::FlowKey,
    frame::Frame,
    parse::{self, Link, Packet, TcpFlags},
    reason::{DropReason, PassReason},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        protocol,
    },
};

/// How long an idle flow that nobody may renew any more keeps its port.
pub const GUARD_NS: u64 = 20_000_000_000;

/// The memory of NAT mode.
pub trait NatFlows: Clock {
    /// Reads a forward entry, and sets its mark where `renew` says so.
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward>;
    /// Reads a reverse entry, and sets its mark where `renew` says so.
    fn see_nat_reverse(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatReverse) -> Option<NatMark>,
    ) -> Option<NatReverse>;
    /// Adds a forward entry, unless it is there.
    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted;
    /// Adds the reverse entry that [`NatReverse::new`] makes of these, unless there is one with this key.
    fn insert_nat_reverse(
        &self,
        key: &Tuple,
        forward: &Tuple,
        client: &Origin,
        mark: NatMark,
    ) -> Inserted;
    /// Removes a forward entry.
    fn remove_nat_forward(&self, key: &Tuple);
    /// Removes a reverse entry.
    fn remove_nat_reverse(&self, key: &Tuple);
    /// Writes where a flow's client is to both of its entries.
    fn move_nat_client(&self, forward: &Tuple, reverse: &Tuple, client: &Origin);
    /// Claims the right to remove the flow with this forward key; false where another one has it.
    fn claim_nat(&self, forward: &Tuple) -> bool;
    /// Gives the right back.
    fn release_nat(&self, forward: &Tuple);
    /// Returns the MTU of a device.
    fn device_mtu(&self, ifindex: u32) -> Option<u16>;
    /// Puts a translation where it stays while the packet is under way.
    fn keep(&self, translation: Translation) -> Option<&Translation>;
    /// Notes the service of the packet under way, for the stages that follow.
    fn note_nat_service(&self, service: u32);
    /// Returns the service that an earlier stage has found.
    fn nat_service(&self) -> u32;
}

/// Where a client's packets come from, and its replies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How frames to it begin.
    pub link: NatLink,
    /// The device.
    pub ifindex: u32,
}

impl Origin {
    /// Returns what tells it from other origins.
    #[inline(always)]
    pub const fn fingerprint(&self) -> u16 {
        self.link.fingerprint(self.ifindex)
    }
}

/// What became of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The entry is there now.
    Done,
    /// One with this key was there before.
    Exists,
    /// The table takes no more.
    Full,
}

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

/// What a packet gets; too much for the BPF stack, so it lies where [`NatFlows::keep`] puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Translation {
    /// Source address.
    pub source: AddressKey,
    /// Destination address.
    pub destination: AddressKey,
    /// How the frame begins.
    pub link: NatLink,
    /// The ports, source first, in wire order.
    pub ports: u32,
    /// The transport protocol, which stays; 0 where the transport header is in another fragment.
    pub protocol: u32,
    /// Device by which it leaves.
    pub ifindex: u32,
    /// Service id, for the counters.
    pub service: u32,
    /// Backend id, for the counters; 0 towards the client.
    pub backend: u32,
    /// Always zero.
    pub reserved: u32,
}

/// Decides what is to be done with a frame of this stage: a client's packet.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T, ingress: u32) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    let arrived = match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => request(frame, tables, &packet),
            Err(reason) => Err(Verdict::Pass(reason)),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => request(frame, tables, &packet),
            Err(reason) => Err(Verdict::Pass(reason)),
        },
        _ => Err(Verdict::Pass(PassReason::NotIp)),
    };
    let arrived = match arrived {
        Ok(arrived) => arrived,
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
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => reply(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => reply(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        _ => Verdict::Pass(PassReason::NotIp),
    }
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
    flags: u32,
    key: Tuple,
}

impl Arrived {
    #[inline(always)]
    fn new<F: Frame, A: Ip>(
        frame: &F,
        packet: &Packet<A>,
        flow: &FlowKey<A>,
        service: u32,
    ) -> Self {
        Self {
            service,
            family: A::FAMILY,
            l3: packet.l3,
            l4: packet.l4,
            length: packet.length,
            hop_limit: packet.hop_limit.into(),
            flags: parse::tcp_flags(frame, packet).0.into(),
            key: flow.tuple(),
        }
    }

    /// Carries everything but the key through [`Relay`]: for stages that do not see most packets.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
        let [ids, offsets, rest, _] = tables.relay([
            u64::from(self.service) << 32 | self.length as u64,
            (self.l3 as u64) << 32 | self.l4 as u64,
            u64::from(self.hop_limit) << 32 | u64::from(self.flags) << 1 | self.family.bit(),
            0,
        ])?;
        Some(Self {
            service: (ids >> 32) as u32,
            family: Family::of_bit(rest),
            l3: (offsets >> 32) as usize & OFFSETS,
            l4: offsets as usize & OFFSETS,
            length: ids as u32 as usize,
            hop_limit: (rest >> 32) as u32,
            flags: rest as u32 >> 1,
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
    Ok(Arrived::new(frame, packet, &flow, tables.nat_service()))
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
    let Some(entry) = meet(tables, key, arrived.flags(), now) else {
        return Verdict::Continue(Stage::NatBegin);
    };
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
    leave(tables, arrived, as_edge(arrived, &entry, backend, &way))
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
    } else if !balance::is_unspecified(&hop.source) {
        &hop.source
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
fn leave<'t, T: NatFlows>(
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

/// Looks a client's flow up, and renews it by the packet at hand.
#[inline(always)]
fn meet<T: NatFlows>(tables: &T, key: &Tuple, flags: TcpFlags, now: u64) -> Option<NatForward> {
    let entry = tables.see_nat_forward(key, |entry| {
        if !is_known(entry, key, now) {
            return None;
        }
        let told = after_client(key.protocol(), entry.mark.flags(), flags);
        let is_due = told != entry.mark.flags() || entry.mark.idle(now) >= RENEWAL_NS;
        is_due.then_some(NatMark::new(now, told))
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
    entry.mark.idle(now) >= idle_limit(protocol, entry.mark.flags())
}

/// Flags of a TCP connection that both ends take for established.
const ESTABLISHED: u8 = NAT_OPEN | NAT_ANSWERED;
/// Flags of a TCP connection that both ends have closed.
const CLOSED: u8 = NAT_FIN_CLIENT | NAT_FIN_BACKEND;

/// Returns for how long a flow may be idle.
#[inline(always)]
pub const fn idle_limit(protocol: u8, flags: u8) -> u64 {
    if protocol != protocol::TCP {
        IDLE_UDP_NS
    } else if is_closed(flags) || flags & ESTABLISHED != ESTABLISHED {
        IDLE_TRANSITORY_NS
    } else {
        IDLE_TCP_NS
    }
}

#[inline(always)]
const fn is_closed(flags: u8) -> bool {
    flags & NAT_RESET != 0 || flags & CLOSED == CLOSED
}

/// Returns what a flow's packets have told once the client has sent this one.
#[inline(always)]
const fn after_client(protocol: u8, told: u8, flags: TcpFlags) -> u8 {
    if protocol != protocol::TCP {
        return told;
    }
    if flags.begins_connection() {
        // The port is used again.
        return if is_closed(told) { 0 } else { told };
    }
    told | NAT_OPEN
        | (if flags.fin() { NAT_FIN_CLIENT } else { 0 })
        | (if flags.rst() { NAT_RESET } else { 0 })
}

/// Returns what a backend's packet tells of its flow.
#[inline(always)]
const fn backend_told(protocol: u8, flags: TcpFlags) -> u8 {
    if protocol != protocol::TCP {
        return 0;
    }
    NAT_ANSWERED
        | (if flags.fin() { NAT_FIN_BACKEND } else { 0 })
        | (if flags.rst() { NAT_RESET } else { 0 })
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
            let limit = idle_limit(key.protocol(), entry.mark.flags());
            if entry.mark.idle(now) >= limit + GUARD_NS {
                Fate::Over
            } else {
                Fate::Lives
            }
        }
        // The port is still not for others: the backend may remember the flow.
        _ if reverse.mark.idle(now) >= IDLE_TRANSITORY_NS + GUARD_NS => Fate::Orphan,
        _ => Fate::Lives,
    }
}

/// Takes a backend's packet to its client.
#[inline(always)]
fn to_client<'t, T: World>(tables: &'t T, arrived: &Arrived) -> Verdict<'t> {
    let reply = &arrived.key;
    let Some(entry) = answer(tables, reply, arrived.flags()) else {
        return Verdict::Pass(PassReason::NatNotOurs);
    };
    match arrived.obstacle(entry.link.mtu().into()) {
        None => leave(tables, arrived, as_vip(arrived, &entry)),
        Some(answer) => Verdict::Answer(answer),
    }
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
fn answer<T: NatFlows>(tables: &T, reply: &Tuple, flags: TcpFlags) -> Option<NatReverse> {
    let now = tables.now();
    let protocol = reply.protocol();
    let entry = tables.see_nat_reverse(reply, |_| None)?;
    if !entry.is_for(reply) {
        return None;
    }
    let told = backend_told(protocol, flags);
    let is_news = told & !entry.mark.flags() != 0 || flags.accepts_connection();
    if !is_news && entry.mark.idle(now) < RENEWAL_NS {
        return Some(entry);
    }
    let key = entry.forward_key(protocol);
    let forward = tables.see_nat_forward(&key, |forward| {
        if !is_live(forward, &key, reply, now) {
            return None;
        }
        Some(NatMark::new(now, forward.mark.flags() | told))
    });
    match forward {
        Some(forward) if is_live(&forward, &key, reply, now) => {}
        _ => return None,
    }
    let kept = if flags.accepts_connection() {
        0
    } else {
        entry.mark.flags()
    };
    tables.see_nat_reverse(reply, |_| Some(NatMark::new(now, kept | told)));
    Some(entry)
}

#[inline(always)]
fn is_live(entry: &NatForward, key: &Tuple, reply: &Tuple, now: u64) -> bool {
    entry.is_for(key) && entry.is_answered_as(reply) && !is_over(entry, key.protocol(), now)
}
