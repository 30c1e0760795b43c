//! Captures on an edge: what comes, what goes, and why.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::next_hops::resolve;
use fastpath::{
    attach,
    capture::{
        Capture, CaptureError, Captured, Filter, Headers, Network, Options, Outcomes, Reasons,
        action, clear_away,
    },
    load::{Loaded, Loader},
    pins::Pins,
    tables::{
        BackendSpec, ForwardMode, NatSettings, Protocol, ServiceKey, ServiceSpec, Settings, Tables,
    },
};
use lab::{Machine, Topology, vip_v4, wait_until};
use xdp_prog::{
    abi::{AddressKey, map},
    reason::{PassReason, ReplyReason},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const IPIP: u16 = 7000;
const NAT: u16 = 7001;
const EMPTY: u16 = 7002;
const NOWHERE: u16 = 7003;

#[test]
fn every_way_through_the_program_is_seen_with_its_outcome() {
    let lab = lab();
    let edge = Edge::start(&lab);
    let mut capture = edge.capture(&options()).unwrap();
    let node = lab.nodes()[0].v4();

    let frame = edge.send_and_take(&mut capture, IPIP);
    assert_eq!(outcome(&frame), (action::TRANSMIT, Reasons::default()));
    assert_eq!(frame.event.after_length, frame.event.before_length + 20);
    assert_eq!(&frame.after[34..42], &frame.before[14..22]);
    assert_eq!(&frame.after[46..], &frame.before[26..], "but for the TTL");
    let left = Headers::read(&frame.after);
    assert_eq!(left.packets[0].destination.ip(), node);
    assert_eq!(
        left.packets[1],
        Headers::read(&frame.before).packets[0],
        "the packet within is the one that came"
    );

    // Through tail calls to two stages.
    let frame = edge.send_and_take(&mut capture, NAT);
    assert_eq!(outcome(&frame), (action::TRANSMIT, Reasons::default()));
    assert_eq!(frame.event.after_length, frame.event.before_length);
    let left = Headers::read(&frame.after);
    assert_eq!(left.packets[0].destination, SocketAddr::new(node, NAT));

    let frame = edge.send_and_take(&mut capture, EMPTY);
    // The answer is made by a stage, too.
    let unreachable = only(ReplyReason::PortUnreachable.index());
    assert_eq!(outcome(&frame), (action::TRANSMIT, unreachable));

    let frame = edge.send_and_take(&mut capture, NOWHERE);
    let no_service = only(PassReason::NoService.index());
    assert_eq!(outcome(&frame), (action::PASS, no_service));
    assert!(!frame.is_changed());

    assert_eq!(frame.event.ifindex, edge.ifindex());
    assert!(frame.event.after_ns > frame.event.before_ns);
    assert_eq!(capture.lost().unwrap(), 0);
}

#[test]
fn frames_beyond_the_snap_length_are_cut_and_keep_their_length() {
    let lab = lab();
    let edge = Edge::start(&lab);
    let options = Options {
        snap: 64,
        ..options()
    };
    let mut capture = edge.capture(&options).unwrap();
    edge.send_bytes(IPIP, &[7; 1000]);
    let frame = edge.take(&mut capture, IPIP);
    assert_eq!((frame.before.len(), frame.after.len()), (64, 64));
    assert_eq!(frame.event.before_length, 14 + 20 + 8 + 1000);
}

#[test]
fn outcomes_that_nobody_wants_are_left_out() {
    let lab = lab();
    let edge = Edge::start(&lab);
    let options = Options {
        outcomes: Outcomes {
            reasons: only(PassReason::NoService.index()),
            forwarded: 0,
        },
        ..options()
    };
    let mut capture = edge.capture(&options).unwrap();
    edge.send(IPIP);
    edge.send(NOWHERE);
    let mut frames = edge.take_all(&mut capture, NOWHERE);
    assert_eq!(frames.len(), 1);
    assert_eq!(port(&frames.remove(0)), Some(NOWHERE));
}

#[test]
fn sampling_takes_about_its_share() {
    const SENT: usize = 4000;
    const ONE_IN: u32 = 10;
    let lab = lab();
    let edge = Edge::start(&lab);
    let options = Options {
        sample: ONE_IN,
        ..options()
    };
    let mut capture = edge.capture(&options).unwrap();
    let mut frames = Vec::new();
    edge.send_many(IPIP, SENT, |sent| {
        edge.wait_for_forwarded(sent);
        frames.extend(edge.take_some(&mut capture));
    });
    // Sent until one is taken: what came before it has been through.
    let end = |frame: &Captured| port(frame) == Some(EMPTY);
    wait_until("a later frame is taken", TIMEOUT, || {
        edge.send(EMPTY);
        frames.extend(edge.take_some(&mut capture));
        frames.iter().any(end)
    })
    .unwrap();
    let taken = frames.iter().filter(|frame| port(frame) == Some(IPIP));
    let taken = taken.count();
    // Six standard deviations of a binomial distribution on either side.
    assert!((286..=514).contains(&taken), "{taken} of {SENT}");
}

#[test]
fn there_is_one_capture_at_a_time_and_a_killed_one_does_not_last() {
    let lab = lab();
    let edge = Edge::start(&lab);
    let capture = edge.capture(&options()).unwrap();
    let error = edge.capture(&options()).unwrap_err();
    assert!(matches!(error, CaptureError::Busy { .. }), "{error}");
    drop(capture);

    // As if the process had been killed.
    std::mem::forget(edge.capture(&options()).unwrap());
    wait_until("the next one can begin", TIMEOUT, || {
        let machine = edge.machine.namespace();
        machine.run(|| clear_away(&edge.pins)).unwrap();
        edge.capture(&options()).is_ok()
    })
    .unwrap();
    edge.send(NOWHERE);
}

#[test]
fn what_is_not_attached_is_named() {
    let lab = lab();
    let options = Options {
        interfaces: vec!["eth7".to_owned()],
        ..options()
    };
    let start = || Capture::start(&unique_pins(), &options);
    let error = lab.edges()[0].namespace().run(start).unwrap_err();
    assert!(matches!(error, CaptureError::NotAttached { .. }), "{error}");

    let edge = Edge::start(&lab);
    let error = edge.capture(&options).unwrap_err().to_string();
    assert!(error.contains("eth7") && error.contains("eth0"), "{error}");
}

fn outcome(frame: &Captured) -> (u32, Reasons) {
    (frame.event.action, frame.event.reasons)
}

/// The port that a client's datagram is for.
fn port(frame: &Captured) -> Option<u16> {
    let packet = Headers::read(&frame.before).packets.first().copied()?;
    (packet.destination.ip() == IpAddr::V4(vip_v4(1))).then(|| packet.destination.port())
}

/// Of a directory of its own, whatever the BPF file system has.
fn unique_pins() -> Pins {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    Pins::new(format!("/sys/fs/bpf/guideway-capture-{process}-{number}"))
}

fn only(index: u32) -> Reasons {
    let mut reasons = Reasons::default();
    reasons.insert(index);
    reasons
}

/// Everything that the client sends to the VIP.
fn options() -> Options {
    let vip = vip_v4(1);
    Options {
        interfaces: Vec::new(),
        filter: Filter {
            networks: [
                Network::new(AddressKey::v4(vip.octets()), 128),
                Network::default(),
            ],
            is_set: [1, 0],
            ..Filter::default()
        },
        outcomes: Outcomes::ALL,
        sample: 1,
        snap: 256,
    }
}

fn lab() -> Topology {
    Topology::builder().nodes(1).build().unwrap()
}

/// The edge's program and tables, and a client.
struct Edge<'lab> {
    machine: &'lab Machine,
    client: &'lab Machine,
    pins: Pins,
    loaded: Option<Loaded>,
    tables: Tables,
}

