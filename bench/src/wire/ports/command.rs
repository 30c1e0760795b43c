//! Commands around a device under test.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use lab::wait_for;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::scenario::{Commands, UnderTest};

/// How long a device may take until its check succeeds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The variable by which commands learn the name of the device.
const VARIABLE: &str = "GUIDEWAY_BENCH_SYSTEM";

/// Brings a device up, and waits until its check succeeds.
///
/// # Errors
///
/// When a command fails, with what it wrote.
pub(super) fn bring_up(device: &UnderTest) -> Result<()> {
    let Commands { up, check, .. } = &device.commands;
    if let Some(up) = up {
        run(up, &device.name).with_context(|| format!("bringing {} up", device.name))?;
    }
    if let Some(check) = check {
        let awaited = format!("the check of {} succeeds", device.name);
        wait_for(&awaited, TIMEOUT, || {
            run(check, &device.name).map_err(|error| format!("{error:#}"))
        })?;
    }
    Ok(())
}

/// Takes a device down.
///
/// # Errors
///
/// As for [`bring_up`].
pub(super) fn take_down(device: &UnderTest) -> Result<()> {
    match &device.commands.down {
        Some(down) => {
            run(down, &device.name).with_context(|| format!("taking {} down", device.name))
        }
        None => Ok(()),
    }
}

/// Runs a command until the shell ends. What it leaves in the background goes on, also when a terminal interrupts this
/// program.
fn run(command: &str, device: &str) -> Result<()> {
    // Not a pipe: what goes on in the background would keep it open.
    let mut written = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
    let status = Command::new("sh")
        .args(["-c", command])
        .env(VARIABLE, device)
        .stdin(Stdio::null())
        .stdout(written.try_clone()?)
        .stderr(written.try_clone()?)
        .process_group(0)
        .status()
        .context("starting a shell")?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    written.rewind()?;
    written.read_to_string(&mut text).unwrap_or_default();
    bail!("{command}: {status}; its output:\n{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(up: &str, check: &str) -> UnderTest {
        UnderTest {
            name: "one".to_owned(),
            commands: Commands {
                up: Some(up.to_owned()),
                check: Some(check.to_owned()),
                down: Some("exit 3".to_owned()),
            },
            via: Vec::new(),
            back: Vec::new(),
            to: Vec::new(),
        }
    }

    #[test]
    fn commands_know_the_device_and_failures_tell_what_was_written() {
        bring_up(&device("test $GUIDEWAY_BENCH_SYSTEM = one", "true")).unwrap();
        let error = bring_up(&device("echo no cable; exit 4", "true")).unwrap_err();
        let told = format!("{error:#}");
        assert!(
            told.contains("bringing one up") && told.contains("no cable"),
            "{told}"
        );
        let error = take_down(&device("", "")).unwrap_err();
        assert!(format!("{error:#}").contains("exit status: 3"), "{error:#}");
    }

    #[test]
    fn what_stays_in_the_background_holds_nothing_up() {
        let began = std::time::Instant::now();
        bring_up(&device("sleep 20 & echo $!", "true")).unwrap();
        assert!(began.elapsed() < Duration::from_secs(15));
    }
}
