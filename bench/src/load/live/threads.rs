//! Has the kernel make live frames and send them: by threads that have a core, flows and a pace of their own.
//!
//! A system call runs the generator many times on the core of the thread that makes it (`BPF_PROG_TEST_RUN`), and the frames
//! stay on that core as far as devices have a queue for it. So nothing but the devices is shared by the threads.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use aya::{
    Ebpf,
    programs::{TestRun, TestRunAttrs, TestRunOptions},
};
use xdp_prog::bench::Pace;

use super::{maps, programs};
use crate::{datapath::frames::context_of, host};

/// Frames per call of the driver: the kernel's default for live frames.
const BATCH: u32 = 64;
/// Runs of the generator per system call: some milliseconds where no frame is due.
const RUNS: u32 = 1 << 16;

/// What a thread has done.
#[derive(Clone, Copy)]
struct Done {
    pace: Pace,
    elapsed: Duration,
    /// Seconds that its core had for it.
    core_time: f64,
}

/// Sends frames of at most `length` bytes out of a device of the calling thread's namespace, each thread at a pace of its own,
/// for so many seconds at most. Returns how long it took, with a rate by the clock and else in core time, and the paces at the
/// end.
///
/// # Errors
///
/// [`host::FewCores`] when there are more threads than CPUs; when the kernel does not send.
pub(super) fn send(
    object: &mut Ebpf,
    paces: &[Pace],
    (length, device): (usize, u32),
    seconds: f64,
) -> Result<(f64, Vec<Pace>)> {
    let cores = host::cores(paces.len())?;
    let by_core: Vec<(usize, Pace)> = cores.iter().copied().zip(paces.iter().copied()).collect();
    maps::set_paces(object, &by_core)?;
    let object = &*object;
    let (frame, context) = (vec![0; length], context_of(length, device)?);
    let ready = Barrier::new(cores.len());
    let send = |core| -> Result<Done> {
        let occupied = host::occupy_core(Some(core));
        // Whoever has no core must not keep the others waiting.
        ready.wait();
        occupied?;
        send_from(object, core, (&frame, &context), seconds)
    };
    let send = &send;
    let done: Vec<Done> = thread::scope(|scope| {
        let threads = cores.iter().map(|&core| scope.spawn(move || send(core)));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|one| one.join());
        joined
            .map(|done| done.expect("it does not panic"))
            .collect::<Result<_>>()
    })?;
    let paces = done.iter().map(|one| one.pace).collect();
    Ok((seconds_of(&done), paces))
}

/// Sends from this thread, which has a core, until all has left or the time is over.
fn send_from(
    object: &Ebpf,
    core: usize,
    (frame, context): (&[u8], &[u8]),
    seconds: f64,
) -> Result<Done> {
    let generator = programs::generator(object)?;
    let (before, began) = (host::core_clock(core)?, Instant::now());
    loop {
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(context),
            repeat: RUNS,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        generator.test_run(options).context("sending live frames")?;
        let pace = maps::pace(object, core)?;
        let elapsed = began.elapsed();
        if pace.sent == pace.limit || elapsed.as_secs_f64() >= seconds {
            return Ok(Done {
                pace,
                elapsed,
                core_time: host::core_clock(core)?.since(before),
            });
        }
    }
}

/// Returns how long threads have sent. With a rate, that is the longest time of one. Without one, the rates of the threads,
/// each in frames per second of its own core, add up to that of all; the time is the one in which all frames leave at that rate.
fn seconds_of(done: &[Done]) -> f64 {
    if done.iter().any(|one| one.pace.interval > 0) {
        let longest = done.iter().map(|one| one.elapsed).max();
        return longest.unwrap_or_default().as_secs_f64();
    }
    if let [one] = done {
        return one.core_time;
    }
    let frames: f64 = done.iter().map(|one| f64::from(one.pace.sent)).sum();
    let rates = done
        .iter()
        .map(|one| f64::from(one.pace.sent) / one.core_time);
    frames / rates.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(sent: u32, core_time: f64, interval: u64) -> Done {
        let pace = Pace {
            sent,
            interval,
            ..Pace::default()
        };
        let elapsed = Duration::from_secs_f64(2.0 * core_time);
        Done {
            pace,
            elapsed,
            core_time,
        }
    }

    #[test]
    fn rates_by_core_time_add_up_and_one_thread_has_its_own() {
        let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-12;
        assert!(close(seconds_of(&[done(700, 0.3, 0)]), 0.3));
        // 2 000 and 3 000 a second.
        let both = [done(1_000, 0.5, 0), done(4_500, 1.5, 0)];
        assert!(close(5_500.0 / seconds_of(&both), 5_000.0));
        // A thread that other work keeps from its core sends less, in less core time: the rate stays.
        let held_up = [done(1_000, 0.5, 0), done(1_500, 0.5, 0)];
        assert!(close(2_500.0 / seconds_of(&held_up), 5_000.0));
    }

    #[test]
    fn with_a_rate_the_clock_of_the_slowest_thread_counts() {
        assert!(seconds_of(&[done(9, 0.5, 10), done(9, 0.75, 10)]).eq(&1.5));
    }
}
