use fastpath::facts::{Channels, Features, XdpProgram};

use super::super::finding::{Finding, Severity};
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

fn judged(nic: &Interface, mode: AttachMode, ours: bool) -> Vec<(&'static str, Severity)> {
    let findings = interface(nic, mode, ours, 8).findings;
    for finding in &findings {
        assert_eq!(
            finding.remedy.is_empty(),
            finding.severity == Severity::Ok,
            "{finding:?}"
        );
    }
    findings
        .iter()
        .filter(|finding| finding.severity != Severity::Ok)
        .map(|finding| (finding.check, finding.severity))
        .collect()
}

/// Returns the one finding of a judgement.
fn found(report: impl FnOnce(&mut SubjectReport)) -> Finding {
    let mut judged = SubjectReport::of("eth0");
    report(&mut judged);
    assert_eq!(judged.findings.len(), 1);
    judged.findings.remove(0)
}

#[test]
fn good_nic_has_nothing_to_mend() {
    assert_eq!(judged(&nic(), AttachMode::Native, false), []);
}

#[test]
fn each_obstacle_of_an_interface_is_named() {
    let mode = AttachMode::NativeOrGeneric;
    let down = Interface { up: false, ..nic() };
    assert_eq!(judged(&down, mode, false), [("state", Severity::Warn)]);
    let small = Interface {
        mtu: 1_500,
        ..nic()
    };
    assert_eq!(judged(&small, mode, false), [("MTU", Severity::Warn)]);
    let few = Interface {
        rx_queues: 1,
        channels: Some(Channels {
            combined: 1,
            combined_max: 4,
            ..Channels::default()
        }),
        ..nic()
    };
    assert_eq!(judged(&few, mode, false), [("queues", Severity::Warn)]);
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
        [("native XDP", Severity::Fail)]
    );
    let old = Interface {
        native_xdp: NativeXdp::Unknown,
        ..nic()
    };
    assert_eq!(judged(&old, mode, false), [("native XDP", Severity::Warn)]);
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
                ("veth peer", Severity::Warn),
                ("veth checksums", Severity::Warn)
            ]
        );
    }
    let remedies: Vec<String> = interface(&veth, AttachMode::Native, true, 1)
        .findings
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
        [("native XDP", Severity::Fail)]
    );
    assert_eq!(
        judged(&nic, AttachMode::NativeOrGeneric, false),
        [
            ("native XDP", Severity::Warn),
            ("merging offloads", Severity::Warn)
        ]
    );
    let said = |nic: &Interface| {
        found(|report| {
            native_xdp(report, nic, AttachMode::Native);
        })
    };
    assert_eq!(said(&nic).detail, "ice does not support it");
    let virtual_device = Interface {
        driver: None,
        ..nic
    };
    assert_eq!(said(&virtual_device).detail, "the device has no driver");
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
        [("XDP program", Severity::Fail)]
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
        let judges = redirect_targets(used, &ours, false).into_iter();
        judges
            .flat_map(|report| report.findings)
            .map(|finding| (finding.subject, finding.severity, finding.detail))
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
        .map(|(name, severity, _)| (&**name, *severity))
        .collect();
    assert_eq!(verdicts, [("eth0", Severity::Ok), ("eth1", Severity::Warn)]);
    assert!(found[1].2.ends_with("is lost"), "{found:?}");
    let before = judged(&both, &["eth0"]);
    assert!(before[1].2.contains("without an XDP program"), "{before:?}");

    let ours = ["eth0", "eth1"].map(str::to_owned);
    let mended = redirect_targets(&both, &ours, true);
    let finding = &mended[1].findings[0];
    assert_eq!(finding.severity, Severity::Ok, "{finding:?}");
    assert!(finding.detail.contains("the agent sends"), "{finding:?}");

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
fn device_behind_which_nodes_are_lost_is_named_and_what_carrying_costs() {
    let nodes = [("br0".to_owned(), 3)].into();
    let judged = |mends| {
        let mut reports = carriers(&nodes, mends);
        reports.remove(0).findings.remove(0)
    };
    let lost = judged(false);
    assert_eq!((&*lost.subject, lost.severity), ("br0", Severity::Warn));
    assert!(lost.remedy.contains("mend: on"), "{lost:?}");
    let carried = judged(true);
    assert_eq!(carried.severity, Severity::Ok);
    assert!(
        carried.detail.contains("3 nodes, about 1 us"),
        "{carried:?}"
    );
}

#[test]
fn strict_reverse_path_filter_is_named() {
    let severity = |filter| found(|report| reverse_path_filter(report, "eth0", filter)).severity;
    assert_eq!(severity(ReversePathFilter::Strict), Severity::Warn);
    assert_eq!(severity(ReversePathFilter::Loose), Severity::Ok);
    assert_eq!(severity(ReversePathFilter::Off), Severity::Ok);
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
    for way in [tcx, clsact] {
        assert_eq!(
            found(|report| egress(report, Ok(way))).severity,
            Severity::Ok
        );
    }
    let name = "eth0".to_owned();
    let gone = found(|report| egress(report, Err(InterfaceError::NotFound { name })));
    assert_eq!(gone.severity, Severity::Fail);
}

#[test]
fn queues_that_other_programs_have_are_named() {
    let taken = |queue: u32| {
        let interface = "eth0".to_owned();
        let source = std::io::Error::from_raw_os_error(16);
        Err(OpenError::InUse {
            interface,
            queue,
            source,
        })
    };
    let of = |try_open: &dyn Fn(u32) -> Result<(), OpenError>| {
        found(|report| thread_queues(report, 4, try_open))
    };
    assert_eq!(of(&|_| Ok(())).severity, Severity::Ok);
    let some = of(&|queue| if queue % 2 == 1 { taken(queue) } else { Ok(()) });
    assert_eq!(some.severity, Severity::Fail);
    assert!(some.detail.contains("2 of 4 queues (1, 3)"), "{some:?}");
    let error = || OpenError::NoSockets(std::io::Error::from_raw_os_error(97));
    let none = of(&|_| Err(error()));
    assert_eq!(none.severity, Severity::Fail);
    assert!(none.detail.contains("CONFIG_XDP_SOCKETS"), "{none:?}");
}
