//! Map keys, values and names: the contract between kernel and user space.
//!
//! Every type derives zerocopy's `IntoBytes`, which does not compile where
//! there is padding; sizes are asserted beside the types. Addresses, ports and
//! MACs are byte arrays in network order, all other integers native.
//!
//! What one change may do to a live table, and in which order:
//!
//! * `BACKENDS` and `NEXTHOPS` entries are written before anything names them
//!   and then left alone; only [`Backend::next_hop`] and [`Backend::flags`] are
//!   replaced, each by one store.
//! * `LUT` slots are replaced one by one with compare-exchange, a service's
//!   whole run by one store of its [`ServiceWord`].
//! * Ids and runs that nothing names any more are reused only after an RCU
//!   grace period, so a packet in flight never finds a stranger behind them.
//! * Hash elements are recycled by the kernel at once, without a grace period.
//!   Hence the key check in the [`ServiceWord`]: see [`crate::decide`].
//!
//! A layout that changes from one release to the next raises [`VERSION`], which names the pin directory.

mod announce;
mod local;
mod nat;
mod notes;
mod probe;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use self::announce::{AnnounceLink, Claim};
pub use self::local::LocalFlow;
pub use self::nat::{
    NAT_ANSWERED, NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatForward, NatLink,
    NatMark, NatReverse,
};
pub use self::notes::{FlowNote, Shortcut};
pub use self::probe::{PROBE_ENCAP, PROBE_MARK, PROBE_MARK_MASK, Probe};

/// Version of the layouts below; part of the path under which maps are pinned.
pub const VERSION: u32 = 3;

/// Name of the XDP program in the object.
pub const XDP_PROGRAM: &str = "guideway";
/// Name of the TC egress program in the object.
pub const EGRESS_PROGRAM: &str = "guideway_egress";

