use std::fs;

use aya::maps::MapInfo;
use xdp_prog::abi::map;

use super::*;
use crate::{load::Loaded, object::testing::stubs};

/// The version of which flows are adopted, and tables are not.
const BEFORE: &str = "v4";

/// Pins of an agent whose programs are attached; removed at the end.
struct Pinned(Pins);

impl Pinned {
    fn new(test: &str) -> Self {
        let process = std::process::id();
        let root = format!("/sys/fs/bpf/guideway-takeover-{process}-{test}");
        let pinned = Self(Pins::new(root));
        let loaded = pinned.loader().load().unwrap();
        // Stands for a link.
        let map = loaded.map(map::STAGES).unwrap();
        map.pin(pinned.0.link("eth0")).unwrap();
        pinned
    }

    fn loader(&self) -> Loader {
        let loader = Loader::pinned(self.0.clone()).object(stubs());
        loader.max_entries(map::LUT, 1024)
    }

    /// Makes the pins those of another version.
    fn rename(&self, version: &str) {
        let own = self.0.root().join(format!("v{VERSION}"));
        fs::rename(own, self.0.root().join(version)).unwrap();
    }

    fn id(&self, version: &str, map: &str) -> u32 {
        let pin = self.0.root().join(version).join("maps").join(map);
        MapInfo::from_pin(pin).unwrap().id()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.root());
    }
}

fn id(loaded: &Loaded, map: &str) -> u32 {
    loaded.map(map).unwrap().info().unwrap().id()
}

#[test]
fn maps_of_equal_layout_are_adopted_by_groups() {
    let pinned = Pinned::new("equal");
    pinned.rename(BEFORE);
    let told = pinned.loader().takeover().unwrap();
    assert_eq!(told.layout, Some(4));
    let loaded = pinned.loader().load().unwrap();
    assert_eq!(*loaded.takeover(), told);
    for (map, fate) in [
        (map::FLOWS, Fate::Adopted),
        (map::FLOWS_EMBRYONIC, Fate::Adopted),
        (map::LOCAL_PORTS, Fate::Adopted),
        (map::FRAGMENTS, Fate::Adopted),
        // Equal by itself; but tables that it belongs to are not.
        (map::VIPS, Fate::Replaced),
        (map::LUT, Fate::Replaced),
        (map::REASONS, Fate::Replaced),
        (map::NAT_FORWARD, Fate::Converted),
        (map::ANNOUNCED, Fate::Converted),
    ] {
        assert_eq!(told.maps[map], fate, "{map}");
        let is_shared = id(&loaded, map) == pinned.id(BEFORE, map);
        assert_eq!(is_shared, fate == Fate::Adopted, "{map}");
    }
    // The second start finds pins of its own.
    drop(loaded);
    let again = pinned.loader().load().unwrap();
    assert!(
        again
            .takeover()
            .maps
            .values()
            .all(|fate| *fate == Fate::Adopted)
    );
    assert_eq!(id(&again, map::FLOWS), pinned.id(BEFORE, map::FLOWS));
}

#[test]
fn map_of_another_size_is_not_adopted_nor_is_its_group() {
    let pinned = Pinned::new("size");
    pinned.rename(BEFORE);
    let loader = pinned.loader().max_entries(map::FLOWS, 70_000);
    let loaded = loader.load().unwrap();
    for map in [map::FLOWS, map::FLOWS_DATAGRAM] {
        assert_eq!(loaded.takeover().maps[map], Fate::Converted, "{map}");
    }
    assert_eq!(loaded.takeover().maps[map::LOCAL_FLOWS], Fate::Adopted);
}

#[test]
fn version_of_which_nothing_is_adopted_is_taken_over_too() {
    let pinned = Pinned::new("none");
    pinned.rename("v0");
    let loaded = pinned.loader().load().unwrap();
    assert_eq!(loaded.takeover().layout, Some(0));
    assert_eq!(loaded.takeover().adopted().count(), 0);
}

#[test]
fn map_that_the_earlier_version_did_not_have_is_new() {
    let pinned = Pinned::new("new");
    pinned.rename(BEFORE);
    let flows = pinned.0.root().join(BEFORE).join("maps");
    fs::remove_file(flows.join(map::FRAGMENTS)).unwrap();
    let told = pinned.loader().takeover().unwrap();
    assert_eq!(told.maps[map::FRAGMENTS], Fate::New);
}

#[test]
fn nothing_is_adopted_from_a_newer_version_or_from_programs_that_are_gone() {
    let pinned = Pinned::new("newer");
    let newer = format!("v{}", VERSION + 1);
    pinned.rename(&newer);
    let told = pinned.loader().takeover().unwrap();
    assert_eq!(told.layout, Some(VERSION + 1));
    assert!(
        told.maps.values().all(|fate| *fate == Fate::Replaced),
        "{told:?}"
    );

    fs::rename(pinned.0.root().join(newer), pinned.0.root().join(BEFORE)).unwrap();
    fs::remove_file(pinned.0.root().join(BEFORE).join("links/xdp-eth0")).unwrap();
    let told = pinned.loader().takeover().unwrap();
    assert_eq!(told.layout, None);
    assert!(
        told.maps.values().all(|fate| *fate == Fate::New),
        "{told:?}"
    );
}

#[test]
fn start_that_ended_while_it_adopted_is_made_up_for() {
    let pinned = Pinned::new("ended");
    pinned.rename(BEFORE);
    let half = pinned.0.root().join("adopted/maps");
    fs::create_dir_all(&half).unwrap();
    let [flows] = pinned.0.versions_in_force().unwrap()[0]
        .open_maps([map::FLOWS])
        .unwrap();
    flows.pin(half.join(map::FLOWS)).unwrap();
    let loaded = pinned.loader().load().unwrap();
    assert_eq!(id(&loaded, map::FLOWS), pinned.id(BEFORE, map::FLOWS));
    assert!(!half.exists());
    drop(loaded);
    fs::remove_file(pinned.0.root().join(BEFORE).join("links/xdp-eth0")).unwrap();
    pinned.0.remove_all().unwrap();
    assert!(!pinned.0.root().exists());
}

#[test]
fn load_that_fails_leaves_the_former_pins_alone() {
    let pinned = Pinned::new("fails");
    pinned.rename(BEFORE);
    let loader = pinned.loader().object(b"no object");
    loader.load().unwrap_err();
    let loader = pinned.loader().max_entries(map::VIPS, 0);
    loader.load().unwrap_err();
    assert!(pinned.0.is_unused().unwrap());
    let told = pinned.loader().takeover().unwrap();
    assert_eq!(told.maps[map::FLOWS], Fate::Adopted);
}
