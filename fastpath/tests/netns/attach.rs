//! Loading, attaching, taking over and removing, on veth pairs in private network namespaces.
//!
//! Needs root.

use std::{
    collections::BTreeSet,
    fs, io,
    net::{SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use aya::maps::{Array, Map, MapData};
use fastpath::{
    attach::{AttachError, Merging, Mode, ObstacleKind, Options},
    cpus::entries_of_all,
    facts::{self, InterfaceError, NativeXdp, XdpMode},
    load::{LoadError, Loaded, Loader},
    object,
    pins::{PinError, Pins},
    refusal::Refusal,
};
use lab::{Namespace, Veth};
use rustix::{
    net::{AddressFamily, SendFlags, SocketType, ipproto},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use xdp_prog::{
    abi::{REASONS_OF_CPU, map},
    reason::{DropReason, PassReason, REASON_COUNT},
};

use crate::own_machine::{
    LUT_ENTRIES, in_network_of, in_thread, ip, on_machine, run, small, wait_until,
};

const NATIVE: Options = Options {
    mode: Mode::Native,
    merging: Merging::SwitchOff,
};
const GENERIC: Options = Options {
    mode: Mode::Generic,
    merging: Merging::SwitchOff,
};

#[test]
fn native_attachment_is_pinned_and_outlives_the_loader() {
    on_edge(|edge| {
        let attachment = edge.load().attach("up0", &NATIVE).unwrap();

        assert_eq!(attachment.mode, XdpMode::Native);
        assert_eq!(attachment.replaced, None);
        assert!(edge.pins.link("up0").exists());
        let device = facts::interface("up0").unwrap();
        assert_eq!(device.index, attachment.ifindex);
        assert_eq!(device.programs.len(), 1);
        assert_eq!(device.programs[0].mode, XdpMode::Native);
        assert_eq!(device.programs[0].id, attachment.program);
    });
}

#[test]
fn next_agent_adopts_the_link_and_replaces_the_program() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        let second = edge.load().attach("up0", &NATIVE).unwrap();

        assert_eq!(second.link, first.link);
        assert_eq!(second.replaced, Some(first.program));
        assert_ne!(second.program, first.program);
        let device = facts::interface("up0").unwrap();
        assert_eq!(device.programs[0].id, second.program);
    });
}

#[test]
fn attachment_comes_back_after_the_pins_were_removed() {
    on_edge(|edge| {
        let mut loaded = edge.load();
        loaded.attach("up0", &NATIVE).unwrap();
        let directory = edge.pins.link("up0").parent().unwrap().to_owned();
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
        wait_until("nothing holds the program", || programs("up0") == 0);

        loaded.attach("up0", &NATIVE).unwrap();
        assert_eq!(programs("up0"), 1);

        edge.load().attach("up0", &NATIVE).unwrap();
        assert_eq!(programs("up0"), 1);
    });
}

#[test]
fn one_program_serves_several_interfaces() {
    on_edge(|edge| {
        let mut loaded = edge.load();
        let a = loaded.attach("up0", &NATIVE).unwrap();
        let b = loaded.attach("up1", &NATIVE).unwrap();
        drop(loaded);

        assert_eq!(a.program, b.program);
        assert_ne!(a.link, b.link);
        assert_eq!(edge.pins.interfaces().unwrap(), ["up0", "up1"]);
        assert_eq!((programs("up0"), programs("up1")), (1, 1));
    });
}

#[test]
fn unpinned_attachment_ends_with_the_loader() {
    on_edge(|_| {
        let mut loaded = small(Loader::unpinned()).load().unwrap();
        loaded.attach("up0", &NATIVE).unwrap();
        assert_eq!(programs("up0"), 1);
        drop(loaded);

        wait_until("the program is gone", || programs("up0") == 0);
    });
}

#[test]
fn maps_are_the_same_across_loads() {
    on_edge(|edge| {
        let first = map_id(&edge.load().map(map::SERVICE_OVERFLOW).unwrap());
        let again = edge.load();

        assert_eq!(map_id(&again.map(map::SERVICE_OVERFLOW).unwrap()), first);
        assert_eq!(
            map_id(&edge.pins.open_map(map::SERVICE_OVERFLOW).unwrap()),
            first
        );
    });
}

