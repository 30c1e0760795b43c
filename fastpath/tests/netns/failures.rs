//! Frames that the kernel cannot send although the program said so are counted, by cause.
//!
//! The counters are the machine's: tests that run beside these may move them too, never back.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use aya::{
    EbpfLoader,
    maps::PerCpuArray,
    programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use fastpath::{
    attach::Options,
    facts,
    load::{Loaded, Loader},
    nexthop::{NextHop, Resolution},
    pins::Pins,
    tables::{BackendSpec, ForwardMode, Protocol, ServiceKey, ServiceSpec, Settings, Tables},
};
use lab::{Link, Namespace, Veth, wait_until};
use xdp_prog::{
    abi::map,
    failure::{Failure, TRACEPOINTS},
};

pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
/// The client's address.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
pub(crate) const PORT: u16 = 7000;
pub(crate) const DATAGRAMS: u64 = 40;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of the loopback device of any network namespace.
const LOOPBACK: u32 = 1;
/// A number that no device has.
const NOWHERE: u32 = 1 << 30;

#[test]
fn what_cannot_be_sent_is_counted_by_its_cause() {
    let machines = Machines::new();
    let (downlink, far) = machines.links();
    machines.edge.run(|| {
        let mut edge = Edge::start(Loader::unpinned());
        let mut lost = |to: u32, cause: Failure| {
            edge.lead_to(to);
            let (forwarded, before) = (edge.forwarded(), edge.failures(cause));
            machines.send();
            wait_until(cause.label(), TIMEOUT, || {
                edge.failures(cause) >= before + DATAGRAMS
            })
            .unwrap();
            assert_eq!(edge.forwarded(), forwarded + DATAGRAMS, "{cause:?}");
        };
        lost(LOOPBACK, Failure::Unsupported);
        lost(NOWHERE, Failure::NoDevice);
        // The other end has to take frames, or the device takes none from XDP.
        far.attach_pass().unwrap();
        downlink.set_mtu(68).unwrap();
        lost(downlink.index(), Failure::TooLong);
        downlink.set_down().unwrap();
        lost(downlink.index(), Failure::DeviceDown);

        downlink.set_mtu(1500).unwrap();
        downlink.set_up().unwrap();
        downlink.wait_until_ready().unwrap();
        let before = far.stats().unwrap().rx_packets;
        edge.lead_to(downlink.index());
        machines.send();
        wait_until("they arrive", TIMEOUT, || {
            far.stats().unwrap().rx_packets >= before + DATAGRAMS
        })
        .unwrap();
    });
}

/// The client's end of the cable has neither an XDP program nor GRO, as those of newcomers' labs.
#[test]
fn what_a_veth_cannot_send_back_its_driver_counts() {
    let machines = Machines::new();
    let _links = machines.links();
    machines.edge.run(|| {
        let mut edge = Edge::start(Loader::unpinned());
        assert_eq!(lost("up0"), 0);
        edge.lead_to(facts::interface("up0").unwrap().index);
        let forwarded = edge.forwarded();
        machines.send();
        wait_until("the driver counts them", TIMEOUT, || {
            lost("up0") == DATAGRAMS
        })
        .unwrap();
        assert_eq!(edge.forwarded(), forwarded + DATAGRAMS);
    });
}

fn lost(device: &str) -> u64 {
    facts::transmit_errors(device).unwrap().values().sum()
}

#[test]
fn each_is_counted_once_whoever_came_last_until_all_is_detached() {
    let machines = Machines::new();
    let _links = machines.links();
    machines.edge.run(|| {
        let pins = Pins::new(PathBuf::from(format!(
            "/sys/fs/bpf/failures-{}",
            std::process::id()
        )));
        drop(Edge::start(Loader::pinned(pins.clone())));
        let mut edge = Edge::start(Loader::pinned(pins.clone()));
        edge.lead_to(NOWHERE);
        // A round in which no test beside this one loses frames likewise.
        wait_until("each is counted once", TIMEOUT, || {
            let before = edge.failures(Failure::NoDevice);
            let forwarded = edge.forwarded();
            machines.send();
            wait_until("all are forwarded", TIMEOUT, || {
                edge.forwarded() == forwarded + DATAGRAMS
            })
            .unwrap();
            edge.failures(Failure::NoDevice) == before + DATAGRAMS
        })
        .unwrap();
        // Somebody removes what is pinned, and the agent puts it back.
        fs::remove_dir_all(pins.map("").with_file_name("programs")).unwrap();
        edge.loaded.count_failures().unwrap();
        edge.loaded.count_failures().unwrap();
        let links = TRACEPOINTS.map(|(tracepoint, _)| link_at(&pins, tracepoint).unwrap());

        pins.remove_all().unwrap();
        assert!(!pins.root().exists());
        wait_until("no program is at a tracepoint", TIMEOUT, || {
            !links.iter().any(|link| exists(link))
        })
        .unwrap();
    });
}

