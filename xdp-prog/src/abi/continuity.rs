//! What becomes of each map when programs of another [`VERSION`] take over.
//!
//! A map's *layout* is numbered by the first [`VERSION`] whose programs read and write the map as those of today do. So
//! what is pinned below `v<version>` has the layout of today if that version is not older. Nobody here knows what a newer
//! version has made of a map. `abi/layouts.rs` enforces the numbers.

use super::{VERSION, map};

/// Maps that mean something together: from another version all of them are adopted, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapGroup {
    /// The tables that the agent writes, and what programs remember by the ids in them.
    Tables,
    /// Flows to pods of this machine.
    PodFlows,
    /// Flows of this machine's own kernel.
    KernelFlows,
    /// Datagrams that arrive in fragments.
    Fragments,
}

/// A map that programs of another version may go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapContinuity {
    /// Its name, as in [`map`].
    pub map: &'static str,
    /// The number of its layout.
    pub layout: u32,
    /// The maps that it is adopted with.
    pub group: MapGroup,
}

/// The layout of flows to pods.
const POD_FLOWS: u32 = if cfg!(feature = "test-layout") {
    VERSION
} else {
    4
};

/// The maps that programs of another version may go on with. All others are made anew with each version: counters, whose
/// indices are lists in the source, programs, allowances and notes of a second, and scratch.
pub const CONTINUITY: [MapContinuity; 37] = [
    of(map::CONFIG, 5, MapGroup::Tables),
    of(map::VIPS, 4, MapGroup::Tables),
    of(map::SERVICE_INDEX, 4, MapGroup::Tables),
    of(map::SERVICE_OVERFLOW, 4, MapGroup::Tables),
    of(map::SERVICE, 5, MapGroup::Tables),
    of(map::LUT, 5, MapGroup::Tables),
    of(map::PASTS, 5, MapGroup::Tables),
    of(map::HISTORY, 5, MapGroup::Tables),
    of(map::PINS, 5, MapGroup::Tables),
    of(map::PINS_YOUNG, 5, MapGroup::Tables),
    of(map::CLIENTS, 5, MapGroup::Tables),
    of(map::BACKENDS, 5, MapGroup::Tables),
    of(map::NEXTHOPS, 5, MapGroup::Tables),
    of(map::PATHS, 4, MapGroup::Tables),
    of(map::VLANS, 5, MapGroup::Tables),
    of(map::TRUSTED_EDGES, 4, MapGroup::Tables),
    of(map::EDGE_MACS, 4, MapGroup::Tables),
    of(map::PODS, 4, MapGroup::Tables),
    of(map::SOURCE_RANGES, 4, MapGroup::Tables),
    of(map::EGRESS_PORTS, 4, MapGroup::Tables),
    of(map::NAT_FORWARD, 4, MapGroup::Tables),
    of(map::NAT_REVERSE, 4, MapGroup::Tables),
    of(map::NAT_CLAIMS, 4, MapGroup::Tables),
    of(map::NAT_COUNTS, 4, MapGroup::Tables),
    of(map::NAT_BEGUN, 4, MapGroup::Tables),
    of(map::PROBES, 4, MapGroup::Tables),
    of(map::PROBE_PEERS, 4, MapGroup::Tables),
    of(map::ANNOUNCED, 4, MapGroup::Tables),
    of(map::ANNOUNCE_STAMP, 4, MapGroup::Tables),
    of(map::ANNOUNCE_LINKS, 4, MapGroup::Tables),
    of(map::CLAIMS, 4, MapGroup::Tables),
    of(map::FLOWS, POD_FLOWS, MapGroup::PodFlows),
    of(map::FLOWS_DATAGRAM, POD_FLOWS, MapGroup::PodFlows),
    of(map::FLOWS_EMBRYONIC, POD_FLOWS, MapGroup::PodFlows),
    of(map::LOCAL_FLOWS, 4, MapGroup::KernelFlows),
    of(map::LOCAL_PORTS, 4, MapGroup::KernelFlows),
    of(map::FRAGMENTS, 4, MapGroup::Fragments),
];

/// Returns the number of a map's layout; `None` for a map that each version makes anew.
pub fn layout_of(map: &str) -> Option<u32> {
    let mut known = CONTINUITY.iter();
    known
        .find(|known| known.map == map)
        .map(|known| known.layout)
}

const fn of(map: &'static str, layout: u32, group: MapGroup) -> MapContinuity {
    MapContinuity { map, layout, group }
}
