//! The systemd unit.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use clap::Parser;
use control::cli::{self, Cli};
use control::config::DEFAULT_PIN_DIR;

use super::chart::{Objects, container, deploy, text};

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");
const UNIT: &str = "systemd/guideway.service";

#[test]
fn systemd_takes_the_units() {
    let directory = tempfile::tempdir().unwrap();
    let renew = deploy("examples/renew-token.sh");
    let units = [
        "guideway.service",
        "guideway-token.service",
        "guideway-token.timer",
    ];
    let paths = units.map(|unit| {
        let path = directory.path().join(unit);
        // Where nobody has installed it.
        let unit = text(&format!("systemd/{unit}")).replace("/usr/bin/guideway", GUIDEWAY);
        let unit = unit.replace(
            "/usr/libexec/guideway/renew-token.sh",
            renew.to_str().unwrap(),
        );
        std::fs::write(&path, unit).unwrap();
        path
    });
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&paths)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn renewal_sends_no_token_in_the_clear() {
    let directory = tempfile::tempdir().unwrap();
    for file in ["token", "ca.crt"] {
        std::fs::write(directory.path().join(file), "x").unwrap();
    }
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let output = Command::new(deploy("examples/renew-token.sh"))
        .arg(directory.path())
        // Without https://, which is easily forgotten.
        .arg(server.local_addr().unwrap().to_string())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let connected = server.accept().map(|(_, peer)| peer);
    assert_eq!(connected.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn agent_takes_the_options_of_the_unit() {
    let line = setting("ExecStart").replace("$OPTIONS", "--kubernetes");
    let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
    let cli::Command::Run(run) = cli.command else {
        panic!("{line}");
    };
    assert!(run.kubernetes);
    let directory = format!("/etc/{}", setting("ConfigurationDirectory"));
    assert_eq!(run.config.parent(), Some(Path::new(&directory)));
}

// `systemd-analyze verify` does not notice: it is at run time that the mount is read-only.
#[test]
fn sandbox_leaves_the_pins_writable() {
    let pins = Path::new(DEFAULT_PIN_DIR).parent().unwrap();
    assert_eq!(setting("ReadWritePaths"), pins.to_str().unwrap());
    // It makes /sys/fs/bpf read-only by that very path, which wins over ReadWritePaths.
    assert!(!text(UNIT).contains("\nProtectKernelTunables="));
}

#[test]
fn end_without_an_error_is_final() {
    // `guideway detach` ends the agent so.
    assert_eq!(setting("Restart"), "on-failure");
}

#[test]
fn unit_gives_the_capabilities_that_the_chart_gives() {
    let bounds: BTreeSet<_> = setting("CapabilityBoundingSet")
        .split_whitespace()
        .map(|name| name.strip_prefix("CAP_").unwrap().to_owned())
        .collect();
    let objects = Objects::render(&["agent.extraConfig.mend=on"]);
    let security = &container(objects.agent_pod(), "agent")["securityContext"];
    let added = security["capabilities"]["add"].as_array().unwrap().iter();
    let added: BTreeSet<_> = added
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(bounds, added);
}

/// What the unit's first line `NAME=` says.
fn setting(name: &str) -> String {
    let unit = text(UNIT);
    let mut lines = unit.lines().filter_map(|line| line.split_once('='));
    let found = lines.find(|(key, _)| *key == name);
    found.unwrap_or_else(|| panic!("{name}")).1.to_owned()
}
