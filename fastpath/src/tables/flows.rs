//! Lists the live flows that this machine knows: those of its pods, and those of NAT mode.

use std::{net::SocketAddr, time::Duration};

use xdp_prog::{
    abi::{NAT_OPEN, NatReverse, PodFlow, Tuple, age, map},
    decide::nat::may_be_over_after,
    flow_state::is_live,
    world::FlowTable,
};

use super::{
    Protocol, ServiceKey, TableError, batch::Entries, nat::service_key, types::address_of,
};
use crate::{clock::monotonic_ns, load::Loaded};

/// Number of entries that are read at once.
const BATCH: usize = 4096;

/// A flow that has neither ended nor been idle for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFlow {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service that the client talks to.
    pub service: ServiceKey,
    /// The pod, or the backend of NAT mode.
    pub backend: SocketAddr,
    /// Whether the edge translates both directions: NAT mode.
    pub is_nat: bool,
    /// Whether packets of both sides were seen.
    pub is_open: bool,
    /// Time since its last packet.
    pub idle: Duration,
}

/// Handles to the tables of flows.
pub(super) struct FlowTables {
    pods: Vec<(FlowTable, Entries<Tuple, PodFlow>)>,
    nat: Entries<Tuple, NatReverse>,
}

impl FlowTables {
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        let pods = [
            (FlowTable::Established, map::FLOWS),
            (FlowTable::Established, map::FLOWS_DATAGRAM),
            (FlowTable::Embryonic, map::FLOWS_EMBRYONIC),
        ];
        let pods = pods.map(|(table, name)| Ok((table, Entries::over(loaded.map(name)?, name)?)));
        Ok(Self {
            pods: pods.into_iter().collect::<Result<_, TableError>>()?,
            nat: Entries::over(loaded.map(map::NAT_REVERSE)?, map::NAT_REVERSE)?,
        })
    }

    /// Walks through all tables and passes each live flow to `take` once; ends early if `take` returns false.
    pub(super) fn walk(&self, mut take: impl FnMut(KnownFlow) -> bool) -> Result<(), TableError> {
        let now = monotonic_ns();
        for (table, entries) in &self.pods {
            let goes_on = each(entries, |key, flow: &PodFlow| {
                let counts = !flow.is_forward() && is_live(*table, key.protocol(), flow, now);
                let is_open = matches!(table, FlowTable::Established);
                let known = counts.then(|| of_pod(key, flow, is_open, now)).flatten();
                known.is_none_or(&mut take)
            })?;
            if !goes_on {
                return Ok(());
            }
        }
        each(&self.nat, |key, flow| {
            let counts = flow.mark.idle(now) < may_be_over_after(key.protocol(), flow.mark);
            let known = counts.then(|| of_nat(key, flow, now)).flatten();
            known.is_none_or(&mut take)
        })?;
        Ok(())
    }
}

/// Passes entries to `take` until it returns false; returns whether it took all of them.
fn each<V: aya::Pod + Default>(
    entries: &Entries<Tuple, V>,
    mut take: impl FnMut(&Tuple, &V) -> bool,
) -> Result<bool, TableError> {
    let mut keys = vec![Tuple::default(); BATCH];
    let mut values = vec![V::default(); BATCH];
    let mut cursor = None;
    loop {
        let batch = entries.read(cursor, &mut keys, &mut values)?;
        let mut read = keys.iter().zip(&values).take(batch.count);
        if !read.all(|(key, value)| take(key, value)) {
            return Ok(false);
        }
        cursor = batch.next;
        if cursor.is_none() {
            return Ok(true);
        }
    }
}

fn of_pod(key: &Tuple, flow: &PodFlow, is_open: bool, now: u64) -> Option<KnownFlow> {
    let port = u16::from_be_bytes;
    Some(KnownFlow {
        client: SocketAddr::new(address_of(flow.client(key)), port(flow.client_port())),
        service: ServiceKey {
            address: address_of(flow.service_address(key)),
            port: port(flow.port()),
            protocol: Protocol::from_number(key.protocol())?,
        },
        backend: SocketAddr::new(address_of(key.destination()), port(key.destination_port())),
        is_nat: false,
        is_open,
        idle: Duration::from_nanos(age(flow.seen, now)),
    })
}

fn of_nat(key: &Tuple, flow: &NatReverse, now: u64) -> Option<KnownFlow> {
    let port = u16::from_be_bytes;
    Some(KnownFlow {
        client: SocketAddr::new(address_of(flow.client), port(flow.client_port())),
        service: service_key(flow, key.protocol())?,
        backend: SocketAddr::new(address_of(key.source()), port(key.source_port())),
        is_nat: true,
        is_open: flow.mark.has(NAT_OPEN),
        idle: Duration::from_nanos(flow.mark.idle(now)),
    })
}