#[test]
fn map_of_another_size_is_made_anew_beside_the_one_in_use() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        let mut again = edge.loader().max_entries(map::LUT, 4096).load().unwrap();

        let resized = again.resized();
        let names: Vec<&str> = resized.iter().map(|one| one.map.as_str()).collect();
        assert_eq!(
            names,
            [map::LUT, map::PASTS],
            "past owners have a place for each slot"
        );
        for one in resized {
            assert_eq!((one.pinned, one.asked), (LUT_ENTRIES, 4096));
        }
        let info = again.map(map::LUT).unwrap().info().unwrap();
        assert_eq!(info.max_entries(), 4096);
        let others = edge.pins.other_versions().unwrap();
        assert_eq!(others.len(), 1);
        let aside = &others[0];
        assert!(aside.join("links/xdp-up0").exists() && aside.join("maps/LUT").exists());
        edge.pins.remove_other_versions().unwrap();
        assert!(aside.exists(), "it is in use");

        let second = again.attach("up0", &NATIVE).unwrap();
        edge.pins.remove_other_versions().unwrap();
        assert_eq!((second.link, programs("up0")), (first.link, 1));
        assert_eq!(second.replaced, Some(first.program));
        assert!(edge.pins.link("up0").exists());
        assert!(!aside.exists());
    });
}

/// An agent is killed once it has new maps, and the next one asks for yet another size.
#[test]
fn sizes_that_change_twice_end_in_one_set_of_maps() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        let load = |entries| edge.loader().max_entries(map::LUT, entries).load().unwrap();
        drop(load(4096));
        let mut last = load(8192);
        assert_eq!(edge.pins.other_versions().unwrap().len(), 2);

        assert_eq!(last.attach("up0", &NATIVE).unwrap().link, first.link);
        edge.pins.remove_other_versions().unwrap();
        assert!(edge.pins.other_versions().unwrap().is_empty());
        assert!(load(8192).resized().is_empty());
    });
}

#[test]
fn size_beyond_memory_leaves_the_pins_as_they_are() {
    on_edge(|edge| {
        edge.load().attach("up0", &NATIVE).unwrap();
        let before = map_id(&edge.pins.open_map(map::FLOWS).unwrap());
        // More buckets than the kernel makes, however much memory this machine has.
        let error = edge.loader().max_entries(map::FLOWS, u32::MAX).load();
        assert!(matches!(error.unwrap_err(), LoadError::Memory { map, .. } if map == map::FLOWS));
        assert_eq!(map_id(&edge.pins.open_map(map::FLOWS).unwrap()), before);
        assert!(edge.pins.link("up0").exists());
        assert!(edge.pins.other_versions().unwrap().is_empty());
    });
}

#[test]
fn pinned_map_of_another_layout_is_refused_by_name() {
    on_edge(|edge| {
        drop(edge.load());
        // Another map takes the name, as a build with other layouts would have left it.
        let path = edge.pins.map(map::SERVICE_OVERFLOW);
        fs::remove_file(&path).unwrap();
        edge.pins.open_map(map::LUT).unwrap().pin(&path).unwrap();

        let error = edge.loader().load().unwrap_err();
        assert!(matches!(&error, LoadError::Layout { map, .. } if map == map::SERVICE_OVERFLOW));
        let text = error.to_string();
        assert!(text.contains("keys of 8 and values of 8 bytes"), "{text}");
        assert!(text.contains("guideway detach"), "{text}");
    });
}

#[test]
fn pinned_array_of_another_length_is_refused_by_name() {
    on_edge(|edge| {
        drop(edge.load());
        let path = edge.pins.map(map::REASONS);
        fs::remove_file(&path).unwrap();
        // One reason more, as a build with another list would have left it.
        let [count, needed] = [REASON_COUNT + 1, REASON_COUNT]
            .map(|count| entries_of_all(u32::try_from(count).unwrap(), 8).unwrap());
        let pin = path.display();
        run(
            "bpftool",
            &format!(
                "map create {pin} type array key 4 value 8 entries {count} name REASONS flags 0x400"
            ),
        );

        let error = edge.loader().load().unwrap_err();
        assert!(matches!(&error, LoadError::Length { map, .. } if map == map::REASONS));
        let text = error.to_string();
        assert!(
            text.contains(&format!("has {count} entries, this build needs {needed}")),
            "{text}"
        );
        assert!(text.contains("guideway detach"), "{text}");
    });
}

