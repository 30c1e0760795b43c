//! Next hops followed through real changes of routes, neighbours, devices and addresses.
//!
//! ```text
//!   edge: e0 10.77.0.1, fd77::1 ---- p0 10.77.0.2, fd77::2, fe80::77 :peer
//!         e1 10.78.0.1          ---- p1 10.78.0.2
//! ```
//!
//! No packet is sent to any target: whatever gets resolved was asked for by the tracker. And
//! nothing is polled: each step waits for the watcher to tell of the change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use fastpath::nexthop::{NextHop, Reason, Resolution, Resolver, Tracker, Wake, Watcher};
use lab::{Mac, Namespace, Veth, wait_until};

/// Longer than the kernel takes to try a failed neighbour again (5 s).
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn targets_on_the_link_and_behind_gateways_get_resolved() {
    let network = Network::new();
    network.on_edge("route add 198.51.100.0/24 via 10.77.0.2");
    network.on_edge("-6 route add 2001:db8:1::/48 via fd77::2");
    network.on_edge("-6 route add 2001:db8:2::/48 via fe80::77 dev e0");
    network.on_edge("route add 203.0.113.0/24 via inet6 fe80::77 dev e0");
    network.on_edge("route add 192.0.2.7 dev e0");
    network.on_peer("addr add 192.0.2.7/32 dev p0");
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

    for (target, source) in ways {
        let expected = NextHop {
            ifindex: network.e0.ifindex,
            source_mac: network.e0.mac,
            destination_mac: network.e0.peer_mac,
            is_carried: false,
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
    let mut follower = network.follow(&["10.77.0.1", "fd77::1", "127.0.0.1", "::1"]);
    follower.until(|answers| answers.values().all(|answer| *answer == Resolution::Local));
}

#[test]
fn an_address_that_is_added_becomes_local() {
    let network = Network::new();
    let mut follower = network.follow(&["10.77.0.9", "fd77::9"]);
    follower.refresh();
    network.on_edge("addr add 10.77.0.9/32 dev e0");
    network.on_edge("-6 addr add fd77::9/128 dev e0 nodad");
    follower.until(|answers| answers.values().all(|answer| *answer == Resolution::Local));
}

#[test]
fn routes_that_lead_nowhere_have_their_reasons() {
    let network = Network::new();
    for (family, prefix) in [("-4", "192.0.2."), ("-6", "2001:db8::")] {
        network.on_edge(&format!("{family} route add unreachable {prefix}1"));
        network.on_edge(&format!("{family} route add blackhole {prefix}2"));
        network.on_edge(&format!("{family} route add prohibit {prefix}3"));
        network.on_edge(&format!("{family} route add throw {prefix}4"));
        network.on_edge(&format!("{family} route add {prefix}5 dev lo"));
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
    network
        .peer
        .set_sysctl("net/ipv4/conf/p0/arp_notify", "1")
        .unwrap();
    network
        .edge
        .set_sysctl("net/ipv4/neigh/e0/locktime", "0")
        .unwrap();
    let mut follower = network.follow(&["10.77.0.2"]);
    follower.until_mac("10.77.0.2", network.e0.peer_mac);

    network.on_peer("link set p0 address 02:00:00:00:77:99");

    follower.until_mac("10.77.0.2", [2, 0, 0, 0, 0x77, 0x99]);
}

#[test]
fn a_neighbour_that_comes_late_is_found() {
    let network = Network::new();
    let mut follower = network.follow(&["10.77.0.3", "fd77::3"]);
    // Both have failed, not only not yet answered: the kernel itself has to try again.
    follower.refresh();
    wait_until("both neighbours have failed", DEADLINE, || {
        network.on_edge("neigh show").matches("FAILED").count() == 2
    })
    .unwrap();
    let unresolved = Resolution::Unresolved(Reason::NeighbourUnresolved);
    follower.until(|answers| answers.values().all(|answer| *answer == unresolved));

    network.on_peer("addr add 10.77.0.3/24 dev p0");
    network.on_peer("-6 addr add fd77::3/64 dev p0 nodad");

    follower.until_mac("10.77.0.3", network.e0.peer_mac);
    follower.until_mac("fd77::3", network.e0.peer_mac);
}

#[test]
fn a_stale_neighbour_is_used_and_confirmed() {
    let network = Network::new();
    let [a, b, c, d, e, f] = network.e0.peer_mac;
    network.on_edge(&format!(
        "neigh add 10.77.0.2 lladdr {a:x}:{b:x}:{c:x}:{d:x}:{e:x}:{f:x} nud stale dev e0"
    ));
    let mut follower = network.follow(&["10.77.0.2"]);

    follower.refresh();

    let destination = follower.hop("10.77.0.2").map(|hop| hop.destination_mac);
    assert_eq!(destination, Some(network.e0.peer_mac));
    wait_until("the neighbour is confirmed", DEADLINE, || {
        network
            .on_edge("neigh show 10.77.0.2")
            .contains("REACHABLE")
    })
    .unwrap();
}

#[test]
fn a_device_without_arp_is_sent_to_itself() {
    let network = Network::new();
    network.on_edge("link set e0 arp off");
    let mut follower = network.follow(&["10.77.0.2", "fd77::2"]);
    follower.refresh();
    for target in ["10.77.0.2", "fd77::2"] {
        let destination = follower.hop(target).map(|hop| hop.destination_mac);
        assert_eq!(destination, Some(network.e0.mac), "{target}");
    }
}

#[test]
fn a_link_that_goes_down_and_up_is_followed() {
    let network = Network::new();
    let mut follower = network.follow(&["10.77.0.2"]);
    follower.until_mac("10.77.0.2", network.e0.peer_mac);

    network.on_peer("link set p0 down");
    follower.until_unresolved("10.77.0.2", Reason::LinkDown);

    network.on_peer("link set p0 up");
    follower.until_mac("10.77.0.2", network.e0.peer_mac);
}

#[test]
fn a_route_that_goes_and_comes_is_followed() {
    let network = Network::new();
    for (family, prefix, gateway, target) in [
        ("-4", "198.51.100.0/24", "10.77.0.2", "198.51.100.9"),
        ("-6", "2001:db8:1::/48", "fd77::2", "2001:db8:1::9"),
    ] {
        network.on_edge(&format!("{family} route add {prefix} via {gateway}"));
        let mut follower = network.follow(&[target]);
        follower.until_mac(target, network.e0.peer_mac);

        network.on_edge(&format!("{family} route del {prefix}"));
        follower.until_unresolved(target, Reason::NoRoute);

        network.on_edge(&format!("{family} route add {prefix} via {gateway}"));
        follower.until_mac(target, network.e0.peer_mac);
    }
}

#[test]
fn the_mtu_of_route_and_device_is_followed() {
    let network = Network::new();
    network.on_edge("route add 198.51.100.0/24 via 10.77.0.2 mtu 1400");
    network.on_edge("-6 route add 2001:db8:1::/48 via fd77::2 mtu 1400");
    let mut follower = network.follow(&["198.51.100.9", "2001:db8:1::9"]);
    let mut until_mtu = |mtu: u32| {
        follower.until(|answers| {
            let has_mtu = |answer| hop(answer).is_some_and(|hop| hop.mtu == mtu);
            answers.values().all(has_mtu)
        });
    };
    until_mtu(1400);
    network.on_edge("link set e0 mtu 1300");
    until_mtu(1300);
}

#[test]
fn policy_rules_are_honoured_and_followed() {
    let network = Network::new();
    network.on_edge("route add 198.51.100.0/24 via 10.77.0.2");
    network.on_edge("route add 198.51.100.0/24 via 10.78.0.2 table 100");
    let target = "198.51.100.9";
    let mut follower = network.follow(&[target]);
    follower.until_mac(target, network.e0.peer_mac);

    network.on_edge("rule add to 198.51.100.9 lookup 100");
    follower.until_mac(target, network.e1.peer_mac);
    let ifindex = follower.hop(target).map(|hop| hop.ifindex);
    assert_eq!(ifindex, Some(network.e1.ifindex));

    network.on_edge("rule del to 198.51.100.9 lookup 100");
    follower.until_mac(target, network.e0.peer_mac);
}

#[test]
fn a_next_hop_object_that_is_replaced_is_followed() {
    let network = Network::new();
    network.on_edge("nexthop add id 7 via 10.77.0.2 dev e0");
    network.on_edge("route add 198.51.100.0/24 nhid 7");
    let mut follower = network.follow(&["198.51.100.9"]);
    follower.until_mac("198.51.100.9", network.e0.peer_mac);

    network.on_edge("nexthop replace id 7 via 10.78.0.2 dev e1");
    follower.until_mac("198.51.100.9", network.e1.peer_mac);
}

#[test]
fn of_several_paths_a_live_one_is_taken() {
    let network = Network::new();
    let skip_dead_paths = "net/ipv4/conf/all/ignore_routes_with_linkdown";
    network.edge.set_sysctl(skip_dead_paths, "1").unwrap();
    network.on_edge("route add 198.51.100.0/24 nexthop via 10.77.0.2 nexthop via 10.78.0.2");
    let target = "198.51.100.9";
    let mut follower = network.follow(&[target]);
    follower.until(|answers| hop(&answers[&address(target)]).is_some());
    let taken = follower.hop(target).map(|hop| hop.destination_mac);

    let (lost, other) = if taken == Some(network.e0.peer_mac) {
        ("p0", network.e1.peer_mac)
    } else {
        ("p1", network.e0.peer_mac)
    };
    network.on_peer(&format!("link set {lost} down"));

    follower.until_mac(target, other);
}

#[test]
fn neighbours_are_released_with_their_targets_and_by_a_successor() {
    let network = Network::new();
    network.on_edge("neigh replace 10.78.0.2 dev e1 managed");
    let managed = || {
        let table = network.on_edge("neigh show");
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
fn of_limited_targets_only_so_many_neighbours_are_kept() {
    let network = Network::new();
    network.on_edge("route add 198.51.100.0/24 via 10.77.0.2");
    let between_requests = "net/ipv4/neigh/e0/retrans_time_ms";
    network.edge.set_sysctl(between_requests, "50").unwrap();
    let absent: Vec<String> = (10..13).map(|last| format!("10.77.0.{last}")).collect();
    let mut targets: Vec<&str> = absent.iter().map(String::as_str).collect();
    targets.extend(["10.77.0.200", "198.51.100.9", "10.78.0.2"]);
    let mut follower = network.follow(&targets);
    // Of all but one; the gateway of another is no neighbour of its own.
    let limited = targets.iter().filter(|target| **target != "10.78.0.2");
    follower
        .tracker
        .limit(limited.map(|target| address(target)).collect(), 2);
    let refresh = follower.tracker.refresh(&mut follower.resolver).unwrap();
    let managed = || {
        let table = network.on_edge("neigh show");
        let managed = table.lines().filter(|line| line.contains("managed"));
        let addresses = managed.filter_map(|line| line.split(' ').next());
        addresses.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    assert_eq!(refresh.beyond_limit, 2);
    follower.answers.extend(refresh.changes);
    let [gateway, other] = ["10.77.0.2", "10.78.0.2"].map(str::to_owned);
    let kept = managed();
    assert_eq!(kept.len(), 4, "{kept:?}");
    assert!(kept.contains(&gateway) && kept.contains(&other), "{kept:?}");

    // One that comes to answer gets a place of those where nobody is.
    network.on_peer("addr add 10.77.0.200/24 dev p0");
    wait_until("the one that answers is kept", DEADLINE, || {
        follower.refresh();
        managed().contains("10.77.0.200") && follower.hop("10.77.0.200").is_some()
    })
    .unwrap();
    assert_eq!(managed().len(), 4);
}

#[test]
fn a_permanent_neighbour_stays_permanent() {
    let network = Network::new();
    network.on_edge("neigh add 10.77.0.7 lladdr 02:00:00:00:00:07 nud permanent dev e0");
    let mut follower = network.follow(&["10.77.0.7"]);
    follower.until_mac("10.77.0.7", [2, 0, 0, 0, 0, 7]);
    let entry = network.on_edge("neigh show 10.77.0.7");
    assert!(
        entry.contains("PERMANENT") && !entry.contains("managed"),
        "{entry}"
    );
}

#[test]
fn lost_messages_count_as_a_change() {
    let network = Network::new();
    let mut watcher = network.watcher();
    // Routes, since the neighbour table has a limit.
    let routes: String = (0..20_000)
        .map(|n| format!("route add 10.{}.{}.0/24 dev e0\n", 100 + n / 250, n % 250))
        .collect();
    let file = std::env::temp_dir().join(network.edge.name());
    std::fs::write(&file, routes).unwrap();
    network.on_edge(&format!("-batch {}", file.display()));
    std::fs::remove_file(file).unwrap();

    assert_eq!(watcher.wait(Some(DEADLINE)).unwrap(), Wake::Changed);
    assert_eq!(watcher.overruns(), 1);

    network.on_edge("route add 198.51.100.0/24 via 10.77.0.2");
    assert_eq!(watcher.wait(Some(DEADLINE)).unwrap(), Wake::Changed);
    assert_eq!(watcher.overruns(), 1);
}

#[test]
fn a_wait_ends_by_waker_or_timeout() {
    let network = Network::new();
    let mut watcher = network.watcher();
    let waker = watcher.waker();
    // Devices that have just come up may still have news.
    let wait = |watcher: &mut Watcher, timeout| loop {
        let wake = watcher.wait(Some(timeout)).unwrap();
        if wake != Wake::Changed {
            return wake;
        }
    };
    let waiting = thread::spawn(move || (wait(&mut watcher, DEADLINE), watcher));

    waker.wake();

    let (wake, mut watcher) = waiting.join().unwrap();
    assert_eq!(wake, Wake::Woken);
    assert_eq!(wait(&mut watcher, Duration::ZERO), Wake::TimedOut);
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

/// Two machines and two cables between them.
struct Network {
    edge: Namespace,
    peer: Namespace,
    e0: Cable,
    e1: Cable,
}

/// A device of the edge, and what it leads to.
struct Cable {
    ifindex: u32,
    mac: Mac,
    peer_mac: Mac,
}

impl Network {
    fn new() -> Self {
        let edge = Namespace::new("edge").unwrap();
        let peer = Namespace::new("peer").unwrap();
        let [e0, e1] = [("e0", "p0"), ("e1", "p1")].map(|(name, peer_name)| {
            let cable = Veth::between((&edge, name), (&peer, peer_name));
            let (link, peer_link) = cable.create().unwrap();
            Cable {
                ifindex: link.index(),
                mac: link.mac(),
                peer_mac: peer_link.mac(),
            }
        });
        let network = Self { edge, peer, e0, e1 };
        network.on_edge("addr add 10.77.0.1/24 brd + dev e0");
        network.on_edge("addr add 10.78.0.1/24 dev e1");
        network.on_edge("addr add fd77::1/64 dev e0");
        network.on_peer("addr add 10.77.0.2/24 dev p0");
        network.on_peer("addr add 10.78.0.2/24 dev p1");
        network.on_peer("addr add fd77::2/64 dev p0");
        network.on_peer("addr add fe80::77/64 dev p0");
        network
    }

    /// Runs `ip` on the edge, and returns what it prints.
    #[track_caller]
    fn on_edge(&self, arguments: &str) -> String {
        ip(&self.edge, arguments)
    }

    #[track_caller]
    fn on_peer(&self, arguments: &str) -> String {
        ip(&self.peer, arguments)
    }

    fn watcher(&self) -> Watcher {
        self.edge.run(|| Watcher::new().unwrap())
    }

    fn resolver(&self) -> Resolver {
        self.edge.run(|| Resolver::new().unwrap())
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

#[track_caller]
fn ip(namespace: &Namespace, arguments: &str) -> String {
    let mut command = namespace.command("ip");
    let output = command.args(arguments.split_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
