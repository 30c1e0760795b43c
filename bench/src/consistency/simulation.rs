//! The events of a run, in the order of their times.

use std::{collections::BTreeMap, rc::Rc};

use super::{
    Policy, Scenario,
    addresses::{BackendId, Client},
    agenda::{Agenda, Event},
    backends::{self, Backends, Pod, Table},
    broken::{self, Broken, Why},
    clients::{Clients, Flow},
    owners::{Known, Learned, Owners, Version},
    policy::{Edges, Fate, Kind, Segment},
    report::Row,
    scenario::ROLL_STEP_SECONDS,
    sockets::HalfOpen,
};
use crate::stats::SplitMix64;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const MILLISECOND: u64 = 1_000_000;
/// When the run begins: machines have been up for a while.
const BEGIN: u64 = 1000 * SECOND;
/// How often a client sends a segment again before it gives up, as Linux does a SYN (`tcp_syn_retries`).
const MOST_RESENT: u32 = 6;

/// An edge, as the run knows it.
#[derive(Debug)]
struct Knowledge {
    version: Version,
    table: Table,
    learned: Learned,
}

/// A table that some edges have yet to learn of.
#[derive(Debug)]
struct Pending {
    table: Table,
    edges: u32,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    policy: Policy,
    now: u64,
    agenda: Agenda,
    random: SplitMix64,
    backends: Backends,
    /// The version with which each backend began.
    began: Vec<Version>,
    churn_owed: f64,
    is_scaled: bool,
    version: Version,
    newest: Table,
    pending: BTreeMap<Version, Pending>,
    /// The slots that differ between two versions, as last computed.
    difference: ([Version; 2], Rc<[u32]>),
    owners: Owners,
    known: Vec<Knowledge>,
    spread: u64,
    clients: Clients,
    flows: Vec<Option<Flow>>,
    free: Vec<usize>,
    half_open: HalfOpen,
    edges: Box<dyn Edges>,
    row: Row,
}

