//! One machine answers for an address, by a count of answers on the segment, whatever becomes of its agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use control::announce::election::API_RECOVERY;
use control::announce::rendezvous;
use lab::{Machine, Signal, Stopwatch, Topology, output, vip_v4, vip_v6, wait_for, wait_until};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use xdp_prog::csum::pseudo_header_v6;

use crate::world::{self, PATIENCE, World};

/// For how long a machine answers after its agent's last sign of life, and a little for another CPU's clock.
const SILENCE: Duration = Duration::from_millis(3_050);
/// From a fault to the first answer of another edge.
const TAKEOVER: Duration = Duration::from_secs(3);
/// For how long nobody else answers once somebody has.
const LINGER: Duration = Duration::from_millis(50);
/// How long the first answer may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(2);
/// How long it may take where the question is put again.
const NEXT_QUESTION: Duration = Duration::from_millis(200);
/// Questions in a row that one machine alone must answer.
const QUESTIONS: usize = 20;
const ARP_REQUEST: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
const ARP_REPLY: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];

/// The router's own addresses on the segment.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1);
/// IPv6 with 32 bytes of ICMPv6 that no router has forwarded (RFC 4861 section 4.3).
const DISCOVERY: [u8; 10] = [0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255];
/// Type and code, and a checksum of zero.
const SOLICITATION: [u8; 4] = [135, 0, 0, 0];
const ADVERTISEMENT: [u8; 2] = [136, 0];
/// The options with a MAC: of who asks, and of the address asked for.
const SOURCE_MAC: [u8; 2] = [1, 1];
const TARGET_MAC: [u8; 2] = [2, 1];

type Mac = [u8; 6];

/// Asks on the segment who has an address.
struct Asker {
    socket: OwnedFd,
    link: LinkAddr,
    question: Vec<u8>,
    address: IpAddr,
}

impl Asker {
    fn new(net: &Topology, address: IpAddr) -> Self {
        net.router().run(|| {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let all = SockProtocol::EthAll;
            let of_fabric =
                |entry: &nix::ifaddrs::InterfaceAddress| entry.interface_name == "fabric";
            let mut entries = getifaddrs().unwrap().filter(of_fabric);
            let link = entries
                .find_map(|entry| entry.address?.as_link_addr().copied())
                .unwrap();
            let mac = link.addr().unwrap();
            Self {
                socket: socket(AddressFamily::Packet, SockType::Raw, flags, all).unwrap(),
                link,
                question: match address {
                    IpAddr::V4(address) => arp_request(mac, address),
                    IpAddr::V6(address) => solicitation(mac, address),
                },
                address,
            }
        })
    }

    /// Returns the machines that answer.
    fn ask(&self) -> BTreeSet<Mac> {
        self.ask_within(ANSWER)
    }

