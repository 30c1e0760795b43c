//! The search for the highest load that a system bears.
//!
//! It follows MLRsearch (draft-ietf-bmwg-mlrsearch-15) with one goal and trials of one length. A load is tried again until
//! it is a lower or an upper bound, whatever further trials would show; then the next load lies between the
//! highest lower bound and the lowest upper bound, until these are close to each other. A request that was not sent counts
//! as lost.
//!
//! The frame loss rate of RFC 2544 (section 26.3) is no search: loads go down from the highest one in equal steps.

use anyhow::{Context, Result, ensure};

use super::{Asked, Generator, Passed, Trial};
use crate::scenario::SearchKind;

/// How far the two bounds may be apart at the end, as a share of the upper one (CSIT's goal width).
pub const WIDTH: f64 = 0.005;
/// Trials of a load that decide about it, as the sum of a goal's durations in trials.
const TRIALS: f64 = 3.0;
/// Lowest load that is tried, as a share of the highest.
const LEAST: f64 = 1e-4;
/// Trials that a search usually takes.
pub const USUAL_TRIALS: f64 = 25.0;
/// Steps of the frame loss rate, from 100 % down: tenths, the coarsest that RFC 2544 allows.
pub const LOSS_STEPS: u32 = 10;
/// Trials in a row without loss that end it.
const LOSSLESS: usize = 2;

/// What a load must achieve to count as borne.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Share of requests that a trial may lose.
    pub loss: f64,
    /// Share of the time in which more may be lost.
    pub exceed: f64,
    /// How long a load is tried, in trials.
    pub trials: f64,
}

impl Goal {
    /// Returns the goal of a search; `None` if no load is searched for.
    pub fn of(kind: SearchKind) -> Option<Self> {
        let goal = |loss, exceed, trials| {
            Some(Self {
                loss,
                exceed,
                trials,
            })
        };
        match kind {
            SearchKind::None | SearchKind::Rfc2544Loss => None,
            SearchKind::Ndr => goal(0.0, 0.5, TRIALS),
            SearchKind::Pdr => goal(0.005, 0.5, TRIALS),
            SearchKind::Rfc2544 => goal(0.0, 0.0, 1.0),
        }
    }
}

/// What trials of a load say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Lower,
    Upper,
    Undecided,
}

/// A load and the losses of its trials.
#[derive(Clone, Debug)]
struct Tried {
    rate: f64,
    losses: Vec<f64>,
}

/// The state of a search.
#[derive(Clone, Debug)]
pub struct Search {
    goal: Goal,
    most: f64,
    tried: Vec<Tried>,
}

impl Search {
    /// Begins a search up to the load `most`.
    pub fn new(goal: Goal, most: f64) -> Self {
        Self {
            goal,
            most,
            tried: Vec::new(),
        }
    }

    /// Returns the load to try next; `None` at the end.
    pub fn next_rate(&self) -> Option<f64> {
        let is_undecided = |tried: &&Tried| self.bound(tried) == Bound::Undecided;
        if let Some(undecided) = self.tried.iter().find(is_undecided) {
            return Some(undecided.rate);
        }
        let least = self.most * LEAST;
        match self.bounds() {
            (None, None) => Some(self.most),
            // The highest load is borne.
            (Some(_), None) => None,
            (None, Some(upper)) if upper <= least => None,
            (None, Some(upper)) => Some(self.below(upper).max(least)),
            (Some(lower), Some(upper)) if lower >= upper * (1.0 - WIDTH) => None,
            (Some(lower), Some(upper)) => Some((lower * upper).sqrt()),
        }
    }

    /// Adds a trial: the load, and the share of requests that were lost.
    pub fn add(&mut self, rate: f64, loss: f64) {
        let same = |tried: &&mut Tried| tried.rate == rate;
        match self.tried.iter_mut().find(same) {
            Some(tried) => tried.losses.push(loss),
            None => self.tried.push(Tried {
                rate,
                losses: vec![loss],
            }),
        }
    }

