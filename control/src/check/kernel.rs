//! Judges the kernel, the rights of this process, and the ports that the kernel uses itself.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use fastpath::facts::{
    Bpffs, Capability, Jit, Kernel, KernelVersion, LocalPorts, Lockdown, NeighbourTable, Process,
    Softirq,
};

use super::finding::SubjectReport;
use crate::config::Datapath;
use crate::desired::NatSettings;

pub(super) fn kernel(report: &mut SubjectReport, kernel: &Kernel, datapath: Datapath) {
    let minimum = match datapath {
        Datapath::Xdp => KernelVersion::MINIMUM,
        Datapath::Afxdp => KernelVersion::WHOLE_EDGE,
    };
    let release = format!("{} ({minimum} or later is needed)", kernel.release);
    match kernel.version {
        Some(version) if version < minimum => report.fail("release", release, "upgrade the kernel"),
        Some(_) => report.ok("release", release),
        None => report.warn("release", release, "upgrade the kernel"),
    }
    match kernel.jit {
        Jit::On => report.ok("BPF JIT", "on"),
        Jit::Off => report.warn(
            "BPF JIT",
            "off: the program is interpreted, several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Jit::Unknown => report.warn(
            "BPF JIT",
            "not visible in this network namespace",
            "check in the host's network namespace",
        ),
    }
    if kernel.btf {
        report.ok("BTF", "/sys/kernel/btf/vmlinux is there");
    } else {
        report.warn(
            "BTF",
            "no /sys/kernel/btf/vmlinux",
            "use a kernel with CONFIG_DEBUG_INFO_BTF, as the distributions build it",
        );
    }
    if datapath == Datapath::Xdp && kernel.softirq != Softirq::InTurn {
        report.fail(
            "PREEMPT_RT",
            "without PREEMPT_RT_NEEDS_BH_LOCK, or it cannot be seen: the program's scratch memory of a CPU would be shared",
            "use a kernel with PREEMPT_RT_NEEDS_BH_LOCK=y and its /boot/config, or one without PREEMPT_RT",
        );
    }
    match kernel.lockdown {
        Lockdown::None => report.ok("lockdown", "none"),
        Lockdown::Integrity => report.ok("lockdown", "integrity, BPF works"),
        Lockdown::Confidentiality => report.warn(
            "lockdown",
            "confidentiality: some BPF helpers are refused",
            "boot with lockdown=integrity if the program does not load",
        ),
    }
}

/// Judges the rights of this process.
pub(super) fn process(process: &Process) -> SubjectReport {
    let mut report = SubjectReport::of("process");
    let missing = process.missing(&Capability::REQUIRED);
    if missing.is_empty() {
        report.ok("capabilities", list(&Capability::REQUIRED));
    } else {
        report.fail(
            "capabilities",
            format!("{} missing", list(&missing)),
            "run as root, or grant them to the unit or container",
        );
    }
    if process.in_user_namespace {
        report.fail(
            "user namespace",
            "capabilities count only inside a user namespace, where BPF is out of reach",
            "run outside of it (no rootless container)",
        );
    }
    report
}

/// What mending takes beside the rights that loading takes.
pub(super) const MENDING: [Capability; 2] = [Capability::NetRaw, Capability::IpcLock];

/// Judges whether packets can be mended, as the configuration asks for.
pub(super) fn mending(has_af_xdp: bool, missing: &[Capability]) -> SubjectReport {
    let mut report = SubjectReport::of("mend");
    if has_af_xdp {
        report.ok("AF_XDP", "the kernel has it");
    } else {
        report.fail(
            "AF_XDP",
            "the kernel is built without CONFIG_XDP_SOCKETS",
            "use a kernel that has it, as the distributions build it, or leave mend off",
        );
    }
    if !missing.contains(&Capability::NetRaw) {
        report.ok("sockets", Capability::NetRaw.to_string());
    } else {
        report.fail(
            "sockets",
            format!("{} missing", Capability::NetRaw),
            "grant it to the unit or container, or leave mend off",
        );
    }
    if !missing.contains(&Capability::IpcLock) {
        report.ok("locked memory", Capability::IpcLock.to_string());
    } else {
        report.warn(
            "locked memory",
            format!(
                "{} missing: each receive queue takes 2 MiB of the limit of locked memory",
                Capability::IpcLock
            ),
            "grant it to the unit or container, or raise the limit (LimitMEMLOCK=)",
        );
    }
    report
}

