//! `guideway check`: whether this machine can run Guideway, and what to do if not.
//!
//! The facts come from [`fastpath::facts`]; here they are judged. A FAIL keeps the
//! agent from starting or serving, a WARN costs speed or deserves a look.

pub(crate) mod cluster;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use fastpath::facts::{self, InterfaceError};
use fastpath::pins::Pins;
use serde::Serialize;

use crate::config::{self, Config, ConfigError, DEFAULT_PIN_DIR, host};
use crate::desired::{AttachMode, Role};
use crate::target::{Machine, Target};
use crate::{cli, commands};

/// How a fact is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, at a price.
    Warn,
    /// It does not work.
    Fail,
}

/// One judged fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The judgement.
    pub verdict: Verdict,
    /// What it is about: `kernel`, `process`, `config`, or an interface.
    pub subject: String,
    /// Which of its properties.
    pub check: &'static str,
    /// What was found.
    pub detail: String,
    /// What to do about it; empty if nothing.
    pub remedy: String,
}

/// Checks and shows; the exit code is 1 if anything fails.
///
/// # Errors
///
/// When the result cannot be written.
pub fn check(options: &cli::Check) -> Result<ExitCode> {
    let findings = findings(options);
    if options.json {
        commands::print(&commands::json(&findings, true)?)?;
    } else {
        commands::print(&render(&findings))?;
    }
    let fails = findings
        .iter()
        .any(|finding| finding.verdict == Verdict::Fail);
    Ok(if fails {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Says what it does to NAT mode that the kernel masquerades by these addresses of it, and what to do about it;
/// nothing where it does not.
pub fn masquerade_warning(shared: &BTreeSet<IpAddr>, masquerades: bool) -> Option<String> {
    let finding = judge::masquerade(shared, Some(masquerades))?;
    (finding.verdict != Verdict::Ok).then(|| format!("{}: {}", finding.detail, finding.remedy))
}

fn findings(options: &cli::Check) -> Vec<Finding> {
    let mut findings = Vec::new();
    let config = options
        .config
        .as_deref()
        .and_then(|path| load(path, &mut findings));
    let pin_dir = config.as_ref().map_or_else(
        || PathBuf::from(DEFAULT_PIN_DIR),
        |config| config.pin_dir.clone(),
    );
    findings.extend(judge::kernel(&facts::kernel()));
    findings.extend(judge::process(&facts::process()));
    findings.push(judge::bpffs(&pin_dir, facts::bpffs(&pin_dir)));
    let tables = [true, false].map(|v4| judge::neighbours(v4, facts::neighbour_table(v4)));
    findings.extend(tables.into_iter().flatten());
    if let (Some(config), Some(ports)) = (&config, facts::local_ports()) {
        findings.extend(judge::node_ports(&node_ports(config), &ports));
        // In a cluster any port may come to go by NAT.
        if config.kubernetes.is_some() || config.desired.by_nat().next().is_some() {
            findings.extend(judge::nat_ports(&config.desired.nat, &ports));
        }
    }

    let ours = Pins::new(&pin_dir).interfaces().unwrap_or_default();
    let mut node = false;
    if let Some(config) = &config {
        let desired = &config.desired;
        let machine = Machine::of(desired, &host::facts().unwrap_or_default());
        node = desired.is_node(&machine.addresses);
        if let Some(options) = &config.kubernetes {
            let seen = cluster::look(options, desired);
            // Which machines are nodes, the cluster says.
            node |= desired.node == Role::IfListed && seen.may_be_node;
            findings.extend(seen.findings);
        }
        let shared = &Target::of(desired, &machine).addresses.nat & &machine.primary;
        findings.extend(judge::masquerade(&shared, facts::masquerades()));
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut used = Vec::new();
    let is_configured = |name: &String| {
        let config = config.as_ref();
        config.is_some_and(|config| config.desired.interfaces.contains_key(name))
    };
    for (name, mode) in interfaces(options, config.as_ref()) {
        match facts::interface(&name) {
            Ok(interface) => {
                let attached = ours.contains(&name);
                findings.extend(judge::interface(&interface, mode, attached, cpus));
                if node {
                    findings.push(judge::egress(&name, facts::egress(&name)));
                    findings.extend(judge::reverse_path_filter(
                        &name,
                        facts::reverse_path_filter(&name),
                    ));
                }
                used.push((interface, mode));
            }
            // The finding about the file tells.
            Err(InterfaceError::NotFound { .. }) if is_configured(&name) => {}
            Err(error) => findings.push(judge::unreadable(&name, &error)),
        }
    }
    // Else they are all that the machine has, whatever will be used of them.
    if config.is_some() || !options.interface.is_empty() {
        findings.extend(judge::redirect_targets(&used, &ours));
    }
    findings
}

/// Lists the ports at which NodePorts are or may be served.
fn node_ports(config: &Config) -> BTreeSet<u16> {
    if config.kubernetes.is_some() {
        return config.node_port_range.clone().collect();
    }
    let services = config.desired.services.iter();
    let node_ports = services.filter(|(_, service)| service.spec.node_port);
    node_ports.map(|(key, _)| key.port).collect()
}

/// Reads a configuration; whatever is wrong with it is a finding. One that only this machine does not fit is
/// looked at further.
fn load(path: &Path, findings: &mut Vec<Finding>) -> Option<Config> {
    let loaded = config::load(path, config::Source::AsWritten).map(|config| {
        let facts = host::facts().unwrap_or_default();
        let misfits = host::validate(path, &config, &facts);
        (config, misfits)
    });
    match loaded {
        Ok((config, Err(misfits))) => {
            refuse(misfits, findings);
            Some(config)
        }
        Ok((config, Ok(()))) => {
            let desired = &config.desired;
            findings.push(Finding {
                verdict: Verdict::Ok,
                subject: "config".to_owned(),
                check: "file",
                detail: format!(
                    "{}: services {}, VIPs {}, interfaces {}",
                    path.display(),
                    desired.services.len(),
                    desired.vips.len(),
                    desired.interfaces.len()
                ),
                remedy: String::new(),
            });
            Some(config)
        }
        Err(error) => {
            refuse(error, findings);
            None
        }
    }
}

/// Makes a finding of each reason why a file is refused.
fn refuse(error: ConfigError, findings: &mut Vec<Finding>) {
    match error {
        ConfigError::Invalid { path, problems } => {
            findings.extend(problems.into_iter().map(|problem| {
                let at = problem
                    .position
                    .map_or_else(String::new, |at| format!(":{at}"));
                Finding {
                    verdict: Verdict::Fail,
                    subject: "config".to_owned(),
                    check: "file",
                    detail: format!("{}{at}: {}", path.display(), problem.without_remedy()),
                    remedy: problem.remedy,
                }
            }));
        }
        error @ ConfigError::Read { .. } => {
            findings.push(Finding {
                verdict: Verdict::Fail,
                subject: "config".to_owned(),
                check: "file",
                detail: format!("{:#}", anyhow::Error::from(error)),
                remedy: "name an existing file that this user may read".to_owned(),
            });
        }
    }
}

/// Chooses the interfaces: those asked for and configured, else all but `lo`.
fn interfaces(options: &cli::Check, config: Option<&Config>) -> BTreeMap<String, AttachMode> {
    let mut chosen: BTreeMap<String, AttachMode> = config
        .map(|config| config.desired.interfaces.clone())
        .unwrap_or_default();
    for name in &options.interface {
        chosen.entry(name.clone()).or_default();
    }
    if chosen.is_empty() && options.config.is_none() {
        let all = host::facts().unwrap_or_default().mtus.into_keys();
        chosen = all
            .filter(|name| name != "lo")
            .map(|name| (name, AttachMode::default()))
            .collect();
    }
    chosen
}

/// Widest line; `detail` and `remedy` are wrapped to it.
const WIDTH: usize = 80;

fn render(findings: &[Finding]) -> String {
    let subject = findings
        .iter()
        .map(|finding| finding.subject.len())
        .max()
        .unwrap_or(0);
    let check = findings
        .iter()
        .map(|finding| finding.check.len())
        .max()
        .unwrap_or(0);
    let margin = "WARN  ".len() + subject + 2 + check + 2;
    let mut page = String::new();
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Ok => "OK",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        };
        page.push_str(&format!(
            "{verdict:<4}  {:<subject$}  {:<check$}  ",
            finding.subject, finding.check
        ));
        page.push_str(&wrapped(&finding.detail, margin));
        if !finding.remedy.is_empty() {
            page.push_str(&" ".repeat(margin));
            page.push_str(&wrapped(&format!("-> {}", finding.remedy), margin));
        }
    }
    let number = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    page.push_str(&format!(
        "\n{} OK, {} WARN, {} FAIL\n",
        number(Verdict::Ok),
        number(Verdict::Warn),
        number(Verdict::Fail)
    ));
    page
}

/// Breaks a text between words; the first line begins at `margin`, the others are indented to it.
fn wrapped(text: &str, margin: usize) -> String {
    let room = WIDTH.saturating_sub(margin).max(20);
    let mut page = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
            page.push('\n');
            page.push_str(&" ".repeat(margin));
            used = 0;
        } else if used > 0 {
            page.push(' ');
            used += 1;
        }
        page.push_str(word);
        used += length;
    }
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_wrapped_to_80_columns_and_ends_with_the_sums() {
        let finding = |verdict, detail: &str, remedy: &str| Finding {
            verdict,
            subject: "enp1s0f0np0".to_owned(),
            check: "merging offloads",
            detail: detail.to_owned(),
            remedy: remedy.to_owned(),
        };
        let page = render(&[
            finding(Verdict::Ok, "off", ""),
            finding(
                Verdict::Warn,
                &"some words ".repeat(20),
                &"other words ".repeat(10),
            ),
        ]);
        assert!(
            page.lines()
                .all(|line| line.len() <= WIDTH && line.trim_end() == line),
            "{page}"
        );
        assert!(page.ends_with("\n1 OK, 1 WARN, 0 FAIL\n"), "{page}");
    }

    #[test]
    fn this_machine_gives_findings_about_kernel_and_process() {
        let options = cli::Check {
            config: None,
            interface: vec!["lo".to_owned()],
            json: false,
        };
        let findings = findings(&options);
        for subject in ["kernel", "process", "lo"] {
            assert!(
                findings.iter().any(|finding| finding.subject == subject),
                "{findings:?}"
            );
        }
    }

    #[test]
    fn file_for_kubernetes_has_ports_and_reverse_paths_looked_at_and_absent_interfaces_hide_no_others()
     {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.yaml");
        let text = "interfaces: [{name: lo}, {name: nosuch0}]\nnode_port_range: 40000-40001\nkubernetes: {}\n";
        std::fs::write(&path, text).unwrap();
        let findings = findings(&cli::Check {
            config: Some(path),
            interface: Vec::new(),
            json: false,
        });
        let has = |subject: &str, check: &str| {
            let mut findings = findings.iter();
            findings.any(|finding| finding.subject == subject && finding.check == check)
        };
        for (subject, check) in [
            ("lo", "state"),
            ("lo", "rp_filter"),
            ("kernel", "NodePorts"),
            ("kernel", "NAT ports"),
            ("kubernetes", "API server"),
        ] {
            assert!(has(subject, check), "no {subject} {check}: {findings:?}");
        }
        let absent = findings
            .iter()
            .filter(|finding| finding.detail.contains("nosuch0"));
        let verdicts: Vec<Verdict> = absent.map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Fail]);
    }

    #[test]
    fn wrong_configuration_is_a_fail_for_each_problem() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.yaml");
        std::fs::write(&path, "interfaces: []\nhash_seed: x\n").unwrap();
        let mut findings = Vec::new();
        assert!(load(&path, &mut findings).is_none());
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings
                .iter()
                .all(|finding| finding.verdict == Verdict::Fail && !finding.remedy.is_empty())
        );
    }
}
