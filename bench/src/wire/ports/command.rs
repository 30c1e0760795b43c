//! Commands around a device under test.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use lab::wait_for;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, kill_process_group},
};

use crate::scenario::UnderTest;

/// How long a device may take until its check succeeds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The variable by which commands learn the name of the device.
const VARIABLE: &str = "GUIDEWAY_BENCH_SYSTEM";

/// Runs the commands of devices, one at a time. All clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Shell(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The process group of the command that runs.
    running: Option<Pid>,
    /// Whether the end has come: only commands that take a device down are run.
    is_closed: bool,
}

impl Shell {
    /// Brings a device up, and waits until its check succeeds.
    ///
    /// # Errors
    ///
    /// When a command fails, with what it wrote.
    pub(super) fn bring_up(&self, device: &UnderTest) -> Result<()> {
        if let Some(up) = &device.commands.up {
            self.run(up, &device.name)
                .with_context(|| format!("bringing {} up", device.name))?;
        }
        self.check(device)
    }

    /// Waits until the check of a device succeeds.
    ///
    /// # Errors
    ///
    /// When it fails for a minute, with what it wrote.
    pub(super) fn check(&self, device: &UnderTest) -> Result<()> {
        let Some(check) = &device.commands.check else {
            return Ok(());
        };
        let awaited = format!("the check of {} succeeds", device.name);
        let try_once = || self.run(check, &device.name);
        wait_for(&awaited, TIMEOUT, || {
            try_once().map_err(|error| format!("{error:#}"))
        })?;
        Ok(())
    }

    /// Takes a device down.
    ///
    /// # Errors
    ///
    /// As for [`Self::bring_up`].
    pub(super) fn take_down(&self, device: &UnderTest) -> Result<()> {
        match &device.commands.down {
            Some(down) => self
                .run(down, &device.name)
                .map(drop)
                .with_context(|| format!("taking {} down", device.name)),
            None => Ok(()),
        }
    }

    /// Ends the command that runs, and takes a device down. No other command is begun from then on.
    ///
    /// # Errors
    ///
    /// As for [`Self::bring_up`].
    pub(super) fn close(&self, device: Option<&UnderTest>) -> Result<()> {
        let running = {
            let mut state = self.state();
            state.is_closed = true;
            state.running.take()
        };
        if let Some(group) = running {
            // It may have ended since.
            let _ = kill_process_group(group, Signal::KILL);
        }
        device.map_or(Ok(()), |device| Self::default().take_down(device))
    }

    /// Returns what a command tells of a machine: nothing without one.
    ///
    /// # Errors
    ///
    /// As for [`Self::bring_up`].
    pub(super) fn ask(&self, command: Option<&str>, machine: &str) -> Result<String> {
        let told = command.map(|command| self.run(command, machine));
        let told = told.transpose();
        Ok(told
            .with_context(|| format!("asking {machine} for its facts"))?
            .unwrap_or_default())
    }

    /// Runs a command until the shell ends, and returns what it has written. What it leaves in the background goes on, also
    /// when a terminal interrupts this program.
    fn run(&self, command: &str, device: &str) -> Result<String> {
        // Not a pipe: what goes on in the background would keep it open.
        let mut written = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env(VARIABLE, device)
            .stdin(Stdio::null())
            .stdout(written.try_clone()?)
            .stderr(written.try_clone()?)
            .process_group(0);
        let mut child = {
            let mut state = self.state();
            ensure!(!state.is_closed, "the run is interrupted");
            let child = shell.spawn().context("starting a shell")?;
            state.running = Some(Pid::from_child(&child));
            child
        };
        let status = child.wait();
        self.state().running = None;
        let status = status.context("waiting for a shell")?;
        let mut text = String::new();
        written.rewind()?;
        // What is no text is not shown.
        written.read_to_string(&mut text).unwrap_or_default();
        if status.success() {
            return Ok(text);
        }
        bail!("{command}: {status}; its output:\n{text}")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Commands;

    fn device(up: &str, check: &str) -> UnderTest {
        UnderTest {
            name: "one".to_owned(),
            commands: Commands {
                up: Some(up.to_owned()),
                check: Some(check.to_owned()),
                down: Some("exit 3".to_owned()),
                facts: None,
            },
            via: Vec::new(),
            back: Vec::new(),
            to: Vec::new(),
        }
    }

    #[test]
    fn commands_know_the_device_and_failures_tell_what_was_written() {
        let shell = Shell::default();
        shell
            .bring_up(&device("test $GUIDEWAY_BENCH_SYSTEM = one", "true"))
            .unwrap();
        let error = shell
            .bring_up(&device("echo no cable; exit 4", "true"))
            .unwrap_err();
        let told = format!("{error:#}");
        assert!(
            told.contains("bringing one up") && told.contains("no cable"),
            "{told}"
        );
        let error = shell.take_down(&device("", "")).unwrap_err();
        assert!(format!("{error:#}").contains("exit status: 3"), "{error:#}");
    }

    #[test]
    fn a_command_tells_facts_and_none_tells_nothing() {
        let shell = Shell::default();
        let told = shell.ask(Some("echo name: $GUIDEWAY_BENCH_SYSTEM"), "one");
        assert_eq!(told.unwrap(), "name: one\n");
        assert_eq!(shell.ask(None, "one").unwrap(), "");
        let error = shell.ask(Some("false"), "one").unwrap_err();
        assert!(format!("{error:#}").contains("asking one for its facts"));
    }

    #[test]
    fn what_stays_in_the_background_holds_nothing_up() {
        let began = std::time::Instant::now();
        Shell::default()
            .bring_up(&device("sleep 20 & echo $!", "true"))
            .unwrap();
        assert!(began.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn at_the_end_the_command_that_runs_is_ended_and_none_is_begun() {
        let shell = Shell::default();
        let (other, began) = (shell.clone(), std::time::Instant::now());
        let running = std::thread::spawn(move || other.bring_up(&device("sleep 60", "true")));
        while shell.state().running.is_none() {
            std::thread::yield_now();
        }
        let error = shell.close(Some(&device("", ""))).unwrap_err();
        assert!(format!("{error:#}").contains("exit status: 3"), "{error:#}");
        running.join().unwrap().unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(45));
        let error = shell.bring_up(&device("true", "true")).unwrap_err();
        assert!(format!("{error:#}").contains("interrupted"), "{error:#}");
    }
}
