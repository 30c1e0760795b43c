//! Messages in a stream of bytes: each has its length in front.

use std::{
    io::{ErrorKind, Read},
    net::TcpStream,
};

/// Bytes of the length, in network order.
pub const PREFIX_LENGTH: usize = 2;
/// Bytes that are read at once.
const BUFFER: usize = 4096;

/// Returns a message with its length.
///
/// # Panics
///
/// When it is longer than the length can tell.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("messages fit one segment");
    [&length.to_be_bytes(), message].concat()
}

/// What has come of a stream, and has not been taken.
#[derive(Debug, Default)]
pub struct Incoming(Vec<u8>);

impl Incoming {
    /// Reads all that has come. Returns whether the stream goes on.
    pub fn read(&mut self, mut stream: &TcpStream) -> bool {
        let mut buffer = [0; BUFFER];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(length) => self.0.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    /// Takes the next whole message.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let (&length, rest) = self.0.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(length));
        let message = rest.get(..length)?.to_vec();
        self.0.drain(..PREFIX_LENGTH + length);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_whole_and_in_order_however_they_come() {
        let sent = [framed(b"one"), framed(b""), framed(&[7; 300])].concat();
        let mut incoming = Incoming::default();
        let mut taken = Vec::new();
        for part in sent.chunks(5) {
            incoming.0.extend_from_slice(part);
            taken.extend(std::iter::from_fn(|| incoming.take()));
        }
        assert_eq!(taken, [b"one".to_vec(), Vec::new(), vec![7; 300]]);
        assert!(incoming.0.is_empty());
    }
}
