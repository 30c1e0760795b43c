//! The commands around results: `preflight`, `plan`, `run`, `report`, `verify`, `compare`.

mod environment;
mod instructions;
mod judgement;
mod reflect;
mod report;
mod scale;

use std::{
    env, fmt,
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    process::ExitCode,
    slice,
};

use anyhow::{Context, Result, bail};
use bench::{
    compare::{self, Costs, Judgement, Side},
    exit::Exit,
    plan, preflight,
    redact::Redactor,
    report::{text, verify},
    result::Files,
    run::{self, OfAnotherRun},
    scenario::Scenario,
};

pub(crate) use environment::Environment;
pub(crate) use instructions::Instructions;
pub(crate) use judgement::JudgementCheck;
pub(crate) use reflect::Reflect;
pub(crate) use report::Report;
pub(crate) use scale::Scale;
use serde::Serialize;

use crate::show_progress;

const SCENARIO: &str = "\
A scenario:
  name: udp
  wire: lab                       # namespaces of this machine
  systems: [direct, ours-ipip]    # direct: no load balancer; the others are routing, null-program, ours-ipip, ours-l2dsr,
                                  # ours-nat, ours-nodeport (behind it pods), kube-proxy-nftables and kube-proxy-iptables, the real ones
  services: 1                     # that each load balancer has, up to 10000
  loads:
    - generator: sockets          # requests, each answered by a backend
      family: ipv4                # or ipv6
      protocol: udp               # or tcp
      exchange: rr                # request and answer; http: by HTTP/1.1; crr: in a TCP connection of their own; connect: its opening
      schedule: constant          # poisson, burst (with burst: 32), ramp, step (with steps: 5)
      rate: 1000                  # requests a second; for ramp and step the highest
      flows: 16
      flow_order: in-turn         # uniform or zipf
      frame_bytes: 64             # a size, imix, imix-csit, or sizes with weights: 64:7 594:4 1518:1
      stamps: kernel              # on requests and answers at the client, by UDP; card: by the clock of the client's card
      background: 10% 50% 90% of pdr   # live frames that pass meanwhile: shares of the system's own pdr, ndr or rfc2544, which is
                                  # searched for once (a load for each share), of another system's rate (50% of direct), or so
                                  # many a second (500000)
    - generator: live             # frames made and counted in the kernel: what a system takes, without latencies
      protocol: tcp               # or udp
      schedule: max               # or constant with a rate
      segment: data               # or syn: with new_flow_share: 1 a SYN flood
      flows: 1000
      new_flow_share: 0.1         # share of frames of which each begins a flow
      threads: 1                  # that send, each with a core and flows of its own
      vlan: 7                     # tag of the frames: for direct, null-program and ours alone
    - generator: afxdp            # the same frames, made by this program and sent by an AF_XDP socket
      schedule: max
    - generator: pktgen           # frames of the kernel's own generator, by UDP
      threads: 2                  # on so many CPUs, each with a transmit queue
      rate: 100000
    - generator: live
      rate: 5000000
      search: ndr                 # the highest rate up to this one without loss; or pdr, rfc2544; rfc2544-loss: the loss at
                                  # this rate, at 90 % of it and so on
  seconds: 5                      # of a trial
  rounds: 8                       # trials of each system under each load
  seed: 1
  event: { what: agent-restart, at: 2 }   # in each trial, to Guideway's edges and kube-proxy; or backend-change, other-services

Through devices that are not Guideway's, a scenario has in place of the first lines:
  wire: ports                     # out by one network card, through a device under test, in by another one
  ports:
    client: { device: eth1, addresses: [192.0.2.10/24] }
    backend: { device: eth2, addresses: [198.51.100.10/24, 198.51.100.11/24] }   # each address is a backend, at port 7000
    networks: [203.0.113.0/24]    # that frames may go to, besides those of the cards
  systems: [direct, router]       # only one is up at a time
  under_test:
    - { name: direct, to: [198.51.100.10] }     # where flows go; without a port, to port 7000
    - name: router
      up: ssh router ./up.sh      # a command of a shell, which ends once it is done
      check: ping -c 1 -W 1 203.0.113.1   # tried until it succeeds, and again after each trial
      down: ssh router ./down.sh  # before it is up, too: after a run that was killed
      facts: ssh router guideway-bench environment   # once it is up: facts for the result, one a line, `name: value`
      via: [192.0.2.1]            # next hop of the client's card; without one, targets are on the cable
      back: [198.51.100.1]        # that of the backends' card
      to: [203.0.113.1:80]
A card with `given_up: true` is there for tests alone: it may have the default route or the address of the login, and
frames may leave by it to any address. With another machine as the far end, which runs `guideway-bench reflect`:
  wire: reflector
  ports:
    client: { device: eth1, addresses: [192.0.2.10/24] }
    reflector: [198.51.100.10, 198.51.100.11]   # its addresses, in its order
    facts: ssh far guideway-bench environment   # facts of that machine for the result

";

