extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::{Sum, pseudo_header_v4, pseudo_header_v6, udp_checksum, update, update_udp};

/// RFC 1071 section 3, which sums these bytes to 0xddf2.
const RFC1071: [u8; 8] = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];

#[test]
fn sum_matches_the_example_of_rfc_1071() {
    assert_eq!(Sum::ZERO.add_bytes(&RFC1071).fold(), 0xddf2);
    assert_eq!(Sum::ZERO.add_array(&RFC1071).checksum(), 0x220d);
}

#[test]
fn update_matches_the_example_of_rfc_1624() {
    // Section 4: HC = 0xDD2F, m = 0x5555, m' = 0x3285. RFC 1141's equation
    // gives 0xffff here.
    let difference = Sum::ZERO.replace_u16(0x5555, 0x3285);
    assert_eq!(update(0xdd2f, difference), 0x0000);
}

#[test]
fn checksum_of_a_captured_ipv4_header_verifies() {
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert!(Sum::ZERO.add_array(&header).is_valid());
    let mut broken = header;
    broken[8] -= 1;
    assert!(!Sum::ZERO.add_array(&broken).is_valid());
}

#[test]
fn odd_last_byte_is_padded_with_zero() {
    for len in 0..8 {
        let odd = &RFC1071[..len];
        let mut padded = [0; 8];
        padded[..len].copy_from_slice(odd);
        assert_eq!(
            Sum::ZERO.add_bytes(odd).fold(),
            Sum::ZERO.add_bytes(&padded).fold(),
            "length {len}"
        );
    }
}

#[test]
fn fold_carries_until_sixteen_bits_are_left() {
    assert_eq!(Sum(0).fold(), 0);
    assert_eq!(Sum(u64::MAX).fold(), 0xffff);
    assert_eq!(Sum(0x0000_0001_ffff_ffff).fold(), 0x0001_u16.to_be());
    assert_eq!(Sum(0xffff_ffff_0000_0001).fold(), 0x0001_u16.to_be());
}

#[test]
fn udp_checksum_zero_stays_zero() {
    let difference = Sum::ZERO.replace_u16(1, 2);
    assert_eq!(update_udp(0, difference), 0);
}

#[test]
fn udp_checksum_computed_as_zero_is_sent_as_all_ones() {
    assert_eq!(udp_checksum(0), 0xffff);
    assert_eq!(udp_checksum(1), 1);
    let difference = Sum::ZERO.replace_u16(0x5555, 0x3285);
    assert_eq!(update_udp(0xdd2f, difference), 0xffff);
}

/// Words at the edges of the arithmetic.
const EDGES: [u16; 8] = [
    0x0000, 0x0001, 0x00ff, 0x7fff, 0x8000, 0xff00, 0xfffe, 0xffff,
];

/// Calls `check` with data of which one word changes, before and after, for each combination of edges: the sums of
/// both are the edges too.
fn at_each_edge(check: impl Fn(&[u8], &[u8], u16, u16)) {
    for old in EDGES {
        for new in EDGES {
            for one in EDGES {
                for other in EDGES {
                    let data = |word: u16| [word, one, other].map(u16::to_be_bytes).concat();
                    check(&data(old), &data(new), old, new);
                }
            }
        }
    }
}

#[test]
fn update_equals_full_recomputation_at_the_edges() {
    at_each_edge(|before, after, old, new| {
        // The one data whose sum is zero: who may send it looks for it.
        if after.iter().all(|byte| *byte == 0) {
            return;
        }
        let difference = Sum::ZERO.replace_u16(old, new);
        let check = oracle(&[before]);
        assert_eq!(update(check, difference), oracle(&[after]), "{before:02x?}");
        // Of a sum of all ones, the other spelling of zero is as right to a receiver.
        if check == 0 {
            assert_eq!(
                update(0xffff, difference),
                oracle(&[after]),
                "{before:02x?}"
            );
        }
    });
}

#[test]
fn update_of_two_words_and_of_addresses_equals_full_recomputation_at_the_edges() {
    for [a, b, c, d] in corners() {
        let [before, after] = [[a, b, 0x0800, 0], [c, d, 0x0800, 0]];
        let [before, after] = [before, after].map(|words| words.map(u16::to_be_bytes).concat());
        let [one, other] = [(a, b), (c, d)].map(|(a, b)| u32::from(a) << 16 | u32::from(b));
        let check = oracle(&[&before]);
        let as_words = Sum::ZERO.replace_u32(one, other);
        let as_bytes = Sum::ZERO.replace_array(&one.to_be_bytes(), &other.to_be_bytes());
        let wide = |word: u32| [u64::from(word.to_be()), 0];
        let as_address = Sum::ZERO.replace_words(wide(one), wide(other));
        for difference in [as_words, as_bytes, as_address] {
            assert_eq!(
                update(check, difference),
                oracle(&[&after]),
                "{before:02x?}"
            );
        }
    }
}

