//! `guideway capture` where threads take the packets. Its file is read here, because the virtual machine has no tshark.

use std::{fs, path::Path};

use fastpath::capture::{Headers, Packet};
use lab::{Machine, Namespace, Process, Signal};
use pcap_file::pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption};

use crate::support::{Agent, Flow, Mode, TIMEOUT};

const FILE: &str = "capture.pcapng";
/// `epb_flags` of a packet that comes in, and of one that leaves.
const DIRECTIONS: [u32; 2] = [1, 2];

/// A packet of the file.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) comment: String,
    direction: u32,
    length: u32,
    pub(crate) headers: Headers,
}

/// A capture under way.
pub(crate) struct Capture<'net> {
    machine: &'net Machine,
    process: Process,
}

impl<'net> Capture<'net> {
    /// Starts a capture at an agent, with these words behind `capture`, and waits until it has begun.
    pub(crate) fn start(agent: &Agent<'net>, words: &[&str]) -> Self {
        let file = Path::new(Namespace::FILES).join(FILE);
        let words = [&["capture", "--write", file.to_str().unwrap()], words].concat();
        let mut process = Process::spawn(&mut agent.command(&words)).unwrap();
        process.wait_for_line("capturing on eth0", TIMEOUT).unwrap();
        Self {
            machine: agent.machine(),
            process,
        }
    }

    /// Ends it, and returns what it says in the end and the packets of its file.
    pub(crate) fn end(mut self) -> (String, Vec<Seen>) {
        self.process.signal(Signal::SIGINT).unwrap();
        let status = self.process.wait(TIMEOUT).unwrap();
        let said = self.process.stderr();
        assert_eq!(status.code(), Some(0), "{said}");
        let file = Path::new(Namespace::FILES).join(FILE);
        let file = self.machine.namespace().run(|| fs::read(file)).unwrap();
        (said, packets(&file))
    }
}

fn packets(file: &[u8]) -> Vec<Seen> {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else {
            continue;
        };
        let (mut comment, mut direction) = (String::new(), 0);
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Comment(text) => comment.push_str(text),
                EnhancedPacketOption::Flags(flags) => direction = *flags,
                _ => {}
            }
        }
        packets.push(Seen {
            comment,
            direction,
            length: packet.original_len,
            headers: Headers::read(&packet.data),
        });
    }
    packets
}

/// Each of a flow's packets, of which there are `questions`, is in the file as it came and as it left to the node.
pub(crate) fn assert_seen(packets: &[Seen], flow: &Flow, node: &Machine, questions: usize) {
    let is_of_flow = |packet: &Packet| packet.source == flow.client;
    let seen = packets
        .iter()
        .filter(|seen| seen.headers.packets.iter().any(is_of_flow));
    let seen: Vec<&Seen> = seen.collect();
    let (pairs, rest) = seen.as_chunks::<2>();
    assert_eq!((pairs.len(), rest.len()), (questions, 0), "{seen:?}");
    for pair in pairs {
        let [before, after] = pair;
        assert_eq!(pair.map(|seen| seen.direction), DIRECTIONS);
        let service = flow.service;
        for (seen, side) in pair.iter().zip(["before", "after"]) {
            let verdict = format!("{side}: forward ({}), service ", service.mode);
            assert!(seen.comment.starts_with(&verdict), "{seen:?}");
            let named = format!(" {service}, backend ");
            assert!(seen.comment.contains(&named), "{seen:?}");
        }
        let (came, left) = (&before.headers.packets[..], &after.headers.packets[..]);
        assert_eq!(came[0].destination, service.address);
        if service.mode == Mode::L2dsr {
            assert_eq!((came, before.length), (left, after.length));
            let mac = node.link().unwrap().mac();
            assert_eq!(after.headers.destination_mac, mac);
        } else {
            let outer = if node.v4() == service.backend(node) {
                20
            } else {
                40
            };
            assert_eq!(after.length, before.length + outer);
            assert_eq!(left[0].destination.ip(), service.backend(node));
            assert_eq!(came, &left[1..]);
        }
    }
}
