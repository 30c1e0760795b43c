//! Virtual addresses without a router in front: neighbours on the segment ask, XDP answers, and a
//! machine that takes over moves what they know at once.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use aya::maps::{Array, Map};
use fastpath::{
    announce::{Announcer, Link, links},
    attach::Options,
    load::{Loaded, Loader},
    nexthop::{Resolution, Resolver, Tracker},
    tables::{
        AnnouncedElsewhere, BackendSpec, ForwardMode, Protocol, ServiceKey, ServiceSpec, Tables,
    },
};
use lab::{Cidr, Mac, Machine, Route, Topology, output, vip_v4, vip_v6, wait_for, wait_until};
use xdp_prog::abi::map;

use crate::STUBS;

const PORT: u16 = 7000;
/// A stamp of the future, which stays young.
const AGELESS: u64 = u64::MAX >> 1;
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn client_on_the_segment_reaches_an_address_that_no_interface_has() {
    let lab = segment();
    let mut edge = Edge::start(&lab.edges()[0]);
    for vip in vips() {
        serve(&lab, vip);
        edge.balance(&lab, vip);
        let client = Client::of(&lab, vip);
        assert_eq!(client.mac_of_vip(), None, "nobody answers yet");

        let before = edge.answered();
        edge.announce([vip]);
        assert_eq!(client.ask(), "served");
        assert_eq!(client.mac_of_vip(), Some(edge.machine.mac()));
        assert!(edge.answered() > before);
    }
}

#[test]
fn takeover_moves_what_a_client_knows_at_once() {
    let lab = segment();
    let [mut first, mut second] = [0, 1].map(|index| Edge::start(&lab.edges()[index]));
    let clients = vips().map(|vip| Client::of(&lab, vip));
    for client in &clients {
        let vip = client.vip;
        serve(&lab, vip);
        for edge in [&mut first, &mut second] {
            edge.balance(&lab, vip);
        }
        first.announce([vip]);
        assert_eq!(client.ask(), "served");
        assert_eq!(client.mac_of_vip(), Some(first.machine.mac()));

        second.announce([vip]);
        second.tell_neighbours(vip);
        wait_until("the client knows the second edge", TIMEOUT, || {
            client.mac_of_vip() == Some(second.machine.mac())
        })
        .unwrap();
        // The first one heard it too, and can yield.
        let heard = AnnouncedElsewhere {
            address: vip,
            mac: second.machine.mac(),
        };
        wait_until("the first edge notes it", TIMEOUT, || {
            first.tables.take_claims().unwrap() == [heard]
        })
        .unwrap();
        assert_eq!(second.tables.take_claims().unwrap(), [], "its own");
    }
    drop(first);
    for client in &clients {
        assert_eq!(client.ask(), "served");
    }
}

#[test]
fn what_programs_of_another_layout_announce_and_have_heard_is_gone_on_with() {
    let lab = segment();
    let [mut old, mut other] = [0, 1].map(|index| Edge::start(&lab.edges()[index]));
    old.announce(vips());
    let [vip, _] = vips();
    other.announce([vip]);
    other.tell_neighbours(vip);
    let inherit = |tables: &mut Tables| {
        let map = |name| old.loaded.as_ref().unwrap().map(name).unwrap();
        let inherited = tables.inherit_announced(map(map::ANNOUNCED), map(map::CLAIMS));
        inherited.unwrap();
    };
    let loader = Loader::unpinned().object(&STUBS);
    let loaded = loader.max_entries(map::LUT, 4096).load();
    let mut new = Tables::open(&loaded.unwrap()).unwrap();
    assert_eq!(new.announced(), BTreeSet::new());
    inherit(&mut new);
    assert_eq!(new.announced(), vips().into());
    let heard = AnnouncedElsewhere {
        address: vip,
        mac: other.machine.mac(),
    };
    wait_until("what the old program has heard is known", TIMEOUT, || {
        new.take_claims().unwrap() == [heard]
    })
    .unwrap();
    assert_eq!(new.take_claims().unwrap(), []);

    // What has announced something itself knows better.
    new.set_announced(&[vip].into()).unwrap();
    new.renew_announcements();
    inherit(&mut new);
    assert_eq!(new.announced(), [vip].into());
}

