//! The rules for health checks.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_saphyr::Spanned;

use super::super::raw;
use super::Rules;
use super::values::decimal;
use crate::desired::{Protocol, ServiceKey};
use crate::health::{Check, Get, Kind};

/// Longest text that a body is searched for, and longest path.
const MAX_TEXT: usize = 1_024;
/// Longest host with a port.
const MAX_HOST: usize = 259;
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
const COUNTS: RangeInclusive<u32> = 1..=100;

/// The fields that a block gives and that are in order.
#[derive(Clone, Default)]
pub(super) struct Partial {
    kind: Option<Type>,
    port: Option<u16>,
    path: Option<String>,
    host: Option<String>,
    status: Option<Vec<RangeInclusive<u16>>>,
    body: Option<String>,
    interval: Option<Duration>,
    timeout: Option<Duration>,
    rise: Option<u32>,
    fall: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Tcp,
    Http,
    Https,
}

impl Partial {
    /// Fills what is left out.
    fn or(self, defaults: &Self) -> Self {
        let defaults = defaults.clone();
        Self {
            kind: self.kind.or(defaults.kind),
            port: self.port.or(defaults.port),
            path: self.path.or(defaults.path),
            host: self.host.or(defaults.host),
            status: self.status.or(defaults.status),
            body: self.body.or(defaults.body),
            interval: self.interval.or(defaults.interval),
            timeout: self.timeout.or(defaults.timeout),
            rise: self.rise.or(defaults.rise),
            fall: self.fall.or(defaults.fall),
        }
    }

    fn check(self) -> Check {
        let base = Check::default();
        let get = Get::default();
        let get = Get {
            path: self.path.unwrap_or(get.path),
            host: self.host,
            status: self.status.unwrap_or(get.status),
            body: self.body,
        };
        let kind = match self.kind {
            None | Some(Type::Tcp) => Kind::Tcp,
            Some(Type::Http) => Kind::Http { tls: false, get },
            Some(Type::Https) => Kind::Http { tls: true, get },
        };
        Check {
            kind,
            port: self.port,
            interval: self.interval.unwrap_or(base.interval),
            timeout: self.timeout.unwrap_or(base.timeout),
            rise: self.rise.unwrap_or(base.rise),
            fall: self.fall.unwrap_or(base.fall),
        }
    }
}

impl Rules {
    pub(super) fn node_health(&mut self, text: Option<&Spanned<String>>) -> bool {
        self.switch("node_health", text, true)
    }

    /// Takes what the services' checks leave out.
    pub(super) fn health_defaults(&mut self, file: &raw::File) -> Partial {
        let block = file.health.as_ref();
        block.map_or_else(Partial::default, |block| {
            self.health_block("health", &block.value)
        })
    }

    /// Takes the check of a service.
    pub(super) fn health(
        &mut self,
        field: &str,
        block: &Spanned<raw::Health>,
        key: Option<ServiceKey>,
        defaults: &Partial,
    ) -> Check {
        let own = self.health_block(field, &block.value).or(defaults);
        if matches!(own.kind, None | Some(Type::Tcp)) {
            self.only_http(field, &block.value);
        }
        if let Some(key) = key
            && key.protocol != Protocol::Tcp
            && own.port.is_none()
        {
            self.missing(
                &format!("{field}.port"),
                Some(super::values::position(block)),
                format_args!(
                    "checks speak TCP and the service {key} does not: name a TCP port of the backend"
                ),
            );
        }
        own.check()
    }

