//! The seed of the flow hash, which all edges share. It is made once and never changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;

use super::MANAGER;
use crate::kubernetes::client::{SEED_KEY, SEED_SECRET};

#[derive(Debug, thiserror::Error)]
pub(super) enum SeedError {
    #[error("the API server refuses")]
    Api(#[from] kube::Error),
    #[error("cannot read /dev/urandom")]
    Random(#[from] std::io::Error),
}

/// Creates the Secret if it does not exist.
///
/// # Errors
///
/// When the Secret can neither be read nor created.
pub(super) async fn ensure(api: &Api<Secret>) -> Result<(), SeedError> {
    if api.get_opt(SEED_SECRET).await?.is_some() {
        return Ok(());
    }
    let mut seed = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    let text = format!("{:#018x}", u64::from_be_bytes(seed));
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SEED_SECRET.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            SEED_KEY.to_owned(),
            ByteString(text.into()),
        )])),
        // Another seed would move nearly every flow, so the API server must refuse a change.
        immutable: Some(true),
        ..Secret::default()
    };
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    match api.create(&parameters, &secret).await {
        Ok(_) => {
            tracing::info!(secret = SEED_SECRET, "made the seed of the flow hash");
            Ok(())
        }
        // Another process created it first. Its seed counts.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
