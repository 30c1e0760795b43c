//! A load balancer for tests: it forwards in user space, does harm by plan, and keeps a log of what it did.
//!
//! It runs before all other threads of its core. So the core that it stalls is also the sender's, as where a system and
//! its load share one.

use std::{
    collections::{BTreeMap, HashMap},
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use bench::{load::sockets::now_ns, probe::PROBE_LENGTH};
use lab::Machine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The port that clients send to.
pub(crate) const PORT: u16 = 9_000;
/// How long it may take to notice that it is to end.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// The byte of a probe that is damaged on the way to the backend: of its time, so that flow and number can be read.
const DAMAGED_BYTE: usize = 9;

type Probe = [u8; PROBE_LENGTH];

/// What is done to a request or to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Deed {
    LoseRequest,
    LoseAnswer,
    DoubleRequest,
    DoubleAnswer,
    DamageRequest,
    DamageAnswer,
    /// The request goes to another backend than the flow's.
    Misdeliver,
    /// The answer waits until the next one of the flow has gone.
    Overtake,
    /// The request waits, and so does everything that comes meanwhile, and whatever else runs on the core.
    Hold(Duration),
    /// The request waits, and so does everything that comes meanwhile, but the core is free.
    Linger(Duration),
}

/// Says what is done, by flow and sequence number.
pub(crate) type Plan = fn(flow: u32, sequence: u32) -> Option<Deed>;

/// What a forwarder did.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// How often each deed was done.
    pub(crate) deeds: BTreeMap<Deed, u64>,
    /// How long each request that was held waited, in nanoseconds.
    pub(crate) held: Vec<u64>,
    /// What went to backends and clients.
    pub(crate) requests: Vec<Vec<u8>>,
    pub(crate) answers: Vec<Vec<u8>>,
    /// Strays that were put in. Each comes to a client: from here, or in a backend's answer.
    pub(crate) strays: u64,
}

/// Frames that are put between those of a trial, one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strays {
    pub(crate) to_backends: Vec<Vec<u8>>,
    pub(crate) to_clients: Vec<Vec<u8>>,
}

/// A forwarder that runs.
#[derive(Debug)]
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Log>,
}

impl Forwarder {
    /// Starts it on a machine. Flow n goes to backend n, modulo their number.
    pub(crate) fn start(
        machine: &Machine,
        backends: &[SocketAddr],
        plan: Plan,
        strays: Strays,
    ) -> Self {
        let open = |port| {
            let socket = (machine.namespace()).run(|| UdpSocket::bind((machine.v4(), port)));
            let socket = socket.expect("the machine's address is free");
            socket.set_nonblocking(true).expect("it is a socket");
            socket
        };
        let stop: Arc<AtomicBool> = Arc::default();
        let work = Work {
            front: open(PORT),
            back: open(0),
            backends: backends.to_vec(),
            plan,
            strays,
            clients: HashMap::new(),
            waiting: HashMap::new(),
            log: Log::default(),
        };
        let ends = Arc::clone(&stop);
        let thread = thread::spawn(move || work.forward(&ends));
        Self { stop, thread }
    }

    /// Ends it and returns what it did.
    pub(crate) fn stop(self) -> Log {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it forwards what it gets")
    }
}

struct Work {
    front: UdpSocket,
    back: UdpSocket,
    backends: Vec<SocketAddr>,
    plan: Plan,
    strays: Strays,
    /// Where the answers to requests go.
    clients: HashMap<Probe, SocketAddr>,
    /// Answers that wait for the next one, by flow.
    waiting: HashMap<u32, Vec<u8>>,
    log: Log,
}

impl Work {
    fn forward(mut self, stop: &AtomicBool) -> Log {
        lab::run_first().expect("the test runs as root");
        let mut buffer = [0; 2048];
        while !stop.load(Ordering::Relaxed) {
            let mut sockets = [&self.front, &self.back].map(|one| PollFd::new(one, PollFlags::IN));
            // A signal may end it early.
            let _ = poll(&mut sockets, Some(&POLL));
            while let Ok((length, client)) = self.front.recv_from(&mut buffer) {
                self.pass_request(&mut buffer[..length], client);
                // Also where requests come faster than they go.
                self.pass_answers(&mut buffer);
            }
            self.pass_answers(&mut buffer);
        }
        self.log
    }

