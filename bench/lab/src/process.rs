//! Programs that run in a namespace for as long as somebody holds on to them.

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

use crate::{Error, Result, wait_for};

/// A running program, killed with its process group and reaped on drop.
///
/// What it writes is kept in memory files that vanish with the guard.
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

    /// Tells whether the program has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until a line containing `text` has been written to either stream and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] when the program ends first, [`Error::Timeout`] when nothing comes; both show the output.
    pub fn wait_for_line(&mut self, text: &str, timeout: Duration) -> Result<String> {
        let awaited = format!("{} writes {text:?}", self.program);
        wait_for(&awaited, timeout, || {
            // The state first: what was written before the end is then seen.
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

    /// Fails when the program has ended before what was `awaited` of it.
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

    /// Sends a signal to the program, not to its children.
    ///
    /// # Errors
    ///
    /// [`Error::Signal`] when it has ended already.
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

    /// Asks the program to end by SIGTERM and waits for it.
    ///
    /// # Errors
    ///
    /// As for [`Process::wait`]; the program is then still running.
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
        // Reaped already: the process group's id may be somebody else's.
        if self.is_running() {
            let _ = signal::killpg(self.pid(), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end and returns what it wrote to its standard output.
///
/// # Errors
///
/// [`Error::Start`] when there is no such program, [`Error::Failed`] when it does not succeed.
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

/// An anonymous file; appending, because programs reopen `/dev/stdout`, which
/// starts at the beginning again.
fn output_file() -> io::Result<File> {
    let file = memfd_create(c"output", MFdFlags::MFD_CLOEXEC)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file.into())
}

/// Reads without moving the offset, which the program's descriptor shares.
fn read_all(file: &File) -> String {
    let mut content = Vec::new();
    let mut chunk = [0; 8192];
    while let Ok(length @ 1..) = file.read_at(&mut chunk, content.len() as u64) {
        content.extend_from_slice(&chunk[..length]);
    }
    String::from_utf8_lossy(&content).into_owned()
}
