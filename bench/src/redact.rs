//! Redaction: host names, addresses and MACs of a result are replaced by words, the same one always by the same word.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use serde_json::Value;

use crate::result::{Files, ResultError};

/// The fact that holds the name of a machine; of others than that of the run, with their name in front.
const HOST: &str = "host.name";

/// What is replaced, and by which words so far.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Names of hosts, the longest first: one may be a part of another.
    hosts: Vec<String>,
    words: BTreeMap<String, String>,
    /// Words of each kind so far.
    numbers: BTreeMap<&'static str, u32>,
}

impl Redactor {
    /// Learns the names of hosts from what results say of their machines.
    pub fn new(results: &[Files]) -> Self {
        let mut hosts = Vec::new();
        for facts in results.iter().map(|files| &files.run.environment) {
            for (_, name) in facts.iter().filter(|(fact, _)| fact.ends_with(HOST)) {
                hosts.push(name.to_owned());
                hosts.extend(name.split_once('.').map(|(first, _)| first.to_owned()));
            }
            hosts.extend(facts.values().flat_map(|value| after_at_signs(value)));
        }
        hosts.retain(|host| !host.is_empty());
        hosts.sort_by_key(|host| std::cmp::Reverse(host.len()));
        hosts.dedup();
        Self {
            hosts,
            ..Self::default()
        }
    }

    /// Returns results in which nothing of the kind is left.
    ///
    /// # Errors
    ///
    /// As for [`Redactor::redact_one`].
    pub fn redact(&mut self, results: &[Files]) -> Result<Vec<Files>, ResultError> {
        results.iter().map(|files| self.redact_one(files)).collect()
    }

    /// Returns a result in which nothing of the kind is left.
    ///
    /// # Errors
    ///
    /// When it has lost its form thereby.
    pub fn redact_one(&mut self, files: &Files) -> Result<Files, ResultError> {
        let form = |error: serde_json::Error| ResultError::Form {
            reason: error.to_string(),
        };
        let mut run: Value = serde_json::from_str(&files.json).map_err(form)?;
        self.redact_value(&mut run);
        let run = serde_json::from_value(run).map_err(form)?;
        // Without a log, nothing tells the start.
        let started = if files.logs.is_empty() {
            0.0
        } else {
            files.started()?.as_secs_f64()
        };
        Files::make(run, started, files.series.clone())
    }

    fn redact_value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact_text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.redact_value(one)),
            Value::Object(all) => all.values_mut().for_each(|one| self.redact_value(one)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn redact_text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for host in self.hosts.clone() {
            text = self.redact_host(&text, &host);
        }
        let mut redacted = String::with_capacity(text.len());
        for token in text.split_inclusive(|letter: char| !is_of_address(letter)) {
            let letters = token.trim_end_matches(|letter| !is_of_address(letter));
            redacted += &self.redact_token(letters);
            redacted += &token[letters.len()..];
        }
        redacted
    }

    /// Replaces a name where it stands alone.
    fn redact_host(&mut self, text: &str, host: &str) -> String {
        let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '-';
        let (mut redacted, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once(host) {
            redacted += before;
            let joined = redacted.ends_with(is_of_name) || after.starts_with(is_of_name);
            redacted += &if joined {
                host.to_owned()
            } else {
                self.word("host", host)
            };
            rest = after;
        }
        redacted + rest
    }

    /// Replaces what a run of letters of addresses holds: itself, or parts of it between colons and dashes.
    fn redact_token(&mut self, token: &str) -> String {
        let address = token.trim_end_matches('.');
        let rest = &token[address.len()..];
        if is_mac(address) {
            return self.word("mac", &address.to_ascii_lowercase().replace('-', ":")) + rest;
        }
        if address.parse::<Ipv6Addr>().is_ok() || address.parse::<Ipv4Addr>().is_ok() {
            return self.word("address", address) + rest;
        }
        let Some(place) = token.find([':', '-']) else {
            return token.to_owned();
        };
        let (part, rest) = token.split_at(place);
        // A dash or a colon before the rest keeps it from being read as a whole once more.
        let (sign, rest) = rest.split_at(1);
        let part = match part.parse::<Ipv4Addr>() {
            Ok(_) => self.word("address", part),
            Err(_) => part.to_owned(),
        };
        part + sign + &self.redact_token(rest)
    }

    fn word(&mut self, kind: &'static str, of: &str) -> String {
        if let Some(word) = self.words.get(of) {
            return word.clone();
        }
        let number = self.numbers.entry(kind).or_default();
        *number += 1;
        let word = format!("{kind}-{number}");
        self.words.insert(of.to_owned(), word.clone());
        word
    }
}

