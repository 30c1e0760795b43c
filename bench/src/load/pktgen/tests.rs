use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use super::{device::values, *};
use crate::scenario::{AddressFamily, FrameSize, GeneratorKind, load};

/// A value that the fake takes for another: what was written, and what it shows.
type Fault = (&'static str, &'static str);

/// A directory with files like pktgen's. A thread works off what is appended to them.
struct Fake {
    root: PathBuf,
    commands: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Devices by the file of their thread.
    threads: BTreeMap<String, Vec<String>>,
    /// Values by device.
    values: BTreeMap<String, BTreeMap<String, String>>,
    /// Bytes of `pgctrl` that are worked off.
    controlled: usize,
    commands: Arc<Mutex<Vec<String>>>,
    fault: Option<Fault>,
}

impl State {
    fn show_thread(&self, file: &str) -> String {
        format!(
            "Running: \nStopped: {} \nResult: NA\n",
            self.threads[file].join(" ")
        )
    }

    fn show_device(&self, name: &str) -> String {
        let values = &self.values[name];
        // As the kernel: not what anybody writes, for that would seem to be taken before it is worked off.
        let of = |key: &str| values.get(key).map_or("1000", String::as_str);
        let mut text = format!(
            "Params: count {}  min_pkt_size: {}\n",
            of("count"),
            of("min_pkt_size")
        );
        for (key, value) in values
            .iter()
            .filter(|(key, _)| !["count", "sofar"].contains(&key.as_str()))
        {
            text += &format!("     {key}: {value}  ");
        }
        let result = match values.get("sofar") {
            Some(_) => "2000000(c1999000+d1000) usec, 7 (60byte,0frags)",
            None => "something=1",
        };
        text + &format!(
            "\nCurrent:\n     pkts-sofar: {}  errors: 0\nResult: OK: {result}\n",
            of("sofar")
        )
    }

    /// Works off the commands of a file; returns what it shows then, if there were any.
    fn work_off(&mut self, file: &str, text: &str) -> Option<String> {
        let commands = text.rsplit_once("Result:").map_or(text, |(_, rest)| rest);
        let commands: Vec<&str> = commands.lines().skip(1).collect();
        if commands.is_empty() {
            return None;
        }
        for command in commands {
            self.note(file, command);
            let (key, value) = command.split_once(' ').unwrap_or((command, ""));
            let value = match self.fault {
                Some((written, shown)) if written == command => shown,
                _ => value,
            };
            match key {
                "add_device" => {
                    self.threads.get_mut(file)?.push(value.to_owned());
                    self.values.insert(value.to_owned(), BTreeMap::new());
                }
                "rem_device_all" => self.threads.get_mut(file)?.clear(),
                _ => self.set(file, key, value),
            }
        }
        Some(match file.starts_with("kpktgend") {
            true => self.show_thread(file),
            false => self.show_device(file),
        })
    }

    fn set(&mut self, device: &str, key: &str, value: &str) {
        let values = self.values.get_mut(device).expect("it was added");
        let keys: &[&str] = match key {
            "pkt_size" => &["min_pkt_size", "max_pkt_size"],
            "ratep" => &["delay"],
            "dst6" => &["daddr"],
            "src6" => &["saddr"],
            "flag" => &["Flags"],
            _ => &[key],
        };
        let value = match key {
            "ratep" => (1_000_000_000 / value.parse::<u64>().unwrap()).to_string(),
            "flag" => format!(
                "{} {value}",
                values.get("Flags").cloned().unwrap_or_default()
            ),
            _ => value.to_owned(),
        };
        for key in keys {
            values.insert((*key).to_owned(), value.clone());
        }
    }

    fn note(&self, file: &str, command: &str) {
        self.commands
            .lock()
            .unwrap()
            .push(format!("{file}: {command}"));
    }

    /// Has all devices send what they count.
    fn control(&mut self, text: &str) {
        for command in text[self.controlled..].lines() {
            self.note("pgctrl", command);
            for values in self.values.values_mut().filter(|_| command == "start") {
                let count = values.get("count").cloned().unwrap_or_default();
                values.insert(
                    "sofar".to_owned(),
                    if count == "0" {
                        "4711".to_owned()
                    } else {
                        count
                    },
                );
            }
        }
        self.controlled = text.len();
    }
}

