//! The chart, rendered by `helm`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::kubernetes::program;
use serde_json::Value;

/// What an installation must say at least.
pub(crate) const REQUIRED: [&str; 2] = [
    "image.repository=registry.example/guideway",
    "agent.interfaces[0].name=eth0",
];
/// Values that have the pods detach their nodes.
pub(crate) const DETACH: &str = "detach=true,pauseImage=registry.example/pause:1";
/// The namespace that objects are rendered for.
pub(crate) const NAMESPACE: &str = "guideway-system";

/// Returns a path below `deploy/`.
pub(crate) fn deploy(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join("deploy").join(path)
}

/// Returns the text of a file below `deploy/`.
pub(crate) fn text(path: &str) -> String {
    let path = deploy(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a command of `helm`, with values as `--set` takes them.
pub(crate) fn helm(command: &[&str], values: &[&str]) -> Output {
    let mut helm = Command::new(program("helm").unwrap());
    helm.args(command);
    for value in values {
        helm.args(["--set", value]);
    }
    helm.output().unwrap()
}

/// Renders the chart with the required values and these, and returns what `helm` says.
pub(crate) fn template(values: &[&str]) -> Output {
    let chart = deploy("helm/guideway");
    let chart = chart.to_str().unwrap();
    let command = [
        "template",
        "guideway",
        chart,
        "--namespace",
        NAMESPACE,
        "--include-crds",
    ];
    helm(&command, &[&REQUIRED, values].concat())
}

/// The rendered objects, as text that `kubectl apply` takes.
pub(crate) fn manifest(values: &[&str]) -> String {
    let output = template(values);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "helm template {values:?}: {errors}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The rendered objects.
pub(crate) struct Objects(Vec<Value>);

impl Objects {
    /// Renders the chart with the required values and these.
    pub(crate) fn render(values: &[&str]) -> Self {
        Self::parse(&manifest(values))
    }

    /// Reads rendered objects.
    pub(crate) fn parse(manifest: &str) -> Self {
        let objects: Vec<Option<Value>> = serde_saphyr::from_multiple(manifest).unwrap();
        Self(objects.into_iter().flatten().collect())
    }

    /// Returns the object of this kind and name.
    pub(crate) fn get(&self, kind: &str, name: &str) -> &Value {
        let found = self.find(kind, name);
        found.unwrap_or_else(|| panic!("no {kind} {name} is rendered"))
    }

    /// Returns the object of this kind and name, if it is rendered.
    pub(crate) fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        let mut objects = self.0.iter();
        objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    }

    /// Returns kind and name of every object.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let names = self.0.iter();
        names
            .map(|object| (text(&object["kind"]), text(&object["metadata"]["name"])))
            .collect()
    }

    /// Returns the agents' pod template.
    pub(crate) fn agent_pod(&self) -> &Value {
        &self.get("DaemonSet", "guideway-agent")["spec"]["template"]
    }

    /// Returns the controller's pod template.
    pub(crate) fn controller_pod(&self) -> &Value {
        &self.get("Deployment", "guideway-controller")["spec"]["template"]
    }

    /// Returns the agents' configuration file.
    pub(crate) fn agent_config(&self) -> &str {
        let config = self.get("ConfigMap", "guideway-agent");
        config["data"]["guideway.yaml"].as_str().unwrap()
    }
}

/// Returns the container of this name.
pub(crate) fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let spec = &pod["spec"];
    let containers = [&spec["containers"], &spec["initContainers"]];
    let mut containers = containers.into_iter().filter_map(Value::as_array).flatten();
    containers
        .find(|container| container["name"] == name)
        .unwrap_or_else(|| panic!("no container {name}"))
}
