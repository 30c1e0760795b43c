//! Where the programs find the socket of a queue: at a place in `XSKS`, which `PUNT_QUEUES` names for the queue.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use aya::{
    Pod,
    maps::{HashMap, Map, MapData, MapError, XskMap},
};
use xdp_prog::{abi::map, punt::queue_key};

use super::queues::{Queue, QueueError};
use crate::load::{LoadError, Loaded};

/// The kernel refuses the use of a map.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the map {map}")]
pub struct MapFailure {
    map: &'static str,
    #[source]
    source: MapError,
}

impl MapFailure {
    fn of(map: &'static str) -> impl Fn(MapError) -> Self {
        move |source| Self { map, source }
    }
}

impl From<MapFailure> for QueueError {
    fn from(failure: MapFailure) -> Self {
        Self::Map(failure.source)
    }
}

/// The sockets of all queues.
pub(crate) struct Sockets {
    by_place: XskMap<MapData>,
    places: HashMap<MapData, u64, u32>,
}

impl Sockets {
    /// Opens the maps, and forgets the queues of an agent that did not end by itself. Its sockets are gone.
    pub(crate) fn open<E: From<LoadError> + From<MapFailure>>(loaded: &Loaded) -> Result<Self, E> {
        let by_place = XskMap::try_from(Map::XskMap(loaded.map(map::XSKS)?));
        let by_place = by_place.map_err(MapFailure::of(map::XSKS))?;
        let mut places: HashMap<_, u64, u32> = hash::<_, _, E>(loaded, map::PUNT_QUEUES)?;
        let former: Vec<u64> = places.keys().filter_map(Result::ok).collect();
        for key in former {
            let _ = places.remove(&key);
        }
        Ok(Self { by_place, places })
    }

    /// Returns a place that is not among those in use.
    pub(crate) fn free_place(
        &self,
        used: impl Iterator<Item = u32> + Clone,
    ) -> Result<u32, QueueError> {
        let mut places = 0..self.by_place.len();
        let free = places.find(|place| !used.clone().any(|one| one == *place));
        free.ok_or(QueueError::TooMany)
    }

    /// Puts a socket at a place. No frame comes by it yet.
    pub(crate) fn put(&mut self, place: u32, socket: BorrowedFd<'_>) -> Result<(), MapFailure> {
        let put = self.by_place.set(place, socket.as_raw_fd(), 0);
        put.map_err(MapFailure::of(map::XSKS))
    }

    /// Has the frames of a queue come by the socket at a place.
    pub(crate) fn direct(&mut self, queue: &Queue, place: u32) -> Result<(), MapFailure> {
        let directed = self.places.insert(key(queue), place, 0);
        directed.map_err(MapFailure::of(map::PUNT_QUEUES))
    }

    /// Stops new frames of a queue, and frees the place of its socket.
    pub(crate) fn remove(&mut self, queue: &Queue, place: u32) {
        let _ = self.places.remove(&key(queue));
        let _ = self.by_place.unset(place);
    }
}

fn key(queue: &Queue) -> u64 {
    queue_key(queue.device, queue.queue)
}

/// Opens a hash, of either kind: the system calls are the same.
pub(super) fn hash<K: Pod, V: Pod, E: From<LoadError> + From<MapFailure>>(
    loaded: &Loaded,
    name: &'static str,
) -> Result<HashMap<MapData, K, V>, E> {
    let map = HashMap::try_from(Map::HashMap(loaded.map(name)?));
    Ok(map.map_err(MapFailure::of(name))?)
}
