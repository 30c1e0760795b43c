//! What hinders this machine from running a scenario, each with its remedy. Nothing is sent or made.

use std::{env, path::Path};

use lab::kubernetes::{self, ProxyMode};

use crate::{host, scenario::Scenario};

/// The programs of a control plane with kube-proxy.
const CLUSTER: [&str; 4] = ["etcd", "kube-apiserver", "kubectl", "kube-proxy"];
/// Where administrators' programs are, if `PATH` lacks it.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin";

/// The machine cannot run a scenario.
#[derive(Debug, thiserror::Error)]
#[error("this machine cannot run the scenario:\n  {}", .0.join("\n  "))]
pub struct Unable(
    /// What hinders it, each with its remedy.
    pub Vec<String>,
);

/// Looks for all that hinders the machine. `guideway` is the program that Guideway's own systems run.
///
/// # Errors
///
/// All obstacles.
pub fn check(scenario: &Scenario, guideway: &Path) -> Result<(), Unable> {
    let mut obstacles = Vec::new();
    if let Err(error) = host::preflight() {
        obstacles.push(format!("{error:#}"));
    }
    let systems = || scenario.systems.iter();
    if systems().any(|system| system.is_ours()) && !guideway.exists() {
        obstacles.push(format!(
            "{} is missing: build it (cargo build --release --package control) or name it by --guideway",
            guideway.display()
        ));
    }
    let modes: Vec<ProxyMode> = systems().filter_map(|system| system.proxy_mode()).collect();
    if !modes.is_empty() {
        let programs = CLUSTER.into_iter().map(kubernetes::program);
        let missing = programs.filter_map(Result::err);
        obstacles.extend(missing.map(|error| format!("{:#}", anyhow::Error::new(error))));
        let tools = modes.iter().map(|mode| match mode {
            ProxyMode::Nftables => "nft",
            ProxyMode::Iptables => "iptables-restore",
        });
        let missing = ["openssl", "curl"].into_iter().chain(tools);
        let missing = missing.filter(|tool| !is_in_path(tool));
        obstacles.extend(missing.map(|tool| {
            format!("kube-proxy and its cluster need {tool}: run `deploy/setup.sh test`")
        }));
    }
    if obstacles.is_empty() {
        return Ok(());
    }
    Err(Unable(obstacles))
}

fn is_in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories = env::split_paths(&path).chain(env::split_paths(SYSTEM_PATH));
    directories.any(|directory| directory.join(program).exists())
}