#[test]
fn stages_are_reached_whoever_loaded_them_last() {
    let (machine, client) = (
        Namespace::new("edge").unwrap(),
        Namespace::new("client").unwrap(),
    );
    let (uplink, port) = Veth::between((&machine, "up0"), (&client, "up1"))
        .create()
        .unwrap();
    uplink.add_address("10.0.0.1/24".parse().unwrap()).unwrap();
    port.add_address("10.0.0.2/24".parse().unwrap()).unwrap();
    port.set_neighbour("10.0.0.1".parse().unwrap(), uplink.mac())
        .unwrap();
    // IP-in-IP is for a stage to judge, which finds here that no edge sends it.
    let outbox = client.run(|| {
        let ipip = Some(ipproto::IPIP);
        rustix::net::socket(AddressFamily::INET, SocketType::RAW, ipip).unwrap()
    });
    let judged = PassReason::EncapNotOurs.index();
    let missing = DropReason::StageMissing.index();

    machine.run(|| {
        let edge = Edge::default();
        let judges = |who: &str| {
            let before = reason(&edge.pins, judged);
            let to: SocketAddr = "10.0.0.1:0".parse().unwrap();
            rustix::net::sendto(&outbox, b"packet", SendFlags::empty(), &to).unwrap();
            wait_until(who, || reason(&edge.pins, judged) == before + 1);
            assert_eq!(reason(&edge.pins, missing), 0, "{who}");
        };
        let mut loaded = edge.load_whole();
        loaded.attach("up0", &NATIVE).unwrap();
        judges("the agent runs");
        drop(loaded);
        judges("the agent is gone");
        let successor = edge.load_whole();
        judges("the next one has loaded, the old program goes on");
        drop(successor);
        judges("it is gone before it took the link over");
        edge.load_whole().attach("up0", &NATIVE).unwrap();
        judges("another one has taken it over and is gone");
        edge.pins.remove_all().unwrap();
        edge.load_whole().attach("up0", &NATIVE).unwrap();
        judges("all was detached and attached anew");
        edge.pins.remove_all().unwrap();
        edge.load_whole().attach("up0", &GENERIC).unwrap();
        judges("it is attached in generic mode");
    });
}

#[test]
fn replacement_under_traffic_loses_no_packet_and_lets_none_pass_unseen() {
    const REPLACEMENTS: u32 = 10;
    const PACKETS_BETWEEN: u64 = 200;

    let machine = Namespace::new("edge").unwrap();
    let client = Namespace::new("client").unwrap();
    // Only the test's packets are on the wire: no neighbour discovery, no ARP.
    client
        .set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")
        .unwrap();
    let (uplink, port) = Veth::between((&machine, "up0"), (&client, "up1"))
        .create()
        .unwrap();
    uplink.add_address("10.0.0.1/24".parse().unwrap()).unwrap();
    port.add_address("10.0.0.2/24".parse().unwrap()).unwrap();
    port.set_neighbour("10.0.0.1".parse().unwrap(), uplink.mac())
        .unwrap();

    machine.run(|| {
        let edge = Edge::default();
        let mut loaded = edge.load_whole();
        let first = loaded.attach("up0", &NATIVE).unwrap();
        let seen_before = packets_seen(&loaded);
        let received_before = uplink.stats().unwrap().rx_packets;
        let traffic = Traffic::start(&client);

        for _ in 0..REPLACEMENTS {
            traffic.wait_for_more(PACKETS_BETWEEN);
            let mut next = edge.load_whole();
            assert_eq!(next.attach("up0", &NATIVE).unwrap().link, first.link);
            loaded = next;
        }
        traffic.wait_for_more(PACKETS_BETWEEN);

        let (sent, arrived) = traffic.stop();
        assert!(sent >= u64::from(REPLACEMENTS) * PACKETS_BETWEEN);
        assert_eq!(arrived, sent, "packets lost while programs changed");
        let received = uplink.stats().unwrap().rx_packets - received_before;
        assert!(received >= sent);
        assert_eq!(
            packets_seen(&loaded) - seen_before,
            received,
            "packets that met no program, or were not counted"
        );
    });
}

#[test]
fn recreated_interface_gets_a_new_link() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        ip("link del up0");
        add_pair();
        let second = edge.load().attach("up0", &NATIVE).unwrap();

        assert_ne!(second.link, first.link);
        assert_eq!(second.replaced, None);
        assert_eq!(programs("up0"), 1);
    });
}

