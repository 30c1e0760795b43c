//! An edge in test runs: the loaded program with one service of NAT mode.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use aya::{
    maps::{HashMap, Map, MapData},
    programs::{TestRun, TestRunOptions},
};
use fastpath::{
    load::{Loaded, Loader},
    tables::{
        BackendSpec, ForwardMode, NatSettings, Protocol, ServiceKey, ServiceSpec, Settings, Tables,
    },
};
use xdp_prog::abi::{AddressKey, NatForward, NatReverse, Tuple, map};

use crate::loopback;

/// The address that flows have at their backends, and the first of their ports.
pub(crate) const EDGE: Ipv4Addr = loopback::OWN;
pub(crate) const FIRST_PORT: u16 = 20_000;
const XDP_TX: u32 = 3;

/// Loads the program, which balances one service over its backends by so many ports.
pub(crate) fn balance(
    loader: Loader,
    (vip, protocol): (SocketAddrV4, Protocol),
    backends: &[SocketAddrV4],
    ports: u16,
) -> (Loaded, Tables) {
    let loaded = loader.load().unwrap();
    let mut tables = Tables::open(&loaded).unwrap();
    let nat = NatSettings {
        first_port: FIRST_PORT,
        ports,
        ..NatSettings::default()
    };
    let settings = Settings {
        nat: Some(nat),
        ..Settings::default()
    };
    tables.set_settings(settings).unwrap();
    for backend in backends {
        tables
            .set_next_hop((*backend.ip()).into(), loopback::next_hop())
            .unwrap();
    }
    let backend = |end: &SocketAddrV4| BackendSpec::nat((*end).into(), 1);
    let spec = ServiceSpec {
        mode: ForwardMode::Nat,
        backends: backends.iter().map(backend).collect(),
        ..ServiceSpec::default()
    };
    let key = ServiceKey {
        address: IpAddr::V4(*vip.ip()),
        port: vip.port(),
        protocol,
    };
    tables.put_service(key, &spec).unwrap();
    (loaded, tables)
}

/// Runs the program on a frame; returns the ends of the packet as it is sent on, or the action where it is not.
pub(crate) fn sent_on(loaded: &Loaded, frame: &[u8]) -> Result<(SocketAddrV4, SocketAddrV4), u32> {
    const IP: usize = 14;
    let mut output = [0; 64];
    let result = loaded.program().test_run(TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut output),
        ..TestRunOptions::default()
    });
    let action = result.unwrap().return_value;
    if action != XDP_TX {
        return Err(action);
    }
    let end = |address: usize, port: usize| {
        let address: [u8; 4] = output[IP + address..][..4].try_into().unwrap();
        let port = output[IP + port..][..2].try_into().unwrap();
        SocketAddrV4::new(address.into(), u16::from_be_bytes(port))
    };
    Ok((end(12, 20), end(16, 22)))
}

/// Returns the key of packets between two ends.
pub(crate) fn tuple(from: SocketAddrV4, to: SocketAddrV4, protocol: u8) -> Tuple {
    let [source, destination] = [from, to].map(|end| AddressKey::v4(end.ip().octets()));
    let [from, to] = [from, to].map(|end| end.port().to_be_bytes());
    Tuple::new(source, destination, from, to, protocol)
}

/// Opens a table of flows.
pub(crate) fn table<V: aya::Pod>(loaded: &Loaded, name: &str) -> HashMap<MapData, Tuple, V> {
    HashMap::try_from(Map::HashMap(loaded.map(name).unwrap())).unwrap()
}

/// Every flow has both entries, each leads to the other, and nobody is about to remove one.
pub(crate) fn assert_consistent(loaded: &Loaded, flows: usize) {
    let forward = table::<NatForward>(loaded, map::NAT_FORWARD);
    let reverse = table::<NatReverse>(loaded, map::NAT_REVERSE);
    let reverse: Vec<_> = reverse.iter().map(Result::unwrap).collect();
    assert_eq!((forward.keys().count(), reverse.len()), (flows, flows));
    for (reply, back) in reverse {
        let key = back.forward_key(reply.protocol());
        let there = forward.get(&key, 0).unwrap();
        assert!(there.is_for(&key) && there.is_answered_as(&reply));
    }
    assert_eq!(table::<u64>(loaded, map::NAT_CLAIMS).keys().count(), 0);
}
