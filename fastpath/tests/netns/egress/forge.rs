//! Segments of TCP over IPv4 that somebody makes up.

use std::{
    io,
    net::SocketAddrV4,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use etherparse::PacketBuilder;

/// What a segment says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Says {
    Syn,
    Ack,
    Rst,
}

/// A raw socket of the namespace that it was opened in.
pub(crate) struct Forger(OwnedFd);

impl Forger {
    pub(crate) fn open() -> Self {
        // SAFETY: takes no pointers.
        let fd = unsafe {
            libc::socket(
                libc::AF_INET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::IPPROTO_RAW,
            )
        };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: a descriptor that nobody else has.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Sends a segment in the name of `from`. Returns whether the kernel took it.
    pub(crate) fn send(&self, from: SocketAddrV4, to: SocketAddrV4, says: Says) -> bool {
        self.put(&segment(from, to, says), to)
    }

    /// Sends a segment likewise, in fragments of eight bytes.
    pub(crate) fn send_in_pieces_of_8(
        &self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        says: Says,
    ) -> bool {
        const PIECE: usize = 8;
        let whole = segment(from, to, says);
        let (header, segment) = whole.split_at(20);
        let pieces = segment.chunks(PIECE).enumerate();
        let last = segment.len().div_ceil(PIECE) - 1;
        pieces.fold(true, |all, (index, piece)| {
            let more = u16::from(index != last) << 13;
            let field = (more | u16::try_from(index).unwrap()).to_be_bytes();
            let mut bytes = [header, piece].concat();
            // The kernel writes length and checksum.
            bytes[4..6].copy_from_slice(&from.port().to_be_bytes());
            bytes[6..8].copy_from_slice(&field);
            self.put(&bytes, to) && all
        })
    }

    fn put(&self, bytes: &[u8], to: SocketAddrV4) -> bool {
        // SAFETY: all zeros are an address.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET.try_into().unwrap();
        address.sin_addr.s_addr = u32::from_ne_bytes(to.ip().octets());
        let length = size_of::<libc::sockaddr_in>().try_into().unwrap();
        // SAFETY: bytes and address are valid for reading, and their lengths are theirs.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                0,
                (&raw const address).cast(),
                length,
            )
        };
        sent >= 0
    }
}

fn segment(from: SocketAddrV4, to: SocketAddrV4, says: Says) -> Vec<u8> {
    const SEQUENCE: u32 = 0x1234_5678;
    let segment = PacketBuilder::ipv4(from.ip().octets(), to.ip().octets(), 64).tcp(
        from.port(),
        to.port(),
        SEQUENCE,
        0xfaf0,
    );
    let segment = match says {
        Says::Syn => segment.syn(),
        Says::Ack => segment.ack(SEQUENCE),
        Says::Rst => segment.rst(),
    };
    let mut bytes = Vec::new();
    segment.write(&mut bytes, &[]).unwrap();
    bytes
}
