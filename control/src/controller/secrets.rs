//! The Secrets that all machines share: the seed of the flow hash, and the key of edges. Each is made once and never
//! changes.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

use super::MANAGER;
use super::write::Writer;
use crate::kubernetes::shared_secret::{PEERS_KEY, SEED, SharedSecret};
use crate::random::random_bytes;

#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    #[error("the API server refuses")]
    Api(#[from] kube::Error),
    #[error("cannot make a random value")]
    Random(#[from] std::io::Error),
}

/// Makes the Secrets that do not exist. Returns whether all do now.
pub(super) async fn ensure_all(api: &Api<Secret>, writer: &Writer) -> bool {
    let mut all = true;
    for (secret, make) in [(&SEED, seed as fn() -> _), (&PEERS_KEY, peers_key)] {
        let made = writer.counted(secret.purpose, ensure(api, secret, make));
        all &= made.await.is_ok();
    }
    all
}

/// Creates a Secret if it does not exist.
///
/// # Errors
///
/// When the Secret can neither be read nor created.
async fn ensure(
    api: &Api<Secret>,
    SharedSecret {
        name, key, what, ..
    }: &SharedSecret,
    make: fn() -> std::io::Result<String>,
) -> Result<(), SecretError> {
    if api.get_opt(name).await?.is_some() {
        return Ok(());
    }
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some((*name).to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([((*key).to_owned(), ByteString(make()?.into()))].into()),
        // Agents read it when they start: another value would divide them. Another seed would move nearly every flow too.
        immutable: Some(true),
        ..Secret::default()
    };
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    match api.create(&parameters, &secret).await {
        Ok(_) => {
            tracing::info!(secret = name, "made {what}");
            Ok(())
        }
        // Another process created it first. Its value counts.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn seed() -> std::io::Result<String> {
    Ok(format!("{:#018x}", u64::from_be_bytes(random_bytes()?)))
}

/// Makes a key in digits, which a file for edges that do not use the API can have too.
fn peers_key() -> std::io::Result<String> {
    let bytes: [u8; 32] = random_bytes()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
