//! The sockets of devices that take no frames from XDP.
//!
//! One is opened when the first frame for its device comes, and closed when none has come for a while. The device may have
//! a queue whose packets are mended: its socket has queue 0 then, and sends these frames as well.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    carry::{self, Finished},
    queues::{QueueError, pause_behind},
    worker::Carried,
};
use crate::{
    facts,
    port::{
        Port,
        xsk::{Copying, Options, Xsk},
    },
};

/// Buffers of a device, all of them for what is sent.
const BUFFERS: u32 = 512;
/// Most devices at once: their buffers take 2 MiB each.
const MOST: usize = 16;
/// How long a socket stays open that sends nothing, and how long it is told that one could not be opened.
const UNUSED: Duration = Duration::from_secs(60);

/// Sockets by the index of their device.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    open: BTreeMap<u32, Carrier>,
    closed: BTreeMap<u32, Closed>,
    /// Frames on their way out when this was last asked.
    leaving: usize,
    /// Frames that were on their way out of sockets that have been closed since.
    cut_off: usize,
}

#[derive(Debug)]
struct Carrier {
    port: Port<Xsk>,
    used: Instant,
}

/// A device whose socket could not be opened, or has failed.
#[derive(Debug)]
struct Closed {
    attempted: Instant,
    /// How often in a row that was in vain.
    failures: u32,
    problem: Arc<QueueError>,
}

impl Carriers {
    /// Sends frames. `shared` returns the open port of queue 0 of a device whose packets are mended. Returns what became of
    /// the frames, and the devices whose shared port works no more.
    pub(super) fn send<'p>(
        &mut self,
        frames: &mut Finished,
        mut shared: impl FnMut(u32) -> Option<&'p mut Port<Xsk>>,
    ) -> (Carried, Vec<(u32, io::Error)>) {
        let mut turn = Carried::default();
        let mut broken = Vec::new();
        for (device, frames) in frames.by_device() {
            let number = frames.len() as u64;
            let (sent, is_shared) = match shared(device) {
                Some(port) => (carry::send(port, frames), true),
                None => match self.carrier(device) {
                    Some(carrier) => (carry::send(&mut carrier.port, frames), false),
                    None => {
                        turn.not_carried += number;
                        continue;
                    }
                },
            };
            turn.full += sent.refused;
            turn.carried += number - sent.refused;
            match sent.outcome {
                Ok(()) => {}
                Err(error) if is_shared => broken.push((device, error)),
                Err(error) => self.fail(device, error),
            }
        }
        (turn, broken)
    }

    /// Has the devices send what they could not send before, and closes sockets that are not used. `shared` is the number of
    /// frames on their way out of ports that are not these. Completes what became of a turn's frames: of those that were
    /// given to devices, the ones that have left are carried.
    pub(super) fn turn(&mut self, turn: &mut Carried, shared: usize) {
        let mut broken = Vec::new();
        for (device, carrier) in &mut self.open {
            if carrier.port.in_transit() > 0
                && let Err(error) = carrier.port.turn()
            {
                broken.push((*device, error));
            }
        }
        for (device, error) in broken {
            self.fail(device, error);
        }
        self.open
            .retain(|_, carrier| carrier.port.in_transit() > 0 || carrier.used.elapsed() < UNUSED);
        self.closed
            .retain(|_, closed| closed.attempted.elapsed() < UNUSED);
        let own = self.open.values();
        let leaving = shared + own.map(|carrier| carrier.port.in_transit()).sum::<usize>();
        let cut_off = std::mem::take(&mut self.cut_off);
        let before = std::mem::replace(&mut self.leaving, leaving);
        turn.carried = (turn.carried + before as u64).saturating_sub((leaving + cut_off) as u64);
        turn.not_carried += cut_off as u64;
        turn.leaving = leaving;
    }

    /// Notes that a port is closed from which so many frames have not left.
    pub(super) const fn cut_off(&mut self, frames: usize) {
        self.cut_off += frames;
    }

    /// Tells whether there is nothing to do as long as no frame comes.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty() && self.leaving + self.cut_off == 0
    }

    /// Closes all sockets.
    pub(super) fn close(&mut self) {
        for carrier in std::mem::take(&mut self.open).into_values() {
            self.cut_off += carrier.port.in_transit();
        }
    }

    /// Lists why devices send nothing.
    pub(super) fn problems(&self) -> Vec<Arc<QueueError>> {
        let closed = self.closed.values();
        closed.map(|closed| Arc::clone(&closed.problem)).collect()
    }

    /// Returns the socket of a device, which is opened if need be and if it is time for an attempt.
    fn carrier(&mut self, device: u32) -> Option<&mut Carrier> {
        if !self.open.contains_key(&device) {
            let waits = self
                .closed
                .get(&device)
                .is_some_and(|closed| closed.attempted.elapsed() < pause_behind(closed.failures));
            if waits {
                return None;
            }
            match self.open(device) {
                Ok(port) => {
                    self.closed.remove(&device);
                    let used = Instant::now();
                    self.open.insert(device, Carrier { port, used });
                }
                Err(problem) => self.note(device, problem),
            }
        }
        let carrier = self.open.get_mut(&device)?;
        carrier.used = Instant::now();
        Some(carrier)
    }

    fn open(&self, device: u32) -> Result<Port<Xsk>, QueueError> {
        if self.open.len() == MOST {
            return Err(QueueError::TooMany);
        }
        let name = facts::device_name(device).ok_or(QueueError::NoDevice { device })?;
        let options = Options {
            buffers: BUFFERS,
            buffer_size: 4096,
            reserve: BUFFERS,
            ring: BUFFERS,
            copying: Copying::Always,
            several_buffers: false,
            patience: Duration::ZERO,
        };
        Port::open(&name, 0, &options).map_err(QueueError::Open)
    }

    /// Closes the socket of a device that sends nothing any more.
    fn fail(&mut self, device: u32, source: io::Error) {
        if let Some(carrier) = self.open.remove(&device) {
            self.cut_off += carrier.port.in_transit();
        }
        let interface = facts::device_name(device).unwrap_or_else(|| device.to_string());
        self.note(device, QueueError::Broken { interface, source });
    }

    fn note(&mut self, device: u32, problem: QueueError) {
        let failures = self.closed.get(&device).map_or(0, |closed| closed.failures);
        let closed = Closed {
            attempted: Instant::now(),
            failures: failures.saturating_add(1),
            problem: Arc::new(problem),
        };
        self.closed.insert(device, closed);
    }
}