/// Names of the maps in the object, and of their pins.
pub mod map {
    /// Array of one [`super::Config`].
    pub const CONFIG: &str = "CONFIG";
    /// Hash from [`super::AddressKey`] to `u32` flags ([`super::ADDRESS_VIP`], [`super::ADDRESS_LOCAL`],
    /// [`super::ADDRESS_NODE_PORT`], [`super::ADDRESS_NAT`], [`super::ADDRESS_SHARED`]).
    pub const VIPS: &str = "VIPS";
    /// Hash from [`super::ServiceKeyV4`] to a service id.
    pub const SERVICES_V4: &str = "SERVICES_V4";
    /// Hash from [`super::ServiceKeyV6`] to a service id.
    pub const SERVICES_V6: &str = "SERVICES_V6";
    /// Mmapable array from service id to [`super::Service`].
    pub const SERVICE: &str = "SERVICE";
    /// Mmapable array of [`super::Slot`]: the arena of all lookup tables.
    pub const LUT: &str = "LUT";
    /// Mmapable array from backend id to [`super::Backend`].
    pub const BACKENDS: &str = "BACKENDS";
    /// Mmapable array from next-hop id to [`super::NextHop`].
    pub const NEXTHOPS: &str = "NEXTHOPS";
    /// LPM trie over [`super::EdgePrefix`] to 1.
    pub const TRUSTED_EDGES: &str = "TRUSTED_EDGES";
    /// Hash from [`super::EdgeMac`] to 1: MACs from which L2 DSR frames come.
    pub const EDGE_MACS: &str = "EDGE_MACS";
    /// Hash from [`super::PodKey`] to [`super::Pod`]: the pods of this machine.
    pub const PODS: &str = "PODS";
    /// LPM trie over [`super::SourcePrefix`] to 1: who may talk to a service.
    pub const SOURCE_RANGES: &str = "SOURCE_RANGES";
    /// LRU hash from [`super::Tuple`] (client to pod) to [`super::PodFlow`]: TCP flows that the pod has answered.
    pub const FLOWS: &str = "FLOWS";
    /// LRU hash like `FLOWS`: those of other protocols.
    pub const FLOWS_DATAGRAM: &str = "FLOWS_DATAGRAM";
    /// Mmapable array of [`super::FlowNote`]: what packets of the last second found in `FLOWS` and `FLOWS_DATAGRAM`.
    pub const FLOW_NOTES: &str = "FLOW_NOTES";
    /// LRU hash like `FLOWS`: flows that the pod has not answered yet.
    pub const FLOWS_EMBRYONIC: &str = "FLOWS_EMBRYONIC";
    /// LRU hash from [`super::Tuple`] (as the pod sees the flow) to [`super::AddressKey`]: the client whose place
    /// the address that it talks to has taken.
    pub const HAIRPINS: &str = "HAIRPINS";
    /// LRU hash from [`super::Tuple`] (as packets come in) to [`super::LocalFlow`]: flows of this machine's own kernel.
    pub const LOCAL_FLOWS: &str = "LOCAL_FLOWS";
    /// LRU hash from [`super::Tuple`] (see [`super::Tuple::fragments`]) to [`super::Datagram`].
    pub const FRAGMENTS: &str = "FRAGMENTS";
    /// Hash from [`super::Tuple`] (client to VIP) to [`super::NatForward`].
    pub const NAT_FORWARD: &str = "NAT_FORWARD";
    /// Hash from [`super::Tuple`] (backend to this edge) to [`super::NatReverse`].
    pub const NAT_REVERSE: &str = "NAT_REVERSE";
    /// Hash from [`super::Tuple`] (client to VIP) to `u64` time, ns: flows of NAT mode that someone is removing.
    pub const NAT_CLAIMS: &str = "NAT_CLAIMS";
    /// LRU hash from [`super::AddressKey`] to `u64`: when a source's allowance of answers is full again, ns.
    pub const ANSWERS: &str = "ANSWERS";
    /// Per-CPU array of one `u64`: when the allowance of answers to all sources together is full again, ns.
    pub const ANSWERS_OF_CPU: &str = "ANSWERS_OF_CPU";
    /// Array from the index in a check's mark to [`super::Probe`].
    pub const PROBES: &str = "PROBES";
    /// LRU hash from [`super::Tuple`] (a check's answer as it comes in) to the [`super::AddressKey`] that its socket is connected to.
    pub const PROBE_PEERS: &str = "PROBE_PEERS";
    /// Hash from [`super::AddressKey`] to 1: addresses that this machine announces to its neighbours.
    pub const ANNOUNCED: &str = "ANNOUNCED";
    /// Hash from [`super::AnnounceLink`] to [`super::EdgeMac`]: where, and the MAC that they have there.
    pub const ANNOUNCE_LINKS: &str = "ANNOUNCE_LINKS";
    /// Hash from [`super::AddressKey`] to [`super::Claim`]: who else announces one of these addresses.
    pub const CLAIMS: &str = "CLAIMS";
    /// Program array by [`crate::capture::Slot`].
    pub const CAPTURE: &str = "CAPTURE";
    /// Array of one [`crate::capture::Settings`].
    pub const CAPTURE_SETTINGS: &str = "CAPTURE_SETTINGS";
    /// Per-CPU array of one [`crate::capture::Copies`]: scratch.
    pub const CAPTURE_COPIES: &str = "CAPTURE_COPIES";
    /// Ring buffer of [`crate::capture::Event`]s, each with the copies of the frame behind it.
    pub const EVENTS: &str = "EVENTS";
    /// Per-CPU array of one `u64`: events that found the ring buffer full.
    pub const EVENTS_LOST: &str = "EVENTS_LOST";
    /// Program array by [`crate::decide::Stage`].
    pub const STAGES: &str = "STAGES";
    /// Per-CPU array of `u64` packets by [`crate::reason`] index.
    pub const REASONS: &str = "REASONS";
    /// Per-CPU array of [`super::Traffic`] by service id.
    pub const SERVICE_TRAFFIC: &str = "SERVICE_TRAFFIC";
    /// Per-CPU array of [`super::Traffic`] by backend id.
    pub const BACKEND_TRAFFIC: &str = "BACKEND_TRAFFIC";
}

/// Sizes that the object declares; the loader's options override them.
pub mod size {
    /// Services, over both families.
    pub const SERVICES: usize = 16_384;
    /// Backends; id 0 is never used.
    pub const BACKENDS: usize = 65_536;
    /// Next hops; id 0 is never used.
    pub const NEXT_HOPS: usize = 16_384;
    /// Slots of the LUT arena: 128 MiB of 8 bytes each; slot 0 is never used.
    pub const LUT_SLOTS: usize = 16 << 20;
    /// Addresses in `VIPS`.
    pub const VIPS: usize = 65_536;
    /// Prefixes in `TRUSTED_EDGES`.
    pub const TRUSTED_EDGES: usize = 4_096;
    /// MACs in `EDGE_MACS`.
    pub const EDGE_MACS: usize = 4_096;
    /// Pods of this machine, once for each service they serve.
    pub const PODS: usize = 16_384;
    /// Prefixes in `SOURCE_RANGES`, over all services.
    pub const SOURCE_RANGES: usize = 65_536;
    /// Flows in `FLOWS`, and in each of the tables of flows beside it.
    pub const FLOWS: usize = 262_144;
    /// [`super::FlowNote`]s.
    pub const FLOW_NOTES: usize = 65_536;
    /// Flows in `HAIRPINS`.
    pub const HAIRPINS: usize = 16_384;
    /// Datagrams in `FRAGMENTS`.
    pub const FRAGMENTS: usize = 16_384;
    /// Flows in `NAT_FORWARD` and `NAT_REVERSE`.
    pub const NAT: usize = 262_144;
    /// Checks in `PROBES`; index 0 is never used.
    pub const PROBES: usize = 16_384;
    /// Flows in `NAT_CLAIMS`: one for each CPU, and one for user space.
    pub const NAT_CLAIMS: usize = 4_096;
    /// [`super::Shortcut`]s of a CPU.
    pub const SHORTCUTS: usize = 1_024;
    /// Sources in `ANSWERS`.
    pub const ANSWERS: usize = 16_384;
    /// Devices and tags in `ANNOUNCE_LINKS`.
    pub const ANNOUNCE_LINKS: usize = 1_024;
}

