//! Requests through sockets, by UDP or TCP: a thread that sends and a thread that receives.
//!
//! The loop is open: requests go out when they are due, whatever became of earlier ones. A sender that was held
//! up sends what is due at once. Times are read in user space, so a round trip includes the wake-up of the
//! receiving thread.

mod exchange;
mod stamps;

use std::{
    io,
    net::{SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use anyhow::Result;
use rustix::{
    event::Timespec,
    thread::clock_nanosleep_absolute,
    time::{ClockId, clock_gettime},
};
use socket2::{Domain, Socket, Type};

use self::exchange::{Answer, Exchanged, Log};
pub use self::stamps::ask_for as ask_for_stamps;
use super::{Arrivals, Asked, Sent, Trial, due_times, message::Form};
use crate::{
    datapath::Protocol,
    probe::{Arrival, Key, Ledger, PROBE_LENGTH},
    scenario::{Exchange, Load, Stamps},
};

/// How long answers are awaited at most after the last request.
const GRACE: Duration = Duration::from_millis(300);
/// How long before the first request the schedule begins: the threads are up by then.
pub const RUN_UP: Duration = Duration::from_millis(20);
/// Time of a trial besides its schedule.
pub const OVERHEAD: Duration = RUN_UP.saturating_add(GRACE);

/// A flow: how it sends, and the backend that must answer.
#[derive(Debug)]
pub struct Flow {
    /// How it sends.
    pub way: Way,
    /// Number of the backend; `None` if any may answer.
    pub backend: Option<u16>,
}

/// How a flow sends.
#[derive(Debug)]
pub enum Way {
    /// By a socket that is connected and does not block.
    Udp(UdpSocket),
    /// By a connection that is open and does not block.
    Tcp(TcpStream),
    /// By a connection for each request: from the first address to the second.
    Connections([SocketAddr; 2]),
}

/// Returns a bound TCP socket, whose connection is reset in the end: no port of the client has to wait.
///
/// # Errors
///
/// When the kernel refuses it.
pub fn client_socket(kind: Type, from: SocketAddr, to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), kind, None)?;
    socket.set_reuse_address(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&from.into())?;
    Ok(socket)
}

/// The far end of all flows.
#[derive(Debug)]
pub struct Backends {
    /// The key that they answer with.
    pub marks: Key,
    /// How many there are.
    pub number: usize,
    /// What they have read.
    pub arrivals: Arrivals,
}

/// The requests of a trial.
#[derive(Clone, Debug)]
pub struct Requests {
    /// How long requests are sent, in seconds.
    pub seconds: f64,
    /// When they are due, in nanoseconds from the begin of the trial.
    pub due: Vec<u64>,
    /// Their flows.
    pub flows: Vec<u32>,
    /// Lengths of their messages, which take turns.
    pub messages: Vec<usize>,
    /// When a request is over.
    pub exchange: Exchange,
    /// Who stamps datagrams. The sockets of the flows have been asked for it.
    pub stamps: Stamps,
}

impl Requests {
    /// Returns the requests of a trial of a load.
    pub fn of(load: &Load, asked: Asked) -> Self {
        let Asked { seconds, seed, .. } = asked;
        let due = due_times(load, asked);
        let prefix = match load.protocol {
            Protocol::Udp => 0,
            Protocol::Tcp => Form::of(load.exchange).overhead(),
        };
        let message = |size| load.payload(size).saturating_sub(prefix);
        Self {
            seconds,
            flows: load.flows_of(due.len(), seed),
            messages: load.sizes().into_iter().map(message).collect(),
            exchange: load.exchange,
            stamps: load.stamps,
            due,
        }
    }
}

/// The backend of each flow's latest answer.
pub type AnsweredBy = Vec<Option<u16>>;