/// Runs a scenario with a policy.
pub(super) fn simulate(scenario: &Scenario, policy: Policy) -> Row {
    let mut simulation = Simulation::new(scenario, policy);
    let end = BEGIN + u64::from(scenario.minutes) * MINUTE;
    while let Some((time, event)) = simulation.agenda.next_before(end) {
        simulation.now = time;
        simulation.edges.set_time(time);
        simulation.happen(event);
    }
    simulation.finish()
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, policy: Policy) -> Self {
        let backends = Backends::new(scenario);
        let table = backends.table();
        let mut simulation = Self {
            scenario,
            policy,
            now: BEGIN,
            agenda: Agenda::default(),
            random: SplitMix64::new(scenario.seed ^ 0x6564_6765),
            began: vec![0; backends.ids()],
            churn_owed: 0.0,
            is_scaled: false,
            version: 0,
            newest: table.clone(),
            pending: BTreeMap::new(),
            difference: ([0; 2], Rc::from([])),
            owners: Owners::new(backends::log2_slots(scenario.most_backends()), &table),
            known: Vec::new(),
            spread: 0,
            clients: Clients::new(scenario),
            flows: Vec::new(),
            free: Vec::new(),
            half_open: HalfOpen::default(),
            edges: policy.edges(scenario, backends.ids()),
            row: Row::new(scenario, policy),
            backends,
        };
        simulation.edges.set_time(BEGIN);
        simulation.tell_of_started();
        for edge in 0..scenario.edges as usize {
            simulation.known.push(Knowledge {
                version: 0,
                table: Table::empty(),
                learned: Learned::default(),
            });
            simulation.begin_edge(edge);
        }
        let minutes = u64::from(scenario.minutes) * MINUTE;
        simulation.plan(MINUTE, Event::Minute);
        simulation.plan(60 * MINUTE, Event::Hour);
        if scenario.roll_minutes > 0 {
            simulation.plan(
                u64::from(scenario.roll_minutes) * MINUTE,
                Event::BeginToRoll,
            );
        }
        if scenario.scale_minutes > 0 {
            simulation.plan(u64::from(scenario.scale_minutes) * MINUTE, Event::Scale);
        }
        if scenario.reshuffle_minutes > 0 {
            simulation.plan(
                u64::from(scenario.reshuffle_minutes) * MINUTE,
                Event::Reshuffle,
            );
        }
        for reboot in 0..u64::from(scenario.reboots) {
            let edge = usize::try_from(reboot).unwrap_or_default() % scenario.edges as usize;
            let after = minutes * (reboot + 1) / (u64::from(scenario.reboots) + 1);
            simulation.plan(after, Event::Reboot(edge));
        }
        let first = simulation.clients.next_gap();
        simulation.plan(first, Event::BeginFlow);
        simulation
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.agenda.plan(self.now + after, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Minute => {
                self.churn();
                self.plan(MINUTE, Event::Minute);
            }
            Event::Hour => {
                self.look();
                self.plan(60 * MINUTE, Event::Hour);
            }
            Event::Scale => {
                self.scale();
                self.plan(
                    u64::from(self.scenario.scale_minutes) * MINUTE,
                    Event::Scale,
                );
            }
            Event::BeginToRoll => {
                self.backends.begin_to_roll();
                self.plan(0, Event::Roll);
                self.plan(
                    u64::from(self.scenario.roll_minutes) * MINUTE,
                    Event::BeginToRoll,
                );
            }
            Event::Roll => {
                let left = self.backends.roll(self.scenario.roll_batch as usize);
                if !left.is_empty() {
                    self.change(&left);
                    self.plan(u64::from(ROLL_STEP_SECONDS) * SECOND, Event::Roll);
                }
            }
            Event::End(id) => {
                self.backends.end(id);
                self.edges.set_alive(id, false);
            }
            Event::Learn(edge, version) => self.learn(edge, version),
            Event::Reshuffle => {
                self.spread += 1;
                self.plan(
                    u64::from(self.scenario.reshuffle_minutes) * MINUTE,
                    Event::Reshuffle,
                );
            }
            Event::Reboot(edge) => self.begin_edge(edge),
            Event::BeginFlow => self.begin_flow(),
            Event::Send(flow) => self.send(flow),
            Event::Free(client) => self.clients.free(client),
        }
    }

    fn churn(&mut self) {
        let serving = u32::try_from(self.backends.serving()).unwrap_or_default();
        self.churn_owed += self.scenario.churn_percent / 100.0 * f64::from(serving);
        let mut count = 0;
        while self.churn_owed >= 1.0 {
            self.churn_owed -= 1.0;
            count += 1;
        }
        let left = self.backends.churn(count);
        if !left.is_empty() {
            self.change(&left);
        }
    }

    /// Has the other number of backends serve.
    fn scale(&mut self) {
        let Scenario {
            backends, scale_to, ..
        } = *self.scenario;
        self.is_scaled = !self.is_scaled;
        let count = if self.is_scaled { scale_to } else { backends };
        let left = self.backends.resize(count as usize);
        self.change(&left);
    }

    /// Makes the set without these backends known to the edges, each in its own time.
    fn change(&mut self, left: &[BackendId]) {
        self.version += 1;
        self.tell_of_started();
        for id in left {
            self.plan(
                u64::from(self.scenario.drain_minutes) * MINUTE,
                Event::End(*id),
            );
        }
        self.newest = self.backends.table();
        self.owners.change(self.version, &self.newest);
        let pending = Pending {
            table: self.newest.clone(),
            edges: self.scenario.edges,
        };
        self.pending.insert(self.version, pending);
        for edge in 0..self.scenario.edges {
            let after = self.lateness(edge);
            self.plan(after, Event::Learn(edge as usize, self.version));
        }
    }

    /// Draws the time after which an edge learns of a change.
    fn lateness(&mut self, edge: u32) -> u64 {
        let late = self.random.below(self.scenario.late_ms as usize + 1) as u64 * MILLISECOND;
        let period = u64::from(self.scenario.coalesce_seconds) * SECOND;
        if edge < self.scenario.coalescing {
            period - self.now % period
        } else {
            late
        }
    }

    fn tell_of_started(&mut self) {
        for id in self.backends.take_started() {
            self.edges.set_alive(id, true);
            self.began[id as usize] = self.version;
        }
    }

    fn learn(&mut self, edge: usize, version: Version) {
        let Some(pending) = self.pending.get_mut(&version) else {
            return;
        };
        let table = pending.table.clone();
        pending.edges -= 1;
        if pending.edges == 0 {
            self.pending.remove(&version);
        }
        // One that coalesces asks for what there is now.
        let (version, table) = if edge < self.scenario.coalescing as usize {
            (self.version, self.newest.clone())
        } else {
            (version, table)
        };
        let known = &mut self.known[edge];
        if known.version >= version {
            return;
        }
        let versions = [known.version, version];
        if self.difference.0 != versions {
            self.difference = (versions, table.changed_since(&known.table));
        }
        self.edges.learn(edge, &table, Some(&self.difference.1));
        known.learned.learn(version, &table, second(self.now));
        (known.version, known.table) = (version, table);
    }

    /// Has an edge begin with the newest set and no past.
    fn begin_edge(&mut self, edge: usize) {
        self.edges.learn(edge, &self.newest, None);
        let known = &mut self.known[edge];
        (known.version, known.table) = (self.version, self.newest.clone());
        known.learned.forget();
        let second = second(self.now);
        known.learned.learn(self.version, &self.newest, second);
    }

    fn begin_flow(&mut self) {
        if self.clients.begun() == self.scenario.flows {
            return;
        }
        let (flow, until_free) = self.clients.begin();
        self.row.flows += 1;
        self.plan(until_free, Event::Free(flow.client));
        let place = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.flows.len() - 1
        });
        self.flows[place] = Some(flow);
        self.plan(0, Event::Send(place));
        let gap = self.clients.next_gap();
        self.plan(gap, Event::BeginFlow);
    }

    /// Chooses the edge that a client's packets come to, as routers do by the tuple.
    fn edge_of(&self, client: Client) -> usize {
        let mut hash = SplitMix64::new(self.spread << 32 | u64::from(client.0));
        hash.below(self.scenario.edges as usize)
    }

    fn send(&mut self, place: usize) {
        let Some(mut flow) = self.flows[place].take() else {
            return;
        };
        if flow.pod != Pod::default() && !self.backends.is_alive(flow.pod) {
            self.row.ended_with_backend += 1;
            self.free.push(place);
            return;
        }
        let edge = self.edge_of(flow.client);
        let sockets = self.sockets(&flow);
        let segment = Segment {
            client: flow.client,
            hash: flow.hash,
            kind: flow.kind,
            number: flow.number,
            sockets: &sockets,
        };
        self.row.segments += 1;
        let fate = self.edges.send(edge, &segment);
        let after = match fate {
            Fate::Delivered(id) if flow.kind == Kind::Syn => {
                flow.pod = self.backends.pod(id);
                self.half_open.remove(flow.client, flow.pod);
                self.advance(&mut flow)
            }
            Fate::Delivered(id) if id == flow.pod.id => self.advance(&mut flow),
            Fate::Lost if flow.resent < MOST_RESENT => {
                self.row.resent += 1;
                flow.resent += 1;
                Some(SECOND << (flow.resent - 1))
            }
            fate => {
                self.note_broken(edge, &flow, fate);
                None
            }
        };
        match after {
            Some(after) => {
                self.flows[place] = Some(flow);
                self.plan(after, Event::Send(place));
            }
            None => self.free.push(place),
        }
    }

    /// Returns the time until the connection's next segment; `None` at its end.
    fn advance(&mut self, flow: &mut Flow) -> Option<u64> {
        let after = flow.advance();
        if after.is_none() {
            self.row.ended += 1;
            if flow.vanishes {
                self.half_open.add(flow.client, flow.pod, &self.backends);
            }
        }
        after
    }

    /// Returns the backends that have a socket for the client's end.
    fn sockets(&self, flow: &Flow) -> Vec<BackendId> {
        let half_open = self.half_open.of(flow.client, &self.backends);
        let own = [flow.pod].into_iter().filter(|pod| pod.id != 0);
        half_open.chain(own).map(|pod| pod.id).collect()
    }

    fn note_broken(&mut self, edge: usize, flow: &Flow, fate: Fate) {
        self.row.broken += 1;
        if let Some(longest) = self.policy.claimed_list() {
            let mut half_open = self.half_open.of(flow.client, &self.backends);
            let is_half_open = half_open.any(|pod| fate == Fate::Delivered(pod.id));
            let learned = &self.known[edge].learned;
            let known = match flow.pod.id {
                // A connection that begins goes to the owner of this moment.
                0 => Known::Owns,
                id => {
                    let began = self.began[id as usize];
                    self.owners.known(learned, flow.hash, (id, began))
                }
            };
            let why = broken::why(&Broken {
                fate,
                is_half_open,
                known,
                longest,
                second: second(self.now),
            });
            self.row.why.get_or_insert_default().add(why);
            if why == Why::WithinClaim {
                self.row.note_defect(second(self.now), edge, flow, fate);
            }
        }
        // The client has gone, and the socket does not know.
        if flow.pod.id != 0 {
            self.half_open.add(flow.client, flow.pod, &self.backends);
        }
    }

    /// Lets the edges forget, and looks at what they hold.
    fn look(&mut self) {
        self.edges.sweep();
        let cost = self.edges.cost();
        self.row.entries = self.row.entries.max(cost.entries);
        self.row.history = self.row.history.max(cost.history);
    }

    fn finish(mut self) -> Row {
        self.look();
        let cost = self.edges.cost();
        self.row.look_ups = cost.look_ups;
        self.row.returns = cost.returns;
        self.row.changes = self.version;
        self.row
    }
}

fn second(now: u64) -> u32 {
    u32::try_from(now / SECOND).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
