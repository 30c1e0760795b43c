//! Backends and their next hops.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AddressKey, check::mix, plain_data};
use crate::words::words;

plain_data! {
    Backend: 64,
    NextHop: 64,
}

/// A destination of a service's packets: a pod behind its node, a machine that has the VIP, or a machine reached by
/// NAT. The id is the index in `BACKENDS`; 0 is never used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Backend {
    /// Address of the backend's node, which is the outer destination; IPv4 in the first four bytes.
    pub address: [u8; 16],
    /// Index in `NEXTHOPS`; with 0, every packet asks the kernel's FIB.
    pub next_hop: u32,
    /// [`BACKEND_V4`] or [`BACKEND_V6`], and the other flags.
    pub flags: u32,
    /// Address of the pod, or of the machine that is reached by NAT.
    pub pod: AddressKey,
    /// Port of the pod or of that machine, in wire order.
    pub port: [u8; 2],
    /// The pod's tag in the outer header.
    pub tag: u16,
    /// Owner of the services that use it, so that their packets are counted apart; for user space.
    pub owner: u32,
    /// 1 while it takes new connections, those of one of its owner's services at least; else 0.
    pub takes_new: u32,
    /// The network namespace of a pod of this machine, which has the sockets of its connections: [`NAMESPACE_UNKNOWN`],
    /// [`NAMESPACE_OWN`], or [`namespace_of_id`].
    pub namespace: u32,
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 8],
}

/// [`Backend::namespace`]: nobody can tell which one.
pub const NAMESPACE_UNKNOWN: u32 = 0;
/// [`Backend::namespace`]: that of this machine, where the programs run.
pub const NAMESPACE_OWN: u32 = u32::MAX;

/// Returns the word of [`Backend::namespace`] for the namespace with this id in this machine's own (`ip-netns(8)`).
#[inline(always)]
pub const fn namespace_of_id(id: u32) -> u32 {
    id + 1
}

/// Returns the id that [`namespace_of_id`] was given.
#[inline(always)]
pub const fn id_of_namespace(namespace: u32) -> u32 {
    namespace.wrapping_sub(1)
}

/// [`Backend::flags`]: the node address is IPv4.
pub const BACKEND_V4: u32 = 1;
/// [`Backend::flags`]: the node address is IPv6.
pub const BACKEND_V6: u32 = 2;
/// [`Backend::flags`]: the node is this machine.
pub const BACKEND_LOCAL: u32 = 4;
/// [`Backend::flags`]: a pod behind a Guideway node; `pod`, `port` and `tag` are valid. Without it, the node itself
/// has the VIP.
pub const BACKEND_POD: u32 = 8;
/// [`Backend::flags`]: it is reached by NAT; `pod` and `port` are valid.
pub const BACKEND_NAT: u32 = 16;
/// [`Backend::flags`]: its node is known to be unreachable. Past owners of slots are not tried there.
pub const BACKEND_DOWN: u32 = 32;

impl Backend {
    /// The flags of a pod of this machine.
    pub const OWN_POD: u32 = BACKEND_LOCAL | BACKEND_POD;

    /// Tells whether it has all of these flags.
    #[inline(always)]
    pub const fn has_flags(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Returns the first four bytes of the node address.
    #[inline(always)]
    pub const fn address_v4(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.address;
        [a, b, c, d]
    }

    /// Tells whether a packet may be tried at it as at a past owner of a slot: this machine knows the pod's connections,
    /// or its Guideway node will return the packet if need be.
    #[inline(always)]
    pub const fn may_be_tried(&self) -> bool {
        const KIND: u32 = BACKEND_POD | BACKEND_DOWN;
        self.is_own_pod() || (self.flags & KIND == BACKEND_POD && self.next_hop != 0)
    }

    /// Tells whether a pin to it counts. A next hop that is missing for a moment takes no pin away.
    #[inline(always)]
    pub const fn may_be_pinned(&self) -> bool {
        self.is_own_pod() || self.flags & BACKEND_DOWN == 0
    }

    /// Tells whether flows without a pin stay at it as at a past owner of a slot. It need not return what it does not
    /// know.
    #[inline(always)]
    pub const fn may_keep(&self) -> bool {
        let is_local = self.flags & BACKEND_LOCAL != 0;
        self.may_be_pinned() && (is_local || self.next_hop != 0)
    }

    /// Returns a check of where it is. Entries with equal checks are of one backend, most likely.
    #[inline(always)]
    pub(super) const fn check(&self) -> u64 {
        let AddressKey([a, b]) = self.pod;
        let [c, d] = words(self.address);
        let port = u16::from_ne_bytes(self.port) as u64;
        mix(mix(mix(mix(a) ^ b) ^ c) ^ d) ^ port
    }

    /// Tells whether it is a pod of this machine.
    #[inline(always)]
    pub const fn is_own_pod(&self) -> bool {
        self.has_flags(Self::OWN_POD)
    }
}

/// The next hop of a backend; it does not change once a backend names it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NextHop {
    /// Interface index of the egress device; 0 if the id is free. With [`HOP_CARRIED`], the agent sends the frames.
    pub ifindex: u32,
    /// The largest IP packet that the path takes, in bytes, outer header included.
    pub mtu: u32,
    /// Outer source address in the backend's family, IPv4 in the first four bytes; all zero for that of
    /// [`Config`](super::Config).
    pub source: [u8; 16],
    /// Destination MAC, then source MAC: the first 12 bytes of the frame.
    pub macs: [u8; 12],
    /// 802.1Q tag control information (12 bits of VLAN id), in wire order; zero for no tag.
    pub vlan: [u8; 2],
    /// [`HOP_GATEWAY`].
    pub flags: u16,
    /// Bits of the outer source's last two bytes, as a big-endian number, that a flow's hash fills. They spread the
    /// packets from one edge to one node over receive queues and equal-cost paths. `source` has zeros there.
    pub spread: u16,
    /// This machine's own address towards the backend, in the form of `source`; NAT mode sends from it.
    pub own: [u8; 16],
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 6],
}

/// [`NextHop::flags`]: the destination MAC is a router's, not the backend's.
pub const HOP_GATEWAY: u16 = 1;

/// [`NextHop::ifindex`]: the device takes no frames from XDP, and the agent sends them. The kernel's indices are
/// positive `int`s, so they leave this bit free. It is here and not among the flags, because no frame asks for it
/// that leaves by the device that it came in by.
pub const HOP_CARRIED: u32 = 1 << 31;
