use std::net::Ipv4Addr;

use super::*;

const TICK: Duration = Duration::from_millis(100);

/// Edges that see each other's Leases through one API, in steps of a tenth of a second.
struct World {
    now: Instant,
    edges: BTreeMap<String, Member>,
    wanted: BTreeMap<IpAddr, Candidates>,
    ticks: u32,
}

struct Member {
    election: Election,
    namespace: LeaseNamespace,
    macs: BTreeSet<Mac>,
    holds: BTreeSet<IpAddr>,
    again: usize,
    runs: bool,
    reaches_api: bool,
    is_drained: bool,
    /// What its Lease says of that.
    said: bool,
    renewals: u32,
    addresses: BTreeSet<IpAddr>,
}

fn addresses(count: u8) -> BTreeSet<IpAddr> {
    (0..count)
        .map(|n| Ipv4Addr::new(203, 0, 113, n).into())
        .collect()
}

impl World {
    fn new(names: &[&str], count: u8) -> Self {
        let wanted = addresses(count).into_iter();
        let mut world = Self {
            now: Instant::now(),
            edges: BTreeMap::new(),
            wanted: wanted.map(|address| (address, Candidates::Every)).collect(),
            ticks: 0,
        };
        for name in names {
            world.add(name, BTreeSet::new());
        }
        world
    }

    /// Adds an edge of the version before, to which the others are not there.
    fn add_older(&mut self, name: &str) {
        self.add(name, BTreeSet::new());
        let member = self.edge(name);
        member.namespace = LeaseNamespace::Shared;
        member.macs.clear();
    }

    fn add(&mut self, name: &str, announced: BTreeSet<IpAddr>) {
        let mut election = Election::new(name, announced.clone());
        election.want(self.wanted.clone());
        election.set_eligible(true);
        let member = Member {
            election,
            namespace: LeaseNamespace::Own,
            macs: [mac_of(name)].into(),
            holds: announced,
            again: 0,
            runs: true,
            reaches_api: true,
            is_drained: false,
            said: false,
            renewals: 0,
            addresses: BTreeSet::new(),
        };
        self.edges.insert(name.to_owned(), member);
    }

    fn edge(&mut self, name: &str) -> &mut Member {
        self.edges.get_mut(name).unwrap()
    }

    fn drain(&mut self, name: &str, is_drained: bool) {
        let member = self.edge(name);
        member.is_drained = is_drained;
        member.election.set_eligible(!is_drained);
    }

    fn want(&mut self, wanted: BTreeMap<IpAddr, Candidates>) {
        for member in self.edges.values_mut() {
            member.election.want(wanted.clone());
        }
        self.wanted = wanted;
    }

