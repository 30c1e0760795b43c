//! Next hops followed through real changes of routes, neighbours, devices and addresses.
//!
//! ```text
//!   edge: e0 10.77.0.1, fd77::1 ---- p0 10.77.0.2, fd77::2 :peer
//!         e1 10.78.0.1          ---- p1 10.78.0.2
//! ```
//!
//! No packet is sent to any target: whatever gets resolved was asked for by the tracker. And
//! nothing is polled: each step waits for the watcher to tell of the change.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastpath::nexthop::{NextHop, Reason, Resolution, Resolver, Tracker, Wake, Watcher};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const EDGE_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 2];
const SECOND_PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0x78, 2];
/// The address that the kernel derives from [`PEER_MAC`].
const PEER_LINK_LOCAL: &str = "fe80::ff:fe00:7702";

/// Longer than the kernel takes to try a failed neighbour again (5 s).
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn targets_on_the_link_and_behind_gateways_get_resolved() {
    let network = Network::new();
    network.edge("route add 198.51.100.0/24 via 10.77.0.2");
    network.edge("-6 route add 2001:db8:1::/48 via fd77::2");
    network.edge(&format!(
        "-6 route add 2001:db8:2::/48 via {PEER_LINK_LOCAL} dev e0"
    ));
    network.edge(&format!(
        "route add 203.0.113.0/24 via inet6 {PEER_LINK_LOCAL} dev e0"
    ));
    network.edge("route add 192.0.2.7 dev e0");
    network.peer("addr add 192.0.2.7/32 dev p0");
    let ways = [
        ("10.77.0.2", "10.77.0.1"),
        ("fd77::2", "fd77::1"),
        ("198.51.100.9", "10.77.0.1"),
        ("2001:db8:1::9", "fd77::1"),
        ("2001:db8:2::9", "fd77::1"),
        ("203.0.113.9", "10.77.0.1"),
        ("192.0.2.7", "10.77.0.1"),
    ];
    let mut follower = network.follow(&ways.map(|(target, _)| target));

    follower.until(|answers| answers.values().all(|answer| hop(answer).is_some()));

    let ifindex = network.ifindex("e0");
    for (target, source) in ways {
        let expected = NextHop {
            ifindex,
            source_mac: EDGE_MAC,
            destination_mac: PEER_MAC,
            via_gateway: !["10.77.0.2", "fd77::2", "192.0.2.7"].contains(&target),
            vlan: None,
            mtu: 1500,
            source: Some(address(source)),
        };
        assert_eq!(follower.hop(target), Some(expected), "{target}");
    }
}

#[test]
fn own_addresses_are_local() {
    let network = Network::new();
    let mut resolver = network.resolver();
    for own in ["10.77.0.1", "fd77::1", "127.0.0.1", "::1"] {
        let answer = resolver.resolve(address(own)).unwrap();
        assert_eq!(answer, Resolution::Local, "{own}");
    }
}

#[test]
fn an_address_that_is_added_becomes_local() {
    let network = Network::new();
    let mut follower = network.follow(&["10.77.0.9", "fd77::9"]);
    follower.refresh();
    network.edge("addr add 10.77.0.9/32 dev e0");
    network.edge("-6 addr add fd77::9/128 dev e0 nodad");
    follower.until(|answers| answers.values().all(|answer| *answer == Resolution::Local));
}

#[test]
fn routes_that_lead_nowhere_have_their_reasons() {
    let network = Network::new();
    for (family, prefix) in [("-4", "192.0.2."), ("-6", "2001:db8::")] {
        network.edge(&format!("{family} route add unreachable {prefix}1"));
        network.edge(&format!("{family} route add blackhole {prefix}2"));
        network.edge(&format!("{family} route add prohibit {prefix}3"));
        network.edge(&format!("{family} route add throw {prefix}4"));
        network.edge(&format!("{family} route add {prefix}5 dev lo"));
    }
    let mut resolver = network.resolver();
    for (target, reason) in [
        ("192.0.2.1", Reason::Unreachable),
        ("2001:db8::1", Reason::Unreachable),
        ("192.0.2.2", Reason::Blackhole),
        ("2001:db8::2", Reason::Blackhole),
        ("192.0.2.3", Reason::Prohibited),
        ("2001:db8::3", Reason::Prohibited),
        ("192.0.2.4", Reason::NoRoute),
        ("2001:db8::4", Reason::NoRoute),
        ("192.0.2.5", Reason::NoMac),
        ("2001:db8::5", Reason::NoMac),
        ("192.0.2.6", Reason::NoRoute),
        ("2001:db8::6", Reason::NoRoute),
        ("10.77.0.255", Reason::NotUnicast),
    ] {
        let answer = resolver.resolve(address(target)).unwrap();
        assert_eq!(answer, Resolution::Unresolved(reason), "{target}");
    }
}

