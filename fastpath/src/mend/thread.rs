//! The thread that mends: the sockets of all queues, and the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZeroU64,
    os::fd::AsFd as _,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    thread::set_current_timer_slack,
};

use super::{
    Counts, Limits,
    carriers::Carriers,
    known::KnownByTables,
    pair::{MENDED_END, Pair, PairError, WayBack},
    queues::{Queue, QueueError, QueueStates, Queues, pause_behind},
    sockets::{MapFailure, Sockets},
    worker::Worker,
};
use crate::{
    attach::LinkFailure,
    clock::monotonic_ns,
    load::{LoadError, Loaded},
    port::{
        Losses, Port,
        xsk::{Copying, Options, Xsk},
    },
    tables::TableError,
};

/// Name of the thread.
pub const THREAD: &str = "mend";
/// Pause between two looks while something is held.
const LOOK: Duration = Duration::from_millis(1);
/// Pause between two looks while packets keep coming. To wake the thread costs the core that runs XDP several microseconds,
/// so the thread looks by itself.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// How long after a packet it does so, before it lets itself be woken.
const POLL_AFTER_PACKET: Duration = Duration::from_millis(1);
/// Longest sleep, and how often the kernel's losses are read. Commands wait for it.
const SLEEP: Duration = Duration::from_millis(100);
/// Buffers of a queue for what arrives.
const BUFFERS: u32 = 512;
/// Buffers of queue 0 for what leaves, because its device may be one that takes no frames from XDP.
const CARRY_BUFFERS: u32 = 128;

