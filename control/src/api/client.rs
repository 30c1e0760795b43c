//! The commands' side of the socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use super::{MAX_REPLY_BYTES, Reply, Request};

/// Bytes of an answer that are read at a time.
const READ_BYTES: usize = 256 << 10;
/// Time limit of an answer. Programming thousands of services takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a command got no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens on the socket.
    #[error(
        "no agent listens on {}; start one with `guideway run --config FILE`, \
         or name its socket with --socket",
        socket.display()
    )]
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The socket belongs to another user.
    #[error("no permission to open {}; run the command as the agent's user", socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// The connection broke.
    #[error("the agent on {} gave no answer", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The answer does not have the form that this version reads.
    #[error(
        "the answer of the agent is not understood; use the agent's own version of this command"
    )]
    Garbled(#[source] serde_json::Error),
    /// The agent answered with an error.
    #[error("{0}")]
    Refused(String),
}

/// Returns the process id of the agent on `socket`.
///
/// # Errors
///
/// When no agent listens there.
pub fn process(socket: &Path) -> Result<Pid, AskError> {
    let stream = connect(socket)?;
    let credentials = getsockopt(&stream, PeerCredentials);
    let credentials = credentials.map_err(|errno| AskError::Broken {
        socket: socket.to_owned(),
        source: errno.into(),
    })?;
    Ok(Pid::from_raw(credentials.pid()))
}

fn connect(socket: &Path) -> Result<UnixStream, AskError> {
    UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => AskError::Denied {
            socket: socket.to_owned(),
        },
        _ => AskError::NotRunning {
            socket: socket.to_owned(),
            source,
        },
    })
}

/// Sends a request to the agent on `socket` and returns the answer.
///
/// # Errors
///
/// When no agent answers, or its answer is an error.
pub fn ask<T: DeserializeOwned>(socket: &Path, request: &Request) -> Result<T, AskError> {
    let broken = |source| AskError::Broken {
        socket: socket.to_owned(),
        source,
    };
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(broken)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(broken)?;

    let mut line = serde_json::to_vec(request).map_err(AskError::Garbled)?;
    line.push(b'\n');
    stream.write_all(&line).map_err(broken)?;

    let mut answer = BufReader::with_capacity(READ_BYTES, stream.take(MAX_REPLY_BYTES));
    if answer.fill_buf().map_err(broken)?.is_empty() {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    // The text of a long answer is never whole in memory.
    match serde_json::from_reader(answer) {
        Ok(Reply::Ok(value)) => Ok(value),
        Ok(Reply::Error(reason)) => Err(AskError::Refused(reason)),
        Err(error) if error.is_io() => Err(broken(error.into())),
        Err(error) => Err(AskError::Garbled(error)),
    }
}
