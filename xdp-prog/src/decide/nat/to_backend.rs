//! NAT mode: packets from client to backend.

use zerocopy::transmute;

use super::{
    arrived::{Arrived, HEEDED, requested},
    lifetime::{after_client, forget, is_known},
    proof,
};
use crate::{
    abi::{
        AddressKey, BACKEND_LOCAL, BACKEND_NAT, Backend, NAT_OPEN, NatForward, NatLink, NatMark,
        NextHop, RENEWAL_NS, Tuple,
    },
    decide::edge::balance,
    family::Family,
    frame::Frame,
    parse::{Link, TcpFlags},
    punt::unsent,
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Translate, Verdict},
    wire::ethernet::{self, Ethernet, VlanTag},
    world::{NatFlows, Origin, Tables, Translation, World},
};

/// Decides what becomes of a client's packet.
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

/// Returns the link that a frame came by; `None` with tags other than one of 802.1Q.
#[inline(always)]
pub(super) fn origin<F: Frame>(frame: &F, link: &Link, ingress: u32) -> Option<Origin> {
    Some(Origin {
        link: way_back(frame, link)?,
        ifindex: ingress,
    })
}

/// Returns an origin with what replies need: the device's MTU, and whether it takes frames from XDP.
#[inline(always)]
pub(super) fn for_replies<T: NatFlows>(tables: &T, origin: &Origin) -> Origin {
    let mtu = tables.device_mtu(origin.ifindex).unwrap_or(0);
    Origin {
        link: origin.link.with_mtu(mtu),
        ifindex: tables.device_word(origin.ifindex),
    }
}

/// Returns the beginning of frames to this frame's sender; `None` with tags other than one of 802.1Q.
#[inline(always)]
pub(super) fn way_back<F: Frame>(frame: &F, link: &Link) -> Option<NatLink> {
    pub(super) const TAGGED: usize = Ethernet::LENGTH + VlanTag::LENGTH;
    let header: &Ethernet = frame.view(0)?;
    let [a, b, c, d, e, f]: [[u8; 2]; 6] = transmute!(header.macs);
    let vlan = match link.l3 {
        Ethernet::LENGTH => [0; 2],
        TAGGED if header.ether_type == ethernet::VLAN.to_be_bytes() => {
            frame.view::<VlanTag>(Ethernet::LENGTH)?.control
        }
        _ => return None,
    };
    Some(NatLink::new(transmute!([d, e, f, a, b, c]), vlan, 0))
}

/// Sends a client's packet to the backend of its flow.
#[inline(always)]
pub(super) fn to_backend<'t, T: World>(
    tables: &'t T,
    arrived: &Arrived,
    origin: &Origin,
) -> Verdict<'t> {
    let now = tables.now();
    let key = &arrived.key;
    let Some(entry) = look_up_client_flow(tables, key, arrived.flags(), now) else {
        return Verdict::Continue(Stage::NatBegin);
    };
    if proof::is_of_use(&entry, arrived, now) && tables.handed_over().detail & HEEDED == 0 {
        return Verdict::Continue(Stage::NatProof);
    }
    let Some(backend) = tables.backend(entry.backend()) else {
        return Verdict::Drop(DropReason::NatUnknownFlow);
    };
    let way = match way(tables, arrived.family, backend) {
        Ok(way) => way,
        Err(reason) => return unsent(tables, entry.backend(), reason),
    };
    let reply = reply_key(backend, way.address, entry.port(), key.protocol());
    if !is_by_nat(backend) || !entry.is_answered_as(&reply) {
        forget(tables, key, Some(&reply), now);
        return Verdict::Drop(DropReason::NatUnknownFlow);
    }
    if entry.fingerprint() != origin.fingerprint() && !tables.is_mended() {
        tables.move_nat_client(key, &reply, &for_replies(tables, origin));
    }
    if let Some(answer) = arrived.obstacle(way.hop.mtu) {
        return Verdict::Answer(answer);
    }
    send_translated(tables, arrived, as_edge(arrived, &entry, backend, &way))
}

/// Returns the translation of a client's packet.
#[inline(always)]
pub(super) fn as_edge(
    arrived: &Arrived,
    entry: &NatForward,
    backend: &Backend,
    way: &NatPath<'_>,
) -> Translation {
    let [a, b] = entry.port();
    let [c, d] = backend.port;
    Translation {
        source: way.address,
        destination: backend.pod,
        link: NatLink::new(way.hop.macs, way.hop.vlan, 0),
        ports: u32::from_ne_bytes([a, b, c, d]),
        protocol: arrived.key.protocol().into(),
        ifindex: way.hop.ifindex,
        backend: entry.backend(),
    }
}

/// Tells whether a backend is reached by NAT: its mode is NAT and it is not on this machine.
#[inline(always)]
pub(super) const fn is_by_nat(backend: &Backend) -> bool {
    backend.flags & (BACKEND_NAT | BACKEND_LOCAL) == BACKEND_NAT
}

/// The next hop to a backend, and the NAT address to use there.
pub(super) struct NatPath<'t> {
    pub(super) hop: &'t NextHop,
    pub(super) address: AddressKey,
}

/// Finds the next hop and the NAT address for a backend.
///
/// # Errors
///
/// Returns the reason why the packet cannot be sent.
#[inline(always)]
pub(super) fn way<'t, T: World>(
    tables: &'t T,
    family: Family,
    backend: &Backend,
) -> Result<NatPath<'t>, DropReason> {
    let hop = balance::next_hop(tables, backend)?;
    let address = nat_address(tables, family, hop);
    Ok(NatPath {
        hop,
        address: address.ok_or(DropReason::NoOuterSource)?,
    })
}

/// Returns the address to which backends behind this next hop reply.
#[inline(always)]
pub(super) fn nat_address<T: Tables>(
    tables: &T,
    family: Family,
    hop: &NextHop,
) -> Option<AddressKey> {
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

/// Returns the key of a backend's replies to an address and a port of NAT mode.
#[inline(always)]
pub(super) fn reply_key(
    backend: &Backend,
    address: AddressKey,
    port: [u8; 2],
    protocol: u8,
) -> Tuple {
    Tuple::new(backend.pod, address, backend.port, port, protocol)
}

/// Returns the verdict that sends a packet with its translation.
#[inline(always)]
pub(super) fn send_translated<'t, T: NatFlows>(
    tables: &'t T,
    arrived: &Arrived,
    translation: Translation,
) -> Verdict<'t> {
    match tables.keep(translation) {
        Some(by) => Verdict::Translate(Translate {
            service: arrived.service.into(),
            family: arrived.family,
            l3: arrived.l3,
            l4: arrived.l4,
            length: arrived.length,
            by,
        }),
        None => Verdict::Drop(DropReason::NoHeadroom),
    }
}

/// Looks a client's flow up, and renews it by this packet unless the flow is half-open.
#[inline(always)]
pub(super) fn look_up_client_flow<T: NatFlows>(
    tables: &T,
    key: &Tuple,
    flags: TcpFlags,
    now: u64,
) -> Option<NatForward> {
    // Judged once: after a renewal, the compiler would read the key again and compute its check anew.
    let mut known = false;
    let entry = tables.see_nat_forward(key, |entry| {
        known = is_known(entry, key, now);
        if !known || !entry.mark.has(NAT_OPEN) {
            return None;
        }
        let noted = after_client(key.protocol(), entry.mark.flags(), flags);
        let is_due = noted != entry.mark.flags() || entry.mark.idle(now) >= RENEWAL_NS;
        is_due.then_some(NatMark::new(now, noted))
    })?;
    known.then_some(entry)
}
