//! The threads: one for each queue, each on a CPU.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, hint, io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{
    buffers::{BUFFERS, LARGEST_MTU, buffer_size},
    copies::{EdgeCaptureError, EdgeCaptures},
    counts::EdgeCounts,
    reader::EdgeReader,
    stack::PairStack,
    worker::Worker,
};
use crate::{
    facts::{self, InterfaceError},
    load::{LoadError, Loaded},
    mend::{MapFailure, Pair, PairError, Queue, QueueError, Sockets},
    port::{
        Port,
        xsk::{Copying, Options, Xsk},
    },
    tables::{EdgeTables, EdgeWorld, TableError, Tables},
};

/// How long a thread looks for frames again and again before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep. The end of a thread waits for it.
const SLEEP: Duration = Duration::from_millis(100);
/// How often a thread that never sleeps tells what the kernel has lost.
const SHOW: Duration = Duration::from_secs(1);
/// How long a queue is waited for that is in use: an agent that has just ended frees its queues soon.
const PATIENCE: Duration = Duration::from_millis(500);
/// Descriptors of a ring.
const RING: u32 = 2048;

/// Reasons why the threads cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum WholeEdgeError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Capture(#[from] EdgeCaptureError),
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(
        "interface {interface}: with MTU {mtu}, packets of more than {LARGEST_MTU} bytes find no buffer; lower the MTU"
    )]
    Mtu { interface: String, mtu: u32 },
    #[error(transparent)]
    Map(#[from] MapFailure),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The threads of a whole edge. They end when this is dropped.
pub struct WholeEdge {
    tables: Arc<EdgeTables>,
    /// The way to the stack.
    pair: Pair,
    sockets: Sockets,
    cpus: Vec<usize>,
    threads: BTreeMap<Queue, Thread>,
    reader: EdgeReader,
    captures: EdgeCaptures,
}

impl fmt::Debug for WholeEdge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeEdge")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// The thread of one queue.
#[derive(Debug)]
struct Thread {
    /// Its place in `XSKS`.
    place: u32,
    cpu: usize,
    buffer_size: u32,
    counts: Arc<CachePadded<EdgeCounts>>,
    ends: Arc<AtomicBool>,
    handle: JoinHandle<io::Result<()>>,
}

impl WholeEdge {
    /// Prepares the tables and the way to the stack, without any queue, and has the threads see each change of the tables.
    ///
    /// # Errors
    ///
    /// Each error names the cause.
    pub fn start(loaded: &Loaded, tables: &mut Tables) -> Result<Self, WholeEdgeError> {
        let pair = Pair::make()?;
        let edge = Arc::new(Tables::edge_tables(loaded)?);
        tables.serve_edge(Arc::clone(&edge))?;
        Ok(Self {
            tables: edge,
            pair,
            sockets: Sockets::open::<WholeEdgeError>(loaded)?,
            cpus: usable_cpus(),
            threads: BTreeMap::new(),
            reader: EdgeReader::default(),
            captures: EdgeCaptures::open(loaded)?,
        })
    }

    /// Sets the queues whose frames are taken. What could not be done is tried again with the next call.
    ///
    /// This takes the capabilities `NET_RAW` and `IPC_LOCK` alone, and so do the threads.
    ///
    /// # Errors
    ///
    /// Fails with the first reason why a queue has no thread, or why its packets may not fit. The others have theirs.
    pub fn follow(&mut self, wanted: &BTreeSet<Queue>) -> Result<(), WholeEdgeError> {
        let mut outcome = Ok(());
        let mut sizes = BTreeMap::new();
        let interfaces: BTreeSet<&str> = wanted.iter().map(|one| one.interface.as_str()).collect();
        for interface in interfaces {
            match facts::link(interface) {
                Ok(link) => {
                    outcome = outcome.and(fits(interface, link.mtu));
                    sizes.insert(interface, buffer_size(link.mtu));
                }
                Err(error) => outcome = outcome.and(Err(error.into())),
            }
        }
        let size_for = |queue: &Queue| sizes.get(queue.interface.as_str()).copied();
        let is_over = |queue: &Queue, thread: &mut Thread| {
            let fits = size_for(queue).is_none_or(|size| size == thread.buffer_size);
            !wanted.contains(queue) || !fits || thread.handle.is_finished()
        };
        let over: Vec<_> = self.threads.extract_if(.., is_over).collect();
        for (queue, thread) in over {
            outcome = outcome.and(self.end(queue, thread));
        }
        for queue in wanted {
            if !self.threads.contains_key(queue)
                && let Some(size) = size_for(queue)
            {
                outcome = outcome.and(self.begin(queue, size));
            }
        }
        outcome
    }

    /// Returns the number of queues that have a thread.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.threads.len()
    }

    /// Returns the counters of a queue's thread; `None` if it has none.
    #[must_use]
    pub fn counts(&self, queue: &Queue) -> Option<&EdgeCounts> {
        let thread = self.threads.get(queue)?;
        Some(&thread.counts)
    }

    /// Returns what others read of the threads.
    #[must_use]
    pub fn reader(&self) -> EdgeReader {
        self.reader.clone()
    }

    /// Returns the captures of frames that the threads take.
    #[must_use]
    pub fn captures(&self) -> EdgeCaptures {
        self.captures.clone()
    }

    fn begin(&mut self, queue: &Queue, buffer_size: u32) -> Result<(), WholeEdgeError> {
        let used = self.threads.values().map(|thread| thread.place);
        let place = self.sockets.free_place(used)?;
        let options = Options {
            buffers: BUFFERS,
            buffer_size,
            reserve: RING,
            ring: RING,
            copying: Copying::IfNeeded,
            several_buffers: false,
            patience: PATIENCE,
        };
        let port = Port::open(&queue.interface, queue.queue, &options).map_err(QueueError::Open)?;
        let cpu = self.freest_cpu();
        self.sockets.put(place, port.as_fd())?;
        let world = self.tables.world(u32::try_from(cpu).unwrap_or(0))?;
        let counts = self.reader.add();
        let worker = Worker::new(
            port,
            world,
            PairStack::by(&self.pair)?,
            self.captures.copier(),
            queue.device,
            Arc::clone(&counts),
        );
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let handle = thread::Builder::new()
            .name(format!("edge-{}", queue.queue))
            .spawn(move || run(worker, cpu, &told))
            .map_err(WholeEdgeError::Thread)?;
        let thread = Thread {
            place,
            cpu,
            buffer_size,
            counts,
            ends,
            handle,
        };
        if let Err(error) = self.sockets.direct(queue, place) {
            // Without its place the thread would get no frame.
            let _ = self.end(queue.clone(), thread);
            return Err(error.into());
        }
        self.threads.insert(queue.clone(), thread);
        Ok(())
    }

    /// Returns the CPU with the fewest threads.
    fn freest_cpu(&self) -> usize {
        let threads = |cpu: &usize| self.threads.values().filter(|t| t.cpu == *cpu).count();
        let cpus = self.cpus.iter().copied();
        cpus.min_by_key(threads).unwrap_or(0)
    }

    /// Stops new frames of a queue, and ends its thread. Fails as the thread did.
    fn end(&mut self, queue: Queue, thread: Thread) -> Result<(), WholeEdgeError> {
        self.sockets.remove(&queue, thread.place);
        thread.ends.store(true, Ordering::Relaxed);
        let interface = queue.interface;
        match thread.handle.join() {
            Ok(Err(source)) => Err(QueueError::Broken { interface, source }.into()),
            // A thread that panicked has said so.
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }
}

impl Drop for WholeEdge {
    fn drop(&mut self) {
        for (queue, thread) in std::mem::take(&mut self.threads) {
            // Nobody is left to be told.
            let _ = self.end(queue, thread);
        }
    }
}

/// Serves a queue until the thread is to end.
fn run(
    mut worker: Worker<Xsk, EdgeWorld, PairStack>,
    cpu: usize,
    ends: &AtomicBool,
) -> io::Result<()> {
    let mut own = CpuSet::new();
    own.set(cpu);
    // Where it may not choose its CPU, the scheduler does.
    let _ = sched_setaffinity(None, &own);
    let mut last = Instant::now();
    let mut shown = last;
    while !ends.load(Ordering::Relaxed) {
        if worker.turn()? > 0 {
            last = Instant::now();
            if last.duration_since(shown) > SHOW {
                worker.show_losses();
                shown = last;
            }
        } else if last.elapsed() < SPIN {
            hint::spin_loop();
        } else {
            worker.show_losses();
            worker.wait(SLEEP)?;
        }
    }
    worker.show_losses();
    Ok(())
}

/// Fails if packets of an interface may be larger than a buffer.
fn fits(interface: &str, mtu: u32) -> Result<(), WholeEdgeError> {
    if mtu <= LARGEST_MTU {
        return Ok(());
    }
    let interface = interface.to_owned();
    Err(WholeEdgeError::Mtu { interface, mtu })
}

/// Lists the CPUs that this process may use.
fn usable_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect()
}
