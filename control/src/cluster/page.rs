//! The page about a cluster.

use super::report::{Answered, Report};
use crate::api::{ControllerStatus, Status, unattached};
use crate::render::{Page, Table, duration};

pub(super) fn page(report: &Report, is_wide: bool, page: &mut Page) {
    agents(&report.agents, is_wide, page);
    page.line("");
    controllers(&report.controllers, is_wide, page);
    page.line("");
    if report.findings.is_empty() {
        return page.line("no findings");
    }
    page.line("FINDINGS");
    for finding in &report.findings {
        page.hanging("- ", 2, finding);
    }
}

fn agents(agents: &[Answered<Status>], is_wide: bool, page: &mut Page) {
    let only_wide = |title| if is_wide { title } else { "" };
    let mut table = Table::new([
        "AGENT",
        "ROLES",
        "VERSION",
        "UP",
        ">SERVICES",
        ">ANNOUNCES",
        "STATE",
        only_wide("SEED"),
        only_wide("INTERFACES"),
        only_wide("ASKED AT"),
    ]);
    for agent in agents {
        let Some(status) = &agent.status else {
            let none = &"-";
            table.row([
                &agent.name,
                none,
                none,
                none,
                none,
                none,
                &"NO ANSWER",
                none,
                none,
                &agent.place,
            ]);
            continue;
        };
        let interfaces = status.interfaces.iter();
        let interfaces: Vec<String> = interfaces
            .map(|one| format!("{}:{}", one.name, one.mode.as_deref().unwrap_or("none")))
            .collect();
        table.row([
            &agent.name,
            &status.roles.join(","),
            &status.version,
            &duration(status.uptime_seconds),
            &status.services,
            &status.announced.addresses.len(),
            &state(status),
            &status.hash_seed.fingerprint.as_deref().unwrap_or("-"),
            &interfaces.join(","),
            &agent.place,
        ]);
    }
    page.table(&table, "no agents");
}

/// Returns the worst that is to be said of an agent.
fn state(status: &Status) -> String {
    let kubernetes = status.kubernetes.as_ref();
    if kubernetes.is_some_and(|kubernetes| kubernetes.synced_seconds.is_none()) {
        return "NOT IN STEP".to_owned();
    }
    if !unattached(&status.interfaces, &status.egress).is_empty() {
        return "NOT ATTACHED".to_owned();
    }
    match status.problems.len() {
        0 if status.announced.drained => "drained".to_owned(),
        0 => "ok".to_owned(),
        1 => "1 problem".to_owned(),
        several => format!("{several} problems"),
    }
}

fn controllers(controllers: &[Answered<ControllerStatus>], is_wide: bool, page: &mut Page) {
    let mut table = Table::new([
        "CONTROLLER",
        "VERSION",
        "STATE",
        if is_wide { "ASKED AT" } else { "" },
    ]);
    for controller in controllers {
        let status = controller.status.as_ref();
        let version = status.map_or("-", |status| &status.version);
        let state = status.map_or_else(|| "NO ANSWER".to_owned(), acts);
        table.row([&controller.name, &version, &state, &controller.place]);
    }
    page.table(&table, "no controllers");
}

fn acts(status: &ControllerStatus) -> String {
    if !status.leads {
        return "ready to take over".to_owned();
    }
    let (assigned, waiting) = (status.assigned, status.waiting);
    format!("acts: {assigned} Services have their addresses, {waiting} wait")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Announced, HashSeed, Interface};

    fn report() -> Report {
        let agent = |name: &str, status| Answered {
            name: name.to_owned(),
            place: format!("pod guideway-agent-{name}"),
            status,
            error: None,
        };
        let status = Status {
            version: "0.1.0".to_owned(),
            uptime_seconds: 266_400,
            roles: vec!["edge".to_owned(), "node".to_owned()],
            hash_seed: HashSeed {
                fingerprint: Some("0123".to_owned()),
                ..HashSeed::default()
            },
            services: 10_000,
            announced: Announced {
                addresses: vec!["192.0.2.1".parse().unwrap(); 300],
                ..Announced::default()
            },
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                mode: Some("native".to_owned()),
                ..Interface::default()
            }],
            problems: vec!["x".to_owned(); 12],
            ..Status::default()
        };
        Report {
            agents: vec![
                agent("worker-17.example", Some(status)),
                agent("edge-1", None),
            ],
            controllers: vec![Answered {
                name: "guideway-controller-7d9c6b5f4-x2x9z".to_owned(),
                place: "pod guideway-controller-7d9c6b5f4-x2x9z".to_owned(),
                status: Some(ControllerStatus {
                    version: "0.1.0".to_owned(),
                    ..ControllerStatus::default()
                }),
                error: None,
            }],
            findings: vec!["word ".repeat(40).trim().to_owned(), "\x1b[2J".to_owned()],
        }
    }

    #[test]
    fn page_fits_its_terminal_and_names_each_agent_and_controller() {
        let long = [
            "worker-17.rack-3.room-2.building-1.site-4.example.internal".to_owned(),
            "0".repeat(200),
        ];
        for name in [None, Some(&long[0]), Some(&long[1])] {
            for (is_wide, width) in [(false, 80), (true, 80), (false, 160), (true, 160)] {
                let mut report = report();
                if let Some(name) = name {
                    report.agents[0].name.clone_from(name);
                    report.controllers[0].place = format!("pod {name}");
                }
                let mut drawn = Page::new(width);
                page(&report, is_wide, &mut drawn);
                let page = drawn.into_text();
                for line in page.lines() {
                    assert!(line.chars().count() <= width, "{line}");
                    assert_eq!(line.trim_end(), line);
                }
                let joined = page.replace('\n', "");
                for agent in &report.agents {
                    assert!(joined.contains(&agent.name), "{page}");
                }
                assert_eq!(page.contains("0123"), is_wide, "{page}");
                assert!(!page.contains('\x1b'));
                assert!(page.contains("NO ANSWER"), "{page}");
            }
        }
    }
}
