//! The rules that need only the configuration file. They are applied to the whole file.
//!
//! An invalid value is reported and left out, and the rest is still checked. So one run reports everything that
//! must be mended.

mod backends;
mod health;
mod kubernetes;
mod machine;
mod nodes;
mod peers;
mod services;
mod tables;
mod values;
mod whole_edge;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use imbl::OrdSet;
use serde_saphyr::Spanned;

pub(crate) use self::health::HealthDefaults;
pub(super) use self::health::written;
use self::values::{Refusal, refusal};
pub(super) use self::values::{network, seed};
use super::interfaces::with_modes;
use super::problem::{Position, Problem};
use super::{
    Config, DEFAULT_HASH_SEED, DEFAULT_PIN_DIR, DEFAULT_SOCKET, Origins, Source, raw, shorten,
};
use crate::desired::{BackendSpec, Desired, ForwardMode, ServiceSpec};

/// `sockaddr_un` holds 108 bytes; the last one is a zero.
const MAX_SOCKET_PATH: usize = 107;
/// `PATH_MAX` without the terminating zero.
const MAX_PATH: usize = 4_095;

/// Applies every rule. Returns the configuration, or all problems ordered by position.
pub(super) fn validate(file: &raw::File, source: Source) -> Result<Config, Vec<Problem>> {
    let mut rules = Rules::default();
    let config = rules.file(file, source);
    if rules.problems.is_empty() {
        return Ok(config);
    }
    rules.problems.sort_by_key(|problem| problem.position);
    Err(rules.problems)
}

/// Collects problems while values are read.
#[derive(Default)]
struct Rules {
    problems: Vec<Problem>,
    /// Positions of values that other values or the machine must match.
    origins: Origins,
}