/// Implements aya's `Pod` for types that are proved free of padding.
macro_rules! plain_data {
    ($($name:ident: $size:literal,)*) => {$(
        const _: () = assert!(size_of::<$name>() == $size);

        // SAFETY: the type is `repr(C)` and derives `FromBytes` and
        // `IntoBytes`, so every bit pattern is valid and none is padding.
        #[cfg(not(target_arch = "bpf"))]
        unsafe impl aya::Pod for $name {}
    )*};
}

pub(crate) use plain_data;

plain_data! {
    Config: 88,
    AddressKey: 16,
    ServiceKeyV4: 8,
    ServiceKeyV6: 24,
    EdgePrefix: 20,
    EdgeMac: 8,
    SourcePrefix: 20,
    PodKey: 8,
    Pod: 8,
    Tuple: 40,
    PodFlow: 32,
    FlowNote: 64,
    Datagram: 16,
    Shortcut: 56,
    Service: 32,
    ServiceWord: 8,
    Slot: 8,
    Backend: 64,
    NextHop: 64,
    Traffic: 16,
}

/// Machine-wide settings.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Config {
    /// Seed of the flow hash; equal on all edges, or flows move when routers re-spread them.
    pub hash_seed: u64,
    /// Outer IPv4 source where the next hop has none, in the first four bytes; all zero for none.
    pub source_v4: [u8; 16],
    /// Outer IPv6 source where the next hop has none; all zero for none.
    pub source_v6: [u8; 16],
    /// NAT mode's IPv4 source, in the first four bytes; all zero for the outer source.
    pub nat_v4: [u8; 16],
    /// NAT mode's IPv6 source; all zero for the outer source.
    pub nat_v6: [u8; 16],
    /// First port of NAT mode's sources.
    pub nat_port: u16,
    /// Number of NAT mode's source ports; 0 where the mode is not in use.
    pub nat_ports: u16,
    /// MTU of the uplinks: what MSS options are clamped to, less the outer header; 0 for never.
    pub mtu: u32,
    /// [`CONFIG_NODE`], [`CONFIG_PROBES`], [`CONFIG_ANNOUNCE`].
    pub flags: u32,
    /// Raised after each change of addresses, trusted edges, services and pods: what programs have noted of
    /// them counts only until then.
    pub epoch: u32,
}

/// [`Config::flags`]: this machine has pods, and takes the node role for what edges send.
pub const CONFIG_NODE: u32 = 1;

/// [`Config::flags`]: this machine checks backends by way of services, and answers come back to it.
pub const CONFIG_PROBES: u32 = 2;

/// [`Config::flags`]: this machine announces addresses to its neighbours.
pub const CONFIG_ANNOUNCE: u32 = 4;

/// `VIPS` flag: a virtual address; with no other flag, what comes for it is ours, be the port in use or not.
pub const ADDRESS_VIP: u32 = 1;
/// `VIPS` flag: an address of this machine at which IP-in-IP is decapsulated.
pub const ADDRESS_LOCAL: u32 = 2;
/// `VIPS` flag: an address of this machine at which NodePorts are served; the rest is the kernel's.
pub const ADDRESS_NODE_PORT: u32 = 4;
/// `VIPS` flag: the source address of NAT mode, to which backends reply.
pub const ADDRESS_NAT: u32 = 8;
/// `VIPS` flag: an address with services that somebody else may have too; what is for none of them passes.
pub const ADDRESS_SHARED: u32 = 16;

/// An IPv6 address, or an IPv4 one as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
///
/// The bytes lie in network order. This key and those of the services are kept
/// in whole words because they are built on the BPF stack: of single fields LLVM
/// merges stores across word boundaries, which the verifier refuses there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AddressKey([u64; 2]);

