//! Checks of the judgement on a machine: what is the same must not be told apart, and what works a little more must be.
//!
//! Both sides are the same system. One of them may have extra work for each frame, of known cost: the generator,
//! the system and the sink share a core, so it counts as work of the system would.

use std::{fmt, path::Path};

use anyhow::{Result, bail, ensure};
use xdp_prog::bench::MOST_WORK;

use crate::{
    compare::{Judgement, LEAST_DIFFERENCE, in_turns, paired},
    scenario::{Scenario, System},
    stats::{Estimate, median},
    wire::{Lab, Wire as _},
};

/// Comparisons of equals, and how many of them must find no difference.
const EQUALS: [usize; 2] = [20, 19];
/// Extra work by which its cost is guessed first, in eighths of a step.
const PROBED: u32 = 8 * 256;
/// Guesses of how much extra work it takes, and by which part of it the last one may fall short.
const GUESSES: u32 = 10;
const GUESSED: f64 = 0.05;

/// Which of two equal systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    /// The one that is compared with.
    First,
    /// The one that may have extra work.
    Second,
}

/// What is asked of the judgement.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Extra work, as a share of what a frame takes.
    pub extra: f64,
    /// Least relative difference that matters.
    pub least: f64,
    /// Rounds of a comparison.
    pub rounds: usize,
    /// Comparisons with extra work, and how many of them must say so.
    pub worse: [usize; 2],
}

/// Live frames on this machine: 5 % more work.
pub const LIVE: Bar = Bar {
    extra: 0.05,
    least: LEAST_DIFFERENCE,
    rounds: 100,
    worse: [10, 9],
};
/// Instructions: 1 % more.
pub const COUNTED: Bar = Bar {
    extra: 0.01,
    least: 0.005,
    rounds: crate::scenario::LEAST_ROUNDS as usize,
    worse: [10, 10],
};

/// A comparison of the twins.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// Extra work of the second one, in eighths of a step.
    pub work: u32,
    /// The time of the second to that of the first.
    pub ratio: Estimate,
    /// What it comes to.
    pub judgement: Judgement,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate { value, low, high } = self.ratio;
        let what = match self.work {
            0 => "A/A".to_owned(),
            eighths => format!("A/A + {} steps", f64::from(eighths) / 8.0),
        };
        write!(
            f,
            "{what:<22}{value:.4} [{low:.4} {high:.4}] {}",
            self.judgement
        )
    }
}

/// What a check comes to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What a frame takes without extra work, in the unit of what was measured.
    pub plain: f64,
    /// How each bar was kept.
    pub kept: Vec<Kept>,
}

/// How one bar was kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What had to be found.
    pub what: String,
    /// Comparisons that found it.
    pub right: usize,
    /// All comparisons, and how many had to find it.
    pub bar: [usize; 2],
    /// The median ratio of all.
    pub ratio: f64,
}

impl Kept {
    /// Tells whether enough comparisons were right.
    pub fn holds(&self) -> bool {
        self.right >= self.bar[1]
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [all, least] = self.bar;
        write!(
            f,
            "{}: {} of {all} (bar: {least}); median ratio {:.4}",
            self.what, self.right, self.ratio
        )
    }
}

/// Compares the twins again and again. `measure` returns the time of a frame, of any unit, with extra work in eighths
/// of a step. Each comparison is passed to `found` at once.
///
/// # Errors
///
/// When `measure` fails, or a frame would need more extra work than it may have.
pub fn check(
    bar: &Bar,
    measure: &mut dyn FnMut(Twin, u32) -> Result<f64>,
    found: &dyn Fn(&Compared),
) -> Result<Outcome> {
    // The first trial of each is thrown away.
    for twin in [Twin::First, Twin::Second] {
        measure(twin, 0)?;
    }
    let (plain, work) = extra_work(bar, measure)?;
    let mut run = |work, [all, least]: [usize; 2], right: &[Judgement], what: String| {
        let compared = (0..all).map(|_| compare(bar, work, measure).inspect(found));
        let compared: Vec<Compared> = compared.collect::<Result<_>>()?;
        let ratios: Vec<f64> = compared.iter().map(|one| one.ratio.value).collect();
        let is_right = |one: &&Compared| right.contains(&one.judgement);
        anyhow::Ok(Kept {
            what,
            right: compared.iter().filter(is_right).count(),
            bar: [all, least],
            ratio: median(&ratios),
        })
    };
    let untold = [Judgement::Same, Judgement::Inconclusive];
    let equals = run(0, EQUALS, &untold, "A/A, no difference".to_owned())?;
    let extra = format!("A/A + {} %, worse", 100.0 * bar.extra);
    let worse = run(work, bar.worse, &[Judgement::Worse], extra)?;
    Ok(Outcome {
        plain,
        kept: vec![equals, worse],
    })
}

