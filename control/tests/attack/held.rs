//! Connections of which the test has both ends.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use lab::Machine;

use crate::support::TIMEOUT;

/// Most failures that are told; each may take [`TIMEOUT`].
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

    /// Returns the end that says something first, and the other one.
    fn ends(&mut self, first: First) -> (&mut TcpStream, &mut TcpStream) {
        match first {
            First::Client => (&mut self.client, &mut self.server),
            First::Server => (&mut self.server, &mut self.client),
        }
    }
}

/// Something that the ends of a connection do: says or hears a word.
type Step = fn(&mut Held, First, u64) -> io::Result<()>;

/// Has both ends of every connection of a part say something, and hear the other one. Returns how each connection that is
/// broken failed.
pub(crate) fn broken<'h>(
    part: impl IntoIterator<Item = (usize, &'h mut Held)>,
    word: u64,
) -> Vec<String> {
    let mut failures = Vec::new();
    let mut part: Vec<_> = part
        .into_iter()
        .map(|(number, held)| {
            let first = match number / 2 % 2 {
                0 => First::Client,
                _ => First::Server,
            };
            (number, first, held, word << 32 | number as u64)
        })
        .collect();
    // All connections do each step before the next one: so many round trips one after the other take long on a busy machine.
    let steps: [Step; 3] = [
        |held, first, word| say(held.ends(first).0, word),
        |held, first, word| {
            let (_, other) = held.ends(first);
            hear(other, word).and_then(|()| say(other, !word))
        },
        |held, first, word| hear(held.ends(first).0, !word),
    ];
    for step in steps {
        part.retain_mut(|(number, first, held, word)| {
            // As many failures say what there is to say.
            if failures.len() >= ENOUGH {
                return false;
            }
            let outcome = step(held, *first, *word);
            if let Err(error) = &outcome {
                failures.push(format!("connection {number}, {first:?} first: {error}"));
            }
            outcome.is_ok()
        });
    }
    if failures.len() >= ENOUGH {
        failures.push("and perhaps more".to_owned());
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

fn say(end: &mut TcpStream, word: u64) -> io::Result<()> {
    end.write_all(&word.to_be_bytes())
}

fn hear(end: &mut TcpStream, word: u64) -> io::Result<()> {
    let mut heard = [0; 8];
    end.read_exact(&mut heard)?;
    if u64::from_be_bytes(heard) != word {
        return Err(io::Error::other("other bytes than were sent"));
    }
    Ok(())
}
