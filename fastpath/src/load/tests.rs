use super::*;

#[test]
fn lru_tables_have_room_for_what_each_cpu_takes() {
    let version = |release| KernelVersion::parse(release);
    assert_eq!(lru_entries(version("6.12.9"), 2), 512);
    assert_eq!(lru_entries(version("6.16.1"), 256), 65_536);
    assert_eq!(lru_entries(None, 256), 65_536);
    assert_eq!(lru_entries(version("6.17.0"), 256), 0);
}

#[test]
fn small_lru_tables_alone_grow_with_the_cpus() {
    let loader = Loader::unpinned()
        .max_entries(map::FLOWS, 20_000)
        .max_entries(map::NAT_FORWARD, 20_000);
    let loader = loader.with_room_for_cpus(65_536).unwrap();
    let sizes: BTreeMap<String, u32> = loader
        .declared_maps()
        .unwrap()
        .into_iter()
        .map(|(name, map)| (name, map.max_entries()))
        .collect();
    for small in [map::FLOWS, map::FRAGMENTS, map::ANSWERS] {
        assert_eq!(sizes[small], 65_536, "{small}");
    }
    assert_eq!(sizes[map::NAT_FORWARD], 20_000, "no LRU");
    assert_eq!(sizes[map::FLOWS_EMBRYONIC], 262_144, "large enough");
}

#[test]
fn size_for_an_unknown_map_is_refused_before_anything_is_loaded() {
    let error = Loader::unpinned()
        .max_entries("NOPE", 1)
        .load()
        .unwrap_err();
    assert!(matches!(error, LoadError::UnknownMap { map } if map == "NOPE"));
}
