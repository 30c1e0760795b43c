use super::{SLOTS_PER_BACKEND, class_for, slot};

#[test]
fn slot_is_the_top_bits_of_the_hash() {
    assert_eq!(slot(0xffff_ffff, 0), 0);
    assert_eq!(slot(0x8000_0000, 1), 1);
    assert_eq!(slot(0x7fff_ffff, 1), 0);
    assert_eq!(slot(0xab12_3456, 8), 0xab);
    assert_eq!(slot(0xffff_ffff, 20), 0xf_ffff);
    assert_eq!(slot(0x0000_0fff, 20), 0);
}

#[test]
fn slot_of_a_longer_table_splits_the_slot_of_a_shorter_one() {
    for hash in [0, 1, 0x1234_5678, 0x9abc_def0, u32::MAX] {
        assert_eq!(slot(hash, 11) >> 3, slot(hash, 8));
    }
}

#[test]
fn class_is_the_smallest_with_forty_slots_per_backend() {
    let class = |members| class_for(members, SLOTS_PER_BACKEND);
    assert_eq!(class(1), Some(0));
    assert_eq!(class(2), Some(8));
    assert_eq!(class(6), Some(8));
    assert_eq!(class(7), Some(11));
    assert_eq!(class(51), Some(11));
    assert_eq!(class(52), Some(14));
    assert_eq!(class(409), Some(14));
    assert_eq!(class(410), Some(17));
    assert_eq!(class(3276), Some(17));
    assert_eq!(class(3277), Some(20));
}

#[test]
fn class_obeys_the_slots_per_backend_asked_for() {
    assert_eq!(class_for(2, 128), Some(8));
    assert_eq!(class_for(2, 129), Some(11));
    assert_eq!(class_for(300, 0), Some(11));
}

#[test]
fn class_of_a_service_without_backends_does_not_exist() {
    assert_eq!(class_for(0, SLOTS_PER_BACKEND), None);
}

#[test]
fn more_backends_than_the_largest_class_has_slots_are_refused() {
    assert_eq!(class_for(1 << 20, SLOTS_PER_BACKEND), Some(20));
    assert_eq!(class_for((1 << 20) + 1, SLOTS_PER_BACKEND), None);
    assert_eq!(class_for(u32::MAX, u32::MAX), None);
}
