//! When requests are due.

use crate::{
    scenario::{Load, Schedule},
    stats::SplitMix64,
};

/// Returns when each request of a trial of `seconds` is due, in nanoseconds from its start.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times lie between 0 and the end of the trial"
)]
pub fn due_times(load: &Load, seconds: f64, seed: u64) -> Vec<u64> {
    let gap = 1.0 / load.rate;
    let mut random = SplitMix64::new(seed);
    let mut next = 0.0;
    let mut number = 0_u32;
    let mut times = Vec::new();
    loop {
        let due = match load.schedule {
            // Multiplied, not added up: rounding does not move the rate.
            Schedule::Constant => f64::from(number) * gap,
            Schedule::Poisson => {
                next += -random.open_unit().ln() * gap;
                next
            }
        };
        if due >= seconds {
            return times;
        }
        times.push((due * 1e9) as u64);
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Generator;

    fn load(schedule: Schedule, rate: f64) -> Load {
        Load {
            generator: Generator::Sockets,
            schedule,
            rate,
            flows: 1,
            frame_bytes: 64,
        }
    }

    #[test]
    fn constant_schedules_have_equal_distances_and_the_rate() {
        let times = due_times(&load(Schedule::Constant, 1_000.0), 2.0, 1);
        assert_eq!(times.len(), 2_000);
        assert_eq!(times[..3], [0, 1_000_000, 2_000_000]);
        // A rate that divides no second.
        let odd = due_times(&load(Schedule::Constant, 3.0), 1_000.0, 1);
        assert_eq!(odd.len(), 3_000);
    }

    #[test]
    fn poisson_schedules_have_the_rate_and_the_spread_of_independent_requests() {
        let times = due_times(&load(Schedule::Poisson, 1_000.0), 100.0, 7);
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
    fn the_seed_alone_decides() {
        let of = |seed| due_times(&load(Schedule::Poisson, 100.0), 1.0, seed);
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }
}