#[test]
fn a_neighbour_that_changes_its_mac_is_followed() {
    let network = Network::new();
    // A neighbour announces a new address only if told to, and is believed a second later.
    run_in(&network.peer, "sysctl -qw net.ipv4.conf.p0.arp_notify=1");
    run_in(&network.edge, "sysctl -qw net.ipv4.neigh.e0.locktime=0");
    let mut follower = network.follow(&["10.77.0.2"]);
    follower.until_mac("10.77.0.2", PEER_MAC);

    network.peer("link set p0 address 02:00:00:00:77:99");

    follower.until_mac("10.77.0.2", [2, 0, 0, 0, 0x77, 0x99]);
}

#[test]
fn a_neighbour_that_comes_late_is_found() {
    let network = Network::new();
    let mut follower = network.follow(&["10.77.0.3", "fd77::3"]);
    // Both have failed, not only not yet answered: the kernel itself has to try again.
    follower.refresh();
    wait_for(|| network.edge("neigh show").matches("FAILED").count() == 2);
    let unresolved = Resolution::Unresolved(Reason::NeighbourUnresolved);
    follower.until(|answers| answers.values().all(|answer| *answer == unresolved));

    network.peer("addr add 10.77.0.3/24 dev p0");
    network.peer("-6 addr add fd77::3/64 dev p0 nodad");

    follower.until_mac("10.77.0.3", PEER_MAC);
    follower.until_mac("fd77::3", PEER_MAC);
}

#[test]
fn a_stale_neighbour_is_used_and_confirmed() {
    let network = Network::new();
    network.edge("neigh add 10.77.0.2 lladdr 02:00:00:00:77:02 nud stale dev e0");
    let mut follower = network.follow(&["10.77.0.2"]);

    follower.refresh();

    let destination = follower.hop("10.77.0.2").map(|hop| hop.destination_mac);
    assert_eq!(destination, Some(PEER_MAC));
    wait_for(|| network.edge("neigh show 10.77.0.2").contains("REACHABLE"));
}

#[test]
fn a_link_that_goes_down_and_up_is_followed() {
    let network = Network::new();
    let mut follower = network.follow(&["10.77.0.2"]);
    follower.until_mac("10.77.0.2", PEER_MAC);

    network.peer("link set p0 down");
    follower.until_unresolved("10.77.0.2", Reason::LinkDown);

    network.peer("link set p0 up");
    follower.until_mac("10.77.0.2", PEER_MAC);
}

#[test]
fn a_route_that_goes_and_comes_is_followed() {
    let network = Network::new();
    for (family, prefix, gateway, target) in [
        ("-4", "198.51.100.0/24", "10.77.0.2", "198.51.100.9"),
        ("-6", "2001:db8:1::/48", "fd77::2", "2001:db8:1::9"),
    ] {
        network.edge(&format!("{family} route add {prefix} via {gateway}"));
        let mut follower = network.follow(&[target]);
        follower.until_mac(target, PEER_MAC);

        network.edge(&format!("{family} route del {prefix}"));
        follower.until_unresolved(target, Reason::NoRoute);

        network.edge(&format!("{family} route add {prefix} via {gateway}"));
        follower.until_mac(target, PEER_MAC);
    }
}

#[test]
fn the_mtu_of_route_and_device_is_followed() {
    let network = Network::new();
    network.edge("route add 198.51.100.0/24 via 10.77.0.2 mtu 1400");
    network.edge("-6 route add 2001:db8:1::/48 via fd77::2 mtu 1400");
    let mut follower = network.follow(&["198.51.100.9", "2001:db8:1::9"]);
    let mut until_mtu = |mtu: u32| {
        follower.until(|answers| {
            let has_mtu = |answer| hop(answer).is_some_and(|hop| hop.mtu == mtu);
            answers.values().all(has_mtu)
        });
    };
    until_mtu(1400);
    network.edge("link set e0 mtu 1300");
    until_mtu(1300);
}

#[test]
fn policy_rules_are_honoured_and_followed() {
    let network = Network::new();
    network.edge("route add 198.51.100.0/24 via 10.77.0.2");
    network.edge("route add 198.51.100.0/24 via 10.78.0.2 table 100");
    let target = "198.51.100.9";
    let mut follower = network.follow(&[target]);
    follower.until_mac(target, PEER_MAC);

    network.edge("rule add to 198.51.100.9 lookup 100");
    follower.until_mac(target, SECOND_PEER_MAC);
    let ifindex = follower.hop(target).map(|hop| hop.ifindex);
    assert_eq!(ifindex, Some(network.ifindex("e1")));

    network.edge("rule del to 198.51.100.9 lookup 100");
    follower.until_mac(target, PEER_MAC);
}