impl<'lab> Edge<'lab> {
    fn start(lab: &'lab Topology) -> Self {
        let machine = &lab.edges()[0];
        let pins = unique_pins();
        let (loaded, mut tables) = machine.namespace().run(|| {
            let mut loaded = Loader::pinned(pins.clone())
                .max_entries(map::LUT, 4096)
                .max_entries(map::BACKENDS, 64)
                .max_entries(map::BACKEND_TRAFFIC, 64)
                .load()
                .unwrap();
            loaded.attach("eth0", &attach::Options::default()).unwrap();
            let tables = Tables::open(&loaded).unwrap();
            (loaded, tables)
        });
        let settings = Settings {
            nat: Some(NatSettings::default()),
            ..Settings::default()
        };
        tables.set_settings(settings).unwrap();
        let node = lab.nodes()[0].v4();
        machine.namespace().run(|| resolve(&mut tables, &[node]));
        for (port, mode, backends) in [
            (IPIP, ForwardMode::Ipip, vec![BackendSpec::node(node, 1)]),
            (
                NAT,
                ForwardMode::Nat,
                vec![BackendSpec::nat(SocketAddr::new(node, NAT), 1)],
            ),
            (EMPTY, ForwardMode::Ipip, Vec::new()),
        ] {
            let key = ServiceKey {
                address: vip_v4(1).into(),
                port,
                protocol: Protocol::Udp,
            };
            let spec = ServiceSpec {
                mode,
                backends,
                ..ServiceSpec::default()
            };
            tables.put_service(key, &spec).unwrap();
        }
        Self {
            machine,
            client: &lab.clients()[0],
            pins,
            loaded: Some(loaded),
            tables,
        }
    }

