use super::slot;

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