#[test]
fn machine_that_wants_the_address_learns_that_it_is_taken() {
    let lab = segment();
    let vip = IpAddr::V6(vip_v6(1));
    let mut edge = Edge::start(&lab.edges()[0]);
    edge.announce([vip]);
    let other = lab.nodes()[1].namespace();
    for scope in ["all", "eth0"] {
        let key = format!("net/ipv6/conf/{scope}/accept_dad");
        other.set_sysctl(&key, "1").unwrap();
    }
    let add = ["-6", "address", "add", &format!("{vip}/128"), "dev", "eth0"];
    output(other.command("ip").args(add)).unwrap();
    wait_for("duplicate address detection fails", TIMEOUT, || {
        let show = ["-6", "address", "show", "dev", "eth0"];
        let shown = output(other.command("ip").args(show)).map_err(|error| error.to_string())?;
        if shown.contains("dadfailed") {
            Ok(())
        } else {
            Err(shown)
        }
    })
    .unwrap();
}

#[test]
fn address_is_answered_for_while_the_agent_shows_life() {
    let lab = segment();
    let vip = IpAddr::V4(vip_v4(1));
    let mut edge = Edge::start(&lab.edges()[0]);
    edge.announce([vip]);
    let client = Client::of(&lab, vip);
    edge.set_stamp(0);
    assert!(!edge.tables.answers_for_announced());
    client.look_up();
    assert_eq!((client.mac_of_vip(), edge.answered()), (None, 0));

    wait_until("the client is answered", TIMEOUT, || {
        edge.tables.renew_announcements();
        client.look_up();
        client.mac_of_vip() == Some(edge.machine.mac())
    })
    .unwrap();
}

#[test]
fn withdrawn_address_is_not_answered_for() {
    let lab = segment();
    let vip = IpAddr::V4(vip_v4(1));
    let mut edge = Edge::start(&lab.edges()[0]);
    edge.announce([vip]);
    assert_eq!(edge.tables.announced(), BTreeSet::from([vip]));
    let client = Client::of(&lab, vip);
    wait_until("the client is answered", TIMEOUT, || {
        client.look_up();
        client.mac_of_vip() == Some(edge.machine.mac())
    })
    .unwrap();

    edge.announce([]);
    assert_eq!(edge.tables.announced(), BTreeSet::new());
    client.forget();
    let answered = edge.answered();
    client.look_up();
    assert_eq!((client.mac_of_vip(), edge.answered()), (None, answered));
}

/// Two edges, a node that serves, and one whose namespace is the client's.
fn segment() -> Topology {
    Topology::builder().edges(2).nodes(2).build().unwrap()
}

fn vips() -> [IpAddr; 2] {
    [vip_v4(1).into(), vip_v6(1).into()]
}

/// Answers at the VIP on the first node until the network is gone.
fn serve(lab: &Topology, vip: IpAddr) {
    let node = &lab.nodes()[0];
    node.add_vip(vip).unwrap();
    let listener = node
        .namespace()
        .run(|| TcpListener::bind((vip, PORT)).unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"served");
        }
    });
}

/// A machine that takes the VIP for one of its neighbours' addresses.
struct Client<'lab> {
    machine: &'lab Machine,
    vip: IpAddr,
}

impl<'lab> Client<'lab> {
    fn of(lab: &'lab Topology, vip: IpAddr) -> Self {
        let machine = &lab.nodes()[1];
        let link = machine.link().unwrap();
        let route = Route::to(Cidr::host(vip)).through(&link);
        machine.namespace().add_route(&route).unwrap();
        Self { machine, vip }
    }

    fn ask(&self) -> String {
        self.machine.namespace().run(|| {
            let to = SocketAddr::new(self.vip, PORT);
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        })
    }

    /// Has the kernel ask for the VIP's MAC, and waits until it has it or has given up.
    fn look_up(&self) {
        self.machine.namespace().run(|| {
            let to = SocketAddr::new(self.vip, 9);
            // No one is there: an error, or a RST from whoever has the MAC.
            let _ = TcpStream::connect_timeout(&to, Duration::from_secs(4));
        });
    }