impl AddressKey {
    /// Maps an IPv4 address into the IPv6 space.
    #[inline(always)]
    pub const fn v4(a: [u8; 4]) -> Self {
        Self::v6([
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3],
        ])
    }

    /// Takes an IPv6 address as it is.
    #[inline(always)]
    pub const fn v6(address: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
        Self([
            u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
        ])
    }

    /// Tells whether this is an IPv4 address, or an IPv6 one in its guise.
    #[inline(always)]
    pub const fn is_mapped(self) -> bool {
        let [high, low] = self.0;
        high == 0 && low.to_be() >> 32 == 0xffff
    }

    /// Returns the key's two words.
    #[inline(always)]
    pub const fn words(self) -> [u64; 2] {
        self.0
    }

    /// Returns the 16 bytes in network order.
    pub const fn octets(self) -> [u8; 16] {
        let [a, b, c, d, e, f, g, h] = self.0[0].to_ne_bytes();
        let [i, j, k, l, m, n, o, p] = self.0[1].to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// Key data of the `TRUSTED_EDGES` trie, behind the trie's own prefix length.
///
/// The family is part of every prefix: the addresses are [`AddressKey`]s, and
/// an IPv6 prefix as short as `::/0` must not cover the mapped IPv4 ones. As a
/// whole word it also keeps the address at an offset of eight in the trie's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EdgePrefix {
    family: [u8; 4],
    address: [u8; 16],
}

impl EdgePrefix {
    /// Bits in front of an IPv6 prefix.
    pub const FRONT_BITS_V6: u32 = 32;
    /// Bits in front of an IPv4 prefix: the address is mapped.
    pub const FRONT_BITS_V4: u32 = Self::FRONT_BITS_V6 + 96;
    /// Prefix length of a single address of either family.
    pub const HOST_BITS: u32 = Self::FRONT_BITS_V6 + 128;

    /// Builds the key data.
    #[inline(always)]
    pub const fn new(address: AddressKey) -> Self {
        Self {
            family: Self::family(address),
            address: address.octets(),
        }
    }

    /// Returns the first word: the IP version of the address, then zeros.
    #[inline(always)]
    pub const fn family(address: AddressKey) -> [u8; 4] {
        [if address.is_mapped() { 4 } else { 6 }, 0, 0, 0]
    }

    /// Returns the address of the prefix.
    pub const fn address(self) -> AddressKey {
        AddressKey::v6(self.address)
    }
}

/// Key data of the `SOURCE_RANGES` trie, behind the trie's own prefix length: the service id, then the
/// prefix. A service has the clients of one family, so an id's prefixes never mix families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SourcePrefix {
    service: [u8; 4],
    address: [u8; 16],
}

impl SourcePrefix {
    /// Bits in front of an IPv6 prefix.
    pub const FRONT_BITS_V6: u32 = 32;
    /// Bits in front of an IPv4 prefix: the address is mapped.
    pub const FRONT_BITS_V4: u32 = Self::FRONT_BITS_V6 + 96;
    /// Prefix length of a single address of either family.
    pub const HOST_BITS: u32 = Self::FRONT_BITS_V6 + 128;

    /// Builds the key data.
    #[inline(always)]
    pub const fn new(service: u32, address: AddressKey) -> Self {
        Self {
            service: service.to_ne_bytes(),
            address: address.octets(),
        }
    }

    /// Returns the service id.
    pub const fn service(self) -> u32 {
        u32::from_ne_bytes(self.service)
    }

    /// Returns the address of the prefix.
    pub const fn address(self) -> AddressKey {
        AddressKey::v6(self.address)
    }
}

/// A MAC, and two zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct EdgeMac(u64);

impl EdgeMac {
    /// Builds the key.
    #[inline(always)]
    pub const fn new([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// Returns the MAC.
    #[inline(always)]
    pub const fn mac(self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0.to_ne_bytes();
        [a, b, c, d, e, f]
    }

    /// Tells whether it is a broadcast or multicast address.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        self.0.to_ne_bytes()[0] & 1 != 0
    }
}

/// The 16-bit tag by which an edge names the pod in the outer header (the IPv4 identification, or the
/// low 16 bits of the IPv6 flow label).
///
/// ```text
/// 15         14         11 10                                   0
/// | returned | tries left | low 11 bits of the pod's address     |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(pub u16);

impl Tag {
    const POD_BITS: u32 = 11;

    /// Names the pod with this address, with no tries left.
    #[inline(always)]
    pub const fn pod(address: AddressKey) -> Self {
        let [_, low] = address.words();
        Self((low.to_be() & ((1 << Self::POD_BITS) - 1)) as u16)
    }

    /// Returns the part that names the pod.
    #[inline(always)]
    pub const fn pod_bits(self) -> u16 {
        self.0 & ((1 << Self::POD_BITS) - 1)
    }
}

/// Key of `PODS`: service id and the pod's part of the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct PodKey(u64);

impl PodKey {
    /// Builds the key.
    #[inline(always)]
    pub const fn new(service: u32, tag: Tag) -> Self {
        Self((service as u64) << 32 | tag.pod_bits() as u64)
    }

    /// Returns the service id and the pod's part of the tag.
    #[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
    pub const fn parts(self) -> (u32, Tag) {
        ((self.0 >> 32) as u32, Tag(self.0 as u16))
    }
}

/// Value of `PODS`: a backend id and a check of the key, in one word that is read with one load.
///
/// An element recycled under the reader carries another key's check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Pod(pub u64);

impl Pod {
    /// Packs a backend id for this key.
    #[inline(always)]
    pub const fn new(key: PodKey, backend: u32) -> Self {
        Self((fold_check(key.0) as u64) << 32 | backend as u64)
    }

