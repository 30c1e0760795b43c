//! The memory of flows to pods, and of datagrams that arrive in fragments.

use crate::abi::{AddressKey, Datagram, DeliveryKey, DeliveryNote, PodFlow, Tuple};

/// The clock of all that is remembered.
pub trait Clock {
    /// Returns the monotonic time in ns that this CPU first read in the current timer tick.
    ///
    /// The time is usually one or two ticks old. The kernel moves its tick before its clock
    /// (`tick_do_update_jiffies64`). So a packet that comes between the two on a machine that wakes from idle gets,
    /// for one tick, the time at which the machine fell idle. The clock suits memory that lasts for seconds and is
    /// renewed; it does not suit locks.
    fn now(&self) -> u64;
}

/// The tables of flows to pods; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowTable {
    /// `FLOWS` for TCP and `FLOWS_DATAGRAM` for the rest: the client has proved its address, or the pod has answered.
    Established = 0,
    /// `FLOWS_EMBRYONIC`: nothing is proved yet.
    Embryonic = 1,
}

/// The memory of flows to pods.
pub trait Flows: Clock {
    /// Runs `f` on the flow with this key and keeps its changes to the time and the state. Returns `None` if the key
    /// is not there, or if its element has been recycled for another flow.
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R>;
    /// Adds a flow unless its key is there.
    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted;
    /// Removes a flow.
    fn remove_flow(&self, table: FlowTable, key: &Tuple);
    /// Returns an answered flow that goes on, as a packet of the last second found it; always `None` without notes.
    #[inline(always)]
    fn noted_flow(&self, _: &Tuple) -> Option<PodFlow> {
        None
    }
    /// Notes an answered flow that goes on, for the packets of the next second.
    #[inline(always)]
    fn note_flow(&self, _: &Tuple, _: &PodFlow) {}
    /// Removes a flow's note.
    #[inline(always)]
    fn forget_note(&self, _: &Tuple) {}
    /// Returns what packets of the second before `now` that had this key were delivered to; always `None` without
    /// notes.
    #[inline(always)]
    fn noted_delivery(&self, _: DeliveryKey, _now: u64) -> Option<DeliveryNote> {
        None
    }
    /// Notes a delivery for the packets of the next second.
    #[inline(always)]
    fn note_delivery(&self, _: DeliveryKey, _: DeliveryNote) {}
    /// Removes the notes of all deliveries of a flow that the client sends like this, and of a few others.
    #[inline(always)]
    fn forget_deliveries(&self, _: &Tuple) {}
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The entry was added.
    Done,
    /// The key was there before; nothing was changed.
    Exists,
    /// The table is full.
    Full,
}

/// The memory of datagrams that arrive in fragments.
pub trait Fragments: Clock {
    /// Returns the ports that a datagram's first fragment has published.
    fn datagram(&self, key: &Tuple) -> Option<Datagram>;
    /// Publishes the ports of a first fragment; replaces those of an older datagram.
    fn publish(&self, key: &Tuple, datagram: &Datagram);
}

/// Notes of look-ups that many packets repeat: those of one edge, or to one pod.
///
/// Without them, a packet from an edge makes four look-ups before that of its flow. A note holds until the tables
/// change ([`crate::abi::Config::notes_generation`]).
pub trait Shortcuts {
    /// Returns the noted result of a look-up; `None` if it is from another generation.
    fn shortcut(&self, key: &Tuple, generation: u32) -> Option<u64>;
    /// Notes the result of a look-up that began in `generation`.
    fn note_shortcut(&self, key: &Tuple, generation: u32, value: u64);
    /// Notes the source of a refused outer header, for the operator.
    fn note_untrusted(&self, source: &AddressKey);
}
