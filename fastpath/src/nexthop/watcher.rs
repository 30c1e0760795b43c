//! Waits until something changes that a next hop may depend on.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, recv, sockopt};

use super::NetlinkError;
use super::neighbour::{self, Key, Neighbour};
use crate::netlink::connection::{RequestError, open};
use crate::netlink::{Message, messages};

/// The netlink groups that report changes; group `n` is bit `n - 1`.
const GROUPS: u32 = group(libc::RTNLGRP_LINK)
    | group(libc::RTNLGRP_NEIGH)
    | group(libc::RTNLGRP_IPV4_IFADDR)
    | group(libc::RTNLGRP_IPV4_ROUTE)
    | group(libc::RTNLGRP_IPV4_RULE)
    | group(libc::RTNLGRP_IPV6_IFADDR)
    | group(libc::RTNLGRP_IPV6_ROUTE)
    | group(libc::RTNLGRP_IPV6_RULE)
    | group(libc::RTNLGRP_NEXTHOP);

const fn group(number: u32) -> u32 {
    1 << (number - 1)
}

/// The shortest time between two reports. The first change is reported at once; a storm of changes, such as a BGP
/// session that comes up, costs ten refreshes a second.
const SPACING: Duration = Duration::from_millis(100);

/// Room for about a thousand messages, because the kernel reports neighbours together that fail together. More would
/// be a waste: a reader that is late has to read everything again anyway.
const SOCKET_BUFFER_LENGTH: usize = 1 << 20;

/// Messages are cut to this length. Neighbours are far shorter, and of other messages only the type is read.
const BUFFER_LENGTH: usize = 8 << 10;

/// The reason why [`Watcher::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something changed, or changes were lost: refresh.
    Changed,
    /// A [`Waker`] was used.
    Woken,
    /// The timeout passed.
    TimedOut,
}