impl Fake {
    /// Makes pktgen for two CPUs, whose first thread has these devices.
    fn new(name: &str, left: &[&str], fault: Option<Fault>) -> Self {
        let root =
            std::env::temp_dir().join(format!("guideway-pktgen-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let left: Vec<String> = left.iter().map(|&name| name.to_owned()).collect();
        let commands: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut state = State {
            threads: [
                ("kpktgend_0".to_owned(), left),
                ("kpktgend_1".to_owned(), Vec::new()),
            ]
            .into(),
            commands: Arc::clone(&commands),
            fault,
            ..State::default()
        };
        fs::write(root.join("pgctrl"), "").unwrap();
        for file in ["kpktgend_0", "kpktgend_1"] {
            fs::write(root.join(file), state.show_thread(file)).unwrap();
        }
        let (stop, own) = (Arc::<AtomicBool>::default(), root.clone());
        let ended = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                work(&own, &mut state);
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            root,
            commands,
            stop,
            thread: Some(thread),
        }
    }

    fn commands(&self) -> Vec<String> {
        self.commands.lock().unwrap().clone()
    }
}

/// Works off what was appended to files since the last time.
fn work(root: &Path, state: &mut State) {
    let files: Vec<String> = state
        .threads
        .keys()
        .chain(state.values.keys())
        .cloned()
        .collect();
    for file in files {
        let path = root.join(&file);
        let text = fs::read_to_string(&path).unwrap();
        // In the order in which they were written: a start or a stop before what a file has since. Values before a start
        // are worked off by then, for each has been read back.
        state.control(&fs::read_to_string(root.join("pgctrl")).unwrap());
        let shown = state.work_off(&file, &text);
        let shown = shown.or_else(|| {
            let has_sent = state
                .values
                .get(&file)
                .is_some_and(|of| of.contains_key("sofar"));
            (has_sent && !text.contains("usec")).then(|| state.show_device(&file))
        });
        // A device's file is there when its thread shows it.
        for name in state.values.keys().filter(|name| !root.join(name).exists()) {
            fs::write(root.join(name), state.show_device(name)).unwrap();
        }
        // A reader sees either the old or the new text.
        if let Some(shown) = shown {
            let draft = root.join(".draft");
            fs::write(&draft, shown).unwrap();
            fs::rename(&draft, &path).unwrap();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn of_two_threads() -> Load {
    Load {
        generator: GeneratorKind::Pktgen,
        threads: 2,
        flows: 5,
        ..load()
    }
}

fn send_to(fake: &Fake, load: &Load, services: &[&str], rate: Option<f64>) -> Result<(f64, Pace)> {
    let services: Vec<SocketAddr> = services.iter().map(|one| one.parse().unwrap()).collect();
    let sending = Sending {
        interface: "eth0",
        macs: [2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa],
        services: &services,
        load,
    };
    let asked = Asked {
        rate,
        seconds: 0.01,
        seed: 1,
    };
    send(&fake.root, &sending, asked, Pace::default())
}

#[test]
fn each_value_is_written_for_two_threads_and_nothing_is_left() {
    let fake = Fake::new("all", &[], None);
    let load = Load {
        vlan: Some(7),
        flow_order: FlowOrder::Uniform,
        ..of_two_threads()
    };
    let (seconds, pace) = send_to(&fake, &load, &["10.99.0.1:80"], Some(10_000.0)).unwrap();
    assert_eq!((seconds, pace.sent), (2.0, 100));
    let commands = fake.commands();
    for expected in [
        "kpktgend_0: add_device eth0@guideway0",
        "kpktgend_1: add_device eth0@guideway1",
        "eth0@guideway0: dst_mac 02:00:00:00:00:0b",
        "eth0@guideway0: src_mac 02:00:00:00:00:0a",
        "eth0@guideway0: dst_max 10.99.0.1",
        "eth0@guideway0: src_min 198.18.0.1",
        "eth0@guideway1: src_min 198.18.0.2",
        "eth0@guideway0: udp_src_min 10000",
        "eth0@guideway0: udp_src_max 10003",
        "eth0@guideway1: udp_src_max 10002",
        "eth0@guideway0: udp_dst_min 80",
        "eth0@guideway0: pkt_size 60",
        "eth0@guideway0: vlan_id 7",
        "eth0@guideway0: flag UDPCSUM",
        "eth0@guideway0: flag UDPSRC_RND",
        "eth0@guideway0: count 50",
        "eth0@guideway1: ratep 5000",
        "pgctrl: start",
        "kpktgend_0: rem_device_all",
        "kpktgend_1: rem_device_all",
    ] {
        assert!(
            commands.iter().any(|one| one == expected),
            "{expected}: {commands:#?}"
        );
    }
}

#[test]
fn ipv6_mixes_and_the_fastest_rate_have_values_of_their_own() {
    let fake = Fake::new("v6", &[], None);
    let frame_bytes = [(82, 3), (128, 1)].map(|(bytes, weight)| FrameSize { bytes, weight });
    let load = Load {
        family: AddressFamily::Ipv6,
        frame_bytes: frame_bytes.into(),
        threads: 1,
        flows: 1,
        ..of_two_threads()
    };
    let (_, pace) = send_to(&fake, &load, &["[fd00:99::]:80"], None).unwrap();
    assert_eq!(pace.sent, 4711);
    let commands = fake.commands();
    for expected in [
        "eth0@guideway0: dst6 fd00:99::",
        "eth0@guideway0: src6 2001:2::1",
        "eth0@guideway0: udp_src_max 10000",
        "eth0@guideway0: imix_weights 78,3 124,1",
        "eth0@guideway0: count 0",
        "eth0@guideway0: delay 0",
        "pgctrl: stop",
    ] {
        assert!(
            commands.iter().any(|one| one == expected),
            "{expected}: {commands:#?}"
        );
    }
}

#[test]
fn a_value_that_is_not_taken_is_named_and_nothing_is_left() {
    let fake = Fake::new("fault", &[], Some(("pkt_size 60", "42")));
    let error = send_to(&fake, &of_two_threads(), &["10.99.0.1:80"], Some(1e4)).unwrap_err();
    let told = format!("{error:#}");
    assert!(
        told.contains("not taken \"pkt_size 60\"") && told.contains("Some(\"42\")"),
        "{told}"
    );
    let commands = fake.commands();
    assert!(
        !commands.iter().any(|one| one == "pgctrl: start"),
        "{commands:#?}"
    );
    assert!(
        commands
            .iter()
            .any(|one| one == "kpktgend_0: rem_device_all"),
        "{commands:#?}"
    );
}

#[test]
fn what_a_killed_run_has_left_is_removed_and_devices_of_others_are_not() {
    let fake = Fake::new("left", &["eth0@guideway0", "eth1@guideway1"], None);
    Pktgen::open(&fake.root).unwrap();
    assert_eq!(
        fake.commands(),
        ["pgctrl: stop", "kpktgend_0: rem_device_all"]
    );
    let fake = Fake::new("others", &["eth0@guideway0", "eth1"], None);
    let error = Pktgen::open(&fake.root).unwrap_err();
    assert!(
        error.is_of_machine() && error.to_string().contains("the device eth1"),
        "{error}"
    );
    assert!(fake.commands().is_empty());
}

#[test]
fn a_kernel_without_pktgen_or_with_few_threads_is_told_apart() {
    let missing = Pktgen::open(Path::new("/nowhere")).unwrap_err();
    assert!(missing.is_of_machine() && missing.to_string().contains("modprobe pktgen"));
    let fake = Fake::new("few", &[], None);
    let load = Load {
        threads: 3,
        ..of_two_threads()
    };
    let error = send_to(&fake, &load, &["10.99.0.1:80"], Some(1e4)).unwrap_err();
    assert!(format!("{error:#}").contains("has 2 threads"), "{error:#}");
}

#[test]
fn flows_have_one_thread_and_one_service_each_and_clients_of_their_own() {
    let load = Load {
        flows: 1_000,
        ..of_two_threads()
    };
    let devices = flows_by_device(&load, 3);
    assert_eq!(devices.len(), 6);
    assert_eq!(
        devices.values().map(|&flows| u32::from(flows)).sum::<u32>(),
        1_000
    );
    let mut clients = clients(&load, 3);
    assert_eq!(clients.len(), 1_000);
    clients.sort_unstable();
    clients.dedup();
    assert_eq!(clients.len(), 1_000);
}

/// As Linux 6.12 shows it.
#[test]
fn values_are_read_as_the_kernel_shows_them() {
    let shown = "Params: count 1000  min_pkt_size: 60  max_pkt_size: 60\n\
        \u{20}    frags: 0  delay: 0  clone_skb: 0  ifname: eth0@guideway0\n\
        \u{20}    saddr: fd00::  min_saddr: ::  max_saddr: ::\n\
        \u{20}    src_mac: 02:00:00:00:00:0a dst_mac: 02:00:00:00:00:0b\n\
        \u{20}    imix_weights: 60,7 590,4 1514,1 \n     Flags: IPV6  UDPCSUM  \n\
        Current:\n     pkts-sofar: 1000  errors: 0\nResult: OK: 5(c4+d1) usec, 1000 (60byte,0frags)\n";
    let values = values(shown);
    for (key, expected) in [
        ("Params", "count 1000"),
        ("min_pkt_size", "60"),
        ("ifname", "eth0@guideway0"),
        ("saddr", "fd00::"),
        ("min_saddr", "::"),
        ("dst_mac", "02:00:00:00:00:0b"),
        ("imix_weights", "60,7 590,4 1514,1"),
        ("Flags", "IPV6 UDPCSUM"),
    ] {
        assert_eq!(values.get(key).map(String::as_str), Some(expected), "{key}");
    }
    assert!(!values.contains_key("pkts-sofar"));
}
