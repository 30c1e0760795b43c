//! Tables get other sizes.

use xdp_prog::abi::{NAT_CONDEMNED, Traffic};

use super::*;
use crate::tables::{Addresses, gate, in_use_beyond};

/// Flows of NAT mode that the small tables take, of which they fill three quarters.
const SMALL: u32 = 16;
const LARGE: u32 = 64;

/// Pins that are removed at the end.
struct Pinned(Pins);

impl Pinned {
    fn new(test: &str) -> Self {
        let process = std::process::id();
        Self(Pins::new(format!(
            "/sys/fs/bpf/guideway-resize-{process}-{test}"
        )))
    }

    /// Starts as an agent does that asks for room for so many flows of NAT mode.
    fn open(&self, nat_flows: u32) -> (Loaded, Tables) {
        let loader = Loader::pinned(self.0.clone()).object(stubs());
        let loader = loader
            .max_entries(map::LUT, 4096)
            .max_entries(map::NAT_FORWARD, nat_flows)
            .max_entries(map::NAT_REVERSE, nat_flows);
        let loaded = loader.load().unwrap();
        let tables = with_service(&loaded);
        (loaded, tables)
    }

    /// Makes something that stands for a link: programs that are not attached any more are not in force.
    fn attach(&self, loaded: &Loaded) {
        let map = loaded.map(map::STAGES).unwrap();
        map.pin(self.0.link("eth0")).unwrap();
    }

    fn former(&self) -> FormerTables {
        let former = FormerTables::open(&self.0).unwrap();
        let [former]: [FormerTables; 1] = former.try_into().expect("one was set aside");
        former
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.root());
    }
}

