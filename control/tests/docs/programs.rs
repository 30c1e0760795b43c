//! Programs of the system that the pages tell to type: what a machine of a test network can bear is run on one.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;

use lab::{Namespace, Veth, output};
use tempfile::TempDir;

use super::page::{Page, manual, read, root};
use super::shell::commands;

/// Programs whose commands other tests run or read, and words of the shell.
const ELSEWHERE: [&str; 7] = [
    "cargo", "for", "guideway", "helm", "kubectl", "make", "tshark",
];
/// Programs that a line of text may name with their arguments. In a block of shell, every program counts.
const IN_TEXT: [&str; 17] = [
    "apparmor_parser",
    "arping",
    "birdc",
    "curl",
    "docker",
    "etcdutl",
    "ethtool",
    "grep",
    "install",
    "ip",
    "journalctl",
    "mount",
    "nstat",
    "perf",
    "sysctl",
    "systemctl",
    "tcpdump",
];
/// Commands that other tests have typed, each with the file of one.
const ELSEWHERE_TYPED: [(&str, &str); 4] = [
    ("arping -I eth0 192.0.2.10", "control/tests/e2e/announce.rs"),
    ("birdc disable vips", "control/tests/chart/bgp.rs"),
    (
        "etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted",
        "control/tests/kubernetes/restored.rs",
    ),
    (
        "nstat -az TcpInCsumErrors UdpInCsumErrors",
        "control/tests/e2e/planted.rs",
    ),
];
/// Commands that no test runs, each with the reason.
const BY_HAND: [(&str, &str); 3] = [
    (
        "docker build -f deploy/Dockerfile --output=target/image .",
        DAEMON,
    ),
    (
        "docker build -f deploy/Dockerfile -t registry.example/guideway:0.1.0 .",
        DAEMON,
    ),
    ("docker push registry.example/guideway:0.1.0", REGISTRY),
];
const DAEMON: &str = "A daemon of Docker would have to run, and fetch Debian's image. `chart::image` runs what the \
                      build collects.";
const REGISTRY: &str = "The reader's own registry is not here.";
/// It changes the whole machine, not a namespace.
const OF_THE_MACHINE: &str = "sysctl -w net.core.bpf_jit_enable=1";
/// What pages leave open, with what a test puts there.
const OPEN: [(&str, &str); 6] = [
    ("CLIENT", "203.0.113.7"),
    ("DEV", "eth0"),
    ("NODE", "198.51.100.10"),
    ("NUMBER", "1500"),
    ("PREFIX", "198.51.100.128/25"),
    ("target/image/usr/bin/guideway", "deploy/examples/edge.yaml"),
];
/// What must find nothing, as its page says.
const FINDS_NOTHING: &str = "ip link show kube-ipvs0";
/// What is said of a command that nothing here runs.
const UNTRIED: &str = "no test tries it";
/// Directories that every machine has.
const DIRECTORIES: [&str; 5] = [
    "etc/apparmor.d",
    "etc/guideway",
    "etc/systemd/system",
    "usr/bin",
    "usr/local/bin",
];

