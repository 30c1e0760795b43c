//! The memory of flows to pods, and of datagrams in pieces.

use crate::abi::{AddressKey, Datagram, PodFlow, Tuple};

/// Time, for what is remembered of flows.
pub trait Clock {
    /// Returns the monotonic time in ns, as it was read first in this timer tick on this CPU.
    ///
    /// It is a tick or two old as a rule. But the kernel moves its tick before its clock (`tick_do_update_jiffies64`):
    /// what reads between the two when a machine wakes that had no ticks gets, for one tick, the time at
    /// which it fell idle. Good for what is renewed and lasts for seconds, not for locks.
    fn now(&self) -> u64;
}

/// The two tables of flows to pods; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowTable {
    /// `FLOWS`, and `FLOWS_DATAGRAM` of all but TCP: the client is where it says, or the pod has answered.
    Established = 0,
    /// `FLOWS_EMBRYONIC`: neither is known.
    Embryonic = 1,
}

/// The memory of flows to pods.
pub trait Flows: Clock {
    /// Runs `f` on a flow that has this key; an element that another flow has by now is none. Of what `f` changes, the
    /// time and what is told of the flow are kept.
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R>;
    /// Adds a flow, unless it is there.
    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted;
    /// Removes a flow.
    fn remove_flow(&self, table: FlowTable, key: &Tuple);
    /// Returns an answered flow that goes on, as some packet of the last second found it; without notes, none.
    #[inline(always)]
    fn noted_flow(&self, _: &Tuple) -> Option<PodFlow> {
        None
    }
    /// Notes an answered flow that goes on, as a packet has just found it.
    #[inline(always)]
    fn note_flow(&self, _: &Tuple, _: &PodFlow) {}
    /// Takes a flow's note away.
    #[inline(always)]
    fn forget_note(&self, _: &Tuple) {}
}

/// What became of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The entry is there now.
    Done,
    /// One with this key was there before.
    Exists,
    /// The table takes no more.
    Full,
}

/// The memory of datagrams in pieces.
pub trait Fragments: Clock {
    /// Returns what a datagram's first fragment has published.
    fn datagram(&self, key: &Tuple) -> Option<Datagram>;
    /// Publishes what a first fragment shows, in place of an older datagram's.
    fn publish(&self, key: &Tuple, datagram: &Datagram);
}

/// Notes of look-ups that many packets have in common: of one edge, or to one pod.
///
/// Without them, a packet from an edge to a pod takes four look-ups before that of its flow. They hold until the tables
/// change: [`crate::abi::Config::epoch`].
pub trait Shortcuts {
    /// Returns what a look-up yielded in this epoch.
    fn shortcut(&self, key: &Tuple, epoch: u32) -> Option<u64>;
    /// Notes what a look-up has yielded that began in this epoch.
    fn note_shortcut(&self, key: &Tuple, epoch: u32, value: u64);
    /// Notes the source of an outer header that was refused, for a human to look at.
    fn note_untrusted(&self, source: &AddressKey);
}