/// Ends a [`Watcher::wait`] from another thread: to stop it, or because the targets changed.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the wait, or the next one if none is under way.
    pub fn wake(&self) {
        // The only error to expect is a full counter, which means that the wait is ending anyway.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// A subscription to changes of links, neighbours, addresses, routes, rules and next-hop objects.
#[derive(Debug)]
pub struct Watcher {
    socket: OwnedFd,
    waker: Waker,
    buffer: Vec<u8>,
    /// The last report of each neighbour. By far the most frequent message confirms a neighbour once more; it is
    /// ignored because it changes nothing.
    heard: HashMap<Key, Neighbour>,
    changed: bool,
    quiet_until: Option<Instant>,
    overruns: u64,
}

impl Watcher {
    /// Subscribes in the calling thread's network namespace; do so before the first refresh.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be opened.
    pub fn new() -> Result<Self, NetlinkError> {
        let failed = |error| NetlinkError::Open(RequestError::Socket(error));
        let socket = open(None, GROUPS, SocketFlags::NONBLOCK).map_err(failed)?;
        // A buffer beyond the system's limit needs CAP_NET_ADMIN. A smaller one overruns sooner, and `drain` handles
        // an overrun.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_LENGTH);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        Ok(Self {
            socket,
            waker: Waker(Arc::new(wake)),
            buffer: vec![0; BUFFER_LENGTH],
            heard: HashMap::new(),
            changed: false,
            quiet_until: None,
            overruns: 0,
        })
    }

    /// Returns a handle that ends a wait.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns how often the kernel dropped messages because they were not read in time.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Waits for a change, a wake-up or the timeout.
    ///
    /// A timeout of some ten seconds is a good safety net, because no message reports that a path MTU was learnt or
    /// forgotten.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails. Lost messages are no failure; they count as a change.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Wake, NetlinkError> {
        self.try_wait(timeout)
            .map_err(|error| NetlinkError::Watch(error.into()))
    }

    fn try_wait(&mut self, timeout: Option<Duration>) -> rustix::io::Result<Wake> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            self.drain()?;
            if self.take_wake_up()? {
                return Ok(Wake::Woken);
            }
            let now = Instant::now();
            let quiet_until = self.quiet_until.filter(|end| self.changed && *end > now);
            if self.changed && quiet_until.is_none() {
                self.changed = false;
                self.quiet_until = Some(now + SPACING);
                return Ok(Wake::Changed);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(Wake::TimedOut);
            }
            let until = [deadline, quiet_until].into_iter().flatten().min();
            self.sleep(until.map(|until| until - now))?;
        }
    }

    /// Sleeps until there is a message or a wake-up, or the time has passed.
    fn sleep(&self, time: Option<Duration>) -> rustix::io::Result<()> {
        let mut fds = [
            PollFd::new(&*self.waker.0, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN),
        ];
        // A timeout too long for the kernel is as good as none.
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn take_wake_up(&self) -> rustix::io::Result<bool> {
        let mut count = [0; 8];
        match rustix::io::read(&*self.waker.0, &mut count) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads all messages that are there.
    fn drain(&mut self) -> rustix::io::Result<()> {
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => {
                    let datagram = self.buffer.get(..length).unwrap_or_default();
                    self.changed |= note(&mut self.heard, datagram);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::NOBUFS) => {
                    self.overruns += 1;
                    self.heard.clear();
                    self.changed = true;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Notes the messages of a datagram; returns whether it reports a change.
pub(super) fn note(heard: &mut HashMap<Key, Neighbour>, datagram: &[u8]) -> bool {
    let mut understood = false;
    let mut changed = false;
    for message in messages(datagram) {
        understood = true;
        changed |= is_change(heard, &message);
    }
    // A datagram that was cut or cannot be read may have reported any change.
    changed || !understood
}

fn is_change(heard: &mut HashMap<Key, Neighbour>, message: &Message<'_>) -> bool {
    match message.kind {
        libc::RTM_NEWNEIGH => match neighbour::decode(message) {
            Some((key, neighbour)) => {
                // A neighbour that does not answer fails again and again.
                let neighbour = Neighbour {
                    failed: false,
                    ..neighbour
                };
                heard.insert(key, neighbour) != Some(neighbour)
            }
            // A bridge's forwarding entry.
            None => false,
        },
        libc::RTM_DELNEIGH => match neighbour::decode(message) {
            Some((key, _)) => {
                heard.remove(&key);
                true
            }
            None => false,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::neighbour::written;
    use super::*;
    use crate::netlink::Request;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn is_noted(heard: &mut HashMap<Key, Neighbour>, kind: u16, state: u16, mac: [u8; 6]) -> bool {
        note(heard, &written(kind, state, mac).into_bytes(0))
    }

    #[test]
    fn a_neighbour_that_is_only_confirmed_has_not_changed() {
        let mut heard = HashMap::new();
        let mut new = |state, mac| is_noted(&mut heard, libc::RTM_NEWNEIGH, state, mac);
        assert!(new(libc::NUD_REACHABLE, MAC), "not heard of before");
        assert!(!new(libc::NUD_STALE, MAC));
        assert!(!new(libc::NUD_PROBE, MAC));
        assert!(!new(libc::NUD_REACHABLE, MAC));
        assert!(new(libc::NUD_REACHABLE, OTHER_MAC));
        assert!(new(libc::NUD_FAILED, OTHER_MAC));
        assert!(!new(libc::NUD_INCOMPLETE, OTHER_MAC));
        assert!(new(libc::NUD_REACHABLE, OTHER_MAC));
    }

    #[test]
    fn a_neighbour_that_went_and_came_back_has_changed() {
        let mut heard = HashMap::new();
        let reachable = libc::NUD_REACHABLE;
        assert!(is_noted(&mut heard, libc::RTM_NEWNEIGH, reachable, MAC));
        assert!(is_noted(&mut heard, libc::RTM_DELNEIGH, reachable, MAC));
        assert!(is_noted(&mut heard, libc::RTM_NEWNEIGH, reachable, MAC));
    }

    #[test]
    fn every_message_about_a_route_is_a_change() {
        let mut heard = HashMap::new();
        let bytes = Request::new(libc::RTM_DELROUTE, 0, &[0u8; 12]).into_bytes(0);
        assert!(note(&mut heard, &bytes));
    }

    #[test]
    fn a_datagram_that_was_cut_counts_as_a_change() {
        let mut heard = HashMap::new();
        let bytes = written(libc::RTM_NEWNEIGH, libc::NUD_REACHABLE, MAC).into_bytes(0);
        assert!(note(&mut heard, &bytes));
        assert!(!note(&mut heard, &bytes));
        assert!(note(&mut heard, &bytes[..bytes.len() - 1]));
        assert!(note(&mut heard, &[]));
    }
}
