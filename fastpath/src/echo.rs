//! ICMP echo (RFC 792, RFC 4443 section 4) over a raw socket.

use std::{
    io::{self, IoSlice},
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
};

use libc::{
    BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET,
    BPF_W, SO_MARK, SOL_SOCKET,
};
use socket2::{MsgHdr, SockAddr, SockFilter, SockRef};
use xdp_prog::{
    csum::Sum,
    wire::{icmp::Icmp, ipv4::Ipv4},
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const REQUEST_V4: u8 = 8;
const REPLY_V4: u8 = 0;
const REQUEST_V6: u8 = 128;
const REPLY_V6: u8 = 129;

/// Length of a request and of its reply, without the IP header.
pub const LENGTH: usize = Icmp::LENGTH + size_of::<u64>();

/// One echo, identified by a random number that nobody else knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Whether the echo is IPv6.
    pub is_v6: bool,
    pub nonce: u64,
}

impl Echo {
    /// Writes the request.
    pub fn request(self) -> [u8; LENGTH] {
        let data = self.nonce.to_be_bytes();
        // The first half serves as identifier and sequence number.
        let [a, b, c, d, ..] = data;
        let mut header = Icmp {
            kind: if self.is_v6 { REQUEST_V6 } else { REQUEST_V4 },
            rest: [a, b, c, d],
            ..Icmp::default()
        };
        if !self.is_v6 {
            // The kernel computes the checksum of ICMPv6, which covers the addresses (RFC 3542 section 3.1).
            let sum = Sum::ZERO.add_bytes(header.as_bytes()).add_bytes(&data);
            header.checksum = sum.checksum().to_be_bytes();
        }
        let mut message = [0; LENGTH];
        message[..Icmp::LENGTH].copy_from_slice(header.as_bytes());
        message[Icmp::LENGTH..].copy_from_slice(&data);
        message
    }

    /// Sends the request by an unconnected raw socket, with `mark` on the packet.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot send it now.
    pub fn send(self, socket: &impl AsFd, node: IpAddr, mark: u32) -> io::Result<()> {
        let request = self.request();
        let address = SockAddr::from(SocketAddr::new(node, 0));
        let bytes = [IoSlice::new(&request)];
        let mark = Mark::new(mark);
        let message = MsgHdr::new()
            .with_addr(&address)
            .with_buffers(&bytes)
            .with_control(mark.as_bytes());
        SockRef::from(socket).sendmsg(&message, 0)?;
        Ok(())
    }

    /// Tells whether a raw socket received the reply to this echo.
    pub fn is_answered_by(self, received: &[u8]) -> bool {
        Self::of_reply(self.is_v6, received) == Some(self)
    }

    /// Returns the echo that a received message answers; `None` if it is no reply to an [`Echo`].
    pub fn of_reply(is_v6: bool, received: &[u8]) -> Option<Self> {
        // A raw IPv4 socket also receives the IP header, a raw IPv6 socket does not.
        let message = if is_v6 {
            received
        } else {
            let (header, _) = Ipv4::ref_from_prefix(received).ok()?;
            received.get(header.header_length()..)?
        };
        let (header, data) = Icmp::ref_from_prefix(message).ok()?;
        let echo = Self {
            is_v6,
            nonce: u64::from_be_bytes(data.try_into().ok()?),
        };
        let is_reply = (header.kind, header.code) == (reply_kind(is_v6), 0)
            && header.rest == echo.request()[4..Icmp::LENGTH];
        is_reply.then_some(echo)
    }
}

/// The control message that marks one packet: cmsg(3), socket(7).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Mark {
    length: usize,
    level: i32,
    kind: i32,
    mark: u32,
    /// The kernel counts the length in machine words.
    padding: u32,
}

impl Mark {
    const fn new(mark: u32) -> Self {
        Self {
            length: offset_of!(Self, padding),
            level: SOL_SOCKET,
            kind: SO_MARK,
            mark,
            padding: 0,
        }
    }
}

