//! The egress program on devices, as a tcx link and as a clsact filter: attaching, taking over,
//! living with others, removing.
//!
//! Needs root.

use std::{fs, net::UdpSocket, process::Command};

use fastpath::{
    attach::{Ahead, AttachError, EgressAttachment, EgressHook, EgressMode, Options},
    facts::{self, Devices, Egress},
    load::{Loaded, Loader},
    object,
    pins::Pins,
    refusal::Refusal,
};
use lab::Namespace;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use xdp_prog::abi::EGRESS_PROGRAM;

use crate::own_machine::{
    finish, in_network_of, in_thread, ip, on_machine, run, small, wait_until,
};

const BOTH: [EgressHook; 2] = [EgressHook::TcxOrClsact, EgressHook::Clsact];

#[test]
fn tcx_link_is_pinned_and_outlives_the_loader() {
    on_node(|node| {
        let attachment = node.attach("up0", EgressHook::TcxOrClsact);

        assert_eq!(attachment.mode, EgressMode::Tcx);
        assert_eq!(attachment.replaced, None);
        assert_eq!(attachment.ahead, []);
        assert!(node.pins.egress_link("up0").exists());
        assert_eq!(node.tcx_programs(), [attachment.program]);
        assert!(runs_at_egress(
            "up0",
            attachment.ifindex,
            attachment.program
        ));
    });
}

#[test]
fn next_agent_adopts_the_tcx_link_and_replaces_the_program() {
    on_node(|node| {
        let first = node.attach("up0", EgressHook::TcxOrClsact);
        let link = node.egress().tcx.unwrap()[0].link;
        let second = node.attach("up0", EgressHook::TcxOrClsact);

        assert_eq!(second.replaced, Some(first.program));
        assert_eq!(node.tcx_programs(), [second.program]);
        assert_eq!(node.egress().tcx.unwrap()[0].link, link);
    });
}

#[test]
fn filter_outlives_the_loader_and_has_a_name_and_a_priority_of_its_own() {
    on_node(|node| {
        let attachment = node.attach("up0", EgressHook::Clsact);

        assert_eq!(attachment.mode, EgressMode::Clsact);
        assert_eq!(attachment.replaced, None);
        let egress = node.egress();
        assert_eq!(egress.tcx, Some(Vec::new()));
        assert_eq!(egress.filters.len(), 1);
        assert!(egress.filters[0].is_ours());
        assert_eq!(egress.filters[0].name.as_deref(), Some(EGRESS_PROGRAM));
        assert_eq!(egress.filters[0].program, Some(attachment.program));
        assert_eq!(node.pins.egress_devices().unwrap(), ["up0"]);
        assert!(runs_at_egress(
            "up0",
            attachment.ifindex,
            attachment.program
        ));
    });
}

#[test]
fn next_agent_replaces_the_program_in_the_filter() {
    on_node(|node| {
        let first = node.attach("up0", EgressHook::Clsact);
        let before = node.egress().filters;
        let second = node.attach("up0", EgressHook::Clsact);
        let after = node.egress().filters;

        assert_eq!(second.replaced, Some(first.program));
        assert_eq!(after.len(), 1);
        assert_eq!(after[0].program, Some(second.program));
        let place = |filter: &facts::Filter| (filter.priority, filter.handle);
        assert_eq!(place(&after[0]), place(&before[0]));
    });
}

#[test]
fn a_start_in_the_other_mode_leaves_one_program() {
    on_node(|node| {
        node.attach("up0", EgressHook::Clsact);
        let tcx = node.attach("up0", EgressHook::TcxOrClsact);
        assert_eq!(node.tcx_programs(), [tcx.program]);
        assert_eq!(node.egress().filters, []);

        let filter = node.attach("up0", EgressHook::Clsact);
        assert!(node.tcx_programs().is_empty());
        assert_eq!(node.egress().filters[0].program, Some(filter.program));
        assert!(!node.pins.egress_link("up0").exists());
    });
}

#[test]
fn unpinned_attachment_ends_with_the_loader() {
    for hook in BOTH {
        on_node(|node| {
            let mut loaded = small(Loader::unpinned()).load().unwrap();
            loaded.attach_egress("up0", hook).unwrap();
            assert_eq!(node.running(), 1);
            drop(loaded);

            wait_until("the program is gone", || node.running() == 0);
        });
    }
}

