//! The backends: each answers every probe with its mark, and notes when it read it.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use lab::Machine;
use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
};

use crate::{
    load::{Arrivals, sockets::now_ns},
    probe::{Key, MARK_LENGTH, PROBE_LENGTH},
};

/// How long a responder may take to notice that it is to end.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A backend: a thread with a socket for each of its addresses. It ends on drop.
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
        node: &Machine,
        addresses: &[SocketAddr],
        number: u16,
        marks: Key,
        arrivals: &Arrivals,
    ) -> Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll")?;
        let open = |(place, &at): (u64, &SocketAddr)| {
            let socket = node.namespace().run(|| UdpSocket::bind(at));
            let socket = socket.with_context(|| format!("listening at {at}"))?;
            socket.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(place);
            epoll::add(&waiting, &socket, data, epoll::EventFlags::IN)?;
            Ok(socket)
        };
        let sockets = (0..).zip(addresses).map(open).collect::<Result<_>>()?;
        let stop: Arc<AtomicBool> = Arc::default();
        let backend = Backend {
            waiting,
            sockets,
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
    waiting: OwnedFd,
    sockets: Vec<UdpSocket>,
    number: u16,
    marks: Key,
    arrivals: Arrivals,
    stop: Arc<AtomicBool>,
}

impl Backend {
    fn serve(&self) {
        let mut events = Vec::with_capacity(self.sockets.len());
        let mut buffer = vec![0; usize::from(u16::MAX)];
        while !self.stop.load(Ordering::Relaxed) {
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // A signal may end it early.
            let _ = epoll::wait(&self.waiting, spare, Some(&POLL));
            for event in &events {
                let place = usize::try_from(event.data.u64()).unwrap_or(0);
                self.answer_all(&self.sockets[place], &mut buffer);
            }
        }
    }

    fn answer_all(&self, socket: &UdpSocket, buffer: &mut [u8]) {
        while let Ok((length, client)) = socket.recv_from(buffer) {
            let at = now_ns();
            let request = &buffer[..length];
            let Some((probe, padding)) = request.split_first_chunk::<PROBE_LENGTH>() else {
                continue;
            };
            let mark = self.marks.mark(probe, self.number);
            // The mark takes the place of padding: an answer is no longer than its request has to be.
            let padding = padding.get(MARK_LENGTH..).unwrap_or_default();
            // What cannot be sent is lost, and counted as that.
            let _ = socket.send_to(&[probe, &mark[..], padding].concat(), client);
            self.arrivals.add((*probe, at));
        }
    }
}
