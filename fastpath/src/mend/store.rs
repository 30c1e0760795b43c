//! The packets that are held, within limits of memory and time.
//!
//! A flood must not keep others out. A source gets its share and no more. If the memory is full, the datagram that has
//! waited longest goes: the first fragment of an ordinary one follows within milliseconds.

use std::collections::{BTreeMap, HashMap};

use xdp_prog::{
    abi::{AddressKey, Tuple},
    punt::LaterFragment,
};

use super::{Limits, Outcome, counts::Tally};

/// Bytes that a held packet takes beside its own, in the tables and as the allocator rounds it up.
const NOTES: usize = 256;
/// Longest payload of a datagram.
const LONGEST: u32 = 65_535;

/// A datagram whose ports are not known yet.
#[derive(Debug)]
struct HeldDatagram {
    /// When the first of its packets came, in ns.
    since: u64,
    number: u64,
    source: AddressKey,
    /// The packets, each with its end, by where they begin.
    pieces: BTreeMap<u32, (u32, Vec<u8>)>,
    bytes: usize,
    /// Whether fragments overlap, so that none of them may be used.
    is_spoiled: bool,
    /// Whether it may be for the kernel, which gets it in the end.
    may_be_for_kernel: bool,
}

/// Packets that are held.
#[derive(Debug)]
pub(super) struct Store {
    limits: Limits,
    /// Bytes that all packets may take.
    room: usize,
    datagrams: HashMap<Tuple, HeldDatagram>,
    /// The datagrams in the order in which they began.
    order: BTreeMap<u64, Tuple>,
    /// Bytes that the packets of a source take.
    sources: HashMap<AddressKey, usize>,
    bytes: usize,
    packets: usize,
    next_number: u64,
    /// The number behind that of the datagram that was asked for last.
    asked: u64,
}

