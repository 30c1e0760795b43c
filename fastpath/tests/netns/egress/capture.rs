//! What arrives at a machine, seen by a packet socket.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use etherparse::{IpHeaders, TcpHeader};

/// A TCP segment from the address that is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Length of the IP packet.
    pub(crate) length: usize,
    /// Whether the checksums of all headers are right.
    pub(crate) is_right: bool,
    /// The MSS that it asks for.
    pub(crate) mss: Option<u16>,
}

/// A thread that reads frames until it is told to stop.
pub(crate) struct Capture {
    done: Arc<AtomicBool>,
    reader: JoinHandle<Vec<Segment>>,
}

impl Capture {
    /// Watches what comes from an address to the namespace of the calling thread.
    pub(crate) fn start(from: IpAddr) -> Self {
        let socket = packet_socket().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let reader = thread::spawn(move || read(&socket, from, &until));
        Self { done, reader }
    }

    /// Returns what came.
    pub(crate) fn stop(self) -> Vec<Segment> {
        self.done.store(true, Ordering::Relaxed);
        self.reader.join().unwrap()
    }
}

fn read(socket: &OwnedFd, from: IpAddr, done: &AtomicBool) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut frame = vec![0; 1 << 16];
    // What has arrived by the time of `done` is read to its end.
    loop {
        let is_last = done.load(Ordering::Relaxed);
        let mut found = false;
        while let Some(length) = receive(socket, &mut frame) {
            found = true;
            segments.extend(segment(&frame[..length], from));
        }
        if is_last && !found {
            return segments;
        }
    }
}

/// Waits a moment for a frame.
fn receive(socket: &OwnedFd, frame: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer is writable for the length given with it.
    let length = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            frame.as_mut_ptr().cast(),
            frame.len(),
            0,
        )
    };
    usize::try_from(length).ok()
}

fn segment(frame: &[u8], from: IpAddr) -> Option<Segment> {
    let packet = frame.get(14..)?;
    let (headers, payload) = IpHeaders::from_slice(packet).ok()?;
    let source: IpAddr = match &headers {
        IpHeaders::Ipv4(header, _) => header.source.into(),
        IpHeaders::Ipv6(header, _) => header.source.into(),
    };
    if source != from {
        return None;
    }
    let (header, data) = TcpHeader::from_slice(payload.payload).ok()?;
    let (length, is_right) = match &headers {
        IpHeaders::Ipv4(ip, _) => {
            let check = header.calc_checksum_ipv4(ip, data).ok()?;
            let is_right =
                ip.header_checksum == ip.calc_header_checksum() && check == header.checksum;
            (usize::from(ip.total_len), is_right)
        }
        IpHeaders::Ipv6(ip, _) => {
            let check = header.calc_checksum_ipv6(ip, data).ok()?;
            (
                40 + usize::from(ip.payload_length),
                check == header.checksum,
            )
        }
    };
    let mss = header.options_iterator().find_map(|option| match option {
        Ok(etherparse::TcpOptionElement::MaximumSegmentSize(value)) => Some(value),
        _ => None,
    });
    Some(Segment {
        length,
        is_right,
        mss,
    })
}

/// Opens a socket that sees all frames and waits for one 50 ms at most.
fn packet_socket() -> io::Result<OwnedFd> {
    let protocol = i32::from(u16::try_from(libc::ETH_P_ALL).unwrap().to_be());
    // SAFETY: takes no pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            protocol,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let timeout = libc::timeval {
        tv_sec: 0,
        tv_usec: 50_000,
    };
    set_option(&socket, libc::SO_RCVTIMEO, &timeout)?;
    // Room for all that a test sends, past the limit for ordinary users.
    set_option(&socket, libc::SO_RCVBUFFORCE, &(64_i32 << 20))?;
    Ok(socket)
}

fn set_option<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value is readable for the length given with it.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            libc::socklen_t::try_from(size_of::<T>()).unwrap(),
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