    /// Refuses what a TCP check would not look at.
    fn only_http(&mut self, field: &str, block: &raw::Health) {
        const REMEDY: &str = "add type: http or https, or leave it out";
        let texts = [
            ("path", &block.path),
            ("host", &block.host),
            ("body", &block.body),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                let field = format!("{field}.{name}");
                self.refuse(&field, text, "a tcp check has no request", REMEDY);
            }
        }
        if let Some(first) = block.status.iter().flat_map(|list| &list.value).next() {
            let field = format!("{field}.status");
            self.refuse(&field, first, "a tcp check has no answer", REMEDY);
        }
    }

    fn health_block(&mut self, field: &str, block: &raw::Health) -> Partial {
        let named = |name: &str| format!("{field}.{name}");
        let kind = block.kind.as_ref();
        let port = block.port.as_ref();
        let path = block.path.as_ref();
        let host = block.host.as_ref();
        let body = block.body.as_ref();
        let interval = block.interval.as_ref();
        let timeout = block.timeout.as_ref();
        Partial {
            kind: kind.and_then(|text| self.check_type(&named("type"), text)),
            port: port.and_then(|text| self.port(&named("port"), text)),
            path: path.and_then(|text| self.request_path(&named("path"), text)),
            host: host.and_then(|text| self.host(&named("host"), text)),
            status: self.statuses(&named("status"), block),
            body: body.and_then(|text| self.body(&named("body"), text)),
            interval: interval.and_then(|text| self.span(&named("interval"), text, &INTERVAL)),
            timeout: timeout.and_then(|text| self.span(&named("timeout"), text, &TIMEOUT)),
            rise: self.in_a_row(&named("rise"), block.rise.as_ref()),
            fall: self.in_a_row(&named("fall"), block.fall.as_ref()),
        }
    }

    fn check_type(&mut self, field: &str, text: &Spanned<String>) -> Option<Type> {
        match text.value.as_str() {
            "tcp" => Some(Type::Tcp),
            "http" => Some(Type::Http),
            "https" => Some(Type::Https),
            _ => {
                self.refuse(field, text, "not a type of check", "use tcp, http or https");
                None
            }
        }
    }

    fn port(&mut self, field: &str, text: &Spanned<String>) -> Option<u16> {
        let port = decimal::<u16>(&text.value).filter(|port| *port != 0);
        if port.is_none() {
            self.refuse(field, text, "not a port", "use a number from 1 to 65535");
        }
        port
    }

    fn request_path(&mut self, field: &str, text: &Spanned<String>) -> Option<String> {
        let fits = text.value.len() <= MAX_TEXT
            && text.value.starts_with('/')
            && !text.value.contains('#')
            && text.value.bytes().all(|byte| byte.is_ascii_graphic())
            && text.value.parse::<hyper::http::uri::PathAndQuery>().is_ok();
        if !fits {
            self.refuse(
                field,
                text,
                "not a path",
                "begin it with / and write it as in a URL, such as /healthz?full=1",
            );
        }
        fits.then(|| text.value.clone())
    }

    fn host(&mut self, field: &str, text: &Spanned<String>) -> Option<String> {
        let fits = text.value.len() <= MAX_HOST
            && text.value.parse::<hyper::http::uri::Authority>().is_ok()
            && !text.value.contains('@');
        if !fits {
            self.refuse(
                field,
                text,
                "not a host",
                "write it as in a URL, such as www.example.com or www.example.com:8080",
            );
        }
        fits.then(|| text.value.clone())
    }

    fn statuses(&mut self, field: &str, block: &raw::Health) -> Option<Vec<RangeInclusive<u16>>> {
        const REMEDY: &str =
            "list statuses from 100 to 599 and ranges of them, such as [200-299, 404]";
        let listed = block.status.as_ref()?;
        if listed.value.is_empty() {
            self.missing(field, Some(super::values::position(listed)), REMEDY);
            return None;
        }
        let mut ranges = Vec::new();
        for (index, text) in listed.value.iter().enumerate() {
            let (first, last) = text
                .value
                .split_once('-')
                .unwrap_or((&text.value, &text.value));
            let status = |text: &str| {
                decimal::<u16>(text.trim()).filter(|status| (100..=599).contains(status))
            };
            match (status(first), status(last)) {
                (Some(first), Some(last)) if first <= last => ranges.push(first..=last),
                _ => self.refuse(
                    &format!("{field}[{index}]"),
                    text,
                    "not a status or a range of them",
                    REMEDY,
                ),
            }
        }
        Some(ranges)
    }

    fn body(&mut self, field: &str, text: &Spanned<String>) -> Option<String> {
        let fits = (1..=MAX_TEXT).contains(&text.value.len());
        if !fits {
            self.refuse(
                field,
                text,
                "nothing to look for, or too much",
                format!("give 1 to {MAX_TEXT} bytes that the body must have"),
            );
        }
        fits.then(|| text.value.clone())
    }

    fn span(
        &mut self,
        field: &str,
        text: &Spanned<String>,
        allowed: &RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let span = duration(&text.value).filter(|span| allowed.contains(span));
        if span.is_none() {
            let written = |span: &Duration| match span.subsec_millis() {
                0 => format!("{}s", span.as_secs()),
                milliseconds => format!("{milliseconds}ms"),
            };
            self.refuse(
                field,
                text,
                "not a time span that fits here",
                format!(
                    "use {} to {}, written like 5s, 500ms or 1m",
                    written(allowed.start()),
                    written(allowed.end())
                ),
            );
        }
        span
    }

    fn in_a_row(&mut self, field: &str, text: Option<&Spanned<String>>) -> Option<u32> {
        let text = text?;
        let count = decimal::<u32>(&text.value).filter(|count| COUNTS.contains(count));
        if count.is_none() {
            let remedy = format!("use a number from {} to {}", COUNTS.start(), COUNTS.end());
            self.refuse(field, text, "not a number of checks", remedy);
        }
        count
    }
}

/// Parses a number with its unit, as Kubernetes and Prometheus write it.
fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let number = decimal::<u32>(number)?;
    match unit {
        "ms" => Some(Duration::from_millis(number.into())),
        "s" => Some(Duration::from_secs(number.into())),
        "m" => Some(Duration::from_secs(u64::from(number) * 60)),
        _ => None,
    }
}
