//! Answers that this machine gives itself: ICMP errors, TCP RSTs, echo replies.
//!
//! Code that finds an answer due returns [`Verdict::Answer`](crate::verdict::Verdict::Answer). A stage of its own
//! judges whether the packet may be answered, and makes the answer in the packet's frame. ICMP errors and RSTs use up
//! the source's allowance. An echo reply does not: it is as large as its request, so it amplifies nothing.

use crate::{
    abi::{AddressKey, Datagram, EdgeMac},
    decide::{
        address::{addresses, outer_source},
        allowance::Allowance,
        key_of_datagram,
        owner::is_from_edge,
    },
    family::Family,
    flow::{V4, V6},
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    punt::{Punt, is_mending},
    reason::{DropReason, PassReason, ReplyReason},
    verdict::{Ending, Reply, ReplyPath},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        ipv4::Ipv4,
        ipv6::Ipv6,
    },
    world::{Answer, Answers, World},
};

/// Asks the FIB for the way to the client of a packet that an edge sent in an outer header. The answer does not go by
/// the edge, which need not forward packets to clients. Returns the way and the egress interface.
///
/// Some devices take no frames from XDP, or need tags that are not known here: bridges, stacked VLANs. So the answer
/// returns as the frame came, tags included, if the frame seems to have come in by the device that leads to the
/// client: the device leads to the edge too, it has the MAC that the edge sent to, and its tag, if any, is the
/// frame's.
#[inline(always)]
pub(crate) fn way_to_client<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
    reply: &Reply,
    ingress: u32,
) -> Result<(ReplyPath<'t>, u32), DropReason> {
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
        let way = ReplyPath {
            macs: Some(&hop.macs),
            vlan: [0; 2],
            l3: link.l3,
        };
        return Ok((way, ingress));
    }
    let l3 = if is_tagged {
        Ethernet::LENGTH + VlanTag::LENGTH
    } else {
        Ethernet::LENGTH
    };
    let way = ReplyPath {
        macs: Some(&hop.macs),
        vlan: hop.vlan,
        l3,
    };
    Ok((way, hop.ifindex))
}

/// Returns the VLAN id of a frame with exactly one tag, in wire order; else 0.
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

/// Judges whether the packet that an earlier stage has handed over is answered.
///
/// # Errors
///
/// Returns what becomes of the packet if it is not.
#[inline(always)]
pub fn decide<F: Frame, T: World>(frame: &F, tables: &T) -> Result<Reply, Ending> {
    let answer = Answer(tables.handed_over().detail);
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Err(Ending::Pass(reason)),
    };
    let (outer, header_length) = match link.ether_type {
        ethernet::IPV4 => (Family::V4, Ipv4::LENGTH),
        ethernet::IPV6 => (Family::V6, Ipv6::LENGTH),
        _ => return Err(Ending::Pass(PassReason::NotIp)),
    };
    // The program opens no outer header that has more than the fixed part.
    let (family, l3) = match answer.inner() {
        Some(inner) => (inner, link.l3 + header_length),
        None => (outer, link.l3),
    };
    with_packet!(frame, family, at l3,
        packet => reply(frame, tables, &packet, answer),
        reason => Err(Ending::Pass(reason)))
}

#[inline(always)]
fn reply<F: Frame, A: Answerable, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
    answer: Answer,
) -> Result<Reply, Ending> {
    // The edge knows a service that this machine will know soon, so the packet is not refused. It is dropped if the
    // stack would forward it: an edge would sooner or later get it and send it here again.
    if answer == Answer::REFUSE && is_from_edge(frame, tables) {
        let is_sent_on = tables.fib_device(&packet.destination.key()).is_some();
        return Err(if is_sent_on {
            Ending::Drop(DropReason::SentBack)
        } else {
            Ending::Pass(PassReason::NoService)
        });
    }
    let reason = match judge(frame, packet, answer) {
        Ok(reason) => reason,
        Err(DropReason::FragmentationNeeded)
            if is_mending(tables) && packet.protocol != A::ICMP =>
        {
            // What is cut comes back, and shows its ports then. Later fragments must not overtake it, for a node knows
            // no ports either.
            if packet.is_fragment && !packet.is_later_fragment() {
                let now = tables.now();
                tables.publish(&key_of_datagram(packet), &Datagram::withdrawn(now));
            }
            Punt::too_big(answer.mtu()).hand_over(tables);
            return Err(Ending::Punt);
        }
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
        // A host never uses an MTU below the smallest one, so a packet that fits into that cannot become smaller.
        let told = answer.mtu().max(A::SMALLEST_MTU) as usize;
        if A::may_be_fragmented(frame, packet) {
            return Err(DropReason::FragmentationNeeded);
        }
        if packet.length <= told || packet.is_later_fragment() {
            return Err(DropReason::MtuExceeded);
        }
    }
    if !packet.source.is_host() {
        return Err(DropReason::Unanswerable);
    }
    if kind == Answer::KIND_ECHO {
        // The answer repeats the options of a whole request. It would have to repeat those of a fragment, too.
        let is_plain = if packet.is_fragment {
            packet.l4 - packet.l3 == A::HEADER_LENGTH + A::FRAGMENT_HEADER_LENGTH
        } else {
            A::REPEATS_OPTIONS || packet.l4 - packet.l3 == A::HEADER_LENGTH
        };
        // A later fragment loses a hop.
        let may_go_on = answer != Answer::ECHO_LATER || packet.hop_limit > 1;
        return if is_plain && packet.protocol == A::ICMP && may_go_on {
            Ok(ReplyReason::EchoReply)
        } else {
            Err(DropReason::Unanswerable)
        };
    }
    // ICMP errors are never answered (RFC 1122 section 3.2.2); other ICMP does not get here.
    if packet.is_later_fragment() || packet.protocol == A::ICMP {
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

/// Takes one answer from the allowances. A source that has used up its own takes nothing from the others.
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

/// The part of the judgement that differs between the families.
trait Answerable: Ip {
    /// The smallest MTU that a host uses, in bytes (RFC 791 section 3.2, RFC 8200 section 5).
    const SMALLEST_MTU: u32;
    /// Whether an echo reply repeats what lies between the IP header's fixed part and the ICMP header.
    const REPEATS_OPTIONS: bool;
    /// Tells whether a single host may have the address.
    fn is_host(self) -> bool;
    /// Tells whether routers may fragment the packet.
    fn may_be_fragmented<F: Frame>(frame: &F, packet: &Packet<Self>) -> bool;
}

impl Answerable for V4 {
    const SMALLEST_MTU: u32 = 68;
    const REPEATS_OPTIONS: bool = true;

    #[inline(always)]
    fn is_host(self) -> bool {
        // Not "this network", loopback, multicast and above (RFC 1122 section 3.2.1.3).
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
    const REPEATS_OPTIONS: bool = false;

    #[inline(always)]
    fn is_host(self) -> bool {
        // ::/64 contains the unspecified, the loopback and the IPv4-mapped addresses (RFC 4291 section 2.5).
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