impl Store {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            room: limits.bytes,
            datagrams: HashMap::new(),
            order: BTreeMap::new(),
            sources: HashMap::new(),
            bytes: 0,
            packets: 0,
            next_number: 0,
            asked: 0,
        }
    }

    /// Holds a packet, or counts why not. Returns the frames that found no room and may be for the kernel.
    pub(super) fn hold(
        &mut self,
        now: u64,
        fragment: &LaterFragment,
        may_be_for_kernel: bool,
        frame: Vec<u8>,
        tally: &mut Tally,
    ) -> Vec<Vec<u8>> {
        let end = fragment.offset + fragment.length;
        if end > LONGEST {
            tally[Outcome::Unreadable as usize] += 1;
            return Vec::new();
        }
        if let Some(datagram) = self.datagrams.get(&fragment.datagram) {
            if datagram.is_spoiled {
                tally[Outcome::Overlap as usize] += 1;
                return Vec::new();
            }
            match datagram.relation(fragment.offset, end) {
                Relation::Apart => {}
                Relation::Same => {
                    tally[Outcome::Duplicate as usize] += 1;
                    return Vec::new();
                }
                Relation::Overlapping => {
                    tally[Outcome::Overlap as usize] += 1;
                    self.spoil(&fragment.datagram, tally);
                    return Vec::new();
                }
            }
        }
        let cost = frame.len() + NOTES;
        let source = share_of(fragment.source);
        let used = self.sources.get(&source).copied().unwrap_or(0);
        if used + cost > self.limits.bytes_of_source {
            return refuse(frame, may_be_for_kernel, Outcome::SourceShare, tally);
        }
        if cost > self.room {
            return refuse(frame, may_be_for_kernel, Outcome::OutOfMemory, tally);
        }
        let passed_on = self.make_room(cost, tally);
        let number = self.next_number;
        let order = &mut self.order;
        let datagram = self.datagrams.entry(fragment.datagram).or_insert_with(|| {
            order.insert(number, fragment.datagram);
            HeldDatagram {
                since: now,
                number,
                source,
                pieces: BTreeMap::new(),
                bytes: 0,
                is_spoiled: false,
                may_be_for_kernel,
            }
        });
        self.next_number += 1;
        datagram.pieces.insert(fragment.offset, (end, frame));
        datagram.bytes += cost;
        *self.sources.entry(source).or_default() += cost;
        self.bytes += cost;
        self.packets += 1;
        passed_on
    }

    /// Sets how many bytes all packets may take. Returns the frames that lose their room and may be for the kernel.
    pub(super) fn set_room(&mut self, room: usize, tally: &mut Tally) -> Vec<Vec<u8>> {
        self.room = room;
        self.make_room(0, tally)
    }

    /// Takes the packets of a datagram out, in their order in the datagram.
    pub(super) fn release(&mut self, datagram: &Tuple) -> Vec<Vec<u8>> {
        self.remove(datagram)
            .map(|datagram| datagram.frames())
            .unwrap_or_default()
    }

    /// Takes out what has waited for too long: returns what may be the kernel's, and counts the rest.
    pub(super) fn expire(&mut self, now: u64, tally: &mut Tally) -> Vec<Vec<u8>> {
        let mut passed_on = Vec::new();
        let wait = u64::try_from(self.limits.wait.as_nanos()).unwrap_or(u64::MAX);
        while let Some((_, key)) = self.order.first_key_value() {
            let key = *key;
            if now.saturating_sub(self.datagrams[&key].since) < wait {
                break;
            }
            passed_on.extend(self.give_up(&key, Outcome::TimedOut, tally));
        }
        passed_on
    }

    /// Returns the next `limit` datagrams to check for their first fragments; all have their turn.
    pub(super) fn next_asked(&mut self, limit: usize) -> Vec<Tuple> {
        let limit = limit.min(self.order.len());
        let newer = self.order.range(self.asked..);
        let asked: Vec<_> = newer
            .chain(self.order.range(..self.asked))
            .take(limit)
            .collect();
        let last = asked.last().map(|(number, _)| **number + 1);
        let asked = asked.into_iter().map(|(_, key)| *key).collect();
        self.asked = last.unwrap_or(0);
        asked
    }

    /// Gives everything up: returns what may be the kernel's, and counts the rest.
    pub(super) fn clear(&mut self, tally: &mut Tally) -> Vec<Vec<u8>> {
        let mut passed_on = Vec::new();
        while let Some((_, key)) = self.order.first_key_value() {
            let key = *key;
            passed_on.extend(self.give_up(&key, Outcome::Ended, tally));
        }
        passed_on
    }

    /// Returns the number of packets.
    pub(super) const fn packets(&self) -> usize {
        self.packets
    }

    /// Returns the bytes that they take.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tells whether nothing is held or noted.
    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Gives up the packets of a datagram whose fragments overlap, and notes that for its later ones.
    fn spoil(&mut self, key: &Tuple, tally: &mut Tally) {
        let Some(mut datagram) = self.remove(key) else {
            return;
        };
        tally[Outcome::Overlap as usize] += datagram.pieces.len() as u64;
        datagram.pieces.clear();
        datagram.bytes = NOTES;
        datagram.is_spoiled = true;
        datagram.number = self.next_number;
        self.next_number += 1;
        self.bytes += NOTES;
        *self.sources.entry(datagram.source).or_default() += NOTES;
        self.order.insert(datagram.number, *key);
        self.datagrams.insert(*key, datagram);
    }

    /// Gives up the datagrams that have waited longest until there is room. Returns what may be the kernel's.
    fn make_room(&mut self, cost: usize, tally: &mut Tally) -> Vec<Vec<u8>> {
        let mut passed_on = Vec::new();
        while self.bytes + cost > self.room
            && let Some((_, key)) = self.order.first_key_value()
        {
            let key = *key;
            passed_on.extend(self.give_up(&key, Outcome::OutOfMemory, tally));
        }
        passed_on
    }

    /// Removes a datagram: returns its packets if they may be the kernel's, and counts them if not.
    fn give_up(&mut self, key: &Tuple, outcome: Outcome, tally: &mut Tally) -> Vec<Vec<u8>> {
        match self.remove(key) {
            Some(datagram) if datagram.may_be_for_kernel => datagram.frames(),
            Some(datagram) => {
                tally[outcome as usize] += datagram.pieces.len() as u64;
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    fn remove(&mut self, key: &Tuple) -> Option<HeldDatagram> {
        let datagram = self.datagrams.remove(key)?;
        self.order.remove(&datagram.number);
        self.bytes -= datagram.bytes;
        self.packets -= datagram.pieces.len();
        if let Some(used) = self.sources.get_mut(&datagram.source) {
            *used -= datagram.bytes;
            if *used == 0 {
                self.sources.remove(&datagram.source);
            }
        }
        Some(datagram)
    }
}

/// Returns a packet that is not held if it may be the kernel's, and counts it if not.
fn refuse(
    frame: Vec<u8>,
    may_be_for_kernel: bool,
    outcome: Outcome,
    tally: &mut Tally,
) -> Vec<Vec<u8>> {
    if may_be_for_kernel {
        return vec![frame];
    }
    tally[outcome as usize] += 1;
    Vec::new()
}

/// How a fragment lies to those that are held of its datagram.
enum Relation {
    Apart,
    Same,
    Overlapping,
}

impl HeldDatagram {
    fn relation(&self, begin: u32, end: u32) -> Relation {
        if self
            .pieces
            .get(&begin)
            .is_some_and(|(held, _)| *held == end)
        {
            return Relation::Same;
        }
        // They do not overlap each other, so the last one that begins before the end is the one that could.
        let mut before = self.pieces.range(..end.max(begin + 1));
        match before.next_back() {
            Some((_, (held, _))) if *held > begin => Relation::Overlapping,
            Some((held, _)) if *held == begin => Relation::Overlapping,
            _ => Relation::Apart,
        }
    }

    fn frames(self) -> Vec<Vec<u8>> {
        let pieces = self.pieces.into_values();
        pieces.map(|(_, frame)| frame).collect()
    }
}

/// Returns the network whose share a source's packets are counted for: one machine has at least 64 bits of IPv6.
fn share_of(source: AddressKey) -> AddressKey {
    if source.is_mapped() {
        return source;
    }
    let mut network = source.octets();
    network[8..].fill(0);
    AddressKey::v6(network)
}

#[cfg(test)]
mod tests;
