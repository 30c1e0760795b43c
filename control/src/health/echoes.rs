//! Echoes to nodes that answer. All nodes of a family share one socket, which stays open.
//!
//! Opening a socket costs more than an echo does. But an unconnected socket gets no ICMP errors about lost
//! packets. So the shared socket checks nodes that are well, and [`super::echo`] finds out why a node fails: it
//! sends the next echo to a node that missed its last one, while there are few of these, and to a node to which
//! this socket cannot send.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::time::Instant;

use fastpath::echo::{Echo, hear_only};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::task::yield_now;

use super::echo::raw_socket;
use super::probe::ProbeError;
use super::schedule::{BegunCheck, EndedCheck};
use super::targets::NodeCheck;
use crate::random::random;
use crate::timer::sleep_until;

/// Size of a socket's buffers in bytes, in each direction. That is hundreds of packets, because a driver may
/// take a page for each.
const SOCKET_BUFFER: usize = 1 << 20;
/// Most packets taken from a socket at a time; more than its buffer holds. A node that floods the socket cannot
/// block other work.
const AT_ONCE: usize = 4096;

/// Echoes that wait for their replies, and the two sockets.
#[derive(Debug)]
pub(super) struct Echoes {
    v4: EchoSocket,
    v6: EchoSocket,
    pending: PendingEchoes,
}

type Begun = BegunCheck<IpAddr, NodeCheck>;
type Ended = EndedCheck<IpAddr, NodeCheck>;

impl Echoes {
    pub(super) fn new() -> Self {
        // Random, so that only those who have seen an echo can forge a reply.
        let upper = (random() >> 32) as u32;
        Self {
            v4: EchoSocket::new(false, upper),
            v6: EchoSocket::new(true, upper),
            pending: PendingEchoes::default(),
        }
    }

    /// Sends an echo. Returns false if it cannot be sent from this machine.
    pub(super) fn send(&mut self, begun: &Begun) -> bool {
        let node = begun.key;
        let socket = if node.is_ipv6() {
            &mut self.v6
        } else {
            &mut self.v4
        };
        let nonce = self.pending.draw(socket.upper, random);
        match socket.send(node, begun.check.mark, nonce) {
            Ok(()) => {
                self.pending.add(nonce, begun.clone());
                true
            }
            Err(error) => {
                tracing::trace!(%node, %error, "echo is left to a socket of its own");
                false
            }
        }
    }

    /// Waits until echoes are answered or have timed out.
    pub(super) async fn ended(&mut self) -> Vec<Ended> {
        loop {
            tokio::select! {
                () = self.v4.is_readable() => {}
                () = self.v6.is_readable() => {}
                () = sleep_until(self.pending.deadline()) => {}
            }
            let mut ended = Vec::new();
            for socket in [&mut self.v4, &mut self.v6] {
                for (from, nonce) in socket.receive() {
                    ended.extend(self.pending.answer(from, nonce));
                }
            }
            ended.extend(self.pending.expire(Instant::now()));
            if !ended.is_empty() {
                return ended;
            }
            yield_now().await;
        }
    }
}

/// The socket for all nodes of a family.
#[derive(Debug)]
struct EchoSocket {
    is_v6: bool,
    /// Upper half of all nonces. A socket filter in the kernel drops ICMP packets without it.
    upper: u32,
    /// Opened by the first echo.
    socket: Option<tokio::net::UdpSocket>,
}

impl EchoSocket {
    fn new(is_v6: bool, upper: u32) -> Self {
        Self {
            is_v6,
            upper,
            socket: None,
        }
    }