    fn capture(&self, options: &Options) -> Result<Capture, CaptureError> {
        let start = || Capture::start(&self.pins, options);
        self.machine.namespace().run(start)
    }

    fn ifindex(&self) -> u32 {
        let index = || fastpath::facts::interface("eth0").unwrap().index;
        self.machine.namespace().run(index)
    }

    /// Sends a datagram from the client to the VIP.
    fn send(&self, port: u16) {
        self.send_bytes(port, b"a question");
    }

    fn send_bytes(&self, port: u16, bytes: &[u8]) {
        self.client.namespace().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(bytes, (vip_v4(1), port)).unwrap();
        });
    }

    /// Sends datagrams; `arrive` waits for so many, now and then: queues on the way hold some hundred.
    fn send_many(&self, port: u16, count: usize, mut arrive: impl FnMut(usize) + Send) {
        const ON_THE_WAY: usize = 100;
        self.client.namespace().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for sent in 1..=count {
                socket.send_to(b"a question", (vip_v4(1), port)).unwrap();
                if sent % ON_THE_WAY == 0 {
                    arrive(sent);
                }
            }
        });
    }

    /// Waits until so many packets were forwarded to the backend.
    fn wait_for_forwarded(&self, packets: usize) {
        wait_until("all have come", TIMEOUT, || {
            let counters = self.tables.counters().unwrap();
            let services = counters.services.iter();
            let forwarded: u64 = services.map(|(_, traffic)| traffic.packets).sum();
            forwarded >= packets as u64
        })
        .unwrap();
    }

    fn send_and_take(&self, capture: &mut Capture, port: u16) -> Captured {
        self.send(port);
        self.take(capture, port)
    }

    /// Waits for a datagram to a port of the VIP.
    fn take(&self, capture: &mut Capture, wanted: u16) -> Captured {
        let mut frames = self.take_all(capture, wanted).into_iter();
        frames.find(|frame| port(frame) == Some(wanted)).unwrap()
    }

    /// Takes what there is up to a datagram to a port of the VIP.
    fn take_all(&self, capture: &mut Capture, wanted: u16) -> Vec<Captured> {
        let deadline = Instant::now() + TIMEOUT;
        let mut frames = Vec::new();
        while !frames.iter().any(|frame| port(frame) == Some(wanted)) {
            assert!(Instant::now() < deadline, "none among {}", frames.len());
            frames.extend(self.take_some(capture));
        }
        frames
    }

    /// Waits a little and takes what there is; a capture looks at the pins now and then.
    fn take_some(&self, capture: &mut Capture) -> Vec<Captured> {
        self.machine.namespace().run(|| {
            capture.wait(Duration::from_millis(100)).unwrap();
            std::iter::from_fn(|| capture.take().unwrap()).collect()
        })
    }
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        let loaded = self.loaded.take();
        self.machine.namespace().run(|| {
            drop(loaded);
            self.pins.remove_all().unwrap();
        });
    }
}
