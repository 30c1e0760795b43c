//! The dashboard and the alert rules ask for metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::chart::{Objects, deploy, text};

#[test]
fn alerts_ask_for_documented_metrics() {
    let rules: Value = serde_saphyr::from_str(&text("helm/guideway/files/alerts.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules: Vec<_> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert!(!rules.is_empty());
    let mut names = BTreeSet::new();
    let sections = sections(&text("docs/troubleshoot.md"));
    for rule in rules {
        if let Some(record) = rule["record"].as_str() {
            assert!(names.insert(record), "{record} is there twice");
            expect_documented(record, rule["expr"].as_str().unwrap());
            continue;
        }
        let name = rule["alert"].as_str().unwrap();
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        let section = runbook.strip_prefix("deploy/docs/troubleshoot.md#");
        let section = section.unwrap_or_else(|| panic!("{name}: {runbook}"));
        assert!(sections.contains(section), "{name}: no section {section}");
        assert!(names.insert(name), "{name} is there twice");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}"
        );
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].is_string(), "{name}: no {text}");
        }
        expect_documented(name, rule["expr"].as_str().unwrap());
    }
}

#[test]
fn runbooks_of_the_chart_are_where_its_values_say() {
    const PATH: &str = "deploy/docs/troubleshoot.md#";
    for (values, begin) in [
        (&[][..], PATH.to_owned()),
        (
            &["metrics.prometheusRule.runbooks=https://git.example/guideway/"],
            format!("https://git.example/guideway/{PATH}"),
        ),
    ] {
        let values = [&["metrics.prometheusRule.enabled=true"], values].concat();
        let objects = Objects::render(&values);
        let rules = objects.get("PrometheusRule", "guideway");
        let groups = rules["spec"]["groups"].as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
        let alerts: Vec<&Value> = rules.filter(|rule| rule["alert"].is_string()).collect();
        assert!(alerts.len() > 10, "{alerts:?}");
        for alert in alerts {
            let runbook = alert["annotations"]["runbook_url"].as_str().unwrap();
            assert!(runbook.starts_with(&begin), "{alert}");
        }
    }
}

#[test]
fn promtool_takes_the_rules() {
    let rules = deploy("helm/guideway/files/alerts.yaml");
    let rules = rules.to_str().unwrap();
    let check = ["check", "rules", "--lint-fatal", rules];
    let said = lab::output(Command::new("promtool").args(check)).unwrap();
    assert!(said.contains("SUCCESS"), "{said}");
}

/// The anchors of a page's headings, as forges make them.
fn sections(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|one| one.is_alphanumeric() || " -_".contains(*one));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn dashboard_asks_for_documented_metrics() {
    let dashboard: Value =
        serde_json::from_str(&text("helm/guideway/files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64()), "{title}: id of another");
        for target in panel["targets"].as_array().into_iter().flatten() {
            expect_documented(title, target["expr"].as_str().unwrap());
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables
        .iter()
        .filter(|variable| variable["type"] == "query")
    {
        let query = variable["query"]["query"].as_str().unwrap();
        expect_documented("variable", query);
    }
}

#[test]
fn panels_of_the_dashboard_lie_beside_each_other() {
    let dashboard: Value =
        serde_json::from_str(&text("helm/guideway/files/dashboard.json")).unwrap();
    let mut taken = BTreeMap::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let place = |part: &str| panel["gridPos"][part].as_u64().unwrap();
        // The width of Grafana's grid.
        assert!(place("x") + place("w") <= 24, "{title}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                let other = taken.insert((x, y), title);
                assert_eq!(other, None, "{title} covers another one");
            }
        }
    }
}

#[test]
fn actions_that_the_dashboard_selects_exist() {
    let dashboard = text("helm/guideway/files/dashboard.json");
    let page = text("docs/metrics.md");
    let actions = dashboard.split("action=").skip(1);
    let actions: Vec<&str> = actions.filter_map(|rest| rest.split('"').nth(1)).collect();
    assert!(actions.len() > 2, "{actions:?}");
    for action in actions
        .iter()
        .flat_map(|actions| actions.trim_end_matches('\\').split('|'))
    {
        assert!(
            page.contains(&format!("(`{action}`)")),
            "no packet's action is {action}"
        );
    }
}

#[test]
fn drop_reasons_of_alerts_exist() {
    let rules = text("helm/guideway/files/alerts.yaml");
    let (_, listed) = rules.split_once("reason=~\"").unwrap();
    let (listed, _) = listed.split_once('"').unwrap();
    let drops = xdp_prog::reason::DropReason::ALL.iter();
    let given_up = fastpath::mend::Outcome::ALL.iter();
    let drops: BTreeSet<_> = drops
        .map(|reason| reason.label())
        .chain(given_up.map(|outcome| outcome.label()))
        .collect();
    for reason in listed.split('|') {
        assert!(drops.contains(reason), "no packet is dropped as {reason}");
    }
}

/// Every metric of an expression is in the tables of `deploy/docs/metrics.md`.
fn expect_documented(user: &str, expression: &str) {
    let documented = documented();
    let asked = words(expression).filter(|word| word.starts_with("guideway_"));
    let asked: Vec<_> = asked.collect();
    assert!(!asked.is_empty(), "{user}: {expression}");
    for metric in asked {
        let series = ["_bucket", "_sum", "_count"];
        let histogram = series.iter().find_map(|part| metric.strip_suffix(part));
        assert!(
            documented.contains(metric) || histogram.is_some_and(|name| documented.contains(name)),
            "{user} asks for {metric}, which deploy/docs/metrics.md does not have"
        );
    }
}

/// The metrics in the tables of `deploy/docs/metrics.md`.
fn documented() -> BTreeSet<String> {
    let page = text("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let names = names.filter(|name| name.starts_with("guideway_"));
    names.map(str::to_owned).collect()
}

fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}
