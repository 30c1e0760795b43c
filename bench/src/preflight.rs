//! What hinders this machine from running a scenario, each with its remedy. Nothing is sent or made.

use std::{env, path::Path};

use lab::kubernetes::{self, ProxyMode};

use crate::{
    environment,
    exit::Exit,
    host,
    load::pktgen::{self, PktgenError},
    scenario::{GeneratorKind, Port, Scenario},
    wire::{reason_against_stamps, reason_against_xdp, reasons_against},
};

/// The programs of a control plane with kube-proxy.
const CLUSTER: [&str; 4] = ["etcd", "kube-apiserver", "kubectl", "kube-proxy"];
/// Where administrators' programs are, if `PATH` lacks it.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin";

/// The machine cannot run a scenario.
#[derive(Debug, thiserror::Error)]
#[error("this machine cannot run the scenario:{}", listed(.0))]
pub struct Unable(
    /// What hinders it.
    pub Vec<Obstacle>,
);

/// Something that hinders the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What it is, with its remedy.
    pub text: String,
    /// How a run ends because of it.
    pub exit: Exit,
}

fn listed(obstacles: &[Obstacle]) -> String {
    let lines = obstacles.iter().map(|one| format!("\n  {}", one.text));
    lines.collect()
}

/// Other work takes too much of the core.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "this machine is noisy: other work takes the core for {:.1} % of the time; end it, or allow more with --max-noise",
    lost * 100.0
)]
pub struct Noisy {
    /// The share of the time (0 to 1).
    pub lost: f64,
}

/// Seconds for which [`expect_quiet`] watches.
const WATCH_SECONDS: f64 = 1.0;

/// Watches how quiet the machine is. Returns the share of the time (0 to 1) that other work takes.
///
/// # Errors
///
/// When it is more than `most`.
pub fn expect_quiet(most: f64) -> Result<f64, Noisy> {
    let lost = environment::quietness(0.0, WATCH_SECONDS).lost;
    if lost > most {
        return Err(Noisy { lost });
    }
    Ok(lost)
}

/// Looks for all that hinders the machine. `guideway` is the program that Guideway's own systems run.
///
/// # Errors
///
/// All obstacles.
pub fn check(scenario: &Scenario, guideway: &Path) -> Result<(), Unable> {
    let mut obstacles = Vec::new();
    let unable = |text| Obstacle {
        text,
        exit: Exit::Unable,
    };
    if let Err(error) = host::preflight() {
        obstacles.push(Obstacle {
            text: format!("{error:#}"),
            exit: Exit::of_error(&error),
        });
    }
    let systems = || scenario.systems.iter();
    if systems().any(|system| system.is_ours()) && !guideway.exists() {
        obstacles.push(unable(format!(
            "{} is missing: build it (cargo build --release --package control) or name it by --guideway",
            guideway.display()
        )));
    }
    let modes: Vec<ProxyMode> = systems().filter_map(|system| system.proxy_mode()).collect();
    if !modes.is_empty() {
        let programs = CLUSTER.into_iter().map(kubernetes::program);
        let missing = programs.filter_map(Result::err);
        obstacles.extend(missing.map(|error| unable(format!("{:#}", anyhow::Error::new(error)))));
        let tools = modes.iter().map(|mode| match mode {
            ProxyMode::Nftables => "nft",
            ProxyMode::Iptables => "iptables-restore",
        });
        let missing = ["openssl", "curl"].into_iter().chain(tools);
        let missing = missing.filter(|tool| !is_in_path(tool));
        obstacles.extend(missing.map(|tool| {
            unable(format!(
                "kube-proxy and its cluster need {tool}: run `deploy/setup.sh test`"
            ))
        }));
    }
    let cards = scenario.ports.iter();
    let cards = cards.flat_map(|ports| [Some(&ports.client), ports.backend.as_ref()]);
    if scenario.ports.is_some() && !is_in_path("ip") {
        let text = "network cards need ip: install iproute2".to_owned();
        obstacles.push(unable(text));
    } else {
        let reasons = cards.flatten().flat_map(reasons_against);
        obstacles.extend(reasons.map(|text| Obstacle {
            text,
            exit: Exit::Usage,
        }));
    }
    let reasons = cards_with_programs(scenario).filter_map(reason_against_xdp);
    obstacles.extend(reasons.map(|text| Obstacle {
        text,
        exit: Exit::NoNativeXdp,
    }));
    let stamping = scenario
        .ports
        .iter()
        .filter(|_| scenario.has_stamps_of_cards());
    let reasons = stamping.filter_map(|ports| reason_against_stamps(&ports.client));
    obstacles.extend(reasons.map(unable));
    let threads_of = |generator| {
        let loads = scenario.loads.iter();
        let own = loads.filter(move |load| load.generator == generator);
        own.map(|load| load.threads).max()
    };
    if let Some(threads) = threads_of(GeneratorKind::Live)
        && let Err(error) = host::cores(threads as usize)
    {
        obstacles.push(Obstacle {
            text: format!("{error:#}"),
            exit: Exit::of_error(&error),
        });
    }
    if threads_of(GeneratorKind::Pktgen).is_some()
        && !Path::new(pktgen::ROOT).join("pgctrl").exists()
    {
        obstacles.push(Obstacle {
            text: PktgenError::Missing.to_string(),
            exit: Exit::NoPktgen,
        });
    }
    if obstacles.is_empty() {
        return Ok(());
    }
    Err(Unable(obstacles))
}

/// Returns the cards by which live frames leave, and at which a program counts frames of any generator.
fn cards_with_programs(scenario: &Scenario) -> impl Iterator<Item = &Port> {
    let loads = || scenario.loads.iter().map(|load| load.generator);
    let sends = loads().any(|generator| generator == GeneratorKind::Live);
    let counts = loads().any(GeneratorKind::makes_frames);
    let ports = scenario.ports.iter();
    ports.flat_map(move |ports| {
        let client = Some(&ports.client).filter(|_| sends);
        let backend = ports.backend.as_ref().filter(|_| counts);
        client.into_iter().chain(backend)
    })
}

fn is_in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories = env::split_paths(&path).chain(env::split_paths(SYSTEM_PATH));
    directories.any(|directory| directory.join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_noisy_when_it_loses_more_than_it_may() {
        assert!(expect_quiet(1.0).is_ok_and(|lost| (0.0..=1.0).contains(&lost)));
        // Whatever it loses is more than that.
        let noisy = expect_quiet(-1.0).unwrap_err();
        assert!(noisy.to_string().contains("--max-noise"), "{noisy}");
    }
}
