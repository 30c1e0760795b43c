//! Judges punted frames: holds them, cuts them, has them go back or leave, or gives them up.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    sync::Arc,
};

use xdp_prog::{
    abi::{AddressKey, Tuple},
    frame::HostFrame,
    parse,
    punt::{LaterFragment, PuntHeader},
    reason::PuntReason,
    wire::ethernet::{Ethernet, VlanTag},
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{
    Counts, Limits, Outcome, carry::Finished, counts::Tally, cut::Pieces, store::Store,
    waiting::Waiting,
};
use crate::port::{Buffer, Port, Rings};

/// Most frames that are taken out of one queue before it is the next one's turn.
const BATCH: usize = 64;
/// Most datagrams that are asked for in a look. One takes half a microsecond.
const ASKED: usize = 512;

/// What the tables know by now.
pub(super) trait Known {
    /// Tells whether the ports of a datagram are known: its first fragment has come.
    fn has(&self, datagram: &Tuple) -> bool;
    /// Returns the node of the backend with this id if no next hop to it is known.
    fn unresolved(&self, backend: u32) -> Option<AddressKey>;
}

/// The way back to XDP.
pub(crate) trait Back {
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
    limits: Limits,
    store: Store,
    waiting: Waiting,
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
    /// Frames for devices that take none from XDP.
    finished: Finished,
    /// Packets on their way out of such devices.
    leaving: usize,
}

/// What became of finished frames in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) carried: u64,
    /// Those for whose device there is no socket.
    pub(super) not_carried: u64,
    /// Those for which there was no room.
    pub(super) full: u64,
    /// Number of those that have not left yet.
    pub(super) leaving: usize,
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
            limits,
            store: Store::new(limits),
            waiting: Waiting::new(limits),
            known,
            back,
            mac,
            counts,
            tally: Tally::default(),
            received: Vec::new(),
            identification: random(),
            piece: Vec::new(),
            finished: Finished::default(),
            leaving: 0,
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

    /// Sends back what is held and may go on by now: fragments whose ports are known, and packets whose next hops are.
    /// Gives up what was held for too long.
    pub(super) fn release_and_expire(&mut self, now: u64) {
        self.send_resolved();
        self.waiting.expire(now, &mut self.tally);
        self.share_memory();
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
        self.waiting.clear(&mut self.tally);
        for frame in self.store.clear(&mut self.tally) {
            self.send(&frame, Outcome::PassedOn);
        }
        self.show();
    }

    /// Returns the finished frames of the batches since the last call. The caller says by [`Self::note_carried`] what
    /// became of them, and gives their memory back.
    pub(super) fn take_finished(&mut self) -> Finished {
        std::mem::take(&mut self.finished)
    }

    /// Counts what became of finished frames, now and in earlier turns.
    pub(super) fn note_carried(&mut self, mut frames: Finished, turn: Carried) {
        frames.clear();
        self.finished = frames;
        self.tally[Outcome::Carried as usize] += turn.carried;
        self.tally[Outcome::NotCarried as usize] += turn.not_carried;
        self.tally[Outcome::CarryFull as usize] += turn.full;
        self.leaving = turn.leaving;
        self.show();
    }

    /// Tells whether nothing is held or on its way out.
    pub(super) fn is_idle(&self) -> bool {
        self.store.is_empty() && self.waiting.packets() == 0 && self.leaving == 0
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
            PuntReason::NextHop => self.wait_for_next_hop(&punted, now),
            PuntReason::Carry => self.finished.push(punted.header.leaves_by(), punted.frame),
        }
    }

    /// Has a packet go back if its next hop is known, and holds it otherwise.
    fn wait_for_next_hop(&mut self, punted: &Punted<'_>, now: u64) {
        let backend = punted.header.backend();
        let Some(node) = self.known.unresolved(backend) else {
            // Not before those that have waited.
            self.send_resolved();
            self.send(&punted.back(), Outcome::Mended);
            return;
        };
        if !self.waiting.has_room(&node, punted.length_back()) {
            self.tally[Outcome::NextHopFull as usize] += 1;
            return;
        }
        self.waiting.hold(now, node, backend, punted.back());
        self.share_memory();
    }

    /// Has a fragment go back if its ports are known, and holds it otherwise.
    fn wait(&mut self, punted: &Punted<'_>, may_be_for_kernel: bool, now: u64) {
        let frame = HostFrame::with_headroom(punted.frame, 0);
        let Some(fragment) = LaterFragment::of(&frame) else {
            self.tally[Outcome::Unreadable as usize] += 1;
            return;
        };
        let frame = punted.back();
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
        self.piece.extend_from_slice(punted.header_back.as_bytes());
        self.piece.extend_from_slice(punted.link);
        let front = self.piece.len();
        while pieces.write_next(&mut self.piece) {
            if self.back.send(&self.piece).is_err() {
                return Outcome::Unsent;
            }
            self.piece.truncate(front);
        }
        Outcome::Cut
    }

    fn send_resolved(&mut self) {
        let known = &self.known;
        for frame in self.waiting.release(|backend| known.unresolved(backend)) {
            self.send(&frame, Outcome::Mended);
        }
    }

    /// Leaves the memory to fragments that no packet takes which waits for its next hop.
    fn share_memory(&mut self) {
        let room = self.limits.bytes - self.waiting.bytes();
        for frame in self.store.set_room(room, &mut self.tally) {
            self.send(&frame, Outcome::PassedOn);
        }
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
        self.counts.show_held(
            self.store.packets() + self.waiting.packets() + self.leaving,
            self.store.bytes() + self.waiting.bytes(),
        );
    }
}

/// A frame as it was punted.
struct Punted<'b> {
    header: PuntHeader,
    /// What goes in front of the frame on its way back.
    header_back: PuntHeader,
    reason: PuntReason,
    frame: &'b [u8],
    /// The frame's Ethernet header and VLAN tags.
    link: &'b [u8],
    /// The packet behind them.
    packet: &'b [u8],
}

impl<'b> Punted<'b> {
    /// Reads a frame with what is in front of it. It goes back to the end of the pair with this MAC.
    fn read(bytes: &'b [u8], mac: [u8; 6]) -> Option<Self> {
        /// Length of the longest link header that is followed.
        const LINK: usize = Ethernet::LENGTH + parse::MAX_VLAN_TAGS * VlanTag::LENGTH;
        let (header, frame) = PuntHeader::ref_from_prefix(bytes).ok()?;
        let begin = HostFrame::with_headroom(frame.get(..LINK).unwrap_or(frame), 0);
        let link = parse::any_link(&begin).ok()?;
        let (link, packet) = frame.split_at_checked(link.l3)?;
        Some(Self {
            header: *header,
            header_back: header.back_to(mac),
            reason: header.reason()?,
            frame,
            link,
            packet,
        })
    }

    /// Returns the length of the frame as it goes back.
    const fn length_back(&self) -> usize {
        PuntHeader::LENGTH + self.frame.len()
    }

    /// Returns the frame as it goes back.
    fn back(&self) -> Vec<u8> {
        [self.header_back.as_bytes(), self.frame].concat()
    }
}

/// Returns a random number to begin with, so that machines seldom share identifications.
#[expect(clippy::cast_possible_truncation, reason = "any number")]
fn random() -> u16 {
    RandomState::new().hash_one(()) as u16
}

#[cfg(test)]
mod tests;
