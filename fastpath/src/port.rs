//! Ports: frames from and to one queue of an interface, past the kernel's stack (AF_XDP).
//!
//! A port owns memory that is divided into buffers of one size. A [`Buffer`] is the right to touch one of them: it
//! can be moved and not copied, and who gives it away cannot touch the memory again. The kernel owns the buffers of
//! the fill ring, where frames that arrive are written, and of the TX ring, until they come back.
//!
//! ```text
//!            fill                  receive                 send                  complete
//! free ------------> fill ring ------------> held by the ------------> TX ring ------------> free
//!   \                (kernel)     RX ring    port's owner              (kernel)  completion   ^
//!    \                                        ^        \                           ring      /
//!     `----------------- allocate ------------'         `------------- release -------------'
//! ```
//!
//! [`Rings`] are the four rings and the memory. [`xsk`] has those of the kernel; the tests have some in memory whose
//! kernel takes 32 frames a kick, refuses at times, and completes late. [`Port`] is what is the same for both: which
//! buffers are where, when the kernel is kicked, and that none is lost.
//!
//! A port belongs to one thread. Nothing in it is locked or shared.

#[cfg(test)]
pub(crate) mod memory;
mod open;
mod rings;
#[cfg(test)]
mod tests;
#[cfg(feature = "xsk")]
pub mod xsk;

use std::{io, time::Duration};

pub use self::rings::{Buffer, Losses, Rings};

/// Frames that the kernel takes from the TX ring in one call at the least where it copies them (`TX_BATCH_SIZE` of
/// net/xdp/xsk.c).
const FRAMES_PER_KICK: usize = 32;

/// Where a port's buffers are. The sum of all is the number of its buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Given to nobody.
    pub free: usize,
    /// In the fill ring, or being written by the kernel.
    pub fill: usize,
    /// In the RX ring.
    pub rx: usize,
    /// In the TX ring, or being read by the kernel.
    pub tx: usize,
    /// In the completion ring.
    pub completion: usize,
    /// Given to the port's owner.
    pub held: usize,
}

impl Balance {
    /// Returns the number of buffers.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.free + self.fill + self.rx + self.tx + self.completion + self.held
    }
}

/// Calls to the kernel for frames to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kicks {
    /// All calls.
    pub made: u64,
    /// Those after which frames had to wait for another one.
    pub refused: u64,
}

/// Sends and receives frames of one queue.
#[derive(Debug)]
pub struct Port<R> {
    rings: R,
    free: Vec<Buffer>,
    reserve: usize,
    total: usize,
    /// Buffers that are on their way through fill ring and RX ring.
    receiving: usize,
    /// Buffers that are on their way through TX ring and completion ring.
    sending: usize,
    held: usize,
    kicks: Kicks,
}

impl<R: Rings> Port<R> {
    /// Starts to receive. `reserve` buffers are kept out of the fill ring for [`Port::allocate`].
    pub fn new(mut rings: R, reserve: usize) -> Self {
        let free = rings.buffers();
        let mut port = Self {
            total: free.len(),
            rings,
            free,
            reserve,
            receiving: 0,
            sending: 0,
            held: 0,
            kicks: Kicks::default(),
        };
        port.refill();
        port
    }

    /// Appends at most `limit` buffers with what has arrived to a list, in order. Returns their number.
    ///
    /// A frame of several buffers may be cut by the limit; the rest of it comes next.
    pub fn receive(&mut self, into: &mut Vec<Buffer>, limit: usize) -> usize {
        let before = into.len();
        self.rings.receive(into, limit);
        let received = into.len() - before;
        self.receiving -= received;
        self.held += received;
        received
    }

    /// Returns an empty buffer for a frame of the caller's own; `None` if all are in use.
    pub fn allocate(&mut self) -> Option<Buffer> {
        let mut buffer = self.free.pop()?;
        self.rings.clear(&mut buffer);
        self.held += 1;
        Some(buffer)
    }