    /// Returns the highest lower bound below the lowest upper bound, and the latter.
    pub fn bounds(&self) -> (Option<f64>, Option<f64>) {
        let of = |bound| {
            let rates = self
                .tried
                .iter()
                .filter(move |tried| self.bound(tried) == bound);
            rates.map(|tried| tried.rate)
        };
        let upper = of(Bound::Upper).min_by(f64::total_cmp);
        let below = of(Bound::Lower).filter(|rate| upper.is_none_or(|upper| *rate < upper));
        (below.max_by(f64::total_cmp), upper)
    }

    /// Returns a load below an upper bound where no lower one is known: what of it was borne, at first.
    fn below(&self, upper: f64) -> f64 {
        let tried = self.tried.iter().find(|tried| tried.rate == upper);
        let loss = tried.map_or(0.5, |tried| quantile(&tried.losses, 0.5));
        let is_first = self.tried.len() == 1;
        if is_first && (WIDTH..1.0).contains(&loss) {
            upper * (1.0 - loss)
        } else {
            upper / 2.0
        }
    }

    fn bound(&self, tried: &Tried) -> Bound {
        let Goal {
            loss,
            exceed,
            trials,
        } = self.goal;
        let all = tried.losses.len() as f64;
        let high = tried.losses.iter().filter(|one| **one > loss).count() as f64;
        let missing = (trials - all).max(0.0);
        let whole = all.max(trials);
        if high / whole > exceed {
            Bound::Upper
        } else if (high + missing) / whole <= exceed {
            Bound::Lower
        } else {
            Bound::Undecided
        }
    }
}

/// Returns the value that a share of all does not exceed: 0 without values.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = sorted.iter().zip(1_u32..);
    let mut reached = place.filter(|(_, rank)| f64::from(*rank) >= share * sorted.len() as f64);
    reached.next().map_or(0.0, |(value, _)| *value)
}

/// Has each trial of a generator be what is asked for: a search, the frame loss rate, or the trial itself.
pub fn searching<'a>(within: Box<dyn Generator + 'a>, kind: SearchKind) -> Box<dyn Generator + 'a> {
    match Goal::of(kind) {
        Some(goal) => Box::new(Searching::new(within, goal)),
        None if kind == SearchKind::Rfc2544Loss => Box::new(FrameLoss { within }),
        None => within,
    }
}

/// A generator of which each trial is the procedure for the frame loss rate (RFC 2544, section 26.3): a trial at the rate
/// that is asked for, at 90 % of it and so on, until two in a row have lost nothing. It gives the first one, with the
/// counts of all.
#[derive(Debug)]
struct FrameLoss<'a> {
    within: Box<dyn Generator + 'a>,
}

impl Generator for FrameLoss<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        let most = asked.rate.context("the loss is that of rates up to one")?;
        let mut tried: Vec<Trial> = Vec::new();
        for step in (1..=LOSS_STEPS).rev() {
            let share = f64::from(step) / f64::from(LOSS_STEPS);
            let asked = Asked {
                rate: Some(most * share),
                seed: asked.seed.wrapping_add(tried.len() as u64),
                ..asked
            };
            tried.push(self.within.run(asked)?);
            let lossless = tried.iter().rev().take_while(|trial| loss(trial) == 0.0);
            if lossless.count() == LOSSLESS {
                break;
            }
        }
        let counts = |trial: &Trial| Passed {
            seconds: trial.seconds,
            tally: trial.tally,
        };
        Ok(Trial {
            losses: tried.iter().map(counts).collect(),
            ..tried.swap_remove(0)
        })
    }
}

/// A generator of which each trial is a search. The search's own trials are those of the generator within.
#[derive(Debug)]
pub struct Searching<'a> {
    within: Box<dyn Generator + 'a>,
    goal: Goal,
}

