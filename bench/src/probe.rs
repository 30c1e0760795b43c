//! Probes: 16 bytes at the start of a payload, by which each frame of a measurement is told from every other.
//!
//! A probe and its answer (all numbers big endian):
//!
//! | bytes | hold |
//! |---|---|
//! | 0..3 | the flow |
//! | 3..7 | the sequence number within the flow |
//! | 7..12 | when the probe was due: nanoseconds of `CLOCK_MONOTONIC`, modulo 2^40 (18 minutes) |
//! | 12..16 | a check of the bytes before it: SipHash-2-4 with the key of the trial, its lower half |
//! | 16..18 | in an answer: the backend that answered |
//! | 18..22 | in an answer: a check of the bytes before it, with the key of the run |
//! | the rest | zeros |
//!
//! 16 bytes fit a UDP datagram in the shortest IPv4 frame, with two to spare. A [`Ledger`] holds what was sent,
//! and says of each frame that arrives what it is. Each trial has a key of its own, so a frame of an earlier one,
//! however it comes back, is as foreign as any other.

use std::collections::HashMap;

use anyhow::{Context, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

/// Bytes of a probe.
pub const PROBE_LENGTH: usize = 16;
/// Bytes that an answering backend puts behind the probe.
pub const MARK_LENGTH: usize = 6;
/// Most flows that a probe can name.
pub const MAX_FLOWS: u32 = 1 << 24;

/// Bytes that the check of a probe covers.
const BODY_LENGTH: usize = 12;
/// The part of a due time that a probe carries.
const DUE_MASK: u64 = (1 << 40) - 1;
/// Bytes of a body that must be right for a frame with a known check to be a damaged probe. The check alone
/// could be met by chance.
const LEAST_INTACT: usize = 6;

/// A secret that nobody else's frames can be sealed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// A key that is no secret, for probes that are only shown.
    pub const KNOWN: Self = Self([0; 16]);

    /// Draws a key.
    ///
    /// # Errors
    ///
    /// When the kernel gives no random bytes.
    pub fn random() -> Result<Self> {
        let mut key = [0; 16];
        getrandom(&mut key, GetRandomFlags::empty()).context("drawing a key")?;
        Ok(Self(key))
    }

    /// Returns what the backend with this number puts behind `probe` in its answer.
    pub fn mark(self, probe: &[u8; PROBE_LENGTH], backend: u16) -> [u8; MARK_LENGTH] {
        let mut mark = [0; MARK_LENGTH];
        mark[..2].copy_from_slice(&backend.to_be_bytes());
        let check = self.check(&[probe, &mark[..2]].concat());
        mark[2..].copy_from_slice(&check);
        mark
    }

    fn seal(self, flow: u32, sequence: u32, due_ns: u64) -> [u8; PROBE_LENGTH] {
        let mut probe = [0; PROBE_LENGTH];
        probe[..3].copy_from_slice(&flow.to_be_bytes()[1..]);
        probe[3..7].copy_from_slice(&sequence.to_be_bytes());
        probe[7..BODY_LENGTH].copy_from_slice(&(due_ns & DUE_MASK).to_be_bytes()[3..]);
        let check = self.check(&probe[..BODY_LENGTH]);
        probe[BODY_LENGTH..].copy_from_slice(&check);
        probe
    }

    fn check(self, bytes: &[u8]) -> [u8; 4] {
        let [.., a, b, c, d] = SipHasher24::new_with_key(&self.0).hash(bytes).to_be_bytes();
        [a, b, c, d]
    }
}

/// What became of the probes of a trial. `sent` is `received`, `lost` and those of which only damaged copies came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// Probes that were to be sent by the schedule.
    pub offered: u64,
    /// Probes that were sent.
    pub sent: u64,
    /// Probes that came back intact, each counted once.
    pub received: u64,
    /// Probes of which nothing came back.
    pub lost: u64,
    /// Intact frames beyond the first of their probe.
    pub duplicates: u64,
    /// Probes that came after a later one of their flow (RFC 4737 section 3.3).
    pub reordered: u64,
    /// Frames that were changed on their way.
    pub corrupt: u64,
    /// Probes that another backend than the flow's answered.
    pub misdelivered: u64,
    /// Frames that are no probe of this trial.
    pub foreign: u64,
}

/// What a frame that arrived is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The first intact copy of the probe that was the `index`-th to be prepared.
    Received {
        /// Place in the order of preparation, from 0.
        index: usize,
        /// The backend that answered.
        backend: u16,
    },
    /// A further copy.
    Duplicate,
    /// A damaged copy.
    Corrupt,
    /// No probe of this trial.
    Foreign,
}

/// All probes of a trial: what was sent, and what came of it.
#[derive(Debug)]
pub struct Ledger {
    probes: Key,
    marks: Key,
    flows: Vec<Flow>,
    sent: Vec<Sent>,
    /// Probes of which nothing intact has come, by their checks.
    outstanding: HashMap<[u8; 4], usize>,
    tally: Tally,
}

#[derive(Debug)]
struct Flow {
    backend: u16,
    /// The probes of the flow by sequence number, as places in the order of preparation.
    sent: Vec<usize>,
    /// The sequence number after the highest that was received.
    next: u32,
}

#[derive(Debug)]
struct Sent {
    probe: [u8; PROBE_LENGTH],
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outstanding,
    Damaged,
    Received,
}

