//! The tables as the threads see them that do in user space what the programs do in the kernel: the whole edge.
//!
//! Arrays are memory that the kernel, the owner of the tables and these threads share. Hashes cannot be mapped. What
//! only the owner writes is copied into a [`Snapshot`], of which a thread takes one for each batch of frames. What
//! packets write, because it has to be the same for all queues (pins, clients, datagrams in fragments, allowances of sources,
//! reports about paths), is asked with a system call. Packets of flows without a past need none.
//!
//! An id is used again only after every thread has taken a snapshot that was made after the id fell out of use; see
//! [`EdgeTables::wait`].

mod batch_traffic;
mod prefixes;
mod snapshot;
#[cfg(test)]
mod tests;
mod world;

use std::{cell::RefCell, collections::BTreeSet, fmt, sync::Arc};

use aya::maps::{MapData, lpm_trie::Key};
use xdp_prog::abi::{
    AddressKey, Backend, Bucket, Config, EdgeMac, EdgePrefix, IndexEntry, NextHop, PastOwner,
    PastPair, Service, SlotPair, SourcePrefix, Traffic, map,
};
use zerocopy::transmute;

pub use self::world::EdgeWorld;
use self::world::MapsOfThread;
use self::{
    prefixes::Prefixes,
    snapshot::{Hashes, Snapshot, Snapshots},
};
use super::{TableError, Tables, mapped::Mapped, syscall_map::SyscallMap};
use crate::{
    cpus,
    load::{LoadError, Loaded, another_handle},
};

/// The arrays, in memory.
#[derive(Debug)]
struct Arrays {
    service_index: Mapped<Bucket>,
    service: Mapped<Service>,
    lut: Mapped<SlotPair>,
    pasts: Mapped<PastPair>,
    history: Mapped<PastOwner>,
    backends: Mapped<Backend>,
    next_hops: Mapped<NextHop>,
    reasons: Mapped<u64>,
    service_traffic: Mapped<Traffic>,
    backend_traffic: Mapped<Traffic>,
}

/// A hash that threads see by snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hash {
    Vips,
    Overflow,
    TrustedEdges,
    SourceRanges,
    EdgeMacs,
}

impl Hash {
    const ALL: [Self; 5] = [
        Self::Vips,
        Self::Overflow,
        Self::TrustedEdges,
        Self::SourceRanges,
        Self::EdgeMacs,
    ];
}

/// The maps that are read into snapshots.
struct Sources {
    config: SyscallMap<u32, Config>,
    vips: SyscallMap<AddressKey, u32>,
    overflow: SyscallMap<u64, IndexEntry>,
    trusted_edges: SyscallMap<Key<EdgePrefix>, u32>,
    source_ranges: SyscallMap<Key<SourcePrefix>, u32>,
    edge_macs: SyscallMap<EdgeMac, u32>,
}

/// Handles to the maps that packets of all queues write.
struct SharedMaps {
    pins: [MapData; 2],
    clients: MapData,
    datagrams: MapData,
    answers: MapData,
    paths: MapData,
}

/// The tables of one dataplane, for all threads of a whole edge.
pub struct EdgeTables {
    arrays: Arc<Arrays>,
    sources: Sources,
    shared: SharedMaps,
    snapshots: Arc<Snapshots>,
    /// Number of CPUs that have a region in the arrays of counters.
    cpus: u32,
}

impl fmt::Debug for EdgeTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeTables").finish_non_exhaustive()
    }
}

