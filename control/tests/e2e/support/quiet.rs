//! A connection on which nobody has said anything yet.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
};

use lab::Machine;

use super::TIMEOUT;

/// A connection on which nobody has said anything yet.
pub(crate) struct Quiet {
    client: TcpStream,
    server: TcpStream,
}

impl Quiet {
    /// Connects a client to a service, which takes it to this end of a server.
    pub(crate) fn open(
        client: &Machine,
        server: &Machine,
        end: SocketAddr,
        service: SocketAddr,
    ) -> Self {
        let listener = server.namespace().run(|| TcpListener::bind(end)).unwrap();
        let connect = || TcpStream::connect(service);
        Self {
            client: client.namespace().run(connect).unwrap(),
            server: listener.accept().unwrap().0,
        }
    }

    /// The server speaks first, and the client hears it.
    pub(crate) fn server_speaks(mut self) {
        const GREETING: &[u8] = b"the server speaks first\n";
        self.server.write_all(GREETING).unwrap();
        let mut heard = [0; GREETING.len()];
        self.client.set_read_timeout(Some(TIMEOUT)).unwrap();
        self.client.read_exact(&mut heard).unwrap();
        assert_eq!(heard, GREETING);
    }
}