    fn neighbours(&self, arguments: &[&str]) -> String {
        let mut command = self.machine.namespace().command("ip");
        output(command.arg("neighbour").args(arguments)).unwrap()
    }

    fn forget(&self) {
        let vip = self.vip.to_string();
        self.neighbours(&["delete", &vip, "dev", Machine::INTERFACE]);
    }

    fn mac_of_vip(&self) -> Option<Mac> {
        let shown = self.neighbours(&["show", "to", &self.vip.to_string()]);
        let mac = shown.split("lladdr ").nth(1)?;
        Some(parse_mac(mac.split(' ').next()?))
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let _ = self.machine.namespace().delete_route(Cidr::host(self.vip));
    }
}

fn parse_mac(text: &str) -> Mac {
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<u8>>().try_into().unwrap()
}

/// An edge's program and tables.
struct Edge<'lab> {
    machine: &'lab Machine,
    loaded: Option<Loaded>,
    tables: Tables,
    links: Vec<Link>,
}

impl<'lab> Edge<'lab> {
    fn start(machine: &'lab Machine) -> Self {
        machine.namespace().run(|| {
            let mut loaded = Loader::unpinned()
                .max_entries(map::LUT, 4096)
                .max_entries(map::BACKENDS, 64)
                .max_entries(map::BACKEND_TRAFFIC, 64)
                .load()
                .unwrap();
            loaded.attach("eth0", &Options::default()).unwrap();
            Self {
                machine,
                tables: Tables::open(&loaded).unwrap(),
                loaded: Some(loaded),
                links: links(&BTreeSet::from(["eth0".to_owned()])).unwrap(),
            }
        })
    }

    fn balance(&mut self, lab: &Topology, vip: IpAddr) {
        let node = lab.nodes()[0].address_like(vip);
        self.machine.namespace().run(|| {
            let mut resolver = Resolver::new().unwrap();
            let mut tracker = Tracker::default();
            tracker.set_targets([node]);
            wait_until("the next hop is resolved", TIMEOUT, || {
                for (target, way) in tracker.refresh(&mut resolver).unwrap().changes {
                    self.tables.set_next_hop(target, way).unwrap();
                }
                let mut answers = tracker.answers();
                answers.all(|(_, way)| matches!(way, Some(Resolution::Resolved(_))))
            })
            .unwrap();
        });
        let key = ServiceKey {
            address: vip,
            port: PORT,
            protocol: Protocol::Tcp,
        };
        let spec = ServiceSpec {
            mode: ForwardMode::L2dsr,
            backends: [BackendSpec::node(node, 1)].into_iter().collect(),
            ..ServiceSpec::default()
        };
        self.tables.put_service(key, &spec).unwrap();
    }

    /// Says that the agent has shown signs of life until this time, ns.
    fn set_stamp(&self, stamp: u64) {
        let map = self
            .loaded
            .as_ref()
            .unwrap()
            .map(map::ANNOUNCE_STAMP)
            .unwrap();
        let mut stamps = Array::<_, u64>::try_from(Map::Array(map)).unwrap();
        stamps.set(0, stamp, 0).unwrap();
    }

    fn announce<const N: usize>(&mut self, vips: [IpAddr; N]) {
        self.set_stamp(AGELESS);
        assert_eq!(self.links.len(), 1);
        self.tables.set_announce_links(&self.links).unwrap();
        self.tables.set_announced(&BTreeSet::from(vips)).unwrap();
    }

    fn tell_neighbours(&self, vip: IpAddr) {
        let announcer = self.machine.namespace().run(Announcer::new).unwrap();
        for link in &self.links {
            announcer.announce(vip, link).unwrap();
        }
    }

    /// Counts the answers that were given.
    fn answered(&self) -> u64 {
        let counters = self.tables.counters().unwrap();
        let mut reasons = counters.reasons.iter();
        reasons
            .find(|count| count.label == "neighbour")
            .map_or(0, |count| count.packets)
    }
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        // The link is taken off in the namespace of its interface.
        let loaded = self.loaded.take();
        self.machine.namespace().run(|| drop(loaded));
    }
}