#[test]
fn update_udp_equals_full_recomputation_at_the_edges() {
    at_each_edge(|before, after, old, new| {
        if after.iter().all(|byte| *byte == 0) {
            return;
        }
        let difference = Sum::ZERO.replace_u16(old, new);
        let check = udp_checksum(oracle(&[before]));
        let expected = udp_checksum(oracle(&[after]));
        assert_eq!(update_udp(check, difference), expected, "{before:02x?}");
    });
}

/// Every combination of four edges.
fn corners() -> impl Iterator<Item = [u16; 4]> {
    let count = EDGES.len();
    (0..count.pow(4))
        .map(move |number| [0, 1, 2, 3].map(|place| EDGES[number / count.pow(place) % count]))
}

/// The full computation by another library.
fn oracle(parts: &[&[u8]]) -> u16 {
    let mut checksum = internet_checksum::Checksum::new();
    for part in parts {
        checksum.add_bytes(part);
    }
    u16::from_be_bytes(checksum.checksum())
}

/// An even-length payload that does not sum to nothing.
fn data() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 24..96).prop_map(|mut bytes| {
        bytes.truncate(bytes.len() & !1);
        bytes[0] |= 0x40;
        bytes
    })
}

proptest! {
    #[test]
    fn checksum_equals_another_librarys(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        start in 0_usize..9,
    ) {
        let bytes = bytes.get(start..).unwrap_or_default();
        prop_assert_eq!(Sum::ZERO.add_bytes(bytes).checksum(), oracle(&[bytes]));
    }

    #[test]
    fn sums_of_parts_add_up(head: [u8; 14], tail: Vec<u8>) {
        let whole = Sum::ZERO.add_array(&head).add_bytes(&tail);
        let parts = Sum::ZERO.add_bytes(&tail).add_sum(Sum::ZERO.add_array(&head));
        prop_assert_eq!(whole.checksum(), oracle(&[&head, &tail]));
        prop_assert_eq!(parts.checksum(), whole.checksum());
    }

    #[test]
    fn values_in_host_order_sum_like_their_bytes(a: u16, b: u32) {
        let sum = Sum::ZERO.add_u16(a).add_u32(b);
        prop_assert_eq!(sum.checksum(), oracle(&[&a.to_be_bytes(), &b.to_be_bytes()]));
    }

    #[test]
    fn updating_a_word_equals_full_recomputation(mut data in data(), at in 1_usize..12, new: u16) {
        let before = oracle(&[&data]);
        let word = &mut data[2 * at..2 * at + 2];
        let difference = Sum::ZERO.replace_u16(u16::from_be_bytes([word[0], word[1]]), new);
        word.copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(update(before, difference), oracle(&[&data]));
    }

    #[test]
    fn updating_two_words_equals_full_recomputation(mut data in data(), at in 1_usize..11, new: u32) {
        let before = oracle(&[&data]);
        let words = &mut data[2 * at..2 * at + 4];
        let old = u32::from_be_bytes([words[0], words[1], words[2], words[3]]);
        words.copy_from_slice(&new.to_be_bytes());
        let difference = Sum::ZERO.replace_u32(old, new);
        prop_assert_eq!(update(before, difference), oracle(&[&data]));
    }

    #[test]
    fn replacing_address_and_port_equals_full_recomputation(
        (old_addr, new_addr) in any::<([u8; 16], [u8; 16])>(),
        (old_port, new_port) in any::<(u16, u16)>(),
        rest in data(),
    ) {
        let before = oracle(&[&old_addr, &old_port.to_be_bytes(), &rest]);
        let after = oracle(&[&new_addr, &new_port.to_be_bytes(), &rest]);
        let difference = Sum::ZERO
            .replace_array(&old_addr, &new_addr)
            .replace_u16(old_port, new_port);
        prop_assert_eq!(update(before, difference), after);
    }

    #[test]
    fn pseudo_header_v4_has_the_layout_of_rfc_9293(src: [u8; 4], dst: [u8; 4], protocol: u8, len: u16) {
        let sum = pseudo_header_v4(&src, &dst, protocol, len);
        prop_assert_eq!(
            sum.checksum(),
            oracle(&[&src, &dst, &[0, protocol], &len.to_be_bytes()])
        );
    }

    #[test]
    fn pseudo_header_v6_has_the_layout_of_rfc_8200(src: [u8; 16], dst: [u8; 16], next: u8, len: u32) {
        let sum = pseudo_header_v6(&src, &dst, next, len);
        prop_assert_eq!(
            sum.checksum(),
            oracle(&[&src, &dst, &len.to_be_bytes(), &[0, 0, 0, next]])
        );
    }
}
