//! The wires `ports` and `reflector`. Cables of a bridge stand for network cards and their switch, and namespaces for
//! machines: the bench's own one, the device under test, and the reflector.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use bench::{
    exit::Exit,
    result::{Files, Series},
};
use lab::{Cidr, Guideway, Link, Namespace, Process, Signal, Veth, wait_until};

use super::{ANY_NOISE, Scratch, has_measured, text};

const TIMEOUT: Duration = Duration::from_secs(120);
const PROGRAM: &str = env!("CARGO_BIN_EXE_guideway-bench");

/// A bridge, the bench's machine with two cards, and a device under test with one.
struct Segment {
    // First: programs end before their machines are removed.
    _resident: Process,
    machine: Namespace,
    device: Namespace,
    switch: Namespace,
    /// A process in the device's namespaces.
    resident: u32,
}

impl Segment {
    fn new() -> Self {
        let (switch, machine) = (
            Namespace::new("switch").unwrap(),
            Namespace::new("machine").unwrap(),
        );
        let device = Namespace::new("device").unwrap();
        switch.add_bridge("br0").unwrap();
        for sysctl in ["all", "default"] {
            let key = format!("net/ipv4/conf/{sysctl}/send_redirects");
            device.set_sysctl(&key, "0").unwrap();
        }
        let running = Process::spawn(device.command("sleep").arg("10000")).unwrap();
        let segment = Self {
            resident: running.id(),
            _resident: running,
            machine,
            device,
            switch,
        };
        segment.cable(&segment.machine, "eth1");
        segment.cable(&segment.machine, "eth2");
        let own = segment.cable(&segment.device, "eth0");
        for address in [
            "192.0.2.1/24",
            "198.51.100.1/24",
            "2001:db8:1::1/64",
            "2001:db8:2::1/64",
        ] {
            own.add_address(address.parse().unwrap()).unwrap();
        }
        segment
    }

