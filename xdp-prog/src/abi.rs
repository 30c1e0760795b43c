//! Map keys, values and names: the contract between kernel and user space.
//!
//! Every type derives zerocopy's `IntoBytes`, which does not compile with padding; sizes are asserted beside the
//! types. Addresses, ports and MACs are byte arrays in network order. All other integers are in native order.
//!
//! Tables are in use while they change. These rules keep every packet safe:
//!
//! * An entry of `BACKENDS` or `NEXTHOPS` is written before anything names it, and does not change after that. Only
//!   [`Backend::next_hop`], [`Backend::flags`], [`Backend::owner`], [`Backend::takes_new`] and [`Backend::namespace`] are
//!   replaced, each by one store.
//! * `LUT` slots are replaced one by one, each by one store. A service's whole run is replaced by one store of its
//!   [`ServiceWord`].
//! * An id or run that nothing names any more is reused only after an RCU grace period. So a packet in flight never
//!   finds another owner's entry behind it.
//! * A list of past owners in `HISTORY` is written before its word in `PASTS`, and that before the bit in the slot. Lists
//!   never change: a slot gets another one.
//! * The kernel recycles hash elements at once, without a grace period. Hence the key check in the [`ServiceWord`]:
//!   see [`crate::decide::owner::checked_service`].
//!
//! A release that changes a layout raises [`VERSION`], which names the pin directory. Each map has a layout number
//! besides ([`CONTINUITY`]), so that programs of another version go on with the maps that have not changed.

mod address;
mod announce;
mod backend;
mod check;
mod client;
mod continuity;
mod delivery;
mod flow;
mod index;
#[cfg(test)]
mod layouts;
mod link;
mod local;
mod nat;
mod notes;
mod past;
mod path;
mod pod;
mod probe;
mod service;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::reason::REASON_COUNT;

pub use self::address::{AddressKey, EdgeMac, EdgePrefix, SourcePrefix};
pub use self::announce::{ANNOUNCE_NS, Claim, is_announcing};
pub use self::backend::{
    BACKEND_DOWN, BACKEND_LOCAL, BACKEND_NAT, BACKEND_POD, BACKEND_V4, BACKEND_V6, Backend,
    HOP_CARRIED, HOP_GATEWAY, NAMESPACE_OWN, NAMESPACE_UNKNOWN, NextHop, id_of_namespace,
    namespace_of_id,
};
pub use self::client::{Client, ClientBackend};
pub use self::continuity::{CONTINUITY, MapContinuity, MapGroup, layout_of};
pub use self::delivery::{DeliveryKey, DeliveryKeys, DeliveryNote, DeliveryNotes, NoteLineHash};
pub use self::flow::{
    Datagram, FLOW_ACCEPTED, FLOW_ASKED, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_FORWARD, FLOW_HAIRPIN,
    FLOW_RESET, PodFlow, RENEWAL_NS, Tuple,
};
pub use self::index::{Bucket, IndexEntry, IndexKey, Place, WAYS, free_place, lay_out};
pub use self::link::TaggedLink;
pub use self::local::{LOCAL_PORT_NS, LocalFlow};
pub use self::nat::{
    NAT_ANSWERED, NAT_CONDEMNED, NAT_FIN_BACKEND, NAT_FIN_CLIENT, NAT_OPEN, NAT_RESET, NatBegun,
    NatCount, NatForward, NatLink, NatMark, NatReverse,
};
pub use self::notes::{FlowNote, Shortcut, Untrusted};
pub use self::past::{
    MAX_PAST_OWNERS, OLDER_CONNECTION_SECONDS, OLDER_FLOW_SECONDS, PAST_OWNER_SECONDS, Past,
    PastOwner, PastPair, Pin,
};
pub use self::path::PathReport;
pub use self::pod::{Pod, PodKey, Tag};
pub use self::probe::{PROBE_ENCAP, PROBE_MARK, PROBE_MARK_MASK, Probe};
pub use self::service::{
    MODE_IPIP, MODE_L2DSR, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT, SERVICE_NODE_PORT, SERVICE_PODS,
    SERVICE_SOURCE_RANGES, Service, ServiceKeyV4, ServiceKeyV6, ServiceWord, Slot, SlotPair,
};

