use super::*;
use crate::consistency::backends::Backends;

/// A Service with two edges, and its clients' connections.
struct Service {
    backends: Backends,
    edges: Box<dyn Edges>,
    table: Table,
    now: u64,
    /// Of each client, the owner of its slot in each table so far.
    owners: Vec<Vec<BackendId>>,
    /// Of each client, the backends of its connections so far, each of which has a socket still.
    sockets: Vec<Vec<BackendId>>,
}

const CLIENTS: u32 = 2000;

impl Service {
    fn new(policy: Policy) -> Self {
        let scenario = Scenario {
            edges: 2,
            backends: 10,
            ..Scenario::default()
        };
        let mut backends = Backends::new(&scenario);
        let table = backends.table();
        let mut edges = policy.edges(&scenario, backends.ids());
        for id in backends.take_started() {
            edges.set_alive(id, true);
        }
        for edge in 0..2 {
            edges.learn(edge, &table, None);
        }
        let owner = |client| vec![table.owner(Client(client).hash())];
        let mut service = Self {
            owners: (0..CLIENTS).map(owner).collect(),
            sockets: vec![Vec::new(); CLIENTS as usize],
            now: 1_000_000_000_000,
            backends,
            edges,
            table,
        };
        service.connect(0);
        service
    }

    /// Has each client begin a connection by an edge; its last one is not ended.
    fn connect(&mut self, edge: usize) {
        for client in 0..CLIENTS {
            let owner = self.owners[client as usize].last().copied();
            let owner = Fate::Delivered(owner.unwrap());
            assert_eq!(self.send(edge, client, Kind::Syn), owner);
            self.sockets[client as usize].extend(self.owners[client as usize].last());
            assert_eq!(self.send(edge, client, Kind::Ack), owner);
        }
    }

    fn send(&mut self, edge: usize, client: u32, kind: Kind) -> Fate {
        self.now += 1_000_000;
        self.edges.set_time(self.now);
        let sockets = &self.sockets[client as usize];
        // A SYN begins the next connection.
        let begun = sockets.len() + usize::from(kind == Kind::Syn);
        let segment = Segment {
            client: Client(client),
            hash: Client(client).hash(),
            kind,
            number: client + CLIENTS * u32::try_from(begun).unwrap(),
            sockets,
        };
        self.edges.send(edge, &segment)
    }

    fn replace(&mut self, count: usize) {
        self.backends.churn(count);
        self.learn();
    }

    /// Has both edges learn of the backends.
    fn learn(&mut self) {
        self.now += 2_000_000_000;
        self.edges.set_time(self.now);
        for id in self.backends.take_started() {
            self.edges.set_alive(id, true);
        }
        let table = self.backends.table();
        let changed = table.changed_since(&self.table);
        for edge in 0..2 {
            self.edges.learn(edge, &table, Some(&changed));
        }
        for (client, owners) in (0..).map(Client).zip(&mut self.owners) {
            owners.push(table.owner(client.hash()));
        }
        self.table = table;
    }

    /// Has each client send by an edge; returns those whose backend does not get it.
    fn broken(&mut self, edge: usize) -> Vec<u32> {
        let is_broken = |client: &u32| {
            let fate = self.send(edge, *client, Kind::Data);
            let backend = self.sockets[*client as usize].last();
            fate != Fate::Delivered(*backend.unwrap())
        };
        (0..CLIENTS).filter(is_broken).collect()
    }

    /// Returns the clients whose owners are such.
    fn clients(&self, are_such: impl Fn(&[BackendId]) -> bool) -> Vec<u32> {
        let of = |client: &u32| are_such(&self.owners[*client as usize]);
        (0..CLIENTS).filter(of).collect()
    }
}

fn replaced_twice(policy: Policy) -> Service {
    let mut service = Service::new(policy);
    service.replace(3);
    service.replace(3);
    service
}

/// All connections whose slot has another owner by now are pinned at the first edge.
fn pinned(policy: Policy) -> Service {
    let mut service = replaced_twice(policy);
    for _ in 0..2 {
        assert_eq!(service.broken(0), [0; 0], "{policy}");
    }
    service
}

