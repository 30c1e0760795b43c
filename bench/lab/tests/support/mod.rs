//! What the XDP tests need beside the lab: small programs and raw frames.

use lab::Mac;

/// IEEE 802 local experimental EtherType 1, which no stack answers.
pub(crate) const EXPERIMENTAL: u16 = 0x88b5;
pub(crate) const ETHERNET_LENGTH: usize = 14;

const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

// Operand sizes of BPF loads and stores.
const W: u8 = 0x00;
const H: u8 = 0x08;

/// A program that answers experimental frames by `XDP_TX`, both MACs swapped.
pub(crate) fn reflector() -> Vec<u64> {
    transmit_after(&[
        load(W, 5, 2, 0),
        load(H, 6, 2, 4),
        load(W, 7, 2, 6),
        load(H, 8, 2, 10),
        store(W, 2, 7, 0),
        store(H, 2, 8, 4),
        store(W, 2, 5, 6),
        store(H, 2, 6, 10),
    ])
}

/// A program that forwards experimental frames by `XDP_TX` to `to`, the source MAC left as it came.
pub(crate) fn careless_forwarder([a, b, c, d, e, f]: Mac) -> Vec<u64> {
    transmit_after(&[
        move_value(5, i32::from_le_bytes([a, b, c, d])),
        move_value(6, i32::from(u16::from_le_bytes([e, f]))),
        store(W, 2, 5, 0),
        store(H, 2, 6, 4),
    ])
}

/// Runs `edit`, with r2 at the frame's first byte, on experimental frames and transmits them.
fn transmit_after(edit: &[u64]) -> Vec<u64> {
    let exit = instruction(0x95, 0, 0, 0, 0);
    let length = i16::try_from(edit.len()).unwrap();
    let ether_type = i32::from(EXPERIMENTAL.to_be());
    let mut program = vec![
        load(W, 2, 1, 0),                                // r2 = data
        load(W, 3, 1, 4),                                // r3 = data_end
        instruction(0xbf, 4, 2, 0, 0),                   // r4 = r2
        instruction(0x07, 4, 0, 0, 14),                  // r4 += 14
        instruction(0x2d, 4, 3, length + 4, 0),          // if r4 > r3: pass
        load(H, 5, 2, 12),                               // r5 = EtherType
        instruction(0x55, 5, 0, length + 2, ether_type), // if r5 != ..: pass
    ];
    program.extend_from_slice(edit);
    program.extend([move_value(0, XDP_TX), exit, move_value(0, XDP_PASS), exit]);
    program
}

fn load(size: u8, to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x61 | size, to, from, offset, 0)
}

fn store(size: u8, to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x63 | size, to, from, offset, 0)
}

fn move_value(to: u8, value: i32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let [offset_low, offset_high] = offset.to_le_bytes();
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([code, from << 4 | to, offset_low, offset_high, a, b, c, d])
}

/// An experimental frame of minimum length.
pub(crate) fn frame(destination: Mac, source: Mac) -> Vec<u8> {
    let mut frame = [destination, source].concat();
    frame.extend(EXPERIMENTAL.to_be_bytes());
    frame.resize(60, 0xa5);
    frame
}