/// Writes a flow of NAT mode that was last seen at `time`; returns its key and that of its replies.
fn put_nat(tables: &mut Tables, client_port: u16, time: u64, flags: u8) -> (Tuple, Tuple) {
    let link = NatLink::new([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [0, 7], 1500);
    let key = tuple(CLIENT, VIP, [client_port, 80], protocol::TCP);
    let reply = tuple(BACKEND, OWN, [8080, 60_000 + client_port], protocol::TCP);
    let mark = NatMark::new(time, flags);
    let mut reverse = NatReverse::new(&reply, &key, 3, link, mark);
    (reverse.began_with, reverse.expects) = (17, 18);
    // The id that the backend has in these tables.
    let forward = NatForward::new(&key, &reply, 77, link.fingerprint(3), mark);
    tables.nat.entries.reverse.insert(reply, reverse).unwrap();
    tables.nat.entries.forward.insert(key, forward).unwrap();
    (key, reply)
}

/// Everything that tables know of flows.
fn known(tables: &Tables) -> impl PartialEq + fmt::Debug + use<> {
    fn sorted<V: aya::Pod + fmt::Debug>(map: &SyscallMap<Tuple, V>) -> Vec<String> {
        let entries = map.entries().unwrap();
        let mut entries: Vec<String> = entries.iter().map(|entry| format!("{entry:?}")).collect();
        entries.sort();
        entries
    }
    [
        sorted(&tables.local_flows),
        sorted(&tables.flows),
        sorted(&tables.flows_datagram),
        sorted(&tables.flows_embryonic),
        sorted(&tables.nat.entries.reverse),
        sorted(&tables.nat.entries.forward),
    ]
}

fn forget(tables: &mut Tables) {
    fn clear<V: aya::Pod>(map: &mut SyscallMap<Tuple, V>) {
        for key in map.keys().unwrap() {
            map.remove(&key).unwrap();
        }
    }
    clear(&mut tables.local_flows);
    clear(&mut tables.nat.entries.reverse);
    clear(&mut tables.nat.entries.forward);
    for table in [ANSWERED, ANSWERED_DATAGRAMS, EMBRYONIC] {
        clear(table(tables));
    }
}

#[test]
fn flows_go_on_wherever_an_agent_ends_that_copies_them() {
    let pinned = Pinned::new("crash");
    let (loaded, mut tables) = pinned.open(LARGE);
    let flow = |port, protocol| tuple(CLIENT, POD, [port, 8080], protocol);
    let flows = [
        (ANSWERED, flow(1000, protocol::TCP)),
        (ANSWERED_DATAGRAMS, flow(1001, protocol::UDP)),
        (EMBRYONIC, flow(1002, protocol::TCP)),
    ];
    for (table, key) in flows {
        let flow = PodFlow::new(&key, VIP, HTTP, 20, FLOW_FIN_CLIENT, SEEN);
        table(&mut tables).insert(key, flow).unwrap();
    }
    let local = tuple(CLIENT, OWN, [53, 30_080], protocol::UDP);
    let until = LocalFlow::new(SEEN, false);
    tables.local_flows.insert(local, until).unwrap();
    put_nat(&mut tables, 1, SEEN, NAT_OPEN | NAT_FIN_CLIENT);
    put_nat(&mut tables, 2, SEEN, NAT_ANSWERED);
    pinned.attach(&loaded);
    let old = known(&tables);
    drop((loaded, tables));

    let (loaded, mut tables) = pinned.open(2 * LARGE);
    let asked = |map: &str| {
        let mut resized = loaded.resized().iter();
        resized.any(|one| one.map == map && (one.pinned, one.asked) == (LARGE, 2 * LARGE))
    };
    assert!(asked(map::NAT_FORWARD) && asked(map::NAT_REVERSE));
    let mut former = pinned.former();
    let copy = |tables: &mut Tables, former: &mut FormerTables| {
        tables.inherit_flows(former, true).unwrap()
    };
    let (writes, all) = gate::end_after(u64::MAX, || copy(&mut tables, &mut former));
    assert_eq!(
        (all.local, all.to_pods, all.nat, all.left_out),
        (1, 3, 2, 0)
    );
    // But for the backend's id, which these tables give.
    for (key, forward) in tables.nat.entries.forward.entries().unwrap() {
        let backend = tables.backends.get(forward.backend()).unwrap();
        assert_eq!((backend.pod, backend.port), (BACKEND, TARGET), "{key:?}");
        let reply = tuple(BACKEND, OWN, [8080, u16::from_be_bytes(forward.port())], 6);
        let put_again = NatForward::new(&key, &reply, 77, forward.fingerprint(), forward.mark);
        tables.nat.entries.forward.insert(key, put_again).unwrap();
    }
    assert_eq!(known(&tables), old);
    assert_eq!(tables.local_ports.read(&30_080).unwrap(), until.until());

    forget(&mut tables);
    copy(&mut tables, &mut former);
    let new = known(&tables);
    for survived in 0..writes {
        forget(&mut tables);
        let (_, _) = gate::end_after(survived, || copy(&mut tables, &mut former));
        tables = Tables::open(&loaded).unwrap();
        copy(&mut tables, &mut pinned.former());
        assert_eq!(known(&tables), new, "{survived} of {writes} writes");
    }
}

#[test]
fn flows_of_nat_mode_that_are_half_open_go_on_once_the_former_programs_have_ended() {
    let pinned = Pinned::new("half-open");
    let (loaded, mut tables) = pinned.open(LARGE);
    let (open, _) = put_nat(&mut tables, 1, SEEN, NAT_OPEN);
    let (half_open, _) = put_nat(&mut tables, 2, SEEN, NAT_ANSWERED);
    put_nat(&mut tables, 3, SEEN, NAT_OPEN | NAT_CONDEMNED);
    pinned.attach(&loaded);
    drop((loaded, tables));

    let (_loaded, mut tables) = pinned.open(2 * LARGE);
    let mut former = pinned.former();
    assert_eq!(tables.inherit_flows(&mut former, false).unwrap().nat, 1);
    assert!(tables.nat.entries.forward.get(&open).is_some());
    assert_eq!(tables.inherit_flows(&mut former, true).unwrap().nat, 1);
    assert!(tables.nat.entries.forward.get(&half_open).is_some());
    assert_eq!(tables.nat.entries.forward.keys().unwrap().len(), 2);
}

#[test]
fn smaller_tables_take_the_newest_flows_and_keep_a_quarter_free() {
    let pinned = Pinned::new("smaller");
    let (loaded, mut tables) = pinned.open(LARGE);
    let times = |port: u16| SEEN + (u64::from(port) << 20);
    for port in 0..40 {
        put_nat(&mut tables, port, times(port), NAT_OPEN);
    }
    pinned.attach(&loaded);
    drop((loaded, tables));

    let (_loaded, mut tables) = pinned.open(SMALL);
    let inherited = tables.inherit_flows(&mut pinned.former(), true).unwrap();
    assert_eq!((inherited.nat, inherited.left_out), (12, 28));
    let entries = tables.nat.entries.reverse.entries().unwrap();
    let oldest = entries.iter().map(|(_, entry)| entry.mark.time()).min();
    assert_eq!(oldest, Some(NatMark::new(times(28), 0).time()));
}

#[test]
fn counters_go_on_and_what_new_programs_have_counted_stays() {
    let pinned = Pinned::new("counters");
    let (loaded, tables) = pinned.open(LARGE);
    count(&loaded, &tables, 5);
    pinned.attach(&loaded);
    drop((loaded, tables));

    let (loaded, mut tables) = pinned.open(SMALL);
    assert_eq!(counted(&tables), [0, 0, 0]);
    tables.inherit_counters(&pinned.former());
    assert_eq!(counted(&tables), [5, 5, 5]);
    count(&loaded, &tables, 6);
    tables.inherit_counters(&pinned.former());
    assert_eq!(counted(&tables), [6, 6, 6]);
}

/// Sets the first CPU's counters of a reason, the only service and the only backend.
fn count(loaded: &Loaded, tables: &Tables, packets: u64) {
    let (_, service) = tables.services().next().unwrap();
    let (_, backend) = tables.backends().next().unwrap();
    let traffic = Traffic { packets, bytes: 0 };
    let mut reasons = SyscallMap::<u32, u64>::open(loaded, map::REASONS).unwrap();
    reasons.insert(1, packets).unwrap();
    for (name, id) in [
        (map::SERVICE_TRAFFIC, service.id),
        (map::BACKEND_TRAFFIC, backend.id),
    ] {
        let mut counters = SyscallMap::<u32, Traffic>::open(loaded, name).unwrap();
        counters.insert(id, traffic).unwrap();
    }
}

fn counted(tables: &Tables) -> [u64; 3] {
    let counters = tables.counters().unwrap();
    [
        counters.reasons[1].packets,
        counters.services[0].1.packets,
        counters.backends[0].1.packets,
    ]
}

#[test]
fn what_is_in_use_is_counted_where_a_table_is_to_get_smaller() {
    let pinned = Pinned::new("in-use");
    let in_use = |table, entries| in_use_beyond(&pinned.0, table, entries).unwrap();
    assert_eq!(in_use(map::SERVICE, 1), 0, "nothing is pinned");
    let (_loaded, mut tables) = pinned.open(LARGE);
    let two = ServiceSpec {
        log2_slots: Some(5),
        backends: [1, 2]
            .map(|host| BackendSpec::node([10, 9, 0, host].into(), 1))
            .into(),
        source_ranges: ["192.0.2.0/24".parse().unwrap()].into(),
        ..ServiceSpec::default()
    };
    let slots: u64 = tables.services().map(|(_, service)| service.slots()).sum();
    let key = "10.99.0.1:81/tcp".parse().unwrap();
    tables.put_service(key, &two).unwrap();
    let trusted = ["10.0.0.0/8".parse().unwrap()].into();
    tables.set_trusted_edges(&trusted).unwrap();
    let addresses = Addresses {
        vips: ["10.99.0.1".parse().unwrap()].into(),
        ..Addresses::default()
    };
    tables.set_addresses(addresses.into()).unwrap();
    for (table, used) in [
        (map::SERVICE, 2),
        (map::BACKENDS, 3),
        (map::LUT, usize::try_from(slots).unwrap() + 32),
        (map::SOURCE_RANGES, 1),
        (map::TRUSTED_EDGES, 1),
        (map::VIPS, 1),
        (map::PODS, 0),
    ] {
        assert_eq!(in_use(table, 1), used, "{table}");
        assert_eq!(in_use(table, u32::MAX), 0, "{table} is not larger");
    }
}