impl Rules {
    fn file(&mut self, file: &raw::File, source: Source) -> Config {
        let interfaces = self.interfaces(file);
        let (edge, node) = self.roles(file);
        let hash_seed = self.read("hash_seed", &file.hash_seed, seed);
        let sources = self.sources(file.sources.as_ref());
        let nat = self.nat(file.nat.as_ref());
        let vips = self.vips(file, &sources);
        let default_mode = self.read("default_mode", &file.default_mode, values::mode);
        let default_mode = default_mode.unwrap_or(ForwardMode::Ipip);
        let seed = hash_seed.unwrap_or(DEFAULT_HASH_SEED);
        let nodes = self.nodes(file);
        let node_port_addresses = self.node_port_addresses(file);
        let node_port_range = self.node_port_range(file);
        let health = self.health_defaults(file);
        let services = self.services(file, &nodes, default_mode, &health, &node_port_range, seed);
        let node_health = self.read("node_health", &file.node_health, values::switch);
        let edges = &file.trusted_edges;
        let trusted_edges = self.set("trusted_edges", edges, "prefix", values::edge_prefix);
        let trusted_edges = trusted_edges.into_keys().collect();
        let tables = self.tables(file.tables.as_ref());
        let kubernetes = self.kubernetes(file, source, default_mode, hash_seed, tables);
        if kubernetes.is_none() {
            self.roles_fit(file, node, &nodes);
        }
        self.nat_fits(file, nat.ports(), &services);
        self.tables_fit(file, &services, &trusted_edges, tables);

        let socket = file.api.as_ref().and_then(|api| api.socket.as_ref());
        let socket = self.read("api.socket", socket, values::path(MAX_SOCKET_PATH));
        let pin_dir = self.read("pin_dir", &file.pin_dir, values::path(MAX_PATH));
        let metrics = file.metrics.as_ref();
        let metrics = metrics.and_then(|metrics| metrics.listen.as_ref());
        let clamp_mss = self.read("clamp_mss", &file.clamp_mss, values::switch);
        let datapath = self.read("datapath", &file.datapath, values::datapath);
        let mut config = Config {
            desired: Desired {
                edge,
                node,
                nodes,
                hash_seed: seed,
                sources,
                nat,
                interfaces: with_modes(&interfaces),
                vips,
                shared: OrdSet::new(),
                node_port_addresses,
                clamp_mss: clamp_mss.unwrap_or(true),
                trusted_edges,
                announce: self.announce(file, source),
                mend: self.mend(file),
                node_health: node_health.unwrap_or(true),
                draining: services
                    .iter()
                    .filter_map(|(key, service)| Some((*key, draining(&service.spec)?)))
                    .collect(),
                services: services
                    .into_iter()
                    .map(|(key, service)| (key, Arc::new(service)))
                    .collect(),
            },
            interfaces,
            datapath: datapath.unwrap_or_default(),
            tables,
            socket: socket.unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET)),
            metrics: self
                .read("metrics.listen", metrics, values::listen)
                .flatten(),
            pin_dir: pin_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_PIN_DIR)),
            node_port_range,
            default_mode,
            health,
            peers: self.peers(file, kubernetes.as_ref()),
            kubernetes,
            node_config: Vec::new(),
            origins: Origins::default(),
        };
        self.fits_whole_edge(file, &config);
        config.origins = std::mem::take(&mut self.origins);
        config
    }

    /// Reads a value that may be absent. Reports it if `read` rejects it.
    fn read<'file, T>(
        &mut self,
        field: &str,
        text: impl Into<Option<&'file Spanned<String>>>,
        read: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        let text = text.into()?;
        let value = read(&text.value);
        value
            .map_err(|refusal| self.refuse(field, text, refusal))
            .ok()
    }

    /// Reads a required value of an entry. Reports it if it is absent or `read` rejects it.
    fn required<E, T>(
        &mut self,
        field: &str,
        entry: &Spanned<E>,
        text: &raw::Text,
        remedy: &str,
        read: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<T> {
        if text.is_none() {
            self.missing(field, Some(position(entry)), remedy);
        }
        self.read(field, text, read)
    }

    /// Reads the values of a list, each with its position. Reports duplicates.
    fn set<T: Ord>(
        &mut self,
        field: &str,
        list: &raw::List<Spanned<String>>,
        what: &str,
        read: impl Fn(&str) -> Result<T, Refusal>,
    ) -> BTreeMap<T, Position> {
        let mut values = BTreeMap::new();
        for (field, text) in entries(field, list) {
            if let Some(value) = self.read(&field, text, &read) {
                self.is_first(&mut values, value, &field, text, what);
            }
        }
        values
    }

    /// Records the position of a value. Reports it and returns false if it is a duplicate.
    fn is_first<T: Ord>(
        &mut self,
        seen: &mut BTreeMap<T, Position>,
        value: T,
        field: &str,
        text: &Spanned<String>,
        what: &str,
    ) -> bool {
        let outcome = note(seen, value, position(text));
        if let Err(first) = outcome {
            let reason = format!("this {what} is already listed at {first}");
            self.refuse(
                field,
                text,
                refusal(reason, format!("list each {what} once")),
            );
        }
        outcome.is_ok()
    }

    fn refuse(&mut self, field: &str, text: &Spanned<String>, refusal: Refusal) {
        // A seed with a wrong digit is nearly the secret that it should be, and logs and pages quote problems.
        let value = match field {
            "hash_seed" => String::new(),
            _ => shorten(&text.value),
        };
        self.report(Some(position(text)), field, &value, refusal);
    }

    fn missing(&mut self, field: &str, at: Option<Position>, remedy: impl Into<String>) {
        self.report(at, field, "", refusal("missing", remedy));
    }

    fn report(&mut self, at: Option<Position>, field: &str, value: &str, refusal: Refusal) {
        self.problems.push(Problem {
            position: at,
            field: field.to_owned(),
            value: value.to_owned(),
            reason: refusal.reason,
            remedy: refusal.remedy,
        });
    }
}

/// Iterates over the entries of a list, each with the path of its field.
fn entries<'file, T>(
    field: &str,
    list: &'file raw::List<T>,
) -> impl Iterator<Item = (String, &'file T)> {
    let entries = list.iter().flat_map(|list| &list.value).enumerate();
    entries.map(move |(index, entry)| (format!("{field}[{index}]"), entry))
}

/// Records the position of a value, or returns the position of its first occurrence.
fn note<T: Ord>(seen: &mut BTreeMap<T, Position>, value: T, at: Position) -> Result<(), Position> {
    match seen.entry(value) {
        Entry::Vacant(vacant) => {
            vacant.insert(at);
            Ok(())
        }
        Entry::Occupied(first) => Err(*first.get()),
    }
}

/// Returns the position where a value is used; for a YAML alias that is not where it is defined.
/// Returns the backends of a service that drain, if there are any.
fn draining(spec: &ServiceSpec) -> Option<Arc<[BackendSpec]>> {
    let draining = spec.backends.iter().filter(|backend| !backend.is_sharing());
    let draining: Arc<[BackendSpec]> = draining.copied().collect();
    (!draining.is_empty()).then_some(draining)
}

fn position<T>(spanned: &Spanned<T>) -> Position {
    spanned.referenced.into()
}
