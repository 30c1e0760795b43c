//! Small tables, and what goes into them.

use std::net::IpAddr;

use aya::maps::{Array, HashMap, Map, MapData};
use fastpath::{
    load::{Loaded, Loader},
    nexthop::{NextHop, Resolution},
    pins::Pins,
    tables::{BackendKey, BackendSpec, OwnedBackend, ServiceKey, ServiceSpec, Tables},
};
use xdp_prog::abi::{Pod, PodKey, Tag, map};

use crate::STUBS;

pub(crate) fn small() -> (Loaded, Tables) {
    let loaded = sized(Loader::unpinned()).load().unwrap();
    let tables = Tables::open(&loaded).unwrap();
    (loaded, tables)
}

pub(crate) fn sized(loader: Loader) -> Loader {
    loader
        .object(&STUBS)
        .max_entries(map::LUT, 2048)
        .max_entries(map::SERVICE, 64)
        .max_entries(map::SERVICE_TRAFFIC, 64)
        .max_entries(map::BACKENDS, 64)
        .max_entries(map::BACKEND_TRAFFIC, 64)
        .max_entries(map::NEXTHOPS, 64)
}

pub(crate) fn spec(backends: &[(&str, u32)]) -> ServiceSpec {
    ServiceSpec {
        backends: backends
            .iter()
            .map(|(text, weight)| BackendSpec::node(address(text), *weight))
            .collect(),
        ..ServiceSpec::default()
    }
}

/// Describes a service of nodes for clients of one range.
pub(crate) fn spec_for(range: &str, backends: &[(&str, u32)]) -> ServiceSpec {
    ServiceSpec {
        source_ranges: [range.parse().unwrap()].into(),
        ..spec(backends)
    }
}

/// Describes a service of pods, each with its node.
pub(crate) fn pods(backends: &[(&str, &str)]) -> ServiceSpec {
    let backend =
        |(node, pod): &(&str, &str)| BackendSpec::pod(address(node), pod.parse().unwrap(), 1);
    ServiceSpec {
        backends: backends.iter().map(backend).collect(),
        ..ServiceSpec::default()
    }
}

pub(crate) fn pod_map(loaded: &Loaded) -> HashMap<MapData, PodKey, Pod> {
    HashMap::try_from(Map::HashMap(loaded.map(map::PODS).unwrap())).unwrap()
}

pub(crate) fn pod_count(loaded: &Loaded) -> usize {
    pod_map(loaded).keys().count()
}

pub(crate) fn stray_pod(loaded: &Loaded) {
    let key = PodKey::new(50, Tag(5));
    pod_map(loaded).insert(key, Pod::new(key, 1), 0).unwrap();
}

pub(crate) fn node(text: &str) -> BackendKey {
    BackendKey {
        address: address(text),
        pod: None,
        nat: false,
    }
}

pub(crate) fn nobodys(text: &str) -> OwnedBackend {
    OwnedBackend {
        key: node(text),
        owner: 0,
    }
}

pub(crate) fn resolved(ifindex: u32) -> Resolution {
    Resolution::Resolved(NextHop {
        ifindex,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        is_carried: false,
        via_gateway: false,
        vlan: None,
        mtu: 1500,
        source: Some(address("10.0.0.100")),
    })
}

pub(crate) fn service(text: &str) -> ServiceKey {
    text.parse().unwrap()
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn array<T: aya::Pod>(loaded: &Loaded, name: &str) -> Array<MapData, T> {
    Array::try_from(Map::Array(loaded.map(name).unwrap())).unwrap()
}

/// A pin directory of this test's own, removed with everything in it.
pub(crate) struct TestPins(pub(crate) Pins);

impl TestPins {
    pub(crate) fn new(test: &str) -> Self {
        let directory = format!("/sys/fs/bpf/guideway-test-{}-{test}", std::process::id());
        Self(Pins::new(directory))
    }

    pub(crate) fn load(&self) -> Loaded {
        sized(Loader::pinned(self.0.clone())).load().unwrap()
    }
}

impl Drop for TestPins {
    fn drop(&mut self) {
        let removed = self.0.remove_all();
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}
