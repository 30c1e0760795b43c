//! The rules for health checks.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value, json};
use serde_saphyr::Spanned;

use super::values::{Refusal, decimal, number, refusal, word};
use super::{Rules, entries, position, raw};
use crate::desired::{Check, CheckKind, HttpGet};
use crate::desired::{Protocol, ServiceKey};

/// Longest path, and longest text to look for in a body, in bytes.
const MAX_TEXT: usize = 1_024;
/// Longest host with its port, in bytes.
const MAX_HOST: usize = 259;
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
const COUNTS: RangeInclusive<u32> = 1..=100;

/// The settings of a block `health`, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthDefaults {
    kind: Type,
    get: HttpGet,
    /// The check without its kind.
    check: Check,
}

impl Default for HealthDefaults {
    fn default() -> Self {
        Self {
            kind: Type::Tcp,
            get: HttpGet::default(),
            check: Check::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Tcp,
    Http,
    Https,
}

const TYPES: [(&str, Type); 3] = [
    ("tcp", Type::Tcp),
    ("http", Type::Http),
    ("https", Type::Https),
];

impl HealthDefaults {
    /// Returns the settings under the names of the file.
    pub(crate) fn document(&self) -> Value {
        let Self { kind, get, check } = self;
        let kind = TYPES.iter().find(|(_, one)| one == kind);
        let statuses = get
            .status
            .iter()
            .map(|range| match range.start() == range.end() {
                true => range.start().to_string(),
                false => format!("{}-{}", range.start(), range.end()),
            });
        json!({
            "type": kind.map(|(name, _)| name),
            "port": check.port,
            "path": get.path,
            "host": get.host,
            "status": statuses.collect::<Vec<_>>(),
            "body": get.body,
            "interval": written(check.interval),
            "timeout": written(check.timeout),
            "rise": check.rise,
            "fall": check.fall,
        })
    }
}

impl Rules {
    /// Reads the block `health` of the file, which sets the defaults of all services.
    pub(super) fn health_defaults(&mut self, file: &raw::File) -> HealthDefaults {
        let defaults = HealthDefaults::default();
        match &file.health {
            Some(block) => self.health_block("health", &block.value, &defaults),
            None => defaults,
        }
    }

    pub(super) fn health(
        &mut self,
        field: &str,
        block: &Spanned<raw::Health>,
        key: Option<ServiceKey>,
        defaults: &HealthDefaults,
    ) -> Check {
        let HealthDefaults { kind, get, check } = self.health_block(field, &block.value, defaults);
        if kind == Type::Tcp {
            self.only_http(field, &block.value);
        }
        if let Some(key) = key
            && key.protocol != Protocol::Tcp
            && check.port.is_none()
        {
            let remedy = format!(
                "checks speak TCP and the service {key} does not: name a TCP port of the backend"
            );
            self.missing(&format!("{field}.port"), Some(position(block)), remedy);
        }
        let kind = match kind {
            Type::Tcp => CheckKind::Tcp,
            Type::Http => CheckKind::Http { tls: false, get },
            Type::Https => CheckKind::Http { tls: true, get },
        };
        Check { kind, ..check }
    }

    /// Rejects fields that a TCP check does not use.
    fn only_http(&mut self, field: &str, block: &raw::Health) {
        let request = "a tcp check has no request";
        let status = block.status.iter().flat_map(|list| &list.value).next();
        for (name, text, reason) in [
            ("path", block.path.as_ref(), request),
            ("host", block.host.as_ref(), request),
            ("body", block.body.as_ref(), request),
            ("status", status, "a tcp check has no answer"),
        ] {
            if let Some(text) = text {
                let refusal = refusal(reason, "add type: http or https, or leave it out");
                self.refuse(&format!("{field}.{name}"), text, refusal);
            }
        }
    }

    /// Reads a block. Absent and invalid fields get the value of `base`.
    fn health_block(
        &mut self,
        field: &str,
        block: &raw::Health,
        base: &HealthDefaults,
    ) -> HealthDefaults {
        let at = |name: &str| format!("{field}.{name}");
        let HealthDefaults { kind, get, check } = base.clone();
        let port = |text: &str| {
            let remedy = "use a number from 1 to 65535";
            number(text, &(1..=65_535), "not a port", remedy)
        };
        let interval = self.read(&at("interval"), &block.interval, span(&INTERVAL));
        let timeout = self.read(&at("timeout"), &block.timeout, span(&TIMEOUT));
        let path = self.read(&at("path"), &block.path, request_path);
        HealthDefaults {
            kind: self
                .read(&at("type"), &block.kind, check_type)
                .unwrap_or(kind),
            get: HttpGet {
                path: path.unwrap_or(get.path),
                host: self.read(&at("host"), &block.host, host).or(get.host),
                status: self.statuses(&at("status"), block).unwrap_or(get.status),
                body: self.read(&at("body"), &block.body, body).or(get.body),
            },
            check: Check {
                port: self.read(&at("port"), &block.port, port).or(check.port),
                interval: interval.unwrap_or(check.interval),
                timeout: timeout.unwrap_or(check.timeout),
                rise: self
                    .read(&at("rise"), &block.rise, count)
                    .unwrap_or(check.rise),
                fall: self
                    .read(&at("fall"), &block.fall, count)
                    .unwrap_or(check.fall),
                ..check
            },
        }
    }

    fn statuses(&mut self, field: &str, block: &raw::Health) -> Option<Vec<RangeInclusive<u16>>> {
        let listed = block.status.as_ref()?;
        if listed.value.is_empty() {
            self.missing(field, Some(position(listed)), STATUS_REMEDY);
            return None;
        }
        let ranges = entries(field, &block.status);
        let ranges = ranges.filter_map(|(field, text)| self.read(&field, text, statuses));
        Some(ranges.collect())
    }
}

const STATUS_REMEDY: &str =
    "list statuses from 100 to 599 and ranges of them, such as [200-299, 404]";

fn statuses(text: &str) -> Result<RangeInclusive<u16>, Refusal> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let status = |text: &str| decimal(text.trim()).filter(|status| (100..=599).contains(status));
    match (status(first), status(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(refusal("not a status or a range of them", STATUS_REMEDY)),
    }
}

fn check_type(text: &str) -> Result<Type, Refusal> {
    word(text, &TYPES, "not a type of check")
}

fn request_path(text: &str) -> Result<String, Refusal> {
    let fits = text.len() <= MAX_TEXT
        && text.starts_with('/')
        && !text.contains('#')
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && text.parse::<hyper::http::uri::PathAndQuery>().is_ok();
    let remedy = "begin it with / and write it as in a URL, such as /healthz?full=1";
    fitting(fits, text, "not a path", remedy)
}

fn host(text: &str) -> Result<String, Refusal> {
    let fits = text.len() <= MAX_HOST
        && text.parse::<hyper::http::uri::Authority>().is_ok()
        && !text.contains('@');
    let remedy = "write it as in a URL, such as www.example.com or www.example.com:8080";
    fitting(fits, text, "not a host", remedy)
}

fn body(text: &str) -> Result<String, Refusal> {
    let fits = (1..=MAX_TEXT).contains(&text.len());
    let remedy = format!("give 1 to {MAX_TEXT} bytes that the body must have");
    fitting(fits, text, "nothing to look for, or too much", remedy)
}

fn fitting(
    fits: bool,
    text: &str,
    reason: &str,
    remedy: impl Into<String>,
) -> Result<String, Refusal> {
    fits.then(|| text.to_owned())
        .ok_or_else(|| refusal(reason, remedy))
}

/// Returns a reader for durations within bounds, written as in Kubernetes and Prometheus: a number with a unit.
fn span(allowed: &RangeInclusive<Duration>) -> impl Fn(&str) -> Result<Duration, Refusal> {
    move |text| {
        let span = duration(text).filter(|span| allowed.contains(span));
        span.ok_or_else(|| {
            let (from, to) = (written(*allowed.start()), written(*allowed.end()));
            let remedy = format!("use {from} to {to}, written like 5s, 500ms or 1m");
            refusal("not a time span that fits here", remedy)
        })
    }
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let number = u64::from(decimal::<u32>(number)?);
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number * 60)),
        _ => None,
    }
}

pub(in crate::config) fn written(span: Duration) -> String {
    match span.subsec_millis() {
        0 => format!("{}s", span.as_secs()),
        milliseconds => format!("{milliseconds}ms"),
    }
}

fn count(text: &str) -> Result<u32, Refusal> {
    let remedy = format!("use a number from {} to {}", COUNTS.start(), COUNTS.end());
    number(text, &COUNTS, "not a number of checks", remedy)
}
