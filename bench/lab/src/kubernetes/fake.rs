//! An API server in this process. It produces faults that a real one cannot be made to produce, and serves
//! recorded lists and watches of any size.
//!
//! ```text
//!   put, delete --> store (objects, log of changes) --> list: pages --------+
//!                                 |                                         +--> faults --> client
//!                                 +-------------------> watch: log, live ---+
//! ```
//!
//! It serves get, list by pages, and watch, with label selectors, over plain HTTP. It does not validate
//! objects. It uses no HTTP library, because no library can produce faults below its own level.

mod http;
mod store;
mod watch;

use std::{
    collections::BTreeMap,
    io::{self, BufReader},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use nix::sys::socket;
use serde_json::{Value, json};

use self::{http::Request, store::Store};
use super::KUBECONFIG;
use crate::{Namespace, Result};

/// Port on a machine's loopback.
const PORT: u16 = 6480;

/// A fault in the answers about a kind of objects. It lasts until it is lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Requests get no answer, and open watches are silent.
    Silent,
    /// Requests get this status, 429 with `Retry-After`. Open watches go on.
    Refused(u16),
    /// Watches from any version but the newest get 410.
    Expired,
    /// Watches send every event twice.
    Doubled,
    /// Watches hold events back. When the fault is lifted, they send them, newest first.
    Reversed,
}

/// A single fault of all open watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneTimeFault {
    /// An error event says that the version is too old, and the stream ends.
    Gone,
    /// The next event is cut off, and the connection ends.
    Cut,
    /// The next event is cut off, and the stream ends correctly.
    Torn,
    /// The next event is not valid JSON; the stream goes on.
    Garbled,
    /// The connection ends without an event.
    Reset,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Get one object.
    Get,
    /// Get a page of a list.
    List,
    /// Get the changes since a version.
    Watch,
}

/// A running server. On drop it ends with all its connections.
#[derive(Debug)]
pub struct FakeApiServer {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<TcpListener>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    faults: BTreeMap<String, Fault>,
    /// All one-time faults so far, by resource. A new watch skips the earlier ones.
    one_time_faults: BTreeMap<String, Vec<OneTimeFault>>,
    /// How often [`Fault::Reversed`] was lifted, by resource.
    reversals: BTreeMap<String, usize>,
    asked: Vec<(String, Verb, Instant)>,
    connections: Vec<TcpStream>,
    has_ended: bool,
}

