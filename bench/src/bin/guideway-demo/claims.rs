//! The demo's statements about Guideway, each with the measurement that proves it.

use std::fmt;

use crate::{
    cluster::{Family, WEIGHTS},
    page::milliseconds,
    removal::Removal,
    traffic::{Packets, Row},
};

/// Allowed deviation of a share from its weight, in standard deviations. With the 18 shares tested, one run in
/// 100 000 would exceed it by chance.
const MAX_DEVIATIONS: f64 = 5.0;
/// Packets of requests for each packet of address resolution or neighbour discovery, at least.
const OTHER_PACKETS: u64 = 1000;
/// The p99 of IPIP as a multiple of that of L2 DSR, at most.
const MAX_LATENCY_RATIO: u64 = 2;

/// A statement, and whether it holds.
#[derive(Debug)]
struct Claim {
    text: String,
    measured: String,
    holds: bool,
    /// Why it does not hold, if the figures alone do not show that.
    reasons: Vec<String>,
}

/// All claims in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Claims(Vec<Claim>);

impl Claims {
    /// Returns whether every claim holds.
    pub(crate) fn hold(&self) -> bool {
        self.0.iter().all(|claim| claim.holds)
    }

    /// Claims that every request is answered, and that the nodes answer in proportion to their weights.
    pub(crate) fn traffic(&mut self, rows: &[Row]) {
        let requests: u32 = rows.iter().map(|row| row.requests).sum();
        let answers: u64 = rows.iter().flat_map(|row| &row.answers).sum();
        self.0.push(Claim {
            text: "every request is answered".to_owned(),
            measured: format!("{answers} of {requests}"),
            holds: answers == u64::from(requests),
            reasons: rows
                .iter()
                .filter_map(|row| {
                    let (error, count) = row.failures.as_ref()?;
                    Some(format!("{}: {count} failed: {error}", row.service.name))
                })
                .collect(),
        });
        let farthest = rows
            .iter()
            .map(|row| deviation(&row.answers, &WEIGHTS))
            .fold(0.0, f64::max);
        self.0.push(Claim {
            text: "shares follow the weights".to_owned(),
            measured: format!("within {farthest:.1} sigma (allowed {MAX_DEVIATIONS:.0})"),
            holds: farthest <= MAX_DEVIATIONS,
            reasons: Vec::new(),
        });
    }

    /// Claims that outer headers keep nobody waiting: in each family, no service with one is much slower than the one
    /// without.
    pub(crate) fn latency(&mut self, rows: &[Row]) {
        for family in [Family::V4, Family::V6] {
            let slowest = |is_ipip| {
                let of_way = |row: &&Row| {
                    row.service.family == family && row.service.outer.is_some() == is_ipip
                };
                let p99s = rows.iter().filter(of_way);
                p99s.map(|row| row.latency.value_at_quantile(0.99)).max()
            };
            let (ipip, l2dsr) = (slowest(true).unwrap_or(0), slowest(false).unwrap_or(0));
            self.0.push(Claim {
                text: format!(
                    "{family}: p99 of IPIP is within {MAX_LATENCY_RATIO} x that of L2 DSR"
                ),
                measured: format!(
                    "IPIP {} ms, L2 DSR {} ms",
                    milliseconds(ipip),
                    milliseconds(l2dsr)
                ),
                holds: ipip <= MAX_LATENCY_RATIO * l2dsr,
                reasons: Vec::new(),
            });
        }
    }

    /// Claims that replies go from the nodes to the client without passing the edge.
    pub(crate) fn direct_return(&mut self, packets: &Packets) {
        let at_edge = packets.replies_at_edge();
        let (sent, received) = (packets.nodes_out, packets.client_received);
        self.0.push(Claim {
            text: "replies do not cross the edge".to_owned(),
            measured: format!("{} of {sent} packets do", percent(at_edge, sent)),
            holds: at_edge <= sent / OTHER_PACKETS
                && sent.abs_diff(received) <= received / OTHER_PACKETS,
            reasons: vec![format!("the client received {received} packets")],
        });
    }

    /// Claims that no pod took a new connection for part of an old one. That would happen if a client's port
    /// was used for two services in quick succession, and such a connection stalls (RFC 5961 section 4).
    pub(crate) fn fresh_connections(&mut self, challenges: u64) {
        self.0.push(Claim {
            text: "no connection is taken for an older one".to_owned(),
            measured: format!("{challenges} challenge ACKs"),
            holds: challenges == 0,
            reasons: Vec::new(),
        });
    }

