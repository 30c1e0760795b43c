//! What a port costs: frames sent, received and forwarded, against a loop that does the same with `xsk-rs` and nothing
//! else. `guideway-bench datapath --engine afxdp` sets the whole edge beside that loop.
//!
//! Rounds of both alternate, each on a veth pair of its own. Needs root and two CPUs.

use std::{
    os::fd::AsFd as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use bench::bare::{BATCH, Bare, FRAME, Redirect};
use fastpath::port::{
    Buffer, Port,
    xsk::{Options, Xsk},
};
use lab::{Link, Namespace, Veth};

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(400);
/// `r0 = XDP_DROP; exit`.
const DROP: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];

/// Something that sends and forwards frames.
trait Engine {
    /// Sends a batch of new frames, as far as there is room. Returns the number of those that have left before.
    fn send(&mut self) -> Result<usize>;

    /// Sends back a batch of what has arrived. Returns the number of frames.
    fn forward(&mut self) -> Result<usize>;

    /// Takes a batch of what has arrived, and gives the memory back. Returns the number of frames.
    fn receive(&mut self) -> Result<usize>;
}

impl Engine for Bare {
    fn send(&mut self) -> Result<usize> {
        self.send()
    }

    fn forward(&mut self) -> Result<usize> {
        self.forward()
    }

    fn receive(&mut self) -> Result<usize> {
        Ok(self.receive())
    }
}

struct ByPort {
    port: Port<Xsk>,
    batch: Vec<Buffer>,
}

impl Engine for ByPort {
    fn send(&mut self) -> Result<usize> {
        while self.batch.len() < BATCH
            && let Some(mut buffer) = self.port.allocate()
        {
            assert!(self.port.resize(&mut buffer, FRAME.len()));
            self.port.bytes_mut(&mut buffer).copy_from_slice(&FRAME);
            self.batch.push(buffer);
        }
        let sent = self.port.send(&mut self.batch);
        self.port.turn()?;
        Ok(sent)
    }

    fn forward(&mut self) -> Result<usize> {
        let room = BATCH - self.batch.len();
        let before = self.batch.len();
        self.port.receive(&mut self.batch, room);
        for buffer in &mut self.batch[before..] {
            self.port.bytes_mut(buffer)[..12].rotate_left(6);
        }
        let sent = self.port.send(&mut self.batch);
        self.port.turn()?;
        Ok(sent)
    }

    fn receive(&mut self) -> Result<usize> {
        let received = self.port.receive(&mut self.batch, BATCH);
        for buffer in self.batch.drain(..) {
            self.port.release(buffer);
        }
        self.port.turn()?;
        Ok(received)
    }
}

impl ByPort {
    fn open(link: &Link<'_>) -> Result<Self> {
        let port = Port::open(link.name(), 0, &Options::default())?;
        let batch = Vec::with_capacity(BATCH);
        Ok(Self { port, batch })
    }
}

fn main() -> Result<()> {
    let (near, far) = (Namespace::new("near")?, Namespace::new("far")?);
    let cable = |near_name, far_name| {
        let (sender, forwarder) = Veth::between((&near, near_name), (&far, far_name)).create()?;
        sender.attach_xdp(&DROP)?;
        anyhow::Ok((sender, forwarder))
    };
    let (sender_to_bare, at_bare) = cable("near0", "far0")?;
    let (sender_to_port, at_port) = cable("near1", "far1")?;
    let (mut to_bare, mut to_port) = near.run(|| {
        anyhow::Ok((
            ByPort::open(&sender_to_bare)?,
            ByPort::open(&sender_to_port)?,
        ))
    })?;
    far.run(|| {
        let (mut bare, mut port) = (Bare::open(at_bare.name())?, ByPort::open(&at_port)?);
        let _redirect_to_bare = Redirect::attach(&at_bare, bare.socket())?;
        let _redirect_to_port = Redirect::attach(&at_port, port.port.as_fd())?;
        println!(
            "frames of {} bytes, veth, copied; million a second",
            FRAME.len()
        );
        compare("send", || Ok((send(&mut bare)?, send(&mut port)?)))?;
        compare("receive", || {
            let bare = meanwhile(&mut bare, &mut to_bare, Engine::receive)?;
            Ok((bare, meanwhile(&mut port, &mut to_port, Engine::receive)?))
        })?;
        compare("forward", || {
            let bare = forward(&mut bare, &mut to_bare)?;
            Ok((bare, forward(&mut port, &mut to_port)?))
        })
    })
}

/// Prints the medians of both, and of the ratios of rounds that followed each other.
fn compare(what: &str, mut round: impl FnMut() -> Result<(f64, f64)>) -> Result<()> {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect::<Result<_>>()?;
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (bare, port) = (sorted(|(bare, _)| *bare), sorted(|(_, port)| *port));
    let ratios = sorted(|(bare, port)| port / bare);
    let middle = ROUNDS / 2;
    println!(
        "{what}: bare {:.3}, port {:.3}, ratio {:.3} (middle half {:.3} to {:.3})",
        bare[middle],
        port[middle],
        ratios[middle],
        ratios[ROUNDS / 4],
        ratios[ROUNDS - 1 - ROUNDS / 4],
    );
    Ok(())
}

/// Returns the frames sent, in millions a second.
fn send(engine: &mut impl Engine) -> Result<f64> {
    count(|| engine.send())
}

/// Returns the frames forwarded, in millions a second, while more arrive than that.
fn forward(engine: &mut impl Engine, sender: &mut (impl Engine + Send)) -> Result<f64> {
    meanwhile(engine, sender, Engine::forward)
}

/// Returns the frames of all these steps, in millions a second, while more arrive than that.
fn meanwhile<E: Engine>(
    engine: &mut E,
    sender: &mut (impl Engine + Send),
    step: impl Fn(&mut E) -> Result<usize>,
) -> Result<f64> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                sender.send()?;
            }
            anyhow::Ok(())
        });
        let rate = count(|| step(engine));
        is_over.store(true, Ordering::Relaxed);
        sender.join().expect("the sender does not panic")?;
        // What is left is of no later round.
        while step(engine)? > 0 {}
        rate
    })
}

#[expect(clippy::cast_precision_loss, reason = "less than a million million")]
fn count(mut step: impl FnMut() -> Result<usize>) -> Result<f64> {
    let begin = Instant::now();
    let mut frames = 0;
    while begin.elapsed() < ROUND {
        for _ in 0..16 {
            frames += step()?;
        }
    }
    Ok(frames as f64 / begin.elapsed().as_secs_f64() / 1e6)
}
