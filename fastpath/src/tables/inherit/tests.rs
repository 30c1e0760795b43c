mod resized;

use std::{fs, net::SocketAddr, path::PathBuf, process::Command};

use xdp_prog::{
    abi::{AddressKey, FLOW_FIN_CLIENT, FLOW_HAIRPIN, NAT_ANSWERED, NAT_FIN_CLIENT, NatLink, map},
    wire::protocol,
};
use zerocopy::IntoBytes as _;

use super::*;
use crate::{
    load::{Loaded, Loader},
    object::testing::stubs,
    tables::{BackendSpec, ForwardMode, NatSettings, ServiceKey, ServiceSpec, Settings},
};

const CLIENT: AddressKey = AddressKey::v4([192, 0, 2, 1]);
const VIP: AddressKey = AddressKey::v4([10, 99, 0, 1]);
const POD: AddressKey = AddressKey::v4([10, 244, 1, 6]);
const BACKEND: AddressKey = AddressKey::v4([10, 0, 0, 7]);
const OWN: AddressKey = AddressKey::v4([10, 0, 0, 100]);
const HTTP: [u8; 2] = 80_u16.to_be_bytes();
const TARGET: [u8; 2] = 8080_u16.to_be_bytes();
const SEEN: u64 = 0x0102_0304_0500;
/// The sizes of layout 3: kind, key and value.
const FORMER: [(&str, &str, usize, usize); 7] = [
    (map::LOCAL_FLOWS, "lru_hash", 40, 8),
    (map::FLOWS_EMBRYONIC, "lru_hash", 40, 32),
    (map::FLOWS_DATAGRAM, "lru_hash", 40, 32),
    (map::FLOWS, "lru_hash", 40, 32),
    ("HAIRPINS", "lru_hash", 40, 16),
    (map::NAT_REVERSE, "hash", 40, 72),
    (map::NAT_FORWARD, "hash", 40, 24),
];

/// Maps of layout 3, made and filled by `bpftool`.
struct Former(PathBuf);

impl Former {
    fn new(test: &str) -> Self {
        let process = std::process::id();
        let former = Self(format!("/sys/fs/bpf/guideway-inherit-{process}-{test}").into());
        fs::create_dir_all(former.0.join("v3/maps")).unwrap();
        fs::create_dir_all(former.0.join("v3/links")).unwrap();
        for (name, kind, key, value) in FORMER {
            let sizes = format!("type {kind} key {key} value {value} entries 64 name {name}");
            former.bpftool(&format!("create {} {sizes}", former.pin(name)));
        }
        // Stands for a link: what is not attached any more is not in force.
        let link = former.0.join("v3/links/xdp-eth0");
        former.bpftool(&format!(
            "create {} type array key 4 value 4 entries 1 name link",
            link.display()
        ));
        former
    }

    fn pin(&self, name: &str) -> String {
        self.0.join("v3/maps").join(name).display().to_string()
    }

    fn put(&self, name: &str, key: &[u8], value: &[u8]) {
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!(" {byte:02x}")).collect() };
        let (key, value) = (hex(key), hex(value));
        let pin = self.pin(name);
        self.bpftool(&format!(
            "update pinned {pin} key hex{key} value hex{value}"
        ));
    }

    fn bpftool(&self, arguments: &str) {
        let mut command = Command::new("bpftool");
        command.arg("map").args(arguments.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
    }

    fn open(&self) -> FormerTables {
        let [former] = FormerTables::open(&Pins::new(&self.0))
            .unwrap()
            .try_into()
            .expect("layout 3 is in force");
        former
    }
}

