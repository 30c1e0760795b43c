//! Judges punted frames: holds them, cuts them, has them go back, or gives them up.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
};

use xdp_prog::{
    abi::Tuple,
    frame::HostFrame,
    parse,
    punt::{LaterFragment, PuntHeader},
    reason::PuntReason,
    wire::ethernet::{Ethernet, VlanTag},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Counts, Limits, Outcome, counts::Tally, cut::Pieces, store::Store};
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
    /// The last one that was given to a packet without any.
    identification: u16,
    /// The piece that is being sent.
    piece: Vec<u8>,
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
            identification: random(),
            piece: Vec::new(),
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

    /// Sends back held fragments whose ports are known by now, and gives up those that were held for too long.
    pub(super) fn release_and_expire(&mut self, now: u64) {
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
        let Some(punted) = Punted::read(bytes, self.mac) else {
            self.tally[Outcome::Unreadable as usize] += 1;
            return;
        };
        match punted.reason {
            PuntReason::Fragment => self.wait(&punted, false, now),
            PuntReason::NodeFragment => self.wait(&punted, true, now),
            PuntReason::TooBig => {
                let outcome = self.cut(&punted);
                self.tally[outcome as usize] += 1;
            }
        }
    }

    /// Has a fragment go back if its ports are known, and holds it otherwise.
    fn wait(&mut self, punted: &Punted<'_>, may_be_for_kernel: bool, now: u64) {
        let frame = HostFrame::with_headroom(punted.frame, 0);
        let Some(fragment) = LaterFragment::of(&frame) else {
            self.tally[Outcome::Unreadable as usize] += 1;
            return;
        };
        let frame = [&punted.front[..], punted.packet].concat();
        if self.known.has(&fragment.datagram) {
            self.send_held(&fragment.datagram);
            self.send(&frame, Outcome::Mended);
            return;
        }
        let passed_on = self
            .store
            .hold(now, &fragment, may_be_for_kernel, frame, &mut self.tally);
        for frame in passed_on {
            self.send(&frame, Outcome::PassedOn);
        }
    }

    /// Cuts a packet that is too big, and has the pieces go back. Returns what has become of it.
    fn cut(&mut self, punted: &Punted<'_>) -> Outcome {
        let size = punted.header.size().into();
        // Zero is no identification.
        self.identification = self.identification.checked_add(1).unwrap_or(1);
        let mut pieces = match Pieces::of(punted.packet, size, self.identification) {
            Ok(pieces) => pieces,
            Err(outcome) => return outcome,
        };
        self.piece.clear();
        self.piece.extend_from_slice(&punted.front);
        while pieces.write_next(&mut self.piece) {
            if self.back.send(&self.piece).is_err() {
                return Outcome::Unsent;
            }
            self.piece.truncate(FRONT);
        }
        Outcome::Cut
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

/// Length of what is in front of a packet on its way back: what is for the program, and an Ethernet header.
const FRONT: usize = PuntHeader::LENGTH + Ethernet::LENGTH;

/// A frame as it was punted.
struct Punted<'b> {
    header: PuntHeader,
    reason: PuntReason,
    frame: &'b [u8],
    /// The packet in the frame.
    packet: &'b [u8],
    /// What goes in front of that on its way back.
    front: [u8; FRONT],
}

impl<'b> Punted<'b> {
    /// Reads a frame with what is in front of it. It goes back to the end of the pair with this MAC.
    fn read(bytes: &'b [u8], mac: [u8; 6]) -> Option<Self> {
        /// Length of the longest link header that is followed.
        const LINK: usize = Ethernet::LENGTH + parse::MAX_VLAN_TAGS * VlanTag::LENGTH;
        let (header, frame) = PuntHeader::ref_from_prefix(bytes).ok()?;
        let begin = HostFrame::with_headroom(frame.get(..LINK).unwrap_or(frame), 0);
        let link = parse::any_link(&begin).ok()?;
        let mut front = [0; FRONT];
        let (for_program, ethernet) = front.split_at_mut(PuntHeader::LENGTH);
        for_program.copy_from_slice(header.back_to(mac).as_bytes());
        // Without VLAN tags: what goes on to the stack has come by the device above those.
        ethernet[..6].copy_from_slice(&mac);
        ethernet[6..12].copy_from_slice(frame.get(6..12)?);
        ethernet[12..].copy_from_slice(&link.ether_type.to_be_bytes());
        Some(Self {
            header: *header,
            reason: header.reason()?,
            frame,
            packet: frame.get(link.l3..)?,
            front,
        })
    }
}

/// Returns a random number to begin with, so that machines seldom share identifications.
#[expect(clippy::cast_possible_truncation, reason = "any number")]
fn random() -> u16 {
    RandomState::new().hash_one(()) as u16
}

#[cfg(test)]
mod tests;
