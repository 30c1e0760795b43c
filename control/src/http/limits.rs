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
    /// Each connection takes a permit of all of these. Some are shared with other listeners.
    pub(super) connection_limits: Vec<ConnectionLimit>,
    /// Each connection counts for its source in all of these.
    pub(super) source_limits: Vec<SourceLimit>,
    /// How long a peer may take to send its request.
    pub(super) header_timeout: Duration,
    /// How long a connection may last.
    pub(super) timeout: Duration,
}

impl Limits {
    /// Returns the limits of a listener for scrapes and probes.
    pub(super) fn of_pages() -> Self {
        Self {
            connection_limits: vec![ConnectionLimit::new(MAX_CONNECTIONS)],
            source_limits: Vec::new(),
            header_timeout: HEADER_TIMEOUT,
            timeout: CONNECTION_TIMEOUT,
        }
    }

    /// Returns the limits of a listener for probes only, which ask one short question each.
    pub(crate) fn of_probes(
        connection_limits: Vec<ConnectionLimit>,
        source_limits: Vec<SourceLimit>,
    ) -> Self {
        Self {
            connection_limits,
            source_limits,
            header_timeout: HEADER_TIMEOUT,
            timeout: PROBE_TIMEOUT,
        }
    }
}

/// Limits simultaneous connections. One more closes the oldest that has not sent its request, or the oldest of
/// all if every one has.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimit {
    most: usize,
    open: Arc<Mutex<OpenConnections>>,
}

/// The connections that have a permit, numbered in the order of arrival.
#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    has_asked: bool,
    /// Tells its task to end.
    close: Arc<Notify>,
}

/// A connection's permit. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: ConnectionLimit,
    number: u64,
}

impl ConnectionLimit {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// Takes a permit. `close` is notified when another connection takes it over.
    pub(crate) fn take(&self, close: &Arc<Notify>) -> ConnectionPermit {
        let mut open = self.open.lock();
        if open.connections.len() >= self.most {
            let silent = open.connections.iter();
            let mut silent = silent.filter(|(_, connection)| !connection.has_asked);
            let oldest = silent.next().or(open.connections.first_key_value());
            if let Some(number) = oldest.map(|(number, _)| *number)
                && let Some(connection) = open.connections.remove(&number)
            {
                connection.close.notify_one();
            }
        }
        let number = open.next;
        open.next += 1;
        let connection = Connection {
            has_asked: false,
            close: Arc::clone(close),
        };
        open.connections.insert(number, connection);
        ConnectionPermit {
            limit: self.clone(),
            number,
        }
    }
}

impl ConnectionPermit {
    /// Records that the connection has sent its request.
    pub(crate) fn note_question(&self) {
        if let Some(connection) = self.limit.open.lock().connections.get_mut(&self.number) {
            connection.has_asked = true;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.open.lock().connections.remove(&self.number);
    }
}

/// Limits the connections of each source, so that no source takes all permits. Connections above the limit are closed.
#[derive(Clone, Debug)]
pub(crate) struct SourceLimit {
    most: usize,
    /// Number of connections of each source that has any.
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection that counts for its source until this is dropped.
#[derive(Debug)]
pub(crate) struct SourcePermit {
    limit: SourceLimit,
    source: IpAddr,
}

impl SourceLimit {
    /// Allows each source `most` connections.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// Counts a connection; `None` if its source has reached the limit.
    pub(crate) fn admit(&self, peer: IpAddr) -> Option<SourcePermit> {
        let source = source(peer);
        let mut open = self.open.lock();
        let count = open.entry(source).or_default();
        if *count == self.most {
            return None;
        }
        *count += 1;
        Some(SourcePermit {
            limit: self.clone(),
            source,
        })
    }
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
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
        let limit = ConnectionLimit::new(3);
        let all = connections::<5>();
        let held: Vec<ConnectionPermit> = all[..3].iter().map(|close| limit.take(close)).collect();
        held[0].note_question();
        let _fourth = limit.take(&all[3]);
        assert_eq!(
            all.each_ref().map(|close| is_closed(close)),
            [false, true, false, false, false]
        );
        // The closed one has no permit to give back.
        drop(held);
        let _fifth = limit.take(&all[4]);
        assert!(!all.iter().any(|close| is_closed(close)));
    }

    #[test]
    fn where_all_have_asked_the_oldest_gives_way() {
        let limit = ConnectionLimit::new(2);
        let all = connections::<3>();
        let _held = all.each_ref().map(|close| {
            let permit = limit.take(close);
            permit.note_question();
            permit
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
