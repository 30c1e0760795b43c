//! Requests and answers as bytes, of ours and of anybody.

use fastpath::tables::SlotOwners;
use proptest::prelude::{any, prop, proptest};

use super::support::*;
use crate::desired::ServiceKey;
use crate::peers::frame::VERSION;
use crate::peers::message::{
    DigestOfAll, Request, ServicesPage, decode, decode_owners, encode, encode_owners,
};

#[test]
fn messages_come_back_as_they_were() {
    let six = ServiceKey {
        address: "fd00::7".parse().unwrap(),
        ..service(1)
    };
    for request in [
        Request::Digest,
        Request::Services(None),
        Request::Services(Some(six)),
        Request::Owners(vec![service(1), six]),
    ] {
        assert_eq!(decode(&encode(&request)), Ok(request));
    }
    let mut long = owners(200, 9);
    long.lists[0][0].seconds_ago = u32::MAX;
    long.backends[1].pod = None;
    let all = [Some(long), None, Some(owners(1, 2))];
    assert_eq!(decode_owners(&encode_owners(&all), 3).unwrap(), all);
}

/// What edges of one version tell each other may change with that version alone.
#[test]
fn bytes_of_messages_are_those_of_version_1() {
    assert_eq!(VERSION, 1);
    let six: ServiceKey = "[fd00::7]:443/udp".parse().unwrap();
    let digest = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;
    let of_all = DigestOfAll {
        whole: digest,
        seed: *b"07af",
    };
    let page = ServicesPage {
        services: vec![(service(1), digest)],
        has_more: true,
    };
    let hex = |bytes: Vec<u8>| -> String { bytes.iter().map(|one| format!("{one:02x}")).collect() };
    let told = [
        hex(encode(&Request::Digest)),
        hex(encode(&Request::Services(Some(six)))),
        hex(encode(&Request::Owners(vec![service(1)]))),
        hex(encode(&of_all)),
        hex(encode(&page)),
        hex(encode_owners(&[Some(owners(1, 9)), None])),
    ];
    let of_version_1 = [
        "00",
        "010101fd000000000000000000000000000007bb0301",
        "0201000a6300015000",
        "909eb8e8c0e1828589909cb0d080c181820230376166",
        "01000a6300015000909eb8e8c0e1828589909cb0d080c181820201",
        "010101010002000a00000101000af40001903f00000a00000901000af40009903f000101010105020100000100010000",
    ];
    assert_eq!(told, of_version_1);
}

#[test]
fn list_that_only_claims_to_be_long_is_refused() {
    // A table of one slot, no needs, no backends, and so many lists.
    let claimed = [&[1, 0, 0, 0][..], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert!(decode_owners(&claimed, 1).is_err());
    let empty_lists = [&[1, 0, 0, 0, 100][..], &[0; 100], &[0, 1, 0, 0]].concat();
    let refused = decode_owners(&empty_lists, 1).unwrap_err();
    assert_eq!(refused.to_string(), "contradictory: more lists than slots");
}

proptest! {
    #[test]
    fn no_bytes_break_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Request>(&bytes);
        let _ = ServicesPage::decode(&bytes, None);
        let _ = decode_owners(&bytes, 9);
    }

    #[test]
    fn changed_bytes_are_refused_or_consistent(place in 0..80_usize, byte in any::<u8>()) {
        let mut bytes = encode_owners(&[Some(owners(1, 9))]);
        let place = place % bytes.len();
        bytes[place] = byte;
        if let Ok(all) = decode_owners(&bytes, 1) {
            assert!(all.iter().flatten().all(SlotOwners::is_consistent));
        }
    }
}