    /// Everybody who can renews each 0.7 s, all see it, and hear announcements.
    fn tick(&mut self) {
        self.now += TICK;
        self.ticks += 1;
        let mut leases = Vec::new();
        for (place, (name, member)) in (0..).zip(&mut self.edges) {
            // A drained edge writes its Lease once more, and renews it no more.
            let is_said = member.said == member.is_drained;
            let renews = !member.is_drained && (self.ticks + place).is_multiple_of(7);
            if member.runs && member.reaches_api && (renews || !is_said) {
                member.said = member.is_drained;
                member.renewals += 1;
                leases.push(Edge {
                    name: name.clone(),
                    namespace: member.namespace,
                    macs: member.macs.clone(),
                    addresses: member.addresses.clone(),
                    renewal: member.renewals.to_string(),
                    is_drained: member.is_drained,
                });
            }
        }
        let mut announced: Vec<(String, IpAddr)> = Vec::new();
        for (name, member) in &mut self.edges {
            if !member.runs {
                continue;
            }
            if member.reaches_api {
                for lease in &leases {
                    let mut lease = lease.clone();
                    if member.namespace == LeaseNamespace::Shared {
                        // It looks at one place alone, which is its own.
                        if lease.namespace == LeaseNamespace::Own {
                            continue;
                        }
                        lease.namespace = LeaseNamespace::Own;
                    }
                    member.election.see(lease, self.now);
                }
            }
            let result = member.election.step(self.now);
            let new = result.addresses.difference(&member.holds);
            announced.extend(new.map(|address| (name.clone(), *address)));
            member.again += result.again.len();
            announced.extend(result.again.iter().map(|address| (name.clone(), *address)));
            member.holds = result.addresses;
        }
        for (by, address) in announced {
            for (name, member) in &mut self.edges {
                if *name != by && member.holds.contains(&address) {
                    member.election.claim(address, mac_of(&by), self.now);
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.tick();
        }
    }

    /// Lists the running edges that hold an address.
    fn holders(&self, address: IpAddr) -> Vec<&str> {
        let running = self.edges.iter().filter(|(_, member)| member.runs);
        let holding = running.filter(|(_, member)| member.holds.contains(&address));
        holding.map(|(name, _)| name.as_str()).collect()
    }

    #[track_caller]
    fn expect_one_holder_each(&self) {
        for address in self.wanted.keys() {
            let holders = self.holders(*address);
            assert_eq!(holders.len(), 1, "{address}: {holders:?}");
        }
    }
}

fn mac_of(edge: &str) -> Mac {
    let [letter, ..] = edge.as_bytes() else {
        panic!("an edge has a name");
    };
    Mac([2, 0, 0, 0, 0, *letter])
}

/// A machine that is no edge.
const STRANGER: Mac = Mac([0x0a, 0, 0, 0, 0, 1]);

const SETTLED: Duration = Duration::from_secs(6);

#[test]
fn each_address_is_announced_by_one_edge() {
    let mut world = World::new(&["a", "b", "c"], 60);
    world.pass(SETTLED);
    world.expect_one_holder_each();
    for member in world.edges.values() {
        assert!(member.holds.len() > 8, "{:?}", member.holds);
    }
}

#[test]
fn drained_edge_keeps_each_address_until_another_one_announces_it() {
    let mut world = World::new(&["a", "b", "c"], 60);
    world.pass(SETTLED);
    world.drain("b", true);
    for _ in 0..5 {
        world.tick();
        for address in addresses(60) {
            assert!(!world.holders(address).is_empty(), "{address} is lost");
        }
    }
    assert_eq!(
        world.edge("b").holds,
        BTreeSet::new(),
        "without a wait for its Lease to run out"
    );
    world.pass(SETTLED);
    world.expect_one_holder_each();

    world.drain("b", false);
    world.pass(2 * SETTLED);
    world.expect_one_holder_each();
    assert!(world.edge("b").holds.len() > 8);
}

#[test]
fn drained_edge_that_is_alone_keeps_its_addresses() {
    let mut world = World::new(&["a"], 5);
    world.pass(SETTLED);
    world.drain("a", true);
    world.pass(10 * SETTLED);
    assert_eq!(world.edge("a").holds, addresses(5));
    world.add("b", BTreeSet::new());
    world.pass(2 * SETTLED);
    assert_eq!(world.edge("b").holds, addresses(5));
    assert_eq!(world.edge("a").holds, BTreeSet::new());
}

#[test]
fn lost_edge_is_replaced_within_three_seconds() {
    for phase in 0..7 {
        let mut world = World::new(&["a", "b", "c"], 60);
        world.pass(SETTLED + phase * TICK);
        let before = world.edge("b").holds.clone();
        let others = world.edge("a").holds.clone();
        world.edge("b").runs = false;
        let lost = world.now;
        while !before
            .iter()
            .all(|address| world.holders(*address).len() == 1)
        {
            world.tick();
            assert!(
                world.now - lost < Duration::from_millis(2_300),
                "phase {phase}"
            );
        }
        assert!(
            others.is_subset(&world.edge("a").holds),
            "what lives does not move"
        );
    }
}

#[test]
fn new_edge_takes_its_share_without_a_gap() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    world.add("c", BTreeSet::new());
    for _ in 0..80 {
        world.tick();
        for address in world.wanted.keys() {
            assert!(!world.holders(*address).is_empty(), "{address}");
        }
    }
    world.expect_one_holder_each();
    assert!(world.edge("c").holds.len() > 8);
}

#[test]
fn edge_without_the_api_keeps_what_nobody_else_announces() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let held = world.edges.values().map(|member| member.holds.clone());
    let held: Vec<_> = held.collect();
    for member in world.edges.values_mut() {
        member.reaches_api = false;
    }
    world.pass(Duration::from_secs(60));
    let still = world.edges.values().map(|member| member.holds.clone());
    assert!(still.eq(held.clone()), "the API is away: nothing changes");

