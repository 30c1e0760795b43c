//! Judges interfaces: driver, queues, MTU, offloads, and other programs there.

use std::collections::BTreeMap;

use fastpath::facts::{
    Egress, Filter, Interface, InterfaceError, NativeXdp, ReversePathFilter, XdpMode,
};
use fastpath::port::xsk::OpenError;

use super::finding::SubjectReport;
use crate::chain::chain;
use crate::desired::AttachMode;
use crate::next_hop::CARRY_COST;

/// Length of the largest outer header, in bytes: IPv6.
const LARGEST_OUTER: u32 = 40;
/// MTU of clients on Ethernet, in bytes.
const CLIENT_MTU: u32 = 1_500;
/// Largest MTU, in bytes, at which a frame with XDP's headroom fits into one page. Above it, the driver needs
/// multi-buffer XDP.
const SINGLE_BUFFER_MTU: u32 = 3_498;

/// Judges an interface for an attach mode. `ours` says whether an agent has pinned a link for it.
pub(super) fn interface(
    interface: &Interface,
    mode: AttachMode,
    ours: bool,
    cpus: usize,
) -> SubjectReport {
    let mut report = SubjectReport::of(&interface.name);
    if interface.up {
        report.ok("state", "up");
    } else {
        report.warn(
            "state",
            "down",
            format!("ip link set {} up", interface.name),
        );
    }
    let generic = native_xdp(&mut report, interface, mode);
    veth(&mut report, interface);
    queues(&mut report, interface, cpus);
    mtu(&mut report, interface);
    offloads(&mut report, interface, generic);
    programs(&mut report, interface, ours);
    report
}

/// Judges whether the threads of `datapath: afxdp` get the receive queues of an interface, of which there are so many.
pub(super) fn thread_queues(
    report: &mut SubjectReport,
    queues: u32,
    try_open: impl Fn(u32) -> Result<(), OpenError>,
) {
    let mut taken = Vec::new();
    for queue in 0..queues {
        match try_open(queue) {
            Ok(()) => {}
            Err(OpenError::InUse { .. }) => taken.push(queue.to_string()),
            Err(error) => {
                return report.fail(
                    "AF_XDP queues",
                    format!("datapath \"afxdp\": {}", chain(&error)),
                    "leave datapath out if that cannot be mended",
                );
            }
        }
    }
    if taken.is_empty() {
        report.ok("AF_XDP queues", format!("{queues}, no program has them"));
    } else {
        report.fail(
            "AF_XDP queues",
            format!(
                "datapath \"afxdp\": another program has an AF_XDP socket on {} of {queues} queues ({})",
                taken.len(),
                taken.join(", ")
            ),
            "end that program, which `ss --xdp --processes` names, or leave datapath out",
        );
    }
}

fn driver(interface: &Interface) -> &str {
    interface.driver.as_deref().unwrap_or("no driver")
}

/// Says why a device has no native XDP; a virtual one has no driver that could have it.
fn unsupported(interface: &Interface) -> String {
    match &interface.driver {
        Some(driver) => format!("{driver} does not support it"),
        None => "the device has no driver".to_owned(),
    }
}

/// Judges the driver. Returns whether generic mode will be used.
fn native_xdp(report: &mut SubjectReport, interface: &Interface, mode: AttachMode) -> bool {
    const CHECK: &str = "native XDP";
    let driver = driver(interface);
    match (mode, interface.native_xdp) {
        (AttachMode::Generic, _) => report.warn(
            CHECK,
            format!("{driver}: generic mode is configured, several times slower"),
            "allow native mode unless it fails",
        ),
        (
            _,
            NativeXdp::Supported {
                several_buffers: false,
                ..
            },
        ) if interface.mtu > SINGLE_BUFFER_MTU => report.fail(
            CHECK,
            format!("{driver}: not with an MTU of {}", interface.mtu),
            format!(
                "ip link set {} mtu {SINGLE_BUFFER_MTU}, or less",
                interface.name
            ),
        ),
        (_, NativeXdp::Supported { .. }) => report.ok(CHECK, format!("{driver} supports it")),
        (AttachMode::Native, NativeXdp::Unsupported) => report.fail(
            CHECK,
            unsupported(interface),
            "set mode: native-or-generic, or use another NIC or driver",
        ),
        (AttachMode::NativeOrGeneric, NativeXdp::Unsupported) => report.warn(
            CHECK,
            format!(
                "{}: generic mode, several times slower",
                unsupported(interface)
            ),
            "use a NIC whose driver supports XDP",
        ),
        (_, NativeXdp::Unknown) => report.warn(
            CHECK,
            format!("{driver}: this kernel does not tell (6.3 or later does)"),
            "start the agent to find out",
        ),
    }
    mode == AttachMode::Generic
        || (mode == AttachMode::NativeOrGeneric && interface.native_xdp == NativeXdp::Unsupported)
}

