//! What systemd is told of the agent: `Type=notify` in its unit, sd_notify(3).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Variable with the address of systemd's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Ends the start of the unit; does nothing for an agent that systemd has not started.
///
/// # Errors
///
/// When systemd cannot be told: it then ends the agent at its time limit.
pub(crate) fn ready() -> io::Result<()> {
    let Some(socket) = env::var_os(SOCKET) else {
        return Ok(());
    };
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}