#[test]
fn link_that_works_in_another_namespace_is_left_alone() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        // There, the same interface number belongs to another interface.
        let other = Namespace::new("other").unwrap();
        let error = in_network_of(&other, || {
            ip(&format!(
                "link add up0 index {} type veth peer name up1",
                first.ifindex
            ));
            edge.load().attach("up0", &NATIVE).unwrap_err()
        });

        assert!(
            matches!(error, AttachError::OtherNamespace { .. }),
            "{error}"
        );
        assert_eq!(programs("up0"), 1);
    });
}

#[test]
fn interface_with_a_dot_in_its_name_can_be_pinned() {
    on_edge(|edge| {
        ip("link set up1 name up1.100");
        edge.load().attach("up1.100", &NATIVE).unwrap();

        assert_eq!(edge.pins.interfaces().unwrap(), ["up1.100"]);
        assert!(edge.pins.detach("up1.100").unwrap());
        assert_eq!(programs("up1.100"), 0);
    });
}

#[test]
fn detach_removes_the_program_and_leaves_the_others() {
    on_edge(|edge| {
        let mut loaded = edge.load();
        loaded.attach("up0", &NATIVE).unwrap();
        loaded.attach("up1", &NATIVE).unwrap();

        assert!(edge.pins.detach("up0").unwrap());
        assert!(!edge.pins.detach("up0").unwrap());
        assert_eq!((programs("up0"), programs("up1")), (0, 1));
    });
}

#[test]
fn remove_all_leaves_nothing_behind() {
    on_edge(|edge| {
        edge.load().attach("up0", &NATIVE).unwrap();
        ip("link del up0");
        add_pair();
        edge.load().attach("up1", &NATIVE).unwrap();

        edge.load().attach("up0", &NATIVE).unwrap();

        assert_eq!(edge.pins.remove_all().unwrap(), ["up0", "up1"]);
        assert_eq!((programs("up0"), programs("up1")), (0, 0));
        assert!(!edge.pins.root().exists());
        assert_eq!(edge.pins.remove_all().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn link_of_another_layout_version_is_taken_over() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        let old = edge.pins.root().join("v0");
        fs::create_dir_all(old.join("links")).unwrap();
        fs::create_dir_all(old.join("maps")).unwrap();
        fs::rename(edge.pins.link("up0"), old.join("links/xdp-up0")).unwrap();
        let map = edge.pins.open_map(map::LUT).unwrap();
        map.pin(old.join("maps/LUT")).unwrap();

        let second = edge.load().attach("up0", &NATIVE).unwrap();
        edge.pins.remove_other_versions().unwrap();

        assert_eq!(second.link, first.link);
        assert!(edge.pins.link("up0").exists());
        assert!(!old.exists());
    });
}

/// An agent of another version has ended after it pinned the link anew, and before it removed the old pin.
#[test]
fn second_pin_of_a_link_goes() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &NATIVE).unwrap();
        let old = edge.pins.root().join("v0");
        fs::create_dir_all(old.join("links")).unwrap();
        fs::hard_link(edge.pins.link("up0"), old.join("links/xdp-up0")).unwrap();

        let second = edge.load().attach("up0", &NATIVE).unwrap();
        edge.pins.remove_other_versions().unwrap();

        assert_eq!((second.link, programs("up0")), (first.link, 1));
        assert!(edge.pins.link("up0").exists());
        assert!(!old.exists());
    });
}

#[test]
fn generic_mode_switches_merging_offloads_off() {
    on_edge(|edge| {
        run("ethtool", "-K up0 gro on");
        let attachment = edge.load().attach("up0", &GENERIC).unwrap();

        assert_eq!(attachment.mode, XdpMode::Generic);
        assert_eq!(attachment.switched_off, ["rx-gro"]);
        let device = facts::interface("up0").unwrap();
        assert!(!device.features.unwrap().is_active("rx-gro"));
        assert_eq!(device.programs[0].mode, XdpMode::Generic);
    });
}

#[test]
fn generic_mode_refuses_merging_offloads_when_told_to() {
    on_edge(|edge| {
        run("ethtool", "-K up0 gro on");
        let options = Options {
            merging: Merging::Refuse,
            ..GENERIC
        };
        let error = edge.load().attach("up0", &options).unwrap_err();

        assert_eq!(
            error.to_string(),
            "interface up0: generic XDP would see packets merged by rx-gro; switch that off: \
         `ethtool -K up0 rx-gro off`"
        );
        assert_eq!(programs("up0"), 0);
    });
}

