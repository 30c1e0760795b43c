//! A cable with latency.

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

/// How long the threads may take to notice that the cable was dropped.
const POLL: Duration = Duration::from_millis(50);

/// Carries frames between two interfaces of one namespace with a delay. Ends on drop.
///
/// It replaces the queueing discipline `netem`, which some kernels lack. Meant for thousands of frames a
/// second, not more.
#[derive(Debug)]
pub struct DelayedCable {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl DelayedCable {
    /// Starts to carry frames. A frame takes `one_way` in each direction, plus the time to wake a thread.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel) when a packet socket cannot be opened.
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
                // When an interface is gone with its namespace, the cable ends.
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
                // A frame that the device has no room for is lost, as on any cable.
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

/// Every EtherType (linux/if_ether.h).
const ETH_P_ALL: u16 = 3;
