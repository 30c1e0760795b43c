//! The connection to the API server: its address, the credentials, and the identity of this machine.

use std::collections::BTreeSet;
use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube::config::{InferConfigError, KubeConfigOptions, KubeconfigError};
use kube::{Api, Client};

use super::request_errors::{Purpose, RequestErrors};
use super::schema::Secret;
use crate::chain::chain;
use crate::config::{Kubernetes, parse_seed};

/// Environment variable with the name of this machine's Node. Pods get it from the downward API.
const NODE_NAME: &str = "NODE_NAME";
/// Environment variable with the pod's namespace.
const NAMESPACE: &str = "POD_NAMESPACE";
/// Namespace of Guideway's own objects unless configured.
pub(crate) const DEFAULT_NAMESPACE: &str = "guideway-system";
/// Name of the Secret that holds the seed of the flow hash, and the seed's key in it.
pub(crate) const SEED_SECRET: &str = "guideway-seed";
pub(crate) const SEED_KEY: &str = "seed";
/// How long the server may send nothing in answer to a request. A watch without changes is quiet for less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);
/// Pause between two attempts to read the seed.
const SEED_PAUSE: Duration = Duration::from_secs(2);

/// Why the API cannot be used at all. A server that does not answer is not among the reasons.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No API server is configured.
    #[error(
        "cannot find the API server: neither KUBECONFIG, ~/.kube/config nor a pod's service account tells"
    )]
    Infer(#[from] InferConfigError),
    /// The kubeconfig has no such context, or cannot be used.
    #[error("cannot use the context {context} of the kubeconfig")]
    Context {
        /// Name of the context.
        context: String,
        /// The cause.
        #[source]
        source: KubeconfigError,
    },
    /// The credentials or the address cannot be used.
    #[error("cannot use the credentials for the API server {server}")]
    Client {
        /// URL of the API server.
        server: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
}

/// The identity of this machine in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of its Node; on an edge outside the cluster no Node has this name.
    pub node_name: String,
    /// Namespace of Guideway's own objects.
    pub namespace: String,
    /// Namespace of the edges' Leases.
    pub lease_namespace: String,
}

impl Identity {
    /// Takes each value from the configuration, else from the environment, else the default.
    pub fn of(options: &Kubernetes) -> Self {
        Self {
            node_name: node_name(options.node_name.clone()),
            lease_namespace: lease_namespace(options.lease_namespace.clone(), &options.service),
            namespace: namespace(options.namespace.clone()),
        }
    }
}

/// Returns the namespace of the edges' Leases: `given`, else the one that goes with Guideway's own Service.
pub(crate) fn lease_namespace(given: Option<String>, service: &str) -> String {
    given.unwrap_or_else(|| format!("{service}-edges"))
}

/// Returns the name of this machine's Node: `given`, else that of the environment, else the host name.
pub(crate) fn node_name(given: Option<String>) -> String {
    let name = given.or_else(|| variable(NODE_NAME));
    name.unwrap_or_else(host_name)
}

/// Returns the namespace of Guideway's own objects: `given`, else that of the pod, else the default.
pub(crate) fn namespace(given: Option<String>) -> String {
    let namespace = given.or_else(|| variable(NAMESPACE));
    namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the host name as the kubelet would register it: trimmed and in lower case.
fn host_name() -> String {
    let name = nix::unistd::gethostname().ok();
    let name = name.map(|name| name.to_string_lossy().trim().to_lowercase());
    name.unwrap_or_default()
}

/// Finds the API server and the credentials, as kubectl does.
pub(crate) async fn infer() -> Result<kube::Config, ClientError> {
    Ok(with_limits(kube::Config::infer().await?))
}

/// Finds the API server and the credentials by a context of the kubeconfig.
pub(crate) async fn by_context(context: &str) -> Result<kube::Config, ClientError> {
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let config = kube::Config::from_kubeconfig(&options).await;
    let config = config.map_err(|source| ClientError::Context {
        context: context.to_owned(),
        source,
    })?;
    Ok(with_limits(config))
}

fn with_limits(mut config: kube::Config) -> kube::Config {
    // kube's retries pause for up to minutes without a report. Watchers and writers have their own.
    config.default_retry = false;
    // By default kube waits for ever for a server that accepts a request and never answers.
    config.read_timeout = Some(ANSWER_TIMEOUT);
    config.reset_reader_on_write = true;
    config
}

/// Makes a client. Sends nothing.
pub(crate) fn client(config: kube::Config) -> Result<Client, ClientError> {
    let server = config.cluster_url.to_string();
    Client::try_from(config).map_err(|source| ClientError::Client { server, source })
}

/// Resolves the addresses and port of the API server.
pub(crate) async fn addresses(config: &kube::Config) -> BTreeSet<SocketAddr> {
    let server = &config.cluster_url;
    let Some(host) = server.host() else {
        return BTreeSet::new();
    };
    let port = server.port_u16().unwrap_or(443);
    let host = host.trim_matches(['[', ']']);
    if let Ok(address) = host.parse::<IpAddr>() {
        return [SocketAddr::new(address, port)].into();
    }
    match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.collect(),
        Err(error) => {
            tracing::warn!(host, %error, "cannot resolve the API server's name");
            BTreeSet::new()
        }
    }
}

/// Waits for the seed that the controller chose for the cluster. Calls `waiting` with the reason for each wait.
pub(super) async fn seed(
    client: &Client,
    namespace: &str,
    request_errors: &RequestErrors,
    mut waiting: impl FnMut(String),
) -> u64 {
    loop {
        match read_seed(client, namespace, || request_errors.count(Purpose::Seed)).await {
            Ok(seed) => return seed,
            Err(reason) => waiting(reason),
        }
        tokio::time::sleep(SEED_PAUSE).await;
    }
}

/// Reads the seed of the cluster's Secret.
///
/// # Errors
///
/// Why there is none. `refused` is called if the server did not give the Secret.
pub(crate) async fn read_seed(
    client: &Client,
    namespace: &str,
    refused: impl FnOnce(),
) -> Result<u64, String> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let name = format!("Secret {namespace}/{SEED_SECRET}");
    let secret = secrets.get_opt(SEED_SECRET).await;
    let secret = secret.map_err(|error| {
        refused();
        format!("cannot read the {name}: {}", chain(&error))
    })?;
    let secret = secret.ok_or_else(|| {
        format!("there is no {name} with the seed of the flow hash; `guideway controller` makes it")
    })?;
    let data = secret.data.unwrap_or_default();
    let text = data.get(SEED_KEY);
    let text = text.and_then(|bytes| str::from_utf8(&bytes.0).ok());
    text.and_then(|text| parse_seed(text.trim()))
        .ok_or_else(|| format!("the {name} has no 64-bit number under {SEED_KEY}"))
}