    /// Returns the backend id if the value belongs to this key.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    pub const fn backend(self, key: PodKey) -> Option<u32> {
        if self.0 >> 32 == fold_check(key.0) as u64 {
            Some(self.0 as u32)
        } else {
            None
        }
    }
}

/// A five-tuple of either family: source and destination (16 bytes each, as [`AddressKey`]), their ports,
/// the protocol, three zeros; in wire order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Tuple([u64; 5]);

impl Tuple {
    /// Builds the key.
    #[inline(always)]
    pub const fn new(
        source: AddressKey,
        destination: AddressKey,
        source_port: [u8; 2],
        destination_port: [u8; 2],
        protocol: u8,
    ) -> Self {
        let [a, b] = source.words();
        let [c, d] = destination.words();
        let [e, f] = source_port;
        let [g, h] = destination_port;
        Self([
            a,
            b,
            c,
            d,
            u64::from_ne_bytes([e, f, g, h, protocol, 0, 0, 0]),
        ])
    }

    /// Builds the key under which the fragments of one datagram find each other: the identification (of
    /// IPv4 in the last two bytes) takes the place of the ports (RFC 791 section 3.2, RFC 8200 section 4.5).
    #[inline(always)]
    pub const fn fragments(
        source: AddressKey,
        destination: AddressKey,
        identification: [u8; 4],
        protocol: u8,
    ) -> Self {
        let [a, b, c, d] = identification;
        Self::new(source, destination, [a, b], [c, d], protocol)
    }

    /// Returns the source address.
    #[inline(always)]
    pub const fn source(&self) -> AddressKey {
        let [a, b, ..] = self.0;
        AddressKey([a, b])
    }

    /// Returns the destination address.
    #[inline(always)]
    pub const fn destination(&self) -> AddressKey {
        let [_, _, c, d, _] = self.0;
        AddressKey([c, d])
    }

    /// Returns source and destination port, in wire order.
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        let [a, b, c, d, ..] = self.0[4].to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Returns the protocol.
    #[inline(always)]
    pub const fn protocol(&self) -> u8 {
        self.0[4].to_ne_bytes()[4]
    }

    /// Compares by words: the BPF target has no `memcmp`.
    #[inline(always)]
    pub const fn is(&self, other: &Self) -> bool {
        let [a, b, c, d, e] = self.0;
        let [f, g, h, i, j] = other.0;
        (a ^ f) | (b ^ g) | (c ^ h) | (d ^ i) | (e ^ j) == 0
    }

    /// Returns what a value carries so that it is not taken for another key's.
    #[inline(always)]
    pub const fn check(&self) -> u32 {
        let [a, b, c, d, rest] = self.0;
        (mix(mix(mix(mix(mix(a) ^ b) ^ c) ^ d) ^ rest) >> 32) as u32
    }

    /// Returns the three bytes behind the protocol, which are no part of a key.
    #[inline(always)]
    const fn spare(&self) -> [u8; 3] {
        let [.., a, b, c] = self.0[4].to_ne_bytes();
        [a, b, c]
    }

    /// Returns it with other bytes behind the protocol; zero in a key.
    #[inline(always)]
    const fn with_spare(&self, [a, b, c]: [u8; 3]) -> Self {
        const SPARE: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0, 0xff, 0xff, 0xff]);
        let [d, e, f, g, rest] = self.0;
        let spare = u64::from_ne_bytes([0, 0, 0, 0, 0, a, b, c]);
        Self([d, e, f, g, rest & !SPARE | spare])
    }

    /// Returns bits that depend on all of the key, the topmost most of all.
    #[inline(always)]
    const fn mixed(&self) -> u64 {
        let [a, b, c, d, e] = self.0;
        (a ^ b.rotate_left(7) ^ c.rotate_left(17) ^ d.rotate_left(29) ^ e)
            .wrapping_mul(CHECK_MULTIPLIER)
    }

    /// Returns the key's place in an array of so many, a power of two.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "arrays are smaller")]
    const fn place(&self, places: usize) -> u32 {
        (self.mixed() >> (64 - places.trailing_zeros())) as u32
    }

    /// Returns source, destination, source port and destination port (host order), protocol.
    pub const fn parts(self) -> (AddressKey, AddressKey, u16, u16, u8) {
        let [a, b, c, d, rest] = self.0;
        let [e, f, g, h, protocol, ..] = rest.to_ne_bytes();
        (
            AddressKey([a, b]),
            AddressKey([c, d]),
            u16::from_be_bytes([e, f]),
            u16::from_be_bytes([g, h]),
            protocol,
        )
    }
}

