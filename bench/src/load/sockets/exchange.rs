//! Sending requests and receiving their answers, by datagrams, open connections, and connections of their own.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    num::NonZeroU64,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
};

use anyhow::{Context, Result};
use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
    io::Errno,
    thread::set_current_timer_slack,
};
use socket2::Type;

use super::{Flow, GRACE, Request, Way, as_ns, client_socket, now_ns, sleep_until, stamps};
use crate::{
    load::message::{Form, Incoming},
    probe::PROBE_LENGTH,
    scenario::{Exchange, Stamps},
};

/// How often the receiver looks whether it is to end.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// Longer than any datagram that is sent.
pub(super) const BUFFER: usize = 2048;
const READABLE: epoll::EventFlags = epoll::EventFlags::IN;
const WRITABLE: epoll::EventFlags = epoll::EventFlags::OUT;

/// An answer as it came.
pub(super) struct Answer {
    pub(super) at: u64,
    /// When it came by the clock of the stamps.
    pub(super) stamp: Option<u64>,
    pub(super) bytes: Vec<u8>,
}

impl Answer {
    fn unstamped(at: u64, bytes: Vec<u8>) -> Self {
        let stamp = None;
        Self { at, stamp, bytes }
    }
}

/// When each request was sent, by its place.
pub(super) type Log = Vec<(usize, u64)>;

/// What became of requests.
#[derive(Default)]
pub(super) struct Exchanged {
    pub(super) sent: Log,
    /// All that came.
    pub(super) answers: Vec<Answer>,
    /// Probes that have left, with their stamps.
    pub(super) departures: Vec<([u8; PROBE_LENGTH], u64)>,
}

/// Sends the requests while another thread receives.
pub(super) fn run(
    flows: &[Flow],
    requests: &[Request],
    exchange: Exchange,
    stamps: Stamps,
) -> Result<Exchanged> {
    let sockets = Sockets::of(flows, requests, exchange, stamps)?;
    let ended = OnceLock::new();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| sockets.receive_all(&ended));
        let sent = sockets.send_all();
        ended.get_or_init(|| End {
            deadline: now_ns() + as_ns(GRACE),
            sent: sent.len(),
        });
        let received = receiver.join().expect("the receiver does not panic")?;
        Ok(Exchanged { sent, ..received })
    })
}

/// The sender has done.
struct End {
    /// Until when answers are awaited.
    deadline: u64,
    /// Requests that it has sent.
    sent: usize,
}

/// The sockets of all flows, and what waits for them.
struct Sockets<'a> {
    flows: &'a [Flow],
    requests: &'a [Request],
    exchange: Exchange,
    stamps: Stamps,
    /// Events carry the number of a flow, or behind those the place of a request with a connection of its own.
    waiting: OwnedFd,
    /// The connections of requests, by place, from when the sender opens them until they are over.
    opened: Vec<Mutex<Option<Connection>>>,
}

/// The connection of a request.
struct Connection {
    stream: TcpStream,
    /// When it was there.
    connected: Option<u64>,
    incoming: Incoming,
}

