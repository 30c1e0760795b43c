//! The node's own traffic shares its ports with the NodePorts.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::RangeInclusive,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use lab::{Machine, Topology};

use crate::support::{Cluster, Flow, Mode, PodService, Protocol, Service, serve_on_pods};

const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// Ports of the server outside; with one, a node would run out of NodePorts to masquerade with.
const OUTSIDE_PORTS: RangeInclusive<u16> = 7001..=7004;
const WORKERS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// Questions by UDP until one is answered.
const TRIES: u32 = 5;

/// Every masqueraded flow gets a source port that is a NodePort.
const INTO_NODE_PORTS: &str = "table ip into_node_ports {
  chain postrouting {
    type nat hook postrouting priority srcnat - 1;
    ip saddr 10.2.0.0/16 ip daddr != 10.2.0.0/16 meta l4proto { tcp, udp } \\
      masquerade to :30000-32767 fully-random
  }
}
table ip6 into_node_ports {
  chain postrouting {
    type nat hook postrouting priority srcnat - 1;
    ip6 saddr fd00:2::/96 ip6 daddr != fd00:2::/96 meta l4proto { tcp, udp } \\
      masquerade to :30000-30255 fully-random
  }
}
";

/// The flows of a family, and the NodePorts that they are masqueraded with.
struct Load {
    unspecified: IpAddr,
    node_ports: RangeInclusive<u16>,
    tcp: usize,
    udp: usize,
}

const LOADS: [Load; 2] = [
    Load {
        unspecified: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        node_ports: NODE_PORTS,
        tcp: 8000,
        udp: 2000,
    },
    Load {
        unspecified: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        node_ports: 30_000..=30_255,
        tcp: 800,
        udp: 200,
    },
];

/// Servers outside that answer each flow with the port that they see.
struct Outside {
    address: IpAddr,
    seen: Mutex<BTreeSet<u16>>,
    stop: AtomicBool,
}

impl Outside {
    fn serve_tcp(&self, listener: &TcpListener) {
        while let Ok((mut stream, peer)) = listener.accept() {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.seen.lock().unwrap().insert(peer.port());
            let mut question = [0; 4];
            // A client that gives up is counted where it does.
            if stream.read_exact(&mut question).is_ok() {
                let _ = stream.write_all(&question);
            }
        }
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        let mut question = [0; 4];
        while let Ok((length, peer)) = socket.recv_from(&mut question) {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.seen.lock().unwrap().insert(peer.port());
            let _ = socket.send_to(&question[..length], peer);
        }
    }
}

fn ask_by_tcp(to: SocketAddr, question: [u8; 4]) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&question)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    Ok(answer == question)
}

/// Asks again as resolvers do: conntrack drops one of two first packets that get the same port at the same time.
fn ask_by_udp(from: IpAddr, to: SocketAddr, question: [u8; 4]) -> io::Result<bool> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE / TRIES))?;
    let mut answer = [0; 4];
    let mut answered = Err(io::ErrorKind::TimedOut.into());
    for _ in 0..TRIES {
        socket.send(&question)?;
        answered = socket.recv(&mut answer);
        if answered.is_ok() {
            break;
        }
    }
    Ok(answer[..answered?] == question)
}

/// Asks from a pod until `next` has reached the number of all flows; returns what failed.
fn ask(pod: &Machine, outside: IpAddr, load: &Load, next: &AtomicUsize) -> Vec<String> {
    let ports: Vec<u16> = OUTSIDE_PORTS.collect();
    let mut failed = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= load.tcp + load.udp {
            return failed;
        }
        let to = SocketAddr::new(outside, ports[number % ports.len()]);
        let question = u32::try_from(number).unwrap().to_be_bytes();
        let answered = if number < load.tcp {
            ask_by_tcp(to, question)
        } else {
            ask_by_udp(pod.address_like(outside), to, question)
        };
        match answered {
            Ok(true) => {}
            Ok(false) => failed.push(format!("{number}: a wrong answer")),
            Err(error) => failed.push(format!("{number}: {error}")),
        }
    }
}

#[test]
fn masqueraded_flows_survive_when_every_node_port_is_in_use() {
    let net = Topology::builder().pods(1).build().unwrap();
    let client = &net.clients()[0];
    for node in net.nodes() {
        node.namespace().nft(INTO_NODE_PORTS).unwrap();
    }
    let of_port = |address, port| {
        [Protocol::Tcp, Protocol::Udp].map(|protocol| PodService {
            node_port: Some(port),
            ..PodService::over_all(Service {
                address: SocketAddr::new(address, port),
                protocol,
                mode: Mode::IpipV4,
            })
        })
    };
    let services: Vec<PodService<'_>> = LOADS
        .iter()
        .flat_map(|load| {
            let (ports, address) = (load.node_ports.clone(), load.unspecified);
            ports.flat_map(move |port| of_port(address, port))
        })
        .collect();
    let _echoes = serve_on_pods(&net, &services);
    let _cluster = Cluster::start(&net, &services);

    for load in &LOADS {
        let outside = Outside {
            address: client.address_like(load.unspecified),
            seen: Mutex::default(),
            stop: AtomicBool::new(false),
        };
        let failed = flows_to(&net, client, &outside, load);
        assert!(
            failed.is_empty(),
            "{} to {} failed: {:?}",
            failed.len(),
            outside.address,
            failed.first()
        );
        let seen = outside.seen.lock().unwrap();
        let ports = load.node_ports.clone();
        assert!(seen.iter().all(|port| ports.contains(port)));
        let most = ports.len() * 3 / 4;
        assert!(seen.len() > most, "{} NodePorts were used", seen.len());

        // What the kernel knows of its own flows keeps nobody from the NodePorts that they had.
        for (node, port) in net.nodes().iter().zip([*ports.start(), *ports.end()]) {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let service = Service {
                    address: (node.address_like(load.unspecified), port).into(),
                    protocol,
                    mode: Mode::IpipV4,
                };
                Flow::open_many(client, &[service], 4);
            }
        }
    }
}

/// Opens all flows from the pods to servers on a machine; returns what failed.
fn flows_to(net: &Topology, machine: &Machine, outside: &Outside, load: &Load) -> Vec<String> {
    let bind = |port: u16| {
        let address = SocketAddr::new(outside.address, port);
        machine.namespace().run(|| {
            (
                TcpListener::bind(address).unwrap(),
                UdpSocket::bind(address).unwrap(),
            )
        })
    };
    let sockets: Vec<(TcpListener, UdpSocket)> = OUTSIDE_PORTS.map(bind).collect();
    let (pods, next): (Vec<&Machine>, _) = (net.pods().collect(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for (listener, socket) in &sockets {
            scope.spawn(|| outside.serve_tcp(listener));
            scope.spawn(|| outside.serve_udp(socket));
        }
        let ask = |worker: usize| {
            let pod = pods[worker % pods.len()];
            let next = &next;
            scope.spawn(move || {
                pod.namespace()
                    .run(|| ask(pod, outside.address, load, next))
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(ask).collect();
        let failed = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap());
        let failed = failed.collect();
        outside.stop.store(true, Ordering::Relaxed);
        machine.namespace().run(|| {
            for port in OUTSIDE_PORTS {
                let address = SocketAddr::new(outside.address, port);
                let _ = TcpStream::connect(address);
                let _ = UdpSocket::bind((outside.address, 0))
                    .and_then(|socket| socket.send_to(&[], address));
            }
        });
        failed
    })
}