impl Ledger {
    /// Starts a trial. `backends` has the backend of each flow, `marks` is the key of the run.
    pub fn new(probes: Key, marks: Key, backends: &[u16]) -> Self {
        let flow = |&backend| Flow {
            backend,
            sent: Vec::new(),
            next: 0,
        };
        Self {
            probes,
            marks,
            flows: backends.iter().map(flow).collect(),
            sent: Vec::new(),
            outstanding: HashMap::new(),
            tally: Tally::default(),
        }
    }

    /// Makes the next probe of a flow. It counts as sent unless [`Ledger::close`] is told otherwise.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    pub fn prepare(&mut self, flow: u32, due_ns: u64) -> [u8; PROBE_LENGTH] {
        let index = self.sent.len();
        let of_flow = &mut self.flows[flow as usize].sent;
        let sequence = u32::try_from(of_flow.len()).unwrap_or(u32::MAX);
        of_flow.push(index);
        let probe = self.probes.seal(flow, sequence, due_ns);
        self.sent.push(Sent {
            probe,
            state: State::Outstanding,
        });
        self.outstanding.insert(check_of(&probe), index);
        probe
    }

    /// Judges an answer that arrived.
    pub fn arrive(&mut self, answer: &[u8]) -> Arrival {
        let arrival = self.judge(answer);
        match arrival {
            Arrival::Received { .. } => self.tally.received += 1,
            Arrival::Duplicate => self.tally.duplicates += 1,
            Arrival::Corrupt => self.tally.corrupt += 1,
            Arrival::Foreign => self.tally.foreign += 1,
        }
        arrival
    }

    /// Ends the trial: what was sent and has not arrived is lost. `unsent` are the probes that were prepared but
    /// not sent, by their places in the order of preparation.
    pub fn close(mut self, unsent: &[usize]) -> Tally {
        self.tally.offered = self.sent.len() as u64;
        self.tally.sent = self.tally.offered - unsent.len() as u64;
        let outstanding = |sent: &&Sent| sent.state == State::Outstanding;
        let outstanding = self.sent.iter().filter(outstanding).count() as u64;
        self.tally.lost = outstanding.saturating_sub(unsent.len() as u64);
        self.tally
    }

    fn judge(&mut self, answer: &[u8]) -> Arrival {
        let Some((probe, rest)) = answer.split_first_chunk::<PROBE_LENGTH>() else {
            return Arrival::Foreign;
        };
        let Some(index) = self.find(probe) else {
            return match self.find_damaged(probe) {
                Some(index) => self.damage(index),
                None => Arrival::Foreign,
            };
        };
        let intact = rest.split_first_chunk::<MARK_LENGTH>();
        let backend = intact.and_then(|(mark, padding)| {
            let backend = u16::from_be_bytes([mark[0], mark[1]]);
            let right = *mark == self.marks.mark(probe, backend);
            (right && padding.iter().all(|&byte| byte == 0)).then_some(backend)
        });
        match backend {
            Some(backend) => self.receive(index, probe, backend),
            None => self.damage(index),
        }
    }

    fn receive(&mut self, index: usize, probe: &[u8; PROBE_LENGTH], backend: u16) -> Arrival {
        if self.sent[index].state == State::Received {
            return Arrival::Duplicate;
        }
        self.sent[index].state = State::Received;
        self.outstanding.remove(&check_of(probe));
        let (flow, sequence) = flow_and_sequence(probe);
        let flow = &mut self.flows[flow as usize];
        if sequence < flow.next {
            self.tally.reordered += 1;
        } else {
            flow.next = sequence.saturating_add(1);
        }
        if flow.backend != backend {
            self.tally.misdelivered += 1;
        }
        Arrival::Received { index, backend }
    }

    fn damage(&mut self, index: usize) -> Arrival {
        let sent = &mut self.sent[index];
        if sent.state == State::Outstanding {
            sent.state = State::Damaged;
        }
        Arrival::Corrupt
    }

    /// Finds the probe that was prepared with exactly these bytes: its place in the order of preparation.
    pub fn find(&self, probe: &[u8; PROBE_LENGTH]) -> Option<usize> {
        let index = self.find_named(probe)?;
        (self.sent[index].probe == *probe).then_some(index)
    }

    /// Finds the probe with this flow and sequence number.
    fn find_named(&self, probe: &[u8; PROBE_LENGTH]) -> Option<usize> {
        let (flow, sequence) = flow_and_sequence(probe);
        let flow = self.flows.get(flow as usize)?;
        flow.sent.get(sequence as usize).copied()
    }

    /// Finds the probe that these bytes were before they were changed: either in the check alone, or in the body
    /// alone. A frame that was changed in both is taken for a foreign one.
    fn find_damaged(&self, probe: &[u8; PROBE_LENGTH]) -> Option<usize> {
        let named = self.find_named(probe);
        let same_body =
            |index: &usize| self.sent[*index].probe[..BODY_LENGTH] == probe[..BODY_LENGTH];
        named.filter(same_body).or_else(|| {
            let index = *self.outstanding.get(&check_of(probe))?;
            let body = self.sent[index].probe.iter().take(BODY_LENGTH);
            let intact = body.zip(probe).filter(|(sent, come)| sent == come).count();
            (intact >= LEAST_INTACT).then_some(index)
        })
    }
}

fn check_of(probe: &[u8; PROBE_LENGTH]) -> [u8; 4] {
    let [.., a, b, c, d] = *probe;
    [a, b, c, d]
}

fn flow_and_sequence(probe: &[u8; PROBE_LENGTH]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, ..] = *probe;
    (
        u32::from_be_bytes([0, a, b, c]),
        u32::from_be_bytes([d, e, f, g]),
    )
}

#[cfg(test)]
mod tests;
