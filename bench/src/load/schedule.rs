//! When requests are due.

use super::Asked;
use crate::{
    scenario::{Load, Schedule},
    stats::SplitMix64,
};

/// Returns when each request of a trial is due, in nanoseconds from its start. There is none with the
/// schedule `max`, by which no request waits for its time.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times lie between 0 and the end of the trial"
)]
pub fn due_times(load: &Load, asked: Asked) -> Vec<u64> {
    let Asked { seconds, seed, .. } = asked;
    let Some(rate) = asked.rate else {
        return Vec::new();
    };
    let mut random = SplitMix64::new(seed);
    let mut last = 0.0;
    let mut due = |number: u32| {
        let number_of_burst = f64::from(number - number % load.burst.max(1));
        match load.schedule {
            // Multiplied, not added up: rounding does not move the rate.
            Schedule::Constant | Schedule::Max => f64::from(number) / rate,
            Schedule::Burst => number_of_burst / rate,
            Schedule::Poisson => {
                last += -random.open_unit().ln() / rate;
                last
            }
            // By then `rate` t^2 / 2 `seconds` requests have been due.
            Schedule::Ramp => (2.0 * seconds * f64::from(number) / rate).sqrt(),
            Schedule::Step => in_steps(f64::from(number), rate, load.steps, seconds),
        }
    };
    let times = (0..).map(&mut due);
    let times = times.take_while(|due| *due < seconds);
    times.map(|due| (due * 1e9) as u64).collect()
}

/// Returns when a request is due if each of `steps` equal parts of the time has the next multiple of an equal part of
/// the rate.
fn in_steps(number: f64, rate: f64, steps: u32, seconds: f64) -> f64 {
    let length = seconds / f64::from(steps);
    let mut before = 0.0;
    for step in 0..steps {
        let own = rate * f64::from(step + 1) / f64::from(steps);
        let within = (number - before) / own;
        if within < length {
            return f64::from(step) * length + within;
        }
        before += own * length;
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    fn due_times(load: &Load, seconds: f64, seed: u64) -> Vec<u64> {
        let rate = load.rate;
        let asked = Asked {
            rate,
            seconds,
            seed,
        };
        super::due_times(load, asked)
    }

    fn of(schedule: Schedule, rate: f64) -> Load {
        Load {
            schedule,
            rate: Some(rate),
            ..load()
        }
    }

    #[test]
    fn constant_schedules_have_equal_distances_and_the_rate() {
        let times = due_times(&of(Schedule::Constant, 1_000.0), 2.0, 1);
        assert_eq!(times.len(), 2_000);
        assert_eq!(times[..3], [0, 1_000_000, 2_000_000]);
        // A rate that divides no second.
        let odd = due_times(&of(Schedule::Constant, 3.0), 1_000.0, 1);
        assert_eq!(odd.len(), 3_000);
    }

    #[test]
    fn poisson_schedules_have_the_rate_and_the_spread_of_independent_requests() {
        let times = due_times(&of(Schedule::Poisson, 1_000.0), 100.0, 7);
        // The number is Poisson distributed: 5 standard deviations of 316.
        assert!(times.len().abs_diff(100_000) < 1_600, "{}", times.len());
        let gaps: Vec<f64> = times
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as f64)
            .collect();
        let long = gaps.iter().filter(|gap| **gap > 1e6).count();
        let share = long as f64 / gaps.len() as f64;
        assert!((share - (-1.0_f64).exp()).abs() < 0.01, "{share}");
    }

    #[test]
    fn bursts_have_the_rate_and_are_due_at_once() {
        let load = Load {
            burst: 10,
            ..of(Schedule::Burst, 1_000.0)
        };
        let times = due_times(&load, 1.0, 1);
        assert_eq!(times.len(), 1_000);
        assert!(
            times
                .chunks(10)
                .zip(0..)
                .all(|(burst, number)| { burst.iter().all(|due| *due == number * 10_000_000) })
        );
    }

    #[test]
    fn ramps_and_steps_rise_to_the_rate_and_have_the_mean_that_the_load_tells() {
        let steps = Load {
            steps: 4,
            ..of(Schedule::Step, 1_000.0)
        };
        for (load, first, last) in [(of(Schedule::Ramp, 1_000.0), 125, 875), (steps, 250, 1_000)] {
            let times = due_times(&load, 4.0, 1);
            let within = |from: u64, to: u64| {
                let is_within = |due: &&u64| (from..to).contains(*due);
                times.iter().filter(is_within).count()
            };
            let quarter = 1_000_000_000;
            let [begin, end] = [within(0, quarter), within(3 * quarter, 4 * quarter)];
            assert!(
                begin.abs_diff(first) <= 1 && end.abs_diff(last) <= 1,
                "{begin} {end}"
            );
            let mean = load.mean_rate().unwrap() * 4.0;
            assert!((times.len() as f64 - mean).abs() <= 1.0, "{}", times.len());
            assert!(times.is_sorted());
        }
    }

    #[test]
    fn the_seed_alone_decides() {
        let times = |seed| due_times(&of(Schedule::Poisson, 100.0), 1.0, seed);
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
        let max = Load {
            rate: None,
            ..of(Schedule::Max, 1.0)
        };
        assert!(due_times(&max, 1.0, 1).is_empty());
    }
}
