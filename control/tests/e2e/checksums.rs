//! The judge of checksums on the wire finds those that are bad.

use std::{fs, path::Path};

use crate::support::bad_checksums;

/// Ethernet addresses, and where the IP header begins.
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const L3: usize = 14;

/// IPv4 and UDP, ports 1234 and 53, two bytes; all checksums here are worked out by hand.
const UDP: [u8; 30] = [
    0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17, 0x66, 0xcc, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 10,
    0x7e, 0x67, 0x68, 0x69,
];
/// IPv4 and a SYN, ports 1234 and 80.
const TCP: [u8; 40] = [
    0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0x66, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 80, 0, 0,
    0, 1, 0, 0, 0, 0, 0x50, 2, 255, 255, 0x96, 0xbd, 0, 0,
];
/// IPv4 and an echo request.
const ICMP: [u8; 28] = [
    0x45, 0, 0, 28, 0, 1, 0, 0, 64, 1, 0x66, 0xde, 10, 0, 0, 1, 10, 0, 0, 2, 8, 0, 0xf7, 0xfd, 0,
    1, 0, 1,
];
/// IPv6, from fd00::1 to fd00::2, and an echo request.
const ICMP_V6: [u8; 48] = [
    0x60, 0, 0, 0, 0, 8, 58, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 128, 0, 0x85, 0xb6, 0, 1, 0, 1,
];

fn frame(packet: &[u8]) -> Vec<u8> {
    let ether_type: [u8; 2] = if packet[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    [&ETHERNET[..], &ether_type, packet].concat()
}

/// A frame with one bit of a byte of its packet turned.
fn turned(packet: &[u8], at: usize) -> Vec<u8> {
    let mut frame = frame(packet);
    frame[L3 + at] ^= 1;
    frame
}

/// The classic format of libpcap, version 2.4, Ethernet.
fn write_pcap(file: &Path, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    bytes.extend(0xa1b2_c3d4_u32.to_le_bytes());
    bytes.extend([2, 0, 4, 0]);
    bytes.extend([0; 8]);
    bytes.extend(65_535_u32.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap().to_le_bytes();
        bytes.extend([0; 8]);
        bytes.extend([length, length].concat());
        bytes.extend(frame);
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn each_kind_of_bad_checksum_is_found_and_no_good_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("frames.pcap");
    write_pcap(
        &file,
        &[
            frame(&UDP),
            frame(&TCP),
            frame(&ICMP),
            frame(&ICMP_V6),
            // The low byte of a source address, which the IPv4 header's checksum and UDP's cover.
            turned(&UDP, 15),
            // What follows the IP header.
            turned(&UDP, 29),
            turned(&TCP, 27),
            turned(&ICMP, 27),
            turned(&ICMP_V6, 47),
            // The identification, which no other checksum covers.
            turned(&UDP, 5),
        ],
    );
    let found: Vec<String> = bad_checksums(&file)
        .iter()
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .collect();
    assert_eq!(found, ["5", "6", "7", "8", "9", "10"]);
}
