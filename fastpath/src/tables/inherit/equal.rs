//! The flows of tables that have the layout of ours and are not ours: of other sizes, or with other ids.

use aya::maps::MapInfo;
use xdp_prog::abi::{
    NAT_CONDEMNED, NatForward, NatReverse, PodFlow, Tuple, VERSION, layout_of, map,
};

use super::{
    ANSWERED, ANSWERED_DATAGRAMS, EMBRYONIC, FormerCounters, FormerNatFlows, FormerPodFlows,
    FormerTables, FormerTablesError, NAT_FLOWS, POD_FLOWS, PodTable, TakeNat, TakeToPod,
};
use crate::{
    pins::{FormerVersion, Pins},
    tables::{TableError, syscall_map::SyscallMap, walk::Walk},
};

struct PodFlows([(PodTable, Walk<PodFlow>); 3]);

struct NatFlows {
    reverse: Walk<NatReverse>,
    forward: SyscallMap<Tuple, NatForward>,
}

/// Opens the tables of a version that are read here and are not ours too.
pub(super) fn open(
    version: &FormerVersion,
    pins: &Pins,
) -> Result<FormerTables, FormerTablesError> {
    let parts = read_parts(version.layout);
    let is_copied = |maps: &[&str]| parts.contains(&maps) && !is_shared(version, pins, maps[0]);
    let mut former = FormerTables::default();
    if is_copied(&LOCAL_FLOWS) {
        let [local] = version.open_maps(LOCAL_FLOWS)?;
        former.local = Some(Walk::over(local, map::LOCAL_FLOWS)?);
    }
    if is_copied(&POD_FLOWS) {
        former.to_pods = Some(open_pod_flows(version)?);
    }
    if is_copied(&NAT_FLOWS) {
        let [reverse, forward] = version.open_maps(NAT_FLOWS)?;
        former.nat = Some(Box::new(NatFlows {
            reverse: Walk::over(reverse, map::NAT_REVERSE)?,
            forward: SyscallMap::of(forward, map::NAT_FORWARD)?,
        }));
    }
    if version.layout == VERSION {
        let counters = version.open_maps(FormerCounters::NAMES)?;
        former.counters = Some(FormerCounters::over(&counters)?);
    }
    Ok(former)
}

/// Lists the tables of a version that are read here, those together that are read together.
pub(super) fn read_parts(layout: u32) -> Vec<&'static [&'static str]> {
    const PARTS: [&[&str]; 3] = [&LOCAL_FLOWS, &POD_FLOWS, &NAT_FLOWS];
    let is_equal =
        |map: &&str| layout_of(map).is_some_and(|ours| (ours..=VERSION).contains(&layout));
    let is_read = |part: &&[&str]| part.iter().all(is_equal) || is_test_layout(layout, part);
    PARTS.into_iter().filter(is_read).collect()
}

const LOCAL_FLOWS: [&str; 1] = [map::LOCAL_FLOWS];

/// Tells whether a map of another version is one of ours too.
fn is_shared(version: &FormerVersion, pins: &Pins, map: &str) -> bool {
    let id = |pin| MapInfo::from_pin(pin).map(|info| info.id()).ok();
    let ours = id(pins.map(map));
    ours.is_some() && ours == id(version.map(map))
}

#[cfg(feature = "test-layout")]
fn is_test_layout(layout: u32, part: &[&str]) -> bool {
    layout == super::test_layout::FORMER && *part == POD_FLOWS
}

#[cfg(not(feature = "test-layout"))]
const fn is_test_layout(_: u32, _: &[&str]) -> bool {
    false
}

fn open_pod_flows(
    version: &FormerVersion,
) -> Result<Box<dyn FormerPodFlows + Send>, FormerTablesError> {
    let maps = version.open_maps(POD_FLOWS)?;
    #[cfg(feature = "test-layout")]
    if version.layout == super::test_layout::FORMER {
        return Ok(super::test_layout::over(maps)?);
    }
    let [embryonic, datagram, flows] = maps;
    Ok(Box::new(PodFlows([
        (EMBRYONIC, Walk::over(embryonic, map::FLOWS_EMBRYONIC)?),
        (
            ANSWERED_DATAGRAMS,
            Walk::over(datagram, map::FLOWS_DATAGRAM)?,
        ),
        (ANSWERED, Walk::over(flows, map::FLOWS)?),
    ])))
}

impl FormerPodFlows for PodFlows {
    fn copy(&mut self, capacity: usize, take: TakeToPod<'_>) -> Result<usize, TableError> {
        let mut left_out = 0;
        for (table, walk) in &mut self.0 {
            let since = walk.newest_since(capacity, |flow| flow.seen)?;
            walk.go(usize::MAX, |key, flow| {
                if flow.seen < since {
                    left_out += 1;
                    return Ok(false);
                }
                take(*table, key, flow)?;
                Ok(true)
            })?;
        }
        Ok(left_out)
    }
}

impl FormerNatFlows for NatFlows {
    fn copy(&mut self, capacity: usize, take: TakeNat<'_>) -> Result<usize, TableError> {
        let mut left_out = 0;
        let since = self
            .reverse
            .newest_since(capacity, |flow| flow.mark.time())?;
        self.reverse.go(usize::MAX, |reply, reverse| {
            let key = reverse.forward_key(reply.protocol());
            let forward = self.forward.get(&key);
            // Without that entry, the flow is over.
            let Some(forward) = forward
                .filter(|entry| entry.is_answered_as(reply) && !entry.mark.has(NAT_CONDEMNED))
            else {
                return Ok(false);
            };
            if reverse.mark.time() < since {
                left_out += 1;
                return Ok(false);
            }
            take(reply, reverse, forward.mark)?;
            Ok(true)
        })?;
        Ok(left_out)
    }
}
