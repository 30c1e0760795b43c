//! Flows to pods as they are without the test layout, which has the words of time and state the other way round.

use aya::maps::MapData;
use xdp_prog::abi::{PodFlow, VERSION, map};
use zerocopy::transmute;

use super::{ANSWERED, ANSWERED_DATAGRAMS, EMBRYONIC, FormerPodFlows, PodTable, TakeToPod};
use crate::tables::{TableError, walk::Walk};

/// The version whose flows are read.
pub(super) const FORMER: u32 = VERSION - 1;

/// A [`PodFlow`] of that version, as words.
type FormerPodFlow = [u64; 5];

struct Flows([(PodTable, Walk<FormerPodFlow>); 3]);

/// Reads tables of embryonic, datagram and answered flows.
pub(super) fn over(maps: [MapData; 3]) -> Result<Box<dyn FormerPodFlows + Send>, TableError> {
    let [embryonic, datagram, flows] = maps;
    Ok(Box::new(Flows([
        (EMBRYONIC, Walk::over(embryonic, map::FLOWS_EMBRYONIC)?),
        (
            ANSWERED_DATAGRAMS,
            Walk::over(datagram, map::FLOWS_DATAGRAM)?,
        ),
        (ANSWERED, Walk::over(flows, map::FLOWS)?),
    ])))
}

impl FormerPodFlows for Flows {
    fn copy(&mut self, _: usize, take: TakeToPod<'_>) -> Result<usize, TableError> {
        for (table, walk) in &mut self.0 {
            walk.go(usize::MAX, |key, flow| {
                let [head, a, b, seen, packed] = *flow;
                let flow: PodFlow = transmute!([head, a, b, packed, seen]);
                take(*table, key, &flow)?;
                Ok(true)
            })?;
        }
        Ok(0)
    }
}