#[test]
fn maglev_breaks_the_connections_whose_slot_has_another_owner() {
    let mut service = replaced_twice(Policy::Maglev);
    let moved = service.clients(|owners| owners[0] != owners[2]);
    assert!(moved.len() > CLIENTS as usize / 4, "{}", moved.len());
    assert_eq!(service.broken(0), moved);
    assert_eq!(service.edges.cost(), Cost::default());
}

#[test]
fn table_of_connections_breaks_those_that_come_by_another_edge() {
    let mut service = replaced_twice(Policy::MaglevUnbounded);
    assert_eq!(service.broken(0), [0; 0]);
    let moved = service.clients(|owners| owners[0] != owners[2]);
    assert_eq!(service.broken(1), moved);
    assert_eq!(service.edges.cost().entries, CLIENTS as usize);
}

#[test]
fn lru_breaks_those_that_it_has_forgotten() {
    let mut service = replaced_twice(Policy::MaglevLru);
    // The last hundred clients are remembered, but each that is asked for pushes one of them out.
    let moved = service.clients(|owners| owners[0] != owners[2]);
    assert_eq!(service.broken(0), moved);
    assert_eq!(service.edges.cost().entries, 100);
}

#[test]
fn lists_of_one_break_the_connections_whose_slot_has_had_two_owners_since() {
    let mut service = replaced_twice(Policy::Lists1);
    let lost = service.clients(|owners| {
        owners[0] != owners[1] && owners[0] != owners[2] && owners[1] != owners[2]
    });
    assert!(!lost.is_empty());
    assert_eq!(service.broken(1), lost);
}

#[test]
fn guideway_breaks_none_by_any_edge() {
    for policy in [Policy::Lists4, Policy::Guideway, Policy::WithoutPins] {
        let mut service = replaced_twice(policy);
        let returned = service.clients(|owners| owners[0] != owners[2]).len() as u64;
        for edge in [1, 0] {
            assert_eq!(service.broken(edge), [0; 0], "{policy}");
        }
        let first = service.edges.cost().returns;
        assert!(
            first >= 2 * returned,
            "{policy}: {first} returns of {returned}"
        );
        // Pins send what follows straight to its owner.
        assert_eq!(service.broken(1), [0; 0]);
        let again = service.edges.cost().returns - first;
        assert_eq!(
            again > 0,
            policy == Policy::WithoutPins,
            "{policy}: {again}"
        );
    }
}

#[test]
fn pinned_connections_stay_pinned_in_a_table_of_another_length() {
    let mut service = pinned(Policy::Guideway);
    let moved = service.clients(|owners| owners[0] != owners[2]);
    let before = service.edges.cost().returns;
    for count in [5, 10] {
        let log2 = service.table.log2();
        service.backends.resize(count);
        service.learn();
        assert_ne!(service.table.log2(), log2);
        for client in &moved {
            let owner = service.owners[*client as usize][0];
            assert_eq!(service.send(0, *client, Kind::Data), Fate::Delivered(owner));
        }
    }
    assert_eq!(service.edges.cost().returns, before);
}

#[test]
fn forged_syn_costs_a_pinned_connection_one_return() {
    for policy in [Policy::Lists4, Policy::Guideway] {
        let mut service = pinned(policy);
        let moved = service.clients(|owners| owners[0] != owners[2]).len() as u64;
        let before = service.edges.cost().returns;
        for client in 0..CLIENTS {
            service.send(0, client, Kind::Syn);
        }
        for _ in 0..2 {
            assert_eq!(service.broken(0), [0; 0], "{policy}");
        }
        assert_eq!(service.edges.cost().returns - before, moved, "{policy}");
    }
}

#[test]
fn pin_of_the_last_connection_does_not_lead_the_next_one_astray() {
    for policy in [Policy::Lists4, Policy::Guideway] {
        let mut service = pinned(policy);
        // The clients have gone without a word, and use their ports again.
        service.connect(0);
        service.replace(3);
        let moved_twice =
            service.clients(|owners| owners[0] != owners[2] && owners[2] != owners[3]);
        assert!(!moved_twice.is_empty());
        // An owner that owns the slot again takes what it gets for the last connection's, of which it has the socket.
        let returned_to =
            service.clients(|owners| owners[0] != owners[2] && owners[0] == owners[3]);
        assert_eq!(service.broken(0), returned_to, "{policy}");
    }
}