/// Version of the layouts below; part of the path under which maps are pinned.
///
/// The first change after a release raises it; later changes before the next release do not. `abi/layouts.rs`
/// enforces this.
pub const VERSION: u32 = if cfg!(feature = "test-layout") { 6 } else { 5 };

/// Name of the XDP program in the object.
pub const XDP_PROGRAM: &str = "guideway";
/// Name of the TC egress program in the object.
pub const EGRESS_PROGRAM: &str = "guideway_egress";

/// Names of the maps in the object, and of their pins.
pub mod map {
    /// Mmapable array of one [`super::Config`].
    pub const CONFIG: &str = "CONFIG";
    /// Hash from [`super::AddressKey`] to `u32` flags ([`super::ADDRESS_VIP`], [`super::ADDRESS_LOCAL`],
    /// [`super::ADDRESS_NODE_PORT`], [`super::ADDRESS_NAT`], [`super::ADDRESS_SHARED`], [`super::ADDRESS_INNER`]).
    pub const VIPS: &str = "VIPS";
    /// Mmapable array of [`super::Bucket`], a power of two of them: from a service's key to its [`super::IndexEntry`].
    pub const SERVICE_INDEX: &str = "SERVICE_INDEX";
    /// Hash from [`super::IndexKey`] to the id of a service whose buckets are full.
    pub const SERVICE_OVERFLOW: &str = "SERVICE_OVERFLOW";
    /// Mmapable array from service id to [`super::Service`].
    pub const SERVICE: &str = "SERVICE";
    /// Mmapable array of [`super::SlotPair`]: the arena of all lookup tables.
    pub const LUT: &str = "LUT";
    /// Mmapable array of [`super::PastPair`], two [`super::Past`]s, by the indices of `LUT`: where the past owners of a slot
    /// are listed.
    pub const PASTS: &str = "PASTS";
    /// Mmapable array of [`super::PastOwner`]: the arena of all lists of past owners.
    pub const HISTORY: &str = "HISTORY";
    /// LRU hash from [`super::Tuple`] (client to VIP) to [`super::Pin`]: the past owner that a flow was found at, which
    /// another packet of the flow has confirmed.
    pub const PINS: &str = "PINS";
    /// LRU hash like `PINS`, for flows of which no other packet has come yet.
    pub const PINS_YOUNG: &str = "PINS_YOUNG";
    /// LRU hash from [`super::Client`] to [`super::ClientBackend`].
    pub const CLIENTS: &str = "CLIENTS";
    /// Per-CPU array of one `u64` time in ns: when the allowance of flows whose owner is looked for is full again.
    pub const RETURNS_OF_CPU: &str = "RETURNS_OF_CPU";
    /// Mmapable array from backend id to [`super::Backend`].
    pub const BACKENDS: &str = "BACKENDS";
    /// Mmapable array from next-hop id to [`super::NextHop`].
    pub const NEXTHOPS: &str = "NEXTHOPS";
    /// Hash from the [`super::AddressKey`] of a node behind a router to the last [`super::PathReport`] about it.
    pub const PATHS: &str = "PATHS";
    /// Hash from the index of a VLAN device to the [`super::TaggedLink`] below it; from that of a device that takes no
    /// frames from XDP to the one by which its frames leave, with [`super::HOP_CARRIED`].
    pub const VLANS: &str = "VLANS";
    /// LPM trie over [`super::EdgePrefix`] to 1.
    pub const TRUSTED_EDGES: &str = "TRUSTED_EDGES";
    /// Hash from [`super::EdgeMac`] to 1: MACs from which L2 DSR frames come.
    pub const EDGE_MACS: &str = "EDGE_MACS";
    /// Hash from [`super::PodKey`] to [`super::Pod`]: the pods of this machine.
    pub const PODS: &str = "PODS";
    /// LPM trie over [`super::SourcePrefix`] to 1: the clients that may use a service.
    pub const SOURCE_RANGES: &str = "SOURCE_RANGES";
    /// LRU hash from [`super::Tuple`] (client to pod) to [`super::PodFlow`]: TCP flows whose clients have proved
    /// their address. A flow with another client port at the pod has a second entry, from client to VIP.
    pub const FLOWS: &str = "FLOWS";
    /// LRU hash like `FLOWS`, for flows of other protocols.
    pub const FLOWS_DATAGRAM: &str = "FLOWS_DATAGRAM";
    /// Mmapable array of [`super::FlowNote`]: entries that packets of the last second found in `FLOWS` and
    /// `FLOWS_DATAGRAM`.
    pub const FLOW_NOTES: &str = "FLOW_NOTES";
    /// Mmapable array of [`super::DeliveryNotes`]: deliveries of the last second of packets that edges sent.
    pub const DELIVERY_NOTES: &str = "DELIVERY_NOTES";
    /// LRU hash like `FLOWS`, for flows whose source may be forged: no TCP proof yet, or no answer of the pod.
    pub const FLOWS_EMBRYONIC: &str = "FLOWS_EMBRYONIC";
    /// Mmapable array of `u64`: one bit for each port that a pod of this machine answers from, and for each NodePort
    /// ([`super::egress_port`]).
    pub const EGRESS_PORTS: &str = "EGRESS_PORTS";
    /// LRU hash from [`super::Tuple`] (of incoming packets) to [`super::LocalFlow`]: flows of this machine's own
    /// kernel.
    pub const LOCAL_FLOWS: &str = "LOCAL_FLOWS";
    /// Array from a local port (host order) to a `u64` time in ns: until then `LOCAL_FLOWS` may have flows at this
    /// port; 0 for never.
    pub const LOCAL_PORTS: &str = "LOCAL_PORTS";
    /// LRU hash from [`super::Tuple`] (see [`super::Tuple::fragments`]) to [`super::Datagram`].
    pub const FRAGMENTS: &str = "FRAGMENTS";
    /// Hash from [`super::Tuple`] (client to VIP) to [`super::NatForward`].
    pub const NAT_FORWARD: &str = "NAT_FORWARD";
    /// Hash from [`super::Tuple`] (backend to this edge) to [`super::NatReverse`].
    pub const NAT_REVERSE: &str = "NAT_REVERSE";
    /// Hash from [`super::Tuple`] (client to VIP) to a `u64` time in ns: flows of NAT mode that are being removed.
    pub const NAT_CLAIMS: &str = "NAT_CLAIMS";
    /// Array from service id to [`super::NatCount`]; the entry of id 0 counts free entries.
    pub const NAT_COUNTS: &str = "NAT_COUNTS";
    /// Array of [`super::NatBegun`]: the flows of NAT mode that began last, in rings (`decide::nat::share`).
    pub const NAT_BEGUN: &str = "NAT_BEGUN";
    /// LRU hash from [`super::AddressKey`] to a `u64` time in ns: when a source's allowance of answers is full again.
    pub const ANSWERS: &str = "ANSWERS";
    /// Per-CPU array of one `u64` time in ns: when the allowance of answers to all sources is full again.
    pub const ANSWERS_OF_CPU: &str = "ANSWERS_OF_CPU";
    /// Array from the index in a check's packet mark to [`super::Probe`].
    pub const PROBES: &str = "PROBES";
    /// LRU hash from [`super::Tuple`] (of a check's answer as it comes in) to the [`super::AddressKey`] to which the
    /// check's socket is connected.
    pub const PROBE_PEERS: &str = "PROBE_PEERS";
    /// Hash from [`super::AddressKey`] to 1: addresses that this machine announces to its neighbours.
    pub const ANNOUNCED: &str = "ANNOUNCED";
    /// Mmapable array of one `u64`: when the agent last said that it serves, on the monotonic clock in ns. Questions
    /// for addresses in `ANNOUNCED` get no answer once this is [`super::ANNOUNCE_NS`] old.
    pub const ANNOUNCE_STAMP: &str = "ANNOUNCE_STAMP";
    /// Hash from [`super::TaggedLink`] to [`super::EdgeMac`]: the links of the announcement, and this machine's MAC
    /// there.
    pub const ANNOUNCE_LINKS: &str = "ANNOUNCE_LINKS";
    /// Hash from [`super::AddressKey`] to [`super::Claim`]: announced addresses that another machine announces too.
    pub const CLAIMS: &str = "CLAIMS";
    /// Program array by [`crate::capture::Slot`].
    pub const CAPTURE: &str = "CAPTURE";
    /// Array of one [`crate::capture::Settings`].
    pub const CAPTURE_SETTINGS: &str = "CAPTURE_SETTINGS";
    /// Per-CPU array of one [`crate::capture::Copies`]: scratch.
    pub const CAPTURE_COPIES: &str = "CAPTURE_COPIES";
    /// Ring buffer of [`crate::capture::Event`]s; each is followed by its copies of the frame.
    pub const EVENTS: &str = "EVENTS";
    /// Per-CPU array of one `u64`: events lost because the ring buffer was full.
    pub const EVENTS_LOST: &str = "EVENTS_LOST";
    /// Program array by [`crate::stage::Stage`].
    pub const STAGES: &str = "STAGES";
    /// Array of AF_XDP sockets, to which frames are punted.
    pub const XSKS: &str = "XSKS";
    /// Hash from a queue of a device ([`crate::punt::queue_key`]) to the `u32` index of its socket in `XSKS`.
    pub const PUNT_QUEUES: &str = "PUNT_QUEUES";
    /// Mmapable array of `u64` packets: for each CPU [`super::REASONS_OF_CPU`], by [`crate::reason`] index.
    pub const REASONS: &str = "REASONS";
    /// Mmapable array with an element for each CPU: what a run keeps for its next stage, and the clock.
    pub const CPU_SCRATCH: &str = "CPU_SCRATCH";
    /// Per-CPU array of one [`super::Untrusted`]: the last refused source of an outer header.
    pub const UNTRUSTED: &str = "UNTRUSTED";
    /// Per-CPU array of `u64` frames by [`crate::failure::Failure`].
    pub const FAILURES: &str = "FAILURES";
    /// Mmapable array of [`super::Traffic`]: for each CPU [`super::Config::services_of_cpu`], by service id.
    pub const SERVICE_TRAFFIC: &str = "SERVICE_TRAFFIC";
    /// Mmapable array of [`super::Traffic`]: for each CPU [`super::Config::backends_of_cpu`], by backend id.
    pub const BACKEND_TRAFFIC: &str = "BACKEND_TRAFFIC";
}

