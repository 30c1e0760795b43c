//! The commands that ask the agent, and print its answers.

pub mod capture;
pub mod drain;
mod output;
pub mod sample;
pub mod show;

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use self::output::formatted;
pub(crate) use self::output::width_of;
pub use self::output::{is_closed_pipe, json, print, print_page};
use self::sample::{Answer, Counted};
use self::show::Columns;
use crate::api::client::{self, AskError, ask};
use crate::api::{
    AtAddress, Detached, FlowFilter, Flows, Request, Service, ServiceFilter, Status, Trace,
    TraceRequest, Which, WhichRequest,
};
use crate::cli::{self, Format, LogLevel, Output};
use crate::desired::ServiceKey;
use crate::render::Page;
use fastpath::mend;
use fastpath::pins::Pins;

/// Time between the two samples of a rate.
const SAMPLE_PAUSE: Duration = Duration::from_secs(1);

/// One of several answers, with its time.
#[derive(Serialize)]
struct Stamped<'a, T> {
    timestamp: String,
    answer: &'a T,
}

/// Prints an answer once, or repeatedly.
///
/// # Errors
///
/// When the agent does not answer, or the output cannot be written.
pub fn show<T: Answer>(
    options: &cli::Show,
    request: &Request,
    page: impl Fn(&T, &mut Page),
) -> Result<()> {
    let page = |answer: Cow<'_, T>, to: &mut Page| page(&answer, to);
    show_sampled(options, request, false, |_| {}, page)
}

/// Prints rows in the requested order, once or repeatedly.
///
/// # Errors
///
/// When the agent does not answer, or the output cannot be written.
pub fn show_rows<R: Counted>(
    options: &cli::Rows,
    request: &Request,
    page: impl Fn(Cow<'_, [R]>, Columns, &mut Page),
) -> Result<()> {
    let columns = Columns {
        is_wide: options.show.format.output() == Output::Wide,
        stats: options.stats,
    };
    let arrange = |rows: &mut Vec<R>| {
        if let Some(by) = options.sort {
            sample::sort_rows(rows, by);
        }
    };
    #[expect(
        clippy::owned_cow,
        reason = "the answer is a Vec, whose rows the page is to free"
    )]
    let page = |rows: Cow<'_, Vec<R>>, to: &mut Page| match rows {
        Cow::Owned(rows) => page(rows.into(), columns, to),
        Cow::Borrowed(rows) => page(rows.into(), columns, to),
    };
    show_sampled(&options.show, request, options.needs_rates(), arrange, page)
}

