//! `guideway run`: starts the agent's thread and everything that feeds it.

use std::future::{pending, ready};
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, anyhow};
use futures_util::FutureExt;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use crate::agent::{Agent, Command, Handle};
use crate::api::server::Socket;
use crate::config::{HealthCheckNodePorts, Listen, Peers, PeersFound, Source};
use crate::kubernetes::{Watchers, leases};
use crate::peers::{Exchange, Key, PeerStates};
use crate::{cli, config, file_watch, healthz, http, log};

/// Runs the agent until a signal or `guideway detach` ends it.
///
/// # Errors
///
/// When the configuration is invalid, another agent runs, or the dataplane cannot be set up.
pub fn run(options: &cli::Run) -> Result<()> {
    log::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    // First of all, because SIGHUP ends a process that does not handle it.
    let signals = {
        let _context = runtime.enter();
        Signals::new().context("cannot handle signals")?
    };
    let path = &options.config;
    // Before the file is parsed, so that the watch notices every later change.
    let content = config::read(path).ok();
    let source = if options.kubernetes {
        Source::Kubernetes
    } else {
        Source::File
    };
    let config = config::load(path, source)?;
    runtime.block_on(serve(path, content, config, signals))
}

async fn serve(
    path: &Path,
    content: Option<Vec<u8>>,
    config: config::Config,
    mut signals: Signals,
) -> Result<()> {
    // Everything that another process may have taken comes before the dataplane is touched.
    let socket = Socket::bind(&config.socket)?;
    let metrics = listeners(config.metrics, "metrics.listen").await?;

    let (mut watchers, mut healthz) = (None, Vec::new());
    if let Some(options) = &config.kubernetes {
        watchers = Some(Watchers::new(options.clone()).await?);
        healthz = listeners(options.healthz, "kubernetes.healthz").await?;
    }
    let exchange = match config.peers.as_ref().filter(|_| config.desired.edge) {
        Some(peers) => Some(exchange(peers, watchers.as_ref()).await?),
        None => None,
    };
    let health_check_ports = config.kubernetes.as_ref();
    let health_check_ports = health_check_ports.map(|options| options.health_check_node_port);
    let (commands, received) = mpsc::channel();
    let announces = config.desired.announce.is_some();
    let states = exchange.as_ref().map(|exchange| exchange.states.clone());
    let mut agent = Agent::start(path, config, watchers.as_ref().map(Watchers::feed), states)?;
    let handle = Handle::new(commands, agent.waker());
    let (lose, mut lost) = unbounded_channel::<&'static str>();
    let ended = move |thread| {
        // The receiver is gone only when the process ends.
        let _ = lose.send(thread);
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(log::follow_signals().context("cannot handle signals")?);
    if let Some(watchers) = watchers {
        if announces {
            let (announced, heard) = agent.elect();
            let told = handle.clone();
            let tell = move |result| told.send(Command::Announce(result));
            leases::start(&watchers, announced, heard, tell, ended.clone())?;
        }
        let (told, reports) = (handle.clone(), watchers.feed().reports().clone());
        for listener in healthz {
            tasks.spawn(healthz::server::serve(listener, reports.clone()));
        }
        // Only if switched on: else it would end at once and count as broken.
        if let Some(mode) = health_check_ports.filter(|mode| *mode != HealthCheckNodePorts::Off) {
            tasks.spawn(healthz::ports::serve(mode, reports));
        }
        let changed = move || told.send(Command::State);
        watchers.start(agent.inherited_nodes(), changed, ended)?;
    }
    let (begin, begun) = oneshot::channel();
    match exchange.zip(agent.own_edge(handle.clone())) {
        Some((exchange, mut edge)) => {
            let told = handle.clone();
            tasks.spawn(async move {
                edge.owners.programmed().await;
                let begun = move || {
                    told.send(Command::PastTaken);
                    // The receiver is gone only when the process ends.
                    let _ = begin.send(());
                };
                exchange.run(edge, begun).await;
            });
        }
        None => drop(begin.send(())),
    }
    let health = agent.health();
    let observer = agent.observer(handle.clone())?;
    let (end, mut end_of_agent) = oneshot::channel::<()>();
    let thread = thread::Builder::new()
        .name("agent".to_owned())
        .spawn(move || {
            let outcome = agent.run(&received);
            drop(end);
            outcome
        })
        .context("cannot start the agent's thread")?;

    let asked = observer.clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let mut api = JoinSet::new();
    api.spawn(socket.serve(
        move |request| {
            let observer = asked.clone();
            async move { observer.answer(request).await }
        },
        async move {
            let _ = stopped.await;
        },
    ));
    for listener in metrics {
        let observer = observer.clone();
        tasks.spawn(http::serve_pages(listener, move |path| {
            let observer = observer.clone();
            async move { observer.page(&path).await }
        }));
    }
    let turned = handle.clone();
    tasks.spawn(async move { health.run(|| turned.send(Command::Health)).await });
    let reloaded = handle.clone();
    tasks.spawn(file_watch::changes(path.to_owned(), content, move || {
        reloaded.send(Command::Reload {
            cause: "file changed",
        });
    }));

    let mut outcome = Ok(());
    let mut begun = pin!(begun.fuse());
    loop {
        // If a part panicked, the agent would look alive without it. It ends instead, and is started again.
        let broken = tokio::select! {
            _ = &mut end_of_agent => break,
            _ = &mut begun => {
                tell_systemd();
                continue;
            }
            broken = breakage(&mut lost, [&mut tasks, &mut api]) => broken,
            cause = signals.next() => {
                match cause {
                    Asked::Reload => handle.send(Command::Reload { cause: "SIGHUP" }),
                    Asked::Stop(signal) => {
                        tracing::info!(signal, "ending; everything stays attached");
                        handle.send(Command::Stop);
                    }
                }
                continue;
            }
        };
        outcome =
            Err(broken.context("a part of the agent broke off; the dataplane serves as it is"));
        handle.send(Command::Stop);
    }
    // Answers that are being written are completed, such as that to a detach.
    drop(stop);
    let _ = api.join_next().await;
    thread
        .join()
        .map_err(|_| anyhow!("the agent's thread panicked"))?
        .context("the agent cannot go on; the dataplane serves as it is")?;
    outcome
}

/// Tells systemd that the start is complete.
fn tell_systemd() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell systemd that the agent serves");
    }
}