/// Makes the kernel drop every message to a raw socket except replies to echoes with these upper 32 bits of the
/// number.
///
/// An unconnected raw socket gets all ICMP of the machine, so messages of strangers would fill it.
///
/// # Errors
///
/// Fails if the kernel refuses the filter.
pub fn hear_only(socket: &impl AsFd, is_v6: bool, upper: u32) -> io::Result<()> {
    SockRef::from(socket).attach_filter(&filter(is_v6, upper))
}

/// Returns the filter in classic BPF; it sees what the socket would receive.
fn filter(is_v6: bool, upper: u32) -> [SockFilter; 7] {
    const IS_EQUAL: u32 = BPF_JMP | BPF_JEQ | BPF_K;
    #[expect(clippy::cast_possible_truncation, reason = "it is 8")]
    const DATA: u32 = Icmp::LENGTH as u32;
    let step = |code: u32, value| instruction(code, 0, value);
    // The index register holds the offset of the message.
    let message = if is_v6 {
        step(BPF_LDX | BPF_IMM, 0)
    } else {
        step(BPF_LDX | BPF_B | BPF_MSH, 0)
    };
    let kind_and_code = u32::from_be_bytes([0, 0, reply_kind(is_v6), 0]);
    [
        message,
        step(BPF_LD | BPF_H | BPF_IND, 0),
        instruction(IS_EQUAL, 3, kind_and_code),
        step(BPF_LD | BPF_W | BPF_IND, DATA),
        instruction(IS_EQUAL, 1, upper),
        step(BPF_RET | BPF_K, u32::MAX),
        step(BPF_RET | BPF_K, 0),
    ]
}

/// Returns one instruction; if its comparison fails, the next `skipped` instructions are skipped.
#[expect(
    clippy::cast_possible_truncation,
    reason = "codes of classic BPF have 16 bits"
)]
const fn instruction(code: u32, skipped: u8, value: u32) -> SockFilter {
    SockFilter::new(code as u16, 0, skipped, value)
}

const fn reply_kind(is_v6: bool) -> u8 {
    if is_v6 { REPLY_V6 } else { REPLY_V4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: u64 = 0x1234_5678_9abc_def0;

    fn echo(is_v6: bool) -> Echo {
        Echo {
            is_v6,
            nonce: NONCE,
        }
    }

    #[test]
    fn request_of_ipv4_has_a_checksum_and_that_of_ipv6_leaves_it_to_the_kernel() {
        let request = echo(false).request();
        // Sum of the 16-bit words 0800 1234 5678 1234 5678 9abc def0, complemented.
        assert_eq!(
            request,
            [
                8, 0, 0xac, 0xf9, 0x12, 0x34, 0x56, 0x78, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde,
                0xf0
            ]
        );
        assert_eq!(&echo(true).request()[..4], [128, 0, 0, 0]);
    }

    #[test]
    fn reply_is_recognised_behind_ip_options() {
        let mut reply = echo(false).request();
        reply[0] = REPLY_V4;
        let mut packet = vec![0; 24];
        packet[0] = 0x46;
        packet.extend_from_slice(&reply);
        assert!(echo(false).is_answered_by(&packet));
        packet[0] = 0x45;
        assert!(!echo(false).is_answered_by(&packet));
    }

    #[test]
    fn only_the_reply_to_this_very_request_counts() {
        let mut reply = echo(true).request();
        assert!(!echo(true).is_answered_by(&reply), "it is the request");
        reply[0] = REPLY_V6;
        assert!(echo(true).is_answered_by(&reply));
        let other = Echo {
            nonce: NONCE + 1,
            ..echo(true)
        };
        assert!(!other.is_answered_by(&reply));
        for length in 0..reply.len() {
            assert!(!echo(true).is_answered_by(&reply[..length]));
        }
        assert!(!echo(false).is_answered_by(&[]));
    }
}
