//! How long it takes from an EndpointSlice's event to the tables, with 10 000 Services beside it, and from
//! complete lists of 5 000 Services with 50 endpoints each to full tables.
//!
//! Everything between watch and kernel maps but netlink, health checks and the hand-over between threads.
//! Needs root: `cargo bench -p control --bench one_change`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use control::desired::Desired;
use control::health::selection::Selection;
use control::index::objects::{
    Endpoint, EndpointPort, EndpointSlice, Ingress, Node, NodeAddress, ObjectName, Service,
    ServicePort,
};
use control::index::{Index, Options, Presence};
use control::plan::{Installed, Operation, plan};
use control::target::{Machine, Shapes};
use fastpath::load::Loader;
use fastpath::tables::{Settings, Tables};
use xdp_prog::abi::map;

const NODES: u32 = 100;
const ROUNDS: u32 = 1_000;
/// So many of the rounds are slower than the 99th percentile.
const SLOWEST: usize = 10;

fn main() {
    let mut many = World::new();
    many.fill(10_000, 2);
    many.report("one endpoint of 10 000 x 2");
    let mut large = World::new();
    println!(
        "5 000 x 50 from lists to tables: {:?}",
        large.fill(5_000, 50)
    );
    large.report("one endpoint of 5 000 x 50");
}

/// The way from objects to maps.
struct World {
    index: Index,
    desired: Desired,
    machine: Machine,
    shapes: Shapes,
    tables: Tables,
    settings: Option<Settings>,
    endpoints: u32,
}

impl World {
    fn new() -> Self {
        let loaded = Loader::unpinned()
            .max_entries(map::LUT, 1 << 24)
            .max_entries(map::SERVICES_V4, 16_384)
            .max_entries(map::SERVICE, 16_384)
            .max_entries(map::SERVICE_TRAFFIC, 16_384)
            .max_entries(map::BACKENDS, 300_000)
            .max_entries(map::BACKEND_TRAFFIC, 300_000)
            .max_entries(map::VIPS, 65_536)
            .max_entries(map::PODS, 16_384)
            .load()
            .expect("root and a kernel that takes the object");
        let options = Options {
            node_name: Some("node-0".to_owned()),
            ..Options::default()
        };
        let own = [address(0x0a00_0000).into()];
        Self {
            index: Index::new(options),
            desired: Desired {
                edge: true,
                node: control::desired::Role::IfListed,
                ..Desired::default()
            },
            machine: Machine {
                addresses: own.into(),
                primary: own.into(),
                ..Machine::default()
            },
            shapes: Shapes::default(),
            tables: Tables::open(&loaded).expect("the maps of the object"),
            settings: None,
            endpoints: 0,
        }
    }

    /// Takes lists, and brings them into the tables; returns how long that took.
    fn fill(&mut self, services: u32, endpoints: u32) -> Duration {
        self.endpoints = endpoints;
        let start = Instant::now();
        for number in 0..NODES {
            self.index.apply_node(node(number));
        }
        self.index.set_presence(Presence {
            nodes: (0..NODES).map(|number| format!("node-{number}")).collect(),
            ..Presence::default()
        });
        for number in 0..services {
            self.index.apply_service(service(number));
            self.index.apply_slice(slice(number, endpoints, 0));
        }
        self.bring_about();
        start.elapsed()
    }

    /// Measures single changes.
    fn report(&mut self, what: &str) {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|round| self.change(round)).collect();
        times.sort_unstable();
        times.reverse();
        let (p50, p99, max) = (times[times.len() / 2], times[SLOWEST], times[0]);
        println!("{what}: p50 {p50:?}, p99 {p99:?}, max {max:?}");
    }

    /// Replaces one endpoint of one Service.
    fn change(&mut self, round: u32) -> Duration {
        let start = Instant::now();
        self.index
            .apply_slice(slice(round % 1_000, self.endpoints, round + 1));
        let puts = self.bring_about();
        assert_eq!(puts, 1);
        let took = start.elapsed();
        self.tables.reclaim();
        took
    }

    /// Does what the agent does with a state; returns how many services were put.
    fn bring_about(&mut self) -> usize {
        self.index.update();
        let state = self.index.state().clone();
        self.desired.services = state.services;
        self.desired.vips = state.vips;
        self.desired.nodes = state.nodes;
        let selection = Selection::all(&self.desired);
        let target = self.shapes.target(&selection.desired, &self.machine);
        let services = self.tables.services();
        let installed = Installed {
            settings: self.settings,
            addresses: self.tables.addresses(),
            trusted_edges: self.tables.trusted_edges(),
            services: services
                .map(|(key, service)| (*key, service.shared_spec()))
                .collect(),
            interfaces: BTreeMap::new(),
            egress: BTreeMap::new(),
        };
        let mut puts = 0;
        for operation in plan(&installed, &target) {
            match operation {
                Operation::Settings(settings) => {
                    self.tables.set_settings(settings).expect("settings");
                    self.settings = Some(settings);
                }
                Operation::Trust(prefixes) => {
                    self.tables.set_trusted_edges(&prefixes).expect("edges");
                }
                Operation::Addresses(addresses) => {
                    self.tables.set_addresses(&addresses).expect("addresses");
                }
                Operation::Put(key, spec) => {
                    self.tables.put_shared_service(key, spec).expect("room");
                    puts += 1;
                }
                Operation::Resolve { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        puts
    }
}

fn address(bits: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(bits)
}

fn node(number: u32) -> Node {
    Node {
        name: format!("node-{number}"),
        addresses: vec![NodeAddress {
            kind: "InternalIP".to_owned(),
            address: address(0x0a00_0000 + number).to_string(),
        }],
        ..Node::default()
    }
}

fn service(number: u32) -> Service {
    Service {
        name: ObjectName::new("default", format!("service-{number}")),
        kind: Some("LoadBalancer".to_owned()),
        load_balancer_class: Some(Options::DEFAULT_CLASS.to_owned()),
        cluster_ips: vec![address(0x0a60_0000 + number).to_string()],
        ports: vec![ServicePort {
            name: Some("http".to_owned()),
            protocol: Some("TCP".to_owned()),
            port: 80,
            node_port: None,
        }],
        ingress: vec![Ingress {
            ip: Some(address(0x0b00_0000 + number).to_string()),
            ip_mode: Some("VIP".to_owned()),
        }],
        ..Service::default()
    }
}

/// A slice whose first endpoint is another one in each round.
fn slice(number: u32, endpoints: u32, round: u32) -> EndpointSlice {
    let endpoint = |index: u32| {
        let pod = match index {
            0 => 0x0c00_0000 + (round << 10) + (number & 0x3ff),
            _ => 0x6400_0000 + number * 64 + index,
        };
        Endpoint {
            addresses: vec![address(pod).to_string()],
            ready: Some(true),
            node_name: Some(format!("node-{}", 1 + (number + index) % (NODES - 1))),
            ..Endpoint::default()
        }
    };
    EndpointSlice {
        name: ObjectName::new("default", format!("service-{number}-x")),
        labels: [(
            "kubernetes.io/service-name".to_owned(),
            format!("service-{number}"),
        )]
        .into(),
        address_type: "IPv4".to_owned(),
        endpoints: (0..endpoints).map(endpoint).collect(),
        ports: vec![EndpointPort {
            name: Some("http".to_owned()),
            protocol: Some("TCP".to_owned()),
            port: Some(8080),
        }],
    }
}