impl<'a> Sockets<'a> {
    fn of(
        flows: &'a [Flow],
        requests: &'a [Request],
        exchange: Exchange,
        stamps: Stamps,
    ) -> Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll")?;
        for (number, flow) in (0..).zip(flows) {
            let data = epoll::EventData::new_u64(number);
            match &flow.way {
                Way::Udp(socket) => epoll::add(&waiting, socket, data, READABLE),
                Way::Tcp(stream) => epoll::add(&waiting, stream, data, READABLE),
                Way::Connections(_) => Ok(()),
            }
            .context("waiting for a socket")?;
        }
        let connects = exchange.connects();
        let connections = if connects { requests.len() } else { 0 };
        Ok(Self {
            flows,
            requests,
            exchange,
            stamps,
            waiting,
            opened: (0..connections).map(|_| Mutex::default()).collect(),
        })
    }

    fn send_all(&self) -> Log {
        // By default the kernel ends sleeps up to 50 microseconds late. Without the right to change that, the
        // lateness says so.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let (mut buffer, form) = ([0; BUFFER], Form::of(self.exchange));
        let mut sent = Log::with_capacity(self.requests.len());
        for (place, request) in self.requests.iter().enumerate() {
            sleep_until(request.due);
            let message = &mut buffer[..request.length];
            message[..PROBE_LENGTH].copy_from_slice(&request.probe);
            let at = now_ns();
            let outcome = match &self.flows[request.flow].way {
                Way::Udp(socket) => send_datagram(socket, message),
                Way::Tcp(stream) => send_message(stream, form, message),
                Way::Connections(ends) => self.open(place, *ends),
            };
            if outcome.is_ok() {
                sent.push((place, at));
            }
        }
        sent
    }

    /// Begins to open the connection of a request.
    fn open(&self, place: usize, [client, to]: [SocketAddr; 2]) -> io::Result<()> {
        let socket = client_socket(Type::STREAM.nonblocking(), client, to)?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                return Err(error);
            }
            _ => {}
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let mut slot = self.opened[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        epoll::add(&self.waiting, &stream, self.data_of(place), WRITABLE)?;
        *slot = Some(Connection {
            stream,
            connected: None,
            incoming: Incoming::default(),
        });
        Ok(())
    }

    fn data_of(&self, place: usize) -> epoll::EventData {
        epoll::EventData::new_u64((self.flows.len() + place) as u64)
    }

    /// Receives until the sender has done, and then until all is answered and nothing more comes, or the deadline.
    fn receive_all(&self, ended: &OnceLock<End>) -> Result<Exchanged> {
        let requests = self.requests.len();
        let mut answers = Vec::with_capacity(requests + requests / 8 + 64);
        let mut departures = Vec::new();
        let mut incoming: Vec<Incoming> = self.flows.iter().map(|_| Incoming::default()).collect();
        let mut events = Vec::with_capacity(self.flows.len().max(64));
        loop {
            // Read before the sockets: what had come by the deadline counts, however late this thread runs.
            let end = ended.get();
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.waiting, buffer, Some(&POLL)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for answers"),
            }
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(0);
                match self.flows.get(number).map(|flow| &flow.way) {
                    Some(Way::Udp(socket)) => {
                        receive_datagrams(socket, self.stamps, &mut answers);
                        stamps::departures(socket, self.stamps, &mut departures);
                    }
                    Some(Way::Tcp(stream)) => {
                        if !receive_messages(stream, &mut incoming[number], &mut answers) {
                            // Reset: it tells nothing more.
                            let _ = epoll::delete(&self.waiting, stream);
                        }
                    }
                    _ => self.attend(number - self.flows.len(), &mut answers),
                }
            }
            let is_over = |end: &End| {
                let has_all = answers.len() >= end.sent && events.is_empty();
                has_all || now_ns() >= end.deadline
            };
            if end.is_some_and(is_over) {
                return Ok(Exchanged {
                    answers,
                    departures,
                    ..Exchanged::default()
                });
            }
        }
    }

    /// Goes on with the connection of a request: sends when it is open, and ends it when the answer is there.
    fn attend(&self, place: usize, answers: &mut Vec<Answer>) {
        let at = now_ns();
        let mut slot = self.opened[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = slot.as_mut() else {
            return;
        };
        let stream = &connection.stream;
        let goes_on = match connection.connected {
            None => {
                let request = &self.requests[place];
                let mut message = vec![0; request.length];
                message[..PROBE_LENGTH].copy_from_slice(&request.probe);
                connection.connected = Some(at);
                send_message(stream, Form::of(self.exchange), &message).is_ok()
                    && epoll::modify(&self.waiting, stream, self.data_of(place), READABLE).is_ok()
            }
            Some(connected) => {
                let goes_on = connection.incoming.read(stream);
                let answer = connection.incoming.take();
                let has_ended = answer.is_some() || !goes_on;
                let at = match self.exchange {
                    Exchange::Connect => connected,
                    Exchange::Rr | Exchange::Crr | Exchange::Http => at,
                };
                answers.extend(answer.map(|(_, bytes)| Answer::unstamped(at, bytes)));
                !has_ended
            }
        };
        if !goes_on {
            *slot = None;
        }
    }
}

fn send_datagram(socket: &UdpSocket, datagram: &[u8]) -> io::Result<()> {
    match socket.send(datagram) {
        // An ICMP error of an earlier request is told by the next call, which then has sent nothing.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.send(datagram),
        outcome => outcome,
    }
    .map(drop)
}

/// Sends a message whole or not at all: there is room for all of a short one, or for nothing.
fn send_message(mut stream: &TcpStream, form: Form, message: &[u8]) -> io::Result<()> {
    let message = form.request(message);
    match stream.write(&message)? {
        length if length == message.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn receive_datagrams(socket: &UdpSocket, stamps: Stamps, answers: &mut Vec<Answer>) {
    let mut buffer = [0; BUFFER];
    // An error is "nothing more", or an ICMP message of a request that is then lost.
    while let Ok((length, stamp)) = stamps::receive(socket, stamps, &mut buffer) {
        let at = now_ns();
        let bytes = buffer[..length].to_vec();
        answers.push(Answer { at, stamp, bytes });
    }
}

/// Receives messages. Returns whether the stream goes on.
fn receive_messages(
    stream: &TcpStream,
    incoming: &mut Incoming,
    answers: &mut Vec<Answer>,
) -> bool {
    let goes_on = incoming.read(stream);
    let at = now_ns();
    while let Some((_, bytes)) = incoming.take() {
        answers.push(Answer::unstamped(at, bytes));
    }
    goes_on
}