/// What the threads of `datapath: afxdp` take beside the rights that loading takes, and the memory that they lock.
pub(super) const WHOLE_EDGE: [Capability; 1] = [Capability::NetRaw];

/// Judges whether threads can take the frames, as the configuration asks for, and whether they should.
pub(super) fn whole_edge(
    kernel: &Kernel,
    has_af_xdp: bool,
    missing: &[Capability],
) -> SubjectReport {
    let mut report = SubjectReport::of("datapath");
    if has_af_xdp {
        report.ok("AF_XDP", "the kernel has it");
    } else {
        report.fail(
            "AF_XDP",
            "afxdp: the kernel is built without CONFIG_XDP_SOCKETS",
            "use a kernel that has it, as the distributions build it, or leave datapath out",
        );
    }
    if missing.is_empty() {
        report.ok("sockets", list(&WHOLE_EDGE));
    } else {
        report.fail(
            "sockets",
            format!("afxdp: {} missing", list(missing)),
            "grant it to the unit or container, or leave datapath out",
        );
    }
    if !kernel.is_older(KernelVersion::MINIMUM) {
        report.warn(
            "choice",
            format!(
                "afxdp: kernel {} runs the XDP programs, which do more and are faster",
                kernel.release
            ),
            "leave datapath out; for a NIC without native XDP set mode: generic",
        );
    }
    report
}