    /// Connects a machine with the bridge.
    fn cable<'a>(&self, machine: &'a Namespace, name: &str) -> Link<'a> {
        let far = format!("{}-{name}", machine.label());
        let (own, far) = Veth::between((machine, name), (&self.switch, &far))
            .create()
            .unwrap();
        far.set_bridge(&self.switch.link("br0").unwrap()).unwrap();
        for end in [&own, &far] {
            end.disable_tx_offloads().unwrap();
        }
        // Frames that a program sends arrive at a cable's end with a program alone.
        far.attach_pass().unwrap();
        far.wait_until_ready().unwrap();
        own
    }

    /// Has the device forward, or not.
    fn forwarding(&self, on: u8) -> String {
        let enter = format!("nsenter -t {} -n -m", self.resident);
        format!(
            "{enter} sh -c 'echo {on} >/proc/sys/net/ipv4/ip_forward; echo {on} >/proc/sys/net/ipv6/conf/all/forwarding'"
        )
    }

    fn forwards(&self) -> bool {
        self.device.sysctl("net/ipv4/ip_forward").unwrap() == "1"
    }

    /// A device that only routes.
    fn router(&self, to: &str) -> String {
        format!(
            "  - name: router\n    up: {}\n    check: {} test -e /proc\n    down: {}\n    \
             via: [192.0.2.1, \"2001:db8:1::1\"]\n    back: [198.51.100.1, \"2001:db8:2::1\"]\n    to: [{to}]\n",
            self.forwarding(1),
            format_args!("nsenter -t {} -n", self.resident),
            self.forwarding(0)
        )
    }

    fn bench(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.output().expect("the program was built")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(PROGRAM);
        command.args(arguments).env_remove("SSH_CONNECTION");
        if arguments[0] == "run" {
            command.args(ANY_NOISE);
        }
        command
    }

    /// Tells whether the bench's machine has both cards, with an address that one had before.
    fn has_its_cards_back(&self) -> bool {
        let mut ip = self.machine.command("ip");
        let shown = ip.args(["address", "show"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        ["eth1@", "eth2@", "10.9.9.9/24"]
            .iter()
            .all(|part| shown.contains(part))
    }
}

const CARDS: &str = "\
ports:
  client: { device: eth1, addresses: [192.0.2.10/24, \"2001:db8:1::10/64\"] }
  backend: { device: eth2, addresses: [198.51.100.10/24, 198.51.100.11/24, \"2001:db8:2::10/64\"] }
";
const BOTH: &str = "198.51.100.10, 198.51.100.11, \"2001:db8:2::10\"";

fn scenario(wire: &str, systems: &str, loads: &str, rest: &str) -> String {
    format!(
        "name: {wire}\nwire: {wire}\nsystems: [{systems}]\nloads: [{loads}]\nseconds: 0.2\nrounds: 6\n{rest}"
    )
}

fn read(out: &str) -> Vec<Series> {
    let files = Files::read(Path::new(out)).unwrap();
    assert!(!files.run.interrupted);
    files.run.series
}

fn expect_answers(series: &Series) {
    for trial in &series.trials {
        let tally = trial.tally;
        assert!(
            tally.sent > 0 && tally.received > 0,
            "{}: {tally:?}",
            series.name
        );
        assert_eq!(
            (tally.corrupt, tally.misdelivered),
            (0, 0),
            "{}",
            series.name
        );
    }
}

#[test]
fn a_device_between_two_cards_is_measured_beside_the_cable() {
    let (segment, scratch) = (Segment::new(), Scratch::new("ports"));
    let before = segment.machine.link("eth2").unwrap();
    before
        .add_address("10.9.9.9/24".parse::<Cidr>().unwrap())
        .unwrap();
    let (file, out, page) = (
        scratch.path("ports.yaml"),
        scratch.path("result"),
        scratch.path("page.html"),
    );
    let loads = "{ rate: 200, flows: 4 }, { rate: 200, flows: 4, family: ipv6, protocol: tcp, exchange: crr }, \
                 { generator: live, rate: 2000, flows: 4 }";
    let direct = format!("under_test:\n  - {{ name: direct, to: [{BOTH}] }}\n");
    let rest = [CARDS, &direct, &segment.router(BOTH)].concat();
    fs::write(&file, scenario("ports", "direct, router", loads, &rest)).unwrap();

    let plan = segment.bench(&["plan", &file]);
    assert!(
        text(&plan).contains("192.0.2.10:10001 -> 198.51.100.11:7000: 198.51.100.11"),
        "{}",
        text(&plan)
    );
    let run = segment.bench(&["run", &file, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let series = read(&out);
    let names: Vec<&str> = series.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "direct-1", "router-1", "direct-2", "router-2", "direct-3", "router-3"
        ]
    );
    series.iter().for_each(expect_answers);
    assert!(series[0].figures.forward.count > 0);
    assert!(
        series[1].description.contains("leave by eth1 by 192.0.2.1"),
        "{}",
        series[1].description
    );
    assert!(segment.has_its_cards_back() && !segment.forwards());

    for arguments in [&["report", &out, "--html", &page][..], &["verify", &page]] {
        let output = segment.bench(arguments);
        assert!(output.status.success(), "{}", text(&output));
    }
}

#[test]
fn guideway_is_a_device_that_commands_bring_up() {
    let (segment, scratch) = (Segment::new(), Scratch::new("device"));
    let program = Path::new(PROGRAM).with_file_name("guideway");
    let config = format!(
        "interfaces: [{{ name: eth0, mode: native }}]
tables: {{ lut_arena_mib: 2, services: 64, backends: 256, pods: 256, next_hops: 256, vips: 256, nat_flows: 4096 }}
api: {{ socket: {} }}
node_health: off
roles: [edge]
vips: [\"203.0.113.1\"]
services:
  - name: bench
    address: \"203.0.113.1\"
    port: 80
    protocol: udp
    mode: nat
    backends: [{{ address: \"198.51.100.10\", port: 7000 }}, {{ address: \"198.51.100.11\", port: 7000 }}]
",
        Guideway::socket().display()
    );
    Guideway::new(&program)
        .configure(&segment.device, &config)
        .unwrap();
    let enter = format!(
        "nsenter -t {} -n -m {}",
        segment.resident,
        program.display()
    );
    let (socket, pid) = (
        Guideway::socket().display().to_string(),
        scratch.path("pid"),
    );
    let device = format!(
        "under_test:\n  - name: guideway\n    \
         up: {enter} run --config {}/guideway.yaml >/dev/null 2>&1 & echo $! >{pid}\n    \
         check: {enter} backends --socket {socket} --json | grep -q 198.51.100.11\n    \
         down: kill $(cat {pid}) && rm {pid}\n    via: [192.0.2.1]\n    back: [198.51.100.1]\n    to: [\"203.0.113.1:80\"]\n",
        Namespace::FILES
    );
    let (file, out) = (scratch.path("device.yaml"), scratch.path("result"));
    let cards = CARDS.to_owned() + "  networks: [203.0.113.0/24]\n";
    let rest = [cards, device].concat();
    fs::write(
        &file,
        scenario("ports", "guideway", "{ rate: 200, flows: 32 }", &rest),
    )
    .unwrap();
    let run = segment.bench(&["run", &file, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let series = read(&out);
    series.iter().for_each(expect_answers);
    let shares = &series[0].trials[0].shares;
    assert!(
        shares.len() == 2 && shares.iter().all(|&share| share > 0),
        "{shares:?}"
    );
    assert!(!Path::new(&pid).exists(), "it was not taken down");
}

#[test]
fn another_machine_answers_as_the_reflector() {
    let (segment, scratch) = (Segment::new(), Scratch::new("reflector"));
    let other = Namespace::new("other").unwrap();
    segment.cable(&other, "eth9");
    let mut reflect = other.command(PROGRAM);
    reflect.args(["reflect", "--device", "eth9", "--via", "198.51.100.1"]);
    reflect.args([
        "--address",
        "198.51.100.20/24",
        "--address",
        "198.51.100.21/24",
    ]);
    let mut reflector = Process::spawn(&mut reflect).unwrap();
    reflector
        .wait_for_line("Answering at 198.51.100.20/24", TIMEOUT)
        .unwrap();

    let (file, out, page) = (
        scratch.path("r.yaml"),
        scratch.path("result"),
        scratch.path("page.html"),
    );
    let cards = format!(
        "ports:\n  client: {{ device: eth1, addresses: [192.0.2.10/24] }}\n  \
         reflector: [198.51.100.20, 198.51.100.21]\n  networks: [198.51.100.0/24]\n  \
         facts: {PROGRAM} environment\nunder_test:\n"
    );
    let router = segment.router("198.51.100.20, 198.51.100.21");
    let of_router = "    facts: \"echo 'model: a switch'\"\n";
    let rest = [&cards, &router, of_router].concat();
    fs::write(
        &file,
        scenario("reflector", "router", "{ rate: 200, flows: 4 }", &rest),
    )
    .unwrap();
    let run = segment.bench(&["run", &file, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let facts = Files::read(Path::new(&out)).unwrap().run.environment;
    assert_eq!(facts["device.router.model"], "a switch");
    assert_eq!(facts["reflector.kernel.release"], facts["kernel.release"]);
    let series = read(&out);
    series.iter().for_each(expect_answers);
    let figures = &series[0].figures;
    assert!(figures.round_trip.count > 0);
    assert_eq!((figures.forward.count, figures.forward.unanswered), (0, 0));
    assert!(series[0].trials[0].shares.iter().all(|&share| share > 0));
    for arguments in [&["report", &out, "--html", &page][..], &["verify", &page]] {
        let output = segment.bench(arguments);
        assert!(output.status.success(), "{}", text(&output));
    }

    reflector.signal(Signal::SIGINT).unwrap();
    reflector.wait(TIMEOUT).unwrap();
    assert!(other.link("eth9").is_ok(), "the card was not given back");
}

#[test]
fn cards_in_use_are_refused_unless_they_are_given_up() {
    let (segment, scratch) = (Segment::new(), Scratch::new("refused"));
    let file = scratch.path("refused.yaml");
    let device = "under_test:\n  - { name: direct, to: [198.51.100.10] }\n";
    let write_load = |load: &str, cards: &str| {
        let rest = [cards, device].concat();
        fs::write(&file, scenario("ports", "direct", load, &rest)).unwrap();
    };
    let write = |cards: &str| write_load("{ rate: 200, flows: 4 }", cards);
    write(CARDS);
    let refused = |because: &str| {
        let mut command = segment.command(&["preflight", &file, "--max-noise", "100"]);
        command.env("SSH_CONNECTION", "203.0.113.7 50022 10.9.9.9 22");
        let output = command.output().unwrap();
        let expected = match because {
            "" => 0,
            _ if because.contains("stamp") => 77,
            _ => 2,
        };
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{because}: {}",
            text(&output)
        );
        assert!(
            text(&output).contains(because),
            "{because}: {}",
            text(&output)
        );
    };
    let load = "{ rate: 200, flows: 4, stamps: card }";
    write_load(load, CARDS);
    refused("eth1 does not stamp all frames (ethtool -T eth1): write stamps: kernel");
    write_load(&load.replace("card", "kernel"), CARDS);
    refused("");
    let [client, backend] = ["eth1", "eth2"].map(|name| segment.machine.link(name).unwrap());
    backend.add_address("10.9.9.9/24".parse().unwrap()).unwrap();
    refused("eth2 has the address 10.9.9.9 of this login");
    let route = lab::Route::to(Cidr::ANY_V4).via("10.9.9.1".parse::<std::net::IpAddr>().unwrap());
    segment.machine.add_route(&route).unwrap();
    refused("eth2 has the default route");
    write(&CARDS.replace("device: eth2,", "device: eth2, given_up: true,"));
    refused("");
    client.attach_pass().unwrap();
    refused("eth1 has an XDP program of others");
    client.detach_xdp().unwrap();
    write(&CARDS.replace("device: eth1,", "device: eth7,"));
    refused("there is no interface eth7");
}

#[test]
fn a_card_without_native_xdp_is_refused_where_frames_are_counted() {
    let (segment, scratch) = (Segment::new(), Scratch::new("driver"));
    // A bridge has no driver that runs XDP.
    segment.machine.add_bridge("br7").unwrap();
    let file = scratch.path("driver.yaml");
    let cards = CARDS.replace("device: eth2", "device: br7");
    let rest = [
        &cards,
        "under_test:\n  - { name: direct, to: [198.51.100.10] }\n",
    ]
    .concat();
    let preflight = |load: &str| {
        fs::write(&file, scenario("ports", "direct", load, &rest)).unwrap();
        segment.bench(&["preflight", &file, "--max-noise", "100"])
    };
    let refused = preflight("{ generator: live, rate: 2000 }");
    let said = text(&refused);
    let expected = i32::from(Exit::NoNativeXdp.code());
    assert_eq!(refused.status.code(), Some(expected), "{said}");
    assert!(
        said.contains("the driver of br7 has no native XDP"),
        "{said}"
    );
    let requests = preflight("{ rate: 200, flows: 4 }");
    assert!(requests.status.success(), "{}", text(&requests));
}

#[test]
fn a_link_that_is_down_or_flaps_has_an_exit_code_of_its_own() {
    let (segment, scratch) = (Segment::new(), Scratch::new("flapping"));
    let backend = segment.machine.link("eth2").unwrap();
    backend.add_address("10.9.9.9/24".parse().unwrap()).unwrap();
    let far = segment.switch.link("machine-eth2").unwrap();
    let (file, out) = (scratch.path("flapping.yaml"), scratch.path("result"));
    let rest = [CARDS, "under_test:\n", &segment.router(BOTH)].concat();
    let own = scenario("ports", "router", "{ rate: 200, flows: 4 }", &rest);
    fs::write(&file, own).unwrap();
    let expected = Some(i32::from(Exit::LinkDown.code()));
    let remedy = "bring it up, check cable and driver";

    far.set_down().unwrap();
    let run = segment.bench(&["run", &file, "--out", &out]);
    assert_eq!(run.status.code(), expected, "{}", text(&run));
    let told = format!("eth2 is down or has no carrier: {remedy}");
    assert!(text(&run).contains(&told), "{}", text(&run));
    assert!(!Path::new(&out).exists());
    far.set_up().unwrap();
    far.wait_until_ready().unwrap();
    assert!(segment.has_its_cards_back());

    let mut run = Process::spawn(&mut segment.command(&["run", &file, "--out", &out])).unwrap();
    let result = Path::new(&out).join("result.json");
    wait_until("a round is measured, and the link flaps", TIMEOUT, || {
        if result.exists() {
            far.set_down().unwrap();
            far.set_up().unwrap();
        }
        !run.is_running()
    })
    .unwrap();
    let status = run.wait(TIMEOUT).unwrap();
    let said = run.stderr();
    assert_eq!(status.code(), expected, "{said}");
    assert!(said.contains(remedy), "{said}");
    assert!(segment.has_its_cards_back() && !segment.forwards());
}

/// The cards of this test are of their namespace, with which the kernel removes them: others take their places.
#[test]
fn after_a_run_that_was_killed_the_next_one_takes_its_device_down_first() {
    let (segment, scratch) = (Segment::new(), Scratch::new("killed"));
    let [file, out, next, log] =
        ["long.yaml", "result", "next", "log"].map(|name| scratch.path(name));
    let router = segment
        .router(BOTH)
        .replace("\n    check:", &format!("; echo up >>{log}\n    check:"))
        .replace("\n    via:", &format!("; echo down >>{log}\n    via:"));
    let rest = [CARDS, "under_test:\n", &router].concat();
    let short = scenario("ports", "router", "{ rate: 200, flows: 4 }", &rest);
    fs::write(&file, short.replace("rounds: 6", "rounds: 10000")).unwrap();
    let mut run = Process::spawn(&mut segment.command(&["run", &file, "--out", &out])).unwrap();
    let result = Path::new(&out).join("result.json");
    wait_until("a round is measured", TIMEOUT, || {
        assert!(run.is_running(), "{}", run.stderr());
        result.exists()
    })
    .unwrap();
    run.signal(Signal::SIGKILL).unwrap();
    run.wait(TIMEOUT).unwrap();
    assert!(segment.forwards(), "nobody is left to take it down");
    assert!(Files::read(Path::new(&out)).unwrap().run.interrupted);

    // Whatever of the bench comes first cleans up.
    segment.bench(&["preflight", &file, "--max-noise", "100"]);
    let own = format!("gw-{}-", run.id());
    let names = fs::read_dir("/run/netns").unwrap().flatten();
    let mut names = names.map(|name| name.file_name().to_string_lossy().into_owned());
    assert!(!names.any(|name| name.starts_with(&own)));
    for card in ["eth1", "eth2"] {
        let far = format!("machine-{card}");
        wait_until(&format!("{far} is gone"), TIMEOUT, || {
            segment.switch.link(&far).is_err()
        })
        .unwrap();
        segment.cable(&segment.machine, card);
    }
    let backend = segment.machine.link("eth2").unwrap();
    backend.add_address("10.9.9.9/24".parse().unwrap()).unwrap();

    fs::write(&file, short).unwrap();
    let output = segment.bench(&["run", &file, "--out", &next]);
    assert!(has_measured(&output), "{}", text(&output));
    let done = fs::read_to_string(&log).unwrap();
    let done: Vec<&str> = done.lines().collect();
    assert_eq!(done, ["down", "up", "down", "up", "down"]);
    assert!(segment.has_its_cards_back() && !segment.forwards());
}

#[test]
fn an_interrupted_run_takes_the_device_down_and_gives_the_cards_back() {
    let (segment, scratch) = (Segment::new(), Scratch::new("given-back"));
    let backend = segment.machine.link("eth2").unwrap();
    backend.add_address("10.9.9.9/24".parse().unwrap()).unwrap();
    let (file, out) = (scratch.path("long.yaml"), scratch.path("result"));
    let rest = [CARDS, "under_test:\n", &segment.router(BOTH)].concat();
    let long = scenario("ports", "router", "{ rate: 200, flows: 4 }", &rest)
        .replace("rounds: 6", "rounds: 10000");
    fs::write(&file, long).unwrap();
    let mut command = segment.command(&["run", &file, "--out", &out]);
    let mut run = Process::spawn(command.stdout(Stdio::null())).unwrap();
    let result = Path::new(&out).join("result.json");
    wait_until("a round is measured", TIMEOUT, || {
        result.exists() || !run.is_running()
    })
    .unwrap();
    assert!(run.is_running() && segment.forwards(), "{}", run.stderr());
    run.signal(Signal::SIGINT).unwrap();
    run.wait(TIMEOUT).unwrap();
    assert!(segment.has_its_cards_back() && !segment.forwards());
}
