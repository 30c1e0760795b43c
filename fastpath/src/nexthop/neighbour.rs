//! Neighbour entries: reads them, and makes the kernel keep them resolved.

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::netlink::{
    Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, Request, family_of, read_address, read_mac,
    read_u32,
};

/// Marks the entries that this module made the kernel manage, as routing daemons mark their routes. The number is
/// free in `rtnetlink.h` and in iproute2's `rt_protos`.
const PROTOCOL: u8 = 71;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_PROTOCOL: u16 = 12;
const NDA_FLAGS_EXT: u16 = 15;
const NTF_EXT_MANAGED: u32 = 1;

/// The states in which the kernel uses the entry's MAC address.
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// The states that need no resolution.
const STATIC: u16 = libc::NUD_PERMANENT | libc::NUD_NOARP;

/// `struct ndmsg`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fixed {
    family: u8,
    reserved: [u8; 3],
    ifindex: u32,
    state: u16,
    flags: u8,
    entry_type: u8,
}

/// A neighbour: its address and the interface index of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) ifindex: u32,
    pub(super) address: IpAddr,
}

/// The kernel's entry for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    /// `None` while the neighbour is unresolved.
    pub(super) mac: Option<[u8; 6]>,
    /// The neighbour did not answer the last question.
    pub(super) failed: bool,
    /// The kernel keeps the entry resolved, because we or another program asked it to.
    pub(super) managed: bool,
    /// The kernel keeps the entry resolved because we asked it to.
    pub(super) ours: bool,
    /// The entry is permanent, needs no resolution, or belongs to another control plane. An update of ours would take
    /// that property away.
    pub(super) fixed: bool,
}

/// Returns the request that lists all neighbours of both families.
pub(super) fn list() -> Request {
    Request::new(libc::RTM_GETNEIGH, NLM_F_DUMP, &Fixed::default())
}

/// Returns the request that makes the kernel resolve a neighbour and keep it resolved.
pub(super) fn keep(key: Key) -> Request {
    update(key, 0, NLM_F_CREATE)
        .attribute(NDA_FLAGS_EXT, &NTF_EXT_MANAGED.to_ne_bytes())
        .attribute(NDA_PROTOCOL, &[PROTOCOL])
}

/// Returns the request that makes the kernel resolve a neighbour, or confirm it if it is stale: what a packet of the
/// kernel's own would. For kernels that keep none resolved by themselves.
pub(super) fn ask(key: Key) -> Request {
    update(key, libc::NTF_USE, NLM_F_CREATE)
}

/// Returns the request that makes a kept neighbour an ordinary one.
///
/// With `NTF_USE` the update leaves the entry's state alone; without it, the update would set a state.
pub(super) fn release(key: Key) -> Request {
    update(key, libc::NTF_USE, 0)
}

fn update(key: Key, flags: u8, message_flags: u16) -> Request {
    let fixed = Fixed {
        family: family_of(key.address),
        ifindex: key.ifindex,
        flags,
        ..Fixed::default()
    };
    Request::new(libc::RTM_NEWNEIGH, NLM_F_ACK | message_flags, &fixed)
        .address(NDA_DST, key.address)
}

/// Reads a neighbour; `None` if the message is not about an IP neighbour.
pub(super) fn decode(message: &Message<'_>) -> Option<(Key, Neighbour)> {
    if !matches!(message.kind, libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH) {
        return None;
    }
    let (fixed, attributes) = message.split::<Fixed>()?;
    let mut address = None;
    let mut mac = None;
    let mut managed = false;
    let mut protocol = 0;
    for (kind, value) in attributes {
        match kind {
            NDA_DST => address = read_address(value),
            NDA_LLADDR => mac = read_mac(value),
            NDA_FLAGS_EXT => managed = read_u32(value)? & NTF_EXT_MANAGED != 0,
            NDA_PROTOCOL => protocol = *value.first()?,
            _ => {}
        }
    }
    // A bridge's forwarding entries have the bridge's family and no IP address.
    let address = address.filter(|address| family_of(*address) == fixed.family)?;
    let key = Key {
        ifindex: fixed.ifindex,
        address,
    };
    let neighbour = Neighbour {
        mac: mac.filter(|_| fixed.state & VALID != 0),
        failed: fixed.state & libc::NUD_FAILED != 0,
        managed,
        ours: managed && protocol == PROTOCOL,
        fixed: fixed.state & STATIC != 0 || fixed.flags & libc::NTF_EXT_LEARNED != 0,
    };
    Some((key, neighbour))
}

/// Returns a message about a neighbour in the kernel's format.
#[cfg(test)]
pub(super) fn written(kind: u16, state: u16, mac: [u8; 6]) -> Request {
    let fixed = Fixed {
        family: crate::netlink::FAMILY_V4,
        ifindex: 3,
        state,
        ..Fixed::default()
    };
    Request::new(kind, 0, &fixed)
        .attribute(NDA_DST, &[192, 0, 2, 1])
        .attribute(NDA_LLADDR, &mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn read(request: Request) -> Option<(Key, Neighbour)> {
        decode(&messages(&request.into_bytes(0)).next().unwrap())
    }

    fn read_state(state: u16) -> Neighbour {
        read(written(libc::RTM_NEWNEIGH, state, MAC)).unwrap().1
    }

    #[test]
    fn stale_addresses_are_used_and_unresolved_ones_are_not() {
        for state in [
            libc::NUD_REACHABLE,
            libc::NUD_STALE,
            libc::NUD_DELAY,
            libc::NUD_PROBE,
            libc::NUD_PERMANENT,
            libc::NUD_NOARP,
        ] {
            assert_eq!(read_state(state).mac, Some(MAC), "state {state}");
        }
        for state in [libc::NUD_NONE, libc::NUD_INCOMPLETE, libc::NUD_FAILED] {
            assert_eq!(read_state(state).mac, None, "state {state}");
        }
    }

    #[test]
    fn a_managed_entry_is_ours_by_its_protocol() {
        let with = |flags: u32, protocol: u8| {
            let request = written(libc::RTM_NEWNEIGH, libc::NUD_REACHABLE, MAC)
                .attribute(NDA_FLAGS_EXT, &flags.to_ne_bytes())
                .attribute(NDA_PROTOCOL, &[protocol]);
            let (_, neighbour) = read(request).unwrap();
            (neighbour.managed, neighbour.ours)
        };
        assert_eq!(with(NTF_EXT_MANAGED, PROTOCOL), (true, true));
        assert_eq!(with(NTF_EXT_MANAGED, 0), (true, false));
        assert_eq!(with(0, PROTOCOL), (false, false));
    }

    #[test]
    fn permanent_entries_are_fixed() {
        assert!(read_state(libc::NUD_PERMANENT).fixed);
        assert!(!read_state(libc::NUD_REACHABLE).fixed);
    }

    #[test]
    fn a_bridges_forwarding_entry_is_no_neighbour() {
        let fixed = Fixed {
            family: 7,
            ifindex: 3,
            state: libc::NUD_REACHABLE,
            ..Fixed::default()
        };
        let entry = Request::new(libc::RTM_NEWNEIGH, 0, &fixed).attribute(NDA_LLADDR, &MAC);
        assert_eq!(read(entry), None);
    }
}
