//! NAT mode: packets from backend to client.

use super::{
    arrived::{ACCEPTS, Arrived, RESETS},
    lifetime::{accepts_anew, after_backend, is_live, marked_by_backend},
    to_backend::send_translated,
};
use crate::{
    abi::{ADDRESS_VIP, NatReverse, RENEWAL_NS},
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    reason::PassReason,
    verdict::Verdict,
    world::{Answer, NatFlows, NatState, Tables, Translation, World},
};

/// Decides what becomes of a backend's packet.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => reply(frame, tables, &packet), reason => Verdict::Pass(reason))
}

#[inline(always)]
pub(super) fn reply<'t, F: Frame, A: Ip, T: World>(
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

/// Sends a backend's packet to its client.
#[inline(always)]
pub(super) fn to_client<'t, T: World>(tables: &'t T, arrived: &Arrived) -> Verdict<'t> {
    let Some(entry) = answer(tables, arrived) else {
        return not_ours(tables, arrived);
    };
    match arrived.obstacle(entry.link.mtu().into()) {
        None => send_translated(tables, arrived, as_vip(arrived, &entry)),
        Some(answer) => Verdict::Answer(answer),
    }
}

/// Ends a packet to a port of the mode that belongs to no flow. At a VIP it is refused, as at any port without a
/// service.
#[inline(always)]
pub(super) fn not_ours<'t, T: Tables>(tables: &T, arrived: &Arrived) -> Verdict<'t> {
    if is_to_vip(tables, arrived) {
        Verdict::Answer(Answer::REFUSE)
    } else {
        Verdict::Pass(PassReason::NatNotOurs)
    }
}

#[inline(always)]
pub(super) fn is_to_vip<T: Tables>(tables: &T, arrived: &Arrived) -> bool {
    tables.address_flags(&arrived.key.destination()) == ADDRESS_VIP
}

/// Returns the translation of a backend's packet.
#[inline(always)]
pub(super) fn as_vip(arrived: &Arrived, entry: &NatReverse) -> Translation {
    let [a, b] = entry.port();
    let [c, d] = entry.client_port();
    Translation {
        source: entry.address,
        destination: entry.client,
        link: entry.link,
        ports: u32::from_ne_bytes([a, b, c, d]),
        protocol: arrived.key.protocol().into(),
        ifindex: entry.ifindex,
        backend: 0,
    }
}

/// Looks a backend's flow up, and renews it by this packet if that is due.
#[inline(always)]
pub(super) fn answer<T: NatFlows>(tables: &T, arrived: &Arrived) -> Option<NatReverse> {
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
    // An old SYN+ACK acknowledges old data, so its number does not count.
    if begins || (says & (ACCEPTS | RESETS) == 0 && arrived.flags().acknowledges()) {
        state.expects = arrived.of_client();
    }
    tables.note_nat_reverse(reply, state);
    Some(entry)
}
