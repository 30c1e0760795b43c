//! Keeps flows alive when an agent starts with tables that it cannot adopt: those of another layout after an upgrade, or of
//! other sizes.
//!
//! The programs of the new tables know no flow. A pod's reply would leave with the pod's own address, and NAT mode would
//! drop every segment. So the flows of the former tables are written into the new ones: first while the old programs
//! still run, and again when none of them does, for flows that began meanwhile. Entries that the new programs have made
//! stay. Between the two, egress drops what a pod sends on a connection that is not there yet
//! ([`Tables::set_copying_flows`]).
//!
//! Tables that the former programs and the new ones share are left out.

mod counters;
mod equal;
mod layout3;
#[cfg(feature = "test-layout")]
mod test_layout;

use std::fmt;

use xdp_prog::abi::{
    Config, LocalFlow, NAT_OPEN, NatForward, NatMark, NatReverse, PodFlow, Tuple, VERSION, map,
};

use self::counters::FormerCounters;
use super::{TableError, Tables, nat::service_key, syscall_map::SyscallMap, walk::Walk};
use crate::{
    clock::monotonic_ns,
    pins::{PinError, Pins},
};

/// How long egress goes by it that flows are being copied, unless it is told that they are: an agent that ends meanwhile
/// must not stop the other connections of its pods.
const COPYING_NS: u64 = 10_000_000_000;

/// Tables of flows to pods. A full LRU table evicts what was written first, so answered flows come last.
const POD_FLOWS: [&str; 3] = [map::FLOWS_EMBRYONIC, map::FLOWS_DATAGRAM, map::FLOWS];
/// Tables of flows of NAT mode.
const NAT_FLOWS: [&str; 2] = [map::NAT_REVERSE, map::NAT_FORWARD];
/// Tables of announcements, which are read whatever version they are of ([`Tables::inherit_announced`]).
const ANNOUNCEMENTS: [&str; 2] = [map::ANNOUNCED, map::CLAIMS];

/// The tables of an earlier agent whose programs are still attached, as far as they are to be copied.
#[derive(Default)]
pub struct FormerTables {
    local: Option<Walk<LocalFlow>>,
    to_pods: Option<Box<dyn FormerPodFlows + Send>>,
    nat: Option<Box<dyn FormerNatFlows + Send>>,
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

/// Reads flows to pods in the form of this layout. Returns how many of them a table of `capacity` entries has no room for.
trait FormerPodFlows {
    fn copy(&mut self, capacity: usize, take: TakeToPod<'_>) -> Result<usize, TableError>;
}

/// As [`FormerPodFlows`], for flows of NAT mode.
trait FormerNatFlows {
    fn copy(&mut self, capacity: usize, take: TakeNat<'_>) -> Result<usize, TableError>;
}

impl FormerTables {
    /// Opens the former tables that can be read, that are not ours too, and whose programs are still attached.
    ///
    /// # Errors
    ///
    /// Fails if one of their maps cannot be opened, or does not have the layout that its directory names.
    pub fn open(pins: &Pins) -> Result<Vec<Self>, FormerTablesError> {
        let mut former = Vec::new();
        for version in pins.versions_in_force()? {
            let tables = match version.layout {
                layout3::VERSION => layout3::open(&version)?,
                _ => equal::open(&version, pins)?,
            };
            if !tables.is_empty() {
                former.push(tables);
            }
        }
        Ok(former)
    }

    /// Tells whether flows to pods are copied.
    pub const fn has_pod_flows(&self) -> bool {
        self.to_pods.is_some()
    }

    const fn is_empty(&self) -> bool {
        self.local.is_none()
            && self.to_pods.is_none()
            && self.nat.is_none()
            && self.counters.is_none()
    }
}

/// Lists the maps of a version whose contents are copied into ours, where they are not adopted.
pub(crate) fn converted_maps(layout: u32) -> Vec<&'static str> {
    let flows = match layout {
        layout3::VERSION => vec![&[map::LOCAL_FLOWS][..], &POD_FLOWS, &NAT_FLOWS],
        _ => equal::read_parts(layout),
    };
    let mut maps = flows.concat();
    maps.extend(ANNOUNCEMENTS);
    if maps.contains(&map::LOCAL_FLOWS) {
        maps.push(map::LOCAL_PORTS);
    }
    if layout == VERSION {
        maps.extend(FormerCounters::COUNTED);
    }
    maps
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
        if let Some(local) = &mut former.local {
            self.inherit_local(local, &mut inherited)?;
        }
        if let Some(flows) = &mut former.to_pods {
            self.inherit_to_pods(flows.as_mut(), &mut inherited)?;
        }
        if let Some(flows) = &mut former.nat {
            self.inherit_nat_flows(flows.as_mut(), have_ended, &mut inherited)?;
        }
        Ok(inherited)
    }

    /// Tells egress whether flows to pods may be missing that former tables have.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the write.
    pub fn set_copying_flows(&mut self, is_copying: bool) -> Result<(), TableError> {
        let flows_copied_by = match is_copying {
            true => monotonic_ns() + COPYING_NS,
            false => 0,
        };
        self.set_config(Config {
            flows_copied_by,
            ..self.current_config
        })
    }

    fn inherit_to_pods(
        &mut self,
        former: &mut dyn FormerPodFlows,
        inherited: &mut InheritedFlows,
    ) -> Result<(), TableError> {
        let capacity = self.flows.capacity();
        let left_out = former.copy(capacity, &mut |table, key, flow| {
            let is_new = table(self).insert_absent(key, flow)?;
            inherited.to_pods += usize::from(is_new);
            Ok(())
        })?;
        inherited.left_out += left_out;
        Ok(())
    }

    fn inherit_nat_flows(
        &mut self,
        former: &mut dyn FormerNatFlows,
        have_ended: bool,
        inherited: &mut InheritedFlows,
    ) -> Result<(), TableError> {
        let capacity = self.nat.entries.reverse.capacity();
        let left_out = former.copy(capacity, &mut |reply, reverse, mark| {
            let is_new =
                (have_ended || mark.has(NAT_OPEN)) && self.inherit_nat(reply, reverse, mark)?;
            inherited.nat += usize::from(is_new);
            Ok(())
        })?;
        inherited.left_out += left_out;
        Ok(())
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
