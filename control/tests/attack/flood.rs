//! Kinds of floods, and what sends them.

use std::{
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use lab::{Machine, RawSocket, Topology};

use crate::frames::{ACK, End, FIN, Numbers, PSH, RST, SYN, Wire};

/// Frames that a flood of strangers repeats by each way: more flows than any table of the tests' has entries.
const STRANGERS: usize = 100_000;
/// Sequence numbers that forged segments have. Few: one in 2^32 hits the number that a victim's
/// connection waits for, and ends that by right (RFC 9293 section 3.10.7.4).
const GUESSES: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Syn,
    Ack,
    /// Resets in the victims' names.
    Reset,
    Datagrams,
    Fragments,
    /// What the victims might send, to other addresses of the same pod.
    Crossing,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Syn,
        Self::Ack,
        Self::Reset,
        Self::Datagrams,
        Self::Fragments,
        Self::Crossing,
    ];
}

/// What a flood is aimed at.
#[derive(Debug)]
pub(crate) struct Target {
    /// Where the victims are connected to.
    pub(crate) service: End,
    /// Where datagrams are taken.
    pub(crate) datagrams: End,
    /// The same pod by other ways.
    pub(crate) others: Vec<End>,
    /// The victims.
    pub(crate) victims: Vec<End>,
}

/// Makes the frames of a flood.
pub(crate) fn frames(kind: Kind, wire: &Wire, target: &Target) -> Vec<Vec<u8>> {
    let mut numbers = Numbers::new(kind as u64 + 1);
    let guesses: Vec<u32> = (0..GUESSES)
        .map(|_| u32::try_from(numbers.next() >> 32).unwrap())
        .collect();
    let mut turn = 0;
    let mut guess = || {
        turn += 1;
        guesses[turn % guesses.len()]
    };
    let to = target.service;
    match kind {
        Kind::Syn => (0..STRANGERS)
            .map(|_| wire.tcp(numbers.stranger(), to, SYN, [guess(), 0], &[]))
            .collect(),
        Kind::Ack => (0..STRANGERS)
            .map(|_| wire.tcp(numbers.stranger(), to, ACK, [guess(), guess()], &[]))
            .collect(),
        Kind::Reset => (0..target.victims.len() * guesses.len())
            .map(|number| {
                let victim = target.victims[number % target.victims.len()];
                wire.tcp(victim, to, RST, [guess(), 0], &[])
            })
            .collect(),
        Kind::Datagrams => (0..STRANGERS)
            .map(|_| wire.udp(numbers.stranger(), target.datagrams, b"flood"))
            .collect(),
        Kind::Fragments => (0..STRANGERS)
            .map(|number| {
                let from = numbers.stranger();
                let identification = u16::try_from(number % 65_536).unwrap();
                match number % 2 {
                    0 => wire.first_fragment(from, target.datagrams, identification),
                    _ => wire.second_fragment(from, target.datagrams, identification),
                }
            })
            .collect(),
        Kind::Crossing => {
            const SEGMENTS: [u8; 5] = [SYN, ACK, ACK | PSH, RST, FIN | ACK];
            let mut frames = Vec::new();
            for flags in SEGMENTS {
                for &other in &target.others {
                    for &victim in &target.victims {
                        let data: &[u8] = if flags & PSH == 0 { &[] } else { b"forged" };
                        frames.push(wire.tcp(victim, other, flags, [guess(), guess()], data));
                    }
                }
            }
            frames
        }
    }
}

/// Frames that were sent, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) frames: u64,
    pub(crate) within: Duration,
}

impl Sent {
    /// Frames per second.
    pub(crate) fn rate(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let frames = self.frames as f64;
        frames / self.within.as_secs_f64()
    }
}

/// Frames, and the socket that puts them on a cable.
#[derive(Debug)]
pub(crate) struct Stream<'w> {
    pub(crate) socket: &'w RawSocket,
    pub(crate) frames: Vec<Vec<u8>>,
}

/// Sends the frames of each stream again and again, for so long and no faster than `rate` a second in all.
///
/// Frames that the device had no room for do not count. The senders leave the cores to whoever has work for what they
/// sent: these are the machines under attack, and have cores of their own elsewhere.
pub(crate) fn send(streams: &[Stream<'_>], rate: u32, duration: Duration) -> Sent {
    let each = rate / u32::try_from(streams.len()).unwrap();
    let began = Instant::now();
    let frames = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .map(|stream| scope.spawn(|| stream.send(each, duration)))
            .collect();
        threads.into_iter().map(|sent| sent.join().unwrap()).sum()
    });
    Sent {
        frames,
        within: began.elapsed(),
    }
}

impl Stream<'_> {
    fn send(&self, rate: u32, duration: Duration) -> u64 {
        const BURST: usize = 8;
        lab::run_when_idle().unwrap();
        let mut sent = 0;
        let mut frames = self.frames.iter().cycle();
        let began = Instant::now();
        while began.elapsed() < duration {
            for frame in frames.by_ref().take(BURST) {
                let has_room = self.socket.send(frame).unwrap();
                sent += u64::from(has_room);
                if !has_room {
                    thread::yield_now();
                }
            }
            let due = began + Duration::from_secs(sent) / rate;
            // A longer pause would be made up for by a burst that no queue has room for.
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        sent
    }
}

/// A socket that puts frames on the cable of a machine, as if the router had sent them.
pub(crate) fn cable_of(net: &Topology, machine: &Machine) -> (RawSocket, Wire) {
    const NONE: u16 = 0;
    let socket = RawSocket::open(&net.far_end(machine).unwrap(), NONE).unwrap();
    let wire = Wire {
        destination: machine.mac(),
        source: net.router().link("fabric").unwrap().mac(),
    };
    (socket, wire)
}

/// An end of IPv4.
pub(crate) fn end(address: IpAddr, port: u16) -> End {
    match address {
        IpAddr::V4(address) => (address, port),
        IpAddr::V6(_) => panic!("floods are of IPv4"),
    }
}