impl FakeApiServer {
    /// Creates a server that does not listen yet.
    #[expect(
        clippy::new_without_default,
        reason = "what is made is a running server"
    )]
    pub fn new() -> Self {
        Self {
            shared: Arc::default(),
            listeners: Mutex::default(),
        }
    }

    /// Listens on a machine's loopback and writes a kubeconfig for it into the machine's files. Returns the
    /// kubeconfig's path.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`], for example when the server listens there already.
    pub fn serve(&self, machine: &Namespace) -> Result<PathBuf> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let failed = |source| machine.error(format!("listen on {address}"), source);
        let listener = machine.run(|| TcpListener::bind(address)).map_err(failed)?;
        let shared = Arc::clone(&self.shared);
        let accepting = listener.try_clone().map_err(failed)?;
        thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                let shared = Arc::clone(&shared);
                // An error means that the client went away, which is normal.
                thread::spawn(move || _ = shared.serve_connection(stream));
            }
        });
        lock(&self.listeners).push(listener);
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "fake", "user": {}}],
        });
        machine.write_file(KUBECONFIG, kubeconfig.to_string())
    }

    /// Creates or replaces an object. It needs `apiVersion`, `kind` and `metadata`; the server sets its version.
    ///
    /// # Panics
    ///
    /// When one of these is missing.
    pub fn put(&self, object: Value) {
        lock(&self.shared.state).store.put(object);
        self.shared.changed.notify_all();
    }

    /// Deletes an object if it exists. `namespace` is empty for cluster-wide objects.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        lock(&self.shared.state)
            .store
            .delete(resource, namespace, name);
        self.shared.changed.notify_all();
    }

    /// Forgets the changes so far. A watch from an older version gets 410.
    pub fn compact(&self) {
        lock(&self.shared.state).store.compact();
    }

    /// Sets a fault for a resource, such as `endpointslices`.
    pub fn set_fault(&self, resource: &str, fault: Fault) {
        let faults = &mut lock(&self.shared.state).faults;
        faults.insert(resource.to_owned(), fault);
        self.shared.changed.notify_all();
    }

    /// Removes the fault of a resource. Waiting requests get their answers.
    pub fn lift(&self, resource: &str) {
        let mut state = lock(&self.shared.state);
        if state.faults.remove(resource) == Some(Fault::Reversed) {
            *state.reversals.entry(resource.to_owned()).or_default() += 1;
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Causes a one-time fault in all open watches of a resource.
    pub fn strike(&self, resource: &str, fault: OneTimeFault) {
        let faults = &mut lock(&self.shared.state).one_time_faults;
        faults.entry(resource.to_owned()).or_default().push(fault);
        self.shared.changed.notify_all();
    }

    /// Returns the times of the requests for a resource, oldest first.
    pub fn asked(&self, resource: &str, verb: Verb) -> Vec<Instant> {
        let state = lock(&self.shared.state);
        let same = |(what, how, _): &&(String, Verb, Instant)| what == resource && *how == verb;
        let asked = state.asked.iter().filter(same);
        asked.map(|(_, _, at)| *at).collect()
    }
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        for listener in lock(&self.listeners).iter() {
            // Wakes the thread that waits for a connection, with an error.
            let _ = socket::shutdown(listener.as_raw_fd(), socket::Shutdown::Both);
        }
        let mut state = lock(&self.shared.state);
        state.has_ended = true;
        for connection in &state.connections {
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Answers the requests of a connection one after the other.
    fn serve_connection(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        {
            let mut state = lock(&self.state);
            if state.has_ended {
                return Ok(());
            }
            state.connections.push(stream.try_clone()?);
        }
        let mut requests = BufReader::new(stream.try_clone()?);
        while let Some(request) = Request::read(&mut requests)? {
            self.answer(&request, &stream)?;
        }
        Ok(())
    }

    fn answer(&self, request: &Request, stream: &TcpStream) -> io::Result<()> {
        let verb = match request {
            Request { name: Some(_), .. } => Verb::Get,
            request if request.option("watch") == Some("true") => Verb::Watch,
            _ => Verb::List,
        };
        let mut state = lock(&self.state);
        let asked = (request.resource.clone(), verb, Instant::now());
        state.asked.push(asked);
        while state.fault(&request.resource) == Some(Fault::Silent) {
            if state.has_ended {
                return Ok(());
            }
            state = self.wait(state);
        }
        let is_old = || request.number("resourceVersion") < Some(state.store.version());
        let refused = match state.fault(&request.resource) {
            Some(Fault::Refused(status)) => Some(status),
            Some(Fault::Expired) if verb == Verb::Watch && is_old() => Some(410),
            _ => None,
        };
        if let Some(status) = refused {
            drop(state);
            return http::refuse(stream, status);
        }
        match verb {
            Verb::Get => match state.store.get(request) {
                Some(object) => http::answer(stream, &object),
                None => http::refuse(stream, 404),
            },
            Verb::List => {
                let list = state.store.list(request);
                drop(state);
                http::answer(stream, &list)
            }
            Verb::Watch => {
                drop(state);
                self.watch(request, stream)
            }
        }
    }

    fn wait<'state>(&self, state: MutexGuard<'state, State>) -> MutexGuard<'state, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fault(&self, resource: &str) -> Option<Fault> {
        self.faults.get(resource).copied()
    }

    fn reversals(&self, resource: &str) -> usize {
        self.reversals.get(resource).copied().unwrap_or_default()
    }
}

/// Takes a lock, also after a panic: the guarded data is consistent after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
