//! `guideway check`: reports whether this machine can run Guideway, and what to do if not.
//!
//! [`fastpath::facts`] collects the facts; this module judges them. A FAIL prevents the agent from starting or
//! serving. A WARN costs speed or deserves a look.

pub(crate) mod cluster;
pub(crate) mod finding;
mod interface;
mod kernel;
mod listeners;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use fastpath::facts::{self, Interface, InterfaceError};
use fastpath::nexthop::Resolver;
use fastpath::pins::Pins;
use fastpath::port::Port;

use self::finding::{Finding, Severity, SubjectReport, page};
use self::kernel::{MENDING, WHOLE_EDGE};
use crate::config::host::{self, HostFacts};
use crate::config::{self, Config, ConfigError, DEFAULT_PIN_DIR, Datapath, InterfaceSelector};
use crate::desired::{AttachMode, Desired, Role};
use crate::target_state::{Machine, TargetState};
use crate::{cli, commands};

/// Runs the checks and prints the findings. The exit code is 1 if any of them is a FAIL.
///
/// # Errors
///
/// When the findings cannot be written.
pub fn check(options: &cli::Check) -> Result<ExitCode> {
    let findings = findings(options);
    match options.json {
        true => commands::print(&commands::json(&findings, true)?)?,
        false => commands::print_page(|to| page(&findings, to))?,
    }
    let mut verdicts = findings.iter().map(|finding| finding.severity);
    Ok(if verdicts.any(|severity| severity == Severity::Fail) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns the warning about NAT mode if the kernel masquerades with the addresses `shared` that NAT mode uses
/// too; `None` if `masquerades` is false or no address is shared.
pub fn masquerade_warning(shared: &BTreeSet<IpAddr>, masquerades: bool) -> Option<String> {
    let mut report = SubjectReport::of("kernel");
    kernel::masquerade(&mut report, shared, Some(masquerades));
    let finding = report.findings.pop()?;
    (finding.severity != Severity::Ok).then(|| format!("{}: {}", finding.detail, finding.remedy))
}

fn findings(options: &cli::Check) -> Vec<Finding> {
    let mut findings = Vec::new();
    let config = options.config.as_deref();
    let config = config.and_then(|path| {
        let mut report = SubjectReport::of("config");
        let config = load(path, &mut report);
        findings.extend(report.findings);
        config
    });
    let pin_dir = config.as_ref().map(|config| config.pin_dir.clone());
    let pin_dir = pin_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_PIN_DIR));
    let datapath = config.as_ref().map(|config| config.datapath);
    let datapath = datapath.unwrap_or_default();
    let mut kernel = SubjectReport::of("kernel");
    kernel::kernel(&mut kernel, &facts::kernel(), datapath);
    findings.extend(kernel.findings);
    let mut uses_threads = datapath == Datapath::Afxdp;
    if uses_threads {
        let missing = facts::process().missing(&WHOLE_EDGE);
        uses_threads = facts::has_af_xdp() && missing.is_empty();
        let report = kernel::whole_edge(&facts::kernel(), facts::has_af_xdp(), &missing);
        findings.extend(report.findings);
    }
    findings.extend(kernel::process(&facts::process()).findings);
    let mut kernel = SubjectReport::of("kernel");
    kernel::bpffs(&mut kernel, &pin_dir, facts::bpffs(&pin_dir));
    for v4 in [true, false] {
        kernel::neighbours(&mut kernel, v4, facts::neighbour_table(v4));
    }
    if let (Some(config), Some(ports)) = (&config, facts::local_ports()) {
        kernel::node_ports(&mut kernel, &node_ports(config), &ports);
        // In a cluster any port may later go by NAT.
        if config.kubernetes.is_some() || config.desired.by_nat().next().is_some() {
            kernel::nat_ports(&mut kernel, &config.desired.nat, &ports);
        }
    }
    findings.append(&mut kernel.findings);

    let mends = config
        .as_ref()
        .is_some_and(|config| config.desired.mend.is_some());
    if mends {
        let report = kernel::mending(facts::has_af_xdp(), &facts::process().missing(&MENDING));
        findings.extend(report.findings);
    }

    let ours = Pins::new(&pin_dir).interfaces().unwrap_or_default();
    let mut node = false;
    let mut nodes = BTreeSet::new();
    if let Some(config) = &config {
        let desired = &config.desired;
        let machine = Machine::of(desired, &host::facts().unwrap_or_default());
        node = desired.is_node(&machine.addresses);
        if let Some(options) = &config.kubernetes {
            let exchanges = config.peers.is_some() && desired.edge;
            let (cluster, may_be_node) = cluster::look(options, desired, exchanges);
            // The cluster knows which machines are nodes.
            node |= desired.node == Role::IfListed && may_be_node;
            findings.extend(cluster);
        }
        findings.extend(listeners::listeners(config).findings);
        let target = TargetState::of(desired, &machine);
        let shared = &target.addresses.nat & &machine.primary;
        nodes = target.nodes;
        kernel::masquerade(&mut kernel, &shared, facts::masquerades());
        findings.append(&mut kernel.findings);
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut used = Vec::new();
    let is_configured = |name: &String| {
        let config = config.as_ref();
        config.is_some_and(|config| config.desired.interfaces.contains_key(name))
    };
    for (name, mode) in interfaces(options, config.as_ref()) {
        let mut report = match facts::interface(&name) {
            Ok(interface) => {
                let report = interface::interface(&interface, mode, ours.contains(&name), cpus);
                used.push((interface, mode));
                report
            }
            // The finding about the file reports this interface.
            Err(InterfaceError::NotFound { .. }) if is_configured(&name) => continue,
            Err(error) => {
                let mut report = SubjectReport::of(&name);
                report.fail(
                    "interface",
                    error.to_string(),
                    "use a name that `ip link` shows",
                );
                findings.append(&mut report.findings);
                continue;
            }
        };
        if node {
            interface::egress(&mut report, facts::egress(&name));
            if let Some(filter) = facts::reverse_path_filter(&name) {
                interface::reverse_path_filter(&mut report, &name, filter);
            }
        }
        // Those of the agent are its own.
        if uses_threads && is_configured(&name) && !ours.contains(&name) {
            let queues = used.last().map_or(0, |(interface, _)| interface.rx_queues);
            interface::thread_queues(&mut report, queues, |queue| Port::try_open(&name, queue));
        }
        findings.append(&mut report.findings);
    }
    // Without a choice these are all interfaces, and nothing says which of them will be used.
    if config.is_some() || !options.interface.is_empty() {
        let mut judges = interface::redirect_targets(&used, &ours, mends);
        let is_native = |(_, mode): &(Interface, AttachMode)| *mode != AttachMode::Generic;
        if used.iter().any(is_native) {
            judges.extend(interface::carriers(&carriers(&nodes, &used), mends));
        }
        findings.extend(judges.into_iter().flat_map(|report| report.findings));
    }
    findings
}

/// Counts the nodes that are reached by devices that take no frames from XDP, by the name of the device. The interfaces in use
/// have a finding of their own.
fn carriers(nodes: &BTreeSet<IpAddr>, used: &[(Interface, AttachMode)]) -> BTreeMap<String, usize> {
    let mut by_device = BTreeMap::new();
    let Ok(mut resolver) = Resolver::new() else {
        return by_device;
    };
    resolver.set_carrying(true);
    // Without an answer of the kernel, there are findings about what is missing.
    let Ok(mut snapshot) = resolver.snapshot() else {
        return by_device;
    };
    for node in nodes {
        if let Ok(Some(index)) = snapshot.carried_by(*node)
            && !used.iter().any(|(interface, _)| interface.index == index)
            && let Some(name) = facts::device_name(index)
        {
            *by_device.entry(name).or_default() += 1;
        }
    }
    by_device
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

/// Reads a configuration and reports every problem in it. If only this machine does not fit it, it is returned
/// all the same.
fn load(path: &Path, report: &mut SubjectReport) -> Option<Config> {
    let mut config = match config::load(path, config::Source::AsWritten) {
        Ok(config) => config,
        Err(error) => {
            refuse(error, report);
            return None;
        }
    };
    let facts = host::facts().unwrap_or_default();
    find_interfaces(&mut config, &facts, report);
    match host::validate(path, &config, &facts) {
        Ok(()) => {
            let Desired {
                services,
                vips,
                interfaces,
                ..
            } = &config.desired;
            let counts = format!(
                "services {}, VIPs {}, interfaces {}",
                services.len(),
                vips.len(),
                interfaces.len()
            );
            report.ok("file", format!("{}: {counts}", path.display()));
        }
        Err(misfits) => refuse(misfits, report),
    }
    Some(config)
}

/// Looks for the interfaces that are not given by name, and reports what each entry stands for.
fn find_interfaces(config: &mut Config, facts: &HostFacts, report: &mut SubjectReport) {
    const CHECK: &str = "interfaces";
    if let Err(error) = config.find_interfaces(facts) {
        report.fail(CHECK, error.to_string(), "give the interfaces by name");
    }
    for entry in &config.interfaces {
        let what = match &entry.selector {
            InterfaceSelector::Name(_) => continue,
            InterfaceSelector::Pattern(pattern) => format!("pattern {pattern}"),
            InterfaceSelector::DefaultRoute => "default route".to_owned(),
        };
        if let Some(missing) = &entry.missing {
            let remedy = "give another pattern, default_route or the name";
            report.fail(CHECK, missing.clone(), remedy);
        } else {
            let found: Vec<&str> = entry.found.iter().map(String::as_str).collect();
            report.ok(CHECK, format!("{what}: {}", found.join(", ")));
        }
    }
}

/// Reports each reason why a file is invalid.
fn refuse(error: ConfigError, report: &mut SubjectReport) {
    match error {
        ConfigError::Invalid { path, problems } => {
            for problem in problems {
                let at = problem.position.map(|at| format!(":{at}"));
                let at = at.unwrap_or_default();
                let detail = format!("{}{at}: {}", path.display(), problem.without_remedy());
                report.fail("file", detail, problem.remedy);
            }
        }
        error @ ConfigError::Read { .. } => report.fail(
            "file",
            format!("{:#}", anyhow::Error::from(error)),
            "name an existing file that this user may read",
        ),
    }
}

/// Chooses the interfaces to check: those given and configured, else all but `lo`.
fn interfaces(options: &cli::Check, config: Option<&Config>) -> BTreeMap<String, AttachMode> {
    let chosen = config.map(|config| config.desired.interfaces.clone());
    let mut chosen = chosen.unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let verdicts: Vec<Severity> = absent.map(|finding| finding.severity).collect();
        assert_eq!(verdicts, [Severity::Fail]);
    }

    #[test]
    fn wrong_configuration_is_a_fail_for_each_problem() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("edge.yaml");
        std::fs::write(&path, "interfaces: []\nhash_seed: x\n").unwrap();
        let mut report = SubjectReport::of("config");
        assert!(load(&path, &mut report).is_none());
        let findings = report.findings;
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings
                .iter()
                .all(|finding| finding.severity == Severity::Fail && !finding.remedy.is_empty())
        );
    }
}
