//! How long it takes until all 131072 slots of a live service have other owners.
//!
//! From the specification to the last slot in the map that the program reads:
//! Maglev, backend entries, one compare-exchange per slot. Needs root.

use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, criterion_group, criterion_main};
use fastpath::{
    load::Loader,
    tables::{BackendSpec, ServiceSpec, Tables},
};
use xdp_prog::abi::map;

const BACKENDS: u32 = 1000;

fn replace(criterion: &mut Criterion) {
    let loaded = Loader::unpinned()
        .max_entries(map::LUT, 1 << 20)
        .load()
        .expect("root and a kernel that takes the object");
    let mut tables = Tables::open(&loaded).expect("the maps of the object");
    let key = "10.99.0.1:80/tcp".parse().expect("a service");
    let specs = [spec(1), spec(2)];
    let mut round = 0;
    criterion.bench_function(
        "replace 131072 slots, 1000 backends by 1000 others",
        |bencher| {
            bencher.iter(|| {
                round += 1;
                tables
                    .put_service(key, &specs[round % 2])
                    .expect("room in the tables")
            });
        },
    );
}

fn spec(network: u32) -> ServiceSpec {
    let address = |host| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + (network << 16) + host));
    let backend = |host| BackendSpec::node(address(host), 1);
    ServiceSpec {
        log2_slots: Some(17),
        backends: (1..=BACKENDS).map(backend).collect(),
        ..ServiceSpec::default()
    }
}

criterion_group!(benches, replace);
criterion_main!(benches);
