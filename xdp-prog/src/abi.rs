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

mod address;
mod announce;
mod backend;
mod check;
mod flow;
mod index;
#[cfg(test)]
mod layouts;
mod link;
mod local;
mod nat;
mod notes;
mod path;
mod pod;
mod probe;
mod service;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use self::address::{AddressKey, EdgeMac, EdgePrefix, SourcePrefix};
pub use self::announce::{ANNOUNCE_NS, Claim, is_announcing};
pub use self::backend::{
    BACKEND_LOCAL, BACKEND_NAT, BACKEND_POD, BACKEND_V4, BACKEND_V6, Backend, HOP_GATEWAY, NextHop,
};
pub use self::flow::{
    Datagram, FLOW_ACCEPTED, FLOW_ASKED, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_FORWARD, FLOW_HAIRPIN,
    FLOW_RESET, PodFlow, RENEWAL_NS, Tuple,
};
pub use self::index::{Bucket, IndexKey, Place, WAYS, free_place, lay_out};
pub use self::link::TaggedLink;
pub use self::local::{LOCAL_PORT_NS, LocalFlow};
pub use self::nat::{
    NAT_ANSWERED, NAT_CONDEMNED, NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatBegun,
    NatCount, NatForward, NatLink, NatMark, NatReverse,
};
pub use self::notes::{FlowNote, Shortcut, Untrusted};
pub use self::path::PathReport;
pub use self::pod::{Pod, PodKey, Tag};
pub use self::probe::{PROBE_ENCAP, PROBE_MARK, PROBE_MARK_MASK, Probe};
pub use self::service::{
    MODE_IPIP, MODE_L2DSR, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT, SERVICE_NODE_PORT, SERVICE_PODS,
    SERVICE_SOURCE_RANGES, Service, ServiceKeyV4, ServiceKeyV6, ServiceWord, Slot, SlotPair,
};

/// Version of the layouts below; part of the path under which maps are pinned.
///
/// It rises once between two releases, with the first change; `abi/layouts.rs` ties it to them.
pub const VERSION: u32 = 4;

/// Name of the XDP program in the object.
pub const XDP_PROGRAM: &str = "guideway";
/// Name of the TC egress program in the object.
pub const EGRESS_PROGRAM: &str = "guideway_egress";