    /// Claims that a removal breaks no connection, not even to the removed node.
    pub(crate) fn removal(&mut self, removal: &Removal) {
        let (removed, place) = &removal.removed;
        let of_removed_broken = removal.of_removed_broken();
        self.0.push(Claim {
            text: "removal breaks no connection".to_owned(),
            measured: format!(
                "{} of {} broken",
                removal.kept_broken.len() + of_removed_broken,
                removal.kept + removal.of_removed
            ),
            // In a table of this length Maglev moves 1 slot in 1000. If it moved many, the claim would show little.
            holds: removal.kept > 4 * removal.moved
                && removal.kept_broken.is_empty()
                && of_removed_broken == 0
                && removal.of_removed > 0
                && removal.under_way.unexpected.is_empty(),
            reasons: [&removal.kept_broken[..], &removal.under_way.unexpected].concat(),
        });
        let answers: u64 = removal.answers_after.iter().sum();
        let failures = removal.failures_after.as_ref();
        let astray = removal.answers_after[*place];
        self.0.push(Claim {
            text: format!("{removed} gets no new connection"),
            measured: format!("{astray} of {answers} requests"),
            holds: astray == 0 && answers > 0,
            reasons: Vec::new(),
        });
        let mut weights = WEIGHTS;
        weights[*place] = 0;
        let deviation = deviation(&removal.answers_after, &weights);
        self.0.push(Claim {
            text: "the others share what it had".to_owned(),
            measured: format!(
                "{} failed, shares within {deviation:.1} sigma",
                failures.map_or(0, |(_, count)| *count)
            ),
            holds: failures.is_none() && deviation <= MAX_DEVIATIONS,
            reasons: failures
                .map(|(error, _)| error.clone())
                .into_iter()
                .collect(),
        });
    }
}

impl fmt::Display for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() {
            writeln!(f, "\n  {:<46}Measured", "Claim")?;
        }
        for claim in &self.0 {
            let verdict = if claim.holds { "ok" } else { "FAILED" };
            writeln!(f, "  {:<46}{:<36}{verdict}", claim.text, claim.measured)?;
            if !claim.holds {
                for reason in &claim.reasons {
                    writeln!(f, "    {reason}")?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the largest deviation of a count from its expectation, in standard deviations. It assumes that each
/// request chooses independently, by weight.
fn deviation(counts: &[u64], weights: &[u32]) -> f64 {
    let all: f64 = counts.iter().map(|&count| as_f64(count)).sum();
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let farthest = counts.iter().zip(weights).map(|(&count, &weight)| {
        let share = f64::from(weight) / total;
        let sigma = (all * share * (1.0 - share)).sqrt();
        match as_f64(count) - all * share {
            0.0 => 0.0,
            off => off.abs() / sigma,
        }
    });
    farthest.fold(0.0, f64::max)
}

fn percent(part: u64, whole: u64) -> String {
    let hundredths = part * 10_000 / whole.max(1);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Converts a count. This is exact, because the demo counts thousands, not 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;
    use crate::cluster::{SERVICES, Service};

    #[test]
    fn a_perfect_split_does_not_deviate() {
        assert_eq!(deviation(&[750, 750, 1500], &[1, 1, 2]), 0.0);
        assert_eq!(deviation(&[1000, 0, 2000], &[1, 0, 2]), 0.0);
    }

    #[test]
    fn deviations_are_counted_in_standard_deviations() {
        // 100 flips of a coin: sigma is 5.
        assert!((deviation(&[60, 40], &[1, 1]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn answers_of_a_backend_without_weight_are_infinitely_far() {
        assert!(deviation(&[999, 1, 2000], &[1, 0, 2]).is_infinite());
    }

    #[test]
    fn p99_of_ipip_is_compared_with_l2dsr_of_its_family() {
        let verdicts = |p99s: [u64; SERVICES.len()]| {
            let rows: Vec<Row> = SERVICES.iter().zip(p99s).map(row).collect();
            let mut claims = Claims::default();
            claims.latency(&rows);
            claims.0.iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        // In the order of the services: L2 DSR of v4 and v6, then v4 and v6 with an outer header, twice.
        assert_eq!(verdicts([500, 900, 1000, 1800, 1000, 1]), [true, true]);
        assert_eq!(verdicts([500, 900, 1001, 1800, 1, 1]), [false, true]);
        assert_eq!(verdicts([500, 900, 1, 1, 1000, 1802]), [true, false]);
    }

    /// A row whose slowest requests, 2 of 100, took so long, and the others nothing.
    fn row((service, p99): (&'static Service, u64)) -> Row {
        let mut latency = Histogram::new(3).unwrap();
        latency.record_n(1, 98).unwrap();
        latency.record_n(p99, 2).unwrap();
        Row {
            service,
            requests: 100,
            failures: None,
            answers: Vec::new(),
            latency,
        }
    }
}