    /// Returns a buffer's part of its frame.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is of another port.
    #[must_use]
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        self.rings.bytes(buffer)
    }

    /// Returns a buffer's part of its frame, to be changed.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is of another port.
    pub fn bytes_mut(&mut self, buffer: &mut Buffer) -> &mut [u8] {
        self.rings.bytes_mut(buffer)
    }

    /// Has the buffer's part of a frame end after `length` bytes, of which those that are added have any contents.
    /// Returns whether the buffer has room for that; it stays as it is otherwise.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is of another port.
    #[must_use]
    pub fn resize(&mut self, buffer: &mut Buffer, length: usize) -> bool {
        self.rings.resize(buffer, length)
    }

    /// Moves frames from the front of a list to the TX ring, and returns the number of buffers. Those for which there
    /// is no room stay in the list, and so does a frame whose last buffers are not in it. [`Port::turn`] has them
    /// sent.
    ///
    /// # Panics
    ///
    /// Panics if a buffer is of another port.
    pub fn send(&mut self, from: &mut Vec<Buffer>) -> usize {
        let before = from.len();
        self.rings.transmit(from);
        let sent = before - from.len();
        self.held -= sent;
        self.sending += sent;
        sent
    }

    /// Takes a buffer back without sending it.
    ///
    /// # Panics
    ///
    /// Panics if the buffer is of another port.
    pub fn release(&mut self, mut buffer: Buffer) {
        self.rings.clear(&mut buffer);
        self.held -= 1;
        self.free.push(buffer);
    }

    /// Does what is due between two batches: has frames sent, takes back the buffers of those that are, and gives
    /// buffers to the kernel for what arrives.
    ///
    /// It takes as many calls as the frames in the TX ring need at 32 a call, and no more: a device that is congested
    /// gets the rest in the next turn. So frames leave only for as long as turns are made.
    ///
    /// # Errors
    ///
    /// Fails if the device sends no frames for another reason than that it is busy or down.
    pub fn turn(&mut self) -> io::Result<()> {
        self.reap();
        self.kick()?;
        self.refill();
        self.rings.wake()?;
        if cfg!(debug_assertions) {
            let balance = self.balance();
            assert_eq!(balance.total(), self.total, "{balance:?}");
        }
        Ok(())
    }

    /// Waits until something can be received. Returns whether that is so.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot wait; never because of a signal.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        self.rings.wait(timeout)
    }

    /// Returns where the buffers are.
    pub fn balance(&mut self) -> Balance {
        let (rx, completion) = self.rings.waiting();
        debug_assert!(rx <= self.receiving && completion <= self.sending);
        Balance {
            free: self.free.len(),
            fill: self.receiving.saturating_sub(rx),
            rx,
            tx: self.sending.saturating_sub(completion),
            completion,
            held: self.held,
        }
    }

    /// Returns the number of buffers that were sent and have not come back yet.
    #[must_use]
    pub const fn in_transit(&self) -> usize {
        self.sending
    }

    /// Returns the frames that the kernel has lost.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not tell.
    pub fn losses(&self) -> io::Result<Losses> {
        self.rings.losses()
    }

    /// Returns the number of calls for frames to be sent.
    #[must_use]
    pub const fn kicks(&self) -> Kicks {
        self.kicks
    }

    /// Returns the rings, for what is theirs alone.
    #[must_use]
    pub const fn rings(&self) -> &R {
        &self.rings
    }

    #[cfg(test)]
    pub(crate) const fn rings_mut(&mut self) -> &mut R {
        &mut self.rings
    }

    fn reap(&mut self) {
        let before = self.free.len();
        self.rings.complete(&mut self.free);
        self.sending -= self.free.len() - before;
    }

    fn kick(&mut self) -> io::Result<()> {
        for _ in 0..self.sending.div_ceil(FRAMES_PER_KICK) {
            if self.sending == 0 {
                break;
            }
            self.kicks.made += 1;
            let refused = match self.rings.kick() {
                Ok(()) => false,
                Err(error) if is_passing(&error) => true,
                Err(error) => return Err(error),
            };
            self.kicks.refused += u64::from(refused);
            // Also makes room in the completion ring, without which the kernel sends nothing.
            self.reap();
            if !refused {
                break;
            }
        }
        Ok(())
    }

    fn refill(&mut self) {
        let spare = self.free.len().saturating_sub(self.reserve);
        if spare == 0 {
            return;
        }
        let mut reserved = self.free.split_off(spare);
        self.rings.fill(&mut self.free);
        self.receiving += spare - self.free.len();
        self.free.append(&mut reserved);
    }
}

/// Tells whether sending may go on later: the device is congested or down, or the kernel has no memory. A device that
/// has taken a frame and lost it, as a veth does whose other end has no room, is busy as well.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENETDOWN)
    )
}