/// What a node remembers of a flow to one of its pods: how to translate the reply.
///
/// In whole words, as all values that the programs build on their stack.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PodFlow {
    /// The address that the client talks to.
    pub address: AddressKey,
    /// When its last packet was seen, on the monotonic clock in ns; or one up to [`RENEWAL_NS`] before.
    pub seen: u64,
    /// Port (2 bytes, wire order), length of the outer header (1), state (1), four zeros.
    rest: u64,
}

impl PodFlow {
    /// Makes the memory of a flow that talks to this address and port and comes with an outer header of
    /// `outer` bytes; 0 for none.
    #[inline(always)]
    pub const fn new(
        address: AddressKey,
        [a, b]: [u8; 2],
        outer: u8,
        state: u8,
        seen: u64,
    ) -> Self {
        Self {
            address,
            seen,
            rest: u64::from_ne_bytes([a, b, outer, state, 0, 0, 0, 0]),
        }
    }

    /// Returns the port that the client talks to, in wire order.
    #[inline(always)]
    pub const fn port(&self) -> [u8; 2] {
        let [a, b, ..] = self.rest.to_ne_bytes();
        [a, b]
    }

    /// Returns the length of the outer header that the client's packets come with; 0 for none.
    #[inline(always)]
    pub const fn outer(&self) -> u8 {
        self.rest.to_ne_bytes()[2]
    }

    /// Returns [`FLOW_FIN_CLIENT`] and the other flags.
    #[inline(always)]
    pub const fn state(&self) -> u8 {
        self.rest.to_ne_bytes()[3]
    }

    /// Renews it by a packet of the flow. Stores only what is new or has become old: packets of the other direction
    /// read the same cache line, on other CPUs.
    #[inline(always)]
    pub const fn renew(&mut self, state: u8, now: u64) {
        if now.saturating_sub(self.seen) >= RENEWAL_NS {
            self.seen = now;
        }
        if state & !self.state() != 0 {
            self.add_state(state);
        }
    }

    /// Adds flags to the state.
    #[inline(always)]
    pub const fn add_state(&mut self, state: u8) {
        self.rest |= u64::from_ne_bytes([0, 0, 0, state, 0, 0, 0, 0]);
    }

    /// Tells whether the client talks to the same address and port.
    #[inline(always)]
    pub const fn is_to_same(&self, other: &Self) -> bool {
        let [a, b] = self.address.words();
        let [c, d] = other.address.words();
        let port = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
        (a ^ c) | (b ^ d) | ((self.rest ^ other.rest) & port) == 0
    }
}

/// How often the time of a flow's last packet is written to its entry, in `FLOWS` and in NAT mode.
pub const RENEWAL_NS: u64 = 1_000_000_000;

/// State of a [`PodFlow`]: the client has sent a FIN.
pub const FLOW_FIN_CLIENT: u8 = 1;
/// State of a [`PodFlow`]: the pod has sent a FIN.
pub const FLOW_FIN_POD: u8 = 2;
/// State of a [`PodFlow`]: one of them has sent a RST.
pub const FLOW_RESET: u8 = 4;
/// State of a [`PodFlow`]: the client is in `HAIRPINS`, and the pod sees the address that it talks to in its
/// place.
pub const FLOW_HAIRPIN: u8 = 8;

/// What the first fragment of a datagram tells the later ones, in whole words.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Datagram {
    /// When the first fragment was seen, on the monotonic clock in ns.
    pub seen: u64,
    /// Source and destination port (2 bytes each, wire order), four zeros.
    ports: u64,
}

impl Datagram {
    /// How long later fragments are waited for, as Linux reassembles (`ipfrag_time`; RFC 791 section 3.2
    /// suggests 15 s, RFC 8200 section 4.5 asks for 60 s).
    pub const LIFETIME_NS: u64 = 30_000_000_000;

    /// Makes the memory of a datagram whose first fragment has these ports.
    #[inline(always)]
    pub const fn new([a, b]: [u8; 2], [c, d]: [u8; 2], seen: u64) -> Self {
        Self {
            seen,
            ports: u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]),
        }
    }

    /// Tells whether later fragments may still come.
    #[inline(always)]
    pub const fn is_awaited(&self, now: u64) -> bool {
        now.saturating_sub(self.seen) < Self::LIFETIME_NS
    }

    /// Returns the source port, in wire order.
    #[inline(always)]
    pub const fn source_port(&self) -> [u8; 2] {
        let [a, b, ..] = self.ports.to_ne_bytes();
        [a, b]
    }

    /// Returns the destination port, in wire order.
    #[inline(always)]
    pub const fn destination_port(&self) -> [u8; 2] {
        let [_, _, a, b, ..] = self.ports.to_ne_bytes();
        [a, b]
    }
}

/// Address (4 bytes), port (2), protocol (1) of an IPv4 service, in wire order, and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKeyV4(u64);

