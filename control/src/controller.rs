//! `guideway controller` assigns load-balancer addresses to the Services of the whole cluster.
//!
//! ```text
//! watch (Services, pools, Nodes, EndpointSlices, Namespaces) -> convert -> planner -> allocate (pure) -> status -> API server
//!       (Leases of edges) -> announcements (who announces what) --------------^
//!                                        lease (who acts) --------------------+          secrets (made once)
//! ```
//!
//! Of several controllers one leads, by a Lease; only it writes. The others watch too, so that one of them can
//! take over at once. Beyond what the API server has, a leader knows only its own latest decisions that it has
//! not yet seen written.
//!
//! A pool's status counts an address before a Service gets it. That write fails if the pool has changed
//! meanwhile. So a rule of the custom resource, which the API server itself checks, can refuse to make a pool
//! smaller than its use, even while no controller runs.
//!
//! A pool has a finalizer while its addresses are in use (`deletion`), so that it cannot be deleted under them.
//! Services get no finalizer: nothing outside the API server needs cleaning up, and without a controller they
//! could not be deleted.

mod address_range;
mod allocate;
mod announcements;
mod convert;
pub mod crd;
mod deletion;
mod lease;
mod metrics;
mod object_cache;
mod objects;
mod pending_event;
mod planner;
mod pool_status;
mod reconcile;
mod refusal;
mod secrets;
mod selector;
mod service_status;
mod unclaimed;
mod write;
mod write_scheduler;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch as channel};
use tokio::task::JoinSet;

use self::convert::Classes;
use self::lease::{Candidate, LeadershipTerm};
use self::metrics::Values;
use crate::api::Reply;
use crate::api::server::line;
use crate::http::{self, Answer};
use crate::kubernetes::client;
use crate::kubernetes::request_errors::RequestErrors;
use crate::kubernetes::schema::Lease;
use crate::metrics::page as metrics_page;
use crate::{cli, commands, log};

/// Name of this writer in the API server's field ownership and in Events.
const MANAGER: &str = "guideway-controller";

/// Runs the controller until a signal ends it, or prints the custom resource definition.
///
/// # Errors
///
/// When the API server cannot be found, or the address for metrics is in use.
pub fn run(options: &cli::Controller) -> Result<()> {
    if options.print_crds {
        return commands::print(&crd::definition()?);
    }
    log::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(serve(options))
}

async fn serve(options: &cli::Controller) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    let mut logging = JoinSet::new();
    logging.spawn(log::follow_signals().context("cannot handle signals")?);
    let config = client::infer().await?;
    let server = config.cluster_url.to_string();
    let api_server = client::addresses(&config).await;
    let api_server = api_server.iter().map(|socket| socket.ip()).collect();
    let client = client::client(config)?;
    let namespace = client::namespace(options.namespace.clone());
    let identity = identity();
    tracing::info!(server, namespace, identity, "starting");

    let (term, terms) = channel::channel(LeadershipTerm::default());
    let (values, shown) = channel::channel(Values::default());
    let request_errors = RequestErrors::of_controller();
    let mut pages = JoinSet::new();
    if let Some(address) = options.metrics {
        let listener = http::listen(address, "--metrics").await?;
        let (terms, request_errors) = (terms.clone(), request_errors.clone());
        pages.spawn(http::serve_pages(listener, move |path| {
            let values = Values {
                leads: terms.borrow().is_leading(),
                failed_requests: request_errors.by_name(),
                ..shown.borrow().clone()
            };
            std::future::ready(page(&path, values))
        }));
    }

    let duration = Duration::from_secs(options.lease_duration.into());
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let candidate = Candidate::new(leases, identity, duration, request_errors.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let mut election = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        candidate.run(&term, stopped).await;
    });

    let scope = reconcile::ControllerScope {
        namespace: namespace.clone(),
        service: options.service.clone(),
        lease_namespace: client::lease_namespace(options.lease_namespace.clone(), &options.service),
        api_server,
        classes: Classes {
            class: options.load_balancer_class.clone(),
            default: options.default_class,
            external_ips: options.external_ips.iter().copied().collect(),
        },
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let writer = write::Writer::new(
        client.clone(),
        terms.clone(),
        Candidate::write_timeout(duration),
        request_errors,
    );
    let working = reconcile::follow(client, scope, secrets, writer, terms, values);
    let signal = tokio::select! {
        never = working => match never {},
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        Some(ended) = pages.join_next() => return Err(anyhow!("the metrics are not served any more: {ended:?}")),
        ended = &mut election => return Err(anyhow!("the election has ended: {ended:?}")),
    };
    tracing::info!(signal, "ending; addresses stay as they are");
    drop(stop);
    let _ = election.await;
    Ok(())
}

/// Returns an identity that no other process has.
fn identity() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname");
    let unique = read("/proc/sys/kernel/random/uuid");
    format!("{}_{}", host.trim(), unique.trim())
}

fn page(path: &str, values: Values) -> Answer {
    match path {
        "/status" => http::json(line(&Reply::Ok(values.status()))),
        "/metrics" => metrics_page(crate::metrics::render(values).ok()),
        // The task that answers also does the work, so an answer proves that it runs.
        "/healthz" | "/livez" => http::text(StatusCode::OK, "ok\n"),
        "/readyz" if values.missing.is_empty() => http::text(StatusCode::OK, "ok\n"),
        "/readyz" => {
            let missing = values.missing.join(", ");
            let text = format!("waiting for the list of {missing}\n");
            http::text(StatusCode::SERVICE_UNAVAILABLE, text)
        }
        _ => http::text(
            StatusCode::NOT_FOUND,
            "try /metrics, /status, /livez or /readyz\n",
        ),
    }
}
