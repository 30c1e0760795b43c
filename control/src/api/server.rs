//! The agent's side of the socket.
//!
//! Whoever may open the socket may detach the dataplane, so it is accessible to the agent's user only (mode
//! 0600). Requests are limited: one per connection, in length, in time, and in the number of connections.

#[cfg(test)]
mod tests;

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::{MAX_REQUEST_BYTES, Reply, Request};

/// Most simultaneous connections; further ones wait.
const MAX_CONNECTIONS: usize = 16;
/// Time limit for sending a request and for reading the reply.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two checks whether a waiting peer has gone.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for unfinished answers when the agent ends.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why the socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another agent holds the socket.
    #[error(
        "another agent{} already listens on {}; stop it first, or set api.socket to another path",
        pid.map_or_else(String::new, |pid| format!(" (pid {pid})")),
        socket.display()
    )]
    Taken {
        /// The socket.
        socket: PathBuf,
        /// Process id of the other agent, if known.
        pid: Option<i32>,
    },
    /// The path exists and is not a socket.
    #[error("{} is not a socket; remove it or set api.socket to another path", path.display())]
    InTheWay {
        /// The path.
        path: PathBuf,
    },
    /// The operating system reported an error.
    #[error("cannot {attempt} {}", path.display())]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// The path of the attempt.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

/// The agent's socket. It is removed on drop.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Locked while the agent runs. The lock distinguishes a second agent from a stale socket.
    _lock: File,
}

impl Socket {
    /// Creates the socket. Replaces a stale one.
    ///
    /// # Errors
    ///
    /// When another agent listens there, or the path cannot be used.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |attempt, at: &Path| {
            let path = at.to_owned();
            move |source| ListenError::Io {
                attempt,
                path,
                source,
            }
        };
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(failed("create the directory", directory))?;
        }
        let lock_path = lock_path(path);
        let lock = lock(path, &lock_path)?;
        remove_stale(path)?;

        // Created under another name and restricted before it gets its own, so that nobody else can connect in
        // between.
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh).map_err(failed("listen on", &fresh))?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o600))
            .map_err(failed("restrict", &fresh))?;
        fs::rename(&fresh, path).map_err(failed("listen on", path))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Answers requests until `stop` ends, then completes unfinished answers. `answer` returns a line of JSON;
    /// it is dropped if the peer goes away.
    pub async fn serve<F, A>(self, answer: F, stop: impl Future<Output = ()> + Send)
    where
        F: Fn(Request) -> A + Clone + Send + 'static,
        A: Future<Output = String> + Send,
    {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        tokio::select! {
            () = self.accept(&connections, answer) => {}
            () = stop => {}
        }
        let all = u32::try_from(MAX_CONNECTIONS).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(LAST_ANSWERS, connections.acquire_many(all)).await;
    }

    async fn accept<F, A>(&self, connections: &Arc<Semaphore>, answer: F)
    where
        F: Fn(Request) -> A + Clone + Send + 'static,
        A: Future<Output = String> + Send,
    {
        loop {
            let Ok(permit) = Arc::clone(connections).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    tokio::spawn(async move {
                        if let Err(error) = serve_connection(stream, answer).await {
                            tracing::debug!(%error, "a connection to the agent's socket broke");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Descriptors or memory are exhausted. Both pass, but not at once.
                    tracing::warn!(%error, "cannot accept a connection on the agent's socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The lock file stays: if it were removed, two agents could lock two files.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Locks the file and writes our process id into it.
fn lock(socket: &Path, path: &Path) -> Result<File, ListenError> {
    let failed = |source| ListenError::Io {
        attempt: "lock",
        path: path.to_owned(),
        source,
    };
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        // Do not follow a link: the file is emptied, and the link may be somebody else's.
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(path).ok();
            return Err(ListenError::Taken {
                socket: socket.to_owned(),
                pid: holder.and_then(|pid| pid.trim().parse().ok()),
            });
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    file.set_len(0).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::InTheWay {
            path: path.to_owned(),
        });
    }
    if let Ok(stream) = std::os::unix::net::UnixStream::connect(path) {
        let peer =
            nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::PeerCredentials);
        return Err(ListenError::Taken {
            socket: path.to_owned(),
            pid: peer.ok().map(|peer| peer.pid()),
        });
    }
    fs::remove_file(path).map_err(|source| ListenError::Io {
        attempt: "remove the stale socket",
        path: path.to_owned(),
        source,
    })
}

async fn serve_connection<F, A>(stream: UnixStream, answer: F) -> io::Result<()>
where
    F: Fn(Request) -> A,
    A: Future<Output = String>,
{
    let mut stream = BufReader::new(stream);
    let request = tokio::time::timeout(PEER_TIMEOUT, read_line(&mut stream)).await??;
    let mut reply = match parse(&request) {
        Ok(request) => tokio::select! {
            // Polled first, so that the request is carried out even if nobody reads the answer.
            biased;
            reply = answer(request) => reply,
            () = hang_up(stream.get_ref()) => return Ok(()),
        },
        Err(reason) => error_line(reason),
    };
    reply.push('\n');
    tokio::time::timeout(PEER_TIMEOUT, stream.write_all(reply.as_bytes())).await?
}

/// Waits until the peer has stopped reading. A peer that has only stopped writing still waits for the answer.
async fn hang_up(stream: &UnixStream) {
    loop {
        match stream.ready(Interest::WRITABLE).await {
            Ok(ready) if !ready.is_write_closed() => tokio::time::sleep(LOOK_PAUSE).await,
            Ok(_) | Err(_) => return,
        }
    }
}

/// Reads up to a newline, the end, or one byte more than the longest request.
async fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    stream
        .take(MAX_REQUEST_BYTES as u64 + 1)
        .read_until(b'\n', &mut line)
        .await?;
    Ok(line)
}

fn parse(line: &[u8]) -> Result<Request, String> {
    let text = line.strip_suffix(b"\n");
    let Some(text) = text.or((line.len() <= MAX_REQUEST_BYTES).then_some(line)) else {
        return Err(format!("a request has at most {MAX_REQUEST_BYTES} bytes"));
    };
    serde_json::from_slice(text).map_err(|error| format!("the request is not understood: {error}"))
}

/// Formats a reply as one line of JSON.
pub fn line<T: Serialize>(reply: &Reply<T>) -> String {
    serde_json::to_string(reply)
        .unwrap_or_else(|error| error_line(format!("the answer cannot be written: {error}")))
}

/// Formats an error as one line of JSON.
pub fn error_line(reason: String) -> String {
    serde_json::json!({ "error": reason }).to_string()
}