    for member in world.edges.values_mut() {
        member.reaches_api = true;
    }
    for _ in 0..60 {
        world.tick();
        let still = world.edges.values().map(|member| member.holds.clone());
        assert!(still.eq(held.clone()), "nor as it comes back");
    }
}

#[test]
fn short_silence_of_the_api_moves_nothing() {
    for silence in 1..40 {
        let mut world = World::new(&["a", "b", "c"], 60);
        world.pass(SETTLED + silence * TICK);
        let held = world.edges.values().map(|member| member.holds.clone());
        let held: Vec<_> = held.collect();
        let speaks = |world: &mut World, speaks| {
            for member in world.edges.values_mut() {
                member.reaches_api = speaks;
            }
        };
        speaks(&mut world, false);
        world.pass(silence * TICK);
        speaks(&mut world, true);
        for _ in 0..50 {
            world.tick();
            let still = world.edges.values().map(|member| member.holds.clone());
            assert!(still.eq(held.clone()), "{silence} ticks of silence");
        }
    }
}

#[test]
fn edge_that_alone_lost_the_api_yields_and_takes_back() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let before = world.edge("a").holds.clone();
    world.edge("a").reaches_api = false;
    world.pass(Duration::from_secs(4));
    world.expect_one_holder_each();
    assert_eq!(world.edge("b").holds.len(), 60);
    assert!(world.edge("a").holds.is_empty(), "it has heard the other");

    world.edge("a").reaches_api = true;
    world.pass(SETTLED);
    world.expect_one_holder_each();
    assert_eq!(world.edge("a").holds, before);
}

#[test]
fn restarted_agent_keeps_what_it_finds_announced() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let before = world.edge("a").holds.clone();
    world.edges.remove("a");
    world.pass(TICK);
    world.add("a", before.clone());
    for _ in 0..60 {
        world.tick();
        assert_eq!(world.edge("a").holds, before);
    }
}

#[test]
fn stale_lease_of_an_earlier_life_proves_nothing() {
    let mut election = Election::new("a", BTreeSet::new());
    election.set_eligible(true);
    let now = Instant::now();
    let lease = |renewal: &str| Edge {
        name: "a".to_owned(),
        namespace: LeaseNamespace::Own,
        macs: BTreeSet::new(),
        addresses: BTreeSet::new(),
        renewal: renewal.to_owned(),
        is_drained: false,
    };
    election.see(lease("old"), now);
    assert!(!election.is_settled(now + API_RECOVERY));
    election.see(lease("new"), now + RENEWAL_PERIOD);
    for renewal in 2..=4 {
        election.see(
            lease(&format!("new {renewal}")),
            now + renewal * RENEWAL_PERIOD,
        );
    }
    assert!(!election.is_settled(now + API_RECOVERY));
    assert!(election.is_settled(now + RENEWAL_PERIOD + API_RECOVERY));
}

#[test]
fn clocks_in_leases_do_not_matter() {
    // The renewals are texts that nobody reads: here they run backwards, years apart.
    let mut election = Election::new("a", BTreeSet::new());
    let address = addresses(1);
    election.want(
        address
            .iter()
            .map(|one| (*one, Candidates::Every))
            .collect(),
    );
    election.set_eligible(true);
    let mut now = Instant::now();
    for year in (1970..2030).rev() {
        now += RENEWAL_PERIOD;
        for name in ["a", "b"] {
            let edge = Edge {
                name: name.to_owned(),
                namespace: LeaseNamespace::Own,
                macs: BTreeSet::new(),
                addresses: BTreeSet::new(),
                renewal: format!("{year}-01-01T00:00:00.000000Z"),
                is_drained: false,
            };
            election.see(edge, now);
        }
    }
    assert!(election.is_settled(now));
    let live = |election: &mut Election| {
        election.step(now);
        election.share_of.clone().unwrap_or_default().len()
    };
    assert_eq!(live(&mut election), 2, "both live");
}

#[test]
fn announcement_of_what_belongs_here_is_answered_once() {
    let mut world = World::new(&["a"], 1);
    world.pass(SETTLED);
    let address = *world.wanted.keys().next().unwrap();
    let now = world.now;
    let member = world.edge("a");
    member.election.claim(address, STRANGER, now);
    member.election.claim(address, STRANGER, now);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.edge("a").again, 1);
    assert_eq!(world.holders(address), ["a"]);
}

