//! Reading a scenario, with an account of everything that is wrong with it.

mod load;
mod ports;

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::Deserialize;
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::{
    Event, EventKind, LEAST_ROUNDS, MOST_NODE_PORTS, MOST_SERVICES, MOST_TRIED, Named, Scenario,
    System, UnderTest, WireKind, system::is_name,
};
use load::LoadText;
use ports::{PortsText, UnderTestText};

/// Allowed seconds of a trial.
const SECONDS: RangeInclusive<f64> = 0.1..=600.0;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line from 1; 0 if the file ends too early.
    pub line: u64,
    /// Column from 1, in characters; 0 if the file ends too early.
    pub column: u64,
    /// What is wrong.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            reason,
            remedy,
        } = self;
        write!(f, "line {line}, column {column}: {reason}; {remedy}")
    }
}

/// Why a scenario was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(pub Vec<Problem>);

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the scenario is refused")?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScenarioError {}

type Text = Option<Spanned<String>>;

/// The file as written. Every leaf is a text with its place, so that all broken rules are found at once.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Text,
    wire: Text,
    systems: Option<Vec<Spanned<String>>>,
    services: Text,
    loads: Option<Vec<Spanned<LoadText>>>,
    seconds: Text,
    rounds: Text,
    seed: Text,
    event: Option<Spanned<EventText>>,
    ports: Option<Spanned<PortsText>>,
    under_test: Option<Vec<Spanned<UnderTestText>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventText {
    what: Text,
    at: Text,
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    ///
    /// All broken rules, with their places.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
        };
        let file: Spanned<File> = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| ScenarioError(vec![shape_problem(&error)]))?;
        let mut reader = Reader::default();
        let scenario = reader.scenario(file.value, file.referenced);
        if reader.problems.is_empty() {
            return Ok(scenario);
        }
        let place = |problem: &Problem| (problem.line, problem.column);
        reader.problems.sort_by_key(place);
        Err(ScenarioError(reader.problems))
    }
}

/// Converts the first error of serde or the YAML scanner.
fn shape_problem(error: &serde_saphyr::Error) -> Problem {
    let location = error.location();
    let (reason, remedy) = match error.without_snippet() {
        serde_saphyr::Error::SerdeUnknownField {
            field, expected, ..
        } => (
            format!("unknown field {field:?}"),
            format!("the fields here are {}", expected.join(", ")),
        ),
        other => (
            UserMessageFormatter.format_message(other).into_owned(),
            "`guideway-bench run --help` shows a scenario".to_owned(),
        ),
    };
    Problem {
        line: location.map_or(0, |location| location.line()),
        column: location.map_or(0, |location| location.column()),
        reason,
        remedy,
    }
}

