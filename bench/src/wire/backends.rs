//! The backends: each answers every probe with its mark, and notes when it read it.

use std::{
    collections::HashMap,
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use lab::Namespace;
use rustix::{
    event::{Timespec, epoll},
    fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use crate::{
    load::{Arrivals, message::Incoming, sockets::now_ns},
    probe::{Key, MARK_LENGTH, PROBE_LENGTH},
};

/// How long a responder may take to notice that it is to end.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A backend: a thread with a UDP socket and a TCP listener for each of its addresses. It ends on drop.
#[derive(Debug)]
pub struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Starts the backend with this number on a machine. It answers with the key of marks, and adds what it reads to
    /// the arrivals.
    ///
    /// # Errors
    ///
    /// When an address cannot be had.
    pub fn start(
        machine: &Namespace,
        addresses: &[SocketAddr],
        number: u16,
        marks: Key,
        arrivals: &Arrivals,
    ) -> Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll")?;
        let add = |place: usize, socket: BorrowedFd<'_>| {
            let data = epoll::EventData::new_u64(place as u64);
            epoll::add(&waiting, socket, data, epoll::EventFlags::IN)
        };
        let (mut sockets, mut listeners) = (Vec::new(), Vec::new());
        for (place, &at) in addresses.iter().enumerate() {
            let bind = || Ok::<_, io::Error>((UdpSocket::bind(at)?, TcpListener::bind(at)?));
            let bound = machine.run(bind);
            let (socket, listener) = bound.with_context(|| format!("listening at {at}"))?;
            socket.set_nonblocking(true)?;
            listener.set_nonblocking(true)?;
            add(place, socket.as_fd())?;
            add(addresses.len() + place, listener.as_fd())?;
            sockets.push(socket);
            listeners.push(listener);
        }
        let stop: Arc<AtomicBool> = Arc::default();
        let mut backend = Backend {
            waiting,
            sockets,
            listeners,
            connections: HashMap::new(),
            accepted: 0,
            number,
            marks,
            arrivals: arrivals.clone(),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new().name(format!("backend-{number}"));
        Ok(Self {
            stop,
            thread: Some(thread.spawn(move || backend.serve())?),
        })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Backend {
    /// Events carry the place of a socket, or behind those that of a listener, or behind those the number of a
    /// connection.
    waiting: OwnedFd,
    sockets: Vec<UdpSocket>,
    listeners: Vec<TcpListener>,
    connections: HashMap<usize, (TcpStream, Incoming)>,
    /// Connections so far.
    accepted: usize,
    number: u16,
    marks: Key,
    arrivals: Arrivals,
    stop: Arc<AtomicBool>,
}

impl Backend {
    fn serve(&mut self) {
        let mut events = Vec::with_capacity(2 * self.sockets.len() + 64);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        while !self.stop.load(Ordering::Relaxed) {
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // A signal may end it early.
            let _ = epoll::wait(&self.waiting, spare, Some(&POLL));
            for event in &events {
                let place = usize::try_from(event.data.u64()).unwrap_or(0);
                let sockets = self.sockets.len();
                if let Some(socket) = self.sockets.get(place) {
                    self.answer_datagrams(socket, &mut buffer);
                } else if place < 2 * sockets {
                    self.accept_all(place - sockets);
                } else {
                    self.answer_messages(place - 2 * sockets);
                }
            }
        }
    }

    fn answer_datagrams(&self, socket: &UdpSocket, buffer: &mut [u8]) {
        while let Ok((length, client)) = socket.recv_from(buffer) {
            if let Some(answer) = self.answer(&buffer[..length]) {
                // What cannot be sent is lost, and counted as that.
                let _ = socket.send_to(&answer, client);
            }
        }
    }

    fn accept_all(&mut self, place: usize) {
        while let Ok((stream, _)) = self.listeners[place].accept() {
            let number = 2 * self.sockets.len() + self.accepted;
            let data = epoll::EventData::new_u64(number as u64);
            let added = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true))
                .and_then(|()| {
                    epoll::add(&self.waiting, &stream, data, epoll::EventFlags::IN)
                        .map_err(io::Error::from)
                });
            // A connection that is reset by now has nothing to be answered.
            if added.is_ok() {
                let connection = (stream, Incoming::default());
                self.connections.insert(self.accepted, connection);
                self.accepted += 1;
            }
        }
    }

    fn answer_messages(&mut self, number: usize) {
        let Some((stream, mut incoming)) = self.connections.remove(&number) else {
            return;
        };
        let goes_on = incoming.read(&stream);
        while let Some((form, message)) = incoming.take() {
            if let Some(answer) = self.answer(&message) {
                let _ = (&stream).write(&form.answer(&answer));
            }
        }
        if goes_on {
            self.connections.insert(number, (stream, incoming));
        }
    }

    /// Notes the arrival of a probe and returns its answer; `None` for anything else.
    fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let at = now_ns();
        let (probe, padding) = request.split_first_chunk::<PROBE_LENGTH>()?;
        let mark = self.marks.mark(probe, self.number);
        // The mark takes the place of padding: an answer is no longer than its request has to be.
        let padding = padding.get(MARK_LENGTH..).unwrap_or_default();
        // Before the answer leaves: what is answered has arrived.
        self.arrivals.add((*probe, at));
        Some([probe, &mark[..], padding].concat())
    }
}
