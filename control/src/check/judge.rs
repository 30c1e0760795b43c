//! The judgement over each fact, with its remedy.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use fastpath::facts::{
    Bpffs, Capability, Egress, Filter, Interface, InterfaceError, Jit, Kernel, KernelVersion,
    LocalPorts, Lockdown, NativeXdp, NeighbourTable, Process, ReversePathFilter, Softirq, XdpMode,
};

use super::{Finding, Verdict};
use crate::desired::{AttachMode, NatSettings};

/// Outer IPv6 header, the largest that is put in front of a packet.
const LARGEST_OUTER: u32 = 40;
/// MTU of a client's Ethernet.
const CLIENT_MTU: u32 = 1_500;
/// Larger frames do not fit one page with XDP's headroom, so the driver needs several buffers.
const SINGLE_BUFFER_MTU: u32 = 3_498;

/// Takes what is found; the remedy is kept only where something is wrong.
pub(super) struct Judge {
    subject: String,
    pub(super) findings: Vec<Finding>,
}

impl Judge {
    pub(super) fn of(subject: &str) -> Self {
        Self {
            subject: subject.to_owned(),
            findings: Vec::new(),
        }
    }

    pub(super) fn find(
        &mut self,
        verdict: Verdict,
        check: &'static str,
        detail: impl Into<String>,
        remedy: &str,
    ) {
        self.findings.push(Finding {
            verdict,
            subject: self.subject.clone(),
            check,
            detail: detail.into(),
            remedy: if verdict == Verdict::Ok {
                String::new()
            } else {
                remedy.to_owned()
            },
        });
    }
}

/// Judges the running kernel.
pub(super) fn kernel(kernel: &Kernel) -> Vec<Finding> {
    let mut judge = Judge::of("kernel");
    let minimum = KernelVersion::MINIMUM;
    let verdict = match kernel.version {
        Some(version) if version < minimum => Verdict::Fail,
        Some(_) => Verdict::Ok,
        None => Verdict::Warn,
    };
    judge.find(
        verdict,
        "release",
        format!("{} ({minimum} or later is needed)", kernel.release),
        "upgrade the kernel",
    );
    match kernel.jit {
        Jit::On => judge.find(Verdict::Ok, "BPF JIT", "on", ""),
        Jit::Off => judge.find(
            Verdict::Warn,
            "BPF JIT",
            "off: the program is interpreted, several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Jit::Unknown => judge.find(
            Verdict::Warn,
            "BPF JIT",
            "not visible in this network namespace",
            "check in the host's network namespace",
        ),
    }
    if kernel.btf {
        judge.find(Verdict::Ok, "BTF", "/sys/kernel/btf/vmlinux is there", "");
    } else {
        judge.find(
            Verdict::Warn,
            "BTF",
            "no /sys/kernel/btf/vmlinux",
            "use a kernel with CONFIG_DEBUG_INFO_BTF, as the distributions build it",
        );
    }
    if kernel.softirq != Softirq::InTurn {
        judge.find(
            Verdict::Fail,
            "PREEMPT_RT",
            "without PREEMPT_RT_NEEDS_BH_LOCK, or it cannot be seen: the program's scratch memory of a CPU would be shared",
            "use a kernel with PREEMPT_RT_NEEDS_BH_LOCK=y and its /boot/config, or one without PREEMPT_RT",
        );
    }
    match kernel.lockdown {
        Lockdown::None => judge.find(Verdict::Ok, "lockdown", "none", ""),
        Lockdown::Integrity => judge.find(Verdict::Ok, "lockdown", "integrity, BPF works", ""),
        Lockdown::Confidentiality => judge.find(
            Verdict::Warn,
            "lockdown",
            "confidentiality: some BPF helpers are refused",
            "boot with lockdown=integrity if the program does not load",
        ),
    }
    judge.findings
}

