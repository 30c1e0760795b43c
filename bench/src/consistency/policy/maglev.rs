//! Edges that choose by the lookup table and remember connections, or not even these.

use super::{Cost, Edges, Fate, Kind, Segment, lru::Lru};
use crate::consistency::{addresses::BackendId, backends::Table};

/// The edges, without nodes: what is sent to a backend reaches it.
#[derive(Debug)]
pub(super) struct Maglev {
    tables: Vec<Table>,
    /// The connections that each edge remembers.
    known: Option<Vec<Lru>>,
    look_ups: u64,
}

impl Maglev {
    /// Makes edges that remember so many connections each, or none.
    pub(super) fn new(edges: usize, remembered: Option<usize>) -> Self {
        let known = |capacity| (0..edges).map(|_| Lru::new(capacity)).collect();
        Self {
            tables: vec![Table::empty(); edges],
            known: remembered.map(known),
            look_ups: 0,
        }
    }
}

impl Edges for Maglev {
    fn set_time(&mut self, _: u64) {}

    fn set_alive(&mut self, _: BackendId, _: bool) {}

    fn learn(&mut self, edge: usize, table: &Table, changed: Option<&[u32]>) {
        self.tables[edge] = table.clone();
        if changed.is_none()
            && let Some(known) = &mut self.known
        {
            known[edge].clear();
        }
    }

    fn send(&mut self, edge: usize, segment: &Segment<'_>) -> Fate {
        let owner = self.tables[edge].owner(segment.hash);
        let Some(known) = &mut self.known else {
            return Fate::Delivered(owner);
        };
        self.look_ups += 1;
        // A new connection is not asked about: the tuple may have been another one's.
        if segment.kind != Kind::Syn
            && let Some(backend) = known[edge].get(segment.client)
        {
            return Fate::Delivered(backend);
        }
        self.look_ups += 1;
        known[edge].put(segment.client, owner);
        Fate::Delivered(owner)
    }

    fn sweep(&mut self) {}

    fn cost(&self) -> Cost {
        let known = self.known.iter().flatten();
        Cost {
            look_ups: self.look_ups,
            entries: known.map(Lru::len).max().unwrap_or_default(),
            ..Cost::default()
        }
    }
}