#[test]
fn driver_without_xdp_is_named_and_generic_mode_is_the_declared_fallback() {
    on_edge(|edge| {
        ip("link add br0 type bridge");
        let error = edge.load().attach("br0", &NATIVE).unwrap_err();
        let AttachError::Impossible { obstacle, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(obstacle.kind, ObstacleKind::Driver);
        let text = error.to_string();
        assert!(
            text.starts_with(
                "interface br0: native XDP is not possible: driver bridge does not run XDP programs"
            ),
            "{text}"
        );

        let options = Options {
            mode: Mode::NativeOrGeneric,
            ..NATIVE
        };
        let attachment = edge.load().attach("br0", &options).unwrap();
        assert_eq!(attachment.mode, XdpMode::Generic);
        assert!(attachment.fallback.unwrap().to_string().contains("bridge"));
    });
}

#[test]
fn queue_mismatch_is_explained_in_the_kernels_words() {
    on_edge(|edge| {
        ip("link add q0 numrxqueues 1 type veth peer name q1 numtxqueues 2");
        ip("link set q0 up");
        ip("link set q1 up");
        run("ethtool", "-L q1 tx 2");
        let error = edge.load().attach("q0", &NATIVE).unwrap_err();

        let AttachError::Impossible { obstacle, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(obstacle.kind, ObstacleKind::Queues { receive: 1 });
        let text = error.to_string();
        assert!(text.contains("number of rx queues"), "{text}");
        assert_eq!(programs("q0"), 0);
    });
}

#[test]
fn jumbo_frames_do_not_exclude_native_mode() {
    on_edge(|edge| {
        ip("link set up0 mtu 9000");
        ip("link set up1 mtu 9000");
        let attachment = edge.load().attach("up0", &NATIVE).unwrap();
        assert_eq!(attachment.mode, XdpMode::Native);
    });
}

#[test]
fn foreign_native_program_is_named_and_left_alone() {
    foreign_program_is_left_alone("xdpdrv", XdpMode::Native);
}

#[test]
fn foreign_generic_program_is_named_and_left_alone() {
    foreign_program_is_left_alone("xdpgeneric", XdpMode::Generic);
}

fn foreign_program_is_left_alone(keyword: &str, mode: XdpMode) {
    on_edge(|edge| {
        // Our own program, attached by someone else's hand, plays the stranger.
        let stranger = edge.load();
        let id = stranger.program().info().unwrap().id();
        let pin = edge.pins.root().join("stranger").display().to_string();
        run("bpftool", &format!("prog pin id {id} {pin}"));
        ip(&format!("link set dev up0 {keyword} pinned {pin}"));
        let before = facts::interface("up0").unwrap().programs;

        let error = edge.load().attach("up0", &NATIVE).unwrap_err();
        let AttachError::Occupied { owner, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(owner.mode, mode);
        assert_eq!(owner.program, id);
        assert_eq!(owner.name.as_deref(), Some("guideway"));
        assert!(error.to_string().contains("is left alone"), "{error}");
        assert_eq!(facts::interface("up0").unwrap().programs, before);
        assert!(!edge.pins.link("up0").exists());
        fs::remove_file(pin).unwrap();
    });
}

#[test]
fn adopted_link_in_a_mode_that_is_not_allowed_stays() {
    on_edge(|edge| {
        let first = edge.load().attach("up0", &GENERIC).unwrap();
        let error = edge.load().attach("up0", &NATIVE).unwrap_err();

        let generic = XdpMode::Generic;
        assert!(matches!(error, AttachError::OtherMode { in_force, .. } if in_force == generic));
        assert_eq!(
            facts::interface("up0").unwrap().programs[0].id,
            first.program
        );
    });
}

#[test]
fn missing_interface_is_not_found() {
    on_edge(|edge| {
        let mut loaded = edge.load();
        for name in ["nosuch0", "", "a-name-longer-than-any-interface"] {
            let error = loaded.attach(name, &NATIVE).unwrap_err();
            assert!(
                matches!(
                    &error,
                    AttachError::Interface(InterfaceError::NotFound { .. })
                ),
                "{error}"
            );
        }
    });
}

#[test]
fn pin_directory_on_another_file_system_is_refused() {
    let pins = Pins::new("/proc/guideway");
    let error = small(Loader::pinned(pins)).load().unwrap_err();
    assert!(matches!(&error, LoadError::Pins(PinError::NotBpffs { .. })));
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
    assert!(!Path::new("/proc/guideway").exists());
}

#[test]
fn missing_capabilities_are_named() {
    // Detected once per process, by whoever comes first: it must not be a thread without rights.
    let _ = aya::features();
    let error = without_capabilities(|| small(Loader::unpinned()).load().unwrap_err());

    let LoadError::Refused { refusal, .. } = &error else {
        panic!("{error}");
    };
    assert!(matches!(refusal, Refusal::Missing(missing) if missing.len() == 3));
    let text = error.to_string();
    assert!(
        text.contains("lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON"),
        "{text}"
    );
    assert!(text.contains("run it as root"), "{text}");
}

#[test]
fn map_that_the_kernel_refuses_is_named() {
    let error = small(Loader::unpinned())
        .max_entries(map::VIPS, 0)
        .load()
        .unwrap_err();
    assert!(matches!(&error, LoadError::Map { map, .. } if map == map::VIPS));
}

#[test]
fn load_that_fails_leaves_no_new_map_pinned() {
    on_edge(|edge| {
        let pinned = || -> BTreeSet<_> {
            let maps = fs::read_dir(edge.pins.map(map::VIPS).parent().unwrap()).unwrap();
            maps.map(|map| map.unwrap().file_name()).collect()
        };
        let refused = edge.loader().max_entries(map::VIPS, 0);
        refused.load().unwrap_err();
        assert!(pinned().is_empty(), "{:?}", pinned());

        drop(edge.load());
        let before = pinned();
        assert!(before.len() > 20, "{before:?}");
        for map in [map::VIPS, map::LUT] {
            fs::remove_file(edge.pins.map(map)).unwrap();
        }
        refused.load().unwrap_err();
        let kept = before
            .iter()
            .filter(|name| *name != map::VIPS && *name != map::LUT);
        assert_eq!(pinned(), kept.cloned().collect());
    });
}

#[test]
fn facts_describe_a_veth() {
    on_edge(|_| {
        ip("link add q0 mtu 1400 numrxqueues 4 numtxqueues 4 type veth peer name q1");
        run("ethtool", "-K q0 gro on");
        let device = facts::interface("q0").unwrap();

        assert_eq!(device.driver.as_deref(), Some("veth"));
        assert_eq!(device.mtu, 1400);
        let channels = device.channels.unwrap();
        assert_eq!(device.rx_queues, channels.receive());
        assert_eq!(channels.rx_max, 4);
        assert!(matches!(
            device.native_xdp,
            NativeXdp::Supported {
                several_buffers: true,
                ..
            }
        ));
        assert_eq!(device.features.unwrap().merging(), ["rx-gro"]);
        assert_eq!(device.programs, []);
        assert!(!device.up);
    });
}

#[test]
fn facts_list_the_members_of_a_controller() {
    on_edge(|_| {
        ip("link add br0 type bridge");
        ip("link set up1 master br0");
        ip("link set up0 master br0");
        let bridge = facts::interface("br0").unwrap();

        assert_eq!(facts::members(bridge.index).unwrap(), ["up0", "up1"]);
        let member = facts::interface("up0").unwrap();
        assert_eq!(member.controller, Some(bridge.index));
    });
}

/// Runs a test on a machine of its own, with a cable between its interfaces `up0` and `up1`.
fn on_edge(test: impl FnOnce(&Edge) + Send) {
    on_machine("edge", || test(&Edge::default()));
}

/// An agent's view of its machine, whose BPF file system no other machine sees.
#[derive(Default)]
struct Edge {
    pins: Pins,
}

impl Edge {
    fn loader(&self) -> Loader {
        small(Loader::pinned(self.pins.clone()))
    }

    fn load(&self) -> Loaded {
        self.loader().load().unwrap()
    }

    /// Loads programs that judge packets.
    fn load_whole(&self) -> Loaded {
        self.loader().object(object::bytes()).load().unwrap()
    }
}

/// Datagrams from `up1` to `up0`, all of which are counted on arrival.
struct Traffic {
    stop: Arc<AtomicBool>,
    stop_receiver: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    sender: thread::JoinHandle<u64>,
    receiver: thread::JoinHandle<()>,
}

impl Traffic {
    /// Pace of the sender: fast enough to meet every change.
    const PAUSE: Duration = Duration::from_micros(50);
    /// Datagrams on the way at a time: fewer than the veth's ring and the receiver's buffer
    /// hold, so that a busy machine makes the sender wait and loses nothing.
    const WINDOW: u64 = 64;
    /// Silence after which nothing is on the way any more.
    const QUIET: Duration = Duration::from_millis(500);

    fn start(client: &Namespace) -> Self {
        let (stop, stop_receiver) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let arrived = Arc::new(AtomicU64::new(0));
        let inbox = UdpSocket::bind("10.0.0.1:7000").unwrap();
        inbox.set_read_timeout(Some(Self::QUIET)).unwrap();
        let outbox = client.run(|| {
            let socket = UdpSocket::bind("10.0.0.2:7001").unwrap();
            socket.connect("10.0.0.1:7000").unwrap();
            socket
        });
        let sender = thread::spawn({
            let stop = Arc::clone(&stop);
            let arrived = Arc::clone(&arrived);
            move || send_until(&stop, &outbox, &arrived)
        });
        let receiver = thread::spawn({
            let stop = Arc::clone(&stop_receiver);
            let arrived = Arc::clone(&arrived);
            move || receive_until(&stop, &inbox, &arrived)
        });
        Self {
            stop,
            stop_receiver,
            arrived,
            sender,
            receiver,
        }
    }

    fn wait_for_more(&self, packets: u64) {
        let goal = self.arrived.load(Ordering::Relaxed) + packets;
        wait_until("packets arrive", || {
            self.arrived.load(Ordering::Relaxed) >= goal
        });
    }

    /// Ends the traffic and returns how many datagrams were sent and how many came.
    fn stop(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        // What is on the way on a busy machine may take longer than the silence. What is lost never comes.
        let has_come = || self.arrived.load(Ordering::Relaxed) >= sent;
        let _ = lab::wait_until("all have come", Duration::from_secs(60), has_come);
        self.stop_receiver.store(true, Ordering::Relaxed);
        self.receiver.join().unwrap();
        (sent, self.arrived.load(Ordering::Relaxed))
    }
}

fn send_until(stop: &AtomicBool, outbox: &UdpSocket, arrived: &AtomicU64) -> u64 {
    let mut sent = 0u64;
    while !stop.load(Ordering::Relaxed) {
        if sent - arrived.load(Ordering::Relaxed) < Traffic::WINDOW {
            outbox.send(&sent.to_ne_bytes()).unwrap();
            sent += 1;
        }
        thread::sleep(Traffic::PAUSE);
    }
    sent
}

fn receive_until(stop: &AtomicBool, inbox: &UdpSocket, arrived: &AtomicU64) {
    let mut datagram = [0; 8];
    loop {
        match inbox.recv(&mut datagram) {
            Ok(_) => {
                arrived.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }
}

/// Counts the packets that met the program, over all reasons.
fn packets_seen(loaded: &Loaded) -> u64 {
    let map = Map::from_map_data(loaded.map(map::REASONS).unwrap()).unwrap();
    let reasons = Array::<_, u64>::try_from(map).unwrap();
    reasons.iter().map(Result::unwrap).sum()
}

/// Counts the packets of one reason, in whatever maps are pinned.
fn reason(pins: &Pins, index: u32) -> u64 {
    let map = Map::from_map_data(pins.open_map(map::REASONS).unwrap()).unwrap();
    let reasons = Array::<_, u64>::try_from(map).unwrap();
    let of_cpus = (index..reasons.len()).step_by(REASONS_OF_CPU as usize);
    of_cpus.map(|place| reasons.get(&place, 0).unwrap()).sum()
}

fn programs(interface: &str) -> usize {
    facts::interface(interface).unwrap().programs.len()
}

fn map_id(map: &MapData) -> u32 {
    map.info().unwrap().id()
}

fn add_pair() {
    ip("link add up0 type veth peer name up1");
    ip("link set up0 up");
    ip("link set up1 up");
}

fn without_capabilities<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    in_thread(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        set_capabilities(None, sets).unwrap();
        work()
    })
}
