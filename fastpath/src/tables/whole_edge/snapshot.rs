//! Snapshots of the hashes, and which of them threads are at work with.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use xdp_prog::abi::{AddressKey, Config, EdgeMac, IndexEntry};

use super::Prefixes;

/// What a thread says that is at work with no snapshot.
const IDLE: u64 = u64::MAX;
/// Pause between two looks at threads. A batch takes some microseconds.
const LOOK: Duration = Duration::from_micros(50);

/// The contents of the hashes that only the owner of the tables writes. Snapshots share what has not changed between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Hashes {
    pub(super) vips: Arc<HashMap<AddressKey, u32>>,
    pub(super) overflow: Arc<HashMap<u64, IndexEntry>>,
    pub(super) trusted_edges: Arc<Prefixes>,
    pub(super) source_ranges: Arc<Prefixes>,
    pub(super) edge_macs: Arc<HashSet<EdgeMac>>,
}

/// The settings and the hashes at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Number of snapshots before it.
    pub(super) generation: u64,
    pub(super) config: Config,
    pub(super) hashes: Hashes,
}

/// The generation of the snapshot that a thread is at work with, or [`IDLE`].
type AtWork = Arc<CachePadded<AtomicU64>>;

/// The newest snapshot, and the threads that take it.
#[derive(Debug)]
pub(super) struct Snapshots {
    newest: ArcSwap<Snapshot>,
    threads: Mutex<Vec<AtWork>>,
}

impl Snapshots {
    pub(super) fn new(first: Snapshot) -> Self {
        Self {
            newest: ArcSwap::from_pointee(first),
            threads: Mutex::default(),
        }
    }

    pub(super) fn newest(&self) -> Arc<Snapshot> {
        self.newest.load_full()
    }

    /// Puts another snapshot in place. Only the owner of the tables does so.
    pub(super) fn publish(&self, config: Config, hashes: Hashes) {
        let generation = self.newest.load().generation + 1;
        self.newest.store(Arc::new(Snapshot {
            generation,
            config,
            hashes,
        }));
    }

    /// Waits until no thread is at work with an older snapshot than the newest.
    pub(super) fn wait(&self) {
        let generation = self.newest.load().generation;
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in &*threads {
            while thread.load(Ordering::SeqCst) < generation {
                thread::sleep(LOOK);
            }
        }
    }
}

/// A thread's right to the newest snapshot.
#[derive(Debug)]
pub(super) struct Reader {
    snapshots: Arc<Snapshots>,
    at_work: AtWork,
}

impl Reader {
    pub(super) fn new(snapshots: &Arc<Snapshots>) -> Self {
        let at_work = AtWork::new(CachePadded::new(AtomicU64::new(IDLE)));
        let mut threads = snapshots
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        threads.push(Arc::clone(&at_work));
        drop(threads);
        Self {
            snapshots: Arc::clone(snapshots),
            at_work,
        }
    }

    /// Returns the newest snapshot, with which the thread is at work until [`Self::end`].
    ///
    /// Whoever waits has published a snapshot before it looks at the threads. So either it sees the generation that is
    /// stored here, or the second load finds its snapshot: all are sequentially consistent.
    pub(super) fn begin(&self) -> Arc<Snapshot> {
        loop {
            let taken = self.snapshots.newest.load_full();
            self.at_work.store(taken.generation, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
            if self.snapshots.newest.load().generation == taken.generation {
                return taken;
            }
        }
    }

    /// Says that the thread holds nothing that it has found in the tables.
    pub(super) fn end(&self) {
        self.at_work.store(IDLE, Ordering::Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
        let threads = self.snapshots.threads.lock();
        let mut threads = threads.unwrap_or_else(PoisonError::into_inner);
        threads.retain(|other| !Arc::ptr_eq(other, &self.at_work));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn snapshots() -> Arc<Snapshots> {
        Arc::new(Snapshots::new(Snapshot {
            generation: 0,
            config: Config::default(),
            hashes: Hashes::default(),
        }))
    }

    #[test]
    fn whoever_waits_waits_for_batches_that_began_before() {
        let snapshots = snapshots();
        let reader = Reader::new(&snapshots);
        assert_eq!(reader.begin().generation, 0);
        snapshots.publish(Config::default(), Hashes::default());
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let waiting = &snapshots;
            scope.spawn(move || {
                waiting.wait();
                tell.send(()).unwrap();
            });
            assert!(told.try_recv().is_err());
            reader.end();
            told.recv().unwrap();
        });
    }

    #[test]
    fn nobody_waits_for_idle_threads_and_for_those_with_the_newest() {
        let snapshots = snapshots();
        let (idle, at_work) = (Reader::new(&snapshots), Reader::new(&snapshots));
        snapshots.publish(Config::default(), Hashes::default());
        assert_eq!(at_work.begin().generation, 1);
        snapshots.wait();
        drop((idle, at_work));
        assert!(snapshots.threads.lock().unwrap().is_empty());
    }
}
