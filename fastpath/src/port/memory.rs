//! Rings in memory, with a kernel that is as nasty as the real one: it takes 32 frames a call, refuses at times,
//! completes late, writes frames to other places of a buffer than the usual, and cuts large ones into several.

use std::{collections::VecDeque, io, mem, time::Duration};

use super::{Buffer, FRAMES_PER_KICK, Losses, Rings, rings::whole_frames};

/// Size of a buffer in bytes.
pub(super) const SIZE: usize = 256;
/// Where a frame usually begins in its buffer.
pub(crate) const START: usize = 64;

/// The place of a frame's part in a buffer.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: u32,
    start: usize,
    length: usize,
    continues: bool,
}

/// Rings in memory.
#[derive(Debug)]
pub(crate) struct MemoryRings {
    bytes: Vec<u8>,
    /// Each buffer's part of a frame while it is held.
    parts: Vec<Part>,
    ring: usize,
    fill: VecDeque<u32>,
    rx: VecDeque<Part>,
    tx: VecDeque<Part>,
    /// Sent, and not yet told so.
    late: VecDeque<u32>,
    completion: VecDeque<u32>,
    /// Bytes of a frame whose last part is still in the TX ring.
    unfinished: Vec<u8>,
    /// Every frame that left.
    pub(crate) sent: Vec<Vec<u8>>,
    /// Errors of the next calls, in turn.
    pub(crate) refusals: VecDeque<i32>,
    losses: Losses,
}

impl MemoryRings {
    pub(crate) fn new(buffers: usize, ring: usize) -> Self {
        Self {
            bytes: vec![0; buffers * SIZE],
            parts: (0..buffers).map(empty).collect(),
            ring,
            fill: VecDeque::new(),
            rx: VecDeque::new(),
            tx: VecDeque::new(),
            late: VecDeque::new(),
            completion: VecDeque::new(),
            unfinished: Vec::new(),
            sent: Vec::new(),
            refusals: VecDeque::new(),
            losses: Losses::default(),
        }
    }

    /// Has a frame arrive that begins at this place of its buffers. Returns whether it is in the RX ring: whole, or
    /// not at all.
    pub(crate) fn arrive(&mut self, frame: &[u8], start: usize) -> bool {
        let parts = frame.len().div_ceil(SIZE - start);
        if parts > self.fill.len() {
            self.losses.no_buffer += 1;
            return false;
        }
        if parts > self.ring - self.rx.len() {
            self.losses.ring_full += 1;
            return false;
        }
        for (number, bytes) in frame.chunks(SIZE - start).enumerate() {
            let index = self.fill.pop_front().unwrap();
            let at = index as usize * SIZE + start;
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            self.rx.push_back(Part {
                index,
                start,
                length: bytes.len(),
                continues: number + 1 < parts,
            });
        }
        true
    }

    /// Has the kernel tell of at most this many frames that they are sent.
    pub(crate) fn catch_up(&mut self, buffers: usize) {
        let told = self.late.drain(..buffers.min(self.late.len()));
        self.completion.extend(told);
    }

    fn part(&self, buffer: &Buffer) -> Part {
        assert_eq!(buffer.rings, 0);
        self.parts[buffer.index as usize]
    }

    fn token(&self, index: u32) -> Buffer {
        let part = self.parts[index as usize];
        Buffer {
            rings: 0,
            index,
            length: part.length.try_into().unwrap(),
            continues: part.continues,
        }
    }

    fn leave(&mut self, part: Part) {
        let at = part.index as usize * SIZE + part.start;
        self.unfinished
            .extend_from_slice(&self.bytes[at..at + part.length]);
        if !part.continues {
            self.sent.push(mem::take(&mut self.unfinished));
        }
        // Whoever reads the buffer before it comes back sees that.
        self.bytes[at..at + part.length].fill(0xdd);
        self.late.push_back(part.index);
    }
}

fn empty(index: usize) -> Part {
    Part {
        index: index.try_into().unwrap(),
        start: START,
        length: 0,
        continues: false,
    }
}

impl Rings for MemoryRings {
    fn buffers(&mut self) -> Vec<Buffer> {
        let all = self.parts.iter().map(|part| self.token(part.index));
        all.collect()
    }

    fn fill(&mut self, from: &mut Vec<Buffer>) {
        let room = 2 * self.ring - self.fill.len();
        for buffer in from.drain(from.len().saturating_sub(room)..) {
            self.fill.push_back(buffer.index);
        }
    }

    fn receive(&mut self, into: &mut Vec<Buffer>, limit: usize) {
        for part in self
            .rx
            .drain(..limit.min(self.rx.len()))
            .collect::<Vec<_>>()
        {
            self.parts[part.index as usize] = part;
            into.push(self.token(part.index));
        }
    }

    fn transmit(&mut self, from: &mut Vec<Buffer>) {
        let room = self.ring - self.tx.len();
        for buffer in from.drain(..whole_frames(from, room)) {
            self.tx.push_back(Part {
                continues: buffer.continues,
                ..self.part(&buffer)
            });
        }
    }

    fn complete(&mut self, into: &mut Vec<Buffer>) {
        for index in mem::take(&mut self.completion) {
            into.push(self.token(index));
        }
    }

    fn kick(&mut self) -> io::Result<()> {
        if let Some(error) = self.refusals.pop_front() {
            return Err(io::Error::from_raw_os_error(error));
        }
        for _ in 0..FRAMES_PER_KICK {
            // The kernel takes a place in the completion ring before it takes a frame.
            if self.late.len() + self.completion.len() == self.ring {
                return Ok(());
            }
            let Some(part) = self.tx.pop_front() else {
                return Ok(());
            };
            self.leave(part);
        }
        if self.tx.is_empty() {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    fn wake(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> io::Result<bool> {
        Ok(!self.rx.is_empty())
    }

    fn waiting(&mut self) -> (usize, usize) {
        (self.rx.len(), self.completion.len())
    }

    fn bytes(&self, buffer: &Buffer) -> &[u8] {
        let part = self.part(buffer);
        let at = part.index as usize * SIZE + part.start;
        &self.bytes[at..at + part.length]
    }

    fn bytes_mut(&mut self, buffer: &mut Buffer) -> &mut [u8] {
        let part = self.part(buffer);
        let at = part.index as usize * SIZE + part.start;
        &mut self.bytes[at..at + part.length]
    }

    fn resize(&mut self, buffer: &mut Buffer, length: usize) -> bool {
        let part = &mut self.parts[buffer.index as usize];
        if part.start + length > SIZE {
            return false;
        }
        part.length = length;
        buffer.length = length.try_into().unwrap();
        true
    }

    fn clear(&mut self, buffer: &mut Buffer) {
        self.parts[buffer.index as usize] = empty(buffer.index as usize);
        *buffer = self.token(buffer.index);
    }

    fn losses(&self) -> io::Result<Losses> {
        Ok(self.losses)
    }
}
