//! Reads the configuration again. An invalid file changes nothing, and some options need a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Agent;
use crate::api::ConfigStatus;
use crate::chain::chain;
use crate::clock::unix_time;
use crate::config::effective::effective;
use crate::config::host::{self, HostFacts};
use crate::config::{self, Config, ConfigError, Source};
use crate::target_state::Machine;

/// The configuration file, and the outcome of reading it.
#[derive(Debug)]
pub(super) struct ConfigFile {
    path: PathBuf,
    /// The configuration at the agent's start. Parts of it cannot change later.
    pub(super) started_with: Config,
    pub(super) status: ConfigStatus,
}

impl ConfigFile {
    pub(super) fn new(path: &Path, config: &Config) -> Self {
        let status = ConfigStatus {
            path: path.display().to_string(),
            loaded_at: unix_time(),
            reloads: 1,
            ..ConfigStatus::default()
        };
        Self {
            path: path.to_owned(),
            started_with: config.clone(),
            status,
        }
    }

    /// Reads the file. Interfaces with the program keep it while there is no default route.
    fn read(
        &self,
        source: Source,
        attached: impl Iterator<Item = String>,
    ) -> Result<(Config, HostFacts), ConfigError> {
        let mut config = config::load(&self.path, source)?;
        host::keep_datapath(&self.path, &config, self.started_with.datapath)?;
        let unreadable = |source| ConfigError::Read {
            path: "/proc/net".into(),
            source,
        };
        let facts = host::facts().map_err(unreadable)?;
        config.assume_default_routes(attached);
        config.find_interfaces(&facts).map_err(unreadable)?;
        host::validate(&self.path, &config, &facts)?;
        Ok((config, facts))
    }

    fn note_loaded(&mut self, config: &Config) {
        self.status.reloads += 1;
        self.status.loaded_at = unix_time();
        self.status.error = None;
        self.status.needs_restart = needs_restart(&self.started_with, config);
    }

    fn note_refused(&mut self, error: &ConfigError, cause: &'static str) {
        let chain = chain(error);
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

impl Agent {
    /// Reads the configuration again and applies it. An invalid file changes nothing.
    pub(super) fn reload(&mut self, cause: &'static str) {
        let source = match self.cluster {
            Some(_) => Source::Kubernetes,
            None => Source::File,
        };
        let attached = self.config.desired.interfaces.keys().cloned();
        let (config, facts) = match self.file.read(source, attached) {
            Ok(read) => read,
            Err(error) => return self.file.note_refused(&error, cause),
        };
        self.file.note_loaded(&config);
        self.config = config;
        if let Some(cluster) = &self.cluster {
            cluster.complete(&mut self.config.desired);
            cluster.show_machine(&facts, &self.config.desired);
        }
        self.settings = Arc::new(effective(&self.config));
        self.machine = Machine::of(&self.config.desired, &facts);
        self.attachments.forget_lost();
        self.pod_devices.forget();
        self.periodic_work.look_at_rules();
        let changes = self.settle();
        tracing::info!(
            cause,
            changes,
            services = self.tables.services().count(),
            problems = self.problems.len(),
            "configuration loaded"
        );
        let needs_restart = &self.file.status.needs_restart;
        if !needs_restart.is_empty() {
            tracing::warn!(options = ?needs_restart, "these options wait for a restart");
        }
    }
}

/// Returns the names of changed options that need a restart.
fn needs_restart(started_with: &Config, config: &Config) -> Vec<String> {
    // The election starts only with the agent.
    let announces = |config: &Config| config.desired.announce.is_some();
    let begins_to_announce =
        config.kubernetes.is_some() && announces(config) && !announces(started_with);
    let changed = [
        (started_with.tables != config.tables, "tables"),
        (started_with.socket != config.socket, "api.socket"),
        (started_with.metrics != config.metrics, "metrics.listen"),
        (started_with.pin_dir != config.pin_dir, "pin_dir"),
        (begins_to_announce, "announce"),
        (started_with.peers != config.peers, "peers"),
        (started_with.kubernetes != config.kubernetes, "kubernetes"),
    ];
    let changed = changed.into_iter().filter(|(is_changed, _)| *is_changed);
    changed.map(|(_, option)| option.to_owned()).collect()
}