/// Finds what a frame takes, and how much the extra work is, in eighths of a step. A CPU does a few steps beside other work,
/// so what much of it takes is a first guess only.
fn extra_work(bar: &Bar, measure: &mut dyn FnMut(Twin, u32) -> Result<f64>) -> Result<(f64, u32)> {
    let mut work = PROBED;
    for _ in 0..GUESSES {
        let (mut plain, mut added) = (Vec::new(), Vec::new());
        for _ in 0..bar.rounds {
            let without = measure(Twin::First, 0)?;
            plain.push(without);
            added.push(measure(Twin::First, work)? - without);
        }
        let (plain, added) = (median(&plain), median(&added));
        ensure!(added > 0.0, "extra work takes no time");
        let wanted = bar.extra * plain / added;
        if work != PROBED && wanted <= 1.0 + GUESSED {
            return Ok((plain, work));
        }
        let eighths = (f64::from(work) * wanted).ceil();
        ensure!(
            eighths <= f64::from(MOST_WORK),
            "{eighths} eighths of a step of extra work are too many"
        );
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is a small number"
        )]
        let eighths = eighths as u32;
        work = eighths;
    }
    bail!("what extra work takes differs from one time to the next")
}

/// Measures both in rounds that go back and forth, and judges.
fn compare(
    bar: &Bar,
    work: u32,
    measure: &mut dyn FnMut(Twin, u32) -> Result<f64>,
) -> Result<Compared> {
    let twins = [(Twin::First, 0), (Twin::Second, work)];
    let [first, second] = in_turns(bar.rounds, |side| {
        let (twin, work) = twins[side];
        measure(twin, work)
    })?;
    let ratio = paired(&first, &second);
    Ok(Compared {
        work,
        ratio,
        judgement: Judgement::of(ratio, bar.least),
    })
}

/// The system and the load of [`check_live`]: as many frames as can be sent.
const SCENARIO: &str = "name: judgement
systems: [ours-ipip]
loads: [{ generator: live, schedule: max, flows: 1000 }]
";
/// Compares Guideway, by IPIP, with itself by its rate of live frames.
///
/// # Errors
///
/// When Guideway does not come up or ends, or the kernel refuses something.
pub fn check_live(
    bar: &Bar,
    guideway: &Path,
    progress: &(dyn Fn(&str) + Sync),
    found: &dyn Fn(&Compared),
) -> Result<Outcome> {
    let scenario = Scenario::parse(SCENARIO)?;
    let lab = Lab::start(&scenario, guideway, progress)?;
    progress("");
    let mut live = lab.open_live(System::OursIpip, &scenario.loads[0])?;
    let outcome = live.keep_attached(|live| {
        let mut measure = |_, work| {
            live.set_work(work);
            Ok(1e9 / live.rate_of_a_moment()?)
        };
        check(bar, &mut measure, found)
    });
    lab.expect_running(System::OursIpip)?;
    outcome
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::stats::SplitMix64;

    const BAR: Bar = Bar { rounds: 12, ..LIVE };

    /// A machine on which a frame takes about 500 ns and an eighth of a step 0.25 ns, and that knows of extra work or does not.
    fn outcome(heeds_work: bool, faster: f64) -> Vec<Kept> {
        let mut random = SplitMix64::new(7);
        let seen = Cell::new(0);
        let mut measure = |twin, work: u32| {
            let own = if twin == Twin::Second { faster } else { 1.0 };
            // Before the first comparison, the extra work is looked for.
            let heeds = heeds_work || seen.get() == 0;
            let extra = if heeds { f64::from(work) / 4.0 } else { 0.0 };
            Ok((500.0 * own + extra) * (0.99 + 0.02 * random.open_unit()))
        };
        let found = |_: &Compared| seen.set(seen.get() + 1);
        let outcome = check(&BAR, &mut measure, &found).unwrap();
        assert_eq!(seen.get(), 30);
        assert!((outcome.plain - 500.0).abs() < 5.0, "{outcome:?}");
        outcome.kept
    }

    #[test]
    fn a_judgement_that_tells_extra_work_and_nothing_else_passes() {
        let outcome = outcome(true, 1.0);
        assert!(outcome.iter().all(Kept::holds), "{outcome:?}");
        assert!((outcome[1].ratio - 1.05).abs() < 0.005, "{outcome:?}");
        let told = outcome[0].to_string();
        assert!(told.starts_with("A/A, no difference: "), "{told}");
    }

    #[test]
    fn twins_that_differ_and_work_that_does_not_show_fail() {
        let differ = outcome(true, 0.9);
        assert!(!differ[0].holds(), "{differ:?}");
        let unseen = outcome(false, 1.0);
        assert!(unseen[0].holds() && !unseen[1].holds(), "{unseen:?}");
    }

    #[test]
    fn work_that_takes_no_time_or_too_little_is_refused() {
        let refused = |eighth: f64| {
            let mut measure = |_, work: u32| Ok(500.0 + eighth * f64::from(work));
            let error = check(&BAR, &mut measure, &|_| ()).unwrap_err();
            error.to_string()
        };
        assert_eq!(refused(0.0), "extra work takes no time");
        let many = refused(0.001);
        assert!(many.contains("are too many"), "{many}");
    }
}
