//! Finds the programs of a cluster.

use std::{env, io, path::PathBuf};

use crate::{Error, Result};

/// The versions that `deploy/kubernetes/build.sh` builds.
const VERSIONS: &str = include_str!("../../../../deploy/versions.env");

/// Returns the path of `etcd`, `etcdutl`, `helm` or a program of Kubernetes.
///
/// # Errors
///
/// [`Error::Start`] when it has not been built.
pub fn program(name: &str) -> Result<PathBuf> {
    let (package, version) = match name {
        "etcd" | "etcdutl" => ("etcd", version_of("ETCD_VERSION")),
        "helm" => ("helm", version_of("HELM_VERSION")),
        _ => ("kubernetes", version_of("KUBERNETES_VERSION")),
    };
    let path = cache().join(format!("{package}-{version}")).join(name);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::Start {
        program: path.display().to_string(),
        source: io::Error::new(
            io::ErrorKind::NotFound,
            "not built: run `deploy/setup.sh test`",
        ),
    })
}

/// Returns the directory of what `deploy/setup.sh test` builds.
pub fn cache() -> PathBuf {
    let all = env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    all.join("guideway")
}

/// Returns the version of Kubernetes, such as `v1.36.3`.
pub fn version() -> String {
    format!("v{}", version_of("KUBERNETES_VERSION"))
}

fn version_of(name: &str) -> &'static str {
    let mut lines = VERSIONS.lines().filter_map(|line| line.split_once('='));
    let found = lines.find(|(key, _)| *key == name);
    found.expect("deploy/versions.env names every version").1
}
