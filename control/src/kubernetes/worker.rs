//! Threads that the agent cannot do without: whoever started them is told when one ends.
//!
//! None of them ends by itself. One that panicked would leave an agent that looks alive and follows nothing;
//! ended with an error, it is started again, and the tables serve meanwhile.

use std::io;
use std::ops::Deref;
use std::thread;

use kube::Client;
use tokio::runtime::{Builder, Runtime};

use super::{FollowError, client};

/// An event loop that may be dropped within another one, where something else fails before its thread starts.
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

/// Calls back when it goes, be it by a panic.
struct Alarm<F: FnMut(&'static str)> {
    name: &'static str,
    ended: F,
}

impl<F: FnMut(&'static str)> Drop for Alarm<F> {
    fn drop(&mut self) {
        (self.ended)(self.name);
    }
}

/// A thread that speaks to the API, before it starts.
pub(super) struct Worker {
    runtime: EventLoop,
    client: Client,
}

impl Worker {
    /// Makes the event loop, and the client that works in it; no packet is sent for them.
    pub(super) fn new(server: kube::Config) -> Result<Self, FollowError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let runtime = EventLoop(Some(runtime));
        let client = {
            let _context = runtime.enter();
            client::client(server)?
        };
        Ok(Self { runtime, client })
    }

    /// Starts the thread; `ended` is called with its name when its work is over, for whatever reason, and not if the
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