    fn send(&mut self, node: IpAddr, mark: u32, nonce: u64) -> io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.open()?,
        };
        let socket = self.socket.insert(socket);
        let echo = Echo {
            is_v6: self.is_v6,
            nonce,
        };
        echo.send(socket, node, mark)
    }

    fn open(&self) -> io::Result<tokio::net::UdpSocket> {
        let socket = raw_socket(self.is_v6)?;
        hear_only(&socket, self.is_v6, self.upper)?;
        setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER)?;
        setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER)?;
        // A `UdpSocket` only by type: its calls work on every packet socket.
        tokio::net::UdpSocket::from_std(UdpSocket::from(socket))
    }

    /// Waits until the socket may have something to receive.
    async fn is_readable(&self) {
        match &self.socket {
            // Receiving reports any error.
            Some(socket) => {
                let _ = socket.readable().await;
            }
            None => pending().await,
        }
    }

    /// Receives the replies that have arrived. Returns the sender and nonce of each.
    fn receive(&mut self) -> Vec<(IpAddr, u64)> {
        let mut replies = Vec::new();
        let Some(socket) = &self.socket else {
            return replies;
        };
        let mut received = [0; 256];
        for _ in 0..AT_ONCE {
            match socket.try_recv_from(&mut received) {
                Ok((length, from)) => {
                    let echo = Echo::of_reply(self.is_v6, &received[..length]);
                    replies.extend(echo.map(|echo| (from.ip(), echo.nonce)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    tracing::debug!(%error, "the socket for echoes is opened again");
                    self.socket = None;
                    break;
                }
            }
        }
        replies
    }
}

/// Echoes that wait for their replies, by nonce.
#[derive(Debug, Default)]
struct PendingEchoes {
    waiting: HashMap<u64, Begun>,
    /// Nonces in the order of sending; some may have been answered.
    sent: VecDeque<(Instant, u64)>,
}

impl PendingEchoes {
    /// Draws a nonce that no waiting echo has. With equal nonces one of the two would never end.
    fn draw(&self, upper: u32, mut random: impl FnMut() -> u64) -> u64 {
        loop {
            let nonce = u64::from(upper) << 32 | random() >> 32;
            if !self.waiting.contains_key(&nonce) {
                return nonce;
            }
        }
    }

    /// Adds an echo with its nonce. Echoes must be added in the order of their start times.
    fn add(&mut self, nonce: u64, begun: Begun) {
        self.sent.push_back((begun.began, nonce));
        self.waiting.insert(nonce, begun);
    }

    /// Ends the echo with this nonce. Returns `None` if there is none, or if the reply comes from another machine.
    fn answer(&mut self, from: IpAddr, nonce: u64) -> Option<Ended> {
        let begun = self.waiting.get(&nonce)?;
        (begun.key == from).then(|| self.end(nonce, Ok(())))?
    }

    /// Ends the echoes that have timed out.
    fn expire(&mut self, now: Instant) -> Vec<Ended> {
        let mut ended = Vec::new();
        while self.deadline().is_some_and(|deadline| deadline <= now)
            && let Some((_, nonce)) = self.sent.pop_front()
        {
            let outcome = Err(ProbeError::Timeout(NodeCheck::TIMEOUT));
            ended.extend(self.end(nonce, outcome));
        }
        ended
    }

    fn end(&mut self, nonce: u64, outcome: Result<(), ProbeError>) -> Option<Ended> {
        let begun = self.waiting.remove(&nonce)?;
        let outcome = Some(outcome.map_err(|error| error.to_string()));
        Some(Ended { begun, outcome })
    }

    /// Returns when the first echo will time out.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((sent, nonce)) = self.sent.front() {
            if self.waiting.contains_key(nonce) {
                return Some(*sent + NodeCheck::TIMEOUT);
            }
            self.sent.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NODE: [u8; 4] = [10, 0, 0, 1];

    #[test]
    fn reply_ends_its_own_echo_alone_and_only_once() {
        let now = Instant::now();
        let mut pending = PendingEchoes::default();
        pending.add(7, start(NODE, 1, now));
        pending.add(8, start([10, 0, 0, 2], 2, now));
        let ended = pending.answer(NODE.into(), 7).unwrap();
        assert_eq!((ended.begun.ticket, ended.begun.began), (1, now));
        assert_eq!(ended.outcome, Some(Ok(())));
        assert!(pending.answer(NODE.into(), 7).is_none());
        assert_eq!(pending.waiting.len(), 1);
    }

    #[test]
    fn echoes_under_way_have_nonces_of_their_own() {
        let mut pending = PendingEchoes::default();
        pending.add(1 << 32 | 7, start(NODE, 1, Instant::now()));
        let mut numbers = [7, 7, 8].map(|lower: u64| lower << 32).into_iter();
        let nonce = pending.draw(1, || numbers.next().unwrap());
        assert_eq!(nonce, 1 << 32 | 8);
    }

    #[test]
    fn reply_from_another_machine_or_to_no_echo_under_way_counts_for_nothing() {
        let now = Instant::now();
        let mut pending = PendingEchoes::default();
        pending.add(7, start(NODE, 1, now));
        assert!(pending.answer([10, 0, 0, 2].into(), 7).is_none());
        assert!(pending.answer(NODE.into(), 8).is_none());
        assert!(pending.answer(NODE.into(), 7).is_some());
    }

    #[test]
    fn echo_that_is_not_answered_in_time_is_missed_and_a_late_reply_ignored() {
        let now = Instant::now();
        let later = now + Duration::from_millis(10);
        let mut pending = PendingEchoes::default();
        pending.add(7, start(NODE, 1, now));
        pending.add(8, start([10, 0, 0, 2], 2, later));
        assert_eq!(pending.deadline(), Some(now + NodeCheck::TIMEOUT));
        assert!(pending.expire(later).is_empty());

        let ended = pending.expire(now + NodeCheck::TIMEOUT);
        let tickets: Vec<u64> = ended.iter().map(|one| one.begun.ticket).collect();
        assert_eq!(tickets, [1]);
        let reason = ended[0].outcome.clone().unwrap().unwrap_err();
        assert_eq!(reason, "timeout 800 ms");
        assert!(pending.answer(NODE.into(), 7).is_none());
        assert_eq!(pending.deadline(), Some(later + NodeCheck::TIMEOUT));
    }

    #[test]
    fn answered_echoes_have_no_deadline() {
        let now = Instant::now();
        let mut pending = PendingEchoes::default();
        for nonce in 0..3 {
            pending.add(nonce, start(NODE, nonce, now));
        }
        for nonce in [1, 0, 2] {
            assert!(pending.answer(NODE.into(), nonce).is_some());
        }
        assert_eq!(pending.deadline(), None);
        assert!(pending.sent.is_empty());
    }

    fn start(node: [u8; 4], ticket: u64, now: Instant) -> Begun {
        Begun {
            key: node.into(),
            check: NodeCheck { mark: 0 },
            may_be_starting: false,
            has_just_passed: true,
            ticket,
            began: now,
        }
    }
}
