//! The kernel's rings, by `xsk-rs`; no other module calls it.
//!
//! libxdp loads no program here: who opens a port puts its socket into the XSKMAP of a program of its own, at the
//! number of the queue. The mode in which frames come is the kernel's choice, and is read back.

mod error;
mod socket;

use std::{
    ffi::CString,
    io,
    num::NonZeroU32,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
    slice,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, FdFlags, fcntl_setfd},
    net::{RecvFlags, SendFlags, recv, send},
};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem, config::Interface};

pub use self::error::{ModeError, OpenError};
use self::socket::{cause, socket_config, umem_config};
pub use super::open::Copying;
use super::{Buffer, Losses, Port, Rings, open::open, rings::whole_frames};
use crate::facts::{self, XdpMode};

/// `XDP_PKT_CONTD`: the frame goes on in the next descriptor.
const CONTINUES: u32 = 1;

/// What a port is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of buffers.
    pub buffers: u32,
    /// Size of a buffer in bytes, 2048 or 4096, of which the kernel keeps 256 in front.
    pub buffer_size: u32,
    /// Number of buffers that are never used for what arrives.
    pub reserve: u32,
    /// Descriptors of the RX, the TX and the completion ring, a power of two. The fill ring has twice as many.
    pub ring: u32,
    /// Whether frames are copied.
    pub copying: Copying,
    /// Whether frames larger than a buffer come, in several (Linux 6.6). The XDP program must be one for such frames.
    pub several_buffers: bool,
    /// How long a queue is waited for that is in use.
    pub patience: Duration,
}

impl Default for Options {
    /// 8 MiB in 4096 buffers of which half are for what arrives, rings of 1024, copied frames of one buffer, 2 s.
    fn default() -> Self {
        Self {
            buffers: 4096,
            buffer_size: 2048,
            reserve: 2048,
            ring: 1024,
            copying: Copying::Always,
            several_buffers: false,
            patience: Duration::from_secs(2),
        }
    }
}

/// The way by which frames come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// From the driver, which writes them to the port's memory.
    NativeZeroCopy,
    /// From the driver, copied once.
    NativeCopy,
    /// From the stack, copied once.
    GenericCopy,
    /// Not at all: no XDP program is on the interface.
    None,
}

/// The rings of one queue of an interface.
#[derive(Debug)]
pub struct Xsk {
    /// Tells its buffers from those of other rings.
    id: u32,
    interface: String,
    umem: Umem,
    fill: FillQueue,
    rx: RxQueue,
    tx: TxQueue,
    completion: CompQueue,
    /// Each buffer when it is empty.
    empty: Vec<FrameDesc>,
    /// Each buffer as it is.
    descriptors: Vec<FrameDesc>,
    buffer_size: usize,
    /// Descriptors on their way to or from a ring.
    passing: Vec<FrameDesc>,
}

impl Port<Xsk> {
    /// Opens a port on a queue of an interface of this network namespace.
    ///
    /// # Errors
    ///
    /// Each error names the interface, the queue, the cause and the remedy.
    pub fn open(interface: &str, queue: u32, options: &Options) -> Result<Self, OpenError> {
        let bind = |copy| Xsk::bind(interface, queue, options, copy);
        let rings = open(options.copying, options.patience, bind)
            .map_err(|source| OpenError::new(interface, queue, options, source))?;
        Ok(Self::new(rings, options.reserve as usize))
    }

    /// Opens a small port on a queue, and closes it again. Nothing comes by it, because no program redirects there.
    ///
    /// # Errors
    ///
    /// The reason why no port can be opened, as [`Self::open`] gives it.
    pub fn try_open(interface: &str, queue: u32) -> Result<(), OpenError> {
        let options = Options {
            buffers: 16,
            reserve: 8,
            ring: 8,
            patience: Duration::ZERO,
            ..Options::default()
        };
        Self::open(interface, queue, &options).map(drop)
    }

    /// Reads the way by which frames come from the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the interface is gone, or if the kernel does not tell.
    pub fn mode(&self) -> Result<Mode, ModeError> {
        let device = facts::interface(&self.rings().interface)?;
        Ok(if socket::is_zero_copy(self.as_fd())? {
            Mode::NativeZeroCopy
        } else if device.program(XdpMode::Native).is_some() {
            Mode::NativeCopy
        } else if device.program(XdpMode::Generic).is_some() {
            Mode::GenericCopy
        } else {
            Mode::None
        })
    }
}

impl AsFd for Port<Xsk> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings().as_fd()
    }
}

impl Xsk {
    fn bind(interface: &str, queue: u32, options: &Options, copy: bool) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let count = NonZeroU32::new(options.buffers).ok_or(Errno::INVAL)?;
        let (umem, empty) =
            Umem::new(umem_config(options)?, count, false).map_err(|error| cause(&error))?;
        let name = Interface::new(CString::new(interface)?);
        let config = socket_config(options, copy)?;
        // SAFETY: the memory is this socket's alone, so nobody else shares the queue with it.
        let (tx, rx, rings) =
            unsafe { Socket::new(config, &umem, &name, queue) }.map_err(|error| cause(&error))?;
        let (fill, completion) = rings.ok_or_else(|| io::Error::other("no fill ring"))?;
        let xsk = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            interface: interface.to_owned(),
            umem,
            fill,
            rx,
            tx,
            completion,
            descriptors: empty.clone(),
            empty,
            buffer_size: options.buffer_size as usize,
            passing: Vec::new(),
        };
        // A program that this one starts must not keep the queue.
        fcntl_setfd(xsk.as_fd(), FdFlags::CLOEXEC)?;
        socket::raise_budget(xsk.as_fd(), options.ring)?;
        Ok(xsk)
    }

    /// Returns the place of a buffer, which nobody else has.
    fn place(&self, buffer: &Buffer) -> usize {
        assert_eq!(buffer.rings, self.id, "a buffer of another port");
        buffer.index as usize
    }

    /// Moves what the kernel has given back to the end of a list.
    fn take_over(&mut self, into: &mut Vec<Buffer>) {
        for descriptor in self.passing.drain(..) {
            let place = descriptor.addr() / self.buffer_size;
            self.descriptors[place] = descriptor;
            into.push(Buffer {
                rings: self.id,
                index: small(place),
                length: small(descriptor.lengths().data()),
                continues: descriptor.has_more_frames(),
            });
        }
    }
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue keeps the socket open for as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }
}

