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
pub(super) mod tests {
    use xdp_prog::{
        abi::AddressKey,
        capture::{Filter, INTERFACES, Network, Outcomes},
        frame::{FrameMut as _, HostFrame},
        reason::DropReason,
    };

    use super::*;
    use crate::capture::Captured;

    const DEVICE: u32 = 7;

    /// A capture of everything.
    pub(in super::super) fn settings() -> Settings {
        Settings {
            until_ns: 0,
            filter: Filter::default(),
            outcomes: Outcomes::ALL,
            sample: 1,
            snap: 64,
            owner: 42,
            interface_count: 0,
            interfaces: [0; INTERFACES],
        }
    }

    /// A copier that a capture with these settings has reached.
    fn copier(settings: &Settings) -> (Arc<Shared>, FrameCopier) {
        let shared = Arc::default();
        let mut copier = FrameCopier::new(&shared);
        copier.begin();
        shared.follow(settings, monotonic_ns());
        copier.begin();
        (shared, copier)
    }

    /// What a process that captures is told and all of its events.
    pub(in super::super) fn taken(shared: &Shared) -> (Vec<Captured>, u64) {
        let TakenEvents { events, lost } = shared.take(usize::MAX);
        let events = events.iter().map(|event| Captured::read(event).unwrap());
        (events.collect(), lost)
    }

    /// Has a frame of 100 bytes come, of which the first tells which one it is.
    fn pass(copier: &mut FrameCopier, first: u8) -> bool {
        let mut bytes = [first; 100];
        let frame = HostFrame::behind(0, &mut bytes[..]);
        let is_wanted = copier.before(&frame, DEVICE);
        if is_wanted {
            copier.after(&frame, action::PASS, Reasons::default());
        }
        is_wanted
    }

    fn firsts(events: &[Captured]) -> Vec<u8> {
        events.iter().map(|event| event.before[0]).collect()
    }

    #[test]
    fn event_has_the_frame_as_it_came_and_as_it_goes_on() {
        let (shared, mut copier) = copier(&settings());
        let mut bytes = [[0; 20].as_slice(), &[b'i'; 100]].concat();
        let mut frame = HostFrame::behind(20, &mut bytes[..]);
        assert!(copier.before(&frame, DEVICE));
        assert!(frame.move_start(-20));
        *frame.view_mut(0).unwrap() = *b"twenty bytes of head";
        let mut reasons = Reasons::default();
        reasons.insert(DropReason::NoBackend.index());
        copier.after(&frame, action::TRANSMIT, reasons);
        // What ends leaves no second copy.
        assert!(copier.before(&frame, DEVICE));
        copier.after(&frame, action::DROP, Reasons::default());

        let (events, lost) = taken(&shared);
        let [sent, dropped] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!(sent.before, [b'i'; 64]);
        assert_eq!(
            sent.after,
            [b"twenty bytes of head".as_slice(), &[b'i'; 44]].concat()
        );
        assert_eq!(
            (sent.event.before_length, sent.event.after_length),
            (100, 120)
        );
        assert_eq!(
            (sent.event.ifindex, sent.event.action),
            (DEVICE, action::TRANSMIT)
        );
        assert_eq!(sent.event.reasons, reasons);
        assert!(sent.event.before_ns > 0 && sent.event.after_ns >= sent.event.before_ns);
        assert_eq!(
            (dropped.event.before_length, dropped.event.after_length),
            (120, 0)
        );
        assert!(dropped.after.is_empty());
        assert_eq!(lost, 0);
    }

