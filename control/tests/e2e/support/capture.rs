//! What passes on a machine's wire, judged by tshark.

use std::{
    net::{Ipv6Addr, SocketAddrV6, UdpSocket},
    path::Path,
    process::Command,
};

use lab::{Machine, Namespace, Process, output, wait_until};
use nix::net::if_::if_nametoindex;

use super::TIMEOUT;

const FILE: &str = "wire.pcapng";
/// What the kernel keeps of packets while dumpcap waits for a CPU: more than any test captures, in MiB.
const BUFFER_MIB: &str = "64";
/// All nodes of the link, by the discard service: nobody answers that (RFC 4443 section 2.4).
const END: (Ipv6Addr, u16) = (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 9);
/// Finds every bad checksum that tshark can tell in our traffic. An ICMP error quotes a segment
/// whose end is cut off, and whose checksum tshark judges all the same; it also objects to the
/// 0xffff that Linux writes for zero (`CSUM_MANGLED_0`), which any receiver takes for the same.
const BAD: &str = "ip.checksum.status == \"Bad\" || icmp.checksum.status == \"Bad\" \
    || icmpv6.checksum.status == \"Bad\" \
    || ((tcp.checksum.status == \"Bad\" && !tcp.checksum.ffff) || udp.checksum.status == \"Bad\") \
    && !icmp && !icmpv6";

/// A capture under way on a machine's interface.
#[derive(Debug)]
pub(crate) struct Capture<'net> {
    machine: &'net Machine,
    process: Process,
}

impl<'net> Capture<'net> {
    /// Starts to capture.
    pub(crate) fn start(machine: &'net Machine) -> Self {
        let file = Path::new(Namespace::FILES).join(FILE);
        let mut command = machine.namespace().command("dumpcap");
        command
            .args(["-q", "-B", BUFFER_MIB, "-i", Machine::INTERFACE, "-w"])
            .arg(file);
        let mut process = Process::spawn(&mut command).unwrap();
        process.wait_for_line("File: ", TIMEOUT).unwrap();
        Self { machine, process }
    }

    /// Ends the capture; every packet must have good checksums. Returns how many there are.
    pub(crate) fn assert_good_checksums(mut self) -> usize {
        self.stop();
        self.assert_none_bad()
    }

    /// Every packet of an ended capture must have good checksums. Returns how many there are.
    pub(crate) fn assert_none_bad(&self) -> usize {
        let bad = self.packets(BAD);
        assert!(bad.is_empty(), "bad checksums:\n{}", bad.join("\n"));
        self.packets("tcp || udp || icmp || icmpv6").len()
    }

    /// Ends the capture, once the file holds all that passed before.
    ///
    /// The kernel hands packets over a block at a time, and a block under way is lost with the
    /// capture: a last packet of our own must come out first.
    pub(crate) fn stop(&mut self) {
        let (address, port) = END;
        self.machine.namespace().run(|| {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
            let scope = if_nametoindex(Machine::INTERFACE).unwrap();
            let to = SocketAddrV6::new(address, port, 0, scope);
            socket.send_to(&[], to).unwrap();
        });
        let end = format!("ipv6.dst == {address} && udp.dstport == {port}");
        // A file that is being written may end within a packet.
        wait_until("the capture holds its end", TIMEOUT, || {
            self.read(&end).is_ok_and(|packets| !packets.is_empty())
        })
        .unwrap();
        self.process.stop(TIMEOUT).unwrap();
    }

    /// One line for each captured packet that a display filter finds.
    pub(crate) fn packets(&self, filter: &str) -> Vec<String> {
        self.read(filter).unwrap()
    }

    fn read(&self, filter: &str) -> lab::Result<Vec<String>> {
        let file = Path::new(Namespace::FILES).join(FILE);
        packets(self.machine.namespace().command("tshark"), &file, filter)
    }
}

/// One line for each packet of a file whose checksum tshark finds bad.
pub(crate) fn bad_checksums(file: &Path) -> Vec<String> {
    packets(Command::new("tshark"), file, BAD).unwrap()
}

fn packets(mut tshark: Command, file: &Path, filter: &str) -> lab::Result<Vec<String>> {
    tshark.arg("-r").arg(file).args(["-n", "-Y", filter]);
    for protocol in ["ip", "tcp", "udp"] {
        tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    let lines = output(&mut tshark)?;
    Ok(lines.lines().map(str::to_owned).collect())
}
