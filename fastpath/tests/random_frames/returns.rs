//! Packets that nodes return to edges, and that edges try again.

use super::{ensure, same_but, same_tags, tags, word};

/// The mark of a returned packet in its tag.
const RETURNED: u16 = 0x8000;

/// Tells whether the outermost packet of a frame is marked as returned.
pub(super) fn is_returned(frame: &[u8]) -> bool {
    frame.len() >= 14 + 4 * tags(frame) + 6 && tag(&frame[14 + 4 * tags(frame)..]) & RETURNED != 0
}

fn tag(packet: &[u8]) -> u16 {
    word(packet, if packet[0] >> 4 == 4 { 4 } else { 2 })
}

/// A returned packet has the ends of its outer header turned round, and its mark; nothing else of it changes.
pub(super) fn returned(input: &[u8], output: &[u8]) -> Result<(), String> {
    ensure(
        output.len() == input.len(),
        "a returned frame has another length",
    )?;
    ensure(
        output[..6] == input[6..12] && output[6..12] == input[..6],
        "a returned frame does not go to where it came from",
    )?;
    let l3 = same_tags(input, output)?;
    let (came, back) = (&input[l3..], &output[l3..]);
    ensure(tag(came) | RETURNED == tag(back), "the tag is another")?;
    let (ends, end, changed): (usize, usize, &[usize]) = if came[0] >> 4 == 4 {
        (12, 4, &[4, 5, 8, 10, 11])
    } else {
        (8, 16, &[2, 7])
    };
    let [source, destination, rest] = [ends, ends + end, ends + 2 * end];
    ensure(
        came[source..destination] == back[destination..rest]
            && came[destination..rest] == back[source..destination],
        "the ends are not turned round",
    )?;
    let mut places = (0..ends).filter(|place| !changed.contains(place));
    ensure(
        places.all(|place| came[place] == back[place]) && came[rest..] == back[rest..],
        "a returned packet was changed",
    )
}

/// A packet that is tried again has another outer header; of what is inside, only the mark of congestion may change.
pub(super) fn retried(input: &[u8], output: &[u8]) -> Result<(), String> {
    let inner = |frame: &[u8]| -> Vec<u8> {
        let packet = &frame[14 + 4 * tags(frame)..];
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        packet[header..].to_vec()
    };
    ensure(is_returned(input), "it was not returned")?;
    ensure(!is_returned(output), "it goes on as a returned one")?;
    let (came, left) = (inner(input), inner(output));
    ensure(came.len() == left.len(), "it has another length")?;
    same_but(&came, &left, &[1, 10, 11], &[0, 1]).map(drop)
}
