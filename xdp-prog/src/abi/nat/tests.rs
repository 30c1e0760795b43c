use super::*;

const KEY: Tuple = Tuple::new(
    AddressKey::v4([198, 51, 100, 7]),
    AddressKey::v4([203, 0, 113, 10]),
    [0x9c, 0x40],
    [0, 80],
    6,
);
const LINK: NatLink = NatLink::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [0x20, 7], 1500);

#[test]
fn marks_keep_time_and_flags_apart() {
    let mark = NatMark::new(9_000_000, NAT_OPEN).with(NAT_CONDEMNED);
    assert_eq!(mark.flags(), NAT_OPEN | NAT_CONDEMNED);
    assert!(mark.has(NAT_OPEN | NAT_ANSWERED) && !mark.has(NAT_ANSWERED));
    assert!(9_000_000 - mark.time() < 256);
    assert_eq!(mark.idle(mark.time() + 5), 5);
    assert_eq!(mark.idle(1), 0, "the clocks of two CPUs may differ");
}

#[test]
fn entries_keep_their_parts_apart() {
    let reply = |port| {
        Tuple::new(
            AddressKey::v4([192, 0, 2, 30]),
            AddressKey::v4([192, 0, 2, 1]),
            [0x1f, 0x90],
            port,
            6,
        )
    };
    let mark = NatMark::default();
    let mut forward = NatForward::new(&KEY, &reply([0xee, 1]), 0xa1b2_c3d4, 0x5566, mark);
    assert_eq!(forward.backend(), 0xa1b2_c3d4);
    assert_eq!(forward.port(), [0xee, 1]);
    assert_eq!(forward.fingerprint(), 0x5566);
    forward.set_fingerprint(0x7788);
    assert_eq!((forward.port(), forward.fingerprint()), ([0xee, 1], 0x7788));
    assert!(forward.is_for(&KEY) && forward.is_answered_as(&reply([0xee, 1])));
    assert!(!forward.is_for(&reply([0xee, 1])) && !forward.is_answered_as(&reply([0xee, 2])));

    let reverse = NatReverse::new(&reply([0xee, 1]), &KEY, 3, LINK, mark);
    assert!(reverse.is_for(&reply([0xee, 1])) && !reverse.is_for(&KEY));
    assert_eq!(reverse.forward_key(6), KEY);
    assert_ne!(reverse.forward_key(17), KEY);
}

#[test]
fn a_flow_that_has_begun_keeps_its_parts_apart() {
    let flow = NatBegun::new(0xa1b2_c3d4, 0x0009_0010, [0xee, 1]);
    assert_eq!((flow.backend(), flow.port()), (0xa1b2_c3d4, [0xee, 1]));
    assert!(flow.is_of(0x0010) && !flow.is_of(0x0011));
}

#[test]
fn services_share_what_is_free_and_none_takes_it_all() {
    const TABLE: i64 = 9_000;
    // Each takes what it may, in turn.
    let taken = |services: usize, half_open: bool| {
        let mut counts = [NatCount::default(); 8];
        let counts = &mut counts[..services];
        let mut free = TABLE;
        while counts.iter().any(|count| count.leaves_room(free)) {
            for count in &mut *counts {
                if count.leaves_room(free) {
                    count.flows += 1;
                    count.half_open += i64::from(half_open);
                    free -= 1;
                }
            }
        }
        (counts[0].flows, free)
    };
    assert_eq!(taken(1, false), (7_200, 1_800));
    assert_eq!(taken(2, false), (4_000, 1_000));
    assert_eq!(taken(1, true), (3_000, 6_000));
    assert_eq!(taken(7, true).1, 2_000);
}

#[test]
fn link_is_told_from_others_whatever_its_mtu() {
    assert_eq!(LINK.macs(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!((LINK.vlan(), LINK.mtu()), ([0x20, 7], 1500));
    let fingerprint = LINK.fingerprint(3);
    assert_eq!(LINK.with_mtu(9000).fingerprint(3), fingerprint);
    assert_ne!(LINK.fingerprint(4), fingerprint);
    for byte in 0..12 {
        let mut macs = LINK.macs();
        macs[byte] ^= 1;
        let other = NatLink::new(macs, LINK.vlan(), 1500);
        assert_ne!(other.fingerprint(3), fingerprint, "byte {byte}");
    }
    let other = NatLink::new(LINK.macs(), [0x20, 8], 1500);
    assert_ne!(other.fingerprint(3), fingerprint);
}
