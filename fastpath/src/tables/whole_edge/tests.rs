//! What threads see of the hashes, also if these cannot be read for a while.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use xdp_prog::{abi::AddressKey, world::Tables as _};

use super::{EdgeTables, EdgeWorld, Hashes};
use crate::{
    load::{Loaded, Loader},
    tables::{Addresses, BackendSpec, Protocol, ServiceKey, ServiceSpec, Tables, gate},
};

const VIP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

#[test]
fn threads_see_a_change_once_its_hash_can_be_read() {
    let (_loaded, mut tables, edge) = begin();
    let mut world = edge.world(0).unwrap();
    gate::refuse_reads(|| {
        tables.set_addresses(vips()).unwrap();
        tables.show_unseen().unwrap_err();
    });
    assert!(!knows_vip(&mut world));
    // Another change, of another hash.
    tables.set_trusted_edges(&BTreeSet::new()).unwrap();
    assert!(knows_vip(&mut world));

    gate::refuse_reads(|| tables.set_addresses(Arc::default()).unwrap());
    assert!(knows_vip(&mut world));
    tables.show_unseen().unwrap();
    assert!(!knows_vip(&mut world));
}

#[test]
fn id_of_a_service_is_kept_until_threads_have_forgotten_its_clients() {
    let (_loaded, mut tables, edge) = begin();
    put_for_client(&mut tables);
    assert!(admits(&edge));
    tables.remove_service(&service()).unwrap();
    gate::refuse_reads(|| tables.reclaim());
    assert_eq!(tables.fill().services.used, 1);
    assert!(admits(&edge));
    tables.reclaim();
    assert_eq!(tables.fill().services.used, 0);
    assert!(!admits(&edge));
}

#[test]
fn what_has_not_changed_is_not_read_again() {
    let (_loaded, mut tables, edge) = begin();
    tables.set_addresses(vips()).unwrap();
    let before = edge.snapshots.newest().hashes.clone();
    put_for_client(&mut tables);
    let after = edge.snapshots.newest().hashes.clone();
    let is_same = |hashes: [&Hashes; 2]| {
        let [before, after] = hashes;
        [
            Arc::ptr_eq(&before.vips, &after.vips),
            Arc::ptr_eq(&before.overflow, &after.overflow),
            Arc::ptr_eq(&before.trusted_edges, &after.trusted_edges),
            Arc::ptr_eq(&before.edge_macs, &after.edge_macs),
            Arc::ptr_eq(&before.source_ranges, &after.source_ranges),
        ]
    };
    assert_eq!(is_same([&before, &after]), [true, true, true, true, false]);
}

/// Empty tables, and what threads see of them.
fn begin() -> (Loaded, Tables, Arc<EdgeTables>) {
    let loaded = Loader::unpinned().whole_edge().load().unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    let edge = Arc::new(Tables::edge_tables(&loaded).unwrap());
    tables.serve_edge(Arc::clone(&edge)).unwrap();
    (loaded, tables, edge)
}

fn vips() -> Arc<Addresses> {
    Arc::new(Addresses {
        vips: BTreeSet::from([VIP.into()]),
        ..Addresses::default()
    })
}

const fn service() -> ServiceKey {
    ServiceKey {
        address: IpAddr::V4(VIP),
        port: 80,
        protocol: Protocol::Udp,
    }
}

/// Puts a service for the client alone.
fn put_for_client(tables: &mut Tables) {
    let spec = ServiceSpec {
        backends: [BackendSpec::node(NODE.into(), 1)].into(),
        source_ranges: [IpAddr::from(CLIENT).into()].into(),
        ..ServiceSpec::default()
    };
    tables.put_service(service(), &spec).unwrap();
}

fn knows_vip(world: &mut EdgeWorld) -> bool {
    world.begin();
    let flags = world.address_flags(&AddressKey::v4(VIP.octets()));
    world.end();
    flags != 0
}

/// Tells whether threads admit the clients of the service that came first.
fn admits(edge: &EdgeTables) -> bool {
    let mut world = edge.world(0).unwrap();
    world.begin();
    world.is_in_source_range(1, &AddressKey::v4(CLIENT.octets()))
}
