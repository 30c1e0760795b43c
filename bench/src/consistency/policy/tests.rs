use super::*;
use crate::consistency::backends::Backends;

/// A Service with two edges, and its clients' connections.
struct Service {
    edges: Box<dyn Edges>,
    table: Table,
    now: u64,
    /// Of each client, the owner of its slot in each table so far.
    owners: Vec<Vec<BackendId>>,
}

const CLIENTS: u32 = 2000;

impl Service {
    fn new(policy: Policy, scenario: &Scenario, backends: &mut Backends) -> Self {
        let table = backends.table();
        let owner = |client| vec![table.owner(Client(client).hash())];
        let mut service = Self {
            edges: policy.edges(scenario, backends.ids()),
            owners: (0..CLIENTS).map(owner).collect(),
            now: 1_000_000_000_000,
            table,
        };
        for id in backends.take_started() {
            service.edges.set_alive(id, true);
        }
        for edge in 0..2 {
            service.edges.learn(edge, &service.table, None);
        }
        for client in 0..CLIENTS {
            for kind in [Kind::Syn, Kind::Ack] {
                let fate = service.send(0, client, kind);
                assert_eq!(fate, Fate::Delivered(service.owners[client as usize][0]));
            }
        }
        service
    }

    fn send(&mut self, edge: usize, number: u32, kind: Kind) -> Fate {
        self.now += 1_000_000;
        self.edges.set_time(self.now);
        let sockets = [self.owners[number as usize][0]];
        let segment = Segment {
            client: Client(number),
            hash: Client(number).hash(),
            kind,
            number,
            sockets: &sockets,
        };
        self.edges.send(edge, &segment)
    }

    fn replace(&mut self, backends: &mut Backends, count: usize) {
        self.now += 2_000_000_000;
        self.edges.set_time(self.now);
        backends.churn(count);
        for id in backends.take_started() {
            self.edges.set_alive(id, true);
        }
        let table = backends.table();
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
        let is_broken = |number: &u32| {
            let fate = self.send(edge, *number, Kind::Data);
            fate != Fate::Delivered(self.owners[*number as usize][0])
        };
        (0..CLIENTS).filter(is_broken).collect()
    }

    /// Returns the clients whose owners are such.
    fn clients(&self, are_such: impl Fn(&[BackendId]) -> bool) -> Vec<u32> {
        let of = |number: &u32| are_such(&self.owners[*number as usize]);
        (0..CLIENTS).filter(of).collect()
    }
}

fn replaced_twice(policy: Policy) -> Service {
    let scenario = Scenario {
        edges: 2,
        backends: 10,
        ..Scenario::default()
    };
    let mut backends = Backends::new(&scenario);
    let mut service = Service::new(policy, &scenario, &mut backends);
    service.replace(&mut backends, 3);
    service.replace(&mut backends, 3);
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
