//! Requests through UDP sockets: one connected socket a flow, a thread that sends and a thread that receives.
//!
//! The loop is open: requests go out when they are due, whatever became of earlier ones. A sender that was held
//! up sends what is due at once. Times are read in user space, so a round trip includes the wake-up of the
//! receiving thread.

use std::{
    io,
    net::UdpSocket,
    num::NonZeroU64,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::{
    event::{Timespec, epoll},
    thread::{clock_nanosleep_absolute, set_current_timer_slack},
    time::{ClockId, clock_gettime},
};

use super::{Arrivals, Asked, Sent, Trial, due_times};
use crate::{
    probe::{Arrival, Key, Ledger, PROBE_LENGTH},
    scenario::Load,
};

/// How long answers are awaited after the last request.
const GRACE: Duration = Duration::from_millis(300);
/// How often the receiver looks whether it is to end.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// How long before the first request the schedule begins: the threads are up by then.
const RUN_UP: Duration = Duration::from_millis(20);
/// Time of a trial besides its schedule.
pub const OVERHEAD: Duration = RUN_UP.saturating_add(GRACE);
/// Longer than any frame that is sent.
const BUFFER: usize = 2048;
/// A flow: its socket, and the backend that must answer.
#[derive(Debug)]
pub struct Flow {
    /// Connected and non-blocking.
    pub socket: UdpSocket,
    /// Number of the backend.
    pub backend: u16,
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
    /// Lengths of their payloads, which take turns.
    pub payloads: Vec<usize>,
}

impl Requests {
    /// Returns the requests of a trial of a load.
    pub fn of(load: &Load, asked: Asked) -> Self {
        let Asked { seconds, seed, .. } = asked;
        let due = due_times(load, asked);
        let payloads = load.sizes().into_iter().map(|size| load.payload(size));
        Self {
            seconds,
            flows: load.flows_of(due.len(), seed),
            payloads: payloads.collect(),
            due,
        }
    }
}

/// The backend of each flow's latest answer.
pub type AnsweredBy = Vec<Option<u16>>;

/// An answer as it came.
struct Answer {
    at: u64,
    bytes: Vec<u8>,
}

/// Sends a probe for each request, and awaits the answers.
///
/// # Errors
///
/// When the sockets cannot be waited for.
pub fn run(flows: &[Flow], asked: &Requests, backends: &Backends) -> Result<(Trial, AnsweredBy)> {
    let of_flows: Vec<u16> = flows.iter().map(|flow| flow.backend).collect();
    let mut ledger = Ledger::new(Key::random()?, backends.marks, &of_flows);
    let start = now_ns() + as_ns(RUN_UP);
    let requests = seal(&mut ledger, asked, start);
    backends.arrivals.take();

    let (sent, answers) = exchange(flows, &requests)?;

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
        });
    }
    let (mut shares, mut answered_by) = (vec![0; backends.number], vec![None; flows.len()]);
    for answer in answers {
        let Arrival::Received { index, backend } = ledger.arrive(&answer.bytes) else {
            continue;
        };
        if let Some(place) = places[index] {
            kept[place].answered = Some(answer.at);
        }
        if let Some(share) = shares.get_mut(usize::from(backend)) {
            *share += 1;
        }
        answered_by[requests[index].flow] = Some(backend);
    }
    for (probe, at) in backends.arrivals.take() {
        let place = ledger.find(&probe).and_then(|index| places[index]);
        if let Some(place) = place {
            kept[place].arrived.get_or_insert(at);
        }
    }
    let unsent = |index: &usize| places[*index].is_none();
    let unsent: Vec<usize> = (0..requests.len()).filter(unsent).collect();
    let trial = Trial {
        start,
        seconds: asked.seconds,
        requests: kept,
        tally: ledger.close(&unsent),
        shares,
    };
    Ok((trial, answered_by))
}

/// A probe that is ready to be sent.
struct Request {
    flow: usize,
    due: u64,
    payload: usize,
    probe: [u8; PROBE_LENGTH],
}

fn seal(ledger: &mut Ledger, asked: &Requests, start: u64) -> Vec<Request> {
    let payloads = asked.payloads.iter().cycle();
    let each = asked.due.iter().zip(&asked.flows).zip(payloads);
    let request = |((offset, &flow), &payload): ((&u64, &u32), &usize)| {
        let due = start + offset;
        Request {
            flow: flow as usize,
            due,
            payload: payload.max(PROBE_LENGTH),
            probe: ledger.prepare(flow, due),
        }
    };
    each.map(request).collect()
}

type Log = Vec<(usize, u64)>;

/// Sends the requests while another thread receives. Returns when each was sent, and all that came.
fn exchange(flows: &[Flow], requests: &[Request]) -> Result<(Log, Vec<Answer>)> {
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll")?;
    for (number, flow) in (0..).zip(flows) {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&waiting, &flow.socket, data, epoll::EventFlags::IN)
            .context("waiting for a socket")?;
    }
    let done = AtomicBool::new(false);
    let most = requests.len() + requests.len() / 8 + 64;
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut answers = Vec::with_capacity(most);
            let mut events = Vec::with_capacity(flows.len());
            while !done.load(Ordering::Relaxed) {
                events.clear();
                let buffer = rustix::buffer::spare_capacity(&mut events);
                match epoll::wait(&waiting, buffer, Some(&POLL)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error).context("waiting for answers"),
                }
                for event in &events {
                    let flow = usize::try_from(event.data.u64()).unwrap_or(0);
                    receive_all(&flows[flow].socket, &mut answers);
                }
            }
            Ok(answers)
        });
        let sent = send_all(flows, requests);
        thread::sleep(GRACE);
        done.store(true, Ordering::Relaxed);
        let answers = receiver.join().expect("the receiver does not panic")?;
        Ok((sent, answers))
    })
}

fn receive_all(socket: &UdpSocket, answers: &mut Vec<Answer>) {
    let mut buffer = [0; BUFFER];
    // An error is "nothing more", or an ICMP message of a request that is then lost.
    while let Ok(length) = socket.recv(&mut buffer) {
        let at = now_ns();
        let bytes = buffer[..length].to_vec();
        answers.push(Answer { at, bytes });
    }
}

fn send_all(flows: &[Flow], requests: &[Request]) -> Log {
    // By default the kernel ends sleeps up to 50 microseconds late. Without the right to change that, the
    // lateness says so.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut buffer = [0; BUFFER];
    let mut sent = Log::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        sleep_until(request.due);
        let bytes = &mut buffer[..request.payload];
        bytes[..PROBE_LENGTH].copy_from_slice(&request.probe);
        let at = now_ns();
        // An ICMP error of an earlier request is told by the next call, which then has sent nothing.
        let socket = &flows[request.flow].socket;
        let again = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let first = socket.send(bytes);
        let outcome = if first.as_ref().is_err_and(again) {
            socket.send(bytes)
        } else {
            first
        };
        if outcome.is_ok() {
            sent.push((index, at));
        }
    }
    sent
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