/// Judges what this process may do.
pub(super) fn process(process: &Process) -> Vec<Finding> {
    let mut judge = Judge::of("process");
    let missing = process.missing(&Capability::REQUIRED);
    if missing.is_empty() {
        judge.find(Verdict::Ok, "capabilities", list(&Capability::REQUIRED), "");
    } else {
        judge.find(
            Verdict::Fail,
            "capabilities",
            format!("{} missing", list(&missing)),
            "run as root, or grant them to the unit or container",
        );
    }
    if process.in_user_namespace {
        judge.find(
            Verdict::Fail,
            "user namespace",
            "capabilities count only inside a user namespace, where BPF is out of reach",
            "run outside of it (no rootless container)",
        );
    }
    judge.findings
}

fn list(capabilities: &[Capability]) -> String {
    let names: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// Judges the file system of the pin directory.
pub(super) fn bpffs(pin_dir: &Path, found: io::Result<Bpffs>) -> Finding {
    let mut judge = Judge::of("kernel");
    let at = pin_dir.display();
    match found {
        Ok(Bpffs::Mounted) => judge.find(
            Verdict::Ok,
            "bpffs",
            format!("{at} is on a BPF file system"),
            "",
        ),
        Ok(Bpffs::Other { directory, .. }) => judge.find(
            Verdict::Fail,
            "bpffs",
            format!(
                "{at} is not on a BPF file system ({} is not)",
                directory.display()
            ),
            "mount -t bpf bpf /sys/fs/bpf (in a container: mount the host's)",
        ),
        Err(error) => judge.find(
            Verdict::Fail,
            "bpffs",
            format!("{at}: {error}"),
            "mount -t bpf bpf /sys/fs/bpf (in a container: mount the host's)",
        ),
    }
    judge.findings.remove(0)
}

/// Reports an interface that cannot be read.
pub(super) fn unreadable(name: &str, error: &InterfaceError) -> Finding {
    Finding {
        verdict: Verdict::Fail,
        subject: name.to_owned(),
        check: "interface",
        detail: error.to_string(),
        remedy: "use a name that `ip link` shows".to_owned(),
    }
}

/// Judges an interface for the mode it shall be attached in; `ours` if an agent's link is pinned for it.
pub(super) fn interface(
    interface: &Interface,
    mode: AttachMode,
    ours: bool,
    cpus: usize,
) -> Vec<Finding> {
    let mut judge = Judge::of(&interface.name);
    if interface.up {
        judge.find(Verdict::Ok, "state", "up", "");
    } else {
        let remedy = format!("ip link set {} up", interface.name);
        judge.find(Verdict::Warn, "state", "down", &remedy);
    }
    let generic = native_xdp(&mut judge, interface, mode);
    cable(&mut judge, interface);
    queues(&mut judge, interface, cpus);
    mtu(&mut judge, interface);
    offloads(&mut judge, interface, generic);
    programs(&mut judge, interface, ours);
    judge.findings
}

/// Judges the driver; returns whether generic mode will be used.
fn native_xdp(judge: &mut Judge, interface: &Interface, mode: AttachMode) -> bool {
    let driver = interface.driver.as_deref().unwrap_or("no driver");
    if mode == AttachMode::Generic {
        judge.find(
            Verdict::Warn,
            "native XDP",
            format!("{driver}: generic mode is configured, several times slower"),
            "allow native mode unless it fails",
        );
        return true;
    }
    match interface.native_xdp {
        NativeXdp::Supported {
            several_buffers, ..
        } => {
            if interface.mtu > SINGLE_BUFFER_MTU && !several_buffers {
                judge.find(
                    Verdict::Fail,
                    "native XDP",
                    format!("{driver}: not with an MTU of {}", interface.mtu),
                    &format!(
                        "ip link set {} mtu {SINGLE_BUFFER_MTU}, or less",
                        interface.name
                    ),
                );
            } else {
                judge.find(
                    Verdict::Ok,
                    "native XDP",
                    format!("{driver} supports it"),
                    "",
                );
            }
            false
        }
        NativeXdp::Unsupported if mode == AttachMode::Native => {
            judge.find(
                Verdict::Fail,
                "native XDP",
                format!("{driver} does not support it"),
                "set mode: native-or-generic, or use another NIC or driver",
            );
            false
        }
        NativeXdp::Unsupported => {
            judge.find(
                Verdict::Warn,
                "native XDP",
                format!("{driver} does not support it: generic mode, several times slower"),
                "use a NIC whose driver supports XDP",
            );
            true
        }
        NativeXdp::Unknown => {
            judge.find(
                Verdict::Warn,
                "native XDP",
                format!("{driver}: this kernel does not tell (6.3 or later does)"),
                "start the agent to find out",
            );
            false
        }
    }
}

/// Warns of a veth, whose other end decides whether what XDP sends by it arrives, and arrives whole.
fn cable(judge: &mut Judge, interface: &Interface) {
    if interface.kind.as_deref() != Some("veth") {
        return;
    }
    // veth_xdp_xmit() in drivers/net/veth.c takes a frame only where the receiving end runs NAPI.
    judge.find(
        Verdict::Warn,
        "veth peer",
        "a frame that XDP sends by a veth is lost unless the other end has an XDP program or GRO; `guideway drops` \
         counts those that are",
        "attach a pass-through XDP program to the other end, or ethtool -K DEV gro on there",
    );
    judge.find(
        Verdict::Warn,
        "veth checksums",
        "a sender at the other end that leaves checksums to the device sends packets without them, which \
         receivers drop after XDP has forwarded them",
        "ethtool -K DEV tx off at the sender's end",
    );
}

fn queues(judge: &mut Judge, interface: &Interface, cpus: usize) {
    let queues = interface.rx_queues;
    let most = interface.channels.map_or(queues, |channels| {
        channels.rx_max.max(channels.combined_max).max(queues)
    });
    let useful = usize::try_from(most).unwrap_or(usize::MAX).min(cpus);
    let detail = format!("receive queues: {queues} of {most}, CPUs: {cpus}");
    if usize::try_from(queues).is_ok_and(|queues| queues < useful) {
        let kind = match interface.channels {
            Some(channels) if channels.combined_max > 0 => "combined",
            _ => "rx",
        };
        let remedy = format!("ethtool -L {} {kind} {useful}", interface.name);
        judge.find(Verdict::Warn, "queues", detail, &remedy);
    } else {
        judge.find(Verdict::Ok, "queues", detail, "");
    }
}

fn mtu(judge: &mut Judge, interface: &Interface) {
    let mtu = interface.mtu;
    let wanted = CLIENT_MTU + LARGEST_OUTER;
    if mtu >= wanted {
        judge.find(
            Verdict::Ok,
            "MTU",
            format!("{mtu}: outer headers fit behind packets of {CLIENT_MTU}"),
            "",
        );
        return;
    }
    let possible = interface.mtu_max.is_none_or(|most| most >= wanted);
    let remedy = if possible {
        format!(
            "for mode ipip: ip link set {} mtu {wanted}, here and on the way to the nodes",
            interface.name
        )
    } else {
        "for mode ipip: lower the clients' MSS, for example by `advmss` on the nodes' routes"
            .to_owned()
    };
    judge.find(
        Verdict::Warn,
        "MTU",
        format!(
            "{mtu}: with mode ipip, larger packets than {} (IPv4 nodes) or {} (IPv6 nodes) do not fit",
            mtu.saturating_sub(20),
            mtu.saturating_sub(LARGEST_OUTER)
        ),
        &remedy,
    );
}

fn offloads(judge: &mut Judge, interface: &Interface, generic: bool) {
    let Some(features) = &interface.features else {
        judge.find(
            Verdict::Warn,
            "merging offloads",
            "the kernel does not tell",
            "look with `ethtool -k`",
        );
        return;
    };
    let merging = features.merging();
    if merging.is_empty() {
        judge.find(Verdict::Ok, "merging offloads", "off", "");
    } else if generic {
        judge.find(
            Verdict::Warn,
            "merging offloads",
            format!(
                "{}: the agent switches them off for generic mode",
                merging.join(", ")
            ),
            "nothing, if other traffic of this interface can do without them",
        );
    } else {
        let detail = format!("{}: native XDP comes before them", merging.join(", "));
        judge.find(Verdict::Ok, "merging offloads", detail, "");
    }
}

fn programs(judge: &mut Judge, interface: &Interface, ours: bool) {
    match interface.programs.first() {
        None => judge.find(Verdict::Ok, "XDP program", "none", ""),
        Some(program) if ours => judge.find(
            Verdict::Ok,
            "XDP program",
            format!("Guideway's, id {}, in {} mode", program.id, program.mode),
            "",
        ),
        Some(program) => {
            let off = match program.mode {
                XdpMode::Native => "xdpdrv",
                XdpMode::Generic => "xdpgeneric",
                XdpMode::Offloaded => "xdpoffload",
            };
            judge.find(
                Verdict::Fail,
                "XDP program",
                format!("another one, id {}, in {} mode; it is left alone", program.id, program.mode),
                &format!(
                    "`bpftool prog show id {}` names it; stop its owner, or `ip link set {} {off} off`",
                    program.id, interface.name
                ),
            );
        }
    }
}

/// Judges whether each of several interfaces takes what comes in by another one and is redirected to it; `ours`
/// are those that an agent's link is pinned for.
///
/// A frame that the target does not take is lost after it was counted as forwarded.
pub(super) fn redirect_targets(used: &[(Interface, AttachMode)], ours: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (place, (interface, _)) in used.iter().enumerate() {
        let mut others = used.iter().enumerate().filter(|(other, _)| *other != place);
        // In generic mode the stack sends, which needs nothing of the driver.
        let is_native = |(_, (other, mode)): (usize, &(Interface, AttachMode))| {
            *mode != AttachMode::Generic && other.native_xdp != NativeXdp::Unsupported
        };
        if !others.any(is_native) {
            continue;
        }
        let driver = interface.driver.as_deref().unwrap_or("no driver");
        let mut judge = Judge::of(&interface.name);
        match interface.native_xdp {
            NativeXdp::Supported {
                redirect_target: true,
                ..
            } => judge.find(
                Verdict::Ok,
                "redirects",
                format!("{driver} takes frames of other interfaces"),
                "",
            ),
            // Many drivers set up the queues for it with the first program.
            NativeXdp::Supported { .. } if !ours.contains(&interface.name) => judge.find(
                Verdict::Warn,
                "redirects",
                format!("{driver} takes no frames of other interfaces without an XDP program"),
                "check again when the agent runs, unless what comes in by another interface never leaves by \
                 this one",
            ),
            NativeXdp::Supported { .. } | NativeXdp::Unsupported => judge.find(
                Verdict::Warn,
                "redirects",
                format!(
                    "{driver} takes no frames of other interfaces: what comes in there and leaves here is lost"
                ),
                "have clients and nodes behind one interface (a VLAN or a bond), use a NIC whose driver takes \
                 redirected frames, or mode: generic on the others",
            ),
            // The finding about native XDP tells that the kernel is too old.
            NativeXdp::Unknown => continue,
        }
        findings.append(&mut judge.findings);
    }
    findings
}

/// Judges what runs where a node's replies leave.
pub(super) fn egress(name: &str, found: Result<Egress, InterfaceError>) -> Finding {
    let mut judge = Judge::of(name);
    match found {
        Ok(Egress { tcx: Some(_), .. }) => {
            judge.find(Verdict::Ok, "egress", "tcx, before other programs", "");
        }
        Ok(Egress { tcx: None, filters }) => {
            match filters.first().filter(|first| first.priority == 1) {
                Some(first) if !first.is_ours() => {
                    let Filter { kind, name, .. } = first;
                    let name = name.as_deref().unwrap_or("no name");
                    judge.find(
                        Verdict::Warn,
                        "egress",
                        format!("a {kind} filter ({name}) of priority 1 runs before Guideway's"),
                        "have its owner use another priority, or an answer of TC_ACT_UNSPEC; \
                     or use Linux 6.6, where Guideway runs first",
                    );
                }
                _ => judge.find(
                    Verdict::Ok,
                    "egress",
                    "clsact: this kernel has no tcx (6.6 or later does)",
                    "",
                ),
            }
        }
        Err(error) => judge.find(
            Verdict::Fail,
            "egress",
            error.to_string(),
            "run as root, on a kernel with tcx (6.6) or the modules sch_ingress and cls_bpf",
        ),
    }
    judge.findings.remove(0)
}

/// Judges whether a node's kernel takes decapsulated packets, whose clients may be routed elsewhere.
pub(super) fn reverse_path_filter(
    name: &str,
    filter: Option<ReversePathFilter>,
) -> Option<Finding> {
    let mut judge = Judge::of(name);
    match filter? {
        ReversePathFilter::Strict => judge.find(
            Verdict::Warn,
            "rp_filter",
            "strict: packets of clients that are routed by another interface are dropped after \
             the outer header is taken off",
            &format!(
                "sysctl -w net.ipv4.conf.{name}.rp_filter=2 (loose), unless all clients are routed \
                 by {name}"
            ),
        ),
        ReversePathFilter::Off => judge.find(Verdict::Ok, "rp_filter", "off", ""),
        ReversePathFilter::Loose => judge.find(Verdict::Ok, "rp_filter", "loose", ""),
    }
    judge.findings.pop()
}

/// Judges whether the kernel takes NodePorts for its own connections, whose answers a SYN-less
/// NodePort packet then looks like.
pub(super) fn node_ports(services: &BTreeSet<u16>, ports: &LocalPorts) -> Option<Finding> {
    let (first, last) = (services.first()?, services.last()?);
    let mut judge = Judge::of("kernel");
    let taken: Vec<u16> = services
        .iter()
        .copied()
        .filter(|port| ports.takes(*port))
        .collect();
    match taken.first() {
        None => judge.find(
            Verdict::Ok,
            "NodePorts",
            "none in the range of the kernel's own connections",
            "",
        ),
        Some(port) => judge.find(
            Verdict::Warn,
            "NodePorts",
            format!(
                "{} of {} (as {port}) lie in the range of the kernel's own connections, {}-{}: \
                 a connection that gets such a port may break",
                taken.len(),
                services.len(),
                ports.range.start(),
                ports.range.end()
            ),
            &format!(
                "sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}, \
                 with what is reserved already"
            ),
        ),
    }
    judge.findings.pop()
}

/// Judges whether the kernel's table of neighbours has room; of those that say how full they are.
pub(super) fn neighbours(v4: bool, table: NeighbourTable) -> Option<Finding> {
    let NeighbourTable { entries, capacity } = table;
    let entries = entries?;
    let (family, check) = if v4 {
        ("ipv4", "IPv4 neighbours")
    } else {
        ("ipv6", "IPv6 neighbours")
    };
    let mut judge = Judge::of("kernel");
    let verdict = if entries.saturating_mul(4) >= capacity.saturating_mul(3) {
        Verdict::Warn
    } else {
        Verdict::Ok
    };
    judge.find(
        verdict,
        check,
        format!("{entries} of {capacity}"),
        &format!(
            "sysctl -w net.{family}.neigh.default.gc_thresh3={}, and gc_thresh2 to half of it: once the table is \
             full, no new neighbour is reached",
            capacity.saturating_mul(4)
        ),
    );
    judge.findings.pop()
}

/// Judges whether the kernel takes ports of NAT mode for its own connections, whose answers then look like a
/// backend's.
pub(super) fn nat_ports(nat: &NatSettings, ports: &LocalPorts) -> Vec<Finding> {
    let range = nat.ports();
    let (first, last) = (*range.start(), *range.end());
    let taken = range.filter(|port| ports.takes(*port)).count();
    let (verdict, detail) = match taken {
        0 => (
            Verdict::Ok,
            format!("{first}-{last}, none of them the kernel's own"),
        ),
        _ => (
            Verdict::Warn,
            format!(
                "{taken} of {first}-{last} lie in the range of the kernel's own connections, {}-{}: \
                 a connection that gets such a port may break",
                ports.range.start(),
                ports.range.end()
            ),
        ),
    };
    let remedy = format!(
        "set nat.ports to ports outside, or sysctl -w \
         net.ipv4.ip_local_reserved_ports={first}-{last}, with what is reserved already"
    );
    let mut judge = Judge::of("kernel");
    judge.find(verdict, "NAT ports", detail, &remedy);
    judge.findings
}

/// Judges whether NAT mode sends from addresses that the kernel masquerades by, with the same ports.
pub(super) fn masquerade(shared: &BTreeSet<IpAddr>, masquerades: Option<bool>) -> Option<Finding> {
    let address = shared.first()?;
    let field = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let (verdict, detail) = match masquerades? {
        false => (
            Verdict::Ok,
            "no rule that takes ports of NAT mode".to_owned(),
        ),
        true => (
            Verdict::Warn,
            format!(
                "rules masquerade, and NAT mode sends from {address} too: a masqueraded connection to one \
                 of its backends may get a port of NAT mode, and break"
            ),
        ),
    };
    let mut judge = Judge::of("kernel");
    let remedy = format!("set nat.{field} to an address that only NAT mode uses");
    judge.find(verdict, "masquerade", detail, &remedy);
    judge.findings.pop()
}

#[cfg(test)]
mod tests {
    use fastpath::facts::{Channels, Features, XdpProgram};

    use super::*;

    fn nic() -> Interface {
        Interface {
            name: "eth0".to_owned(),
            index: 2,
            up: true,
            mtu: 9_000,
            mtu_max: Some(9_600),
            kind: None,
            driver: Some("ice".to_owned()),
            lower: None,
            controller: None,
            rx_queues: 8,
            channels: None,
            features: Some(Features::default()),
            native_xdp: NativeXdp::Supported {
                redirect_target: true,
                zero_copy: true,
                several_buffers: true,
            },
            programs: Vec::new(),
        }
    }

    fn judged(nic: &Interface, mode: AttachMode, ours: bool) -> Vec<(&'static str, Verdict)> {
        let findings = interface(nic, mode, ours, 8);
        for finding in &findings {
            assert_eq!(
                finding.remedy.is_empty(),
                finding.verdict == Verdict::Ok,
                "{finding:?}"
            );
        }
        findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Ok)
            .map(|finding| (finding.check, finding.verdict))
            .collect()
    }

    #[test]
    fn good_nic_has_nothing_to_mend() {
        assert_eq!(judged(&nic(), AttachMode::Native, false), []);
    }

    #[test]
    fn each_obstacle_of_an_interface_is_named() {
        let mode = AttachMode::NativeOrGeneric;
        let down = Interface { up: false, ..nic() };
        assert_eq!(judged(&down, mode, false), [("state", Verdict::Warn)]);
        let small = Interface {
            mtu: 1_500,
            ..nic()
        };
        assert_eq!(judged(&small, mode, false), [("MTU", Verdict::Warn)]);
        let few = Interface {
            rx_queues: 1,
            channels: Some(Channels {
                combined: 1,
                combined_max: 4,
                ..Channels::default()
            }),
            ..nic()
        };
        assert_eq!(judged(&few, mode, false), [("queues", Verdict::Warn)]);
        let single = Interface {
            native_xdp: NativeXdp::Supported {
                redirect_target: true,
                zero_copy: false,
                several_buffers: false,
            },
            ..nic()
        };
        assert_eq!(
            judged(&single, mode, false),
            [("native XDP", Verdict::Fail)]
        );
        let old = Interface {
            native_xdp: NativeXdp::Unknown,
            ..nic()
        };
        assert_eq!(judged(&old, mode, false), [("native XDP", Verdict::Warn)]);
    }

    #[test]
    fn veth_is_warned_of_with_both_remedies() {
        let veth = Interface {
            kind: Some("veth".to_owned()),
            ..nic()
        };
        for mode in [AttachMode::Native, AttachMode::NativeOrGeneric] {
            assert_eq!(
                judged(&veth, mode, true),
                [
                    ("veth peer", Verdict::Warn),
                    ("veth checksums", Verdict::Warn)
                ]
            );
        }
        let remedies: Vec<String> = interface(&veth, AttachMode::Native, true, 1)
            .into_iter()
            .map(|finding| finding.remedy)
            .collect();
        let remedies = remedies.join("\n");
        for remedy in ["pass-through", "gro on", "tx off"] {
            assert!(remedies.contains(remedy), "{remedies}");
        }
    }

    #[test]
    fn driver_without_xdp_fails_only_where_native_is_asked_for() {
        let nic = Interface {
            native_xdp: NativeXdp::Unsupported,
            features: Some(Features {
                active: ["rx-gro".to_owned()].into(),
            }),
            ..nic()
        };
        assert_eq!(
            judged(&nic, AttachMode::Native, false),
            [("native XDP", Verdict::Fail)]
        );
        assert_eq!(
            judged(&nic, AttachMode::NativeOrGeneric, false),
            [
                ("native XDP", Verdict::Warn),
                ("merging offloads", Verdict::Warn)
            ]
        );
    }

    #[test]
    fn foreign_program_fails_and_our_own_does_not() {
        let nic = Interface {
            programs: vec![XdpProgram {
                mode: XdpMode::Native,
                id: 7,
            }],
            ..nic()
        };
        assert_eq!(judged(&nic, AttachMode::Native, true), []);
        assert_eq!(
            judged(&nic, AttachMode::Native, false),
            [("XDP program", Verdict::Fail)]
        );
    }

    #[test]
    fn interface_that_takes_no_redirected_frames_is_named_where_another_one_could_send_some() {
        let named = |name: &str, native_xdp| Interface {
            name: name.to_owned(),
            native_xdp,
            ..nic()
        };
        let supported = |redirect_target| NativeXdp::Supported {
            redirect_target,
            zero_copy: false,
            several_buffers: true,
        };
        let native = AttachMode::NativeOrGeneric;
        let judged = |used: &[(Interface, AttachMode)], ours: &[&str]| {
            let ours: Vec<String> = ours.iter().map(|name| (*name).to_owned()).collect();
            let findings = redirect_targets(used, &ours).into_iter();
            findings
                .map(|finding| (finding.subject, finding.verdict, finding.detail))
                .collect::<Vec<_>>()
        };
        let (good, bad) = (
            named("eth0", supported(true)),
            named("eth1", supported(false)),
        );
        assert_eq!(
            judged(&[(bad.clone(), native)], &["eth1"]),
            [],
            "it is alone"
        );

        let both = [(good.clone(), native), (bad.clone(), native)];
        let found = judged(&both, &["eth0", "eth1"]);
        let verdicts: Vec<_> = found
            .iter()
            .map(|(name, verdict, _)| (&**name, *verdict))
            .collect();
        assert_eq!(verdicts, [("eth0", Verdict::Ok), ("eth1", Verdict::Warn)]);
        assert!(found[1].2.ends_with("is lost"), "{found:?}");
        let before = judged(&both, &["eth0"]);
        assert!(before[1].2.contains("without an XDP program"), "{before:?}");

        // Only the other one's stack sends.
        let generic = [(good.clone(), AttachMode::Generic), (bad, native)];
        let named_ones: Vec<_> = judged(&generic, &[]).into_iter().map(|one| one.0).collect();
        assert_eq!(named_ones, ["eth0"]);

        let without = [
            (good.clone(), native),
            (named("eth1", NativeXdp::Unsupported), native),
        ];
        assert_eq!(judged(&without, &[]), judged(&without, &["eth1"]));
        assert!(judged(&without, &[])[0].2.ends_with("is lost"));
        let old = [(good, native), (named("eth1", NativeXdp::Unknown), native)];
        assert_eq!(judged(&old, &[]).len(), 1);
    }

    #[test]
    fn strict_reverse_path_filter_is_named() {
        let verdict = |filter| reverse_path_filter("eth0", Some(filter)).unwrap().verdict;
        assert_eq!(verdict(ReversePathFilter::Strict), Verdict::Warn);
        assert_eq!(verdict(ReversePathFilter::Loose), Verdict::Ok);
        assert_eq!(verdict(ReversePathFilter::Off), Verdict::Ok);
        assert_eq!(reverse_path_filter("eth0", None), None);
    }

    #[test]
    fn neighbour_table_that_is_nearly_full_is_named() {
        let table = |entries| NeighbourTable {
            entries,
            capacity: 1000,
        };
        let verdict = |entries| neighbours(true, table(Some(entries))).unwrap().verdict;
        assert_eq!(verdict(749), Verdict::Ok);
        assert_eq!(verdict(750), Verdict::Warn);
        assert_eq!(neighbours(true, table(None)), None);
        let finding = neighbours(false, table(Some(1000))).unwrap();
        assert_eq!(finding.detail, "1000 of 1000");
        let remedy = "sysctl -w net.ipv6.neigh.default.gc_thresh3=4000";
        assert!(finding.remedy.starts_with(remedy), "{finding:?}");
    }

    #[test]
    fn node_ports_that_the_kernel_takes_are_named_until_they_are_reserved() {
        let services = BTreeSet::from([30_000, 40_000]);
        let mut ports = LocalPorts {
            range: 32_768..=60_999,
            reserved: Vec::new(),
        };
        let finding = node_ports(&services, &ports).unwrap();
        assert_eq!(finding.verdict, Verdict::Warn);
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
        assert_eq!(node_ports(&services, &ports).unwrap().verdict, Verdict::Ok);
        assert_eq!(node_ports(&BTreeSet::new(), &ports), None);
    }

    #[test]
    fn nat_ports_that_the_kernel_takes_are_counted_until_they_are_reserved() {
        let mut ports = LocalPorts {
            range: 32_768..=60_999,
            reserved: Vec::new(),
        };
        let default = &nat_ports(&NatSettings::default(), &ports)[0];
        assert_eq!(default.verdict, Verdict::Ok, "{default:?}");
        let nat = NatSettings {
            first_port: 60_990,
            ports: 20,
            ..NatSettings::default()
        };
        let overlap = &nat_ports(&nat, &ports)[0];
        assert_eq!(overlap.verdict, Verdict::Warn);
        assert!(
            overlap.detail.starts_with("10 of 60990-61009"),
            "{overlap:?}"
        );
        assert!(overlap.remedy.contains("reserved_ports=60990-61009"));
        ports.reserved.push(60_990..=61_009);
        assert_eq!(nat_ports(&nat, &ports)[0].verdict, Verdict::Ok);
    }

    #[test]
    fn masquerade_by_the_address_of_nat_mode_is_named() {
        let shared = BTreeSet::from(["2001:db8::1".parse().unwrap()]);
        let finding = masquerade(&shared, Some(true)).unwrap();
        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.remedy.starts_with("set nat.ipv6"), "{finding:?}");
        assert_eq!(
            masquerade(&shared, Some(false)).unwrap().verdict,
            Verdict::Ok
        );
        assert_eq!(masquerade(&shared, None), None, "the kernel does not tell");
        assert_eq!(masquerade(&BTreeSet::new(), Some(true)), None);
    }

    #[test]
    fn egress_is_possible_with_tcx_and_without() {
        let tcx = Egress {
            tcx: Some(Vec::new()),
            filters: Vec::new(),
        };
        let clsact = Egress {
            tcx: None,
            filters: Vec::new(),
        };
        for found in [tcx, clsact] {
            assert_eq!(egress("eth0", Ok(found)).verdict, Verdict::Ok);
        }
        let name = "eth0".to_owned();
        let gone = egress("eth0", Err(InterfaceError::NotFound { name }));
        assert_eq!(gone.verdict, Verdict::Fail);
    }

    #[test]
    fn old_kernel_without_jit_is_named() {
        let findings = kernel(&Kernel {
            release: "5.10.0-9-amd64".to_owned(),
            version: KernelVersion::parse("5.10.0-9-amd64"),
            jit: Jit::Off,
            btf: false,
            lockdown: Lockdown::Confidentiality,
            unprivileged_bpf_disabled: Some(true),
            softirq: Softirq::Unknown,
        });
        let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Fail,
                Verdict::Warn,
                Verdict::Warn,
                Verdict::Fail,
                Verdict::Warn
            ]
        );
    }

    #[test]
    fn missing_bpffs_fails_with_the_mount_command() {
        let finding = bpffs(
            Path::new("/sys/fs/bpf/guideway"),
            Ok(Bpffs::Other {
                directory: "/sys/fs/bpf".into(),
                magic: 1,
            }),
        );
        assert_eq!(finding.verdict, Verdict::Fail);
        assert!(finding.remedy.starts_with("mount -t bpf"), "{finding:?}");
    }
}