/// Reasons why packets cannot be mended.
#[derive(Debug, thiserror::Error)]
pub enum MendError {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("cannot attach the program that takes mended packets")]
    Attach(#[source] LinkFailure),
    #[error(transparent)]
    Map(#[from] MapFailure),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("cannot start the thread that mends")]
    Thread(#[source] io::Error),
}

enum Command {
    Follow(BTreeSet<Queue>),
    End,
}

/// Reads the state of a thread that mends.
#[derive(Clone, Debug)]
pub struct MendReader {
    counts: Arc<Counts>,
    queues: Arc<Mutex<Queues>>,
}

impl MendReader {
    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the state of the queues.
    #[must_use]
    pub fn queues(&self) -> QueueStates {
        self.queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .states()
    }
}

/// The thread that mends packets. It ends when this is dropped.
#[derive(Debug)]
pub struct Mend {
    commands: Sender<Command>,
    counts: Arc<Counts>,
    queues: Arc<Mutex<Queues>>,
    thread: Option<JoinHandle<()>>,
}

/// The way back of mended packets, with the program at its end.
#[derive(Debug)]
pub struct PreparedPair(Pair);

impl PreparedPair {
    /// Makes the pair, or adopts that of an earlier agent, and attaches the program.
    ///
    /// # Errors
    ///
    /// Each error names the cause.
    pub fn prepare(loaded: &mut Loaded) -> Result<Self, MendError> {
        let pair = Pair::make()?;
        let attached = loaded.attach_mended(pair.device);
        attached.map_err(MendError::Attach)?;
        Ok(Self(pair))
    }
}

impl Mend {
    /// Starts the thread, without any queue.
    ///
    /// This takes the capabilities `NET_RAW` and `IPC_LOCK` alone, and so does the thread.
    ///
    /// # Errors
    ///
    /// Each error names the cause.
    pub fn start(
        loaded: &Loaded,
        PreparedPair(pair): &PreparedPair,
        limits: Limits,
    ) -> Result<Self, MendError> {
        let sender = pair.sender()?;
        let Pair { device, mac, .. } = *pair;
        let counts = Arc::new(Counts::default());
        let queues = Arc::new(Mutex::default());
        let known = KnownByTables::open(loaded)?;
        let worker = Worker::new(limits, known, sender, mac, Arc::clone(&counts));
        let (commands, received) = mpsc::channel();
        let state = Thread {
            worker,
            sockets: Sockets::open::<MendError>(loaded)?,
            mended_queue: Queue {
                interface: MENDED_END.to_owned(),
                device,
                queue: 0,
            },
            wanted: BTreeSet::new(),
            ports: BTreeMap::new(),
            carriers: Carriers::default(),
            attempted: None,
            failures: 0,
            lost: Losses::default(),
            counts: Arc::clone(&counts),
            queues: Arc::clone(&queues),
        };
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || state.run(&received))
            .map_err(MendError::Thread)?;
        Ok(Self {
            commands,
            counts,
            queues,
            thread: Some(thread),
        })
    }

    /// Sets the queues whose packets are mended. They are opened soon; one that is in use is tried again.
    pub fn follow(&self, queues: BTreeSet<Queue>) {
        // The thread ends only with this.
        let _ = self.commands.send(Command::Follow(queues));
    }

    /// Returns what others read of the thread.
    #[must_use]
    pub fn reader(&self) -> MendReader {
        MendReader {
            counts: Arc::clone(&self.counts),
            queues: Arc::clone(&self.queues),
        }
    }

    /// Tells whether the thread goes on.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Mend {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// An open queue.
struct Open {
    port: Port<Xsk>,
    /// Its place in `XSKS`.
    place: u32,
}

struct Thread {
    worker: Worker<KnownByTables, WayBack>,
    sockets: Sockets,
    /// Where mended frames come back, some of which are too big then.
    mended_queue: Queue,
    wanted: BTreeSet<Queue>,
    ports: BTreeMap<Queue, Open>,
    carriers: Carriers,
    /// When queues that are not open were last tried.
    attempted: Option<Instant>,
    /// How often in a row that was in vain.
    failures: u32,
    /// What the kernel has lost of queues that are closed.
    lost: Losses,
    counts: Arc<Counts>,
    queues: Arc<Mutex<Queues>>,
}

impl Thread {
    fn run(mut self, commands: &Receiver<Command>) {
        // Where the kernel refuses it, pauses last 50 us longer.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let (mut last_taken, mut losses_shown) = (Instant::now(), Instant::now());
        loop {
            match commands.try_recv() {
                Ok(Command::Follow(mut queues)) => {
                    queues.insert(self.mended_queue.clone());
                    self.follow(queues);
                }
                Ok(Command::End) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {}
            }
            self.open_missing();
            let taken = self.take();
            self.carry();
            self.worker.release_and_expire(monotonic_ns());
            if losses_shown.elapsed() >= SLEEP {
                self.show_losses();
                losses_shown = Instant::now();
            }
            if taken > 0 {
                last_taken = Instant::now();
            } else if last_taken.elapsed() < POLL_AFTER_PACKET {
                thread::sleep(POLL_INTERVAL);
            } else {
                self.sleep();
            }
        }
        self.follow(BTreeSet::new());
        self.carry();
        self.carriers.close();
        self.carry();
        self.worker.end();
        self.show_losses();
    }

    /// Takes a batch out of each queue. Returns the number of packets.
    fn take(&mut self) -> usize {
        let mut taken = 0;
        let mut broken = Vec::new();
        for (queue, open) in &mut self.ports {
            match self.worker.take(&mut open.port, monotonic_ns()) {
                Ok(frames) => taken += frames,
                Err(error) => broken.push((queue.clone(), error)),
            }
        }
        for (queue, source) in broken {
            self.close_broken(queue, source);
        }
        taken
    }

    fn close_broken(&mut self, queue: Queue, source: io::Error) {
        self.close(&queue);
        let interface = queue.interface.clone();
        self.note_problem(queue, QueueError::Broken { interface, source });
    }

    /// Sends finished frames by devices that take none from XDP.
    fn carry(&mut self) {
        let mut finished = self.worker.take_finished();
        if finished.is_empty() && self.carriers.is_idle() {
            return;
        }
        let mut shared: BTreeMap<u32, &mut Port<Xsk>> = self
            .ports
            .iter_mut()
            .filter(|(queue, _)| queue.queue == 0)
            .map(|(queue, open)| (queue.device, &mut open.port))
            .collect();
        let (mut turn, broken) = self
            .carriers
            .send(&mut finished, |device| shared.remove(&device));
        for (device, source) in broken {
            let ports = self.ports.keys();
            let mut of_device = ports.filter(|queue| queue.device == device && queue.queue == 0);
            if let Some(queue) = of_device.next().cloned() {
                self.close_broken(queue, source);
            }
        }
        let in_transit = self.ports.values().map(|open| open.port.in_transit()).sum();
        self.carriers.turn(&mut turn, in_transit);
        self.worker.note_carried(finished, turn);
        let problems = self.carriers.problems();
        self.edit_queues(|queues| queues.carriers = problems);
    }

    fn sleep(&self) {
        let longest = if self.worker.is_idle() { SLEEP } else { LOOK };
        let timeout = Timespec::try_from(longest).unwrap_or_default();
        let fds: Vec<_> = self.ports.values().map(|open| open.port.as_fd()).collect();
        let mut ready: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        match poll(&mut ready, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(LOOK),
        }
    }

    fn follow(&mut self, wanted: BTreeSet<Queue>) {
        let open: BTreeSet<Queue> = self.ports.keys().cloned().collect();
        for gone in open.difference(&wanted) {
            self.close(gone);
        }
        self.edit_queues(|queues| {
            queues.wanted = wanted.len();
            queues.problems.retain(|queue, _| wanted.contains(queue));
        });
        self.wanted = wanted;
        self.attempted = None;
        self.failures = 0;
    }

    fn open_missing(&mut self) {
        if self.wanted.len() == self.ports.len()
            || self
                .attempted
                .is_some_and(|then| then.elapsed() < pause_behind(self.failures))
        {
            return;
        }
        self.attempted = Some(Instant::now());
        let missing = self.wanted.iter();
        let missing = missing.filter(|queue| !self.ports.contains_key(*queue));
        for queue in missing.cloned().collect::<Vec<_>>() {
            match self.open(&queue) {
                Ok(()) => self.edit_queues(|queues| drop(queues.problems.remove(&queue))),
                Err(problem) => self.note_problem(queue, problem),
            }
        }
        self.failures = if self.wanted.len() == self.ports.len() {
            0
        } else {
            self.failures.saturating_add(1)
        };
    }

    fn open(&mut self, queue: &Queue) -> Result<(), QueueError> {
        let used = self.ports.values().map(|open| open.place);
        let place = self.sockets.free_place(used)?;
        let reserve = if queue.queue == 0 { CARRY_BUFFERS } else { 0 };
        let options = Options {
            buffers: BUFFERS + reserve,
            buffer_size: 4096,
            reserve,
            ring: BUFFERS,
            copying: Copying::Always,
            several_buffers: false,
            patience: Duration::ZERO,
        };
        let port = Port::open(&queue.interface, queue.queue, &options);
        let port = port.map_err(QueueError::Open)?;
        self.sockets.put(place, port.as_fd())?;
        self.sockets.direct(queue, place)?;
        self.ports.insert(queue.clone(), Open { port, place });
        let open = self.ports.len();
        self.edit_queues(|queues| queues.open = open);
        Ok(())
    }

    /// Stops new frames of a queue, takes those that are in it, and closes it.
    fn close(&mut self, queue: &Queue) {
        let Some(mut open) = self.ports.remove(queue) else {
            return;
        };
        self.sockets.remove(queue, open.place);
        while matches!(self.worker.take(&mut open.port, monotonic_ns()), Ok(1..)) {}
        self.carriers.cut_off(open.port.in_transit());
        self.lost = sum(self.lost, open.port.losses().unwrap_or_default());
        let open = self.ports.len();
        self.edit_queues(|queues| queues.open = open);
    }

    fn show_losses(&self) {
        let of_open = self.ports.values();
        let of_open = of_open.map(|open| open.port.losses().unwrap_or_default());
        self.counts.show_losses(of_open.fold(self.lost, sum));
    }

    fn note_problem(&self, queue: Queue, problem: QueueError) {
        self.edit_queues(|queues| drop(queues.problems.insert(queue, Arc::new(problem))));
    }

    fn edit_queues(&self, edit: impl FnOnce(&mut Queues)) {
        edit(&mut self.queues.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.edit_queues(|queues| queues.open = 0);
    }
}

const fn sum(one: Losses, other: Losses) -> Losses {
    Losses {
        no_buffer: one.no_buffer + other.no_buffer,
        ring_full: one.ring_full + other.ring_full,
        too_large: one.too_large + other.too_large,
        invalid: one.invalid + other.invalid,
    }
}