/// Sizes that the object declares; the loader's options override them.
pub mod size {
    /// Services, over both families.
    pub const SERVICES: usize = 16_384;
    /// Buckets of the service index. With the largest number of services, half of their places are in use.
    pub const SERVICE_BUCKETS: usize = SERVICES / 2;
    /// Services in `SERVICE_OVERFLOW`.
    pub const SERVICE_OVERFLOW: usize = 1_024;
    /// Backends; id 0 is never used.
    pub const BACKENDS: usize = 65_536;
    /// Next hops; id 0 is never used.
    pub const NEXT_HOPS: usize = 16_384;
    /// VLAN devices.
    pub const VLANS: usize = 4_096;
    /// Slots of the LUT arena: 64 MiB of 4 bytes each; slot 0 is never used.
    pub const LUT_SLOTS: usize = 16 << 20;
    /// Past owners in all lists; index 0 is never used.
    pub const HISTORY: usize = 2 << 20;
    /// Flows in `PINS`, and in `PINS_YOUNG`.
    pub const PINS: usize = 65_536;
    /// Clients in `CLIENTS`.
    pub const CLIENTS: usize = 65_536;
    /// Addresses in `VIPS`.
    pub const VIPS: usize = 65_536;
    /// Prefixes in `TRUSTED_EDGES`.
    pub const TRUSTED_EDGES: usize = 4_096;
    /// MACs in `EDGE_MACS`.
    pub const EDGE_MACS: usize = 4_096;
    /// Entries in `PODS`: each pod counts once for each service that it serves.
    pub const PODS: usize = 16_384;
    /// Prefixes in `SOURCE_RANGES`, over all services.
    pub const SOURCE_RANGES: usize = 65_536;
    /// Flows in `FLOWS`, and in each of the other tables of flows to pods.
    pub const FLOWS: usize = 262_144;
    /// Ports in `LOCAL_PORTS`: all ports.
    pub const PORTS: usize = 1 << 16;
    /// Words of `EGRESS_PORTS`.
    pub const EGRESS_PORTS: usize = PORTS / 64;
    /// [`super::FlowNote`]s.
    pub const FLOW_NOTES: usize = 65_536;
    /// Lines of [`super::DeliveryNotes`].
    pub const DELIVERY_NOTES: usize = 32_768;
    /// Datagrams in `FRAGMENTS`.
    pub const FRAGMENTS: usize = 16_384;
    /// Flows in `NAT_FORWARD` and `NAT_REVERSE`.
    pub const NAT: usize = 262_144;
    /// Checks in `PROBES`; index 0 is never used.
    pub const PROBES: usize = 16_384;
    /// Flows in `NAT_BEGUN`.
    pub const NAT_BEGUN: usize = 262_144;
    /// Flows in `NAT_CLAIMS`: one for each CPU and one for user space.
    pub const NAT_CLAIMS: usize = 4_096;
    /// [`super::Shortcut`]s of one CPU.
    pub const SHORTCUTS: usize = 1_024;
    /// Sources in `ANSWERS`.
    pub const ANSWERS: usize = 16_384;
    /// Links in `ANNOUNCE_LINKS`.
    pub const ANNOUNCE_LINKS: usize = 1_024;
    /// Queues whose frames can be punted.
    pub const PUNT_QUEUES: usize = 1_024;
}

