//! A control plane for `guideway controller`, and objects for it.

use std::process::Command;
use std::time::Duration;

use lab::kubernetes::ControlPlane;
use lab::{Namespace, Process, wait_for};
use serde_json::{Value, json};

/// Far more than a decision and a write take, also beside other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Cluster(pub(super) ControlPlane);

impl Cluster {
    pub(crate) fn start() -> Self {
        let cluster = Self(ControlPlane::start().unwrap());
        cluster.install_crd();
        cluster
    }

    pub(crate) fn install_crd(&self) {
        install_crd(&self.0);
    }

    /// Starts a controller on the control plane's machine.
    pub(crate) fn controller(&self, arguments: &[&str]) -> Process {
        let machine = self.0.machine();
        let mut command = machine.command(env!("CARGO_BIN_EXE_guideway"));
        command
            .args(["controller", "--namespace", "default"])
            .args(arguments)
            .env(
                "KUBECONFIG",
                std::path::Path::new(Namespace::FILES).join("kubeconfig"),
            );
        Process::spawn(&mut command).unwrap()
    }

    /// Starts one with the rights of a service account, on a machine of its own.
    pub(crate) fn controller_as<'a>(
        &self,
        namespace: &str,
        account: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> (Namespace, Process) {
        let token = self.0.service_account_token(namespace, account).unwrap();
        let machine = Namespace::new("controller").unwrap();
        self.0.connect(&machine).unwrap();
        let kubeconfig = self.0.write_kubeconfig(&machine, &token).unwrap();
        let mut command = machine.command(env!("CARGO_BIN_EXE_guideway"));
        command
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .env("POD_NAMESPACE", namespace);
        let controller = Process::spawn(&mut command).unwrap();
        (machine, controller)
    }

    /// Gives the service account `controller` the rights that one needs, of those on pools only to read and `on_pools`.
    pub(crate) fn allow(&self, on_pools: &str) {
        self.allow_with(on_pools, "events, leases, secrets");
    }

    /// Does so with all rights on pools, and to write no other objects than these.
    pub(crate) fn allow_to_write(&self, written: &str) {
        self.allow_with("patch", written);
    }