    fn ask_within(&self, patience: Duration) -> BTreeSet<Mac> {
        while self.receive().is_some() {}
        sendto(
            self.socket.as_raw_fd(),
            &self.question,
            &self.link,
            MsgFlags::empty(),
        )
        .unwrap();
        let mut answers = BTreeSet::new();
        let mut end = Instant::now() + patience;
        while Instant::now() < end {
            match self.receive() {
                Some(frame) => {
                    if let Some(mac) = self.answer(&frame) {
                        answers.insert(mac);
                        end = end.min(Instant::now() + LINGER);
                    }
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
        answers
    }

    fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 2048];
        match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            Ok(length) => {
                frame.truncate(length);
                Some(frame)
            }
            Err(Errno::EAGAIN) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the MAC that an answer to the question gives; an announcement is none.
    fn answer(&self, frame: &[u8]) -> Option<Mac> {
        let mac = match self.address {
            IpAddr::V4(address) => {
                let message = frame.get(12..42)?;
                let (head, rest) = message.split_at(ARP_REPLY.len());
                let is_answer = head == ARP_REPLY
                    && rest[6..10] == address.octets()
                    && rest[16..20] == OWN_V4.octets();
                is_answer.then_some(&rest[..6])
            }
            IpAddr::V6(address) => {
                let message = frame.get(12..86)?;
                let (head, rest) = message.split_at(DISCOVERY.len());
                let is_answer = head == DISCOVERY
                    && rest[16..32] == OWN_V6.octets()
                    && rest[32..34] == ADVERTISEMENT
                    && rest[40..56] == address.octets()
                    && rest[56..58] == TARGET_MAC;
                is_answer.then_some(&rest[58..64])
            }
        };
        mac.map(|mac| mac.try_into().unwrap())
    }

    /// Returns the machines that answer, and asks again while nobody does: a machine that stops for long is silent.
    fn ask_until_answered(&self) -> BTreeSet<Mac> {
        let answers = || {
            Some(self.ask())
                .filter(|all| !all.is_empty())
                .ok_or("nobody")
        };
        let awaited = format!("somebody answers for {}", self.address);
        wait_for(&awaited, PATIENCE, answers).unwrap()
    }

    /// Waits until this machine alone answers.
    fn wait_for(&self, machine: &Machine) {
        let alone = BTreeSet::from([machine.mac()]);
        let awaited = format!("{} alone answers for {}", machine.label(), self.address);
        wait_for(&awaited, PATIENCE, || {
            let answers = self.ask();
            (answers == alone)
                .then_some(())
                .ok_or(format!("{answers:x?}"))
        })
        .unwrap();
    }

    /// Waits for the first answer of a machine, beside another one or not.
    fn wait_for_first(&self, machine: &Machine) {
        let awaited = format!("{} answers for {}", machine.label(), self.address);
        wait_until(&awaited, PATIENCE, || {
            self.ask_within(NEXT_QUESTION).contains(&machine.mac())
        })
        .unwrap();
    }
}

/// Another edge has taken over in time, and answers alone as soon as the one with the fault has to be silent.
fn expect_successor(askers: &[Asker], since: &Stopwatch, machine: &Machine, meanwhile: impl Fn()) {
    for asker in askers {
        asker.wait_for_first(machine);
        eprintln!(
            "{} answers for {} after {:?}",
            machine.label(),
            asker.address,
            since.elapsed()
        );
        assert!(since.is_within(TAKEOVER));
    }
    while since.elapsed() < SILENCE {
        meanwhile();
        thread::sleep(LINGER);
    }
    let alone = BTreeSet::from([machine.mac()]);
    for asker in askers.iter().cycle().take(QUESTIONS) {
        assert_eq!(
            asker.ask_until_answered(),
            alone,
            "one machine answers for {}",
            asker.address
        );
    }
}

fn arp_request(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    [
        &[0xff; 6][..],
        &mac,
        &ARP_REQUEST,
        &mac,
        &OWN_V4.octets(),
        &[0; 6],
        &address.octets(),
    ]
    .concat()
}

fn solicitation(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    // The group of all addresses that end like this one (RFC 4291 section 2.7.1).
    let [.., a, b, c] = address.octets();
    let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    group[13..].copy_from_slice(&[a, b, c]);
    let mut message = [
        &SOLICITATION[..],
        &[0; 4],
        &address.octets(),
        &SOURCE_MAC,
        &mac,
    ]
    .concat();
    let own = OWN_V6.octets();
    let sum = pseudo_header_v6(&own, &group, 58, 32).add_bytes(&message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    [
        &[0x33, 0x33, 0xff, a, b, c][..],
        &mac,
        &DISCOVERY,
        &own,
        &group,
        &message,
    ]
    .concat()
}

/// Takes the program off an interface, and puts another one in its place before the agent is back.
fn occupy(machine: &Machine) {
    const REMOVE: &str = "find /sys/fs/bpf/guideway -name '*eth0' ! -path '*egress*' -delete";
    let link = machine.link().unwrap();
    wait_until("the interface has another program", PATIENCE, || {
        output(machine.namespace().command("sh").args(["-c", REMOVE])).unwrap();
        link.attach_pass().is_ok()
    })
    .unwrap();
}

#[test]
fn one_machine_answers_for_an_address_whatever_becomes_of_its_agent() {
    let net = world::two_edges();
    let edges = || net.edges().iter().map(Machine::label);
    let v4 = IpAddr::from(vip_v4(1));
    let label = rendezvous::holder(v4, edges());
    // Of the same edge, so that a fault meets both.
    let v6 = (1..)
        .map(|number| vip_v6(number).into())
        .find(|v6| rendezvous::holder(*v6, edges()) == label)
        .unwrap();
    let mut world = World::announced_by_edges(&net, net.edges());
    world.balance(&[v4, v6]);
    let askers = [v4, v6].map(|address| Asker::new(&net, address));
    let (mut holders, others): (Vec<_>, Vec<_>) = world
        .agents
        .iter_mut()
        .partition(|agent| Some(agent.machine().label()) == label);
    let ([holder], [other]) = (&mut holders[..], &others[..]) else {
        panic!("{label:?} is one of two edges");
    };
    let (own, other) = (holder.machine(), other.machine());
    let wait_for_own = || askers.iter().for_each(|asker| asker.wait_for(own));
    wait_for_own();

    // Its agent hangs.
    let since = Stopwatch::start();
    holder.signal(Signal::SIGSTOP);
    expect_successor(&askers, &since, other, || ());
    let resumed = Instant::now();
    holder.signal(Signal::SIGCONT);
    let alone = BTreeSet::from([other.mac()]);
    for asker in askers.iter().cycle().take(QUESTIONS) {
        let answers = asker.ask_until_answered();
        // It takes the address back no sooner, and a busy machine may ask for longer.
        if resumed.elapsed() >= API_RECOVERY {
            break;
        }
        assert_eq!(answers, alone, "{} is the other's meanwhile", asker.address);
    }
    wait_for_own();

    // The program cannot be put back on the interface.
    let since = Stopwatch::start();
    occupy(own);
    expect_successor(&askers, &since, other, || ());
    own.link().unwrap().detach_xdp().unwrap();
    wait_for_own();

    // Its agent crashes, and then crashes at each start.
    let since = Stopwatch::start();
    holder.kill();
    expect_successor(&askers, &since, other, || holder.fail_to_start());
}
