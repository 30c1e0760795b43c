//! Limits the connections of a listener, and decides which of them is closed when there are too many.
//!
//! Every connection is accepted at once: if silent peers could keep a liveness probe waiting, the agent would
//! be ended.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Most simultaneous connections.
const MAX_CONNECTIONS: usize = 32;
/// Longest duration of a connection: far more than a scrape needs, but short for a slow peer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time that a peer may take to send its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest duration of a probe's connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Each connection takes a place in all of these. Some are shared with other listeners.
    pub(super) places: Vec<Places>,
    /// Each connection counts for its source in all of these.
    pub(super) sources: Vec<Sources>,
    /// How long a peer may take to send its request.
    pub(super) header_timeout: Duration,
    /// How long a connection may last.
    pub(super) timeout: Duration,
}

impl Limits {
    /// Returns the limits of a listener for scrapes and probes.
    pub(super) fn of_pages() -> Self {
        Self {
            places: vec![Places::new(MAX_CONNECTIONS)],
            sources: Vec::new(),
            header_timeout: HEADER_TIMEOUT,
            timeout: CONNECTION_TIMEOUT,
        }
    }

    /// Returns the limits of a listener for probes only, which ask one short question each.
    pub(crate) fn of_probes(places: Vec<Places>, sources: Vec<Sources>) -> Self {
        Self {
            places,
            sources,
            header_timeout: HEADER_TIMEOUT,
            timeout: PROBE_TIMEOUT,
        }
    }
}

/// Limits simultaneous connections. One more closes the oldest that has not sent its request, or the oldest of
/// all if every one has.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

/// The connections that have a place, numbered in the order of arrival.
#[derive(Debug, Default)]
struct Taken {
    next: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    has_asked: bool,
    /// Tells its task to end.
    close: Arc<Notify>,
}

/// A connection's place. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    number: u64,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::default(),
        }
    }

    /// Takes a place. `close` is notified when another connection takes it over.
    pub(super) fn take(&self, close: &Arc<Notify>) -> Place {
        let mut taken = self.taken.lock();
        if taken.connections.len() >= self.most {
            let silent = taken.connections.iter();
            let mut silent = silent.filter(|(_, connection)| !connection.has_asked);
            let oldest = silent.next().or(taken.connections.first_key_value());
            if let Some(number) = oldest.map(|(number, _)| *number)
                && let Some(connection) = taken.connections.remove(&number)
            {
                connection.close.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let connection = Connection {
            has_asked: false,
            close: Arc::clone(close),
        };
        taken.connections.insert(number, connection);
        Place {
            places: self.clone(),
            number,
        }
    }
}

impl Place {
    /// Records that the connection has sent its request.
    pub(super) fn note_question(&self) {
        if let Some(connection) = self.places.taken.lock().connections.get_mut(&self.number) {
            connection.has_asked = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().connections.remove(&self.number);
    }
}

/// Limits the connections of each source, so that no source takes all places. Connections above the limit are closed.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    most: usize,
    /// Number of connections of each source that has any.
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection that counts for its source until this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    sources: Sources,
    source: IpAddr,
}

impl Sources {
    /// Allows each source `most` connections.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// Counts a connection; `None` if its source has reached the limit.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<Admitted> {
        let source = source(peer);
        let mut open = self.open.lock();
        let count = open.entry(source).or_default();
        if *count == self.most {
            return None;
        }
        *count += 1;
        Some(Admitted {
            sources: self.clone(),
            source,
        })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.sources.open.lock();
        if let Entry::Occupied(mut count) = open.entry(self.source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Returns the source that an address counts for: an IPv4 address, or the /64 of an IPv6 address, which one host has.
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells whether a connection was asked to end.
    fn is_closed(close: &Notify) -> bool {
        use std::pin::pin;
        use std::task::{Context, Waker};
        let closed = pin!(close.notified());
        closed
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    fn connections<const N: usize>() -> [Arc<Notify>; N] {
        std::array::from_fn(|_| Arc::default())
    }

    #[test]
    fn one_more_closes_the_oldest_that_has_not_asked() {
        let places = Places::new(3);
        let all = connections::<5>();
        let held: Vec<Place> = all[..3].iter().map(|close| places.take(close)).collect();
        held[0].note_question();
        let _fourth = places.take(&all[3]);
        assert_eq!(
            all.each_ref().map(|close| is_closed(close)),
            [false, true, false, false, false]
        );
        // The closed one has no place to give back.
        drop(held);
        let _fifth = places.take(&all[4]);
        assert!(!all.iter().any(|close| is_closed(close)));
    }

    #[test]
    fn where_all_have_asked_the_oldest_gives_way() {
        let places = Places::new(2);
        let all = connections::<3>();
        let _held = all.each_ref().map(|close| {
            let place = places.take(close);
            place.note_question();
            place
        });
        assert_eq!(
            all.each_ref().map(|close| is_closed(close)),
            [true, false, false]
        );
    }

    #[test]
    fn source_is_an_ipv4_address_or_a_network_of_ipv6() {
        for (peer, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
        ] {
            assert_eq!(source(peer.parse().unwrap()).to_string(), expected);
        }
    }
}
