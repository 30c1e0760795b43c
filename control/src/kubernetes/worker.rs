//! Threads that the agent cannot do without: whoever started them is told when one ends.
//!
//! None of them ends by itself. One that panicked would leave an agent that looks alive and follows nothing;
//! ended with an error, it is started again, and the tables serve meanwhile.

use std::io;
use std::ops::Deref;
use std::thread;

use tokio::runtime::{Builder, Runtime};

/// The event loop of a thread that is about to be started.
///
/// Where something else fails first it is dropped within another event loop, which a plain runtime may not be.
pub(super) struct EventLoop(Option<Runtime>);

impl EventLoop {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    pub(super) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self(Some(runtime)))
    }
}

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

/// Starts a thread; `ended` is called with its name when its work is over, for whatever reason.
///
/// # Errors
///
/// When the thread cannot be started; nothing is called then.
pub(super) fn start(
    name: &'static str,
    ended: impl FnMut(&'static str) + Send + 'static,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        let _alarm = Alarm { name, ended };
        work();
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn end_of_a_thread_is_told_also_after_a_panic() {
        let works: [fn(); 2] = [|| {}, || panic!("on purpose")];
        for work in works {
            let (tell, told) = mpsc::channel();
            let ended = move |name| {
                let _ = tell.send(name);
            };
            start("tested", ended, work).unwrap();
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok("tested"));
        }
    }
}