    fn pass_answers(&mut self, buffer: &mut [u8]) {
        while let Ok((length, _)) = self.back.recv_from(buffer) {
            self.pass_answer(&mut buffer[..length]);
        }
    }

    fn pass_request(&mut self, request: &mut [u8], client: SocketAddr) {
        let (flow, deed) = self.deed(request);
        let mut backend = flow as usize;
        match deed {
            Some(Deed::LoseRequest) => return self.note(Deed::LoseRequest),
            Some(Deed::DamageRequest) => request[DAMAGED_BYTE] ^= 1,
            Some(Deed::Misdeliver) => backend += 1,
            Some(Deed::Hold(time)) => self.hold(time),
            Some(Deed::Linger(time)) => thread::sleep(time),
            _ => {}
        }
        let backend = self.backends[backend % self.backends.len()];
        if let Some(stray) = self.strays.to_clients.pop() {
            self.send_to_client(&stray, client);
            self.log.strays += 1;
        }
        let stray = self.strays.to_backends.pop();
        self.log.strays += u64::from(stray.is_some());
        for request in stray.iter().map(Vec::as_slice).chain([&*request]) {
            self.clients.insert(probe_of(request), client);
            self.send_to_backend(request, backend);
        }
        match deed {
            Some(deed @ Deed::DoubleRequest) => {
                self.send_to_backend(request, backend);
                self.note(deed);
            }
            Some(
                deed @ (Deed::DamageRequest | Deed::Misdeliver | Deed::Hold(_) | Deed::Linger(_)),
            ) => {
                self.note(deed);
            }
            _ => {}
        }
        self.log.requests.push(request.to_vec());
    }

    fn pass_answer(&mut self, answer: &mut [u8]) {
        let Some(&client) = self.clients.get(&probe_of(answer)) else {
            return;
        };
        let (flow, deed) = self.deed(answer);
        match deed {
            Some(Deed::LoseAnswer) => return self.note(Deed::LoseAnswer),
            Some(Deed::Overtake) => {
                self.waiting.insert(flow, answer.to_vec());
                return self.note(Deed::Overtake);
            }
            Some(deed @ Deed::DamageAnswer) => {
                let place = self.log.answers.len() % answer.len();
                answer[place] ^= 0x40;
                self.note(deed);
            }
            Some(deed @ Deed::DoubleAnswer) => {
                self.send_to_client(answer, client);
                self.note(deed);
            }
            _ => {}
        }
        self.send_to_client(answer, client);
        if let Some(earlier) = self.waiting.remove(&flow) {
            self.send_to_client(&earlier, client);
        }
        self.log.answers.push(answer.to_vec());
    }

    /// Returns the flow of a frame, and what is to be done to it.
    fn deed(&self, frame: &[u8]) -> (u32, Option<Deed>) {
        let [a, b, c, d, e, f, g, ..] = probe_of(frame);
        let flow = u32::from_be_bytes([0, a, b, c]);
        (flow, (self.plan)(flow, u32::from_be_bytes([d, e, f, g])))
    }

    /// Takes the core for a while.
    fn hold(&mut self, time: Duration) {
        let begin = now_ns();
        let held = || Duration::from_nanos(now_ns() - begin);
        while held() < time {}
        self.log.held.push(now_ns() - begin);
    }

    fn note(&mut self, deed: Deed) {
        *self.log.deeds.entry(deed).or_default() += 1;
    }

    fn send_to_backend(&self, request: &[u8], backend: SocketAddr) {
        let sent = self.back.send_to(request, backend);
        sent.expect("the backend's machine can be reached");
    }

    fn send_to_client(&self, answer: &[u8], client: SocketAddr) {
        let sent = self.front.send_to(answer, client);
        sent.expect("the client's machine can be reached");
    }
}

/// Returns the probe of a frame; for a shorter one, zeros.
fn probe_of(frame: &[u8]) -> Probe {
    frame.first_chunk().copied().unwrap_or_default()
}
