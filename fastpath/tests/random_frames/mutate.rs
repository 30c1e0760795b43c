//! Frames that are nearly right: mutations of the case table's inputs.

/// A small generator of random numbers (SplitMix64), so that a seed means the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`, which is small.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        usize::try_from(((self.next() >> 32) * bound) >> 32).unwrap()
    }

    /// Returns one of several things.
    pub(crate) fn choose<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len())]
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }
}

/// Values that headers are likely to be compared with.
const TELLING_BYTES: [u8; 26] = [
    0, 1, 2, 3, 4, 5, 6, 8, 17, 20, 40, 41, 43, 44, 51, 58, 60, 0x45, 0x46, 0x4f, 0x60, 0x81, 0x86,
    0x88, 135, 255,
];
const TELLING_WORDS: [u16; 16] = [
    0, 1, 8, 19, 20, 21, 39, 40, 41, 0x0800, 0x2000, 0x4000, 0x8100, 0x86dd, 0x88a8, 0xffff,
];

/// Returns a frame that comes of one of `inputs`, or, one time in sixteen, of nothing.
pub(crate) fn frame(random: &mut Random, inputs: &[&[u8]]) -> Vec<u8> {
    if random.below(16) == 0 {
        return noise(random);
    }
    let mut frame = random.choose(inputs).to_vec();
    for _ in 0..random.below(5) {
        mutate(random, &mut frame, inputs);
    }
    frame
}

/// Random bytes, mostly behind an EtherType that gets them looked at.
fn noise(random: &mut Random) -> Vec<u8> {
    let length = random.below(160);
    let mut frame = random.bytes(length);
    if let Some([first, .., high, low]) = frame.get_mut(..14) {
        let ether_type = *random.choose(&[0x0800_u16, 0x86dd, 0x8100, 0x88a8, 0x0806]);
        [*high, *low] = ether_type.to_be_bytes();
        *first &= !1;
    }
    if let Some(version) = frame.get_mut(14) {
        *version = *random.choose(&[0x45, 0x46, 0x60, *version]);
    }
    frame
}

fn mutate(random: &mut Random, frame: &mut Vec<u8>, inputs: &[&[u8]]) {
    // Headers are in front: half of the mutations stay in the first 80 bytes.
    let reach = match random.below(2) {
        0 => frame.len().min(80),
        _ => frame.len(),
    };
    let at = random.below(reach.max(1));
    match random.below(9) {
        0 => with_byte(frame, at, |byte| byte ^ 1 << random.below(8)),
        1 => with_byte(frame, at, |_| random.byte()),
        2 => with_byte(frame, at, |_| *random.choose(&TELLING_BYTES)),
        3 => with_byte(frame, at, |byte| byte.wrapping_add(1)),
        4 => with_byte(frame, at, |byte| byte.wrapping_sub(1)),
        5 => {
            // A length that comes close, or a number that means something.
            let near = u16::try_from(frame.len() + 4 - random.below(60).min(frame.len())).unwrap();
            let telling = *random.choose(&TELLING_WORDS);
            let word = *random.choose(&[near, telling]);
            if let Some(field) = frame.get_mut(at..at + 2) {
                field.copy_from_slice(&word.to_be_bytes());
            }
        }
        6 => match random.below(2) {
            0 => frame.truncate(at),
            _ => {
                let length = random.below(24);
                frame.extend(random.bytes(length));
            }
        },
        7 => {
            // Tags, options and extension headers come in words.
            let length = 4 << random.below(4);
            match random.below(2) {
                0 => drop(frame.splice(at..at, random.bytes(length))),
                _ => drop(frame.drain(at..frame.len().min(at + length))),
            }
        }
        _ => {
            // The head of this frame, the tail of another one.
            let other = *random.choose(inputs);
            let from = random.below(other.len().max(1));
            frame.truncate(at);
            frame.extend(other.get(from..).unwrap_or_default());
        }
    }
}

fn with_byte(frame: &mut [u8], at: usize, change: impl FnOnce(u8) -> u8) {
    if let Some(byte) = frame.get_mut(at) {
        *byte = change(*byte);
    }
}
