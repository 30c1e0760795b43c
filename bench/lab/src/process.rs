//! Programs that run in a namespace for as long as their guard exists.

use std::{
    fs::File,
    io,
    os::unix::{fs::FileExt, process::CommandExt},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{self, Signal},
    },
    unistd::Pid,
};

use crate::{Error, Result, registry, wait_for};

/// A running program. On drop its process group is killed and it is reaped.
///
/// Its output is kept in memory files, which vanish with the guard.
#[derive(Debug)]
pub struct Process {
    program: String,
    child: Child,
    stdout: File,
    stderr: File,
}

impl Process {
    /// Starts a program, usually from [`crate::Namespace::command`], in a process group of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Start`], for example when there is no such program.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        Self::start(command, &program).map_err(|source| Error::Start { program, source })
    }

    fn start(command: &mut Command, program: &str) -> io::Result<Self> {
        let stdout = output_file()?;
        let stderr = output_file()?;
        // A signal finds it either absent or in its namespace, and ends it there.
        let _registry = registry::lock();
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .process_group(0)
            .spawn()?;
        Ok(Self {
            program: program.to_owned(),
            child,
            stdout,
            stderr,
        })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the program has written to its standard output so far.
    pub fn stdout(&self) -> String {
        read_all(&self.stdout)
    }

    /// Returns what the program has written to its standard error so far.
    pub fn stderr(&self) -> String {
        read_all(&self.stderr)
    }

    /// Returns the program's path or name.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the last lines that the program has written, those to its standard error last.
    pub fn last_lines(&self, number: usize) -> String {
        let output = self.stdout() + &self.stderr();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(number)..].join("\n")
    }

    /// Returns how the program has ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Returns whether the program is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for a line that contains `text` on either stream. Returns the line.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] when the program ends first, [`Error::Timeout`] when the line does not come; both
    /// contain the output.
    pub fn wait_for_line(&mut self, text: &str, timeout: Duration) -> Result<String> {
        let awaited = format!("{} writes {text:?}", self.program);
        wait_for(&awaited, timeout, || {
            // Read the state before the output: then the output is complete if the program has ended.
            let running = self.expect_running(&format!("writing {text:?}"));
            let output = self.stdout() + &self.stderr();
            if let Some(line) = output.lines().find(|line| line.contains(text)) {
                return Ok(Ok(line.to_owned()));
            }
            match running {
                Ok(()) => Err(format!("its output:\n{output}")),
                Err(ended) => Ok(Err(ended)),
            }
        })?
    }

    /// Returns an error if the program has ended. `awaited` is the event that did not happen.
    pub(crate) fn expect_running(&mut self, awaited: &str) -> Result<()> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(Error::Ended {
                program: self.program.clone(),
                status,
                awaited: awaited.to_owned(),
                output: self.stdout() + &self.stderr(),
            }),
            _ => Ok(()),
        }
    }

    /// Waits for the program to end.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], with the output, when it does not.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let awaited = format!("{} ends", self.program);
        wait_for(&awaited, timeout, || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err(format!("its output:\n{}{}", self.stdout(), self.stderr())),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Sends a signal to the program, but not to its children.
    ///
    /// # Errors
    ///
    /// [`Error::Signal`] when the program has ended already.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        let sent = if self.is_running() {
            signal::kill(self.pid(), signal)
        } else {
            Err(nix::Error::ESRCH)
        };
        sent.map_err(|error| Error::Signal {
            program: self.program.clone(),
            signal,
            source: error.into(),
        })
    }

    /// Sends SIGTERM to the program and waits for its end.
    ///
    /// # Errors
    ///
    /// As for [`Process::wait`]; the program still runs then.
    pub fn stop(&mut self, timeout: Duration) -> Result<ExitStatus> {
        if self.is_running() {
            self.signal(Signal::SIGTERM)?;
        }
        self.wait(timeout)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If the program was reaped, another process group may have its id.
        if self.is_running() {
            let _ = signal::killpg(self.pid(), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
///
/// [`Error::Start`] when there is no such program, [`Error::Failed`] when it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    Err(Error::Failed {
        command: words.join(" "),
        status: output.status,
        output: stdout + &String::from_utf8_lossy(&output.stderr),
    })
}

/// Creates an anonymous file in append mode: a program that reopens `/dev/stdout` starts at offset 0 again.
fn output_file() -> io::Result<File> {
    let file = memfd_create(c"output", MFdFlags::MFD_CLOEXEC)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file.into())
}

/// Reads the whole file without moving the offset, which the program's descriptor shares.
fn read_all(file: &File) -> String {
    let mut content = Vec::new();
    let mut chunk = [0; 8192];
    while let Ok(length @ 1..) = file.read_at(&mut chunk, content.len() as u64) {
        content.extend_from_slice(&chunk[..length]);
    }
    String::from_utf8_lossy(&content).into_owned()
}
