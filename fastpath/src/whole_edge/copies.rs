//! Copies of the frames that threads take, for captures.
//!
//! A capture has its settings in the map where the programs have them, and an event looks as theirs does
//! (`xdp_prog::capture`). The programs' ring buffer takes nothing from user space, so threads leave their events in a
//! queue of this process, and the process that captures asks for them. A thread that finds the queue full loses the event
//! and counts it. It waits for nobody. A capture that asks no more has been killed: its threads stop to copy.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
};

use arc_swap::ArcSwapOption;
use crossbeam_queue::ArrayQueue;
use xdp_prog::{
    abi::map,
    capture::{Event, RING, Reasons, SNAP_MAX, Settings},
};
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::worker::BufferFrame;
use crate::{
    capture::{CaptureError, Lease, action},
    clock::monotonic_ns,
    load::{LoadError, Loaded},
};

/// How long threads copy after they were asked last. An agent on a busy machine takes its time to answer.
const ASKED_NS: u64 = 30_000_000_000;

/// The captures of frames that threads take.
#[derive(Clone)]
pub struct EdgeCaptures {
    lease: Arc<Mutex<Lease>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for EdgeCaptures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeCaptures")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// Reasons why threads cannot follow a capture.
#[derive(Debug, thiserror::Error)]
pub enum EdgeCaptureError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// What a capture gets when it asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenEvents {
    /// Each is an [`Event`], followed by its copies of the frame; see [`Captured::read`](crate::capture::Captured::read).
    pub events: Vec<Box<[u8]>>,
    /// Events that have been lost since it asked last, because the queue was full.
    pub lost: u64,
}

impl EdgeCaptures {
    /// Opens the map of the settings.
    ///
    /// # Errors
    ///
    /// Fails if the map cannot be opened.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, EdgeCaptureError> {
        let lease = Lease::over(loaded.map(map::CAPTURE_SETTINGS)?)?;
        Ok(Self {
            lease: Arc::new(Mutex::new(lease)),
            shared: Arc::default(),
        })
    }

    /// Has the threads do as the settings say, and returns at most so many events, the oldest first. For the process that
    /// captures alone.
    ///
    /// # Errors
    ///
    /// Fails if the settings cannot be read.
    pub fn take(&self, most: usize) -> Result<TakenEvents, CaptureError> {
        // One after the other: each decides by what it finds.
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.follow(&lease.settings()?, monotonic_ns());
        Ok(self.shared.take(most))
    }

    /// Ends a capture that was killed, and frees its memory. The agent calls this from time to time. Returns whether a
    /// capture goes on.
    #[must_use]
    pub fn clear_away(&self) -> bool {
        let _lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.clear_away(monotonic_ns());
        self.shared.running.load().is_some()
    }

    /// Returns what copies the frames of one thread.
    pub(super) fn copier(&self) -> FrameCopier {
        FrameCopier::new(&self.shared)
    }
}

/// What the agent tells the threads.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Number of changes of `running`.
    changes: AtomicU64,
    running: ArcSwapOption<Running>,
}

/// A capture.
#[derive(Debug)]
struct Running {
    settings: Settings,
    /// When it asked last, in monotonic ns.
    asked_ns: AtomicU64,
    is_over: AtomicBool,
    waiting: Arc<Waiting>,
}

/// The events of a capture that nobody has asked for yet.
#[derive(Debug)]
struct Waiting {
    events: ArrayQueue<Box<[u8]>>,
    lost: AtomicU64,
}

impl Shared {
    /// Does what these settings say, for a capture that asks at this time.
    pub(super) fn follow(&self, settings: &Settings, now: u64) {
        let running = self.running.load_full();
        if let Some(running) = &running {
            let is_over = settings.owner == 0;
            running.is_over.store(is_over, Ordering::Relaxed);
            running.asked_ns.store(now, Ordering::Relaxed);
        }
        let is_known = running.as_ref().is_some_and(|one| one.is_of(settings));
        if settings.owner == 0 || is_known {
            return;
        }
        let former = running.filter(|running| running.settings.owner == settings.owner);
        let waiting = match former {
            Some(former) => Arc::clone(&former.waiting),
            None => Waiting::new(settings.snap),
        };
        self.replace(Some(Running::new(settings, now, waiting)));
    }

    /// Ends a capture that has asked for so long no more, with the events that are left.
    fn clear_away(&self, now: u64) {
        let running = self.running.load_full();
        if running.is_some_and(|running| !running.has_asked(now)) {
            self.replace(None);
        }
    }

    pub(super) fn take(&self, most: usize) -> TakenEvents {
        let running = self.running.load();
        running
            .as_ref()
            .map_or_else(TakenEvents::default, |running| {
                let Waiting { events, lost } = &*running.waiting;
                TakenEvents {
                    events: std::iter::from_fn(|| events.pop()).take(most).collect(),
                    lost: lost.swap(0, Ordering::Relaxed),
                }
            })
    }