#[test]
fn foreign_tcx_program_is_kept_and_runs_behind_ours() {
    on_node(|node| {
        let mut stranger = small(Loader::unpinned()).load().unwrap();
        let stranger = (
            stranger.attach_egress("up0", EgressHook::TcxOrClsact),
            stranger,
        );
        let foreign = stranger.0.as_ref().unwrap().program;

        let first = node.attach("up0", EgressHook::TcxOrClsact);
        assert_eq!(node.tcx_programs(), [first.program, foreign]);
        assert_eq!(first.ahead, []);
        let second = node.attach("up0", EgressHook::TcxOrClsact);
        assert_eq!(node.tcx_programs(), [second.program, foreign]);

        assert_eq!(node.pins.remove_all().unwrap(), ["up0"]);
        assert_eq!(node.tcx_programs(), [foreign]);
    });
}

#[test]
fn tcx_program_put_in_front_of_ours_is_named_and_left_there() {
    on_node(|node| {
        node.attach("up0", EgressHook::TcxOrClsact);
        let mut stranger = small(Loader::unpinned()).load().unwrap();
        let foreign = stranger
            .attach_egress("up0", EgressHook::TcxOrClsact)
            .unwrap()
            .program;

        let again = node.attach("up0", EgressHook::TcxOrClsact);
        assert_eq!(node.tcx_programs(), [foreign, again.program]);
        assert_eq!(again.ahead.len(), 1);
        assert_eq!(
            again.ahead[0].to_string(),
            format!("tcx program {foreign} ({EGRESS_PROGRAM})")
        );
    });
}

#[test]
fn foreign_filter_sees_the_packets_that_ours_has_seen() {
    for hook in BOTH {
        on_node(|node| {
            let wire = Wire::new(node);
            assert_eq!(wire.carries(), Wire::PACKETS);
            node.attach_whole("up0", hook);
            assert_eq!(wire.carries(), Wire::PACKETS, "{hook:?}: ours alone");
            // Classic BPF whose answer is an action: 2 is TC_ACT_SHOT.
            run("tc", "qdisc replace dev up0 clsact");
            tc_filter("pref 9 bpf bytecode 1,6,0,0,2 da");
            assert_eq!(wire.carries(), 0, "{hook:?}: a foreign filter that drops");

            let again = node.attach_whole("up0", hook);
            assert_eq!(again.ahead, [], "it runs behind ours");
            node.pins.remove_all().unwrap();
            assert_eq!(wire.carries(), 0, "{hook:?}: the foreign filter stays");
            let left = node.egress().filters;
            assert_eq!(left.len(), 1);
            assert!(!left[0].is_ours());
        });
    }
}

#[test]
fn foreign_filter_in_front_of_ours_is_named_and_left_there() {
    on_node(|node| {
        run("tc", "qdisc add dev up0 clsact");
        tc_filter("pref 1 bpf bytecode 1,6,0,0,4294967295 da");
        let attachment = node.attach("up0", EgressHook::Clsact);

        let [Ahead::Filter(filter)] = &attachment.ahead[..] else {
            panic!("{:?}", attachment.ahead);
        };
        assert_eq!(filter.priority, 1);
        let text = attachment.ahead[0].to_string();
        assert!(text.starts_with("bpf filter of priority 1"), "{text}");
        let egress = node.egress();
        assert_eq!(egress.filters.len(), 2);
        assert_eq!(egress.filters[1].program, Some(attachment.program));
        assert_eq!(egress.filters[1].priority, 2);
    });
}

#[test]
fn ingress_qdisc_is_named_where_there_is_no_tcx() {
    on_node(|node| {
        run("tc", "qdisc add dev up0 ingress");
        let error = node
            .load()
            .attach_egress("up0", EgressHook::Clsact)
            .unwrap_err();
        assert!(matches!(error, AttachError::IngressQdisc { .. }), "{error}");
        assert!(error.to_string().contains("tc qdisc del dev up0 ingress"));

        let attachment = node.attach("up0", EgressHook::TcxOrClsact);
        assert_eq!(attachment.mode, EgressMode::Tcx);
    });
}

#[test]
fn detach_removes_the_program_from_one_device() {
    for hook in BOTH {
        on_node(|node| {
            let mut loaded = node.load();
            loaded.attach_egress("up0", hook).unwrap();
            let other = loaded.attach_egress("up1", hook).unwrap();
            drop(loaded);

            assert!(node.pins.detach_egress("up0").unwrap());
            assert!(!node.pins.detach_egress("up0").unwrap());
            assert_eq!(node.running(), 0);
            assert!(runs_at_egress("up1", other.ifindex, other.program));
            assert!(!runs_at_egress("up1", other.ifindex + 1, other.program));
            assert!(!runs_at_egress("gone", other.ifindex, other.program));
            assert_eq!(node.pins.egress_devices().unwrap(), ["up1"]);
        });
    }
}