#[test]
fn a_next_hop_object_that_is_replaced_is_followed() {
    let network = Network::new();
    network.edge("nexthop add id 7 via 10.77.0.2 dev e0");
    network.edge("route add 198.51.100.0/24 nhid 7");
    let mut follower = network.follow(&["198.51.100.9"]);
    follower.until_mac("198.51.100.9", PEER_MAC);

    network.edge("nexthop replace id 7 via 10.78.0.2 dev e1");
    follower.until_mac("198.51.100.9", SECOND_PEER_MAC);
}

#[test]
fn of_several_paths_a_live_one_is_taken() {
    let network = Network::new();
    run_in(
        &network.edge,
        "sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1",
    );
    network.edge("route add 198.51.100.0/24 nexthop via 10.77.0.2 nexthop via 10.78.0.2");
    let target = "198.51.100.9";
    let mut follower = network.follow(&[target]);
    follower.until(|answers| hop(&answers[&address(target)]).is_some());
    let taken = follower.hop(target).map(|hop| hop.destination_mac);

    let (lost, other) = if taken == Some(PEER_MAC) {
        ("p0", SECOND_PEER_MAC)
    } else {
        ("p1", PEER_MAC)
    };
    network.peer(&format!("link set {lost} down"));

    follower.until_mac(target, other);
}

#[test]
fn neighbours_are_released_with_their_targets_and_by_a_successor() {
    let network = Network::new();
    network.edge("neigh replace 10.78.0.2 dev e1 managed");
    let managed = || {
        let table = network.edge("neigh show");
        let is_managed = |neighbour| {
            table
                .lines()
                .any(|line| line.starts_with(neighbour) && line.contains("managed"))
        };
        ["10.77.0.2 ", "fd77::2 ", "10.78.0.2 "].map(is_managed)
    };
    let mut follower = network.follow(&["10.77.0.2", "fd77::2", "10.78.0.2"]);
    follower.until(|answers| answers.values().all(|answer| hop(answer).is_some()));
    assert_eq!(managed(), [true, true, true]);

    follower.tracker.set_targets([address("fd77::2")]);
    follower.refresh();
    assert_eq!(managed(), [false, true, true], "the last one is not ours");

    drop(follower);
    assert_eq!(managed(), [false, true, true], "the data plane still runs");
    network.follow(&[]).refresh();
    assert_eq!(managed(), [false, false, true]);
}

#[test]
fn a_permanent_neighbour_stays_permanent() {
    let network = Network::new();
    network.edge("neigh add 10.77.0.7 lladdr 02:00:00:00:00:07 nud permanent dev e0");
    let mut follower = network.follow(&["10.77.0.7"]);
    follower.until_mac("10.77.0.7", [2, 0, 0, 0, 0, 7]);
    let entry = network.edge("neigh show 10.77.0.7");
    assert!(
        entry.contains("PERMANENT") && !entry.contains("managed"),
        "{entry}"
    );
}

#[test]
fn lost_messages_count_as_a_change() {
    let network = Network::new();
    let mut watcher = network.watcher();
    // Routes, since the neighbour table has a limit. One message takes about 1 KiB of the socket's
    // buffer of a few hundred.
    let routes =
        (0..5000).map(|n| format!("route add 10.{}.{}.0/24 dev e0\n", 100 + n / 250, n % 250));
    network.edge_batch(&routes.collect::<String>());

    assert_eq!(watcher.wait(Some(DEADLINE)).unwrap(), Wake::Changed);
    assert_eq!(watcher.overruns(), 1);

    network.edge("route add 198.51.100.0/24 via 10.77.0.2");
    assert_eq!(watcher.wait(Some(DEADLINE)).unwrap(), Wake::Changed);
    assert_eq!(watcher.overruns(), 1);
}

#[test]
fn a_wait_ends_by_waker_or_timeout() {
    let network = Network::new();
    let mut watcher = network.watcher();
    // Devices that have just come up may still have news.
    while watcher.wait(Some(Duration::from_millis(500))).unwrap() == Wake::Changed {}

    let waker = watcher.waker();
    let waiting = thread::spawn(move || {
        let wake = watcher.wait(Some(DEADLINE)).unwrap();
        (wake, watcher)
    });
    waker.wake();
    let (wake, mut watcher) = waiting.join().unwrap();

    assert_eq!(wake, Wake::Woken);
    assert_eq!(watcher.wait(Some(Duration::ZERO)).unwrap(), Wake::TimedOut);
}

type Answers = BTreeMap<IpAddr, Resolution>;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hop(resolution: &Resolution) -> Option<NextHop> {
    match resolution {
        Resolution::Resolved(hop) => Some(*hop),
        Resolution::Local | Resolution::Unresolved(_) => None,
    }
}

/// Follows targets as the agent does.
struct Follower {
    watcher: Watcher,
    resolver: Resolver,
    tracker: Tracker,
    answers: Answers,
}

