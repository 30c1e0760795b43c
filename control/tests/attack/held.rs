//! Connections of which the test has both ends.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use lab::Machine;

use crate::support::TIMEOUT;

/// As many failures say what there is to say; each may take [`TIMEOUT`].
const ENOUGH: usize = 5;

/// A client's end and a server's.
#[derive(Debug)]
pub(crate) struct Held {
    client: TcpStream,
    server: TcpStream,
}

/// Who says something first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Client,
    Server,
}

impl Held {
    /// Opens connections from these ports, one after the other.
    pub(crate) fn open_many(
        client: &Machine,
        to: SocketAddr,
        listener: &TcpListener,
        ports: impl Iterator<Item = u16> + Send,
    ) -> Vec<Self> {
        let open = |port| {
            let client = connect(SocketAddr::new(client.address_like(to.ip()), port), to)
                .unwrap_or_else(|error| panic!("{to} from port {port}: {error}"));
            let (server, _) = listener.accept().unwrap();
            for end in [&client, &server] {
                end.set_read_timeout(Some(TIMEOUT)).unwrap();
                end.set_nodelay(true).unwrap();
            }
            Self { client, server }
        };
        client.namespace().run(|| ports.map(open).collect())
    }

    /// Says something and hears it at the other end, both ways.
    fn exchange(&mut self, first: First, word: u64) -> io::Result<()> {
        let (from, to) = match first {
            First::Client => (&mut self.client, &mut self.server),
            First::Server => (&mut self.server, &mut self.client),
        };
        say(from, to, word)?;
        say(to, from, !word)
    }
}

/// Uses every connection of a part, and returns how each that is broken failed.
pub(crate) fn broken<'h>(
    part: impl IntoIterator<Item = (usize, &'h mut Held)>,
    word: u64,
) -> Vec<String> {
    let mut failures = Vec::new();
    for (number, held) in part {
        let first = match number / 2 % 2 {
            0 => First::Client,
            _ => First::Server,
        };
        if let Err(error) = held.exchange(first, word << 32 | number as u64) {
            failures.push(format!("connection {number}, {first:?} first: {error}"));
            if failures.len() == ENOUGH {
                failures.push("and perhaps more".to_owned());
                break;
            }
        }
    }
    failures
}

/// Connects from a given port.
pub(crate) fn connect(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let kind = socket2::Type::STREAM;
    let socket = socket2::Socket::new(socket2::Domain::for_address(to), kind, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), TIMEOUT)?;
    Ok(socket.into())
}

fn say(from: &mut TcpStream, to: &mut TcpStream, word: u64) -> io::Result<()> {
    from.write_all(&word.to_be_bytes())?;
    let mut heard = [0; 8];
    to.read_exact(&mut heard)?;
    if u64::from_be_bytes(heard) != word {
        return Err(io::Error::other("other bytes than were sent"));
    }
    Ok(())
}
