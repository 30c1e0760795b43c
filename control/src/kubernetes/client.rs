//! The connection to the API server: its address, the credentials, and the identity of this machine.

use std::collections::BTreeSet;
use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube::Client;
use kube::config::{InferConfigError, KubeConfigOptions, KubeconfigError};

use crate::config::Kubernetes;

/// Environment variable with the name of this machine's Node. Pods get it from the downward API.
const NODE_NAME: &str = "NODE_NAME";
/// Environment variable with the pod's namespace.
const NAMESPACE: &str = "POD_NAMESPACE";
/// Namespace of Guideway's own objects unless configured.
pub(crate) const DEFAULT_NAMESPACE: &str = "guideway-system";
/// How long the server may send nothing in answer to a request. A watch without changes is quiet for less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(70);

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