#[test]
fn address_that_is_no_services_any_more_is_let_go_at_once() {
    let mut world = World::new(&["a"], 2);
    world.pass(SETTLED);
    world.edge("a").reaches_api = false;
    let left = addresses(1).into_iter();
    world.want(left.map(|one| (one, Candidates::Every)).collect());
    world.tick();
    assert_eq!(world.edge("a").holds, addresses(1));
}

#[test]
fn excluded_edge_lets_go_when_others_have_had_time() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let excluded = world.edge("a");
    excluded.election.set_eligible(false);
    // It withdraws its Lease.
    excluded.reaches_api = false;
    world.edge("b").election.forget(LeaseNamespace::Own, "a");
    for _ in 0..30 {
        world.tick();
        for address in world.wanted.keys() {
            assert!(!world.holders(*address).is_empty(), "{address}");
        }
    }
    assert!(world.edge("a").holds.is_empty());
    world.expect_one_holder_each();
}

#[test]
fn local_traffic_policy_leaves_nodes_without_endpoints_out() {
    let node = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
    let mut world = World::new(&["a", "b", "outside"], 0);
    world.edge("a").addresses = BTreeSet::from([node(1)]);
    world.edge("b").addresses = BTreeSet::from([node(2)]);
    let local = |n| Candidates::NodesAt(BTreeSet::from([node(n)]));
    world.want(
        addresses(60)
            .into_iter()
            .map(|one| (one, local(2)))
            .collect(),
    );
    world.pass(SETTLED);
    world.expect_one_holder_each();
    assert!(world.edge("a").holds.is_empty(), "it has no endpoint");
    assert!(!world.edge("b").holds.is_empty());
    assert!(
        !world.edge("outside").holds.is_empty(),
        "no Node: it reaches all of them"
    );
    world.want(
        addresses(60)
            .into_iter()
            .map(|one| (one, local(1)))
            .collect(),
    );
    world.pass(Duration::from_secs(2));
    world.expect_one_holder_each();
    assert!(world.edge("b").holds.is_empty(), "the endpoint has moved");
}

#[test]
fn clock_that_leaps_moves_no_address() {
    // A host is paused with all its machines: an hour has passed for each of them, and no time.
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let before = ["a", "b"].map(|name| world.edge(name).holds.clone());
    world.now += Duration::from_secs(3600);
    for _ in 0..60 {
        world.tick();
        assert_eq!(
            ["a", "b"].map(|name| world.edge(name).holds.clone()),
            before
        );
    }
}

#[test]
fn machine_that_was_paused_yields_and_takes_back() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let before = world.edge("a").holds.clone();
    world.edge("a").runs = false;
    world.pass(Duration::from_secs(60));
    assert_eq!(world.edge("b").holds.len(), 60);
    world.edge("a").runs = true;
    world.tick();
    assert!(world.edge("a").holds.is_empty(), "it has heard the other");
    world.pass(SETTLED);
    world.expect_one_holder_each();
    assert_eq!(world.edge("a").holds, before);
}

/// An edge that has what `claim` is about and has lost the API, as have all.
fn edge_without_the_api(of: &[&str]) -> (World, IpAddr) {
    let mut world = World::new(of, 60);
    world.pass(SETTLED);
    let names: BTreeSet<String> = world.edges.keys().cloned().collect();
    for member in world.edges.values_mut() {
        member.election.retain(LeaseNamespace::Own, &names);
        member.reaches_api = false;
    }
    world.pass(SETTLED);
    let address = *world.edge("a").holds.first().unwrap();
    (world, address)
}

#[test]
fn one_announcement_of_a_stranger_takes_nothing_from_an_edge_without_the_api() {
    let (mut world, address) = edge_without_the_api(&["a", "b"]);
    let now = world.now;
    world.edge("a").election.claim(address, STRANGER, now);
    let result = world.edge("a").election.step(now);
    assert_eq!(result.strangers, [(address, STRANGER)], "it is named");
    world.pass(2 * SETTLED);
    assert_eq!(world.holders(address), ["a"]);
    assert_eq!(world.edge("a").again, 1, "neighbours hear who has it");
    let now = world.now;
    world.edge("a").election.claim(address, STRANGER, now);
    let result = world.edge("a").election.step(now);
    assert_eq!(result.strangers, [], "it was named before");
    world.pass(SETTLED);
    assert_eq!(
        world.holders(address),
        ["a"],
        "two that lie apart are no insistence"
    );
}

