//! The flows of tables that have this layout and other sizes.

use xdp_prog::abi::{NAT_CONDEMNED, NatForward, NatReverse, PodFlow, Tuple, VERSION, map};

use super::{
    ANSWERED, ANSWERED_DATAGRAMS, EMBRYONIC, FormerCounters, FormerFlows, FormerTables,
    FormerTablesError, PodTable, TakeNat, TakeToPod,
};
use crate::{
    pins::Pins,
    tables::{TableError, syscall_map::SyscallMap, walk::Walk},
};

struct Flows {
    to_pods: [(PodTable, Walk<PodFlow>); 3],
    nat_reverse: Walk<NatReverse>,
    nat_forward: SyscallMap<Tuple, NatForward>,
}

/// Opens the tables that were set aside and whose programs are still attached.
pub(super) fn open(pins: &Pins) -> Result<Vec<FormerTables>, FormerTablesError> {
    const NAMES: [&str; 6] = [
        map::LOCAL_FLOWS,
        map::FLOWS_EMBRYONIC,
        map::FLOWS_DATAGRAM,
        map::FLOWS,
        map::NAT_REVERSE,
        map::NAT_FORWARD,
    ];
    let flows = pins.open_maps_of(VERSION, NAMES)?;
    let counters = pins.open_maps_of(VERSION, FormerCounters::NAMES)?;
    let mut former = Vec::new();
    for (maps, counters) in flows.into_iter().zip(counters) {
        let [local, embryonic, datagram, flows, nat_reverse, nat_forward] = maps;
        let flows = Flows {
            to_pods: [
                (EMBRYONIC, Walk::over(embryonic, map::FLOWS_EMBRYONIC)?),
                (
                    ANSWERED_DATAGRAMS,
                    Walk::over(datagram, map::FLOWS_DATAGRAM)?,
                ),
                (ANSWERED, Walk::over(flows, map::FLOWS)?),
            ],
            nat_reverse: Walk::over(nat_reverse, map::NAT_REVERSE)?,
            nat_forward: SyscallMap::of(nat_forward, map::NAT_FORWARD)?,
        };
        former.push(FormerTables {
            local: Walk::over(local, map::LOCAL_FLOWS)?,
            flows: Box::new(flows),
            counters: Some(FormerCounters::over(&counters)?),
        });
    }
    Ok(former)
}

impl FormerFlows for Flows {
    fn to_pods(&mut self, capacity: usize, take: TakeToPod<'_>) -> Result<usize, TableError> {
        let mut left_out = 0;
        for (table, walk) in &mut self.to_pods {
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

    fn nat(&mut self, capacity: usize, take: TakeNat<'_>) -> Result<usize, TableError> {
        let mut left_out = 0;
        let walk = &mut self.nat_reverse;
        let since = walk.newest_since(capacity, |flow| flow.mark.time())?;
        walk.go(usize::MAX, |reply, reverse| {
            let key = reverse.forward_key(reply.protocol());
            let forward = self.nat_forward.get(&key);
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
