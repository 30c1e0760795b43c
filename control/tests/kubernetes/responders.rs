//! One machine answers for an address, by a count of answers on the segment, whatever becomes of its agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Machine, Signal, Stopwatch, Topology, output, vip_v4, wait_for, wait_until};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use crate::world::{PATIENCE, World};

/// For how long a machine answers after its agent's last sign of life, and a little for another CPU's clock.
const SILENCE: Duration = Duration::from_millis(3_050);
/// From a fault to the first answer of another edge.
const TAKEOVER: Duration = Duration::from_secs(3);
/// For how long nobody else answers once somebody has.
const LINGER: Duration = Duration::from_millis(50);
/// How long the first answer may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(2);
/// Questions in a row that one machine alone must answer.
const QUESTIONS: usize = 20;
const ARP_REQUEST: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
const ARP_REPLY: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];

type Mac = [u8; 6];

/// Asks on the segment who has an address.
struct Asker {
    socket: OwnedFd,
    link: LinkAddr,
    own: Ipv4Addr,
    address: Ipv4Addr,
}

impl Asker {
    fn new(net: &Topology, address: Ipv4Addr) -> Self {
        net.router().run(|| {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let all = SockProtocol::EthAll;
            let of_fabric =
                |entry: &nix::ifaddrs::InterfaceAddress| entry.interface_name == "fabric";
            let mut entries = getifaddrs().unwrap().filter(of_fabric);
            Self {
                socket: socket(AddressFamily::Packet, SockType::Raw, flags, all).unwrap(),
                link: entries
                    .find_map(|entry| entry.address?.as_link_addr().copied())
                    .unwrap(),
                own: Ipv4Addr::new(10, 0, 1, 1),
                address,
            }
        })
    }

    /// Returns the machines that answer.
    fn ask(&self) -> BTreeSet<Mac> {
        while self.receive().is_some() {}
        let mac = self.link.addr().unwrap();
        let question = [
            &[0xff; 6][..],
            &mac,
            &ARP_REQUEST,
            &mac,
            &self.own.octets(),
            &[0; 6],
            &self.address.octets(),
        ]
        .concat();
        sendto(
            self.socket.as_raw_fd(),
            &question,
            &self.link,
            MsgFlags::empty(),
        )
        .unwrap();
        let mut answers = BTreeSet::new();
        let mut end = Instant::now() + ANSWER;
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
        let message = frame.get(12..42)?;
        let (head, rest) = message.split_at(ARP_REPLY.len());
        let is_answer = head == ARP_REPLY
            && rest[6..10] == self.address.octets()
            && rest[16..20] == self.own.octets();
        is_answer.then(|| rest[..6].try_into().unwrap())
    }

    /// Waits until this machine alone answers.
    fn wait_for(&self, machine: &Machine) {
        let alone = BTreeSet::from([machine.mac()]);
        let awaited = format!("{} alone answers", machine.label());
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
        let awaited = format!("{} answers", machine.label());
        wait_until(&awaited, PATIENCE, || self.ask().contains(&machine.mac())).unwrap();
    }

    /// Another edge has taken over in time, and answers alone as soon as the one with the fault has to be silent.
    fn expect_successor(&self, since: &Stopwatch, machine: &Machine, meanwhile: impl Fn()) {
        self.wait_for_first(machine);
        eprintln!("{} answers after {:?}", machine.label(), since.elapsed());
        assert!(since.is_within(TAKEOVER));
        while since.elapsed() < SILENCE {
            meanwhile();
            thread::sleep(LINGER);
        }
        let alone = BTreeSet::from([machine.mac()]);
        for _ in 0..QUESTIONS {
            assert_eq!(self.ask(), alone, "one machine answers");
        }
    }
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
    let net = Topology::builder()
        .edges(2)
        .nodes(1)
        .pods(1)
        .build()
        .unwrap();
    let address = vip_v4(1);
    let mut world = World::announced_by_edges(&net, net.edges());
    world.balance(&[IpAddr::V4(address)]);
    let asker = Asker::new(&net, address);
    wait_until("somebody answers", PATIENCE, || asker.ask().len() == 1).unwrap();
    let answers = asker.ask();
    let (mut holders, others): (Vec<_>, Vec<_>) = world
        .agents
        .iter_mut()
        .partition(|agent| answers.contains(&agent.machine().mac()));
    let ([holder], [other]) = (&mut holders[..], &others[..]) else {
        panic!("{answers:x?}");
    };
    let (own, other) = (holder.machine(), other.machine());

    // Its agent hangs.
    let since = Stopwatch::start();
    holder.signal(Signal::SIGSTOP);
    asker.expect_successor(&since, other, || ());
    holder.signal(Signal::SIGCONT);
    for _ in 0..QUESTIONS {
        assert!(
            !asker.ask().contains(&own.mac()),
            "it is the other's meanwhile"
        );
    }
    asker.wait_for(own);

    // The program cannot be put back on the interface.
    let since = Stopwatch::start();
    occupy(own);
    asker.expect_successor(&since, other, || ());
    own.link().unwrap().detach_xdp().unwrap();
    asker.wait_for(own);

    // Its agent crashes, and then crashes at each start.
    let since = Stopwatch::start();
    holder.kill();
    asker.expect_successor(&since, other, || holder.fail_to_start());
}