#[test]
fn one_announcement_of_a_known_edge_is_enough_without_the_api() {
    let (mut world, address) = edge_without_the_api(&["a", "b"]);
    let now = world.now;
    world.edge("a").election.claim(address, mac_of("b"), now);
    let result = world.edge("a").election.step(now);
    assert_eq!(result.strangers, []);
    assert!(!result.addresses.contains(&address));
}

#[test]
fn machine_that_goes_on_announcing_is_taken_for_an_edge() {
    let (mut world, address) = edge_without_the_api(&["a", "b"]);
    let begin = world.now;
    while world.holders(address) == ["a"] {
        let now = world.now;
        assert!(now <= begin + UNKNOWN_EDGE_DELAY + RENEWAL_PERIOD);
        world.edge("a").election.claim(address, STRANGER, now);
        world.pass(RENEWAL_PERIOD);
    }
    assert!(world.now > begin + UNKNOWN_EDGE_DELAY);
}

#[test]
fn edge_that_has_never_heard_of_its_successor_yields_to_it() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    world.edge("a").reaches_api = false;
    world.edge("b").runs = false;
    world.add("c", BTreeSet::new());
    // The announcements are repeated: each is defended, and that defended again.
    world.pass(3 * SETTLED);
    assert_eq!(world.edge("c").holds.len(), 60);
    assert!(world.edge("a").holds.is_empty());
}

#[test]
fn edges_of_two_versions_never_have_one_address() {
    let mut world = World::new(&[], 60);
    for name in ["a", "b"] {
        world.add_older(name);
    }
    world.pass(SETTLED);
    world.expect_one_holder_each();
    let upgrade = |world: &mut World, name: &str| {
        let announced = world.edge(name).holds.clone();
        world.add(name, announced);
        for _ in 0..60 {
            world.tick();
            for address in world.wanted.keys() {
                assert!(!world.holders(*address).is_empty(), "{address}");
            }
        }
        world.expect_one_holder_each();
    };
    upgrade(&mut world, "a");
    assert_eq!(world.edge("b").holds.len(), 60, "it knows of no other");
    upgrade(&mut world, "b");
    assert!(!world.edge("a").holds.is_empty());
}

#[test]
fn what_an_older_version_leaves_behind_makes_no_stranger_an_edge() {
    let mut world = World::new(&[], 60);
    for name in ["a", "b"] {
        world.add_older(name);
    }
    world.pass(SETTLED);
    for name in ["a", "b"] {
        let announced = world.edge(name).holds.clone();
        world.add(name, announced);
        // A list has the Leases of both.
        for (namespace, macs) in [
            (LeaseNamespace::Own, [mac_of(name)].into()),
            (LeaseNamespace::Shared, BTreeSet::new()),
        ] {
            let now = world.now;
            for member in world.edges.values_mut() {
                let edge = Edge {
                    name: name.to_owned(),
                    namespace,
                    macs: BTreeSet::clone(&macs),
                    addresses: BTreeSet::new(),
                    renewal: "left".to_owned(),
                    is_drained: false,
                };
                member.election.see(edge, now);
            }
        }
    }
    world.pass(2 * SETTLED);
    world.expect_one_holder_each();
    for member in world.edges.values_mut() {
        member.reaches_api = false;
    }
    world.pass(SETTLED);
    let (now, address) = (world.now, *world.edge("a").holds.first().unwrap());
    world.edge("a").election.claim(address, STRANGER, now);
    world.pass(SETTLED);
    assert_eq!(world.holders(address), ["a"]);
}

#[test]
fn addresses_that_others_took_while_an_edge_was_silent_are_theirs_until_the_api_has_told() {
    let mut world = World::new(&["a", "b"], 60);
    world.pass(SETTLED);
    let before = world.edge("a").holds.clone();
    world.edge("a").runs = false;
    world.pass(SETTLED);
    assert_eq!(world.edge("b").holds.len(), 60);
    // Its claims were judged as it came back, before its first step.
    let silent = world.edge("a");
    silent.election.lose(&before);
    silent.runs = true;
    silent.holds.clear();
    for _ in 0..20 {
        world.tick();
        world.expect_one_holder_each();
    }
    world.pass(SETTLED);
    assert_eq!(world.edge("a").holds, before);
    world.expect_one_holder_each();
}
