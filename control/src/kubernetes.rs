//! What speaks to the Kubernetes API: objects in, states for the agent out.
//!
//! ```text
//! API server -> list_watch (schema) -> arrival -> indexer (presence, index) -> feed -> agent
//!                                            ^                             |
//!                                            +- addresses of the machine --+
//! ```
//!
//! The API's types end here; what the objects mean is the [`index`](crate::index)'s matter. A thread of its
//! own does it all, so that a list of thousands of objects keeps no health check and no command waiting.

pub(crate) mod arrival;
pub(crate) mod backoff;
pub(crate) mod client;
pub mod events;
mod feed;
mod follow;
mod indexer;
pub mod leases;
pub(crate) mod list_watch;
mod pace;
pub(crate) mod presence;
pub(crate) mod request_errors;
pub(crate) mod schema;
mod worker;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;

pub use self::arrival::WatchStatus;
pub use self::client::{ClientError, Identity};
pub use self::feed::{Feed, OwnMachine, Update, Watching};
pub use self::indexer::Kind;
pub use self::request_errors::RequestErrors;

use self::follow::Scope;
use self::indexer::Indexer;
use self::worker::Worker;
use crate::config::Kubernetes;
use crate::index::{Options, TopologyHints};

/// Why the API cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// There is nothing to connect to, or not with these credentials.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// There is no thread for it.
    #[error("cannot start a thread for the Kubernetes API")]
    Thread(#[from] io::Error),
}

/// The watchers before they begin.
pub struct Watchers {
    worker: Worker,
    server: kube::Config,
    options: Kubernetes,
    identity: Identity,
    feed: Feed,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the client nor its credentials say who they are.
        f.debug_struct("Watchers")
            .field("server", &self.server.cluster_url)
            .field("options", &self.options)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Watchers {
    /// Finds the API server and who this machine is; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// When nothing says where the API server is, or how to speak to it.
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
        Ok(Self {
            worker,
            feed: Feed::new(server.cluster_url.to_string()),
            server,
            options,
            identity,
        })
    }

    /// Returns the agent's end of the feed.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Begins to watch, in a thread of its own; `changed` is called for each state that the feed has, and
    /// `ended` if the thread ends, which it does by a panic only.
    ///
    /// `inherited` are the addresses of Nodes that an earlier agent sent to.
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
                    client::seed(&client, &identity.namespace, request_errors, waiting).await
                }
            };
            let node_name = identity.node_name;
            let scope = Scope {
                namespace: identity.namespace,
                service: options.service.clone(),
                api_servers: client::addresses(&server).await,
            };
            let indexer = Indexer::new(
                index_options(options, node_name.clone(), hash_seed),
                &scope.service,
                inherited,
                started,
            );
            let (reports, request_errors) = (feed.reports().clone(), feed.request_errors().clone());
            // In one task, which takes the thread along if it panics.
            tokio::join!(
                events::publish(client.clone(), node_name, reports, request_errors),
                follow::follow(client, scope, indexer, hash_seed, feed, changed),
            );
        })?;
        Ok(())
    }
}

/// Tells what nothing can be programmed without.
fn wait(feed: &Feed, reason: String) {
    feed.tell(|watching| {
        if watching.missing.first() != Some(&reason) {
            tracing::warn!(reason, "waiting; nothing is programmed before");
            watching.missing = vec![reason];
        }
    });
}

fn index_options(options: Kubernetes, node_name: String, hash_seed: u64) -> Options {
    Options {
        node_name: Some(node_name),
        load_balancer_class: options.load_balancer_class,
        serve_unset_class: options.default_class,
        external_ips: options.external_ips,
        service_room: options.service_room,
        namespace_room: options.namespace_room,
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