impl<'a> Searching<'a> {
    /// Searches with a generator.
    pub fn new(within: Box<dyn Generator + 'a>, goal: Goal) -> Self {
        Self { within, goal }
    }
}

impl Generator for Searching<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        Ok(find(self.within.as_mut(), self.goal, asked)?.1)
    }
}

/// Searches for the highest rate up to the one that is asked for. Returns it, and the trial at it whose loss has as many
/// trials below as the goal asks for. If even the lowest rate is too much, it is that one.
///
/// # Errors
///
/// When a trial fails.
pub fn find(generator: &mut dyn Generator, goal: Goal, asked: Asked) -> Result<(f64, Trial)> {
    let most = asked.rate.unwrap_or_default();
    let mut search = Search::new(goal, most);
    let mut trials = Vec::new();
    while let Some(rate) = search.next_rate() {
        let seed = asked.seed.wrapping_add(trials.len() as u64);
        let asked = Asked {
            rate: Some(rate),
            seed,
            ..asked
        };
        let trial = generator.run(asked)?;
        search.add(rate, loss(&trial));
        trials.push((rate, trial));
    }
    let (lower, upper) = search.bounds();
    let found = lower.or(upper);
    trials.retain(|(rate, _)| Some(*rate) == found);
    trials.sort_by(|(_, one), (_, other)| loss(one).total_cmp(&loss(other)));
    ensure!(!trials.is_empty(), "the search has tried nothing");
    let share = 1.0 - goal.exceed;
    let losses: Vec<f64> = trials.iter().map(|(_, trial)| loss(trial)).collect();
    let wanted = quantile(&losses, share);
    let place = losses.iter().position(|loss| *loss >= wanted).unwrap_or(0);
    Ok(trials.swap_remove(place))
}