/// How a run may end.
const OF_RUN: [Exit; 14] = [
    Exit::Success,
    Exit::Failed,
    Exit::Usage,
    Exit::WrongPackets,
    Exit::Noisy,
    Exit::SlowGenerator,
    Exit::ConntrackFull,
    Exit::LinkDown,
    Exit::Settings,
    Exit::NoRights,
    Exit::NoNativeXdp,
    Exit::NoPktgen,
    Exit::SystemEnded,
    Exit::Unable,
];
/// How a preflight may end.
const OF_PREFLIGHT: [Exit; 9] = [
    Exit::Success,
    Exit::Failed,
    Exit::Usage,
    Exit::Noisy,
    Exit::Settings,
    Exit::NoRights,
    Exit::NoNativeXdp,
    Exit::NoPktgen,
    Exit::Unable,
];

/// Measures what a scenario asks for: systems side by side, in rounds that go back and forth.
#[derive(Debug, clap::Args)]
#[command(after_help = SCENARIO.to_owned() + &Exit::help(&OF_RUN))]
pub(crate) struct Run {
    /// The scenario, a YAML file.
    scenario: PathBuf,
    /// The directory of the result. One with the interrupted result of this scenario is gone on with; else it must be
    /// new or empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Once the result is complete, replace host names, addresses and MACs in it, the same one always by the same word.
    #[arg(long)]
    redact: bool,
    /// The `guideway` program [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    guideway: Option<PathBuf>,
    #[command(flatten)]
    noise: Noise,
}

/// Percent of the core's time that other work may take, unless the caller says otherwise.
const MAX_NOISE: u8 = 25;

/// How noisy the machine may be.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Noise {
    /// Share of the core's time, in percent, that other work may take before the first round, and in the median over
    /// all rounds. With 100, nothing is too much.
    #[arg(long, value_name = "PERCENT", default_value_t = MAX_NOISE, value_parser = clap::value_parser!(u8).range(..=100))]
    max_noise: u8,
}

impl Noise {
    /// Returns the share, 0 to 1.
    fn most(self) -> f64 {
        f64::from(self.max_noise) / 100.0
    }
}

/// Says what hinders this machine from running a scenario, how long that takes, and how quiet the machine is.
///
/// Sends nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&OF_PREFLIGHT))]
pub(crate) struct Preflight {
    /// The scenario, a YAML file.
    scenario: PathBuf,
    /// The `guideway` program [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    guideway: Option<PathBuf>,
    #[command(flatten)]
    noise: Noise,
}

/// Says what a scenario would send: flows, frames, the backends that Guideway must choose, and the time that it takes.
///
/// Sends nothing, and needs no rights.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&[Exit::Success, Exit::Failed, Exit::Usage]))]
pub(crate) struct Plan {
    /// The scenario, a YAML file.
    scenario: PathBuf,
    /// Write the first 1000 frames to this file, as pcap. MAC addresses and the secrets of a run are made up.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// Checks a report: computes every figure again from the data in it, and finds any edit.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&[Exit::Success, Exit::Failed, Exit::Worse]))]
pub(crate) struct Verify {
    /// An HTML file of `guideway-bench report`.
    report: PathBuf,
}

/// Compares two series, or the figures of two results that have some: better, worse, same or inconclusive.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&[Exit::Success, Exit::Failed, Exit::Usage, Exit::Worse, Exit::Inconclusive]))]
pub(crate) struct Compare {
    /// A result, as DIRECTORY, or DIRECTORY:SERIES where it has several. Of results of `datapath --out` and `control --out`,
    /// DIRECTORY stands for all their figures, and DIRECTORY:SUBJECT for those of one subject.
    first: String,
    /// The result to judge against the first.
    second: String,
    /// Least relative difference that matters.
    #[arg(long, default_value_t = compare::LEAST_DIFFERENCE)]
    least: f64,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// Reads a scenario, and its text; tells what is wrong with it and returns `None`.
fn read_scenario(path: &Path) -> Result<Option<(Scenario, String)>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    match Scenario::parse(&text) {
        Ok(scenario) => Ok(Some((scenario, text))),
        Err(error) => {
            eprintln!("guideway-bench: {}: {error}", path.display());
            Ok(None)
        }
    }
}

impl Preflight {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let Some((scenario, _)) = read_scenario(&self.scenario)? else {
            return Ok(Exit::Usage.into());
        };
        let guideway = self.guideway.clone().map_or_else(beside, Ok)?;
        preflight::check(&scenario, &guideway)?;
        let (systems, loads) = (scenario.systems.len(), scenario.loads.len());
        println!(
            "Nothing hinders it: {systems} systems under {loads} loads in {} rounds, whose trials take {:.1} minutes.",
            scenario.rounds,
            scenario.trial_seconds() / 60.0
        );
        let lost = preflight::expect_quiet(self.noise.most())? * 100.0;
        println!(
            "Other work takes the core for {lost:.1} % of the time: percentiles from p{:.1} on tell of that too.",
            100.0 - lost
        );
        Ok(ExitCode::SUCCESS)
    }
}