/// Prepares the exchange of owners with other edges.
async fn exchange(peers: &Peers, watchers: Option<&Watchers>) -> Result<Exchange> {
    let states = PeerStates::new();
    let key = match (&peers.found, watchers) {
        (PeersFound::InCluster { .. }, Some(watchers)) => {
            let (waits, comes) = (states.clone(), states.clone());
            let key = watchers.peers_key(move |reason| waits.note_missing_key(Some(reason)))?;
            key.inspect(move |_| comes.note_missing_key(None)).boxed()
        }
        (PeersFound::InFile { key_file, .. }, _) => {
            let key = Key::read(key_file).context("cannot exchange owners with other edges")?;
            ready(key).boxed()
        }
        // The section for a cluster is read only where services come from it.
        (PeersFound::InCluster { .. }, None) => pending().boxed(),
    };
    let key = key.shared();
    // What an edge without a past waits for is not the key alone: it is fetched while the tables are filled.
    tokio::spawn(key.clone());
    Ok(Exchange {
        key,
        listeners: listeners(peers.listen, "peers.listen").await?,
        states,
    })
}

/// Opens the listeners that a field of the configuration asks for.
async fn listeners(listen: Option<Listen>, field: &'static str) -> Result<Vec<TcpListener>> {
    let Some(listen) = listen else {
        return Ok(Vec::new());
    };
    let addresses = std::env::var(Listen::NODE_ADDRESSES).ok();
    let sockets = listen
        .sockets(addresses.as_deref())
        .with_context(|| format!("cannot listen as {field} says"))?;
    let mut listeners = Vec::new();
    for socket in sockets {
        listeners.push(http::listen(socket, field).await?);
    }
    Ok(listeners)
}

/// Waits until a thread or task ends that should not. Returns the reason.
async fn breakage(
    lost: &mut UnboundedReceiver<&'static str>,
    [tasks, api]: [&mut JoinSet<()>; 2],
) -> anyhow::Error {
    tokio::select! {
        Some(thread) = lost.recv() => anyhow!("the thread {thread} has ended"),
        Some(ended) = tasks.join_next() => why(ended),
        Some(ended) = api.join_next() => why(ended),
        // No thread or task is left to wait for.
        else => pending().await,
    }
}

fn why(ended: Result<(), JoinError>) -> anyhow::Error {
    match ended {
        Ok(()) => anyhow!("a task has ended"),
        Err(error) => error.into(),
    }
}

enum Asked {
    Reload,
    Stop(&'static str),
}

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.hangup.recv() => Asked::Reload,
            _ = self.terminate.recv() => Asked::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Asked::Stop("SIGINT"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_that_panics_or_ends_breaks_the_agent_and_says_so() {
        let (_lose, mut lost) = unbounded_channel();
        let (mut tasks, mut api) = (JoinSet::new(), JoinSet::new());
        tasks.spawn(pending());
        api.spawn(async { panic!("on purpose") });
        let broken = breakage(&mut lost, [&mut tasks, &mut api])
            .await
            .to_string();
        assert!(
            broken.contains("panicked") && broken.contains("on purpose"),
            "{broken}"
        );

        tasks.spawn(async {});
        let broken = breakage(&mut lost, [&mut tasks, &mut api])
            .await
            .to_string();
        assert_eq!(broken, "a task has ended");
    }

    #[tokio::test]
    async fn thread_that_ends_breaks_the_agent_and_is_named() {
        let (lose, mut lost) = unbounded_channel();
        let (mut tasks, mut api) = (JoinSet::new(), JoinSet::new());
        tasks.spawn(pending());
        lose.send("index").unwrap();
        let broken = breakage(&mut lost, [&mut tasks, &mut api])
            .await
            .to_string();
        assert_eq!(broken, "the thread index has ended");
    }
}