impl Drop for Former {
    fn drop(&mut self) {
        // Removes pins and directories, whatever is there.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tuple(source: AddressKey, destination: AddressKey, ports: [u16; 2], protocol: u8) -> Tuple {
    let [from, to] = ports.map(u16::to_be_bytes);
    Tuple::new(source, destination, from, to, protocol)
}

/// A flow to a pod as layout 3 spells it.
fn to_pod(outer: u8, state: u8) -> Vec<u8> {
    let parts: [&[u8]; 5] = [
        VIP.as_bytes(),
        &SEEN.to_ne_bytes(),
        &HTTP,
        &[outer, state],
        &[0; 4],
    ];
    parts.concat()
}

/// Tables with one service of NAT mode.
fn tables() -> (Loaded, Tables) {
    let loaded = Loader::unpinned().object(stubs()).load().unwrap();
    let tables = with_service(&loaded);
    (loaded, tables)
}

/// Programs that do nothing, because no packet comes here.
fn with_service(loaded: &Loaded) -> Tables {
    let mut tables = Tables::open(loaded).unwrap();
    let settings = Settings {
        nat: Some(NatSettings::default()),
        ..Settings::default()
    };
    tables.set_settings(settings).unwrap();
    let spec = ServiceSpec {
        mode: ForwardMode::Nat,
        backends: vec![BackendSpec::nat(SocketAddr::from(([10, 0, 0, 7], 8080)), 1)],
        ..ServiceSpec::default()
    };
    let key: ServiceKey = "10.99.0.1:80/tcp".parse().unwrap();
    tables.put_service(key, &spec).unwrap();
    tables
}

#[test]
fn flows_to_pods_and_of_the_kernel_go_on() {
    const FIN: u8 = FLOW_FIN_CLIENT;
    const RESET: u8 = 4;
    let former = Former::new("pods");
    let of = |client_port, protocol| tuple(CLIENT, POD, [client_port, 8080], protocol);
    let [tcp, silent, udp, asked] = [
        of(1000, protocol::TCP),
        of(1001, protocol::TCP),
        of(1002, protocol::UDP),
        of(1003, protocol::UDP),
    ];
    former.put(map::FLOWS, tcp.as_bytes(), &to_pod(20, FIN | RESET));
    former.put(map::FLOWS_EMBRYONIC, silent.as_bytes(), &to_pod(0, 0));
    former.put(map::FLOWS_DATAGRAM, udp.as_bytes(), &to_pod(40, 0));
    former.put(map::FLOWS_EMBRYONIC, asked.as_bytes(), &to_pod(0, 0));
    // A client on the pod's own machine, whom the pod sees as the VIP; and one that is forgotten.
    let hairpin = tuple(VIP, POD, [1004, 8080], protocol::TCP);
    let forgotten = tuple(VIP, POD, [1005, 8080], protocol::TCP);
    for key in [hairpin, forgotten] {
        former.put(map::FLOWS, key.as_bytes(), &to_pod(0, FLOW_HAIRPIN));
    }
    former.put("HAIRPINS", hairpin.as_bytes(), CLIENT.as_bytes());
    let local = tuple(CLIENT, OWN, [53, 30_080], protocol::UDP);
    former.put(map::LOCAL_FLOWS, local.as_bytes(), &SEEN.to_ne_bytes());

    let (_loaded, mut tables) = tables();
    let inherited = tables.inherit_flows(&mut former.open(), true).unwrap();
    assert_eq!((inherited.to_pods, inherited.local), (5, 1));
    let made =
        |key: &Tuple, third, outer, state| PodFlow::new(key, third, HTTP, outer, state, SEEN);
    let answered = |key: &Tuple| tables.flows.get(key);
    assert_eq!(answered(&tcp), Some(made(&tcp, VIP, 20, FIN)));
    assert_eq!(answered(&silent), Some(made(&silent, VIP, 0, 0)));
    assert_eq!(
        answered(&hairpin),
        Some(made(&hairpin, CLIENT, 0, FLOW_HAIRPIN))
    );
    assert_eq!(answered(&forgotten), None);
    let datagrams = tables.flows_datagram.get(&udp);
    assert_eq!(datagrams, Some(made(&udp, VIP, 40, 0)));
    let embryonic = tables.flows_embryonic.get(&asked);
    assert_eq!(embryonic, Some(made(&asked, VIP, 0, 0)));
    let until = tables.local_flows.get(&local).unwrap().until();
    assert_eq!(until, SEEN);
    assert_eq!(tables.local_ports.read(&30_080).unwrap(), SEEN);
}

#[test]
fn flows_of_nat_mode_go_on_where_their_backend_serves() {
    const OPEN: u8 = NAT_OPEN | NAT_ANSWERED;
    let former = Former::new("nat");
    let link = NatLink::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [0, 7], 1500);
    // Client's port, port at the edge, backend, flags.
    let flows = [
        (1000, 61_000, BACKEND, OPEN | NAT_FIN_CLIENT | 16),
        (1001, 61_001, BACKEND, NAT_ANSWERED),
        (1002, 61_002, POD, OPEN),
    ];
    for (client_port, port, backend, flags) in flows {
        let key = tuple(CLIENT, VIP, [client_port, 80], protocol::TCP);
        let reply = tuple(backend, OWN, [8080, port], protocol::TCP);
        let mark = NatMark::new(SEEN, flags);
        let ports = [client_port.to_be_bytes(), HTTP].concat();
        let reverse: [&[u8]; 8] = [
            &[9; 4],
            &3_u32.to_ne_bytes(),
            mark.as_bytes(),
            CLIENT.as_bytes(),
            VIP.as_bytes(),
            link.as_bytes(),
            &ports,
            &[0; 4],
        ];
        former.put(map::NAT_REVERSE, reply.as_bytes(), &reverse.concat());
        let forward: [&[u8]; 4] = [&[9; 8], mark.as_bytes(), &77_u32.to_ne_bytes(), &[0; 4]];
        former.put(map::NAT_FORWARD, key.as_bytes(), &forward.concat());
    }

