//! The clients: when connections begin, from which ends, and when each sends.

use std::time::Duration;

use super::{
    Scenario,
    addresses::Client,
    backends::Pod,
    policy::Kind,
    scenario::{IDLE_SECONDS, REUSE_SECONDS, SEGMENTS},
};
use crate::stats::SplitMix64;

/// Time from a SYN to the end of its handshake.
pub(super) const HANDSHAKE_NS: u64 = 20_000_000;

/// A connection.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) client: Client,
    pub(super) number: u32,
    /// The hash of the tuple, which chooses the slot.
    pub(super) hash: u32,
    /// The pod that has accepted it; the default until there is one.
    pub(super) pod: Pod,
    /// What the client sends next.
    pub(super) kind: Kind,
    /// How often it has been sent in vain.
    pub(super) resent: u32,
    /// Whether the client goes without a word.
    pub(super) vanishes: bool,
    /// The times between the segments that are left, in ns; the last one is before the FIN.
    gaps: Vec<u64>,
}

impl Flow {
    /// Returns the time until the next segment, whose kind it sets; `None` once all is sent.
    pub(super) fn advance(&mut self) -> Option<u64> {
        self.resent = 0;
        match self.kind {
            Kind::Syn => {
                self.kind = Kind::Ack;
                Some(HANDSHAKE_NS)
            }
            Kind::Ack | Kind::Data => {
                let gap = self.gaps.pop()?;
                let is_last = self.gaps.is_empty();
                if is_last && self.vanishes {
                    return None;
                }
                self.kind = if is_last { Kind::Fin } else { Kind::Data };
                Some(gap)
            }
            Kind::Fin => None,
        }
    }
}

/// All clients of the Service.
#[derive(Debug)]
pub(super) struct Clients {
    random: SplitMix64,
    seed: u64,
    mean_gap: f64,
    vanish: f64,
    begun: u32,
    ends: u32,
    reuse: f64,
    /// Ends that may be used again, the last one first.
    free: Vec<Client>,
}

impl Clients {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let seconds = f64::from(scenario.minutes) * 60.0;
        Self {
            random: SplitMix64::new(scenario.seed ^ 0x636c_6965_6e74),
            seed: scenario.seed,
            mean_gap: seconds / f64::from(scenario.flows),
            vanish: scenario.vanish_percent / 100.0,
            begun: 0,
            ends: 0,
            reuse: scenario.reuse_percent / 100.0,
            free: Vec::new(),
        }
    }

    pub(super) const fn begun(&self) -> u32 {
        self.begun
    }

    /// Returns the time until the next connection begins.
    pub(super) fn next_gap(&mut self) -> u64 {
        nanoseconds(-self.random.open_unit().ln() * self.mean_gap)
    }

    /// Begins a connection; returns the time after which its end at the client is used again, too.
    pub(super) fn begin(&mut self) -> (Flow, u64) {
        let is_reused = self.random.open_unit() < self.reuse;
        let reused = if is_reused { self.free.pop() } else { None };
        let client = reused.unwrap_or_else(|| {
            self.ends += 1;
            Client(self.ends)
        });
        let number = self.begun;
        self.begun += 1;
        // Of its own: what becomes of other connections changes nothing of this one.
        let mut random = SplitMix64::new(self.seed.rotate_left(32) ^ u64::from(number));
        let vanishes = random.open_unit() < self.vanish;
        let mut gaps = vec![idle(&mut random)];
        while random.open_unit() > 1.0 / SEGMENTS {
            gaps.push(idle(&mut random));
        }
        let lasts: u64 = gaps.iter().sum();
        let flow = Flow {
            client,
            number,
            hash: client.hash(),
            pod: Pod::default(),
            kind: Kind::Syn,
            resent: 0,
            vanishes,
            gaps,
        };
        let reuse = Duration::from_secs(REUSE_SECONDS.into());
        let reuse = u64::try_from(reuse.as_nanos()).unwrap_or(u64::MAX);
        (flow, HANDSHAKE_NS + lasts + reuse)
    }

    /// Lets an end be used again.
    pub(super) fn free(&mut self, client: Client) {
        self.free.push(client);
    }
}

/// Draws the time between two segments.
fn idle(random: &mut SplitMix64) -> u64 {
    let [least, most] = IDLE_SECONDS.map(f64::ln);
    nanoseconds((least + random.open_unit() * (most - least)).exp())
}

fn nanoseconds(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_has_a_handshake_segments_and_an_end() {
        let mut clients = Clients::new(&Scenario::default());
        let mut segments = 0;
        for _ in 0..1000 {
            let (mut flow, until) = clients.begin();
            let mut kinds = vec![flow.kind];
            let mut lasts = 0;
            while let Some(gap) = flow.advance() {
                lasts += gap;
                kinds.push(flow.kind);
            }
            assert_eq!(kinds[..2], [Kind::Syn, Kind::Ack]);
            assert_eq!(kinds.last() == Some(&Kind::Fin), !flow.vanishes);
            assert!(lasts + u64::from(REUSE_SECONDS) * 1_000_000_000 <= until);
            segments += kinds.len() - 2;
        }
        assert!((9_000..11_000).contains(&segments), "{segments}");
    }

    #[test]
    fn end_is_used_again_once_it_is_free() {
        let mut clients = Clients::new(&Scenario {
            reuse_percent: 100.0,
            ..Scenario::default()
        });
        let (first, _) = clients.begin();
        clients.free(first.client);
        assert_eq!(clients.begin().0.client, first.client);
        assert_ne!(clients.begin().0.client, first.client);
    }
}
