//! The systemd unit.

use std::collections::BTreeSet;
use std::process::Command;

use super::chart::{Objects, container, text};

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");
const UNIT: &str = "systemd/guideway.service";

#[test]
fn systemd_takes_the_unit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("guideway.service");
    // Where no package has installed it.
    let unit = text(UNIT).replace("/usr/bin/guideway", GUIDEWAY);
    std::fs::write(&path, unit).unwrap();
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn unit_gives_the_capabilities_that_the_chart_gives() {
    let unit = text(UNIT);
    let mut lines = unit.lines();
    let bounds = lines.find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let bounds: BTreeSet<_> = bounds
        .unwrap()
        .split_whitespace()
        .map(|name| name.strip_prefix("CAP_").unwrap().to_owned())
        .collect();
    let objects = Objects::render(&[]);
    let security = &container(objects.agent_pod(), "agent")["securityContext"];
    let added = security["capabilities"]["add"].as_array().unwrap().iter();
    let added: BTreeSet<_> = added
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(bounds, added);
}
