//! Runs `kubectl` and `helm` as an administrator on the control plane's machine.

use std::{ffi::OsStr, path::Path, process::Command, sync::atomic::Ordering};

use serde_json::Value;

use super::{ControlPlane, KUBECONFIG, READY_TIMEOUT, program};
use crate::{Error, Namespace, Result, output, wait_for};

impl ControlPlane {
    /// Prepares a `kubectl` command.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] when `kubectl` has not been built.
    pub fn kubectl_command(&self) -> Result<Command> {
        let files = Path::new(Namespace::FILES);
        let mut command = self.machine.command(program("kubectl")?);
        command
            .env("KUBECONFIG", files.join(KUBECONFIG))
            .env("KUBECACHEDIR", files.join("kubectl"));
        Ok(command)
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with its output when it fails.
    pub fn kubectl(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        output(self.kubectl_command()?.args(arguments))
    }

    /// Runs `helm` and returns its output.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with its output when it fails.
    pub fn helm(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let files = Path::new(Namespace::FILES);
        let mut command = self.machine.command(program("helm")?);
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), files.join("helm"));
        }
        command
            .env("KUBECONFIG", files.join(KUBECONFIG))
            .args(arguments);
        output(&mut command)
    }

    /// Runs `kubectl apply` on objects in YAML or JSON, separated by `---` lines.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with the API server's answer when it refuses an object.
    pub fn apply(&self, objects: &str) -> Result<String> {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let file = self
            .machine
            .write_file(&format!("apply-{number}.yaml"), objects)?;
        output(self.kubectl_command()?.args(["apply", "-f"]).arg(file))
    }

    /// Runs `kubectl get` and returns the object or list.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] when there is no such object.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let answer = output(
            self.kubectl_command()?
                .arg("get")
                .args(arguments)
                .args(["-o", "json"]),
        )?;
        serde_json::from_str(&answer).map_err(|_| Error::Invalid {
            what: "answer",
            value: answer,
            expected: "JSON",
        })
    }

    /// Waits until objects of a kind can be listed. A new custom resource can be listed only a moment after it
    /// is established.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when there is no such kind.
    pub fn wait_for_kind(&self, kind: &str) -> Result<()> {
        wait_for(&format!("{kind} are listed"), READY_TIMEOUT, || {
            self.kubectl(&["get", kind, "--all-namespaces"]).map(drop)
        })
    }

    /// Waits until the API server allows a service account an action, such as `list services`. New roles take
    /// effect a moment after they are written.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when the account is still not allowed.
    pub fn wait_for_right(&self, namespace: &str, account: &str, right: &str) -> Result<()> {
        let user = format!("--as=system:serviceaccount:{namespace}:{account}");
        let ask = ["auth", "can-i", "-n", namespace, &user];
        let ask: Vec<&str> = ask.into_iter().chain(right.split(' ')).collect();
        wait_for(&format!("{account} may {right}"), READY_TIMEOUT, || {
            self.kubectl(&ask).map(drop)
        })
    }

    /// Creates a service account in the namespace `default` with the rules of a ClusterRole, one per line, in
    /// YAML. Waits until the rules are in force. The rules of an existing account are replaced.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] when the API server refuses the objects.
    pub fn make_service_account(&self, name: &str, rules: &str) -> Result<()> {
        // A rule that only this call has: when it is in force, so are the others.
        let mark = format!("/rules/{}", self.files.fetch_add(1, Ordering::Relaxed));
        let objects = format!(
            "
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}, namespace: default}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {name}}}
rules:
- {{nonResourceURLs: [{mark}], verbs: [get]}}
{rules}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {name}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {name}}}
subjects: [{{kind: ServiceAccount, name: {name}, namespace: default}}]
"
        );
        self.apply(&objects)?;
        self.wait_for_right("default", name, &format!("get {mark}"))
    }

    /// Returns a bound token of an existing service account. It is valid for an hour.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] when the account does not exist.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        let token = self.kubectl(&["create", "token", "-n", namespace, name])?;
        Ok(token.trim_end().to_owned())
    }

    /// Creates a pod on a node and returns a token as the kubelet gives it to the pod; the token names the
    /// node. The service account and the node must exist.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] when the account or the node does not exist.
    pub fn pod_token(&self, namespace: &str, account: &str, node: &str) -> Result<String> {
        let pod = format!("{account}-{node}");
        self.apply(&format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {pod}, namespace: {namespace}}}
spec: {{nodeName: {node}, serviceAccountName: {account}, containers: [{{name: pod, image: none}}]}}
"
        ))?;
        let create = ["create", "token", "-n", namespace, account];
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", &pod];
        let token = self.kubectl(&[&create[..], &bound].concat())?;
        Ok(token.trim_end().to_owned())
    }
}
