//! A cable that takes time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{Link, RawSocket, Result};

/// How long the threads may take to notice that they are to end.
const POLL: Duration = Duration::from_millis(50);

/// Carries frames between two interfaces of one namespace, each a while after it came; ends on drop.
///
/// No queueing discipline of the kernel does that where `netem` is missing. Meant for thousands of frames a second.
#[derive(Debug)]
pub struct DelayedCable {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl DelayedCable {
    /// Begins to carry; a frame takes `one_way` each way, and the time until a thread has been woken.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel).
    pub fn between(a: &Link<'_>, b: &Link<'_>, one_way: Duration) -> Result<Self> {
        let open = |link| RawSocket::open(link, ETH_P_ALL).map(Arc::new);
        let (a, b) = (open(a)?, open(b)?);
        let mut cable = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        cable.carry(Arc::clone(&a), Arc::clone(&b), one_way);
        cable.carry(b, a, one_way);
        Ok(cable)
    }

    fn carry(&mut self, from: Arc<RawSocket>, to: Arc<RawSocket>, one_way: Duration) {
        let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // An interface that goes away with its namespace ends the cable.
                let Ok(frame) = from.receive(POLL) else { break };
                let Some(frame) = frame else { continue };
                if sender.send((Instant::now() + one_way, frame)).is_err() {
                    break;
                }
            }
        }));
        self.threads.push(thread::spawn(move || {
            for (due, frame) in receiver {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                // A frame that finds no room is lost, as on any cable.
                if to.send(&frame).is_err() {
                    break;
                }
            }
        }));
    }
}

impl Drop for DelayedCable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Any EtherType (linux/if_ether.h).
const ETH_P_ALL: u16 = 3;
