//! Web servers on pods that say who they are and whom they see.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lab::Machine;
use nix::sys::socket;

/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(20);

/// The servers of one machine, at one port of both its addresses; they end on drop.
pub(crate) struct Witness {
    listeners: Vec<TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

impl Witness {
    /// Serves HTTP.
    pub(crate) fn serve(machine: &Machine, port: u16) -> Self {
        let (mut listeners, mut threads) = (Vec::new(), Vec::new());
        for address in [machine.v4(), machine.v6()] {
            let listener = machine
                .namespace()
                .run(|| TcpListener::bind((address, port)))
                .unwrap();
            listeners.push(listener.try_clone().unwrap());
            let name = machine.label().to_owned();
            threads.push(thread::spawn(move || {
                while let Ok((stream, peer)) = listener.accept() {
                    // Who goes away without an answer knows.
                    let _ = answer(&stream, &format!("{name} {}", peer.ip()));
                }
            }));
        }
        Self { listeners, threads }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // Linux: wakes the thread in accept().
            let _ = socket::shutdown(listener.as_raw_fd(), socket::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: &TcpStream, text: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream).lines();
    while !lines.next().transpose()?.unwrap_or_default().is_empty() {}
    write!(stream, "HTTP/1.0 200 OK\r\n\r\n{text}")?;
    stream.shutdown(Shutdown::Write)
}

/// Asks with curl; returns the server's name and the client's address as it saw it.
pub(crate) fn curl(from: &Machine, at: SocketAddr) -> Result<(String, IpAddr), String> {
    let mut curl = from.namespace().command("curl");
    curl.args(["-sS", "--max-time", "20", &format!("http://{at}/")]);
    let answer = lab::output(&mut curl).map_err(|error| error.to_string())?;
    let (name, seen) = answer.split_once(' ').ok_or_else(|| answer.clone())?;
    Ok((name.to_owned(), seen.parse().map_err(|_| answer.clone())?))
}
