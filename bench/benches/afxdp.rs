//! What the generator `afxdp` sends on one core, beside a loop that sends one frame again and again with `xsk-rs` and does
//! nothing else.
//!
//! Trials of both take turns, each on a veth pair of its own. Rates are in core time, so other work on the machine counts only
//! by its use of caches. The generator's frames are counted at the other end; those of the loop are dropped there uncounted,
//! which takes less. Needs root.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::{
    bare::Bare,
    bars::{Limit, Outcome},
    host,
    load::{
        Asked, Generator,
        live::{Live, Path},
    },
    scenario::Scenario,
    stats::{Estimate, bootstrap, median},
};
use lab::{Link, Namespace, Veth};

const ROUNDS: usize = 40;
const TRIAL: Duration = Duration::from_millis(200);
/// Batches of the loop between two looks at the clock.
const BATCHES: usize = 16;
/// `r0 = XDP_DROP; exit`.
const DROP: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
const SCENARIO: &str =
    "name: afxdp\nsystems: [direct]\nloads: [{ generator: afxdp, schedule: max, flows: 1000 }]\n";
/// What the generator is to send, in millions a second, or as a share of what the loop sends.
const RATE: Limit = Limit::Least(0.85);
const SHARE: Limit = Limit::Least(0.9);

fn main() -> Result<()> {
    host::preflight()?;
    let (sender, sink) = (Namespace::new("sender")?, Namespace::new("sink")?);
    let cable = |name| Veth::between((&sender, name), (&sink, name)).create();
    let ((out, end), (bare_out, bare_end)) = (cable("eth0")?, cable("eth1")?);
    bare_end.attach_xdp(&DROP)?;
    let load = Scenario::parse(SCENARIO)?.loads.remove(0);
    println!("{load}; {ROUNDS} rounds, million a second");
    let path = path(out, end)?;
    let rates = sender.run(|| {
        let mut bare = Bare::open(bare_out.name())?;
        Live::new(path, &load, 1)?.keep_attached(|generator| measure(generator, &mut bare))
    })?;
    report(&rates);
    Ok(())
}

/// Measures both in rounds that go back and forth. Returns the rates of the generator and of the loop.
fn measure(generator: &mut Live<'_>, bare: &mut Bare) -> Result<[Vec<f64>; 2]> {
    let mut rates = [Vec::new(), Vec::new()];
    // The first round warms caches up, and is thrown away.
    for round in 0..=ROUNDS {
        let mut order = [0, 1];
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            let rate = match side {
                0 => rate_of_generator(generator)?,
                _ => rate_of_loop(bare)?,
            };
            if round > 0 {
                rates[side].push(rate);
            }
        }
    }
    Ok(rates)
}

fn path<'a>(out: Link<'a>, end: Link<'a>) -> Result<Path<'a>> {
    let macs = [end.mac(), out.mac()].concat();
    Ok(Path {
        macs: *macs.first_chunk().context("two addresses")?,
        out,
        entry: None,
        sink: end,
        replaces_pass: false,
        from_stack: false,
        services: vec!["10.99.0.1:80".parse()?],
        outer: 0,
        untags: false,
    })
}

/// Returns the frames that were counted at the other end, in millions a second.
fn rate_of_generator(generator: &mut Live<'_>) -> Result<f64> {
    let asked = Asked {
        rate: None,
        seconds: TRIAL.as_secs_f64(),
        seed: 1,
    };
    let trial = generator.run(asked)?;
    Ok(trial.tally.received as f64 / trial.seconds / 1e6)
}

/// Returns the frames that the loop has sent, in millions a second.
fn rate_of_loop(bare: &mut Bare) -> Result<f64> {
    let core = host::occupy_core(None)?;
    let (before, began) = (host::core_clock(core)?, Instant::now());
    let mut frames = 0;
    while began.elapsed() < TRIAL {
        for _ in 0..BATCHES {
            frames += bare.send()?;
        }
    }
    let seconds = host::core_clock(core)?.since(before);
    Ok(frames as f64 / seconds / 1e6)
}

/// Prints medians with their 95 % intervals, and what they are held against: one of both bars is enough.
fn report([generator, bare]: &[Vec<f64>; 2]) {
    let estimate = |of: &dyn Fn(usize) -> f64| {
        bootstrap(ROUNDS, |rounds| {
            let values = rounds.iter().map(|&round| of(round));
            median(&values.collect::<Vec<_>>())
        })
    };
    let rate = estimate(&|round| generator[round]);
    let share = estimate(&|round| generator[round] / bare[round]);
    for (what, estimate) in [
        ("afxdp", rate),
        ("bare loop", estimate(&|round| bare[round])),
        ("afxdp, of the bare loop", share),
    ] {
        let Estimate { value, low, high } = estimate;
        println!("{what:<24}{value:.3} [{low:.3} {high:.3}]");
    }
    let outcome: Outcome = RATE.judge(&rate).min(SHARE.judge(&share));
    println!("{RATE} million a second, or {SHARE} of the bare loop: {outcome}");
}
