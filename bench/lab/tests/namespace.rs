//! Namespaces, links and programs in them. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::{
    fs,
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use lab::{Cidr, Error, Namespace, Offload, Process, Route, Signal, Veth, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Two namespaces with a cable between `eth0` and `eth0`.
fn pair(queues: u32) -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    Veth::between((&a, "eth0"), (&b, "eth0"))
        .queues(queues)
        .mtu(1400)
        .create()
        .unwrap();
    (a, b)
}

#[test]
fn run_sees_its_own_interfaces_and_returns_the_value() {
    let (a, _b) = pair(1);
    let mut interfaces = a.run(|| {
        fs::read_dir("/sys/class/net")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>()
    });
    interfaces.sort();
    assert_eq!(interfaces, ["eth0", "lo"]);
}

#[test]
fn run_keeps_the_working_directory_and_leaves_the_caller_alone() {
    let namespace = Namespace::new("a").unwrap();
    let before = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let directory = std::env::current_dir().unwrap();
    let inside = namespace.run(|| {
        (
            std::env::current_dir().unwrap(),
            fs::read_link("/proc/thread-self/ns/net").unwrap(),
        )
    });
    assert_eq!(inside.0, directory);
    assert_ne!(inside.1, before);
    assert_eq!(fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
}

#[test]
fn its_name_leads_to_the_namespace() {
    let namespace = Namespace::new("a").unwrap();
    let named = fs::metadata(Path::new("/run/netns").join(namespace.name())).unwrap();
    let inside = namespace.run(|| fs::metadata("/proc/thread-self/ns/net").unwrap());
    assert_eq!((named.dev(), named.ino()), (inside.dev(), inside.ino()));
}

#[test]
fn a_file_is_seen_inside_its_own_namespace_alone() {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let path = a.write_file("agent.yaml", "roles: [edge]").unwrap();
    a.write_file("agent.yaml", "roles: [node]").unwrap();
    let output = a.command("cat").arg(&path).output().unwrap();
    assert_eq!(output.stdout, b"roles: [node]");
    let entries =
        |namespace: &Namespace| namespace.run(|| fs::read_dir(Namespace::FILES).unwrap().count());
    assert_eq!((entries(&a), entries(&b)), (1, 0));
    assert!(!path.exists(), "on the host");
}

#[test]
fn a_command_finds_interfaces_in_sys_and_starts_in_the_given_directory() {
    let (a, _b) = pair(1);
    let output = a
        .command("sh")
        .args(["-c", "cat /sys/class/net/eth0/mtu; pwd"])
        .current_dir("/usr")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1400\n/usr\n");
}

#[test]
fn a_bpffs_is_kept_by_its_namespace_and_not_shared() {
    let (a, b) = pair(1);
    let directory = Path::new("/sys/fs/bpf/lab-test");
    let made = a.command("mkdir").arg(directory).status().unwrap();
    assert!(made.success());
    assert!(a.run(|| directory.is_dir()), "gone with the first process");
    assert!(!b.run(|| directory.exists()), "seen in another namespace");
    assert!(!directory.exists(), "seen on the host");
}

#[test]
fn every_queue_asked_for_exists() {
    let (a, b) = pair(3);
    for namespace in [&a, &b] {
        let link = namespace.link("eth0").unwrap();
        let queues = namespace.run(|| fs::read_dir(link.sysfs().join("queues")).unwrap().count());
        assert_eq!(queues, 6, "3 receive and 3 transmit queues");
    }
}

#[test]
fn macs_are_the_same_in_every_run() {
    // Both ends stay: an interface goes with the other end's namespace.
    let [first, second] = [pair(1), pair(1)];
    let mac = |(namespace, _): &(Namespace, Namespace)| namespace.link("eth0").unwrap().mac();
    assert_eq!(mac(&first), mac(&second));
}

#[test]
fn offloads_read_back_as_set() {
    let (a, _b) = pair(1);
    let link = a.link("eth0").unwrap();
    let [tx, tso, gso] = [Offload::Tx, Offload::Tso, Offload::Gso];
    let all = [tx, tso, gso, Offload::TxVlan, Offload::Gro];
    let state = || all.map(|offload| link.offload(offload).unwrap());
    assert_eq!(state(), [true, true, true, true, false], "veth's defaults");
    link.disable_tx_offloads().unwrap();
    assert_eq!(state(), [false; 5]);
    link.set_offload(Offload::Gro, true).unwrap();
    link.set_offload(Offload::Tx, true).unwrap();
    assert!(link.offload(Offload::Tx).unwrap());
    assert!(link.offload(Offload::Gro).unwrap());
}

#[test]
fn packets_follow_addresses_and_static_neighbours_and_are_counted() {
    let (a, b) = pair(1);
    for (namespace, host) in [(&a, "1"), (&b, "2")] {
        let link = namespace.link("eth0").unwrap();
        link.add_address(cidr(&format!("192.0.2.{host}/24")))
            .unwrap();
        link.add_address(cidr(&format!("2001:db8::{host}/64")))
            .unwrap();
    }
    let (near, far) = (a.link("eth0").unwrap(), b.link("eth0").unwrap());
    for address in ["192.0.2.2", "2001:db8::2"] {
        let listener = b.run(|| UdpSocket::bind((address, 7)).unwrap());
        listener.set_read_timeout(Some(TIMEOUT)).unwrap();
        near.set_neighbour(address.parse().unwrap(), far.mac())
            .unwrap();
        let before = far.stats().unwrap();
        a.run(|| {
            let any = if address.contains(':') {
                "[::]:0"
            } else {
                "0.0.0.0:0"
            };
            let socket = UdpSocket::bind(any).unwrap();
            socket.send_to(b"hello", (address, 7)).unwrap();
        });
        let mut buffer = [0; 16];
        let (length, _) = listener.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"hello");
        let after = far.stats().unwrap();
        assert!(after.rx_packets > before.rx_packets, "{before:?} {after:?}");
        assert!(after.rx_bytes >= before.rx_bytes + 14 + 20 + 8 + 5);
        near.delete_neighbour(address.parse().unwrap()).unwrap();
    }
}