fn list(capabilities: &[Capability]) -> String {
    let names: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Judges the file system of the pin directory.
pub(super) fn bpffs(report: &mut SubjectReport, pin_dir: &Path, found: io::Result<Bpffs>) {
    let at = pin_dir.display();
    let wrong = match found {
        Ok(Bpffs::Mounted) => {
            return report.ok("bpffs", format!("{at} is on a BPF file system"));
        }
        Ok(Bpffs::Other { directory, .. }) => {
            let directory = directory.display();
            format!("{at} is not on a BPF file system ({directory} is not)")
        }
        Err(error) => format!("{at}: {error}"),
    };
    report.fail(
        "bpffs",
        wrong,
        "mount -t bpf bpf /sys/fs/bpf (in a container: mount the host's)",
    );
}

/// Judges whether the kernel may use a NodePort for its own connections. Packets of a client's established
/// connection would look like answers to these.
pub(super) fn node_ports(report: &mut SubjectReport, services: &BTreeSet<u16>, ports: &LocalPorts) {
    let (Some(first), Some(last)) = (services.first(), services.last()) else {
        return;
    };
    let mut taken = services.iter().filter(|port| ports.takes(**port));
    let Some(port) = taken.next() else {
        let none = "none in the range of the kernel's own connections";
        return report.ok("NodePorts", none);
    };
    report.warn(
        "NodePorts",
        format!(
            "{} of {} (as {port}) lie in the range of {}",
            1 + taken.count(),
            services.len(),
            own_connections(ports)
        ),
        format!(
            "sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}, with what is reserved already"
        ),
    );
}

/// Judges whether the kernel may use ports of NAT mode for its own connections. Answers to these would look
/// like a backend's.
pub(super) fn nat_ports(report: &mut SubjectReport, nat: &NatSettings, ports: &LocalPorts) {
    let range = nat.ports();
    let (first, last) = (*range.start(), *range.end());
    match range.filter(|port| ports.takes(*port)).count() {
        0 => report.ok(
            "NAT ports",
            format!("{first}-{last}, none of them the kernel's own"),
        ),
        taken => report.warn(
            "NAT ports",
            format!(
                "{taken} of {first}-{last} lie in the range of {}",
                own_connections(ports)
            ),
            format!(
                "set nat.ports to ports outside, or sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}, with \
                 what is reserved already"
            ),
        ),
    }
}

fn own_connections(ports: &LocalPorts) -> String {
    format!(
        "the kernel's own connections, {}-{}: a connection that gets such a port may break",
        ports.range.start(),
        ports.range.end()
    )
}

/// Judges whether the kernel's neighbour table has room, if the kernel reports its use. `v4` chooses the family.
pub(super) fn neighbours(report: &mut SubjectReport, v4: bool, table: NeighbourTable) {
    let NeighbourTable { entries, capacity } = table;
    let Some(entries) = entries else {
        return;
    };
    let (family, check) = if v4 {
        ("ipv4", "IPv4 neighbours")
    } else {
        ("ipv6", "IPv6 neighbours")
    };
    let filled = format!("{entries} of {capacity}");
    if entries.saturating_mul(4) < capacity.saturating_mul(3) {
        return report.ok(check, filled);
    }
    report.warn(
        check,
        filled,
        format!(
            "sysctl -w net.{family}.neigh.default.gc_thresh3={}, and gc_thresh2 to half of it: once the table is \
             full, no new neighbour is reached",
            capacity.saturating_mul(4)
        ),
    );
}

/// Judges whether NAT mode shares addresses with the kernel's masquerading, which could use the same ports.
pub(super) fn masquerade(
    report: &mut SubjectReport,
    shared: &BTreeSet<IpAddr>,
    masquerades: Option<bool>,
) {
    let (Some(address), Some(masquerades)) = (shared.first(), masquerades) else {
        return;
    };
    if !masquerades {
        return report.ok("masquerade", "no rule that takes ports of NAT mode");
    }
    let field = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    report.warn(
        "masquerade",
        format!(
            "rules masquerade, and NAT mode sends from {address} too: a masqueraded connection to one of its \
             backends may get a port of NAT mode, and break"
        ),
        format!("set nat.{field} to an address that only NAT mode uses"),
    );
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Finding, Severity};
    use super::*;

    /// Returns the one finding of a judgement, if there is any.
    fn found(report: impl FnOnce(&mut SubjectReport)) -> Option<Finding> {
        let mut judged = SubjectReport::of("kernel");
        report(&mut judged);
        assert!(judged.findings.len() < 2);
        judged.findings.pop()
    }

    #[test]
    fn neighbour_table_that_is_nearly_full_is_named() {
        let table = |entries| NeighbourTable {
            entries,
            capacity: 1000,
        };
        let severity = |entries| {
            found(|report| neighbours(report, true, table(Some(entries))))
                .unwrap()
                .severity
        };
        assert_eq!(severity(749), Severity::Ok);
        assert_eq!(severity(750), Severity::Warn);
        assert_eq!(found(|report| neighbours(report, true, table(None))), None);
        let finding = found(|report| neighbours(report, false, table(Some(1000)))).unwrap();
        assert_eq!(finding.detail, "1000 of 1000");
        let remedy = "sysctl -w net.ipv6.neigh.default.gc_thresh3=4000";
        assert!(finding.remedy.starts_with(remedy), "{finding:?}");
    }

    #[test]
    fn what_mending_lacks_is_named() {
        use Severity::{Fail, Ok, Warn};
        for (has_af_xdp, missing, expected) in [
            (true, &[][..], [Ok, Ok, Ok]),
            (false, &[], [Fail, Ok, Ok]),
            (true, &MENDING[..1], [Ok, Fail, Ok]),
            (true, &MENDING[1..], [Ok, Ok, Warn]),
        ] {
            let found = mending(has_af_xdp, missing).findings;
            let severities: Vec<_> = found.iter().map(|finding| finding.severity).collect();
            assert_eq!(severities, expected, "{found:?}");
        }
    }

    #[test]
    fn node_ports_that_the_kernel_takes_are_named_until_they_are_reserved() {
        let services = BTreeSet::from([30_000, 40_000]);
        let mut ports = LocalPorts {
            range: 32_768..=60_999,
            reserved: Vec::new(),
        };
        let finding = found(|report| node_ports(report, &services, &ports)).unwrap();
        assert_eq!(finding.severity, Severity::Warn);
        assert!(
            finding.detail.starts_with("1 of 2 (as 40000)"),
            "{finding:?}"
        );
        assert!(
            finding
                .remedy
                .contains("ip_local_reserved_ports=30000-40000")
        );
        ports.reserved.push(30_000..=40_000);
        assert_eq!(
            found(|report| node_ports(report, &services, &ports))
                .unwrap()
                .severity,
            Severity::Ok
        );
        assert_eq!(
            found(|report| node_ports(report, &BTreeSet::new(), &ports)),
            None
        );
    }

    #[test]
    fn nat_ports_that_the_kernel_takes_are_counted_until_they_are_reserved() {
        let mut ports = LocalPorts {
            range: 32_768..=60_999,
            reserved: Vec::new(),
        };
        let default = &found(|report| nat_ports(report, &NatSettings::default(), &ports)).unwrap();
        assert_eq!(default.severity, Severity::Ok, "{default:?}");
        let nat = NatSettings {
            first_port: 60_990,
            ports: 20,
            ..NatSettings::default()
        };
        let overlap = &found(|report| nat_ports(report, &nat, &ports)).unwrap();
        assert_eq!(overlap.severity, Severity::Warn);
        assert!(
            overlap.detail.starts_with("10 of 60990-61009"),
            "{overlap:?}"
        );
        assert!(overlap.remedy.contains("reserved_ports=60990-61009"));
        ports.reserved.push(60_990..=61_009);
        assert_eq!(
            found(|report| nat_ports(report, &nat, &ports))
                .unwrap()
                .severity,
            Severity::Ok
        );
    }

    #[test]
    fn masquerade_by_the_address_of_nat_mode_is_named() {
        let shared = BTreeSet::from(["2001:db8::1".parse().unwrap()]);
        let finding = found(|report| masquerade(report, &shared, Some(true))).unwrap();
        assert_eq!(finding.severity, Severity::Warn);
        assert!(finding.remedy.starts_with("set nat.ipv6"), "{finding:?}");
        assert_eq!(
            found(|report| masquerade(report, &shared, Some(false)))
                .unwrap()
                .severity,
            Severity::Ok
        );
        assert_eq!(
            found(|report| masquerade(report, &shared, None)),
            None,
            "the kernel does not tell"
        );
        assert_eq!(
            found(|report| masquerade(report, &BTreeSet::new(), Some(true))),
            None
        );
    }

    #[test]
    fn old_kernel_without_jit_is_named() {
        let mut report = SubjectReport::of("kernel");
        kernel(
            &mut report,
            &Kernel {
                release: "5.10.0-9-amd64".to_owned(),
                version: KernelVersion::parse("5.10.0-9-amd64"),
                jit: Jit::Off,
                btf: false,
                lockdown: Lockdown::Confidentiality,
                unprivileged_bpf_disabled: Some(true),
                softirq: Softirq::Unknown,
            },
            Datapath::Xdp,
        );
        let verdicts: Vec<Severity> = report
            .findings
            .iter()
            .map(|finding| finding.severity)
            .collect();
        assert_eq!(
            verdicts,
            [
                Severity::Fail,
                Severity::Warn,
                Severity::Warn,
                Severity::Fail,
                Severity::Warn
            ]
        );
    }

    #[test]
    fn missing_bpffs_fails_with_the_mount_command() {
        let other = Bpffs::Other {
            directory: "/sys/fs/bpf".into(),
            magic: 1,
        };
        let pin_dir = Path::new("/sys/fs/bpf/guideway");
        let finding = found(|report| bpffs(report, pin_dir, Ok(other))).unwrap();
        assert_eq!(finding.severity, Severity::Fail);
        assert!(finding.remedy.starts_with("mount -t bpf"), "{finding:?}");
    }
}
