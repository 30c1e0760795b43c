use aya::maps::Map;
use xdp_prog::stage::Stage;

use super::*;
use crate::object::testing::stubs;

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

/// Lists the stages that frames can get to.
fn loaded_stages(loaded: &Loaded) -> Vec<Stage> {
    // Aya reads no program arrays. The system calls are the same.
    let places = Map::HashMap(loaded.map(map::STAGES).unwrap());
    let places = aya::maps::HashMap::<_, u32, u32>::try_from(places).unwrap();
    let is_there = |stage: &Stage| places.get(&stage.index(), 0).is_ok();
    Stage::ALL.into_iter().filter(is_there).collect()
}

#[test]
fn stages_of_a_duty_are_loaded_once_it_is_taken_on() {
    let loader = Loader::unpinned().object(stubs());
    let loader = loader.max_entries(map::LUT, 1024);
    let mut loaded = loader.duties(Duties::default()).load().unwrap();
    let reached = |duties| {
        let all = Stage::ALL.into_iter();
        all.filter(|stage| stage.is_reached(duties))
            .collect::<Vec<_>>()
    };
    assert_eq!(loaded_stages(&loaded), reached(Duties::default()));
    let node = Duties {
        node: true,
        nat: false,
    };
    for _ in 0..2 {
        loaded.take_on(node).unwrap();
        assert_eq!(loaded_stages(&loaded), reached(node));
    }
    // What is loaded stays.
    let nat = Duties {
        node: false,
        nat: true,
    };
    loaded.take_on(nat).unwrap();
    assert_eq!(loaded_stages(&loaded), Stage::ALL);
}