/// Names of the maps in the object, and of their pins.
pub mod map {
    /// Array of one [`super::Config`].
    pub const CONFIG: &str = "CONFIG";
    /// Hash from [`super::AddressKey`] to `u32` flags ([`super::ADDRESS_VIP`], [`super::ADDRESS_LOCAL`],
    /// [`super::ADDRESS_NODE_PORT`], [`super::ADDRESS_NAT`], [`super::ADDRESS_SHARED`], [`super::ADDRESS_INNER`]).
    pub const VIPS: &str = "VIPS";
    /// Mmapable array of [`super::Bucket`], as many as a power of two: leads from a service's key to its id.
    pub const SERVICE_INDEX: &str = "SERVICE_INDEX";
    /// Hash from [`super::IndexKey`] to the id, of services whose buckets are full.
    pub const SERVICE_OVERFLOW: &str = "SERVICE_OVERFLOW";
    /// Mmapable array from service id to [`super::Service`].
    pub const SERVICE: &str = "SERVICE";
    /// Mmapable array of [`super::SlotPair`]: the arena of all lookup tables.
    pub const LUT: &str = "LUT";
    /// Mmapable array from backend id to [`super::Backend`].
    pub const BACKENDS: &str = "BACKENDS";
    /// Mmapable array from next-hop id to [`super::NextHop`].
    pub const NEXTHOPS: &str = "NEXTHOPS";
    /// Hash from the [`super::AddressKey`] of a node behind a router to the last [`super::PathReport`] about it.
    pub const PATHS: &str = "PATHS";
    /// Hash from the index of a VLAN device to the [`super::TaggedLink`] by which its frames leave.
    pub const VLANS: &str = "VLANS";
    /// LPM trie over [`super::EdgePrefix`] to 1.
    pub const TRUSTED_EDGES: &str = "TRUSTED_EDGES";
    /// Hash from [`super::EdgeMac`] to 1: MACs from which L2 DSR frames come.
    pub const EDGE_MACS: &str = "EDGE_MACS";
    /// Hash from [`super::PodKey`] to [`super::Pod`]: the pods of this machine.
    pub const PODS: &str = "PODS";
    /// LPM trie over [`super::SourcePrefix`] to 1: who may talk to a service.
    pub const SOURCE_RANGES: &str = "SOURCE_RANGES";
    /// LRU hash from [`super::Tuple`] (client to pod) to [`super::PodFlow`]: TCP flows whose clients are where they say.
    /// Those whose client port is another one at the pod are here twice, the second time from client to VIP.
    pub const FLOWS: &str = "FLOWS";
    /// LRU hash like `FLOWS`: those of other protocols.
    pub const FLOWS_DATAGRAM: &str = "FLOWS_DATAGRAM";
    /// Mmapable array of [`super::FlowNote`]: what packets of the last second found in `FLOWS` and `FLOWS_DATAGRAM`.
    pub const FLOW_NOTES: &str = "FLOW_NOTES";
    /// LRU hash like `FLOWS`: flows that may have forged sources. For all but TCP, which the pod has not answered yet.
    pub const FLOWS_EMBRYONIC: &str = "FLOWS_EMBRYONIC";
    /// Mmapable array of `u64`: a bit for each port from which pods of this machine answer, or that is a NodePort
    /// ([`super::egress_port`]).
    pub const EGRESS_PORTS: &str = "EGRESS_PORTS";
    /// LRU hash from [`super::Tuple`] (as packets come in) to [`super::LocalFlow`]: flows of this machine's own kernel.
    pub const LOCAL_FLOWS: &str = "LOCAL_FLOWS";
    /// Array from a port (host order) to `u64` time, ns: until when `LOCAL_FLOWS` may have flows at this port of the
    /// machine; 0 for never.
    pub const LOCAL_PORTS: &str = "LOCAL_PORTS";
    /// LRU hash from [`super::Tuple`] (see [`super::Tuple::fragments`]) to [`super::Datagram`].
    pub const FRAGMENTS: &str = "FRAGMENTS";
    /// Hash from [`super::Tuple`] (client to VIP) to [`super::NatForward`].
    pub const NAT_FORWARD: &str = "NAT_FORWARD";
    /// Hash from [`super::Tuple`] (backend to this edge) to [`super::NatReverse`].
    pub const NAT_REVERSE: &str = "NAT_REVERSE";
    /// Hash from [`super::Tuple`] (client to VIP) to `u64` time, ns: flows of NAT mode that someone is removing.
    pub const NAT_CLAIMS: &str = "NAT_CLAIMS";
    /// Array from service id to [`super::NatCount`]; the element of id 0 says what is free.
    pub const NAT_COUNTS: &str = "NAT_COUNTS";
    /// Array of [`super::NatBegun`]: the flows of NAT mode that began last, in rings (`decide::nat::share`).
    pub const NAT_BEGUN: &str = "NAT_BEGUN";
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
    /// Mmapable array of one `u64`: when the agent has last said that it serves, on the monotonic clock in ns;
    /// [`super::ANNOUNCE_NS`] later nobody who asks for an address in `ANNOUNCED` is answered.
    pub const ANNOUNCE_STAMP: &str = "ANNOUNCE_STAMP";
    /// Hash from [`super::TaggedLink`] to [`super::EdgeMac`]: where, and the MAC that they have there.
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
    /// Program array by [`crate::stage::Stage`].
    pub const STAGES: &str = "STAGES";
    /// Per-CPU array of `u64` packets by [`crate::reason`] index.
    pub const REASONS: &str = "REASONS";
    /// Per-CPU array of one [`super::Untrusted`].
    pub const UNTRUSTED: &str = "UNTRUSTED";
    /// Per-CPU array of `u64` frames by [`crate::failure::Failure`].
    pub const FAILURES: &str = "FAILURES";
    /// Per-CPU array of [`super::Traffic`] by service id.
    pub const SERVICE_TRAFFIC: &str = "SERVICE_TRAFFIC";
    /// Per-CPU array of [`super::Traffic`] by backend id.
    pub const BACKEND_TRAFFIC: &str = "BACKEND_TRAFFIC";
}