impl Rings for Xsk {
    fn buffers(&mut self) -> Vec<Buffer> {
        self.passing.extend_from_slice(&self.empty);
        let mut all = Vec::with_capacity(self.empty.len());
        self.take_over(&mut all);
        all
    }

    fn fill(&mut self, from: &mut Vec<Buffer>) {
        let room = self.fill.nb_free_exact() as usize;
        for buffer in from.drain(from.len().saturating_sub(room)..) {
            let place = self.place(&buffer);
            self.passing.push(self.empty[place]);
        }
        // SAFETY: whoever holds a buffer may give it away, and these have been given.
        let filled = unsafe { self.fill.produce(&self.passing) };
        debug_assert_eq!(filled, self.passing.len());
        self.passing.clear();
    }

    fn receive(&mut self, into: &mut Vec<Buffer>, limit: usize) {
        let ready = self.rx.nb_avail(small(limit)) as usize;
        self.passing
            .resize_with(ready.min(limit), FrameDesc::default);
        // SAFETY: the descriptors become those of this memory.
        let received = unsafe { self.rx.consume(&mut self.passing) };
        self.passing.truncate(received);
        self.take_over(into);
    }

    fn transmit(&mut self, from: &mut Vec<Buffer>) {
        let room = self.tx.nb_free_exact() as usize;
        for buffer in from.drain(..whole_frames(from, room)) {
            let place = self.place(&buffer);
            let mut descriptor = self.descriptors[place];
            descriptor.set_options(u32::from(buffer.continues) * CONTINUES);
            self.passing.push(descriptor);
        }
        // SAFETY: whoever holds a buffer may give it away, and these have been given.
        let sent = unsafe { self.tx.produce(&self.passing) };
        debug_assert_eq!(sent, self.passing.len());
        self.passing.clear();
    }

    fn complete(&mut self, into: &mut Vec<Buffer>) {
        let ready = self.completion.nb_avail_exact() as usize;
        self.passing.resize_with(ready, FrameDesc::default);
        // SAFETY: the descriptors become those of this memory.
        let completed = unsafe { self.completion.consume(&mut self.passing) };
        self.passing.truncate(completed);
        self.take_over(into);
    }

    fn kick(&mut self) -> io::Result<()> {
        if self.tx.needs_wakeup() {
            send(self.as_fd(), &[], SendFlags::DONTWAIT)?;
        }
        Ok(())
    }

    fn wake(&mut self) -> io::Result<()> {
        if !self.fill.needs_wakeup() {
            return Ok(());
        }
        let nothing: &mut [u8] = &mut [];
        match recv(self.as_fd(), nothing, RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NETDOWN | Errno::NOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let fd = self.as_fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn waiting(&mut self) -> (usize, usize) {
        let received = self.rx.nb_avail_exact() as usize;
        (received, self.completion.nb_avail_exact() as usize)
    }

    fn bytes(&self, buffer: &Buffer) -> &[u8] {
        let descriptor = &self.descriptors[self.place(buffer)];
        // SAFETY: the descriptor is of this memory, and the buffer is held, so that neither the kernel nor another
        // reference writes there.
        unsafe { self.umem.data(descriptor) }.contents()
    }

    fn bytes_mut(&mut self, buffer: &mut Buffer) -> &mut [u8] {
        let place = self.place(buffer);
        // SAFETY: the descriptor is of this memory, and the buffer is held, so that neither the kernel nor another
        // reference reads or writes there.
        let mut data = unsafe { self.umem.data_mut(&mut self.descriptors[place]) };
        let (start, length) = (data.contents_mut().as_mut_ptr(), data.contents().len());
        // SAFETY: the bytes are those of `data`, which lends them for its own life alone. They live as long as the
        // memory, and both the rings and the buffer are borrowed for as long as they are.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    fn resize(&mut self, buffer: &mut Buffer, length: usize) -> bool {
        let place = self.place(buffer);
        // SAFETY: as in `bytes_mut`.
        let mut data = unsafe { self.umem.data_mut(&mut self.descriptors[place]) };
        let mut cursor = data.cursor();
        if length > cursor.buf_len() {
            return false;
        }
        cursor.set_pos(length);
        buffer.length = small(length);
        true
    }

    fn clear(&mut self, buffer: &mut Buffer) {
        let place = self.place(buffer);
        self.descriptors[place] = self.empty[place];
        buffer.length = 0;
        buffer.continues = false;
    }

    fn losses(&self) -> io::Result<Losses> {
        let statistics = self.rx.fd().xdp_statistics()?;
        let no_buffer = statistics.rx_fill_ring_empty_descs();
        Ok(Losses {
            no_buffer,
            ring_full: statistics.rx_ring_full(),
            // Frames for which there was no buffer are in both numbers.
            too_large: statistics.rx_dropped().saturating_sub(no_buffer),
            invalid: statistics.tx_invalid_descs(),
        })
    }
}

/// Places and lengths are below the size of the memory, which is told in 32 bits.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