fn loss(trial: &Trial) -> f64 {
    let tally = trial.tally;
    1.0 - tally.received as f64 / tally.offered.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{probe::Tally, stats::SplitMix64};

    const KINDS: [SearchKind; 3] = [SearchKind::Ndr, SearchKind::Pdr, SearchKind::Rfc2544];

    /// Searches with a system that bears `capacity`, and in a share of the trials half as much. Returns the bounds and
    /// the number of trials.
    fn search(
        kind: SearchKind,
        capacity: f64,
        stalled: f64,
        seed: u64,
    ) -> (Option<f64>, Option<f64>, u32) {
        let mut search = Search::new(Goal::of(kind).unwrap(), 1e7);
        let mut random = SplitMix64::new(seed);
        let mut trials = 0;
        while let Some(rate) = search.next_rate() {
            let is_stalled = random.open_unit() < stalled;
            let own = if is_stalled { capacity / 2.0 } else { capacity };
            search.add(rate, (1.0 - own / rate).max(0.0));
            trials += 1;
            assert!(trials < 200, "{search:?}");
        }
        let (lower, upper) = search.bounds();
        (lower, upper, trials)
    }

    #[test]
    fn the_bounds_lie_around_what_a_system_bears_and_are_close() {
        let mut random = SplitMix64::new(1);
        for kind in KINDS {
            let loss = Goal::of(kind).unwrap().loss;
            for _ in 0..1_000 {
                let capacity = 2e3 + 9.9e6 * random.open_unit();
                let (lower, upper, trials) = search(kind, capacity, 0.0, 1);
                let (lower, upper) = (lower.unwrap(), upper.unwrap());
                let borne = capacity / (1.0 - loss);
                let slack = 1.0 + 1e-9;
                let around = lower <= borne * slack && borne <= upper * slack;
                assert!(around, "{capacity}: {lower} {upper}");
                assert!(lower >= upper * (1.0 - WIDTH));
                assert!(trials <= 60, "{capacity}: {trials}");
            }
        }
    }

    #[test]
    fn the_highest_load_may_be_borne_and_the_lowest_may_be_too_much() {
        for kind in KINDS {
            let (lower, upper, _) = search(kind, 2e7, 0.0, 1);
            assert_eq!((lower, upper), (Some(1e7), None));
            let (lower, upper, _) = search(kind, 1.0, 0.0, 1);
            assert_eq!((lower, upper), (None, Some(1e7 * LEAST)));
        }
    }

    #[test]
    fn stalls_in_a_tenth_of_the_trials_seldom_move_mlrsearch_and_often_rfc_2544() {
        let off = |kind| {
            let moved = |seed: &u64| {
                let (lower, _, _) = search(kind, 3e6, 0.1, *seed);
                lower.is_none_or(|lower| lower < 3e6 * 0.99)
            };
            (0..300).filter(moved).count()
        };
        let [ndr, pdr, rfc2544] = KINDS.map(off);
        assert!(
            ndr < 100 && pdr < 100 && rfc2544 > 100,
            "{ndr} {pdr} {rfc2544}"
        );
    }

    /// Bears 3 million requests a second, and loses more in every third trial.
    #[derive(Debug)]
    struct Made(u32);

    impl Generator for Made {
        fn run(&mut self, asked: Asked) -> Result<Trial> {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the rates of the test"
            )]
            let (offered, borne) = ((asked.rate.unwrap() * asked.seconds) as u64, 3_000_000);
            self.0 += 1;
            let lost = if self.0.is_multiple_of(3) { 1_000 } else { 0 };
            let received = offered.min(borne) - lost;
            Ok(Trial {
                start: 0,
                seconds: asked.seconds,
                requests: Vec::new(),
                tally: Tally {
                    offered,
                    sent: offered,
                    received,
                    lost: offered - received,
                    ..Tally::default()
                },
                under_way_ns: None,
                shares: Vec::new(),
                background: None,
                losses: Vec::new(),
            })
        }
    }

    #[test]
    fn a_search_gives_the_trial_at_the_load_that_it_found() {
        let goal = Goal::of(SearchKind::Ndr).unwrap();
        let mut searching = Searching::new(Box::new(Made(0)), goal);
        let asked = Asked {
            rate: Some(1e7),
            seconds: 1.0,
            seed: 1,
        };
        let tally = searching.run(asked).unwrap().tally;
        assert!(
            (2_985_000..=3_000_000).contains(&tally.offered),
            "{tally:?}"
        );
        assert_eq!(tally.lost, 0);
    }

    /// Bears 3 million requests a second.
    #[derive(Debug)]
    struct Steady;

    impl Generator for Steady {
        fn run(&mut self, asked: Asked) -> Result<Trial> {
            let mut made = Made(0);
            made.run(asked)
        }
    }

    #[test]
    fn frame_loss_goes_down_by_tenths_until_two_trials_lose_nothing() {
        let asked = |rate| Asked {
            rate: Some(rate),
            seconds: 1.0,
            seed: 1,
        };
        let loss_of = |rate| {
            let mut procedure = searching(Box::new(Steady), SearchKind::Rfc2544Loss);
            let trial = procedure.run(asked(rate)).unwrap();
            assert_eq!(trial.losses[0].tally, trial.tally);
            let steps = trial
                .losses
                .iter()
                .map(|step| (step.tally.offered, step.tally.lost));
            steps.collect::<Vec<_>>()
        };
        let expected = [
            (5_000_000, 2_000_000),
            (4_500_000, 1_500_000),
            (4_000_000, 1_000_000),
            (3_500_000, 500_000),
            (3_000_000, 0),
            (2_500_000, 0),
        ];
        assert_eq!(loss_of(5e6), expected);
        assert_eq!(loss_of(1e6), [(1_000_000, 0), (900_000, 0)]);
        // A tenth of it is too much still.
        assert_eq!(loss_of(4e7).len(), LOSS_STEPS as usize);
    }
}
