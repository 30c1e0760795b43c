//! The entries under `interfaces`, and the devices of this machine that they stand for.
//!
//! An entry with a name stands for that interface, whether there is one or not. The others are looked for whenever
//! devices or routes have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use fastpath::facts;

use super::Config;
use super::host::HostFacts;
use crate::desired::AttachMode;

/// An entry under `interfaces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceEntry {
    pub(crate) selector: InterfaceSelector,
    pub(crate) mode: AttachMode,
    /// The devices that the last look found; of a name, the name.
    pub(crate) found: BTreeSet<String>,
    /// Why the last look found no device.
    pub(crate) missing: Option<String>,
}

/// What an entry says about its interfaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InterfaceSelector {
    Name(String),
    /// A pattern of names, in which `*` stands for any characters and `?` for one.
    Pattern(String),
    /// The devices by which the default routes of both families leave.
    DefaultRoute,
}

impl InterfaceSelector {
    /// Returns what stands for the interfaces in tables as long as none is found.
    pub(crate) fn label(&self) -> &str {
        match self {
            Self::Name(text) | Self::Pattern(text) => text,
            Self::DefaultRoute => "default route",
        }
    }
}

impl InterfaceEntry {
    pub(super) fn new(selector: InterfaceSelector, mode: AttachMode) -> Self {
        let found = match &selector {
            InterfaceSelector::Name(name) => BTreeSet::from([name.clone()]),
            InterfaceSelector::Pattern(_) | InterfaceSelector::DefaultRoute => BTreeSet::new(),
        };
        Self {
            selector,
            mode,
            found,
            missing: None,
        }
    }

    /// Looks for the devices among the uplinks and those of the default routes.
    ///
    /// If there is no default route, the devices that were found before stay: a route that is replaced is gone for a
    /// moment, and the program must not be.
    fn look(&mut self, uplinks: &BTreeSet<String>, default: &BTreeSet<String>) {
        let (found, reason) = match &self.selector {
            InterfaceSelector::Name(_) => return,
            InterfaceSelector::Pattern(pattern) => {
                let matching = uplinks.iter().filter(|name| matches(pattern, name));
                let reason = format!("no device matches the pattern {pattern}");
                (matching.cloned().collect(), reason)
            }
            InterfaceSelector::DefaultRoute => {
                let by_route = uplinks & default;
                let known = if by_route.is_empty() {
                    uplinks & &self.found
                } else {
                    by_route
                };
                (known, "there is no default route".to_owned())
            }
        };
        self.missing = found.is_empty().then(|| {
            let there: Vec<&str> = uplinks.iter().map(String::as_str).collect();
            format!("{reason}; the devices here are {}", there.join(", "))
        });
        self.found = found;
    }
}

impl Config {
    /// Looks for the interfaces that are given by a pattern or as those of the default routes. Returns whether
    /// anything has changed.
    ///
    /// # Errors
    ///
    /// When the kernel does not list devices or routes. Then nothing changes.
    pub fn find_interfaces(&mut self, facts: &HostFacts) -> io::Result<bool> {
        let has = |wanted: fn(&InterfaceSelector) -> bool| {
            self.interfaces.iter().any(|one| wanted(&one.selector))
        };
        if !has(|selector| !matches!(selector, InterfaceSelector::Name(_))) {
            return Ok(false);
        }
        // The list of routes may be long, so it is read only if it is needed.
        let default = if has(|selector| *selector == InterfaceSelector::DefaultRoute) {
            facts::default_route_devices().map_err(io::Error::other)?
        } else {
            BTreeSet::new()
        };
        let uplinks = facts::uplinks(&(&facts.networked | &default)).map_err(io::Error::other)?;
        Ok(self.choose_interfaces(&uplinks, &default))
    }

    /// Assumes that the default routes were those of these interfaces, which have the program.
    pub(crate) fn assume_default_routes(&mut self, interfaces: impl IntoIterator<Item = String>) {
        let by_route = |one: &&mut InterfaceEntry| one.selector == InterfaceSelector::DefaultRoute;
        if let Some(entry) = self.interfaces.iter_mut().find(by_route) {
            entry.found.extend(interfaces);
        }
    }

    pub(super) fn choose_interfaces(
        &mut self,
        uplinks: &BTreeSet<String>,
        default: &BTreeSet<String>,
    ) -> bool {
        let before = self.interfaces.clone();
        for entry in &mut self.interfaces {
            entry.look(uplinks, default);
        }
        self.desired.interfaces = with_modes(&self.interfaces);
        self.interfaces != before
    }
}