/// Asserts the sizes of types that have no padding, and implements aya's `Pod` for them.
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
    Config: 240,
    Traffic: 16,
}

/// Returns the time since `then` in ns; zero if `then` is in the future, by the clock of another CPU.
///
/// The subtraction wraps, because tests on a machine that has just booted make flows from before the clock's zero.
#[inline(always)]
pub const fn age(then: u64, now: u64) -> u64 {
    let age = now.wrapping_sub(then);
    if age >> 63 == 0 { age } else { 0 }
}

/// Returns the index of a port's word in `EGRESS_PORTS`, and the port's bit in the word.
#[inline(always)]
pub const fn egress_port(port: u16) -> (u32, u64) {
    (port as u32 / 64, 1 << (port % 64))
}

/// Counters of a CPU in `REASONS`: its own begin on a cache line of their own.
#[expect(clippy::cast_possible_truncation, reason = "a few hundred at most")]
pub const REASONS_OF_CPU: u32 = REASON_COUNT.next_multiple_of(8) as u32;

/// Machine-wide settings; those that most packets need come first, on one cache line.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Config {
    /// Seed of the flow hash. It must be equal on all edges; otherwise flows move when routers re-spread them.
    pub hash_seed: u64,
    /// Secret of this machine that seeds the hash of `SERVICE_INDEX` keys; 0 until the tables are first opened.
    pub index_seed: u64,
    /// Number of buckets in `SERVICE_INDEX`, less one.
    pub index_mask: u32,
    /// Number of counters that each CPU has in `SERVICE_TRAFFIC`.
    pub services_of_cpu: u32,
    /// Number of counters that each CPU has in `BACKEND_TRAFFIC`.
    pub backends_of_cpu: u32,
    /// [`CONFIG_NODE`], [`CONFIG_PROBES`], [`CONFIG_ANNOUNCE`], [`CONFIG_OVERFLOW`],
    /// [`CONFIG_MEND`].
    pub flags: u32,
    /// Number that rises after each change of addresses, trusted edges, services and pods. Notes of the programs
    /// count only in the generation that they were made in.
    pub notes_generation: u32,
    /// MTU of the uplinks in bytes. MSS options are clamped to it, less the outer header; 0 clamps none.
    pub mtu: u32,
    /// First source port of NAT mode.
    pub nat_port: u16,
    /// Number of source ports of NAT mode; 0 if the mode is not in use.
    pub nat_ports: u16,
    /// As `nat_ports`, while no service has one of these ports; else 0. Programs look for no service of a packet to
    /// one of them.
    pub nat_only_ports: u16,
    /// Always zero.
    pub reserved: u16,
    /// Outer IPv4 source if the next hop has none, in the first four bytes; all zero for none.
    pub source_v4: [u8; 16],
    /// Secret of this machine that finds notes of deliveries; all zero until the tables are first opened.
    pub delivery_keys: DeliveryKeys,
    /// Outer IPv6 source if the next hop has none; all zero for none.
    pub source_v6: [u8; 16],
    /// IPv4 source of NAT mode, in the first four bytes; all zero for the outer source.
    pub nat_v4: [u8; 16],
    /// IPv6 source of NAT mode; all zero for the outer source.
    pub nat_v6: [u8; 16],
    /// Until then, on the monotonic clock in ns, flows to pods may be missing that former tables have; 0 for never.
    pub flows_copied_by: u64,
}

