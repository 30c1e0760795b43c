//! The contract between a port and the rings of its queue.

use std::{io, time::Duration};

/// The right to read, write and give away one buffer of a port.
///
/// A buffer that is dropped is lost to its port until the port is closed, and [`Balance::held`](super::Balance::held) shows it.
#[derive(Debug)]
#[must_use = "a buffer that is neither sent nor released is lost to its port"]
pub struct Buffer {
    /// Which of all rings it belongs to.
    pub(super) rings: u32,
    pub(super) index: u32,
    pub(super) length: u32,
    pub(super) continues: bool,
}

impl Buffer {
    /// Returns the number of its bytes that belong to the frame.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length as usize
    }

    /// Tells whether the frame goes on in the next buffer, as jumbo frames do.
    #[must_use]
    pub const fn continues(&self) -> bool {
        self.continues
    }
}

/// The four rings of a queue, and the memory of its buffers.
///
/// # Panics
///
/// All methods that take a buffer panic if it is of other rings.
pub trait Rings {
    /// Returns all buffers. They belong to the caller, who calls this once.
    fn buffers(&mut self) -> Vec<Buffer>;

    /// Moves buffers from the end of a list to the fill ring, as many as have room there.
    fn fill(&mut self, from: &mut Vec<Buffer>);

    /// Moves at most `limit` buffers with what arrived to the end of a list, in order.
    fn receive(&mut self, into: &mut Vec<Buffer>, limit: usize);

    /// Moves whole frames from the front of a list to the TX ring, as many as have room there.
    fn transmit(&mut self, from: &mut Vec<Buffer>);

    /// Moves the buffers that the kernel has sent to the end of a list.
    fn complete(&mut self, into: &mut Vec<Buffer>);

    /// Has the kernel send what is in the TX ring, if it waits to be told.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when some frames have to wait for another call. Other kinds as the device gives them.
    fn kick(&mut self) -> io::Result<()>;

    /// Tells the kernel of buffers in the fill ring, if it waits to be told.
    ///
    /// # Errors
    ///
    /// As the device gives them.
    fn wake(&mut self) -> io::Result<()>;

    /// Waits until something can be received. Returns whether that is so.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot wait; never because of a signal.
    fn wait(&mut self, timeout: Duration) -> io::Result<bool>;

    /// Returns the number of buffers in the RX ring and in the completion ring.
    fn waiting(&mut self) -> (usize, usize);

    /// Returns a buffer's part of the frame.
    fn bytes(&self, buffer: &Buffer) -> &[u8];

    /// Returns a buffer's part of the frame, to be changed.
    fn bytes_mut(&mut self, buffer: &mut Buffer) -> &mut [u8];

    /// Has the buffer's part of a frame end after `length` bytes. What is added has any contents. Returns whether the
    /// buffer has room for that; it stays as it is otherwise.
    fn resize(&mut self, buffer: &mut Buffer, length: usize) -> bool;

    /// Empties a buffer: no bytes, at the place where frames usually begin, and no other buffer behind it.
    fn clear(&mut self, buffer: &mut Buffer);

    /// Returns the frames that the kernel had for this queue and has lost, since it was opened.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not tell.
    fn losses(&self) -> io::Result<Losses>;
}

/// Frames that did not arrive or leave although they were this queue's, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Arrived when the fill ring was empty: buffers came back too late.
    pub no_buffer: u64,
    /// Arrived when the RX ring was full: they were taken out too late.
    pub ring_full: u64,
    /// Arrived and fitted no buffer.
    pub too_large: u64,
    /// Not sent, for the descriptor was wrong: an error of this module.
    pub invalid: u64,
}

/// Returns the number of buffers, `room` at most, at the front of a list that are whole frames.
pub(super) fn whole_frames(buffers: &[Buffer], room: usize) -> usize {
    let fitting = &buffers[..room.min(buffers.len())];
    let last = fitting.iter().rposition(|buffer| !buffer.continues);
    last.map_or(0, |last| last + 1)
}
