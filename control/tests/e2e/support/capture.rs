//! What passes on a machine's wire, judged by tshark.

use std::path::Path;

use lab::{Machine, Namespace, Process, output};

use super::TIMEOUT;

const FILE: &str = "wire.pcapng";
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
            .args(["-q", "-i", Machine::INTERFACE, "-w"])
            .arg(file);
        let mut process = Process::spawn(&mut command).unwrap();
        process.wait_for_line("File: ", TIMEOUT).unwrap();
        Self { machine, process }
    }

    /// Ends the capture; every packet must have good checksums. Returns how many there are.
    pub(crate) fn assert_good_checksums(mut self) -> usize {
        self.stop();
        let bad = self.packets(BAD);
        assert!(bad.is_empty(), "bad checksums:\n{}", bad.join("\n"));
        self.packets("tcp || udp || icmp || icmpv6").len()
    }

    /// Ends the capture.
    pub(crate) fn stop(&mut self) {
        self.process.stop(TIMEOUT).unwrap();
    }

    /// One line for each captured packet that a display filter finds.
    pub(crate) fn packets(&self, filter: &str) -> Vec<String> {
        let mut tshark = self.machine.namespace().command("tshark");
        let file = Path::new(Namespace::FILES).join(FILE);
        tshark.arg("-r").arg(file).args(["-n", "-Y", filter]);
        for protocol in ["ip", "tcp", "udp"] {
            tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
        }
        let lines = output(&mut tshark).unwrap();
        lines.lines().map(str::to_owned).collect()
    }
}