/// Collects problems, and puts something harmless in the place of a broken value.
#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn scenario(&mut self, file: File, whole: Location) -> Scenario {
        let seconds = self.number(file.seconds, whole, "seconds", Some(5.0), SECONDS);
        let wire = self.named(file.wire, whole, "wire", Some(WireKind::Lab));
        let before = self.problems.len();
        let of_ports = file.ports.as_ref().map_or(whole, |text| text.referenced);
        let ports = self.ports(file.ports, whole, wire);
        let under_test = self.under_test(file.under_test, ports.as_ref());
        let systems = file.systems.unwrap_or_default();
        let systems = self.systems(systems, whole, (wire, &under_test));
        let place = file.services.as_ref().map_or(whole, |text| text.referenced);
        let services = self.number(file.services, whole, "services", Some(1), 1..=MOST_SERVICES);
        let has_ports = services <= MOST_NODE_PORTS || !systems.contains(&System::OursNodeport);
        let reason = format!("there are {MOST_NODE_PORTS} NodePorts");
        let remedy = "write fewer services, or leave ours-nodeport out";
        self.check(place, has_ports, &reason, remedy);
        let event = (file.event).map(|event| self.event(event, seconds, services, &systems));
        let scenario = Scenario {
            name: self.name(file.name, whole),
            wire,
            services,
            loads: self.loads(file.loads.unwrap_or_default(), whole, &systems),
            systems,
            seconds,
            rounds: self.number(file.rounds, whole, "rounds", Some(8), LEAST_ROUNDS..=10_000),
            seed: self.number(file.seed, whole, "seed", Some(1), 0..=u64::MAX),
            event,
            ports,
            under_test,
        };
        let of_lab = wire == WireKind::Lab && scenario.has_stamps_of_cards();
        let remedy = "write stamps: kernel, or wire: ports";
        self.check(
            whole,
            !of_lab,
            "the wire lab has no cards that stamp",
            remedy,
        );
        if self.problems.len() == before {
            self.check_ports(&scenario, of_ports);
        }
        scenario
    }

    fn event(
        &mut self,
        text: Spanned<EventText>,
        seconds: f64,
        services: u32,
        systems: &[System],
    ) -> Event {
        let (EventText { what, at: when }, at) = (text.value, text.referenced);
        let what: EventKind = self.named(what, at, "what", None);
        let happens = systems.iter().any(|system| system.has_events());
        let reason = format!("{what} happens to none of the systems");
        let remedy = "add one that balances, such as ours-ipip or kube-proxy-nftables";
        self.check(at, happens, &reason, remedy);
        let has_others = what != EventKind::OtherServices || services > MOST_TRIED;
        let reason = format!("flows go to all of {services} services");
        let remedy = format!("write at least {} services", MOST_TRIED + 1);
        self.check(at, has_others, &reason, &remedy);
        Event {
            what,
            at: self.number(when, at, "at", None, 0.0..=seconds),
        }
    }

    fn systems(
        &mut self,
        texts: Vec<Spanned<String>>,
        whole: Location,
        (wire, devices): (WireKind, &[UnderTest]),
    ) -> Vec<System> {
        let remedy = "write systems: [direct, ours-ipip]";
        self.check(whole, !texts.is_empty(), "there are no systems", remedy);
        let mut systems = Vec::new();
        for text in texts {
            let at = text.referenced;
            let system = self.system(text, wire, devices);
            let reason = format!("the system {system} is there twice");
            self.check(at, !systems.contains(&system), &reason, "name it once");
            systems.push(system);
        }
        systems
    }

    fn name(&mut self, text: Text, whole: Location) -> String {
        let (name, at) = match text {
            Some(text) => (text.value, text.referenced),
            None => (String::new(), whole),
        };
        let good = is_name(&name);
        let remedy = "write up to 64 letters, digits, dashes, dots and underscores";
        self.check(at, good, &format!("name is {name:?}"), remedy);
        name
    }

    fn named<T: Named>(&mut self, text: Text, at: Location, field: &str, default: Option<T>) -> T {
        let names: Vec<&str> = T::NAMES.iter().map(|(name, _)| *name).collect();
        let remedy = format!("write {}", names.join(" or "));
        let first = T::NAMES[0].1;
        let Some(text) = text else {
            self.check(
                at,
                default.is_some(),
                &format!("{field} is missing"),
                &remedy,
            );
            return default.unwrap_or(first);
        };
        let found = T::NAMES.iter().find(|(name, _)| *name == text.value);
        let reason = format!("unknown {field} {:?}", text.value);
        self.check(text.referenced, found.is_some(), &reason, &remedy);
        found.map_or(first, |(_, value)| *value)
    }

    fn number<T: FromStr + PartialOrd + Copy + fmt::Display>(
        &mut self,
        text: Text,
        at: Location,
        field: &str,
        default: Option<T>,
        allowed: RangeInclusive<T>,
    ) -> T {
        let least = *allowed.start();
        let remedy = format!("write a number from {least} to {}", allowed.end());
        let Some(text) = text else {
            self.check(
                at,
                default.is_some(),
                &format!("{field} is missing"),
                &remedy,
            );
            return default.unwrap_or(least);
        };
        let number: Option<T> = text.value.parse().ok();
        let number = number.filter(|number| allowed.contains(number));
        let reason = format!("{field} is {:?}", text.value);
        self.check(text.referenced, number.is_some(), &reason, &remedy);
        number.unwrap_or(least)
    }

    fn check(&mut self, at: Location, holds: bool, reason: &str, remedy: &str) {
        if !holds {
            self.problems.push(Problem {
                line: at.line(),
                column: at.column(),
                reason: reason.to_owned(),
                remedy: remedy.to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Load, Schedule, load};

    const GOOD: &str = "\
name: udp
systems: [direct, ours-ipip]
loads:
  - { rate: 1000, flows: 4, schedule: poisson }
seconds: 2
rounds: 6
";

    #[test]
    fn a_scenario_is_read_with_its_defaults() {
        let expected = Scenario {
            name: "udp".to_owned(),
            wire: WireKind::Lab,
            systems: vec![System::Direct, System::OursIpip],
            services: 1,
            loads: vec![Load {
                schedule: Schedule::Poisson,
                ..load()
            }],
            seconds: 2.0,
            rounds: 6,
            seed: 1,
            event: None,
            ports: None,
            under_test: Vec::new(),
        };
        assert_eq!(Scenario::parse(GOOD), Ok(expected));
    }

    #[test]
    fn each_problem_has_its_line_and_column_and_a_remedy() {
        for (from, to, expected) in [
            (
                "rounds: 6",
                "rounds: 5",
                "line 6, column 9: rounds is \"5\"; write a number from 6",
            ),
            (
                "rounds: 6",
                "wire: moon",
                "line 6, column 7: unknown wire \"moon\"; write lab or ports or reflector",
            ),
            (
                "rounds: 6",
                "services: 10001",
                "line 6, column 11: services is \"10001\"; write a number from 1 to 10000",
            ),
            (
                ", ours-ipip]",
                ", ours-nodeport]\nservices: 2769",
                "line 3, column 11: there are 2768 NodePorts; write fewer services, or leave",
            ),
            (
                "rounds: 6",
                "event: { what: agent-restart, at: 3 }",
                "line 6, column 35: at is \"3\"; write a number from 0 to 2",
            ),
            (
                ", ours-ipip]",
                "]\nevent: { what: agent-restart, at: 1 }",
                "agent-restart happens to none of the systems; add one that balances",
            ),
            (
                "rounds: 6",
                "services: 16\nevent: { what: other-services, at: 1 }",
                "line 7, column 8: flows go to all of 16 services; write at least 17 services",
            ),
            (
                "flows: 4",
                "stamps: card",
                "the wire lab has no cards that stamp; write stamps: kernel, or wire: ports",
            ),
            (
                "flows: 4",
                "protocol: tcp, stamps: kernel",
                "line 4, column 42: datagrams of sockets are stamped alone; leave stamps out",
            ),
            (
                "direct",
                "katran",
                "line 2, column 11: unknown system \"katran\"; write direct or",
            ),
            (
                "direct",
                "ours-ipip",
                "line 2, column 22: the system ours-ipip is there twice",
            ),
            (
                "rounds",
                "round",
                "line 6, column 1: unknown field \"round\"; the fields here are name",
            ),
            (
                "udp",
                "../x",
                "line 1, column 7: name is \"../x\"; write up to 64 letters",
            ),
            (
                "[direct, ours-ipip]",
                "[]",
                "there are no systems; write systems: [",
            ),
            (
                "loads:",
                "loads: {",
                "line 3, column 8: expected sequence start",
            ),
        ] {
            let found = Scenario::parse(&GOOD.replacen(from, to, 1));
            let found = found.unwrap_err().to_string();
            assert!(found.contains(expected), "{to}: {found}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let text = GOOD
            .replace("1000", "-1")
            .replace("seconds: 2", "seconds: soon");
        let ScenarioError(problems) = Scenario::parse(&text).unwrap_err();
        let lines: Vec<u64> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [4, 5]);
    }
}
