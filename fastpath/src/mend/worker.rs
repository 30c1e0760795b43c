//! Judges punted frames: holds them, has them go back, or gives them up.

use std::{io, sync::Arc};

use xdp_prog::{
    abi::Tuple,
    frame::HostFrame,
    parse,
    punt::{Carried, LaterFragment},
    reason::PuntReason,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Counts, Limits, Outcome, counts::Tally, store::Store};
use crate::port::{Buffer, Port, Rings};

/// Most frames that are taken out of one queue before it is the next one's turn.
const BATCH: usize = 64;
/// Most datagrams that are asked for in a look. One takes half a microsecond.
const ASKED: usize = 512;

/// The datagrams whose first fragments have come.
pub(super) trait Known {
    /// Tells whether the ports of a datagram are known.
    fn has(&self, datagram: &Tuple) -> bool;
}

/// The way back to XDP.
pub(super) trait Back {
    /// Sends a frame with what is in front of it.
    ///
    /// # Errors
    ///
    /// As the kernel gives them.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;
}

/// Mends what comes by any number of ports.
#[derive(Debug)]
pub(super) struct Worker<K, B> {
    store: Store,
    known: K,
    back: B,
    /// MAC of the end where mended frames come back: the stack takes no frames for another one.
    mac: [u8; 6],
    counts: Arc<Counts>,
    tally: Tally,
    received: Vec<Buffer>,
}

impl<K: Known, B: Back> Worker<K, B> {
    pub(super) fn new(
        limits: Limits,
        known: K,
        back: B,
        mac: [u8; 6],
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            store: Store::new(limits),
            known,
            back,
            mac,
            counts,
            tally: Tally::default(),
            received: Vec::new(),
        }
    }

    /// Takes a batch of frames out of a queue. Returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the queue works no more.
    pub(super) fn take<R: Rings>(&mut self, port: &mut Port<R>, now: u64) -> io::Result<usize> {
        let mut received = std::mem::take(&mut self.received);
        let taken = port.receive(&mut received, BATCH);
        for buffer in received.drain(..) {
            self.tally[Outcome::Taken as usize] += 1;
            self.judge(port.bytes(&buffer), now);
            port.release(buffer);
        }
        self.received = received;
        self.show();
        port.turn()?;
        Ok(taken)
    }

    /// Has those go back whose first fragments have come, and gives up what has waited for too long.
    pub(super) fn look(&mut self, now: u64) {
        for datagram in self.store.next_asked(ASKED) {
            if self.known.has(&datagram) {
                self.send_held(&datagram);
            }
        }
        for frame in self.store.expire(now, &mut self.tally) {
            self.send(&frame, Outcome::PassedOn);
        }
        self.show();
    }

    /// Gives up what is held.
    pub(super) fn end(&mut self) {
        for frame in self.store.clear(&mut self.tally) {
            self.send(&frame, Outcome::PassedOn);
        }
        self.show();
    }

    /// Tells whether nothing is held.
    pub(super) fn is_idle(&self) -> bool {
        self.store.is_empty()
    }

    #[cfg(test)]
    pub(super) const fn parts(&mut self) -> (&mut K, &mut B) {
        (&mut self.known, &mut self.back)
    }

    fn judge(&mut self, bytes: &[u8], now: u64) {
        let Some((carried, fragment, frame)) = self.read(bytes) else {
            self.tally[Outcome::Unreadable as usize] += 1;
            return;
        };
        if self.known.has(&fragment.datagram) {
            self.send_held(&fragment.datagram);
            self.send(&frame, Outcome::Mended);
            return;
        }
        let may_be_kernels = carried == PuntReason::NodeFragment;
        let passed_on = self
            .store
            .hold(now, &fragment, may_be_kernels, frame, &mut self.tally);
        for frame in passed_on {
            self.send(&frame, Outcome::PassedOn);
        }
    }

    /// Reads a punted frame, and makes it as it goes back.
    fn read(&self, bytes: &[u8]) -> Option<(PuntReason, LaterFragment, Vec<u8>)> {
        let (carried, bytes) = Carried::read_from_prefix(bytes).ok()?;
        let frame = HostFrame::with_headroom(bytes, 0);
        let link = parse::any_link(&frame).ok()?;
        let fragment = LaterFragment::of(&frame)?;
        let back = carried.back_to(self.mac);
        // Without VLAN tags: what goes on to the stack has come by the device above those.
        let mut whole = Vec::with_capacity(Carried::LENGTH + bytes.len());
        whole.extend_from_slice(back.as_bytes());
        whole.extend_from_slice(&self.mac);
        whole.extend_from_slice(bytes.get(6..12)?);
        whole.extend_from_slice(&link.ether_type.to_be_bytes());
        whole.extend_from_slice(bytes.get(link.l3..)?);
        Some((carried.reason()?, fragment, whole))
    }

    fn send_held(&mut self, datagram: &Tuple) {
        for frame in self.store.release(datagram) {
            self.send(&frame, Outcome::Mended);
        }
    }

    fn send(&mut self, frame: &[u8], outcome: Outcome) {
        let outcome = match self.back.send(frame) {
            Ok(()) => outcome,
            Err(_) => Outcome::Unsent,
        };
        self.tally[outcome as usize] += 1;
    }

    fn show(&mut self) {
        self.counts.add(&mut self.tally);
        self.counts
            .show_held(self.store.packets(), self.store.bytes());
    }
}
