//! The bounds of the figures, and how the report keeps them.

use std::ops::RangeInclusive;

use super::{Report, Row};
use crate::{
    bars::{Limit, Outcome},
    datapath::{Order, System},
    stats::Estimate,
};

/// A bound for systems, with a range of flows in turn.
struct Bound(
    &'static str,
    &'static [System],
    RangeInclusive<u32>,
    fn(&Row) -> Option<Estimate>,
    Limit,
);

const BOUNDS: [Bound; 24] = {
    use Limit::{Least, Most};
    use System::{
        Guideway, L2Dsr, Miss, Nat, NatReply, Node, NodeAsked, NodePort, NodeReturn, NodeTries,
        OtherEgress, Past, Pinned, Reply, Retry, Slots,
    };
    /// With so few flows, the memory that packets touch in tables of flows stays in a core's own caches.
    const FEW: RangeInclusive<u32> = 1..=1_000;
    const TO_10_K: RangeInclusive<u32> = 1..=10_000;
    const FROM_10_K: RangeInclusive<u32> = 10_000..=u32::MAX;
    const MILLION: RangeInclusive<u32> = 1_000_000..=1_000_000;
    [
        Bound(
            "plain, of the floor",
            &[Guideway],
            TO_10_K,
            of_floor,
            Least(0.80),
        ),
        Bound(
            "plain and L2 DSR, units",
            &[Guideway, L2Dsr],
            TO_10_K,
            units,
            Most(1.9),
        ),
        Bound(
            "plain, 1 M flows, of the floor",
            &[Guideway],
            MILLION,
            of_floor,
            Least(0.76),
        ),
        Bound(
            "plain, 1 M flows, units",
            &[Guideway],
            MILLION,
            units,
            Most(2.4),
        ),
        Bound(
            "131 072 slots, of the floor",
            &[Slots],
            1..=u32::MAX,
            of_floor,
            Least(0.76),
        ),
        Bound(
            "131 072 slots, units",
            &[Slots],
            1..=u32::MAX,
            units,
            Most(2.4),
        ),
        Bound(
            "growth of the net cost, 10 k to 1 M flows",
            &[Guideway],
            MILLION,
            growth,
            Most(1.10),
        ),
        Bound(
            "NodePort to another node, of plain",
            &[NodePort],
            FROM_10_K,
            of_plain,
            Most(1.10),
        ),
        Bound("edge to pod, units", &[Node], FEW, units, Most(2.0)),
        Bound(
            "edge to pod, 10 k flows, units",
            &[Node],
            FROM_10_K,
            units,
            Most(3.0),
        ),
        Bound("a pod's reply, units", &[Reply], FEW, units, Most(1.8)),
        Bound(
            "a pod's reply, 10 k flows, units",
            &[Reply],
            FROM_10_K,
            units,
            Most(2.6),
        ),
        Bound("NAT to the backend, units", &[Nat], FEW, units, Most(3.2)),
        Bound(
            "NAT to the backend, 10 k flows, units",
            &[Nat],
            FROM_10_K,
            units,
            Most(4.4),
        ),
        Bound(
            "NAT to the client, units",
            &[NatReply],
            FEW,
            units,
            Most(2.4),
        ),
        Bound(
            "NAT to the client, 10 k flows, units",
            &[NatReply],
            FROM_10_K,
            units,
            Most(3.4),
        ),
        Bound(
            "other traffic at egress, units",
            &[OtherEgress],
            FROM_10_K,
            units,
            Most(0.3),
        ),
        Bound(
            "a miss at the edge, units",
            &[Miss],
            FROM_10_K,
            units,
            Most(0.6),
        ),
        Bound(
            "slots with a past, of plain",
            &[Past],
            FROM_10_K,
            of_plain,
            Most(1.06),
        ),
        Bound(
            "pinned connections, units",
            &[Pinned],
            FEW,
            units,
            Most(5.0),
        ),
        Bound(
            "may be returned, units more at the node",
            &[NodeTries],
            FEW,
            units_more,
            Most(0.5),
        ),
        Bound(
            "the node asks, units more in a second",
            &[NodeAsked],
            FEW,
            units_more,
            Most(5.0),
        ),
        Bound(
            "returned by a node, units",
            &[NodeReturn],
            FEW,
            units,
            Most(9.0),
        ),
        Bound(
            "sent to the next owner, units",
            &[Retry],
            FEW,
            units,
            Most(9.0),
        ),
    ]
};

fn of_floor(row: &Row) -> Option<Estimate> {
    row.rate.as_ref().map(|rate| rate.of_floor)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "one of several figures, not all rows have the others"
)]
fn units(row: &Row) -> Option<Estimate> {
    Some(row.units)
}

fn of_plain(row: &Row) -> Option<Estimate> {
    row.of_plain
}

fn units_more(row: &Row) -> Option<Estimate> {
    row.units_more
}

fn growth(row: &Row) -> Option<Estimate> {
    row.growth
}

/// A bound and the figure that comes closest to breaking it.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What is bounded.
    pub name: &'static str,
    /// The bound.
    pub limit: Limit,
    /// The worst figure, with its system and stream.
    pub worst: Option<(Estimate, String)>,
    /// The outcome of all figures together.
    pub outcome: Outcome,
}

impl Bar {
    /// Judges figures. Each comes with its traffic, and with whether it tells anything about the bound.
    pub(in crate::datapath) fn of(
        name: &'static str,
        limit: Limit,
        figures: Vec<(Estimate, String, bool)>,
    ) -> Self {
        let outcome = |(figure, _, is_judged): &(Estimate, String, bool)| match is_judged {
            true => limit.judge(figure),
            false => Outcome::Inconclusive,
        };
        Self {
            name,
            limit,
            outcome: Outcome::worst(figures.iter().map(outcome)),
            worst: figures
                .into_iter()
                .map(|(figure, of, _)| (figure, of))
                .max_by(|(a, _), (b, _)| limit.excess(a).total_cmp(&limit.excess(b))),
        }
    }
}

impl Report {
    /// Compares the figures with their bounds.
    pub fn bars(&self) -> Vec<Bar> {
        let judge = |Bound(name, systems, flows, figure, limit): &Bound| {
            let bounded = self.rows.iter().filter(|row| {
                systems.contains(&row.system)
                    && flows.contains(&row.stream.flows)
                    && row.stream.order == Order::InTurn
            });
            let figures = bounded.filter_map(|row| Some((figure(row)?, row.traffic(), true)));
            Bar::of(name, *limit, figures.collect())
        };
        BOUNDS.iter().map(judge).collect()
    }
}