    let (_loaded, mut tables) = tables();
    let mut flows = former.open();
    assert_eq!(tables.inherit_flows(&mut flows, true).unwrap().nat, 1);
    let key = tuple(CLIENT, VIP, [1000, 80], protocol::TCP);
    let reply = tuple(BACKEND, OWN, [8080, 61_000], protocol::TCP);
    let entry = tables.nat.entries.forward.get(&key).unwrap();
    assert!(entry.is_for(&key) && entry.is_answered_as(&reply));
    assert_eq!(entry.mark, NatMark::new(SEEN, OPEN | NAT_FIN_CLIENT));
    assert_eq!(entry.port(), 61_000_u16.to_be_bytes());
    assert_eq!(entry.fingerprint(), link.fingerprint(3));
    let backend = tables.backends.get(entry.backend()).unwrap();
    assert_eq!((backend.pod, backend.port), (BACKEND, TARGET));
    let reverse = tables.nat.entries.reverse.get(&reply).unwrap();
    assert_eq!(
        (reverse.forward_key(protocol::TCP), reverse.ifindex),
        (key, 3)
    );
    assert_eq!(tables.nat.entries.reverse.keys().unwrap().len(), 1);

    // What is known stays as it is.
    let newer = NatForward::new(&key, &reply, entry.backend(), 1, NatMark::new(SEEN, OPEN));
    tables.nat.entries.forward.insert(key, newer).unwrap();
    assert_eq!(tables.inherit_flows(&mut flows, true).unwrap().nat, 0);
    assert_eq!(tables.nat.entries.forward.get(&key).unwrap(), newer);
}

#[test]
fn a_layout_that_is_not_attached_or_not_known_gives_nothing() {
    let former = Former::new("gone");
    fs::rename(former.0.join("v3"), former.0.join("v2")).unwrap();
    assert!(
        FormerTables::open(&Pins::new(&former.0))
            .unwrap()
            .is_empty()
    );
    fs::rename(former.0.join("v2"), former.0.join("v3")).unwrap();
    fs::remove_file(former.0.join("v3/links/xdp-eth0")).unwrap();
    assert!(
        FormerTables::open(&Pins::new(&former.0))
            .unwrap()
            .is_empty()
    );
}