    fn allow_with(&self, on_pools: &str, written: &str) {
        let rules = format!(
            "
- {{apiGroups: ['', discovery.k8s.io], resources: [services, nodes, namespaces, endpointslices], verbs: [get, list, watch]}}
- {{apiGroups: [guideway.dev], resources: [loadbalancerpools], verbs: [get, list, watch, {on_pools}]}}
- {{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list, watch]}}
- {{apiGroups: ['', guideway.dev], resources: [services/status, loadbalancerpools/status], verbs: [patch]}}
- {{apiGroups: ['', events.k8s.io, coordination.k8s.io], resources: [{written}], verbs: [get, create, patch]}}"
        );
        self.0.make_service_account("controller", &rules).unwrap();
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.0.kubectl(arguments).unwrap()
    }

    pub(crate) fn apply(&self, objects: &str) {
        self.0.apply(objects).unwrap();
    }

    pub(crate) fn try_apply(&self, objects: &str) -> Result<String, String> {
        self.0.apply(objects).map_err(|error| error.to_string())
    }

    pub(crate) fn patch(&self, kind: &str, name: &str, patch: &Value) {
        self.kubectl(&[
            "patch",
            kind,
            name,
            "--type=merge",
            "-p",
            &patch.to_string(),
        ]);
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Value {
        self.0.get(&[kind, name]).unwrap()
    }

    pub(crate) fn eventually(&self, awaited: &str, attempt: impl FnMut() -> Result<(), String>) {
        wait_for(awaited, PATIENCE, attempt).unwrap();
    }

    pub(crate) fn finalizers(&self, pool: &str) -> Value {
        self.get("lbpool", pool)["metadata"]["finalizers"].clone()
    }

    pub(crate) fn delete_pool(&self, name: &str) {
        self.kubectl(&["delete", "lbpool", name, "--wait=false"]);
    }

    pub(crate) fn is_gone(&self, object: &str) {
        self.kubectl(&["wait", "--for=delete", object, "--timeout=60s"]);
    }

    /// Waits until a pool that is being deleted says which Service it is kept for.
    pub(crate) fn waits_for(&self, pool: &str, service: &str) {
        self.eventually(&format!("{pool} waits for {service}"), || {
            let pool = self.get("lbpool", pool);
            let ready = &pool["status"]["conditions"][0];
            let text = ready["message"].as_str().unwrap_or_default();
            let is = ready["reason"] == "Terminating" && text.contains(service);
            expect(is && ready["status"] == "False", &pool["status"])
        });
    }

    /// Waits until a Service has so many addresses, and returns them.
    pub(crate) fn addresses(&self, name: &str, number: usize) -> Vec<String> {
        let awaited = format!("{name} has {number} addresses");
        wait_for(&awaited, PATIENCE, || {
            let service = self.get("service", name);
            let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
            let addresses = ingress.into_iter().flatten();
            let addresses: Vec<String> = addresses
                .map(|ingress| ingress["ip"].as_str().unwrap_or_default().to_owned())
                .collect();
            match addresses.len() == number {
                true => Ok(addresses),
                false => Err(service["status"].to_string()),
            }
        })
        .unwrap()
    }

    /// Waits until a Service's condition has a reason and a message with a text.
    pub(crate) fn told(&self, name: &str, reason: &str, text: &str) {
        self.eventually(&format!("{name}: {reason}"), || {
            let service = self.get("service", name);
            let told = condition(&service);
            let is = told.is_some_and(|told| {
                let message = told["message"].as_str().unwrap_or_default();
                told["reason"] == reason && message.contains(text) && told["status"] == "False"
            });
            expect(is, &service["status"])
        });
    }

    /// Waits until there are Events for a reason about a Service, and counts them.
    pub(crate) fn events(&self, name: &str, reason: &str) -> usize {
        let about = format!("involvedObject.name={name},reason={reason}");
        let arguments = ["events", "--field-selector", &about];
        wait_for(&format!("Event {reason} about {name}"), PATIENCE, || {
            let events = self.0.get(&arguments).map_err(|error| error.to_string())?;
            match events["items"].as_array().map_or(0, Vec::len) {
                0 => Err("none".to_owned()),
                number => Ok(number),
            }
        })
        .unwrap()
    }
}

/// Installs the kind LoadBalancerPool.
pub(crate) fn install_crd(control: &ControlPlane) {
    let printed = lab::output(
        Command::new(env!("CARGO_BIN_EXE_guideway")).args(["controller", "--print-crds"]),
    );
    control.apply(&printed.unwrap()).unwrap();
    control
        .wait_for_kind("loadbalancerpools.guideway.dev")
        .unwrap();
}

pub(crate) fn condition(service: &Value) -> Option<&Value> {
    condition_of("guideway.dev/AddressAssigned", service)
}

pub(crate) fn condition_of<'s>(kind: &str, service: &'s Value) -> Option<&'s Value> {
    let conditions = service["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
}

pub(crate) fn expect(is: bool, otherwise: impl ToString) -> Result<(), String> {
    is.then_some(()).ok_or_else(|| otherwise.to_string())
}

pub(crate) fn pool(name: &str, addresses: &[&str]) -> String {
    json!({
        "apiVersion": "guideway.dev/v1alpha1",
        "kind": "LoadBalancerPool",
        "metadata": {"name": name},
        "spec": {"addresses": addresses},
    })
    .to_string()
}

pub(crate) fn service(name: &str, spec: &str) -> String {
    annotated(name, "", spec)
}

/// A Service of our class, with annotations and a line of its specification.
pub(crate) fn annotated(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec:
  type: LoadBalancer
  loadBalancerClass: guideway.dev/guideway
  allocateLoadBalancerNodePorts: false
  selector: {{app: web}}
  ports: [{{name: http, port: 80}}]
  {spec}
"
    )
}
