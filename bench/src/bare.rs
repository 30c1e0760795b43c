//! The yardstick of ports and of the whole edge: `xsk-rs` in a loop that knows what it is for.

#[path = "../../fastpath/tests/support/sockets.rs"]
mod sockets;

use std::{
    fmt,
    num::NonZeroU32,
    os::fd::{AsRawFd, BorrowedFd},
};

use anyhow::{Context, Result, bail};
use lab::Link;
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue, Umem,
    config::{BindFlags, FrameSize, LibxdpFlags, SocketConfig, UmemConfig},
};

use self::sockets::Sockets;

/// Frames that are passed to the kernel at once.
pub const BATCH: usize = 64;
/// The frame that is sent.
pub const FRAME: [u8; 64] = [0x02; 64];

/// Leads the frames of an interface's queue 0 to a socket, while it exists.
pub struct Redirect {
    _sockets: Sockets,
}

impl fmt::Debug for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redirect").finish_non_exhaustive()
    }
}

impl Redirect {
    /// Attaches a program that redirects all frames to the socket.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it, or the interface has a program.
    pub fn attach(link: &Link<'_>, socket: impl AsRawFd) -> Result<Self> {
        let sockets = Sockets::of(socket)?;
        link.attach_xdp(&sockets.redirect(0))?;
        Ok(Self { _sockets: sockets })
    }
}

/// A socket of an interface's queue 0, or one to receive and another interface's to send, their memory, and what is done with
/// them.
#[derive(Debug)]
pub struct Bare {
    umem: Umem,
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    free: Vec<FrameDesc>,
    batch: [FrameDesc; BATCH],
}

impl Bare {
    /// Opens the socket, in copy mode.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the memory or the socket.
    pub fn open(interface: &str) -> Result<Self> {
        Self::between(interface, interface)
    }

    /// Opens a socket of an interface to receive by, and one of another interface to send by, in copy mode. They share the
    /// memory.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn between(from: &str, to: &str) -> Result<Self> {
        let memory = UmemConfig::builder()
            .frame_size(FrameSize::new(2048)?)
            .build()?;
        let frames = NonZeroU32::new(4096).context("not 0")?;
        let (umem, mut free) = Umem::new(memory, frames, false)?;
        let open = |interface: &str| {
            let config = SocketConfig::builder()
                .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
                .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
                .build();
            // SAFETY: the memory is these sockets' alone.
            let (tx, rx, rings) = unsafe { Socket::new(config, &umem, &interface.parse()?, 0) }?;
            let (fill, completion) = rings.context("no rings of its own")?;
            anyhow::Ok((tx, rx, fill, completion))
        };
        let (mut tx, rx, mut fill, mut completion) = open(from)?;
        if from != to {
            (tx, _, _, completion) = open(to)?;
        }
        let to_fill = free.split_off(2048);
        // SAFETY: these frames are used nowhere else.
        unsafe { fill.produce(&to_fill) };
        Ok(Self {
            umem,
            tx,
            rx,
            fill,
            completion,
            free,
            batch: [FrameDesc::default(); BATCH],
        })
    }

    /// Returns the socket that receives.
    pub fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue keeps the socket open.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }

    fn kick(&self) -> Result<()> {
        // SAFETY: the queue keeps the socket open.
        let socket = unsafe { BorrowedFd::borrow_raw(self.tx.fd().as_raw_fd()) };
        loop {
            match send(socket, &[], SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                // The other end of the cable has no room: the frame is sent and lost.
                Err(Errno::AGAIN | Errno::BUSY) => {}
                Err(error) => bail!(error),
            }
        }
    }

    /// Sends a batch of new frames, as far as there is room. Returns their number.
    ///
    /// # Errors
    ///
    /// When the device sends no frames for another reason than that it is busy.
    pub fn send(&mut self) -> Result<usize> {
        let room = self.tx.nb_free(64).min(64) as usize;
        let first = self.free.len() - room.min(self.free.len());
        for frame in &mut self.free[first..] {
            // SAFETY: a free frame is used nowhere else.
            let mut data = unsafe { self.umem.data_mut(frame) };
            data.cursor().set_pos(FRAME.len());
            data.contents_mut().copy_from_slice(&FRAME);
        }
        // SAFETY: as above; the frames leave the list.
        let sent = unsafe { self.tx.produce(&self.free[first..]) };
        self.free.truncate(first);
        self.kick()?;
        // SAFETY: the frames are this memory's.
        let done = unsafe { self.completion.consume(&mut self.batch) };
        self.free.extend_from_slice(&self.batch[..done]);
        Ok(sent)
    }

    /// Takes a batch of what has arrived, and gives the memory back. Returns the number of frames.
    pub fn receive(&mut self) -> usize {
        // SAFETY: the frames are this memory's.
        let received = unsafe { self.rx.consume(&mut self.batch) };
        // SAFETY: what was received is used nowhere else.
        unsafe { self.fill.produce(&self.batch[..received]) }
    }

    /// Sends on a batch of what has arrived, with its MACs swapped. Returns the number of frames.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn forward(&mut self) -> Result<usize> {
        // SAFETY: the frames are this memory's.
        let received = unsafe { self.rx.consume(&mut self.batch) };
        for frame in &mut self.batch[..received] {
            // SAFETY: what was received is used nowhere else.
            unsafe { self.umem.data_mut(frame) }.contents_mut()[..12].rotate_left(6);
        }
        // SAFETY: as above; the batch is written anew before it is read.
        let sent = unsafe { self.tx.produce(&self.batch[..received]) };
        if sent > 0 {
            self.kick()?;
        }
        // SAFETY: the frames are this memory's.
        let done = unsafe { self.completion.consume(&mut self.batch) };
        // SAFETY: what has been sent is used nowhere else.
        unsafe { self.fill.produce(&self.batch[..done]) };
        Ok(sent)
    }
}