impl Plan {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let Some((scenario, _)) = read_scenario(&self.scenario)? else {
            return Ok(Exit::Usage.into());
        };
        print!("{}", plan::text(&scenario)?);
        if let Some(path) = &self.pcap {
            let file = File::create(path);
            let file = file.with_context(|| format!("creating {}", path.display()))?;
            plan::write_pcap(&scenario, &mut BufWriter::new(file))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let Some((_, scenario)) = read_scenario(&self.scenario)? else {
            return Ok(Exit::Usage.into());
        };
        let interrupted = match self.interrupted() {
            Ok(interrupted) => interrupted,
            Err(refused) => {
                let out = self.out.display();
                eprintln!("guideway-bench: {out}: {refused:#}; name another directory");
                return Ok(Exit::Usage.into());
            }
        };
        let options = run::Options {
            scenario,
            guideway: self.guideway.clone().map_or_else(beside, Ok)?,
            out: self.out.clone(),
            interrupted,
            most_noise: self.noise.most(),
            command: self.command(),
        };
        let named = |error: anyhow::Error| {
            if error.is::<OfAnotherRun>() {
                error.context(self.out.display().to_string())
            } else {
                error
            }
        };
        let mut files = run::run(&options, &show_progress).map_err(named)?;
        show_progress("");
        if self.redact {
            files = Redactor::new(slice::from_ref(&files)).redact_one(&files)?;
            files.write(&self.out)?;
        }
        print!("{}", text(&files));
        println!("\nThe result is in {}.", self.out.display());
        let exit = Exit::of_run(&files.run, options.most_noise);
        if exit != Exit::Success {
            eprintln!("guideway-bench: {}; {}", exit.meaning(), exit.remedy());
        }
        Ok(exit.into())
    }

    /// Returns the command that repeats the run.
    fn command(&self) -> String {
        let scenario = file_name(&self.scenario);
        let redact = if self.redact { " --redact" } else { "" };
        let noise = match self.noise.max_noise {
            MAX_NOISE => String::new(),
            percent => format!(" --max-noise {percent}"),
        };
        format!("guideway-bench run {scenario} --out DIR{redact}{noise}")
    }

    /// Returns the interrupted result in the directory of the result, if one is there.
    fn interrupted(&self) -> Result<Option<Files>> {
        match Files::find(&self.out)? {
            Some(files) if !files.run.interrupted => bail!("a complete result is there"),
            found => Ok(found),
        }
    }
}

impl Verify {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let page = fs::read_to_string(&self.report)
            .with_context(|| format!("reading {}", self.report.display()))?;
        match verify(&page) {
            Ok(results) => {
                let series: usize = results.iter().map(|files| files.run.series.len()).sum();
                println!(
                    "The report is what was measured: {series} series, all figures computed again."
                );
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                eprintln!("guideway-bench: {}: {error:#}", self.report.display());
                Ok(Exit::Worse.into())
            }
        }
    }
}

impl Compare {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let [first, second] = [&self.first, &self.second].map(|text| split(text));
        let [of_first, of_second] = [read(first.0)?, read(second.0)?];
        let [of_costs, other_costs] = [(&of_first, first.1), (&of_second, second.1)]
            .map(|(files, name)| Costs::find(files, name));
        let outcome = match (of_costs, other_costs) {
            (Some(first), Some(second)) => compare::compare_costs(first, second, self.least)
                .and_then(|comparison| self.show(&comparison, comparison.judgement())),
            _ => Side::find(&of_first, first.1)
                .and_then(|first| {
                    let second = Side::find(&of_second, second.1)?;
                    compare::compare(first, second, self.least)
                })
                .and_then(|comparison| self.show(&comparison, comparison.judgement())),
        };
        Ok(outcome
            .unwrap_or_else(|refused| {
                eprintln!("guideway-bench: {refused:#}");
                Exit::Usage
            })
            .into())
    }

    fn show(
        &self,
        comparison: &(impl fmt::Display + Serialize),
        judgement: Judgement,
    ) -> Result<Exit> {
        if self.json {
            println!("{}", serde_json::to_string(comparison)?);
        } else {
            print!("{comparison}");
        }
        Ok(match judgement {
            Judgement::Better | Judgement::Same => Exit::Success,
            Judgement::Worse => Exit::Worse,
            Judgement::Inconclusive => Exit::Inconclusive,
        })
    }
}

fn read(directory: &Path) -> Result<Files> {
    Files::read(directory).with_context(|| format!("the result {}", directory.display()))
}

/// Splits `DIRECTORY:SERIES`. A directory whose name has a colon is taken for itself.
fn split(text: &str) -> (&Path, Option<&str>) {
    if Path::new(text).exists() {
        return (Path::new(text), None);
    }
    match text.rsplit_once(':') {
        Some((directory, series)) => (Path::new(directory), Some(series)),
        None => (Path::new(text), None),
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Finds `guideway` beside this program.
pub(crate) fn beside() -> Result<PathBuf> {
    let own = env::current_exe().context("finding this program")?;
    Ok(own.with_file_name("guideway"))
}
