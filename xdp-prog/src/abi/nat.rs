//! The entries of NAT mode's flows.
//!
//! They are made of whole words, as all values are that the programs build on their stack.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::check::mix;
use super::{AddressKey, HOP_CARRIED, Tuple, age, plain_data};
use crate::words::{join_u16, join_u32, split_u32, split_u64};

plain_data! {
    NatMark: 8,
    NatForward: 24,
    NatReverse: 80,
    NatLink: 16,
    NatCount: 16,
    NatBegun: 8,
}

/// The time at which a flow was last seen, and flags. One word holds both, so that they are always read and written
/// together.
///
/// ```text
/// 63                                       8 7          0
/// | monotonic clock in ns, in steps of 256   | NAT_ flags |
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct NatMark(u64);

/// [`NatMark`]: the flow is proved. A TCP client has acknowledged the backend's SYN+ACK, or the backend has sent its
/// first data; a client of another protocol has sent again after an answer. A flow without this flag is *half-open*.
pub const NAT_OPEN: u8 = 1;
/// [`NatMark`]: the backend has answered. In TCP, it has sent a SYN+ACK that the client has not acknowledged yet.
pub const NAT_ANSWERED: u8 = 2;
/// [`NatMark`]: the client has sent a FIN.
pub const NAT_FIN_CLIENT: u8 = 4;
/// [`NatMark`]: the backend has sent a FIN.
pub const NAT_FIN_BACKEND: u8 = 8;
/// [`NatMark`]: a RST was seen, perhaps a forged one, and no other packet of the backend since.
pub const NAT_RESET: u8 = 16;
/// [`NatMark`]: the flow's port is about to go to another flow; no packet may use or renew this flow.
pub const NAT_CONDEMNED: u8 = 32;

impl NatMark {
    /// Packs time and flags.
    #[inline(always)]
    pub const fn new(now: u64, flags: u8) -> Self {
        Self(now >> 8 << 8 | flags as u64)
    }

    /// Returns the time in ns.
    #[inline(always)]
    pub const fn time(self) -> u64 {
        self.0 >> 8 << 8
    }

    /// Returns the flags.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    pub const fn flags(self) -> u8 {
        self.0 as u8
    }

    /// Returns the mark with one more flag.
    #[inline(always)]
    pub const fn with(self, flag: u8) -> Self {
        Self(self.0 | flag as u64)
    }

    /// Tells whether any of these flags is set.
    #[inline(always)]
    pub const fn has(self, flags: u8) -> bool {
        self.flags() & flags != 0
    }

    /// Returns the time since the flow was last seen, in ns; zero if that was in the future, by the clock of another
    /// CPU.
    #[inline(always)]
    pub const fn idle(self, now: u64) -> u64 {
        age(self.time(), now)
    }
}

/// Entry from client to backend. It alone tells whether the flow lives.
///
/// The checks come first, here and in [`NatReverse`]. The kernel copies a value from its start and readers look at
/// the checks last, so they notice an element that was recycled while they read it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NatForward {
    /// Checks of this entry's key and of the reverse entry's key.
    check: [u32; 2],
    /// When the flow was seen, and flags of both directions.
    pub mark: NatMark,
    /// Backend id (4 bytes), the flow's source port (2, wire order), fingerprint of the link in [`NatReverse`] (2).
    rest: u64,
}

impl NatForward {
    /// Makes the entry of a flow that its client sends as `key`, and whose backend replies as `reverse`.
    #[inline(always)]
    pub const fn new(
        key: &Tuple,
        reverse: &Tuple,
        backend: u32,
        fingerprint: u16,
        mark: NatMark,
    ) -> Self {
        let port = reverse.destination_port();
        Self {
            check: [key.check(), reverse.check()],
            mark,
            rest: join_u32(backend, join_u16(port, fingerprint.to_ne_bytes())),
        }
    }

