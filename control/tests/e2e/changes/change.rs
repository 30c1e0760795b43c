//! The changes, and what each makes of the file that all machines have.

use std::collections::BTreeSet;

use lab::{Machine, Topology};

use crate::support::{with_field, without};

/// Of the services while the table is short; without it, the number of pods decides.
pub(super) const SHORT_TABLE: &str = "table_size: 256";

/// A change under held connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Change {
    PodAdded,
    /// It lives on.
    PodRemoved,
    PodDrained,
    PodReweighted,
    AllPodsReplaced,
    /// So many pods that the table has another length, and back.
    TableGrown,
    TableShrunk,
    /// The machine that has been an edge for longest goes, and the router hears of it later.
    EdgeLost,
    /// The machine that was lost comes back without tables.
    EdgeAdded,
    /// The router sends each edge what was the other one's.
    Reshuffled,
    EdgeAgentKilled,
    NodeAgentKilled,
}

impl Change {
    pub(super) const ALL: [Self; 12] = [
        Self::PodAdded,
        Self::PodRemoved,
        Self::PodDrained,
        Self::PodReweighted,
        Self::AllPodsReplaced,
        Self::TableGrown,
        Self::TableShrunk,
        Self::EdgeLost,
        Self::EdgeAdded,
        Self::Reshuffled,
        Self::EdgeAgentKilled,
        Self::NodeAgentKilled,
    ];

    /// Tells whether it is one of the file.
    pub(super) fn is_of_file(self) -> bool {
        self <= Self::TableShrunk
    }

    /// Tells whether it kills an agent.
    pub(super) fn kills(self) -> bool {
        matches!(self, Self::EdgeAgentKilled | Self::NodeAgentKilled)
    }

    /// All sets of two.
    pub(super) fn pairs() -> impl Iterator<Item = [Self; 2]> {
        let all = Self::ALL.into_iter();
        all.flat_map(|one| Self::ALL.map(|other| [one, other]))
            .filter(|[one, other]| one < other)
    }
}

/// What the file says of pods: what has changed in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pods(BTreeSet<Change>);

impl Pods {
    /// What has to be there before some changes.
    pub(super) fn before(changes: &[Change]) -> Self {
        let lengths = [Change::TableGrown, Change::TableShrunk];
        let first = changes.iter().find(|change| lengths.contains(change));
        let grown = first.filter(|first| **first == Change::TableShrunk);
        Self(grown.map(|_| Change::TableGrown).into_iter().collect())
    }

    pub(super) fn with(mut self, change: Change) -> Self {
        match change {
            Change::TableShrunk => {
                self.0.remove(&Change::TableGrown);
            }
            change if change.is_of_file() => {
                self.0.insert(change);
            }
            _ => {}
        }
        self
    }

    fn has(&self, change: Change) -> bool {
        self.0.contains(&change)
    }

    /// The first half of each node's pods, of which single ones change, and the other half, of which some are added.
    fn halves<'net>(&self, net: &'net Topology) -> [Vec<&'net Machine>; 2] {
        let half = |node: &'net Machine, is_first: bool| {
            let (first, second) = node.pods().split_at(node.pods().len() / 2);
            if is_first { first } else { second }
        };
        let is_first = !self.has(Change::AllPodsReplaced);
        [is_first, !is_first].map(|is_first| {
            let nodes = net.nodes().iter();
            nodes.flat_map(|node| half(node, is_first)).collect()
        })
    }

    fn listed<'net>(&self, net: &'net Topology) -> Vec<&'net Machine> {
        let [mut listed, other] = self.halves(net);
        if self.has(Change::PodRemoved) {
            listed.remove(0);
        }
        if self.has(Change::PodAdded) {
            listed.push(other[0]);
        }
        if self.has(Change::TableGrown) {
            listed.extend(&other[1..3]);
        }
        listed
    }

    fn drained<'net>(&self, net: &'net Topology) -> Option<&'net Machine> {
        let [listed, _] = self.halves(net);
        self.has(Change::PodDrained).then(|| listed[1])
    }

    /// The pod that has more weight than the others.
    pub(super) fn heavier<'net>(&self, net: &'net Topology) -> Option<&'net Machine> {
        let [listed, _] = self.halves(net);
        self.has(Change::PodReweighted).then(|| listed[2])
    }

    /// Labels of the pods that take new connections.
    pub(super) fn open<'net>(&self, net: &'net Topology) -> BTreeSet<&'net str> {
        let listed = self.listed(net).into_iter().map(Machine::label);
        let drained = self.drained(net).map(Machine::label);
        listed.filter(|label| Some(*label) != drained).collect()
    }

    /// Makes the file from one that lists all pods, with a short table.
    pub(super) fn file(&self, net: &Topology, whole: &str) -> String {
        let listed: BTreeSet<&str> = self.listed(net).into_iter().map(Machine::label).collect();
        let left_out = net.pods().filter(|pod| !listed.contains(pod.label()));
        let mut file = left_out.fold(whole.to_owned(), |file, pod| without(&file, pod));
        for (pod, field) in [
            (self.drained(net), "drain: true"),
            (self.heavier(net), "weight: 6"),
        ] {
            if let Some(pod) = pod {
                file = with_field(&file, pod, field);
            }
        }
        if self.has(Change::TableGrown) {
            file = file.replace(&format!("    {SHORT_TABLE}\n"), "");
        }
        file
    }
}
