//! Secrets with what all machines share. The controller makes each of them once; agents read them when they start.

use std::time::Duration;

use kube::{Api, Client};
use tokio::time::sleep;

use super::request_errors::{Purpose, RequestErrors};
use super::schema::Secret;
use crate::chain::chain;
use crate::config::parse_seed;
use crate::peers::Key;

/// Pause between two attempts to read a Secret.
const PAUSE: Duration = Duration::from_secs(2);

/// A Secret with one value.
#[derive(Debug)]
pub(crate) struct SharedSecret {
    pub(crate) name: &'static str,
    /// The key of the value.
    pub(crate) key: &'static str,
    pub(crate) what: &'static str,
    pub(crate) purpose: Purpose,
}

/// The seed of the flow hash.
pub(crate) const SEED: SharedSecret = SharedSecret {
    name: "guideway-seed",
    key: "seed",
    what: "the seed of the flow hash",
    purpose: Purpose::Seed,
};

/// The key with which edges that exchange owners authenticate each other.
pub(crate) const PEERS_KEY: SharedSecret = SharedSecret {
    name: "guideway-peers",
    key: "key",
    what: "the key of the exchange between edges",
    purpose: Purpose::PeersKey,
};

/// Reads the seed of the cluster's Secret.
///
/// # Errors
///
/// Why there is none.
pub(crate) async fn read_seed(client: &Client, namespace: &str) -> Result<u64, String> {
    SEED.read(client, namespace, seed, || {}).await
}

/// Reads the key of edges in the cluster's Secret.
///
/// # Errors
///
/// Why there is none.
pub(crate) async fn has_peers_key(client: &Client, namespace: &str) -> Result<(), String> {
    let key = PEERS_KEY.read(client, namespace, peers_key, || {}).await;
    key.map(drop)
}

/// Reads a 64-bit number.
pub(super) fn seed(bytes: &[u8]) -> Result<u64, String> {
    let text = str::from_utf8(bytes).ok();
    let seed = text.and_then(|text| parse_seed(text.trim()));
    seed.ok_or_else(|| "not a 64-bit number".to_owned())
}

/// Reads a key of edges.
pub(super) fn peers_key(bytes: &[u8]) -> Result<Key, String> {
    Key::of_text(bytes).map_err(|error| chain(&error))
}

impl SharedSecret {
    /// Waits until the Secret can be read. Calls `waiting` with the reason for each wait.
    pub(super) async fn wait_for<T>(
        &self,
        client: &Client,
        namespace: &str,
        request_errors: &RequestErrors,
        parse: fn(&[u8]) -> Result<T, String>,
        mut waiting: impl FnMut(String),
    ) -> T {
        loop {
            let refused = || request_errors.count(self.purpose);
            match self.read(client, namespace, parse, refused).await {
                Ok(value) => return value,
                Err(reason) => waiting(reason),
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads the value. `refused` is called if the server did not give the Secret.
    async fn read<T>(
        &self,
        client: &Client,
        namespace: &str,
        parse: fn(&[u8]) -> Result<T, String>,
        refused: impl FnOnce(),
    ) -> Result<T, String> {
        let Self {
            name, key, what, ..
        } = self;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets.get_opt(name).await;
        let name = format!("Secret {namespace}/{name}");
        let secret = secret.map_err(|error| {
            refused();
            format!("cannot read the {name}: {}", chain(&error))
        })?;
        let secret = secret.ok_or_else(|| {
            format!("there is no {name} with {what}; `guideway controller` makes it")
        })?;
        let data = secret.data.unwrap_or_default();
        let value = data.get(*key).map_or(&[][..], |value| &value.0);
        parse(value)
            .map_err(|wrong| format!("the {name} does not have {what} under {key}: {wrong}"))
    }
}
