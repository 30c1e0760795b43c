//! Kinds of floods.

use std::net::IpAddr;

use lab::{Machine, Topology};

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
    /// Of datagrams, and of resets in the victims' names.
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

    /// Returns whether 300 000 a second fit on two cores that are sender, router and all machines under attack at once.
    /// Two do not: their handshakes are answered by the pod, and bridge and router carry the answers too.
    pub(crate) fn leaves_room_on_two_cores(self) -> bool {
        !matches!(self, Self::Syn | Self::Crossing)
    }
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
            .flat_map(|number| {
                let from = numbers.stranger();
                let victim = target.victims[number % target.victims.len()];
                let identification = u16::try_from(number % 65_536).unwrap();
                let datagram = match number % 2 {
                    0 => wire.first_fragment(from, target.datagrams, identification),
                    _ => wire.second_fragment(from, target.datagrams, identification),
                };
                let reset = wire.tcp_in_pieces(victim, to, RST, [guess(), 0], identification);
                let [first, second, third] = reset;
                [datagram, first, second, third]
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

/// Frames, and the machine whose cable they are put on.
#[derive(Debug)]
pub(crate) struct Stream<'net> {
    pub(crate) machine: &'net Machine,
    pub(crate) frames: Vec<Vec<u8>>,
}

/// How frames of the router look on the cable of a machine.
pub(crate) fn cable_of(net: &Topology, machine: &Machine) -> Wire {
    Wire {
        destination: machine.mac(),
        source: net.router().link("fabric").unwrap().mac(),
    }
}

/// An end of IPv4.
pub(crate) fn end(address: IpAddr, port: u16) -> End {
    match address {
        IpAddr::V4(address) => (address, port),
        IpAddr::V6(_) => panic!("floods are of IPv4"),
    }
}
