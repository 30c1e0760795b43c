//! The entries that are fuzzed, with bytes that come further than random ones.

#[path = "../fuzz/entry.rs"]
mod entry;

use proptest::{collection::vec, prelude::*, sample::select};

/// Beginnings of frames: addresses, tags, and first bytes of IP headers.
const BEGINNINGS: [&[u8]; 6] = [
    b"",
    b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45\0\0\x20\0\0\0\0\x40\x06",
    b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x4f\0\0\x50\0\0\x20\0\x40\x11",
    b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x81\0\0\x05\x88\xa8\0\x06\x08\0\x45\0\0\x28\0\0\0\0\x40\x04",
    b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x86\xdd\x60\0\0\0\0\x18\0\x40",
    b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x86\xdd\x60\0\0\0\0\x30\x2c\x40",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_is_parsed_beyond_its_end(bytes in frame()) {
        entry::packet(&bytes);
    }

    #[test]
    fn no_quote_is_read_beyond_its_end(bytes in frame()) {
        entry::quoted(&bytes);
    }
}

/// A beginning and random bytes, one of which may be changed in either.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    // Numbers of protocols and extension headers, lengths, and flags of fragments.
    let telling = select(
        &[
            0_u8, 1, 4, 6, 8, 17, 41, 43, 44, 58, 60, 132, 0x20, 0x45, 0x60,
        ][..],
    );
    let byte = prop_oneof![telling, any::<u8>()];
    let change = (any::<prop::sample::Index>(), any::<u8>());
    (select(&BEGINNINGS[..]), vec(byte, 0..120), change).prop_map(|(beginning, more, (at, to))| {
        let mut bytes = [beginning, &more].concat();
        if let Some(byte) = bytes.get_mut(at.index(256)) {
            *byte = to;
        }
        bytes
    })
}