    fn replace(&self, running: Option<Running>) {
        self.running.store(running.map(Arc::new));
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Running {
    fn new(settings: &Settings, now: u64, waiting: Arc<Waiting>) -> Self {
        Self {
            settings: *settings,
            asked_ns: AtomicU64::new(now),
            is_over: AtomicBool::new(false),
            waiting,
        }
    }

    /// Tells whether it has asked a short while ago.
    fn has_asked(&self, now: u64) -> bool {
        now.saturating_sub(self.asked_ns.load(Ordering::Relaxed)) <= ASKED_NS
    }

    /// Tells whether it is by these settings, whenever the lease ends.
    fn is_of(&self, settings: &Settings) -> bool {
        let same = Settings {
            until_ns: self.settings.until_ns,
            ..*settings
        };
        self.settings.as_bytes() == same.as_bytes()
    }
}

impl Waiting {
    /// Makes room for as many events as take the memory of the programs' ring buffer.
    fn new(snap: u32) -> Arc<Self> {
        let largest = mem::size_of::<Event>() + 2 * snap.min(SNAP_MAX) as usize;
        Arc::new(Self {
            events: ArrayQueue::new(RING / largest),
            lost: AtomicU64::new(0),
        })
    }

    fn push(&self, event: Box<[u8]>) {
        if self.events.push(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Copies the frames of one thread while a capture runs.
#[derive(Debug)]
pub(super) struct FrameCopier {
    shared: Arc<Shared>,
    /// The changes that this thread has seen.
    seen: u64,
    running: Option<Arc<Running>>,
    /// Whether frames of the batch are copied.
    is_on: bool,
    sampler: Sampler,
    /// The event of the current frame, as far as it is known.
    event: Event,
    /// The copy of the current frame as it came in, and behind it the one as it goes on.
    copies: Vec<u8>,
}

impl FrameCopier {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            seen: 0,
            running: None,
            is_on: false,
            sampler: Sampler::default(),
            event: Event::new_zeroed(),
            copies: Vec::new(),
        }
    }

    /// Begins a batch.
    pub(super) fn begin(&mut self) {
        let changes = self.shared.changes.load(Ordering::Relaxed);
        if changes != self.seen {
            // What was stored before the number was raised is seen from here on.
            fence(Ordering::Acquire);
            self.seen = changes;
            self.running = self.shared.running.load_full();
        }
        self.is_on = self.running.as_ref().is_some_and(|running| {
            !running.is_over.load(Ordering::Relaxed) && running.has_asked(monotonic_ns())
        });
    }

    /// Copies a frame as it comes in by a device, if it is wanted. Returns whether it is.
    pub(super) fn before(&mut self, frame: &BufferFrame<'_>, ingress: u32) -> bool {
        let Some(running) = self.running.as_ref().filter(|_| self.is_on) else {
            return false;
        };
        let settings = &running.settings;
        if !settings.holds_device(ingress)
            || !self.sampler.takes_one_in(settings.sample)
            || !settings.filter.matches(frame, |word| word)
        {
            return false;
        }
        self.copies.clear();
        let (length, copied) = copy(&mut self.copies, frame.bytes(), settings.snap);
        self.event.ifindex = ingress;
        self.event.before_length = length;
        self.event.before_copied = copied;
        self.event.before_ns = monotonic_ns();
        true
    }

    /// Copies the frame of [`Self::before`] as it goes on, and leaves the event for whoever captures. `action` and
    /// `reasons` say what became of it.
    pub(super) fn after(&mut self, frame: &BufferFrame<'_>, action: u32, reasons: Reasons) {
        self.event.after_ns = monotonic_ns();
        let Some(running) = &self.running else {
            return;
        };
        let settings = &running.settings;
        if !settings.outcomes.holds(reasons) {
            return;
        }
        let bytes = match action {
            action::DROP => &[],
            _ => frame.bytes(),
        };
        let (length, copied) = copy(&mut self.copies, bytes, settings.snap);
        self.event.after_length = length;
        self.event.after_copied = copied;
        self.event.action = action;
        self.event.reasons = reasons;
        let event = [self.event.as_bytes(), &self.copies].concat();
        running.waiting.push(event.into());
    }
}

/// Appends the front of a frame; returns the lengths of the frame and of the copy.
fn copy(to: &mut Vec<u8>, frame: &[u8], snap: u32) -> (u32, u32) {
    let snap = snap.min(SNAP_MAX) as usize;
    let copied = &frame[..frame.len().min(snap)];
    to.extend_from_slice(copied);
    // Buffers are of a page at most.
    let [length, copied] =
        [frame, copied].map(|bytes| u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    (length, copied)
}

/// Chooses frames at random.
#[derive(Debug, Default)]
struct Sampler {
    random: RandomState,
    frames: u64,
}

impl Sampler {
    fn takes_one_in(&mut self, frames: u32) -> bool {
        if frames <= 1 {
            return true;
        }
        self.frames += 1;
        let drawn = self.random.hash_one(self.frames);
        drawn.is_multiple_of(frames.into())
    }
}

#[cfg(test)]
pub(super) mod tests;