    /// Tells whether the entry belongs to this key.
    #[inline(always)]
    pub const fn is_for(&self, key: &Tuple) -> bool {
        self.check[0] == key.check()
    }

    /// Tells whether the flow's replies have the key `reverse`.
    ///
    /// They have not if the backend id is reused for another backend, or if the edge's NAT address has changed.
    #[inline(always)]
    pub const fn is_answered_as(&self, reverse: &Tuple) -> bool {
        self.check[1] == reverse.check()
    }

    /// Returns the backend id.
    #[inline(always)]
    pub const fn backend(&self) -> u32 {
        split_u64(self.rest)[0]
    }

    /// Returns the source port that the flow uses towards the backend, in wire order.
    #[inline(always)]
    pub const fn port(&self) -> [u8; 2] {
        split_u32(split_u64(self.rest)[1])[0]
    }

    /// Returns the fingerprint of the link in the reverse entry.
    #[inline(always)]
    pub const fn fingerprint(&self) -> u16 {
        u16::from_ne_bytes(split_u32(split_u64(self.rest)[1])[1])
    }

    /// Records that the reverse entry has another link.
    #[inline(always)]
    pub const fn set_fingerprint(&mut self, fingerprint: u16) {
        let rest = join_u16(self.port(), fingerprint.to_ne_bytes());
        self.rest = join_u32(self.backend(), rest);
    }
}

/// Entry from backend to client.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NatReverse {
    check: u32,
    /// Device by which the client's packets come in and the replies leave, as [`NextHop::ifindex`](super::NextHop::ifindex)
    /// has it.
    pub ifindex: u32,
    /// The mark of [`NatForward`] when a packet of the backend last changed it. In a half-open flow its time follows
    /// the forward entry's, because the search for ports reads only this one.
    pub mark: NatMark,
    /// The client.
    pub client: AddressKey,
    /// The address that the client talks to.
    pub address: AddressKey,
    /// Beginning of the frames to the client.
    pub link: NatLink,
    /// The client's port (2 bytes) and the port that it talks to (2), in wire order.
    ports: u32,
    /// In TCP the sequence number of the backend's SYN+ACK, which the client's proof must acknowledge, in native
    /// order; else the time of the first packet, as [`NatReverse::began_at`] makes it.
    pub began_with: u32,
    /// In TCP the sequence number that the backend expected when its packets were last noted, in native order.
    pub expects: u32,
    /// Always zero.
    reserved: u32,
}

impl NatReverse {
    /// Makes the entry of a flow that its client sends as `forward`, and whose backend replies as `key`.
    #[inline(always)]
    pub const fn new(
        key: &Tuple,
        forward: &Tuple,
        ifindex: u32,
        link: NatLink,
        mark: NatMark,
    ) -> Self {
        Self {
            check: key.check(),
            ifindex,
            mark,
            client: forward.source(),
            address: forward.destination(),
            link,
            ports: forward.ports(),
            began_with: Self::began_at(mark.time()),
            expects: 0,
            reserved: 0,
        }
    }

    /// Converts a time in ns to steps of 16.8 ms, which wrap after two years.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "comes around")]
    pub const fn began_at(time: u64) -> u32 {
        (time >> 24) as u32
    }

    /// Tells whether the entry belongs to this key.
    #[inline(always)]
    pub const fn is_for(&self, key: &Tuple) -> bool {
        self.check == key.check()
    }

    /// Returns the key of the forward entry; `protocol` is part of this entry's key.
    #[inline(always)]
    pub const fn forward_key(&self, protocol: u8) -> Tuple {
        Tuple::new(
            self.client,
            self.address,
            self.client_port(),
            self.port(),
            protocol,
        )
    }

    /// Returns the client's port, in wire order.
    #[inline(always)]
    pub const fn client_port(&self) -> [u8; 2] {
        split_u32(self.ports)[0]
    }