fn show_sampled<T: Answer>(
    options: &cli::Show,
    request: &Request,
    needs_rates: bool,
    arrange: impl Fn(&mut T),
    page: impl Fn(Cow<'_, T>, &mut Page),
) -> Result<()> {
    let socket = options.agent.socket()?;
    let output = options.format.output();
    let interval = options
        .watch
        .map(|seconds| Duration::from_secs(seconds.into()));
    let mut before: Option<(T, Instant)> = None;
    loop {
        let asked = Instant::now();
        let mut answer: T = ask(&socket, request)?;
        if let Some((before, at)) = &before {
            answer.set_rates(before, asked.duration_since(*at));
        }
        let is_first_of_two = needs_rates && before.is_none();
        if !is_first_of_two || interval.is_some() {
            arrange(&mut answer);
            match options.watch {
                // A page frees the rows of an answer that it owns while it formats them.
                None if matches!(output, Output::Table | Output::Wide) => {
                    return print_page(|to| page(Cow::Owned(answer), to));
                }
                None => return print(&written(&answer, output, |_, _| {})?),
                Some(seconds) => print(&watched(&answer, output, seconds, &page)?)?,
            }
        }
        before = Some((answer, asked));
        std::thread::sleep(interval.unwrap_or(SAMPLE_PAUSE));
    }
}

/// Formats a single answer.
pub(crate) fn written<T: Serialize>(
    answer: &T,
    output: Output,
    page: impl Fn(&T, &mut Page),
) -> Result<String> {
    match output {
        Output::Table | Output::Wide => Ok(formatted(|to| page(answer, to))),
        Output::Json => json(answer, true),
        Output::Yaml => Ok(serde_saphyr::to_string(answer)?),
    }
}

/// Formats one of several answers: a screen, a line of JSON, or a YAML document.
fn watched<T: Serialize + Clone>(
    answer: &T,
    output: Output,
    seconds: u32,
    page: impl Fn(Cow<'_, T>, &mut Page),
) -> Result<String> {
    let stamped = Stamped {
        timestamp: Timestamp::now().to_string(),
        answer,
    };
    match output {
        Output::Table | Output::Wide => {
            let page = formatted(|to| page(Cow::Borrowed(answer), to));
            Ok(screen(seconds, &page))
        }
        Output::Json => json(&stamped, false),
        Output::Yaml => Ok(format!("---\n{}", serde_saphyr::to_string(&stamped)?)),
    }
}

/// Returns a page to be shown on a cleared screen. Without a terminal, pages follow each other.
fn screen(seconds: u32, page: &str) -> String {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let clear = if io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    format!("{clear}every {seconds} s, end with Ctrl-C\n\n{page}\n")
}

/// Prints which backend a flow gets.
///
/// # Errors
///
/// When the agent does not answer, or has no such service.
pub fn which(options: &cli::Which) -> Result<()> {
    let socket = options.agent.socket()?;
    let (Some(service), Some(from)) = (&options.service, options.from) else {
        return which_address(&socket, options);
    };
    let service = resolve(&socket, service, options.namespace.as_ref(), Some(from))?;
    let request = Request::Which(WhichRequest {
        service: service.to_string(),
        from: from.to_string(),
    });
    let which: Which = ask(&socket, &request)?;
    print_answer(&which, options.format, show::which)
}

/// Prints what this machine has at an address.
fn which_address(socket: &Path, options: &cli::Which) -> Result<()> {
    let address = options
        .address
        .context("give a service and a client, or an address")?;
    let filter = ServiceFilter {
        service: Some(address.to_string()),
        ..ServiceFilter::default()
    };
    let services: Vec<Service> = ask(socket, &Request::Services(filter))?;
    let status: Status = ask(socket, &Request::Status {})?;
    let is_announced = status.announced.addresses.contains(&address);
    let at = AtAddress {
        address,
        services: services.into_iter().map(|row| row.name).collect(),
        announced_on: match is_announced {
            true => status.announced.interfaces,
            false => Vec::new(),
        },
    };
    print_answer(&at, options.format, show::at_address)
}

/// Prints the path of one packet through the datapath's code.
///
/// # Errors
///
/// When the agent does not answer, or the frame cannot be read.
pub fn trace(options: &cli::Trace) -> Result<()> {
    let socket = options.agent.socket()?;
    let service = options
        .service
        .as_ref()
        .map(|service| resolve(&socket, service, options.namespace.as_ref(), options.from));
    let request = Request::Trace(TraceRequest {
        service: service.transpose()?.map(|service| service.to_string()),
        from: options.from.map(|from| from.to_string()),
        frame: options.hex.clone(),
        interface: options.interface.clone(),
    });
    let trace: Trace = ask(&socket, &request)?;
    print_answer(&trace, options.format, show::trace)
}

/// Returns the key of the only service with a name, in the client's address family if there is a client.
fn resolve(
    socket: &Path,
    service: &str,
    namespace: Option<&String>,
    from: Option<SocketAddr>,
) -> Result<ServiceKey> {
    if let (Ok(key), None) = (service.parse(), namespace) {
        return Ok(key);
    }
    let keys = keys_of(socket, service, namespace, from)?;
    only_one(&keys).with_context(|| {
        format!(
            "{service} is served at several; name one of {}",
            listed(&keys)
        )
    })
}

/// Returns the only key at which clients are served.
fn only_one(keys: &[ServiceKey]) -> Option<ServiceKey> {
    // `0.0.0.0` of a NodePort is for packets that come with an outer header.
    let (any, of_clients): (Vec<_>, Vec<_>) =
        keys.iter().partition(|key| key.address.is_unspecified());
    match (of_clients.as_slice(), any.as_slice()) {
        ([one], _) | ([], [one]) => Some(*one),
        _ => None,
    }
}

/// Returns the keys that a name stands for, at least one.
fn keys_of(
    socket: &Path,
    service: &str,
    namespace: Option<&String>,
    from: Option<SocketAddr>,
) -> Result<Vec<ServiceKey>> {
    let filter = ServiceFilter {
        service: Some(service.to_owned()),
        namespace: namespace.cloned(),
        ..ServiceFilter::default()
    };
    let rows: Vec<Service> = ask(socket, &Request::Services(filter))?;
    let keys = rows.iter().filter_map(|row| {
        let key: ServiceKey = row.service.parse().ok()?;
        Some((key, row.node_port))
    });
    let of_family =
        keys.filter(|(key, _)| from.is_none_or(|from| key.address.is_ipv4() == from.is_ipv4()));
    // The name of a Service stands for its own address. Its NodePorts count only if it has no address.
    let (ports, own): (Vec<_>, Vec<_>) = of_family.partition(|(_, node_port)| *node_port);
    let found = if own.is_empty() { ports } else { own };
    if found.is_empty() {
        let lacks = from.map_or("is here", |_| "has an address of the client's family");
        bail!("no service {service} {lacks}; `guideway services` lists all")
    }
    Ok(found.into_iter().map(|(key, _)| key).collect())
}

/// Lists services in a line.
fn listed(keys: &[ServiceKey]) -> String {
    let keys: Vec<String> = keys.iter().map(ServiceKey::to_string).collect();
    keys.join(", ")
}

/// Prints the flows that the machine knows.
///
/// # Errors
///
/// When the agent does not answer.
pub fn flows(options: &cli::Flows) -> Result<()> {
    let request = Request::Flows(FlowFilter {
        services: ServiceFilter {
            service: options.service.clone(),
            namespace: options.namespace.clone(),
            connections: false,
        },
        client: options.client,
        backend: options.backend,
        limit: usize::try_from(options.limit)?,
    });
    let flows: Flows = ask(&options.agent.socket()?, &request)?;
    print_answer(&flows, options.format, show::flows)
}

/// Prints the settings in force.
///
/// # Errors
///
/// When the agent does not answer.
pub fn config(options: &cli::Settings) -> Result<()> {
    let settings: serde_json::Value = ask(&options.agent.socket()?, &Request::Config {})?;
    let output = match options.format.output() {
        Output::Table | Output::Wide => Output::Yaml,
        other => other,
    };
    print(&written(&settings, output, |_, _| {})?)
}

/// Prints the version of this program and that of the running agent.
///
/// # Errors
///
/// When an agent runs but does not answer.
pub fn version(options: &cli::Settings) -> Result<()> {
    let agent = match ask(&options.agent.socket()?, &Request::Status {}) {
        Ok(status) => Some(status),
        Err(AskError::NotRunning { .. } | AskError::Denied { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let agent = agent.map(|status: Status| status.version);
    let versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        agent,
    };
    print_answer(&versions, options.format, |versions, page| {
        page.line(&format!("client  {}", versions.client));
        let agent = versions.agent.as_deref().unwrap_or("none answers");
        page.line(&format!("agent   {agent}"));
    })
}

/// The versions of this program and of the running agent.
#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    agent: Option<String>,
}

/// Makes an agent or a controller log more, or as configured again.
///
/// # Errors
///
/// When no agent answers, or the process cannot be signalled.
pub fn log(options: &cli::Log) -> Result<()> {
    let pid = match options.pid {
        Some(pid) => Pid::from_raw(pid),
        None => client::process(&options.agent.socket()?)?,
    };
    let signal = match options.level {
        LogLevel::Debug => Signal::SIGUSR1,
        LogLevel::Default => Signal::SIGUSR2,
    };
    kill(pid, signal).with_context(|| format!("cannot send {signal} to the process {pid}"))
}

/// Detaches the dataplane: through the agent, or directly if none runs.
///
/// # Errors
///
/// When something cannot be removed.
pub fn detach(options: &cli::Detach) -> Result<()> {
    let detached = match ask(&options.agent.socket()?, &Request::Detach {}) {
        Ok(detached) => detached,
        Err(AskError::NotRunning { .. }) => detach_pins(&options.pin_dir)?,
        Err(error) => return Err(error.into()),
    };
    print_answer(&detached, options.format, show::detached)
}

fn detach_pins(pin_dir: &Path) -> Result<Detached> {
    let interfaces = Pins::new(pin_dir)
        .remove_all()
        .with_context(|| format!("cannot remove the pins below {}", pin_dir.display()))?;
    mend::remove_pair()?;
    Ok(Detached { interfaces })
}

fn print_answer<T: Serialize>(answer: &T, format: Format, page: fn(&T, &mut Page)) -> Result<()> {
    print(&written(answer, format.output(), page)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only_one_of(keys: &[&str]) -> Option<String> {
        let keys: Vec<ServiceKey> = keys.iter().map(|key| key.parse().unwrap()).collect();
        only_one(&keys).map(|key| key.to_string())
    }

    #[test]
    fn node_port_by_name_is_that_of_the_machines_address() {
        let (any, own, other) = (
            "0.0.0.0:30080/tcp",
            "198.51.100.1:30080/tcp",
            "10.0.0.1:30080/tcp",
        );
        assert_eq!(only_one_of(&[any, own]).as_deref(), Some(own));
        assert_eq!(only_one_of(&[any]).as_deref(), Some(any));
        assert_eq!(only_one_of(&[any, own, other]), None);
        assert_eq!(only_one_of(&[any, "[::]:30080/tcp"]), None);
    }
}