/// Returns a handle to a map of this name.
type Open<'o> = &'o dyn Fn(&'static str) -> Result<MapData, LoadError>;

impl Arrays {
    fn open(open: Open<'_>) -> Result<Self, TableError> {
        Ok(Self {
            service_index: mapped(open, map::SERVICE_INDEX)?,
            service: mapped(open, map::SERVICE)?,
            lut: mapped(open, map::LUT)?,
            pasts: mapped(open, map::PASTS)?,
            history: mapped(open, map::HISTORY)?,
            backends: mapped(open, map::BACKENDS)?,
            next_hops: mapped(open, map::NEXTHOPS)?,
            reasons: mapped(open, map::REASONS)?,
            service_traffic: mapped(open, map::SERVICE_TRAFFIC)?,
            backend_traffic: mapped(open, map::BACKEND_TRAFFIC)?,
        })
    }
}

fn mapped<T: aya::Pod>(open: Open<'_>, name: &'static str) -> Result<Mapped<T>, TableError> {
    Mapped::over(&open(name)?, name)
}

fn asked<K: aya::Pod, V: aya::Pod>(
    open: Open<'_>,
    name: &'static str,
) -> Result<SyscallMap<K, V>, TableError> {
    SyscallMap::of(open(name)?, name)
}

impl Sources {
    fn open(open: Open<'_>) -> Result<Self, TableError> {
        Ok(Self {
            config: asked(open, map::CONFIG)?,
            vips: asked(open, map::VIPS)?,
            overflow: asked(open, map::SERVICE_OVERFLOW)?,
            trusted_edges: asked(open, map::TRUSTED_EDGES)?,
            source_ranges: asked(open, map::SOURCE_RANGES)?,
            edge_macs: asked(open, map::EDGE_MACS)?,
        })
    }

    fn read(&self) -> Result<Hashes, TableError> {
        let mut hashes = Hashes::default();
        for hash in Hash::ALL {
            self.read_again(&mut hashes, hash)?;
        }
        Ok(hashes)
    }

    /// Replaces one hash with its present contents.
    fn read_again(&self, hashes: &mut Hashes, hash: Hash) -> Result<(), TableError> {
        match hash {
            Hash::Vips => hashes.vips = collected(self.vips.entries()?),
            Hash::Overflow => hashes.overflow = collected(self.overflow.entries()?),
            Hash::TrustedEdges => {
                let keys = self.trusted_edges.keys()?.into_iter();
                let prefixes = keys.map(|key| (key.prefix_len(), transmute!(key.data())));
                hashes.trusted_edges = collected(prefixes);
            }
            Hash::SourceRanges => {
                let keys = self.source_ranges.keys()?.into_iter();
                let prefixes = keys.map(|key| (key.prefix_len(), transmute!(key.data())));
                hashes.source_ranges = collected(prefixes);
            }
            Hash::EdgeMacs => hashes.edge_macs = collected(self.edge_macs.keys()?),
        }
        Ok(())
    }
}

fn collected<T, C: FromIterator<T>>(entries: impl IntoIterator<Item = T>) -> Arc<C> {
    Arc::new(entries.into_iter().collect())
}

impl SharedMaps {
    fn open(open: Open<'_>) -> Result<Self, LoadError> {
        Ok(Self {
            pins: [open(map::PINS)?, open(map::PINS_YOUNG)?],
            clients: open(map::CLIENTS)?,
            datagrams: open(map::FRAGMENTS)?,
            answers: open(map::ANSWERS)?,
            paths: open(map::PATHS)?,
        })
    }

    /// Returns handles of a thread's own.
    fn of_thread(&self) -> Result<MapsOfThread, TableError> {
        let [kept, young] = &self.pins;
        Ok(MapsOfThread {
            pins: [again(kept, map::PINS)?, again(young, map::PINS_YOUNG)?],
            clients: again(&self.clients, map::CLIENTS)?,
            datagrams: again(&self.datagrams, map::FRAGMENTS)?,
            answers: again(&self.answers, map::ANSWERS)?,
            paths: again(&self.paths, map::PATHS)?,
        })
    }
}

fn again<K: aya::Pod, V: aya::Pod>(
    map: &MapData,
    name: &'static str,
) -> Result<RefCell<SyscallMap<K, V>>, TableError> {
    let map = another_handle(map).map_err(TableError::read(name))?;
    SyscallMap::of(map, name).map(RefCell::new)
}

impl EdgeTables {
    /// Opens the maps, each by the handle that `open` returns, and takes the first snapshot.
    ///
    /// # Errors
    ///
    /// Fails if a map is missing, has another layout, or cannot be read or mapped into memory.
    pub fn open(
        open: impl Fn(&'static str) -> Result<MapData, LoadError>,
    ) -> Result<Self, TableError> {
        let sources = Sources::open(&open)?;
        let first = Snapshot {
            generation: 0,
            config: sources.config.read(&0)?,
            hashes: sources.read()?,
        };
        Ok(Self {
            arrays: Arc::new(Arrays::open(&open)?),
            shared: SharedMaps::open(&open)?,
            snapshots: Arc::new(Snapshots::new(first)),
            cpus: cpus::possible().map_err(LoadError::Cpus)?,
            sources,
        })
    }

    /// Returns the tables for one more thread, which counts in the region of this CPU.
    ///
    /// # Errors
    ///
    /// Fails if the process has no file descriptor left.
    pub fn world(&self, cpu: u32) -> Result<EdgeWorld, TableError> {
        EdgeWorld::new(self, cpu % self.cpus)
    }

    /// Has threads see the present settings and hashes from their next batch on.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read. The threads then go on with the contents that they know.
    pub fn refresh(&self) -> Result<(), TableError> {
        let hashes = self.sources.read()?;
        self.snapshots
            .publish(self.sources.config.read(&0)?, hashes);
        Ok(())
    }

    /// Has threads see the present contents of some hashes from their next batch on.
    fn show(&self, changed: &BTreeSet<Hash>) -> Result<(), TableError> {
        let newest = self.snapshots.newest();
        let mut hashes = newest.hashes.clone();
        for hash in changed {
            self.sources.read_again(&mut hashes, *hash)?;
        }
        self.snapshots.publish(newest.config, hashes);
        Ok(())
    }

    /// Has threads see other settings from their next batch on.
    fn set_config(&self, config: Config) {
        let hashes = self.snapshots.newest().hashes.clone();
        self.snapshots.publish(config, hashes);
    }

    /// Waits until no thread is at work on a batch that it began with an older snapshot than the newest.
    fn wait(&self) {
        self.snapshots.wait();
    }
}

impl Tables {
    /// Has these threads see every change from now on, and waits for them before ids are used again.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read.
    pub fn serve_edge(&mut self, edge: Arc<EdgeTables>) -> Result<(), TableError> {
        edge.refresh()?;
        self.edge = Some(edge);
        self.unseen.clear();
        Ok(())
    }

    /// Opens the tables for the threads of a whole edge.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be opened, read or mapped into memory.
    pub fn edge_tables(loaded: &Loaded) -> Result<EdgeTables, TableError> {
        EdgeTables::open(|name| loaded.map(name))
    }

    /// Has the threads of a whole edge see the hashes whose changes they have not seen, because a map could not be read.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read. The threads go on with the contents that they know, and no id is used again until
    /// they have seen all.
    pub fn show_unseen(&mut self) -> Result<(), TableError> {
        if let Some(edge) = &self.edge
            && !self.unseen.is_empty()
        {
            edge.show(&self.unseen)?;
            self.unseen.clear();
        }
        Ok(())
    }

    /// Has the threads of a whole edge see a change of a hash, or leaves it to [`Self::show_unseen`].
    pub(super) fn show_hash(&mut self, hash: Hash) {
        if self.edge.is_some() {
            self.unseen.insert(hash);
            // The change is in force for everybody who asks the kernel, so whoever made it need not undo it.
            let _ = self.show_unseen();
        }
    }

    /// Tells the threads of a whole edge of other settings.
    pub(super) fn show_config(&self, config: Config) {
        if let Some(edge) = &self.edge {
            edge.set_config(config);
        }
    }

    /// Waits until no packet in flight can hold what is out of use.
    pub(super) fn wait_for_packets(&self) {
        super::grace::wait();
        if let Some(edge) = &self.edge {
            edge.wait();
        }
    }
}