    /// Returns the port that the client talks to, in wire order.
    #[inline(always)]
    pub const fn port(&self) -> [u8; 2] {
        split_u32(self.ports)[1]
    }
}

/// Numbers of NAT mode's flows: of a service, or for id 0 of free entries.
///
/// The programs count without locks. User space corrects the numbers by what it finds in the tables.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NatCount {
    /// Flows of the service; for id 0, free entries.
    pub flows: i64,
    /// Half-open flows among them.
    pub half_open: i64,
}

impl NatCount {
    /// Flows that a service may have for each free entry. A single service can take four fifths of the table, two can
    /// take four ninths each.
    const SHARE: i64 = 4;
    /// Entries that must be free for each half-open flow of a service.
    const ROOM: i64 = 2;

    /// Tells whether a service with these numbers may have one more flow, if `free` entries are free.
    #[inline(always)]
    pub const fn leaves_room(&self, free: i64) -> bool {
        self.flows < Self::SHARE * free && Self::ROOM * self.half_open < free
    }
}

/// Place of a flow that has begun: backend id (4 bytes), low half of the service id (2), source port (2, wire order).
/// All zero is an empty place.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct NatBegun(pub u64);

impl NatBegun {
    /// Packs the parts.
    #[inline(always)]
    pub const fn new(backend: u32, service: u32, port: [u8; 2]) -> Self {
        let [a, b, c, d] = backend.to_le_bytes();
        let [e, f, ..] = service.to_le_bytes();
        let [g, h] = port;
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Returns the backend id.
    #[inline(always)]
    pub const fn backend(self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Tells whether the flow is this service's.
    #[inline(always)]
    pub const fn is_of(self, service: u32) -> bool {
        let [a, b, ..] = service.to_le_bytes();
        let [_, _, _, _, c, d, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([a, b]) == u16::from_le_bytes([c, d])
    }

    /// Returns the source port, in wire order.
    #[inline(always)]
    pub const fn port(self) -> [u8; 2] {
        let [.., a, b] = self.0.to_le_bytes();
        [a, b]
    }
}

/// Beginning of the frames to a client: destination and source MAC (12 bytes), 802.1Q tag control information (2,
/// zero without a tag), and the device's MTU (2, native order).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct NatLink([u64; 2]);

impl NatLink {
    /// Packs the parts.
    #[inline(always)]
    pub const fn new(macs: [u8; 12], vlan: [u8; 2], mtu: u16) -> Self {
        let [a, b, c]: [u32; 3] = transmute!(macs);
        let rest = join_u16(vlan, mtu.to_ne_bytes());
        Self([join_u32(a, b), join_u32(c, rest)])
    }

    /// Returns destination MAC and source MAC.
    #[inline(always)]
    pub const fn macs(self) -> [u8; 12] {
        let [a, b] = split_u64(self.0[0]);
        let [c, _] = split_u64(self.0[1]);
        transmute!([a, b, c])
    }

    /// Returns the tag control information, in wire order; zero without a tag.
    #[inline(always)]
    pub const fn vlan(self) -> [u8; 2] {
        split_u32(split_u64(self.0[1])[1])[0]
    }

    /// Returns the MTU in bytes.
    #[inline(always)]
    pub const fn mtu(self) -> u16 {
        u16::from_ne_bytes(split_u32(split_u64(self.0[1])[1])[1])
    }

    /// Returns the same link with another MTU.
    #[inline(always)]
    pub const fn with_mtu(self, mtu: u16) -> Self {
        Self::new(self.macs(), self.vlan(), mtu)
    }

    /// Returns a number that tells this link on this device from others, whatever their MTU and whoever sends by them.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    pub const fn fingerprint(self, ifindex: u32) -> u16 {
        let link = self.with_mtu(0);
        (mix(mix(link.0[0]) ^ link.0[1] ^ ((ifindex & !HOP_CARRIED) as u64) << 16) >> 16) as u16
    }
}

#[cfg(test)]
mod tests;
