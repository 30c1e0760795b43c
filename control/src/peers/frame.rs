//! Greetings and frames: how messages follow each other in a connection.
//!
//! ```text
//! greeting: "gw-peers" | version, 2 bytes | nonce, 32 bytes | instance, 16 bytes
//! frame:    length of the body, 4 bytes | tag, 32 bytes | body
//! ```
//!
//! Numbers are big-endian. The instance is drawn when an agent starts, so an edge that is told to ask itself notices.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::key::{Key, NONCE_BYTES, Session, Side, TAG_BYTES};
use super::refusal::Refusal;
use crate::random::random_bytes;

/// The version of the protocol. Both ends must have the same.
pub(super) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"gw-peers";
const INSTANCE_BYTES: usize = 16;
const GREETING_BYTES: usize = MAGIC.len() + 2 + NONCE_BYTES + INSTANCE_BYTES;
/// Bytes of a frame apart from its body.
pub(super) const FRAME_BYTES: usize = 4 + TAG_BYTES;

/// What distinguishes an agent from all others, and from itself before a restart.
pub(super) type Instance = [u8; INSTANCE_BYTES];

/// An open connection to a peer that has been greeted.
#[derive(Debug)]
pub(super) struct Connection<'k, S> {
    stream: S,
    key: &'k Key,
    session: Session,
    side: Side,
    /// Number of the next request and its answer.
    number: u32,
    /// Whether the peer is this very agent.
    pub(super) is_own: bool,
}

impl<'k, S: AsyncRead + AsyncWrite + Unpin> Connection<'k, S> {
    /// Greets, and reads the other side's greeting.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or the peer is no Guideway of this version.
    pub(super) async fn open(
        mut stream: S,
        key: &'k Key,
        side: Side,
        instance: &Instance,
    ) -> Result<Self, Refusal> {
        let nonce: [u8; NONCE_BYTES] = random_bytes()?;
        let version = VERSION.to_be_bytes();
        let own = [&MAGIC[..], &version, &nonce, instance].concat();
        stream.write_all(&own).await?;
        let mut other = [0; GREETING_BYTES];
        stream.read_exact(&mut other).await?;
        let (magic, rest) = other.split_at(MAGIC.len());
        if magic != MAGIC {
            let what = "it is no Guideway: give the address in peers.listen of another edge";
            return Err(Refusal::Version(what.to_owned()));
        }
        let version = u16::from_be_bytes([rest[0], rest[1]]);
        if version != VERSION {
            let what = format!("it speaks version {version} of the exchange, this edge {VERSION}");
            return Err(Refusal::Version(what));
        }
        let session = match side {
            Side::Asker => Session::new(&own, &other),
            Side::Answerer => Session::new(&other, &own),
        };
        Ok(Self {
            stream,
            key,
            session,
            side,
            number: 0,
            is_own: rest.ends_with(instance),
        })
    }

    /// Sends a request, and returns the body of its answer, which has at most `most` bytes.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or the answer is too large or not authentic.
    pub(super) async fn ask(&mut self, body: &[u8], most: usize) -> Result<Vec<u8>, Refusal> {
        self.send(body).await?;
        let answer = self.receive(Side::Answerer, most).await?;
        self.number += 1;
        answer.ok_or_else(|| Refusal::Unreachable("it closed the connection".to_owned()))
    }

    /// Reads the next request, of at most `most` bytes; `None` if there are no more.
    ///
    /// # Errors
    ///
    /// When the connection breaks, or the request is too large or not authentic.
    pub(super) async fn next_request(&mut self, most: usize) -> Result<Option<Vec<u8>>, Refusal> {
        self.receive(Side::Asker, most).await
    }

    /// Answers the request that was read last.
    ///
    /// # Errors
    ///
    /// When the connection breaks.
    pub(super) async fn answer(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.send(body).await?;
        self.number += 1;
        Ok(())
    }

    async fn send(&mut self, body: &[u8]) -> Result<(), Refusal> {
        let tag = self.key.tag(self.side, &self.session, self.number, body);
        let length = u32::try_from(body.len()).map_err(|_| Refusal::TooLarge(body.len() as u64))?;
        let head = [&length.to_be_bytes()[..], &tag].concat();
        self.stream.write_all(&head).await?;
        self.stream.write_all(body).await?;
        self.stream.flush().await?;
        Ok(())
    }

    /// Reads a frame; `None` if the stream ends before it.
    async fn receive(&mut self, side: Side, most: usize) -> Result<Option<Vec<u8>>, Refusal> {
        let mut head = [0; FRAME_BYTES];
        if self.stream.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut head[1..]).await?;
        let [a, b, c, d, tag @ ..] = head;
        let length = u64::from(u32::from_be_bytes([a, b, c, d]));
        if length > most as u64 {
            return Err(Refusal::TooLarge(length));
        }
        let mut body = Vec::new();
        // Memory grows with what has come, not with what was promised.
        let mut rest = (&mut self.stream).take(length);
        rest.read_to_end(&mut body).await?;
        if (body.len() as u64) < length {
            return Err(Refusal::Unreachable("it broke off".to_owned()));
        }
        let (session, number) = (&self.session, self.number);
        if !self.key.has_tag(side, session, number, &body, &tag) {
            return Err(Refusal::NotAuthentic);
        }
        Ok(Some(body))
    }
}