impl Follower {
    fn refresh(&mut self) {
        let refresh = self.tracker.refresh(&mut self.resolver).unwrap();
        assert!(refresh.unkept.is_none(), "{:?}", refresh.unkept);
        self.answers.extend(refresh.changes);
    }

    /// Refreshes on each change until the answers are as expected.
    #[track_caller]
    fn until(&mut self, expected: impl Fn(&Answers) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            self.refresh();
            if expected(&self.answers) {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let wake = self.watcher.wait(Some(left)).unwrap();
            assert_eq!(wake, Wake::Changed, "last answers: {:?}", self.answers);
        }
    }

    #[track_caller]
    fn until_mac(&mut self, target: &str, mac: [u8; 6]) {
        let target = address(target);
        self.until(|answers| hop(&answers[&target]).is_some_and(|hop| hop.destination_mac == mac));
    }

    #[track_caller]
    fn until_unresolved(&mut self, target: &str, reason: Reason) {
        let target = address(target);
        self.until(|answers| answers[&target] == Resolution::Unresolved(reason));
    }

    fn hop(&self, target: &str) -> Option<NextHop> {
        hop(&self.answers[&address(target)])
    }
}

/// Two namespaces and two cables between them; gone when dropped.
struct Network {
    edge: Namespace,
    peer: Namespace,
}

impl Network {
    fn new() -> Self {
        let network = Self {
            edge: Namespace::new("edge"),
            peer: Namespace::new("peer"),
        };
        let peer = &network.peer.0;
        for (cable, net) in [("0", "77"), ("1", "78")] {
            network.edge(&format!(
                "link add e{cable} address 02:00:00:00:{net}:01 type veth \
                 peer name p{cable} address 02:00:00:00:{net}:02 netns {peer}"
            ));
            network.edge(&format!("addr add 10.{net}.0.1/24 brd + dev e{cable}"));
            network.peer(&format!("addr add 10.{net}.0.2/24 dev p{cable}"));
        }
        // Duplicate address detection would hold back the link-local addresses for a second.
        run_in(&network.edge, "sysctl -qw net.ipv6.conf.e0.accept_dad=0");
        run_in(&network.peer, "sysctl -qw net.ipv6.conf.p0.accept_dad=0");
        network.edge("-6 addr add fd77::1/64 dev e0 nodad");
        network.peer("-6 addr add fd77::2/64 dev p0 nodad");
        network.edge("link set lo up");
        for cable in ["0", "1"] {
            network.edge(&format!("link set e{cable} up"));
            network.peer(&format!("link set p{cable} up"));
        }
        network
    }

    #[track_caller]
    fn edge(&self, arguments: &str) -> String {
        run_in(&self.edge, &format!("ip {arguments}"))
    }

    #[track_caller]
    fn peer(&self, arguments: &str) -> String {
        run_in(&self.peer, &format!("ip {arguments}"))
    }

    #[track_caller]
    fn edge_batch(&self, lines: &str) {
        let file = std::env::temp_dir().join(format!("{}.batch", self.edge.0));
        std::fs::write(&file, lines).unwrap();
        self.edge(&format!("-batch {}", file.display()));
        std::fs::remove_file(file).unwrap();
    }

    fn ifindex(&self, device: &str) -> u32 {
        let line = self.edge(&format!("-o link show {device}"));
        line.split(':').next().unwrap().parse().unwrap()
    }

    fn watcher(&self) -> Watcher {
        self.edge.enter(|| Watcher::new().unwrap())
    }

    fn resolver(&self) -> Resolver {
        self.edge.enter(|| Resolver::new().unwrap())
    }

    fn follow(&self, targets: &[&str]) -> Follower {
        let mut tracker = Tracker::default();
        tracker.set_targets(targets.iter().map(|target| address(target)));
        Follower {
            watcher: self.watcher(),
            resolver: self.resolver(),
            tracker,
            answers: Answers::new(),
        }
    }
}

/// A named network namespace, removed when dropped.
struct Namespace(String);

impl Namespace {
    fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nexthop-{role}-{}-{count}", process::id());
        run(&format!("ip netns add {name}"));
        Self(name)
    }

    /// Calls `inside` on a thread in the namespace; sockets it opens stay there.
    fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.0)).unwrap();
        thread::scope(|scope| {
            let entered = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                inside()
            });
            entered.join().unwrap()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[track_caller]
fn run_in(namespace: &Namespace, command: &str) -> String {
    run(&format!("ip netns exec {} {command}", namespace.0))
}

/// Runs a command that must succeed, and returns what it prints.
#[track_caller]
fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for a condition that no message tells of.
#[track_caller]
fn wait_for(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not come true");
        thread::sleep(Duration::from_millis(50));
    }
}