#[test]
fn remove_all_leaves_nothing_behind() {
    on_node(|node| {
        let mut loaded = node.load();
        loaded.attach("up0", &Options::default()).unwrap();
        loaded
            .attach_egress("up0", EgressHook::TcxOrClsact)
            .unwrap();
        loaded.attach_egress("up1", EgressHook::Clsact).unwrap();
        drop(loaded);

        assert_eq!(node.pins.remove_all().unwrap(), ["up0", "up1"]);
        for device in ["up0", "up1"] {
            let egress = facts::egress(device).unwrap();
            assert_eq!((egress.tcx, egress.filters), (Some(vec![]), vec![]));
        }
        assert!(!node.pins.root().exists());
        assert_eq!(node.pins.remove_all().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn recreated_device_gets_a_new_link() {
    for hook in BOTH {
        on_node(|node| {
            node.attach("up0", hook);
            ip("link del up0");
            ip("link add up0 type veth peer name up1");
            let again = node.attach("up0", hook);

            assert_eq!(again.replaced, None);
            assert_eq!(node.running(), 1);
        });
    }
}

#[test]
fn pins_follow_their_devices_to_other_names() {
    on_node(|node| {
        let mut loaded = node.load();
        let first = [
            loaded.attach("up0", &Options::default()).unwrap(),
            loaded.attach("up1", &Options::default()).unwrap(),
        ];
        let egress = loaded
            .attach_egress("up0", EgressHook::TcxOrClsact)
            .unwrap();
        drop(loaded);
        // The two swap their names.
        for step in [
            "up0 down",
            "up1 down",
            "up0 name between",
            "up1 name up0",
            "between name up1",
        ] {
            ip(&format!("link set {step}"));
        }

        let mut loaded = node.load();
        let second = [
            loaded.attach("up1", &Options::default()).unwrap(),
            loaded.attach("up0", &Options::default()).unwrap(),
        ];
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(second.link, first.link);
            assert_eq!(second.ifindex, first.ifindex);
            assert_eq!(second.replaced, Some(first.program));
        }
        let again = loaded
            .attach_egress("up1", EgressHook::TcxOrClsact)
            .unwrap();
        assert_eq!(again.replaced, Some(egress.program));
        assert_eq!(node.pins.egress_devices().unwrap(), ["up1"]);
        assert_eq!(node.pins.interfaces().unwrap(), ["up0", "up1"]);
    });
}

#[test]
fn link_that_works_in_another_namespace_is_left_alone() {
    on_node(|node| {
        let first = node.attach("up0", EgressHook::TcxOrClsact);
        let other = Namespace::new("other").unwrap();
        let error = in_network_of(&other, || {
            ip(&format!(
                "link add up0 index {} type veth peer name up1",
                first.ifindex
            ));
            let mut loaded = node.load();
            loaded.attach("up1", &Options::default()).unwrap();
            loaded
                .attach_egress("up0", EgressHook::TcxOrClsact)
                .unwrap_err()
        });

        assert!(
            matches!(error, AttachError::OtherNamespace { .. }),
            "{error}"
        );
        assert_eq!(node.tcx_programs(), [first.program]);
    });
}

#[test]
fn second_pin_of_a_link_goes() {
    on_node(|node| {
        node.attach("up0", EgressHook::TcxOrClsact);
        let old = node.pins.root().join("v0");
        fs::create_dir_all(old.join("links")).unwrap();
        let pin = node.pins.egress_link("up0");
        fs::hard_link(&pin, old.join("links/egress-up0")).unwrap();

        node.attach("up0", EgressHook::TcxOrClsact);
        node.pins.remove_other_versions().unwrap();

        assert_eq!(node.running(), 1);
        assert!(pin.exists() && !old.exists());
    });
}

#[test]
fn link_of_another_layout_version_is_taken_over() {
    on_node(|node| {
        let first = node.attach("up0", EgressHook::TcxOrClsact);
        let link = node.egress().tcx.unwrap()[0].link;
        let old = node.pins.root().join("v0");
        fs::create_dir_all(old.join("links")).unwrap();
        fs::rename(node.pins.egress_link("up0"), old.join("links/egress-up0")).unwrap();

        let second = node.attach("up0", EgressHook::TcxOrClsact);
        node.pins.remove_other_versions().unwrap();

        assert_eq!(second.replaced, Some(first.program));
        assert_eq!(node.egress().tcx.unwrap()[0].link, link);
        assert!(node.pins.egress_link("up0").exists());
        assert!(!old.exists());
    });
}

#[test]
fn missing_capability_is_named() {
    for hook in BOTH {
        on_node(|node| {
            let mut loaded = node.load();
            let error = in_thread(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective
                    .remove(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN);
                set_capabilities(None, sets).unwrap();
                loaded.attach_egress("up0", hook).unwrap_err()
            });

            let AttachError::Refused { refusal, .. } = &error else {
                panic!("{hook:?}: {error}");
            };
            assert!(matches!(refusal, Refusal::Missing(_)), "{error}");
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        });
    }
}

#[test]
fn missing_device_is_not_found() {
    on_node(|node| {
        let error = node
            .load()
            .attach_egress("nosuch0", EgressHook::TcxOrClsact)
            .unwrap_err();
        assert!(matches!(error, AttachError::Interface(_)), "{error}");
        assert!(!node.pins.detach_egress("nosuch0").unwrap());
    });
}

/// Runs a test on a machine of its own, with a cable between its interfaces `up0` and `up1`.
fn on_node(test: impl FnOnce(&Node) + Send) {
    on_machine("node", || test(&Node::default()));
}

/// An agent's view of its machine, whose BPF file system no other machine sees.
#[derive(Default)]
struct Node {
    pins: Pins,
}

impl Node {
    fn load(&self) -> Loaded {
        small(Loader::pinned(self.pins.clone())).load().unwrap()
    }

    /// Attaches as an agent does that ends at once.
    fn attach(&self, device: &str, hook: EgressHook) -> EgressAttachment {
        self.load().attach_egress(device, hook).unwrap()
    }

    /// Attaches a program that judges packets.
    fn attach_whole(&self, device: &str, hook: EgressHook) -> EgressAttachment {
        let loader = small(Loader::pinned(self.pins.clone())).object(object::bytes());
        loader.load().unwrap().attach_egress(device, hook).unwrap()
    }

    fn egress(&self) -> Egress {
        facts::egress("up0").unwrap()
    }

    fn tcx_programs(&self) -> Vec<u32> {
        let programs = self.egress().tcx.unwrap().into_iter();
        programs.map(|program| program.program).collect()
    }

    fn running(&self) -> usize {
        let egress = self.egress();
        egress.tcx.unwrap().len() + egress.filters.len()
    }
}

/// What leaves by `up0` and comes out of `up1`.
struct Wire {
    outbox: UdpSocket,
}

impl Wire {
    const PACKETS: u64 = 10;

    fn new(_: &Node) -> Self {
        for device in ["all", "default", "up0", "up1"] {
            let path = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
            fs::write(path, "1").unwrap();
        }
        ip("addr add 10.0.0.1/24 dev up0");
        ip("neigh replace 10.0.0.2 dev up0 lladdr 02:00:00:00:00:02");
        let outbox = UdpSocket::bind("10.0.0.1:7000").unwrap();
        outbox.connect("10.0.0.2:7000").unwrap();
        Self { outbox }
    }

    /// Sends packets and counts those that arrive: on a veth they do so within the call.
    fn carries(&self) -> u64 {
        let before = received("up1");
        for _ in 0..Self::PACKETS {
            // A packet that a filter drops may be reported here.
            let _ = self.outbox.send(b"packet");
        }
        received("up1") - before
    }
}

fn received(device: &str) -> u64 {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = table.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == device).then_some(counters)
    });
    let packets = line.unwrap().split_whitespace().nth(1).unwrap();
    packets.parse().unwrap()
}

fn tc_filter(filter: &str) {
    // The bytecode is one argument with blanks in it.
    let arguments: Vec<String> = format!("filter add dev up0 egress {filter}")
        .split_whitespace()
        .map(|word| match word.strip_prefix("1,6,") {
            Some(rest) => format!("1,6 {}", rest.replace(',', " ")),
            None => word.to_owned(),
        })
        .collect();
    finish(Command::new("tc").args(&arguments));
}

fn runs_at_egress(device: &str, index: u32, program: u32) -> bool {
    let mut devices = Devices::list().unwrap();
    devices.runs_at_egress(device, index, program).unwrap()
}
