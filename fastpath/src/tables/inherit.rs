//! Keeps flows alive when an agent starts with other tables: of another layout after an upgrade, or of other sizes.
//!
//! The programs of the new tables know no flow. A pod's reply would leave with the pod's own address, and NAT mode would
//! drop every segment. So the flows of the former tables are written into the new ones: first while the old programs
//! still run, and again when none of them does, for flows that began meanwhile. Entries that the new programs have made
//! stay.

mod counters;
mod layout3;
mod resized;

use std::fmt;

use xdp_prog::abi::{LocalFlow, NAT_OPEN, NatForward, NatMark, NatReverse, PodFlow, Tuple};

use self::counters::FormerCounters;
use super::{TableError, Tables, nat::service_key, syscall_map::SyscallMap, walk::Walk};
use crate::pins::{PinError, Pins};

/// The tables of an earlier agent whose programs are still attached.
pub struct FormerTables {
    local: Walk<LocalFlow>,
    flows: Box<dyn FormerFlows + Send>,
    /// The counters, where they can be carried over.
    counters: Option<FormerCounters>,
}

impl fmt::Debug for FormerTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormerTables").finish_non_exhaustive()
    }
}

/// The numbers of flows that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InheritedFlows {
    /// Flows of this machine's own kernel.
    pub local: usize,
    /// Flows to pods of this machine.
    pub to_pods: usize,
    /// Flows of NAT mode.
    pub nat: usize,
    /// The oldest flows, which smaller tables have no room for. They do not go on.
    pub left_out: usize,
}

/// One of the tables of flows to pods.
type PodTable = fn(&mut Tables) -> &mut SyscallMap<Tuple, PodFlow>;
const ANSWERED: PodTable = |tables| &mut tables.flows;
const ANSWERED_DATAGRAMS: PodTable = |tables| &mut tables.flows_datagram;
const EMBRYONIC: PodTable = |tables| &mut tables.flows_embryonic;

/// Takes a flow to a pod, with its table.
type TakeToPod<'t> = &'t mut dyn FnMut(PodTable, &Tuple, &PodFlow) -> Result<(), TableError>;
/// Takes a flow of NAT mode: the key of its replies, their entry, and the mark of the client's.
type TakeNat<'t> = &'t mut dyn FnMut(&Tuple, &NatReverse, NatMark) -> Result<(), TableError>;

/// Reads flows in the form of this layout. Each returns how many flows a table of `capacity` entries has no room for.
trait FormerFlows {
    fn to_pods(&mut self, capacity: usize, take: TakeToPod<'_>) -> Result<usize, TableError>;
    fn nat(&mut self, capacity: usize, take: TakeNat<'_>) -> Result<usize, TableError>;
}

impl FormerTables {
    /// Opens the former tables that can be read and whose programs are still attached.
    ///
    /// # Errors
    ///
    /// Fails if one of their maps cannot be opened, or does not have the layout that its directory names.
    pub fn open(pins: &Pins) -> Result<Vec<Self>, FormerTablesError> {
        let mut former = resized::open(pins)?;
        former.extend(layout3::open(pins)?);
        Ok(former)
    }
}

/// Reasons why former tables cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FormerTablesError {
    /// A pin could not be used.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A map could not be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Tables {
    /// Writes flows of former tables into these, unless they are known already. For flows of NAT mode, their services
    /// must be in the tables. Those that are half open may still become open while the former programs run. So they
    /// are written only if these have ended.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read or written. Flows that were written go on.
    pub fn inherit_flows(
        &mut self,
        former: &mut FormerTables,
        have_ended: bool,
    ) -> Result<InheritedFlows, TableError> {
        let mut inherited = InheritedFlows::default();
        self.inherit_local(&mut former.local, &mut inherited)?;
        let capacity = self.flows.capacity();
        let left_out = former.flows.to_pods(capacity, &mut |table, key, flow| {
            let is_new = table(self).insert_absent(key, flow)?;
            inherited.to_pods += usize::from(is_new);
            Ok(())
        })?;
        inherited.left_out += left_out;
        let capacity = self.nat.entries.reverse.capacity();
        let left_out = former.flows.nat(capacity, &mut |reply, reverse, mark| {
            let is_new =
                (have_ended || mark.has(NAT_OPEN)) && self.inherit_nat(reply, reverse, mark)?;
            inherited.nat += usize::from(is_new);
            Ok(())
        })?;
        inherited.left_out += left_out;
        Ok(inherited)
    }

    fn inherit_local(
        &mut self,
        former: &mut Walk<LocalFlow>,
        inherited: &mut InheritedFlows,
    ) -> Result<(), TableError> {
        let since = former.newest_since(self.local_flows.capacity(), |flow| flow.until())?;
        former.go(usize::MAX, |key, flow| {
            if flow.until() < since {
                inherited.left_out += 1;
                return Ok(false);
            }
            let is_new = self.local_flows.insert_absent(key, flow)?;
            // Packets look up the flow only if its port is marked.
            let port = u16::from_be_bytes(key.destination_port()).into();
            if self.local_ports.read(&port)? < flow.until() {
                self.local_ports.insert(port, flow.until())?;
            }
            inherited.local += usize::from(is_new);
            Ok(true)
        })?;
        Ok(())
    }

    /// Adds a flow of NAT mode if its service has its backend; tells whether it was added.
    fn inherit_nat(
        &mut self,
        reply: &Tuple,
        reverse: &NatReverse,
        mark: NatMark,
    ) -> Result<bool, TableError> {
        let key = reverse.forward_key(reply.protocol());
        let service =
            service_key(reverse, reply.protocol()).and_then(|key| self.installed.get(&key));
        let backend = service.and_then(|service| {
            let ids = service.backends.iter().copied();
            ids.into_iter().find(|id| {
                self.backends.get(*id).is_some_and(|known| {
                    known.pod == reply.source() && known.port == reply.source_port()
                })
            })
        });
        let Some(backend) = backend else {
            return Ok(false);
        };
        let fingerprint = reverse.link.fingerprint(reverse.ifindex);
        let entry = NatForward::new(&key, reply, backend, fingerprint, mark);
        // As in the datapath, the flow that has the reply's port has the entries. An agent that was killed here may
        // have left one of them.
        let entries = &mut self.nat.entries;
        let is_left = !entries.reverse.insert_absent(reply, reverse)?;
        let is_of = |known: NatReverse| known.forward_key(reply.protocol()) == key;
        if is_left && !entries.reverse.get(reply).is_some_and(is_of) {
            return Ok(false);
        }
        let is_new = entries.forward.insert_absent(&key, &entry)?;
        if !is_new && !is_left {
            entries.reverse.remove(reply)?;
        }
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests;