#[test]
fn what_is_told_otherwise_or_of_others_is_not_counted() {
    const XDP_TX: u64 = 3;
    const XDP_REDIRECT: u64 = 4;
    const DEVMAP: u64 = 14;
    const ENETDOWN: u64 = (-100_i32).cast_unsigned() as u64;
    let mut object = EbpfLoader::new()
        .map_max_entries(map::LUT, 1024)
        .load(fastpath::object::bytes())
        .unwrap();
    let mut counted = |program: &str, arguments: &[u64]| {
        let program: &mut RawTracePoint = object.program_mut(program).unwrap().try_into().unwrap();
        if program.fd().is_err() {
            program.load().unwrap();
        }
        let mut options = RawTracePointRunOptions::new();
        options.args[..arguments.len()].copy_from_slice(arguments);
        program.test_run(options).unwrap();
        let counters = PerCpuArray::<_, u64>::try_from(object.map(map::FAILURES).unwrap()).unwrap();
        Failure::ALL.map(|failure| {
            counters
                .get(&failure.index(), 0)
                .unwrap()
                .iter()
                .sum::<u64>()
        })
    };
    // The pointers are no business of the programs.
    assert_eq!(counted("guideway_exception", &[0, 0, XDP_REDIRECT]), [0; 6]);
    assert_eq!(
        counted("guideway_exception", &[0, 0, XDP_TX]),
        [0, 0, 0, 0, 1, 0]
    );
    assert_eq!(
        counted("guideway_redirect_err", &[0, 0, 0, ENETDOWN, DEVMAP, 7, 7]),
        [0, 0, 0, 0, 1, 0]
    );
    assert_eq!(
        counted("guideway_redirect_err", &[0, 0, 0, ENETDOWN, 0, 7, 7]),
        [0, 1, 0, 0, 1, 0]
    );
}

/// Returns the number of the pinned link, as the kernel counts links.
fn link_at(pins: &Pins, tracepoint: &str) -> Option<String> {
    let pin = pins
        .map("")
        .with_file_name("programs")
        .join(format!("trace-{tracepoint}"));
    let shown = bpftool(&["show", "pinned", &pin.display().to_string()])?;
    Some(shown.split(':').next()?.to_owned())
}

fn exists(link: &str) -> bool {
    bpftool(&["show", "id", link]).is_some()
}

fn bpftool(arguments: &[&str]) -> Option<String> {
    let output = Command::new("bpftool").arg("link").args(arguments).output();
    let output = output.unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(shown)
}

/// client - edge - node.
pub(crate) struct Machines {
    pub(crate) client: Namespace,
    pub(crate) edge: Namespace,
    pub(crate) node: Namespace,
}

impl Machines {
    pub(crate) fn new() -> Self {
        let machine = |label| Namespace::new(label).unwrap();
        Self {
            client: machine("client"),
            edge: machine("edge"),
            node: machine("node"),
        }
    }

    /// Connects them; returns the edge's link to the node, and the node's.
    pub(crate) fn links(&self) -> (Link<'_>, Link<'_>) {
        let (port, uplink) = Veth::between((&self.client, "eth0"), (&self.edge, "up0"))
            .create()
            .unwrap();
        port.add_address(format!("{CLIENT}/24").parse().unwrap())
            .unwrap();
        port.set_neighbour(VIP.into(), uplink.mac()).unwrap();
        let (downlink, far) = Veth::between((&self.edge, "down0"), (&self.node, "eth0"))
            .create()
            .unwrap();
        (downlink, far)
    }

    pub(crate) fn send(&self) {
        self.client.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..DATAGRAMS {
                socket.send_to(&[0; 100], (VIP, PORT)).unwrap();
            }
        });
    }
}

pub(crate) struct Edge {
    pub(crate) loaded: Loaded,
    pub(crate) tables: Tables,
}

impl Edge {
    pub(crate) fn start(loader: Loader) -> Self {
        let mut loaded = loader
            .max_entries(map::LUT, 4096)
            .max_entries(map::BACKENDS, 64)
            .max_entries(map::BACKEND_TRAFFIC, 64)
            .load()
            .unwrap();
        loaded.count_failures().unwrap();
        loaded.attach("up0", &Options::default()).unwrap();
        let mut tables = Tables::open(&loaded).unwrap();
        let settings = Settings {
            source_v4: Some(EDGE),
            ..Settings::default()
        };
        tables.set_settings(settings).unwrap();
        let spec = ServiceSpec {
            mode: ForwardMode::Ipip,
            backends: [BackendSpec::node(NODE.into(), 1)].into(),
            ..ServiceSpec::default()
        };
        let key = ServiceKey {
            address: VIP.into(),
            port: PORT,
            protocol: Protocol::Udp,
        };
        tables.put_service(key, &spec).unwrap();
        Self { loaded, tables }
    }

    /// Names the device by which the node is reached, be it there or not.
    fn lead_to(&mut self, ifindex: u32) {
        self.lead(ifindex, false);
    }

    /// As [`Self::lead_to`]; the agent may have to send by this device.
    pub(crate) fn lead(&mut self, ifindex: u32, is_carried: bool) {
        let hop = NextHop {
            ifindex,
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            is_carried,
            via_gateway: false,
            vlan: None,
            mtu: 1500,
            source: Some(IpAddr::V4(EDGE)),
        };
        self.tables
            .set_next_hop(NODE.into(), Resolution::Resolved(hop))
            .unwrap();
    }

    pub(crate) fn forwarded(&self) -> u64 {
        let counters = self.tables.counters().unwrap();
        counters.services[0].1.packets
    }

    fn failures(&self, cause: Failure) -> u64 {
        let counters = self.tables.counters().unwrap();
        let mut failures = counters.failures.into_iter();
        failures.find(|(failure, _)| *failure == cause).unwrap().1
    }
}
