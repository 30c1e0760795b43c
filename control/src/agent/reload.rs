//! The configuration read again: a bad one changes nothing, and some options wait for a restart.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Agent;
use crate::chain::chain;
use crate::config::{self, Config, ConfigError, Source, host};
use crate::target::Machine;

impl Agent {
    /// Reads the configuration again; a bad one changes nothing.
    pub(super) fn reload(&mut self, cause: &'static str) {
        let source = match self.cluster {
            Some(_) => Source::Kubernetes,
            None => Source::File,
        };
        let loaded = config::load(&self.path, source).and_then(|config| {
            let facts = host::facts().map_err(|source| ConfigError::Read {
                path: "/proc/net".into(),
                source,
            })?;
            host::validate(&self.path, &config, &facts)?;
            Ok((config, facts))
        });
        match loaded {
            Ok((config, facts)) => {
                self.status.reloads += 1;
                self.status.loaded_at = unix_time();
                self.status.error = None;
                self.status.needs_restart = needs_restart(&self.started_with, &config);
                self.config = config;
                if let Some(cluster) = &self.cluster {
                    cluster.complete(&mut self.config.desired);
                    cluster.show_machine(&facts, &self.config.desired);
                }
                self.machine = Machine::of(&self.config.desired, &facts);
                self.forget_lost();
                self.pods = None;
                self.sweeps.look_at_rules();
                let put = self.settle();
                tracing::info!(
                    cause,
                    changes = put,
                    services = self.tables.services().count(),
                    problems = self.problems.len(),
                    "configuration loaded"
                );
                if !self.status.needs_restart.is_empty() {
                    tracing::warn!(options = ?self.status.needs_restart, "these options wait for a restart");
                }
            }
            Err(error) => {
                let chain = chain(&error);
                for line in chain.lines() {
                    tracing::error!(
                        cause,
                        problem = line,
                        "configuration refused, the last good state stays in force"
                    );
                }
                self.status.failures += 1;
                self.status.error = Some(chain);
            }
        }
    }
}

/// Names the options that a reload cannot change.
fn needs_restart(started_with: &Config, config: &Config) -> Vec<String> {
    let mut options = Vec::new();
    if started_with.tables != config.tables {
        options.push("tables".to_owned());
    }
    if started_with.socket != config.socket {
        options.push("api.socket".to_owned());
    }
    if started_with.metrics != config.metrics {
        options.push("metrics.listen".to_owned());
    }
    if started_with.pin_dir != config.pin_dir {
        options.push("pin_dir".to_owned());
    }
    // Without the section nobody takes part in the election.
    let announces = |config: &Config| config.desired.announce.is_some();
    if config.kubernetes.is_some() && announces(config) && !announces(started_with) {
        options.push("announce".to_owned());
    }
    if started_with.kubernetes != config.kubernetes {
        options.push("kubernetes".to_owned());
    }
    options
}

/// Returns the time in seconds since 1970.
pub(super) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