/// Sends a probe for each request, and awaits the answers. Connections are made in the caller's network namespace.
///
/// # Errors
///
/// When the sockets cannot be waited for.
pub fn run(flows: &[Flow], asked: &Requests, backends: &Backends) -> Result<(Trial, AnsweredBy)> {
    let of_flows: Vec<Option<u16>> = flows.iter().map(|flow| flow.backend).collect();
    let mut ledger = Ledger::new(Key::random()?, backends.marks, &of_flows);
    let start = now_ns() + as_ns(RUN_UP);
    let requests = seal(&mut ledger, asked, start);
    backends.arrivals.take();

    let Exchanged {
        sent,
        answers,
        departures,
    } = exchange::run(flows, &requests, asked.exchange, asked.stamps)?;

    let under_way_ns = Some(under_way(&sent, &answers));
    // Requests that were not sent count as such, not as lost.
    let mut places = vec![None; requests.len()];
    let mut kept = Vec::with_capacity(sent.len());
    for (index, at) in sent {
        places[index] = Some(kept.len());
        kept.push(Sent {
            due: requests[index].due,
            sent: at,
            arrived: None,
            answered: None,
            stamps: [None; 2],
        });
    }
    let (mut shares, mut answered_by) = (vec![0; backends.number], vec![None; flows.len()]);
    for answer in answers {
        let Arrival::Received { index, backend } = ledger.arrive(&answer.bytes) else {
            continue;
        };
        if let Some(place) = places[index] {
            kept[place].answered = Some(answer.at);
            kept[place].stamps[1] = answer.stamp;
        }
        if let Some(share) = shares.get_mut(usize::from(backend)) {
            *share += 1;
        }
        answered_by[requests[index].flow] = Some(backend);
    }
    let place_of = |probe: &[u8; PROBE_LENGTH]| ledger.find(probe).and_then(|index| places[index]);
    for (probe, at) in backends.arrivals.take() {
        if let Some(place) = place_of(&probe) {
            kept[place].arrived.get_or_insert(at);
        }
    }
    for (probe, at) in departures {
        if let Some(place) = place_of(&probe) {
            kept[place].stamps[0] = Some(at);
        }
    }
    let unsent = |index: &usize| places[*index].is_none();
    let unsent: Vec<usize> = (0..requests.len()).filter(unsent).collect();
    let trial = Trial {
        start,
        seconds: asked.seconds,
        requests: kept,
        under_way_ns,
        tally: ledger.close(&unsent),
        shares,
        background: None,
        losses: Vec::new(),
    };
    Ok((trial, answered_by))
}

/// Returns for how long requests were under way, summed up, until the last was sent or answered: from when something was
/// sent and something came alone, whichever request it belongs to.
fn under_way(sent: &Log, answers: &[Answer]) -> u64 {
    let sent = || sent.iter().map(|(_, at)| *at);
    let answered = || answers.iter().map(|answer| answer.at);
    let end = sent().chain(answered()).max().unwrap_or(0);
    let left = |at: u64| u128::from(end - at);
    let (begun, ended) = (sent().map(left).sum::<u128>(), answered().map(left).sum());
    u64::try_from(begun.saturating_sub(ended)).unwrap_or(u64::MAX)
}

/// A probe that is ready to be sent.
struct Request {
    flow: usize,
    due: u64,
    /// Length of the message, which begins with the probe.
    length: usize,
    probe: [u8; PROBE_LENGTH],
}

fn seal(ledger: &mut Ledger, asked: &Requests, start: u64) -> Vec<Request> {
    let lengths = asked.messages.iter().cycle();
    let each = asked.due.iter().zip(&asked.flows).zip(lengths);
    let request = |((offset, &flow), &length): ((&u64, &u32), &usize)| {
        let due = start + offset;
        Request {
            flow: flow as usize,
            due,
            length: length.max(PROBE_LENGTH),
            probe: ledger.prepare(flow, due),
        }
    };
    each.map(request).collect()
}

fn sleep_until(ns: u64) {
    let until = Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    // A signal may end it early.
    while now_ns() < ns {
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
    }
}

/// Reads `CLOCK_MONOTONIC`, in nanoseconds.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    u64::try_from(ns).expect("this clock starts at 0")
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_under_way_from_when_they_are_sent_until_something_comes() {
        let answer = |at| Answer {
            at,
            stamp: None,
            bytes: Vec::new(),
        };
        let sent = vec![(0, 100), (1, 200), (2, 300)];
        let answers = |times: &[u64]| times.iter().map(|&at| answer(at)).collect::<Vec<_>>();
        // 50, 60 and 70, in whatever order they come.
        assert_eq!(under_way(&sent, &answers(&[370, 150, 260])), 180);
        // The second is not answered: it is under way until the end.
        assert_eq!(under_way(&sent, &answers(&[150, 370])), 50 + 170 + 70);
        // What comes twice is taken for the answer of another.
        assert_eq!(
            under_way(&sent, &answers(&[350, 360, 365, 370])),
            250 + 160 + 65
        );
        assert_eq!(under_way(&Log::new(), &[]), 0);
    }
}