/// Returns the hosts of all `user@host` in a text.
fn after_at_signs(text: &str) -> impl Iterator<Item = String> {
    text.split('@').skip(1).map(|after| {
        let is_of_name = |letter: char| letter.is_alphanumeric() || "-.".contains(letter);
        let mut parts = after.split(|letter| !is_of_name(letter));
        parts.next().unwrap_or_default().to_owned()
    })
}

fn is_of_address(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ":.-_".contains(letter)
}

fn is_mac(token: &str) -> bool {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    [':', '-']
        .iter()
        .any(|&sign| token.split(sign).count() == 6 && token.split(sign).all(is_byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report,
        result::tests::{rates, sample},
    };

    fn redact(text: &str) -> String {
        let mut redactor = Redactor {
            hosts: vec!["rack7.example.net".to_owned(), "rack7".to_owned()],
            ..Redactor::default()
        };
        redactor.redact_text(text)
    }

    #[test]
    fn addresses_macs_and_hosts_become_words_and_nothing_else_does() {
        for (text, expected) in [
            (
                "to 10.0.0.1, 10.0.0.1:80 and 10.0.0.2/24.",
                "to address-1, address-1:80 and address-2/24.",
            ),
            (
                "2001:db8::1 [2001:db8::1]:80 fe80::1%eth0",
                "address-1 [address-1]:80 address-2%eth0",
            ),
            (
                "52:54:00:12:34:56 and 52-54-00-12-34-56.",
                "mac-1 and mac-1.",
            ),
            (
                "ip=10.0.0.2::10.0.0.1:255.255.255.0:box:eth0:off",
                "ip=address-1::address-2:address-3:box:eth0:off",
            ),
            ("10.0.0.1-10.0.0.9", "address-1-address-2"),
            (
                "rack7.example.net rack7 rack77 my-rack7",
                "host-1 host-2 rack77 my-rack7",
            ),
            (
                "6.18.5 12:00:00 2026-11-23T12:00:00Z x::y",
                "6.18.5 12:00:00 2026-11-23T12:00:00Z x::y",
            ),
        ] {
            assert_eq!(redact(text), expected);
        }
    }

    #[test]
    fn a_redacted_result_says_the_same_in_each_place_and_verifies() {
        const SECRETS: [&str; 7] = [
            "rack7",
            "spine2",
            "build9",
            "203.0.113.7",
            "2001:db8::7",
            "52:54:00:aa:bb:cc",
            "52:54:00:AA:BB:CC",
        ];
        let mut files = sample(1, 1.4);
        for (name, value) in [
            ("host.name", "rack7"),
            ("device.router.host.name", "spine2.example.net"),
            ("kernel.version", "Linux version 6.1 (root@build9) on rack7"),
            (
                "kernel.command_line",
                "ip=203.0.113.7::203.0.113.1 mac=52:54:00:aa:bb:cc v6=2001:db8::7",
            ),
            ("cpu.model", "of rack7 at 203.0.113.7"),
        ] {
            files
                .run
                .environment
                .insert(name.to_owned(), value.to_owned());
        }
        files.run.scenario_text += "# for rack7 and spine2, 52:54:00:AA:BB:CC\n";
        let files = Files::make(files.run, 1_795_219_200.0, files.series).unwrap();
        let redacted = Redactor::new(std::slice::from_ref(&files))
            .redact(&[files.clone(), files])
            .unwrap();
        let page = report::render(&redacted);
        report::verify(&page).unwrap();
        let written = [
            &page,
            &redacted[0].json,
            &report::text(&redacted[0]),
            &report::csv(&redacted),
        ];
        let logs = redacted[0].logs.values();
        for text in written.into_iter().chain(logs) {
            for secret in SECRETS {
                assert!(!text.contains(secret), "{secret}");
            }
        }
        let facts = &redacted[1].run.environment;
        assert_eq!(facts["host.name"], "host-1");
        assert!(
            facts["cpu.model"].starts_with("of host-1 at address-"),
            "{facts:?}"
        );
        assert!(
            redacted[0]
                .run
                .scenario_text
                .contains("# for host-1 and host-"),
            "{}",
            redacted[0].run.scenario_text
        );
        assert_eq!(redacted[0].run, redacted[1].run);
    }

    #[test]
    fn a_result_without_latencies_is_redacted_too() {
        let files = rates();
        let redacted =
            Redactor::new(std::slice::from_ref(&files)).redact(std::slice::from_ref(&files));
        assert_eq!(redacted.unwrap()[0].run.series, files.run.series);
    }
}
