//! The binary without an agent: exit codes, messages, generated files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use clap::CommandFactory;
use control::cli::Cli;
use lab::Process;
use nix::pty::{Winsize, openpty};
use serde_json::Value;

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");

/// How long a busy machine may take for what takes no time.
const PATIENCE: Duration = Duration::from_secs(60);
/// A kubeconfig of a server that is not there.
const NO_SERVER: &str = "{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], \
     clusters: [{name: a, cluster: {server: \"http://127.0.0.1:1\"}}], users: [{name: a, user: {}}]}";

fn guideway(arguments: &[&str]) -> Output {
    Command::new(GUIDEWAY)
        .args(arguments)
        .output()
        .expect("the binary was built")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_command_line_ends_with_2() {
    for arguments in [
        &["frobnicate"][..],
        &["run"],
        &["which", "--service", "10.0.0.1:80", "--from", "10.0.0.2:1"],
        &["status", "--watch", "0"],
    ] {
        assert_eq!(guideway(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn wrong_configuration_ends_with_2_and_names_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("edge.yaml");
    std::fs::write(
        &path,
        "interfaces: [{name: eth0}]\nvips: [10.0.0.1, 10.0.0.1]\nhash_seed: x\n",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let output = guideway(&["run", "--config", path]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("edge.yaml:2:18: vips[1]") && text.contains("edge.yaml:3:12: hash_seed"),
        "{text}"
    );
    let missing = guideway(&["run", "--config", "/nonexistent.yaml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr(&missing).contains("/nonexistent.yaml"),
        "{missing:?}"
    );
}

#[test]
fn file_that_could_keep_the_agent_waiting_is_refused() {
    for path in ["/dev/zero", "/dev/stdin", "/tmp"] {
        let output = Command::new(GUIDEWAY)
            .args(["run", "--config", path])
            .stdin(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}");
        assert!(
            stderr(&output).contains("not a regular file"),
            "{path}: {output:?}"
        );
    }
}

#[test]
fn start_that_fails_in_kubernetes_mode_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let kubeconfig = write("kubeconfig", NO_SERVER.to_owned());
    let socket = directory.path().join("agent.sock");
    let config = write(
        "guideway.yaml",
        format!(
            "interfaces: [{{name: eth0}}]\napi: {{socket: {}}}\nkubernetes: {{healthz: \"{address}\"}}\n",
            socket.display()
        ),
    );
    let output = Command::new(GUIDEWAY)
        .env("KUBECONFIG", kubeconfig)
        .args(["run", "--kubernetes", "--config"])
        .arg(config)
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains(&format!("cannot listen on {address}")),
        "{text}"
    );
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn log_is_an_object_on_each_line_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, NO_SERVER).unwrap();
    let mut controller = Command::new(GUIDEWAY);
    controller
        .arg("controller")
        .env("KUBECONFIG", &kubeconfig)
        .env("GUIDEWAY_LOG_FORMAT", "json");
    let mut controller = Process::spawn(&mut controller).unwrap();
    let mut said = |message: &str| {
        let line = controller.wait_for_line(message, PATIENCE).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    let begin = said("starting");
    assert_eq!(begin["level"], "INFO", "{begin}");
    assert_eq!(begin["server"], "http://127.0.0.1:1/", "{begin}");
    let refused = said("cannot read or renew the Lease");
    assert_eq!(refused["level"], "WARN", "{refused}");
    assert_eq!(refused["request"], "lease", "{refused}");

    // Another level while it runs.
    let pid = controller.id().to_string();
    for (level, signal) in [("debug", "SIGUSR1"), ("default", "SIGUSR2")] {
        assert!(guideway(&["log", level, "--pid", &pid]).status.success());
        let line = controller.wait_for_line(signal, PATIENCE).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["message"], "another log", "{line}");
    }
    controller.stop(PATIENCE).unwrap();
    for line in controller.stderr().lines() {
        let read: Value = serde_json::from_str(line).expect(line);
        for field in ["timestamp", "level", "message"] {
            assert!(read[field].is_string(), "{line}");
        }
    }
}

#[test]
fn unknown_form_of_the_log_is_refused() {
    let output = Command::new(GUIDEWAY)
        .arg("controller")
        .env("GUIDEWAY_LOG_FORMAT", "xml")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("use text or json"), "{text}");
}

#[test]
fn message_does_not_steer_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("edge.yaml");
    std::fs::write(&path, "\"\\e[2Jit's\": 1\n").unwrap();
    let output = guideway(&["run", "--config", path.to_str().unwrap()]);
    let text = stderr(&output);
    assert!(text.contains("\\u{1b}[2Jit's: unknown field"), "{text}");
}

#[test]
fn stderr_that_nobody_reads_keeps_the_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(GUIDEWAY)
        .args(["status", "--socket", "/nonexistent/guideway.sock"])
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn absent_agent_ends_with_1_and_a_remedy() {
    let output = guideway(&["status", "--socket", "/nonexistent/guideway.sock"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("guideway run --config FILE"),
        "{output:?}"
    );
}

#[test]
fn reasons_are_explained_without_an_agent() {
    let output = guideway(&["drops", "--explain", "encap_untrusted"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("trusted_edges"), "{text}");
    let unknown = guideway(&["drops", "--explain", "gremlins"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        stderr(&unknown).contains("guideway drops --all"),
        "{unknown:?}"
    );
}

#[test]
fn lines_fit_the_terminal_and_are_whole_without_one() {
    let whole = guideway(&EXPLAIN).stdout;
    let whole = String::from_utf8(whole).unwrap();
    let widest = |page: &str| page.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest(&whole) > 120, "{whole}");
    let words = |page: &str| {
        page.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for (terminal, variable, fits) in [(80, "", 80), (120, "", 120), (120, "80", 80), (0, "", 80)] {
        let page = on_terminal(terminal, variable);
        assert!(widest(&page) <= fits, "{terminal} {variable}:\n{page}");
        assert!(widest(&page) > fits / 2, "{terminal} {variable}:\n{page}");
        assert_eq!(words(&page), words(&whole));
    }
}

/// A page with long lines that needs no agent.
const EXPLAIN: [&str; 3] = ["drops", "--explain", "encap_untrusted"];

/// Prints [`EXPLAIN`] on a terminal of so many columns, which the environment may contradict.
fn on_terminal(columns: u16, variable: &str) -> String {
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = openpty(&size, None).expect("a terminal is made");
    let mut command = Command::new(GUIDEWAY);
    command.args(EXPLAIN).env("COLUMNS", variable);
    let status = command.stdout(terminal.slave).status();
    let status = status.expect("the binary was built");
    assert!(status.success());
    // With its last writer gone, a terminal gives what is in it, and then an error.
    drop(command);
    let mut page = Vec::new();
    let _ = std::fs::File::from(terminal.master).read_to_end(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

#[test]
fn agent_is_looked_for_where_the_environment_says() {
    let output = Command::new(GUIDEWAY)
        .args(["services", "default/web"])
        .env("GUIDEWAY_SOCKET", "/nonexistent/other.sock")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("/nonexistent/other.sock"),
        "{output:?}"
    );
}

#[test]
fn version_is_told_without_an_agent() {
    let socket = ["--socket", "/nonexistent/guideway.sock"];
    let page = guideway(&[&["version"], &socket[..]].concat());
    assert_eq!(page.status.code(), Some(0));
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(
        text.contains(env!("CARGO_PKG_VERSION")) && text.contains("none answers"),
        "{text}"
    );
    let json = guideway(&[&["version", "-o", "json"], &socket[..]].concat());
    let versions: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(versions["client"], env!("CARGO_PKG_VERSION"));
    assert!(versions["agent"].is_null(), "{versions}");
}

#[test]
fn check_ends_with_1_when_something_fails() {
    let output = guideway(&["check", "--interface", "nonexistent0", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = findings.as_array().unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding["subject"] == "nonexistent0" && finding["severity"] == "FAIL"),
        "{findings:?}"
    );
}

#[test]
fn completions_and_the_manual_page_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        let output = guideway(&["completions", shell]);
        assert!(output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("guideway"),
            "{shell}"
        );
    }
    assert!(String::from_utf8_lossy(&guideway(&["man"]).stdout).contains(".TH guideway 1"));
}

#[test]
fn each_command_has_a_manual_page_with_its_options() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("man");
    let written = guideway(&["man", "--dir", path.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let mut cli = Cli::command();
    cli.build();
    let mut expected = Pages::new();
    add_options(&cli, &mut expected);
    let files = std::fs::read_dir(path).unwrap().map(|file| {
        let file = file.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        (file.file_name().into_string().unwrap(), options(&text))
    });
    assert_eq!(files.collect::<Pages>(), expected);
    assert!(
        expected["guideway-which.1"].contains("--from"),
        "{expected:?}"
    );
}

/// The options of commands, by the names of their pages.
type Pages = BTreeMap<String, BTreeSet<String>>;

/// Adds the options of a command and of those below it.
fn add_options(command: &clap::Command, pages: &mut Pages) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let arguments = command.get_arguments();
    let options = arguments
        .filter(|argument| !argument.is_hide_set())
        .flat_map(|argument| {
            let short = argument.get_short().map(|letter| format!("-{letter}"));
            let long = argument.get_long().map(|word| format!("--{word}"));
            [short, long].into_iter().flatten()
        });
    pages.insert(format!("{}.1", name.replace(' ', "-")), options.collect());
    for below in command.get_subcommands() {
        if below.get_name() != "help" && !below.is_hide_set() {
            add_options(below, pages);
        }
    }
}

/// Reads the options that a manual page explains.
fn options(page: &str) -> BTreeSet<String> {
    let (_, explained) = page.split_once("\n.SH OPTIONS").expect(page);
    let lines = explained.split("\n.TP\n").skip(1);
    let lines = lines.filter_map(|entry| entry.lines().next());
    let first_words = lines.flat_map(|line| {
        let words = line.split([' ', ',']).filter(|word| !word.is_empty());
        let words = words.map(|word| {
            word.replace("\\fB", "")
                .replace("\\fR", "")
                .replace('\\', "")
        });
        words.take_while(|word| word.starts_with('-'))
    });
    first_words.collect()
}

#[test]
fn closed_pipe_is_no_failure() {
    let script = format!("{} man | head -c 1; exit ${{PIPESTATUS[0]}}", GUIDEWAY);
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