/// Returns the interfaces with their modes. Entries with names come first, then the order of the file counts.
pub(super) fn with_modes(entries: &[InterfaceEntry]) -> BTreeMap<String, AttachMode> {
    let mut interfaces = BTreeMap::new();
    for of_names in [true, false] {
        let is_name = |one: &InterfaceEntry| matches!(one.selector, InterfaceSelector::Name(_));
        for entry in entries.iter().filter(|one| is_name(one) == of_names) {
            for name in &entry.found {
                interfaces.entry(name.clone()).or_insert(entry.mode);
            }
        }
    }
    interfaces
}

/// Tells whether a name matches a pattern, in which `*` stands for any characters and `?` for one.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    fn rest_matches(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], _) => name.is_empty(),
            ([b'*', rest @ ..], _) => {
                (0..=name.len()).any(|skip| rest_matches(rest, &name[skip..]))
            }
            ([wanted, rest @ ..], [first, others @ ..]) => {
                (*wanted == b'?' || wanted == first) && rest_matches(rest, others)
            }
            (_, []) => false,
        }
    }
    rest_matches(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Returns the interfaces of a configuration on a machine with these uplinks and default routes.
    fn on(entries: &str, uplinks: &[&str], default: &[&str]) -> Config {
        let mut config = parse(&format!("interfaces: [{entries}]\nkubernetes: {{}}\n")).unwrap();
        config.choose_interfaces(&set(uplinks), &set(default));
        config
    }

    fn names(config: &Config) -> Vec<&str> {
        config
            .desired
            .interfaces
            .keys()
            .map(String::as_str)
            .collect()
    }

    #[test]
    fn stars_stand_for_any_characters_and_question_marks_for_one() {
        for (pattern, name, expected) in [
            ("enp*s0f?", "enp65s0f1", true),
            ("enp*s0f?", "enps0f1", true),
            ("enp*s0f?", "enp65s0f", false),
            ("enp*s0f?", "enp65s0f1np1", false),
            ("*", "x", true),
            ("?", "xy", false),
            ("eth?", "eth0.7", false),
            ("*.*7", "eth0.7", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn pattern_finds_the_uplinks_that_match_and_follows_them() {
        let mut config = on("{pattern: 'enp*'}", &["eth0", "enp1s0"], &["eth0"]);
        assert_eq!(names(&config), ["enp1s0"]);
        assert!(!config.choose_interfaces(&set(&["eth0", "enp1s0"]), &set(&[])));
        assert!(config.choose_interfaces(&set(&["enp2s0"]), &set(&[])));
        assert_eq!(names(&config), ["enp2s0"]);
    }

    #[test]
    fn default_routes_give_their_devices_and_a_missing_route_takes_none_away() {
        let mut config = on("{default_route: true}", &["a", "b", "c"], &["a", "b", "lo"]);
        assert_eq!(names(&config), ["a", "b"]);
        config.choose_interfaces(&set(&["a", "c"]), &set(&[]));
        assert_eq!(names(&config), ["a"], "b is gone as a device");
        config.choose_interfaces(&set(&["a", "c"]), &set(&["c"]));
        assert_eq!(names(&config), ["c"]);
    }

    #[test]
    fn start_without_a_default_route_keeps_the_interfaces_that_have_the_program() {
        let mut config = on("{default_route: true}", &["a", "b"], &[]);
        assert_eq!(names(&config), [""; 0]);
        config.assume_default_routes(["b".to_owned(), "gone".to_owned()]);
        config.choose_interfaces(&set(&["a", "b"]), &set(&[]));
        assert_eq!(names(&config), ["b"]);
    }

    #[test]
    fn entry_that_finds_nothing_says_what_there_is() {
        let config = on("{pattern: 'enp*'}, {default_route: true}", &["a", "b"], &[]);
        let missing: Vec<_> = config
            .interfaces
            .iter()
            .map(|one| one.missing.as_deref())
            .collect();
        assert_eq!(
            missing,
            [
                Some("no device matches the pattern enp*; the devices here are a, b"),
                Some("there is no default route; the devices here are a, b"),
            ]
        );
    }

    #[test]
    fn mode_is_that_of_the_name_else_of_the_first_entry_that_finds_the_device() {
        let entries =
            "{pattern: 'e*', mode: generic}, {default_route: true}, {name: e1, mode: native}";
        let config = on(entries, &["e0", "e1", "f"], &["e0", "f"]);
        let modes: Vec<_> = config.desired.interfaces.values().copied().collect();
        let expected = [
            AttachMode::Generic,
            AttachMode::Native,
            AttachMode::NativeOrGeneric,
        ];
        assert_eq!(names(&config), ["e0", "e1", "f"]);
        assert_eq!(modes, expected);
    }
}
