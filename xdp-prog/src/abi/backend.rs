//! Backends, and how packets leave to them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AddressKey, plain_data};

plain_data! {
    Backend: 64,
    NextHop: 64,
}

/// What a service's packets go to: a pod by way of its node, a machine that has the VIP, or one reached by NAT. Its id = index in `BACKENDS`, 0 is never used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Backend {
    /// Address of the backend's node: the outer destination. IPv4 in the first four bytes.
    pub address: [u8; 16],
    /// Index in `NEXTHOPS`; 0 asks the kernel's FIB for each packet.
    pub next_hop: u32,
    /// [`BACKEND_V4`] or [`BACKEND_V6`], and the other flags.
    pub flags: u32,
    /// Address of the pod, or of the machine that takes part by NAT.
    pub pod: AddressKey,
    /// Port that the pod listens on, in wire order.
    pub port: [u8; 2],
    /// Names the pod to its node.
    pub tag: u16,
    /// Whose services it is for, so that it counts theirs alone; for user space.
    pub owner: u32,
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 16],
}

/// [`Backend::flags`]: the node address is IPv4.
pub const BACKEND_V4: u32 = 1;
/// [`Backend::flags`]: the node address is IPv6.
pub const BACKEND_V6: u32 = 2;
/// [`Backend::flags`]: the node is this machine.
pub const BACKEND_LOCAL: u32 = 4;
/// [`Backend::flags`]: a pod behind a Guideway node: `pod`, `port` and `tag` count. Without it the node
/// itself has the VIP.
pub const BACKEND_POD: u32 = 8;
/// [`Backend::flags`]: takes part by NAT: `pod` and `port` count.
pub const BACKEND_NAT: u32 = 16;

impl Backend {
    /// Returns the first four bytes of the node address.
    #[inline(always)]
    pub const fn address_v4(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.address;
        [a, b, c, d]
    }

    /// Tells whether it is a pod of this machine.
    #[inline(always)]
    pub const fn is_own_pod(&self) -> bool {
        const OWN_POD: u32 = BACKEND_LOCAL | BACKEND_POD;
        self.flags & OWN_POD == OWN_POD
    }
}

/// How frames leave towards a backend; immutable once a backend names it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NextHop {
    /// Device to transmit on; 0 where the id is free.
    pub ifindex: u32,
    /// Largest IP packet the path takes, outer header included.
    pub mtu: u32,
    /// Outer source address, of the backend's family, IPv4 in the first four bytes; all zero to use
    /// [`Config`](super::Config)'s.
    pub source: [u8; 16],
    /// Destination MAC, then source MAC: the first 12 bytes of the frame.
    pub macs: [u8; 12],
    /// 802.1Q tag control information to send with (12 bits of VLAN id); zero for untagged.
    pub vlan: [u8; 2],
    /// [`HOP_GATEWAY`].
    pub flags: u16,
    /// The bits of the outer source's last two bytes (as a big-endian number) that a flow's hash fills, so that receive
    /// queues and equal-cost paths share what one edge sends to one node; `source` has zeros there.
    pub spread: u16,
    /// This machine's own address towards the backend, spelled likewise, which NAT mode sends from.
    pub own: [u8; 16],
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 6],
}

/// [`NextHop::flags`]: the MAC is a router's, not the backend's.
pub const HOP_GATEWAY: u16 = 1;