impl Config {
    /// Tells whether a port, in wire order, is one of the first `ports` of NAT mode.
    #[inline(always)]
    pub const fn is_nat_port(&self, port: [u8; 2], ports: u16) -> bool {
        u16::from_be_bytes(port).wrapping_sub(self.nat_port) < ports
    }
}

/// [`Config::flags`]: this machine has pods and takes the node role for packets of edges.
pub const CONFIG_NODE: u32 = 1;

/// [`Config::flags`]: this machine checks backends through services, and answers return to it.
pub const CONFIG_PROBES: u32 = 2;

/// [`Config::flags`]: this machine announces addresses to its neighbours.
pub const CONFIG_ANNOUNCE: u32 = 4;

/// [`Config::flags`]: `SERVICE_OVERFLOW` has entries.
pub const CONFIG_OVERFLOW: u32 = 8;

/// [`Config::flags`]: the agent of this machine mends packets.
pub const CONFIG_MEND: u32 = 16;

/// `VIPS` flag: a virtual address. Without another flag, every packet for it is ours, whether or not a service has
/// its port.
pub const ADDRESS_VIP: u32 = 1;
/// `VIPS` flag: an address of this machine at which IP-in-IP is decapsulated.
pub const ADDRESS_LOCAL: u32 = 2;
/// `VIPS` flag: an address of this machine with NodePorts; packets to other ports are for the kernel.
pub const ADDRESS_NODE_PORT: u32 = 4;
/// `VIPS` flag: the source address of NAT mode, to which backends reply.
pub const ADDRESS_NAT: u32 = 8;
/// `VIPS` flag: an address with services that another machine may have too; packets that no service takes pass.
pub const ADDRESS_SHARED: u32 = 16;
/// `VIPS` flag: an address of services that this machine does not balance, or not alone. Packets for it from edges
/// that no pod here takes go to the stack.
pub const ADDRESS_INNER: u32 = 32;

/// Counters of forwarded packets and bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Traffic {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of these IP packets as they came in.
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