    #[test]
    fn frames_and_outcomes_that_nobody_wants_leave_no_event() {
        let vip = AddressKey::v4([192, 0, 2, 1]);
        let is_taken = |settings: Settings| {
            let (shared, mut copier) = copier(&settings);
            pass(&mut copier, 1);
            !taken(&shared).0.is_empty()
        };
        let mut other_device = settings();
        other_device.interface_count = 1;
        other_device.interfaces[0] = DEVICE + 1;
        let mut this_device = other_device;
        this_device.interfaces[0] = DEVICE;
        let filter = Filter {
            networks: [Network::new(vip, 128), Network::default()],
            is_set: [1, 0],
            ..Filter::default()
        };
        assert!(is_taken(settings()));
        assert!(is_taken(this_device));
        assert!(!is_taken(other_device));
        assert!(!is_taken(Settings {
            filter,
            ..settings()
        }));
        assert!(!is_taken(Settings {
            outcomes: Outcomes::NONE,
            ..settings()
        }));
        assert!(!is_taken(Settings {
            owner: 0,
            ..settings()
        }));
    }

    #[test]
    fn one_in_so_many_is_taken_by_chance() {
        let (_, mut copier) = copier(&Settings {
            sample: 4,
            ..settings()
        });
        let taken = (0..4000).filter(|_| pass(&mut copier, 1)).count();
        // Six standard deviations of a binomial distribution on either side.
        assert!((836..=1164).contains(&taken), "{taken}");
    }

    #[test]
    fn queue_is_bounded_and_what_finds_no_room_is_counted_once() {
        let (shared, mut copier) = copier(&Settings {
            snap: SNAP_MAX,
            ..settings()
        });
        let room = shared
            .running
            .load()
            .as_ref()
            .unwrap()
            .waiting
            .events
            .capacity();
        assert!(room * (mem::size_of::<Event>() + 2 * SNAP_MAX as usize) <= RING);
        for _ in 0..room + 3 {
            pass(&mut copier, 1);
        }
        let (events, lost) = taken(&shared);
        assert_eq!((events.len(), lost), (room, 3));
        pass(&mut copier, 2);
        let (events, lost) = taken(&shared);
        assert_eq!((firsts(&events), lost), (vec![2], 0));
    }

    #[test]
    fn capture_ends_as_its_owner_says_and_its_events_can_still_be_taken() {
        let (shared, mut copier) = copier(&settings());
        pass(&mut copier, 1);
        let over = Settings {
            owner: 0,
            ..settings()
        };
        shared.follow(&over, monotonic_ns());
        copier.begin();
        assert!(!pass(&mut copier, 2));
        shared.clear_away(monotonic_ns());
        assert_eq!(firsts(&taken(&shared).0), [1]);

        // The same process goes on, with another end of its lease.
        let later = Settings {
            until_ns: 1,
            ..settings()
        };
        shared.follow(&later, monotonic_ns());
        copier.begin();
        assert!(pass(&mut copier, 3));
        assert_eq!(firsts(&taken(&shared).0), [3]);
    }

    #[test]
    fn capture_that_asks_no_more_ends_with_its_events() {
        let (shared, mut copier) = copier(&settings());
        pass(&mut copier, 1);
        // When the machine started.
        shared.follow(&settings(), 0);
        copier.begin();
        assert!(!pass(&mut copier, 2));
        shared.clear_away(monotonic_ns());
        copier.begin();
        assert!(copier.running.is_none());
        assert!(taken(&shared).0.is_empty());
    }

    #[test]
    fn other_settings_of_one_process_keep_its_events_and_another_process_gets_none_of_them() {
        let (shared, mut copier) = copier(&settings());
        pass(&mut copier, 1);
        let other_outcomes = Settings {
            outcomes: Outcomes::NONE,
            ..settings()
        };
        shared.follow(&other_outcomes, monotonic_ns());
        copier.begin();
        pass(&mut copier, 2);
        assert_eq!(firsts(&taken(&shared).0), [1]);

        shared.follow(&settings(), monotonic_ns());
        copier.begin();
        pass(&mut copier, 3);
        shared.follow(
            &Settings {
                owner: 43,
                ..settings()
            },
            monotonic_ns(),
        );
        copier.begin();
        pass(&mut copier, 4);
        assert_eq!(firsts(&taken(&shared).0), [4]);
    }
}
