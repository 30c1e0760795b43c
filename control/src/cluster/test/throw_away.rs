//! A Deployment and a Service that are made, tried and removed again.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::existing;
use crate::api::ServiceFilter;
use crate::chain::chain;
use crate::check::finding::{Finding, Severity, SubjectReport};
use crate::cli::ClusterTest;
use crate::cluster::members::Members;
use crate::random::random;

const REPLICAS: u64 = 2;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a removal may be tried.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The objects of one test.
struct ThrowAway<'o> {
    name: String,
    options: &'o ClusterTest,
    services: Api<DynamicObject>,
    deployments: Api<DynamicObject>,
}

/// Makes the objects, waits until the Service works at every edge, and removes them whatever happens.
///
/// # Errors
///
/// When a signal ends the test.
pub(super) async fn test(
    client: &Client,
    members: &Members,
    options: &ClusterTest,
) -> Result<Vec<Finding>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let objects = ThrowAway::new(client, options);
    let mut report = SubjectReport::of(&objects.name);
    // A signal waits for this: what is asked for and not answered could not be removed.
    let made = objects.make().await;
    let tried = match made {
        Ok(()) => tokio::select! {
            findings = objects.attempt(client, members) => Ok(findings),
            _ = interrupt.recv() => Err("SIGINT"),
            _ = terminate.recv() => Err("SIGTERM"),
        },
        Err(reason) => {
            let remedy = "it takes the right to create, get and delete Deployments and Services there; --existing makes nothing";
            report.fail("make", reason, remedy);
            Ok(Vec::new())
        }
    };
    let removed = objects.remove().await;
    let mut findings = match tried {
        Ok(findings) => findings,
        Err(signal) => match removed {
            Ok(()) => bail!("{signal} broke the test off; its objects are removed"),
            Err(reason) => bail!("{signal} broke the test off; {reason}"),
        },
    };
    if let Err(reason) = removed {
        report.fail("remove", reason, "remove both by hand");
    }
    findings.extend(report.findings);
    Ok(findings)
}

impl<'o> ThrowAway<'o> {
    fn new(client: &Client, options: &'o ClusterTest) -> Self {
        let api = |kind: &ApiResource| {
            Api::namespaced_with(client.clone(), &options.test_namespace, kind)
        };
        Self {
            name: format!("guideway-test-{:08x}", random() >> 32),
            options,
            services: api(&ApiResource::erase::<Service>(&())),
            deployments: api(&ApiResource::erase::<Deployment>(&())),
        }
    }

    /// Creates both objects. The error is a line for people.
    async fn make(&self) -> Result<(), String> {
        let [service, deployment] = objects(&self.name, self.options);
        for (api, object) in [(&self.services, service), (&self.deployments, deployment)] {
            let object = serde_json::from_value(object).map_err(|error| error.to_string())?;
            let created = api.create(&PostParams::default(), &object).await;
            created.map_err(|error| chain(&error))?;
        }
        Ok(())
    }

    /// Tries the Service until nothing fails or the time is over.
    async fn attempt(&self, client: &Client, members: &Members) -> Vec<Finding> {
        let end = Instant::now() + Duration::from_secs(self.options.timeout.into());
        let mut report = SubjectReport::of(&self.name);
        match until(end, || self.addresses()).await {
            Ok(addresses) => report.ok("address", addresses),
            Err(reason) => {
                let remedy = "see what the page Kubernetes says of the condition's reason";
                report.fail("address", reason, remedy);
                return report.findings;
            }
        }
        let filter = ServiceFilter {
            service: Some(format!("{}/{}", self.options.test_namespace, self.name)),
            ..ServiceFilter::default()
        };
        loop {
            let findings = existing(client, members, &filter, !self.options.no_requests).await;
            let has_failed = findings.iter().any(|one| one.severity == Severity::Fail);
            if has_failed && Instant::now() < end {
                sleep(PAUSE).await;
                continue;
            }
            if has_failed {
                self.judge_pods(&mut report).await;
            }
            report.findings.extend(findings);
            return report.findings;
        }
    }

    /// Returns the addresses that the Service has, or why it has none.
    async fn addresses(&self) -> Result<String, String> {
        let service = self.services.get(&self.name).await;
        let status = &service.map_err(|error| chain(&error))?.data["status"];
        let ingress = status["loadBalancer"]["ingress"].as_array();
        let ingress = ingress.into_iter().flatten();
        let addresses: Vec<&str> = ingress.filter_map(|one| one["ip"].as_str()).collect();
        if !addresses.is_empty() {
            return Ok(addresses.join(", "));
        }
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let messages: Vec<&str> = conditions
            .filter_map(|condition| condition["message"].as_str())
            .collect();
        Err(match messages.as_slice() {
            [] => "no address, and no condition that says why: no controller acts for its class"
                .to_owned(),
            messages => messages.join("; "),
        })
    }

    /// Says whether the pods are the reason of a failure.
    async fn judge_pods(&self, report: &mut SubjectReport) {
        let deployment = self.deployments.get(&self.name).await;
        let ready = deployment.map(|it| it.data["status"]["readyReplicas"].as_u64().unwrap_or(0));
        if let Ok(ready) = ready
            && ready < REPLICAS
        {
            report.fail(
                "pods",
                format!("{ready} of {REPLICAS} pods are ready"),
                "name an --image that the Nodes can pull, and a --test-namespace that admits it",
            );
        }
    }

    /// Removes both objects. The error is a line for people, which names what is left.
    async fn remove(&self) -> Result<(), String> {
        let end = Instant::now() + REMOVAL_TIMEOUT;
        for (kind, api) in [
            ("service", &self.services),
            ("deployment", &self.deployments),
        ] {
            let removed = until(end, async || {
                match api.delete(&self.name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if !status.is_not_found() => Err(status.message),
                    Err(kube::Error::Api(_)) | Ok(_) => Ok(()),
                    Err(error) => Err(chain(&error)),
                }
            });
            let namespace = &self.options.test_namespace;
            removed.await.map_err(|reason| {
                format!(
                    "cannot remove {kind}/{} of {namespace}: {reason}",
                    self.name
                )
            })?;
        }
        Ok(())
    }
}

/// Repeats an attempt until it succeeds. Returns the last error when the time is over.
async fn until<T>(end: Instant, attempt: impl AsyncFn() -> Result<T, String>) -> Result<T, String> {
    loop {
        match attempt().await {
            Err(_) if Instant::now() < end => sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

fn objects(name: &str, options: &ClusterTest) -> [Value; 2] {
    let labels = json!({
        "app.kubernetes.io/name": "guideway-test", "app.kubernetes.io/instance": name,
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": options.load_balancer_class,
            "selector": labels, "ports": [{"name": "http", "port": 80}],
        },
    });
    let container = json!({
        "name": "web", "image": options.image, "ports": [{"containerPort": 80}],
        "readinessProbe": {"tcpSocket": {"port": 80}},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": REPLICAS, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"automountServiceAccountToken": false, "containers": [container]},
            },
        },
    });
    [service, deployment]
}