#[test]
fn commands_of_the_system_work() {
    let mut typed = typed();
    typed.retain(|words, _| {
        let words = words.join(" ");
        !named(&BY_HAND, &words) && !named(&ELSEWHERE_TYPED, &words)
    });
    assert!(typed.len() > 20, "{typed:?}");
    let machine = Machine::new();
    // An address that is added is asked later.
    let (first, rest): (BTreeMap<_, _>, _) =
        typed.into_iter().partition(|(words, _)| words[0] == "ip");
    let mut wrong = machine.try_all(first);
    machine.serve();
    wrong.extend(machine.try_all(rest));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_that_other_tests_type_are_in_them() {
    let typed = typed();
    for (command, test) in ELSEWHERE_TYPED {
        assert!(is_typed(&typed, command), "on no page: {command}");
        let literal = format!("\"{command}\"");
        assert!(read(test).contains(&literal), "{test} has no {literal}");
    }
}

#[test]
fn no_command_that_is_left_to_hands_is_run() {
    let typed = typed();
    let machine = Machine::new();
    for (command, reason) in BY_HAND {
        assert!(is_typed(&typed, command), "on no page: {command}");
        assert!(!reason.is_empty(), "{command}");
        assert!(!named(&ELSEWHERE_TYPED, command), "{command}");
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert_eq!(
            machine.try_one(&words),
            Err(UNTRIED.to_owned()),
            "{command}"
        );
    }
}

fn named(commands: &[(&str, &str)], command: &str) -> bool {
    commands.iter().any(|(named, _)| *named == command)
}

fn is_typed(typed: &BTreeMap<Vec<String>, String>, command: &str) -> bool {
    typed.keys().any(|words| words.join(" ") == command)
}

/// The commands of the users' pages that no other test looks at, each with a place where it stands.
fn typed() -> BTreeMap<Vec<String>, String> {
    let mut typed = BTreeMap::new();
    let is_of_users = |page: &Page| !page.path.starts_with("bench");
    for page in manual().into_iter().filter(is_of_users) {
        for command in commands(&page) {
            typed.insert(command.words, command.at);
        }
        for code in &page.code {
            // Behind a command, a remedy may say where to type it.
            let command = code.text.split(" at the ").next().unwrap_or_default();
            let words = shlex::split(command).unwrap_or_default();
            if words.len() > 1 && IN_TEXT.contains(&words[0].as_str()) {
                typed.insert(words, code.at.clone());
            }
        }
    }
    typed.retain(|words, _| {
        let program = words.first().map_or("", String::as_str);
        !program.is_empty() && !ELSEWHERE.contains(&program) && !root().join(program).exists()
    });
    typed
}

/// A machine with `eth0`, a default route, and a root of its own for files.
struct Machine {
    namespace: Namespace,
    _far: Namespace,
    files: TempDir,
}

impl Machine {
    fn new() -> Self {
        let [namespace, far] = ["typed", "far"].map(|label| Namespace::new(label).unwrap());
        let cable = Veth::between((&namespace, "eth0"), (&far, "eth0"));
        let _ = cable.create().unwrap();
        let files = tempfile::tempdir().unwrap();
        for directory in DIRECTORIES {
            std::fs::create_dir_all(files.path().join(directory)).unwrap();
        }
        let profile = files.path().join("etc/apparmor.d/guideway");
        std::fs::copy(root().join("deploy/apparmor/guideway"), profile).unwrap();
        let machine = Self {
            namespace,
            _far: far,
            files,
        };
        for line in [
            "ip address add 198.51.100.2/24 dev eth0",
            "ip route add default via 198.51.100.1",
            // A host has it there, and `/sys` is the machine's own.
            "mount -t tracefs tracefs /sys/kernel/tracing",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            machine.run(&words).unwrap();
        }
        machine
    }

    /// Answers at the address of the pages' examples.
    fn serve(&self) {
        let bound = self.namespace.run(|| TcpListener::bind("192.0.2.10:80"));
        let listener = bound.unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = write!(stream, "HTTP/1.0 204 No Content\r\n\r\n");
            }
        });
    }

    /// Tries commands; returns what is wrong with them.
    fn try_all(&self, typed: BTreeMap<Vec<String>, String>) -> Vec<String> {
        let wrong = typed.into_iter().filter_map(|(words, at)| {
            let why = self.try_one(&words).err()?;
            Some(format!("{at}: {}: {why}", words.join(" ")))
        });
        wrong.collect()
    }

    fn try_one(&self, words: &[String]) -> Result<(), String> {
        let words: Vec<String> = words.iter().map(|word| filled(word)).collect();
        let (program, arguments) = words.split_first().unwrap();
        match (program.as_str(), arguments) {
            _ if words.join(" ") == OF_THE_MACHINE => is_in_force(&arguments[1]),
            // A kernel without AppArmor can read the profile, too.
            ("apparmor_parser", [replace, profile]) => self.run(&[
                program,
                replace,
                "--skip-kernel-load",
                "--skip-cache",
                profile,
            ]),
            // It ends with a program of its own.
            ("perf", _) => {
                let words = words.iter().map(String::as_str).chain(["true"]);
                self.run(&words.collect::<Vec<_>>())
            }
            ("systemctl" | "journalctl", _) => is_about_our_units(arguments),
            ("tcpdump", [_, device, filter @ ..]) => {
                let filter = filter.join(" ");
                self.run(&["dumpcap", "-d", "-i", device, "-f", &filter])
            }
            // It names an option.
            (_, [option]) if option.starts_with('-') => {
                let help = output(Command::new(program).arg("--help"));
                let help = help.map_err(|error| error.to_string())?;
                help.contains(option.as_str())
                    .then_some(())
                    .ok_or("no such option".to_owned())
            }
            (
                "curl" | "ethtool" | "grep" | "install" | "ip" | "ln" | "mount" | "nstat"
                | "sysctl",
                _,
            ) => {
                let outcome = self.run(&words);
                match words.join(" ") == FINDS_NOTHING {
                    true => outcome
                        .err()
                        .map(drop)
                        .ok_or("it finds something".to_owned()),
                    false => outcome,
                }
            }
            _ => Err(UNTRIED.to_owned()),
        }
    }

    fn run(&self, words: &[impl AsRef<str>]) -> Result<(), String> {
        let mut words = words.iter().map(AsRef::as_ref);
        let program = words.next().unwrap();
        let mut command = self.namespace.command(program);
        let is_for_files = ["apparmor_parser", "install", "ln"].contains(&program);
        for word in words {
            match word.strip_prefix('/') {
                Some(path) if is_for_files => command.arg(self.files.path().join(path)),
                None if word.contains('/') && root().join(word).exists() => {
                    command.arg(root().join(word))
                }
                _ => command.arg(word),
            };
        }
        output(&mut command)
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

/// Fills in what a page leaves open.
fn filled(word: &str) -> String {
    let open = OPEN.iter().find(|(open, _)| *open == word);
    open.map_or(word, |(_, value)| value).to_owned()
}

/// Sets what the machine has set before, so that it stays as it is.
fn is_in_force(setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').unwrap();
    let run = |arguments: &[&str]| {
        output(Command::new("sysctl").args(arguments)).map_err(|error| error.to_string())
    };
    let has = run(&["-n", key])?;
    if has.trim() != value {
        return Err(format!("tests need a machine with {setting}"));
    }
    run(&["-w", setting]).map(drop)
}

/// Checks the units that arguments of `systemctl` or `journalctl` name.
fn is_about_our_units(arguments: &[String]) -> Result<(), String> {
    let verbs = [
        "daemon-reload",
        "disable",
        "enable",
        "reload",
        "restart",
        "start",
        "stop",
    ];
    let units = arguments
        .iter()
        .filter(|word| !word.starts_with('-') && !verbs.contains(&word.as_str()));
    for unit in units {
        let file = match Path::new(unit).extension() {
            Some(_) => unit.clone(),
            None => format!("{unit}.service"),
        };
        if !root().join("deploy/systemd").join(file).exists() {
            return Err(format!("no unit {unit} is installed"));
        }
    }
    Ok(())
}
