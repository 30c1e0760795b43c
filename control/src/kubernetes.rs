//! Follows the Kubernetes API and turns its objects into states for the agent.
//!
//! ```text
//! API server -> list_watch (schema) -> watch_results -> cluster_objects (machine_tracker, index) -> cluster_feed -> agent
//!                                            ^                             |
//!                                            +- addresses of the machine --+
//! ```
//!
//! No other module knows the API's own types. The [`index`](crate::index) decides what the objects mean. All of
//! it runs in a thread of its own, so that a list of thousands of objects delays no health check and no
//! command.

pub(crate) mod backoff;
pub(crate) mod client;
mod cluster_feed;
mod cluster_objects;
pub mod events;
mod follow;
pub mod leases;
pub(crate) mod list_watch;
pub(crate) mod machine_tracker;
mod node_events;
mod object_events;
pub(crate) mod request_errors;
pub(crate) mod schema;
pub(crate) mod shared_secret;
mod update_pause;
pub(crate) mod watch_results;
mod worker;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;

pub use self::client::{ClientError, Identity};
pub use self::cluster_feed::{ClusterFeed, OwnMachine, Update, WatcherStatus};
pub use self::cluster_objects::WatchedKind;
pub use self::request_errors::RequestErrors;
pub use self::watch_results::WatchStatus;

use self::cluster_objects::ClusterObjects;
use self::follow::WatchScope;
use self::shared_secret::{PEERS_KEY, SEED, peers_key, seed};
use self::worker::Worker;
use crate::config::Kubernetes;
use crate::index::{Options, TopologyHints};
use crate::peers::Key;

/// Why the API cannot be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// No API server is configured, or its credentials cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The system refused to start a thread.
    #[error("cannot start a thread for the Kubernetes API")]
    Thread(#[from] io::Error),
}

/// The watchers before they start; nothing has been sent yet.
pub struct Watchers {
    worker: Worker,
    server: kube::Config,
    options: Kubernetes,
    identity: Identity,
    feed: ClusterFeed,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client and its credentials have no useful text.
        f.debug_struct("Watchers")
            .field("server", &self.server.cluster_url)
            .field("options", &self.options)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Watchers {
    /// Finds the API server and the identity of this machine. Sends nothing.
    ///
    /// # Errors
    ///
    /// When no API server is configured, its credentials cannot be used, or no event loop can be made.
    pub async fn new(options: Kubernetes) -> Result<Self, FollowError> {
        let server = client::infer().await?;
        let worker = Worker::new(server.clone())?;
        let identity = Identity::of(&options);
        tracing::info!(
            server = %server.cluster_url,
            node = identity.node_name,
            namespace = identity.namespace,
            "services and nodes come from the Kubernetes API"
        );
        let feed = ClusterFeed::new(server.cluster_url.to_string());
        feed.update_status(|status| status.node_name.clone_from(&identity.node_name));
        Ok(Self {
            worker,
            feed,
            server,
            options,
            identity,
        })
    }

    /// Returns the agent's end of the feed.
    pub fn feed(&self) -> ClusterFeed {
        self.feed.clone()
    }

    /// Returns the key with which edges authenticate each other, once the controller has made it. Calls `waiting` with the
    /// reason for each wait.
    ///
    /// # Errors
    ///
    /// When the credentials for the API server cannot be used.
    pub(crate) fn peers_key(
        &self,
        waiting: impl FnMut(String) + Send + 'static,
    ) -> Result<impl Future<Output = Key> + Send + 'static, FollowError> {
        let client = client::client(self.server.clone())?;
        let namespace = self.identity.namespace.clone();
        let request_errors = self.feed.request_errors().clone();
        Ok(async move {
            PEERS_KEY
                .wait_for(&client, &namespace, &request_errors, peers_key, waiting)
                .await
        })
    }

    /// Starts to watch, in a thread of its own. It calls `changed` for each state put into the feed, and
    /// `ended` if the thread ends, which happens only by a panic.
    ///
    /// `inherited` are the addresses of Nodes that the tables of an earlier agent sent packets to.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn start(
        self,
        inherited: BTreeSet<IpAddr>,
        changed: impl Fn() + Send + 'static,
        ended: impl FnMut(&'static str) + Send + 'static,
    ) -> Result<(), FollowError> {
        let Self {
            worker,
            server,
            options,
            identity,
            feed,
        } = self;
        worker.start("kubernetes", ended, async move |client| {
            let started = Timestamp::now();
            let hash_seed = match options.hash_seed {
                Some(seed) => seed,
                None => {
                    let request_errors = feed.request_errors();
                    let waiting = |reason| wait(&feed, reason);
                    let namespace = &identity.namespace;
                    SEED.wait_for(&client, namespace, request_errors, seed, waiting)
                        .await
                }
            };
            let node_name = identity.node_name;
            let scope = WatchScope {
                namespace: identity.namespace,
                service: options.service.clone(),
                api_servers: client::addresses(&server).await,
            };
            let objects = ClusterObjects::new(
                index_options(options, node_name.clone(), hash_seed),
                &scope.service,
                inherited,
                started,
            );
            let (reports, request_errors) = (feed.reports().clone(), feed.request_errors().clone());
            let (of_node, of_objects) = (node_name.clone(), node_name.clone());
            // All run in one task: if one panics, the thread ends and the agent is told.
            tokio::join!(
                node_events::publish(
                    client.clone(),
                    of_node,
                    reports.clone(),
                    request_errors.clone()
                ),
                object_events::publish(
                    client.clone(),
                    of_objects,
                    reports.clone(),
                    request_errors.clone()
                ),
                events::publish(client.clone(), node_name, reports, request_errors),
                follow::follow(client, scope, objects, hash_seed, feed, changed),
            );
        })?;
        Ok(())
    }
}

/// Publishes and logs what is missing. Nothing is programmed until it arrives.
fn wait(feed: &ClusterFeed, reason: String) {
    feed.update_status(|watchers| {
        if watchers.missing.first() != Some(&reason) {
            tracing::warn!(reason, "waiting; nothing is programmed before");
            watchers.missing = vec![reason];
        }
    });
}

fn index_options(options: Kubernetes, node_name: String, hash_seed: u64) -> Options {
    let room = |percent| options.room.share(percent);
    Options {
        node_name: Some(node_name),
        load_balancer_class: options.load_balancer_class,
        serve_unset_class: options.default_class,
        external_ips: options.external_ips,
        service_room: room(options.table_share),
        namespace_room: options.namespace_table_share.map(room),
        topology_hints: if options.honour_hints {
            TopologyHints::Honour
        } else {
            TopologyHints::Ignore
        },
        default_mode: options.default_mode,
        hash_seed,
        ..Options::default()
    }
}