#[test]
fn a_link_that_is_down_loses_its_routes_until_they_are_added_again() {
    let (a, _b) = pair(1);
    let link = a.link("eth0").unwrap();
    link.add_address(cidr("192.0.2.1/24")).unwrap();
    let route = Route::to(Cidr::ANY_V4).via([192, 0, 2, 2]);
    a.add_route(&route).unwrap();
    let reachable = || a.run(|| UdpSocket::bind("0.0.0.0:0")?.connect("198.51.100.1:7"));
    reachable().unwrap();
    link.set_down().unwrap();
    assert!(!link.is_ready().unwrap());
    reachable().unwrap_err();
    link.set_up().unwrap();
    a.add_route(&route).unwrap();
    reachable().unwrap();
    a.delete_route(Cidr::ANY_V4).unwrap();
    reachable().unwrap_err();
}

#[test]
fn a_carrier_that_goes_and_comes_is_counted() {
    let (a, b) = pair(1);
    let (one, other) = (a.link("eth0").unwrap(), b.link("eth0").unwrap());
    for link in [&one, &other] {
        link.set_up().unwrap();
    }
    one.wait_until_ready().unwrap();
    let before = one.carrier_changes().unwrap().unwrap();
    other.set_down().unwrap();
    wait_until("the carrier is lost", TIMEOUT, || {
        one.carrier_changes().unwrap().is_none()
    })
    .unwrap();
    other.set_up().unwrap();
    one.wait_until_ready().unwrap();
    assert_eq!(one.carrier_changes().unwrap(), Some(before + 2));
    one.set_down().unwrap();
    assert_eq!(one.carrier_changes().unwrap(), None);
}

#[test]
fn a_refusal_names_namespace_and_action() {
    let (a, _b) = pair(1);
    let link = a.link("eth0").unwrap();
    let error = link.remove_address(cidr("192.0.2.1/24")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: cannot remove 192.0.2.1/24 from eth0", a.name())
    );
    let error = a.link("eth7").unwrap_err();
    assert!(
        error.to_string().contains("find the interface eth7"),
        "{error}"
    );
}

#[test]
fn a_program_is_observed_signalled_and_waited_for() {
    let namespace = Namespace::new("a").unwrap();
    let script = "trap 'echo reloaded' USR1; echo started >&2; while :; do sleep 0.05; done";
    let mut process = Process::spawn(namespace.command("sh").args(["-c", script])).unwrap();
    let line = process.wait_for_line("start", TIMEOUT).unwrap();
    assert_eq!(line, "started");
    process.signal(Signal::SIGUSR1).unwrap();
    process.wait_for_line("reloaded", TIMEOUT).unwrap();
    assert_eq!(process.stdout(), "reloaded\n");
    assert!(process.is_running());
    let status = process.stop(TIMEOUT).unwrap();
    assert!(!status.success());
    process.signal(Signal::SIGUSR1).unwrap_err();
}

#[test]
fn a_program_that_ends_early_is_reported_with_its_output() {
    let namespace = Namespace::new("a").unwrap();
    let mut process =
        Process::spawn(namespace.command("sh").args(["-c", "echo no luck; exit 3"])).unwrap();
    let error = process.wait_for_line("ready", TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("exit status: 3") && message.contains("no luck"),
        "{message}"
    );
}

#[test]
fn dropping_a_program_ends_its_children_too() {
    let namespace = Namespace::new("a").unwrap();
    let script = "sleep 1000 & echo child $!; wait";
    let mut process = Process::spawn(namespace.command("sh").args(["-c", script])).unwrap();
    let line = process.wait_for_line("child", TIMEOUT).unwrap();
    let child = line.strip_prefix("child ").unwrap();
    let child = Path::new("/proc").join(child).join("ns/net");
    assert!(child.exists());
    let parent = format!("/proc/{}", process.id());
    drop(process);
    assert!(!Path::new(&parent).exists(), "reaped");
    wait_until("the child is gone", TIMEOUT, || !child.exists()).unwrap();
}

#[test]
fn dropping_a_namespace_ends_what_still_runs_in_it() {
    let namespace = Namespace::new("a").unwrap();
    let mut child = namespace.command("sleep").arg("1000").spawn().unwrap();
    let name = Path::new("/run/netns").join(namespace.name());
    assert!(name.exists());
    drop(namespace);
    assert!(!name.exists());
    assert!(!child.wait().unwrap().success());
}

#[test]
fn sockets_opened_inside_work_outside() {
    let namespace = Namespace::new("a").unwrap();
    let listener = namespace.run(|| TcpListener::bind("127.0.0.1:80").unwrap());
    let client = namespace.run(|| TcpStream::connect("127.0.0.1:80").unwrap());
    let (_, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
}

#[test]
fn counters_of_tcp_are_read_by_name() {
    let namespace = Namespace::new("counters").unwrap();
    let sent = || namespace.tcp_counter("TCPOrigDataSent").unwrap();
    assert_eq!(sent(), 0);
    // Open while it is counted: an end is sent, too.
    let _connection = namespace.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::io::Write::write_all(&mut client, b"data").unwrap();
        (listener, client)
    });
    assert_eq!(sent(), 1);
    assert!(namespace.tcp_counter("NoSuchCounter").is_err());
}