impl ServiceKeyV4 {
    /// Builds the key from wire bytes and the IP protocol number.
    #[inline(always)]
    pub const fn new(address: [u8; 4], port: [u8; 2], protocol: u8) -> Self {
        let [a, b, c, d] = address;
        let [e, f] = port;
        Self(u64::from_ne_bytes([a, b, c, d, e, f, protocol, 0]))
    }

    /// Returns address, port (host order) and protocol.
    pub const fn parts(self) -> ([u8; 4], u16, u8) {
        let [a, b, c, d, e, f, protocol, _] = self.0.to_ne_bytes();
        ([a, b, c, d], u16::from_be_bytes([e, f]), protocol)
    }

    /// Returns the check that the service's word must carry.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        fold_check(self.0)
    }
}

/// Address (16 bytes), port (2), protocol (1) of an IPv6 service, in wire order, and zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKeyV6([u64; 3]);

impl ServiceKeyV6 {
    /// Builds the key from wire bytes and the IP protocol number.
    #[inline(always)]
    pub const fn new(address: [u8; 16], port: [u8; 2], protocol: u8) -> Self {
        let [high, low] = AddressKey::v6(address).words();
        Self([
            high,
            low,
            u64::from_ne_bytes([port[0], port[1], protocol, 0, 0, 0, 0, 0]),
        ])
    }

    /// Returns address, port (host order) and protocol.
    pub const fn parts(self) -> ([u8; 16], u16, u8) {
        let [high, low, rest] = self.0;
        let [a, b, protocol, ..] = rest.to_ne_bytes();
        (
            AddressKey([high, low]).octets(),
            u16::from_be_bytes([a, b]),
            protocol,
        )
    }

    /// Returns the check that the service's word must carry.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        let [high, low, rest] = self.0;
        let mixed = (high.wrapping_mul(CHECK_MULTIPLIER) ^ low).wrapping_mul(CHECK_MULTIPLIER);
        fold_check((mixed ^ (mixed >> 32)) ^ rest)
    }
}

/// 2^64 divided by the golden ratio, made odd: multiplicative hashing (Knuth, TAOCP 6.4).
const CHECK_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of a check over several words.
#[inline(always)]
const fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_mul(CHECK_MULTIPLIER);
    mixed ^ (mixed >> 32)
}

#[inline(always)]
const fn fold_check(word: u64) -> u32 {
    (word.wrapping_mul(CHECK_MULTIPLIER) >> (64 - ServiceWord::CHECK_BITS)) as u32
}

/// What `SERVICE` holds for one service id; all zero where the id is free.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Service {
    /// Where the lookup table lies; replaced by one store.
    pub word: ServiceWord,
    /// Where a second table lies, of this machine's pods alone; base 0 where there is none.
    pub local: ServiceWord,
    /// [`MODE_IPIP`] or [`MODE_L2DSR`]; nothing where [`SERVICE_NAT`] is set.
    pub mode: u32,
    /// [`SERVICE_PODS`] and the other flags.
    pub flags: u32,
    /// Seed that is hashed with the client's address alone (`sessionAffinity: ClientIP`), the same for all
    /// addresses of a ServicePort; 0 to hash the five-tuple.
    pub affinity: u64,
}

/// [`Service::flags`]: backends are pods behind Guideway nodes; without it a decapsulated packet goes to
/// the stack as it is.
pub const SERVICE_PODS: u32 = 1;
/// [`Service::flags`]: only clients in `SOURCE_RANGES` are served.
pub const SERVICE_SOURCE_RANGES: u32 = 2;
/// [`Service::flags`]: without a backend here, drop instead of rejecting: there are some elsewhere.
pub const SERVICE_DROP_WHEN_EMPTY: u32 = 4;
/// [`Service::flags`]: a NodePort: an address that the kernel's own flows use too.
pub const SERVICE_NODE_PORT: u32 = 8;
/// [`Service::flags`]: its backends take part by NAT, all of them.
pub const SERVICE_NAT: u32 = 16;

/// [`Service::mode`]: an outer IPv4 or IPv6 header is put in front.
pub const MODE_IPIP: u32 = 0;
/// [`Service::mode`]: only the MAC addresses are rewritten.
pub const MODE_L2DSR: u32 = 1;

/// A service's lookup table and key check in one word.
///
/// ```text
/// 63                    33 32      28 27                     0
/// | check of the key (31) | log2 (5) | first slot in LUT (28) |
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct ServiceWord(pub u64);

impl ServiceWord {
    /// Width of the first-slot field: the arena's largest size is 2^28 slots.
    pub const BASE_BITS: u32 = 28;
    const LOG2_BITS: u32 = 5;
    /// Width of the key check.
    pub const CHECK_BITS: u32 = 64 - Self::BASE_BITS - Self::LOG2_BITS;

