//! Frames of clients and pods. Nobody reads their checksums.

use super::super::{Kind, Segment};
use crate::consistency::addresses::{self, BackendId, POD_PORT, PORT, VIP};

/// Length of Ethernet, IPv4 and TCP header.
const LENGTH: usize = 14 + 20 + 20;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// What a pod's kernel sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    SynAck,
    Fin,
    Reset,
}

/// The first sequence numbers of client and pod.
fn first_numbers(segment: &Segment<'_>) -> [u32; 2] {
    [0x9e37_79b1, 0x85eb_ca77].map(|factor| segment.number.wrapping_add(1).wrapping_mul(factor))
}

/// Returns a client's segment as it reaches an edge.
pub(super) fn request(segment: &Segment<'_>) -> [u8; LENGTH] {
    let [client, pod] = first_numbers(segment);
    let next = [client.wrapping_add(1), pod.wrapping_add(1)];
    let (flags, numbers) = match segment.kind {
        Kind::Syn => (SYN, [client, 0]),
        Kind::Ack => (ACK, next),
        Kind::Data => (PSH | ACK, next),
        Kind::Fin => (FIN | ACK, next),
    };
    let from = (segment.client.address(), segment.client.port());
    frame(from, (VIP, PORT), flags, numbers)
}

/// Returns what the kernel of a backend answers.
pub(super) fn answer(segment: &Segment<'_>, backend: BackendId, answer: Answer) -> [u8; LENGTH] {
    let [client, pod] = first_numbers(segment);
    let behind = client.wrapping_add(1);
    let (flags, numbers) = match answer {
        Answer::SynAck => (SYN | ACK, [pod, behind]),
        Answer::Fin => (FIN | ACK, [pod.wrapping_add(1), behind]),
        Answer::Reset => (RST, [pod.wrapping_add(1), 0]),
    };
    let to = (segment.client.address(), segment.client.port());
    frame(
        (addresses::pod_address(backend), POD_PORT),
        to,
        flags,
        numbers,
    )
}

fn frame(
    from: ([u8; 4], [u8; 2]),
    to: ([u8; 4], [u8; 2]),
    flags: u8,
    [sequence, acknowledgement]: [u32; 2],
) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    put(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    put(&from.0);
    put(&to.0);
    put(&from.1);
    put(&to.1);
    put(&sequence.to_be_bytes());
    put(&acknowledgement.to_be_bytes());
    put(&[0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

/// Returns the destination of a frame's outer IPv4 header.
pub(super) fn outer_destination(frame: &[u8]) -> Option<[u8; 4]> {
    frame.get(30..34)?.try_into().ok()
}
