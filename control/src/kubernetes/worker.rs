//! Threads that the agent depends on. Their starter is told when one ends.
//!
//! None of them ends by itself. If one panicked unnoticed, the agent would look alive and follow nothing.
//! Instead the agent ends with an error and is started again; the tables go on serving meanwhile.

use std::io;
use std::ops::Deref;
use std::thread;

use kube::Client;
use tokio::runtime::{Builder, Runtime};

use super::{FollowError, client};

/// A runtime that may be dropped inside another one, which happens if something fails before its thread starts.
struct EventLoop(Option<Runtime>);

impl Deref for EventLoop {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("only a drop takes it out")
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Calls `ended` when dropped, also by a panic.
struct Alarm<F: FnMut(&'static str)> {
    name: &'static str,
    ended: F,
}

impl<F: FnMut(&'static str)> Drop for Alarm<F> {
    fn drop(&mut self) {
        (self.ended)(self.name);
    }
}

/// A thread that talks to the API, before it starts.
pub(super) struct Worker {
    runtime: EventLoop,
    client: Client,
}

impl Worker {
    /// Makes the runtime and its client. Sends nothing.
    pub(super) fn new(server: kube::Config) -> Result<Self, FollowError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let runtime = EventLoop(Some(runtime));
        let client = {
            let _context = runtime.enter();
            client::client(server)?
        };
        Ok(Self { runtime, client })
    }

    /// Starts the thread. `ended` is called with its name when its work ends for any reason, but not if the
    /// thread cannot be started.
    pub(super) fn start<W: Future<Output = ()>>(
        self,
        name: &'static str,
        ended: impl FnMut(&'static str) + Send + 'static,
        work: impl FnOnce(Client) -> W + Send + 'static,
    ) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(move || {
            let _alarm = Alarm { name, ended };
            let Self { runtime, client } = self;
            runtime.block_on(work(client));
        })?;
        Ok(())
    }
}