/// Warns about a veth: its peer decides whether frames that XDP sends arrive, and arrive intact.
fn veth(report: &mut SubjectReport, interface: &Interface) {
    if interface.kind.as_deref() != Some("veth") {
        return;
    }
    // veth_xdp_xmit() in drivers/net/veth.c drops frames unless the receiving end runs NAPI.
    report.warn(
        "veth peer",
        "a frame that XDP sends by a veth is lost unless the other end has an XDP program or GRO; `guideway drops` \
         counts those that are",
        "attach a pass-through XDP program to the other end, or ethtool -K DEV gro on there",
    );
    report.warn(
        "veth checksums",
        "a sender at the other end that leaves checksums to the device sends packets without them, which \
         receivers drop after XDP has forwarded them",
        "ethtool -K DEV tx off at the sender's end",
    );
}

fn queues(report: &mut SubjectReport, interface: &Interface, cpus: usize) {
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
        report.warn("queues", detail, remedy);
    } else {
        report.ok("queues", detail);
    }
}

fn mtu(report: &mut SubjectReport, interface: &Interface) {
    let mtu = interface.mtu;
    let wanted = CLIENT_MTU + LARGEST_OUTER;
    if mtu >= wanted {
        let fits = format!("{mtu}: outer headers fit behind packets of {CLIENT_MTU}");
        return report.ok("MTU", fits);
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
    report.warn(
        "MTU",
        format!(
            "{mtu}: with mode ipip, larger packets than {} (IPv4 nodes) or {} (IPv6 nodes) do not fit",
            mtu.saturating_sub(20),
            mtu.saturating_sub(LARGEST_OUTER)
        ),
        remedy,
    );
}

fn offloads(report: &mut SubjectReport, interface: &Interface, generic: bool) {
    const CHECK: &str = "merging offloads";
    let Some(features) = &interface.features else {
        return report.warn(CHECK, "the kernel does not tell", "look with `ethtool -k`");
    };
    let merging = features.merging().join(", ");
    if merging.is_empty() {
        report.ok(CHECK, "off");
    } else if generic {
        report.warn(
            CHECK,
            format!("{merging}: the agent switches them off for generic mode"),
            "nothing, if other traffic of this interface can do without them",
        );
    } else {
        report.ok(CHECK, format!("{merging}: native XDP comes before them"));
    }
}

fn programs(report: &mut SubjectReport, interface: &Interface, ours: bool) {
    const CHECK: &str = "XDP program";
    let Some(program) = interface.programs.first() else {
        return report.ok(CHECK, "none");
    };
    let (id, mode) = (program.id, program.mode);
    if ours {
        return report.ok(CHECK, format!("Guideway's, id {id}, in {mode} mode"));
    }
    let off = match mode {
        XdpMode::Native => "xdpdrv",
        XdpMode::Generic => "xdpgeneric",
        XdpMode::Offloaded => "xdpoffload",
    };
    report.fail(
        CHECK,
        format!("another one, id {id}, in {mode} mode; it is left alone"),
        format!(
            "`bpftool prog show id {id}` names it; stop its owner, or `ip link set {} {off} off`",
            interface.name
        ),
    );
}

/// Judges whether each interface accepts frames that are redirected from the others. `ours` are the interfaces
/// for which an agent has pinned a link.
///
/// A frame that the target does not accept is lost after it was counted as forwarded, unless the agent `mends` packets,
/// and sends those.
pub(super) fn redirect_targets(
    used: &[(Interface, AttachMode)],
    ours: &[String],
    mends: bool,
) -> Vec<SubjectReport> {
    let mut judges = Vec::new();
    for (place, (interface, _)) in used.iter().enumerate() {
        let mut others = used.iter().enumerate().filter(|(other, _)| *other != place);
        // In generic mode the network stack sends the frame, so the driver does not matter.
        let is_native = |(_, (other, mode)): (usize, &(Interface, AttachMode))| {
            *mode != AttachMode::Generic && other.native_xdp != NativeXdp::Unsupported
        };
        if !others.any(is_native) {
            continue;
        }
        let driver = driver(interface);
        let mut report = SubjectReport::of(&interface.name);
        match interface.native_xdp {
            NativeXdp::Supported {
                redirect_target: true,
                ..
            } => report.ok("redirects", format!("{driver} takes frames of other interfaces")),
            // Many drivers set up their queues for redirected frames with the first program.
            NativeXdp::Supported { .. } if !ours.contains(&interface.name) => report.warn(
                "redirects",
                format!("{driver} takes no frames of other interfaces without an XDP program"),
                "check again when the agent runs, unless what comes in by another interface never leaves by \
                 this one",
            ),
            NativeXdp::Supported { .. } | NativeXdp::Unsupported if mends => report.ok(
                "redirects",
                format!(
                    "{driver} takes no frames of other interfaces: the agent sends what comes in there and leaves here, \
                     {CARRY_COST}"
                ),
            ),
            NativeXdp::Supported { .. } | NativeXdp::Unsupported => report.warn(
                "redirects",
                format!(
                    "{driver} takes no frames of other interfaces: what comes in there and leaves here is lost"
                ),
                "set mend: on, which has the agent send it; or have clients and nodes behind one interface (a VLAN or a \
                 bond), use a NIC whose driver takes redirected frames, or mode: generic on the others",
            ),
            // The finding about native XDP reports that the kernel is too old to tell.
            NativeXdp::Unknown => continue,
        }
        judges.push(report);
    }
    judges
}

/// Judges the other devices by which nodes are reached and that take no frames from XDP, each with the number of nodes.
pub(super) fn carriers(nodes: &BTreeMap<String, usize>, mends: bool) -> Vec<SubjectReport> {
    let judge = |(device, nodes): (&String, &usize)| {
        let mut report = SubjectReport::of(device);
        if mends {
            report.ok(
                "redirects",
                format!(
                    "takes no frames from XDP: the agent sends what is for {nodes} nodes, {CARRY_COST}"
                ),
            );
        } else {
            report.warn(
                "redirects",
                format!("takes no frames from XDP: what is for {nodes} nodes is lost"),
                "set mend: on, which has the agent send it; or reach the nodes by an interface of the configuration",
            );
        }
        report
    };
    nodes.iter().map(judge).collect()
}

/// Judges the egress hook of a device where a node's replies leave.
pub(super) fn egress(report: &mut SubjectReport, found: Result<Egress, InterfaceError>) {
    let egress = match found {
        Ok(egress) => egress,
        Err(error) => {
            return report.fail(
                "egress",
                error.to_string(),
                "run as root, on a kernel with tcx (6.6) or the modules sch_ingress and cls_bpf",
            );
        }
    };
    if egress.tcx.is_some() {
        return report.ok("egress", "tcx, before other programs");
    }
    match egress.filters.first().filter(|first| first.priority == 1) {
        Some(first) if !first.is_ours() => {
            let Filter { kind, name, .. } = first;
            let name = name.as_deref().unwrap_or("no name");
            report.warn(
                "egress",
                format!("a {kind} filter ({name}) of priority 1 runs before Guideway's"),
                "have its owner use another priority, or an answer of TC_ACT_UNSPEC; \
                 or use Linux 6.6, where Guideway runs first",
            );
        }
        _ => report.ok(
            "egress",
            "clsact: this kernel has no tcx (6.6 or later does)",
        ),
    }
}

/// Judges whether the kernel of a node accepts decapsulated packets. Their clients may be routed by another
/// interface.
pub(super) fn reverse_path_filter(
    report: &mut SubjectReport,
    name: &str,
    filter: ReversePathFilter,
) {
    match filter {
        ReversePathFilter::Strict => report.warn(
            "rp_filter",
            "strict: packets of clients that are routed by another interface are dropped after \
             the outer header is taken off",
            format!(
                "sysctl -w net.ipv4.conf.{name}.rp_filter=2 (loose), unless all clients are routed by {name}"
            ),
        ),
        ReversePathFilter::Off => report.ok("rp_filter", "off"),
        ReversePathFilter::Loose => report.ok("rp_filter", "loose"),
    }
}

#[cfg(test)]
mod tests;