    /// Packs the fields; `base` below 2^28, `log2_length` below 32.
    pub const fn new(base: u32, log2_length: u8, check: u32) -> Self {
        debug_assert!(base < 1 << Self::BASE_BITS && log2_length < 1 << Self::LOG2_BITS);
        Self(
            base as u64
                | (log2_length as u64) << Self::BASE_BITS
                | (check as u64) << (64 - Self::CHECK_BITS),
        )
    }

    /// Returns the first slot of the table.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn base(self) -> u32 {
        self.0 as u32 & ((1 << Self::BASE_BITS) - 1)
    }

    /// Returns the table size's logarithm.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn log2_length(self) -> u8 {
        (self.0 >> Self::BASE_BITS) as u8 & ((1 << Self::LOG2_BITS) - 1)
    }

    /// Returns the check of the key that this word belongs to.
    #[inline(always)]
    pub const fn check(self) -> u32 {
        (self.0 >> (64 - Self::CHECK_BITS)) as u32
    }
}

/// One LUT entry: `current` in the low half, a word about past owners in the high half.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Slot(pub u64);

impl Slot {
    /// Makes a slot without a past.
    pub const fn quiet(current: u32) -> Self {
        Self(current as u64)
    }

    /// Returns the backend id that owns the slot; 0 for none.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline(always)]
    pub const fn current(self) -> u32 {
        self.0 as u32
    }

    /// Returns the same slot with another owner and its past kept.
    pub const fn with_current(self, current: u32) -> Self {
        Self(self.0 >> 32 << 32 | current as u64)
    }
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
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 20],
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
    /// Outer source address, of the backend's family; all zero to use [`Config`]'s.
    pub source: [u8; 16],
    /// Destination MAC, then source MAC: the first 12 bytes of the frame.
    pub macs: [u8; 12],
    /// 802.1Q tag control information to send with (12 bits of VLAN id); zero for untagged.
    pub vlan: [u8; 2],
    /// [`HOP_GATEWAY`].
    pub flags: u16,
    /// Always zero: one cache line per entry.
    pub reserved: [u8; 24],
}

/// [`NextHop::flags`]: the MAC is a router's, not the backend's.
pub const HOP_GATEWAY: u16 = 1;

/// A counter pair.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Traffic {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of their IP packets as they came in.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_word_keeps_its_fields_apart() {
        let word = ServiceWord::new((1 << 28) - 1, 0, 0);
        assert_eq!(
            (word.base(), word.log2_length(), word.check()),
            ((1 << 28) - 1, 0, 0)
        );
        let word = ServiceWord::new(0, 31, 0);
        assert_eq!((word.base(), word.log2_length(), word.check()), (0, 31, 0));
        let word = ServiceWord::new(0, 0, 0x7fff_ffff);
        assert_eq!(
            (word.base(), word.log2_length(), word.check()),
            (0, 0, 0x7fff_ffff)
        );
    }

    #[test]
    fn check_depends_on_every_part_of_the_key() {
        let key = ServiceKeyV4::new([10, 0, 0, 1], [0, 80], 6);
        for other in [
            ServiceKeyV4::new([10, 0, 0, 2], [0, 80], 6),
            ServiceKeyV4::new([11, 0, 0, 1], [0, 80], 6),
            ServiceKeyV4::new([10, 0, 0, 1], [0, 81], 6),
            ServiceKeyV4::new([10, 0, 0, 1], [1, 80], 6),
            ServiceKeyV4::new([10, 0, 0, 1], [0, 80], 17),
        ] {
            assert_ne!(key.check(), other.check(), "{other:?}");
        }
        let mut address = [0xfd; 16];
        let key = ServiceKeyV6::new(address, [0, 80], 6);
        assert_ne!(key.check(), ServiceKeyV6::new(address, [0, 80], 17).check());
        assert_ne!(key.check(), ServiceKeyV6::new(address, [0, 81], 6).check());
        for byte in 0..16 {
            address[byte] ^= 1;
            assert_ne!(
                key.check(),
                ServiceKeyV6::new(address, [0, 80], 6).check(),
                "byte {byte}"
            );
            address[byte] ^= 1;
        }
    }

    #[test]
    fn only_mapped_addresses_are_mapped() {
        assert!(AddressKey::v4([0; 4]).is_mapped());
        assert!(AddressKey::v4([255; 4]).is_mapped());
        let mut address = AddressKey::v4([192, 0, 2, 1]).octets();
        for byte in 0..12 {
            address[byte] ^= 1;
            assert!(!AddressKey::v6(address).is_mapped(), "byte {byte}");
            address[byte] ^= 1;
        }
    }

    #[test]
    fn new_owner_keeps_the_slots_past() {
        let slot = Slot(7 << 32 | 3);
        assert_eq!(slot.with_current(9), Slot(7 << 32 | 9));
        assert_eq!(slot.with_current(9).current(), 9);
    }
}
