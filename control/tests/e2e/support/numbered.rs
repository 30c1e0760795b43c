//! Datagrams with numbers, each of which must be answered once.

use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lab::{Machine, wait_until};

use super::{Protocol, Service, TIMEOUT};

/// Datagrams of one sender that are under way at once, at the most. Those of all senders are fewer than any queue holds.
const UNDER_WAY: u64 = 8;
/// From the last answer to some datagrams to the next ones. What a sender does in between costs less than this.
const PAUSE: Duration = Duration::from_millis(10);

/// Senders of datagrams to services, one for each. No answer is waited for so long that a busy machine could miss it.
#[derive(Debug)]
pub(crate) struct Numbered {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    senders: Vec<JoinHandle<Vec<String>>>,
}

impl Numbered {
    /// Starts to send to each UDP service.
    pub(crate) fn over(client: &Machine, services: &[Service]) -> Self {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let datagrams = services.iter();
        let datagrams = datagrams.filter(|service| service.protocol == Protocol::Udp);
        let senders = datagrams.map(|service| {
            let mut sender = Sender::open(client, service.address).unwrap();
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || {
                while sender.wrong.is_empty() && !stop.load(Ordering::Relaxed) {
                    answered.fetch_add(sender.send_some(), Ordering::Relaxed);
                    thread::sleep(PAUSE);
                }
                sender.end()
            })
        });
        Self {
            senders: senders.collect(),
            stop,
            answered,
        }
    }

    /// Waits until so many more datagrams are answered, or something is wrong: a sender waits for [`TIMEOUT`] before it says so.
    pub(crate) fn wait_for_more(&self, more: u64) {
        let until = self.answered.load(Ordering::Relaxed) + more;
        wait_until("datagrams are answered", 2 * TIMEOUT, || {
            let mut senders = self.senders.iter();
            self.answered.load(Ordering::Relaxed) >= until || senders.any(JoinHandle::is_finished)
        })
        .unwrap();
    }

    /// Ends the senders. Every number must have been answered once, by whoever answered the first one. Returns how many
    /// there were.
    pub(crate) fn stop_complete(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let senders = self.senders.into_iter();
        let wrong: Vec<String> = senders.flat_map(|sender| sender.join().unwrap()).collect();
        let answered = self.answered.load(Ordering::Relaxed);
        assert!(wrong.is_empty(), "{wrong:#?}; {answered} answers are right");
        answered
    }
}

/// One flow of datagrams.
#[derive(Debug)]
struct Sender {
    socket: UdpSocket,
    name: String,
    next: u64,
    /// Who answers.
    node: Option<String>,
    wrong: Vec<String>,
}

impl Sender {
    fn open(client: &Machine, service: SocketAddr) -> io::Result<Self> {
        let from = SocketAddr::new(client.address_like(service.ip()), client.fresh_port());
        let socket = client.namespace().run(|| UdpSocket::bind(from))?;
        socket.connect(service)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self {
            socket,
            name: format!("{from} to {service}"),
            next: 0,
            node: None,
            wrong: Vec::new(),
        })
    }

    /// Sends some datagrams and takes their answers. Returns how many of these are right.
    fn send_some(&mut self) -> u64 {
        let numbers = self.next..self.next + UNDER_WAY;
        self.next = numbers.end;
        for number in numbers.clone() {
            if let Err(error) = self.socket.send(number.to_string().as_bytes()) {
                self.note(&format!("sends {number}: {error}"));
            }
        }
        let mut missing: BTreeSet<u64> = numbers.collect();
        while !missing.is_empty() {
            match self.receive() {
                Ok(number) if missing.remove(&number) => {}
                Ok(number) => self.note(&format!("{number} comes twice")),
                Err(error) => {
                    self.note(&format!("{missing:?} do not come: {error}"));
                    break;
                }
            }
        }
        UNDER_WAY - missing.len() as u64
    }

    /// Takes the number of the next answer.
    fn receive(&mut self) -> io::Result<u64> {
        let mut answer = [0; 256];
        let length = self.socket.recv(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        let (node, number) = answer.split_once(' ').unwrap_or_default();
        let number = number.parse();
        let number = number.map_err(|_| io::Error::other(format!("{answer:?}")))?;
        let first = self.node.get_or_insert_with(|| node.to_owned());
        if first != node {
            let moved = format!("{node} answers {number}, and not {first}");
            self.note(&moved);
        }
        Ok(number)
    }

    fn note(&mut self, what: &str) {
        self.wrong.push(format!("{}: {what}", self.name));
    }

    /// Looks for answers that nobody waits for, and returns what was wrong.
    fn end(mut self) -> Vec<String> {
        self.socket.set_nonblocking(true).unwrap();
        while let Ok(number) = self.receive() {
            self.note(&format!("{number} comes twice"));
        }
        self.wrong
    }
}