/// Sizes that the object declares; the loader's options override them.
pub mod size {
    /// Services, over both families.
    pub const SERVICES: usize = 16_384;
    /// Buckets of the services' index: half of their places are in use when all services are.
    pub const SERVICE_BUCKETS: usize = SERVICES / 2;
    /// Services whose buckets are full.
    pub const SERVICE_OVERFLOW: usize = 1_024;
    /// Backends; id 0 is never used.
    pub const BACKENDS: usize = 65_536;
    /// Next hops; id 0 is never used.
    pub const NEXT_HOPS: usize = 16_384;
    /// VLAN devices.
    pub const VLANS: usize = 4_096;
    /// Slots of the LUT arena: 64 MiB of 4 bytes each; slot 0 is never used.
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
    /// Ports in `LOCAL_PORTS`: all there are.
    pub const PORTS: usize = 1 << 16;
    /// Words of `EGRESS_PORTS`.
    pub const EGRESS_PORTS: usize = PORTS / 64;
    /// [`super::FlowNote`]s.
    pub const FLOW_NOTES: usize = 65_536;
    /// Datagrams in `FRAGMENTS`.
    pub const FRAGMENTS: usize = 16_384;
    /// Flows in `NAT_FORWARD` and `NAT_REVERSE`.
    pub const NAT: usize = 262_144;
    /// Checks in `PROBES`; index 0 is never used.
    pub const PROBES: usize = 16_384;
    /// Flows in `NAT_BEGUN`.
    pub const NAT_BEGUN: usize = 262_144;
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
    Config: 104,
    Traffic: 16,
}

/// Returns how long ago a moment on the monotonic clock was; zero where it is to come, by the clock of another CPU.
///
/// Wraps: a test on a machine that has just started makes flows from before the clock's zero.
#[inline(always)]
pub const fn age(then: u64, now: u64) -> u64 {
    let age = now.wrapping_sub(then);
    if age >> 63 == 0 { age } else { 0 }
}

/// Returns the index of a port's word in `EGRESS_PORTS`, and its bit in that.
#[inline(always)]
pub const fn egress_port(port: u16) -> (u32, u64) {
    (port as u32 / 64, 1 << (port % 64))
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
    /// [`CONFIG_NODE`], [`CONFIG_PROBES`], [`CONFIG_ANNOUNCE`], [`CONFIG_OVERFLOW`].
    pub flags: u32,
    /// Raised after each change of addresses, trusted edges, services and pods: what programs have noted of
    /// them counts only until then.
    pub epoch: u32,
    /// Secret of this machine with which keys of `SERVICE_INDEX` are hashed; 0 before the tables were opened first.
    pub index_seed: u64,
    /// Buckets of `SERVICE_INDEX`, less one.
    pub index_mask: u32,
    /// Always zero.
    pub reserved: u32,
}

/// [`Config::flags`]: this machine has pods, and takes the node role for what edges send.
pub const CONFIG_NODE: u32 = 1;

/// [`Config::flags`]: this machine checks backends by way of services, and answers come back to it.
pub const CONFIG_PROBES: u32 = 2;

/// [`Config::flags`]: this machine announces addresses to its neighbours.
pub const CONFIG_ANNOUNCE: u32 = 4;

/// [`Config::flags`]: `SERVICE_OVERFLOW` has entries.
pub const CONFIG_OVERFLOW: u32 = 8;

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
/// `VIPS` flag: an address of services alone that this machine does not balance, or not alone: what edges send for it
/// and is for no pod here is the stack's.
pub const ADDRESS_INNER: u32 = 32;

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
    fn age_counts_from_before_the_start_and_is_zero_of_what_is_to_come() {
        assert_eq!(age(3, 10), 7);
        assert_eq!(age(11, 10), 0);
        assert_eq!(age(u64::MAX, 10), 11);
    }
}
