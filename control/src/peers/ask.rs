//! The side that asks: one exchange with one peer.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::digest::{Digest, SeedFingerprint, Summary};
use super::frame::{Connection, FRAME_BYTES, Instance};
use super::key::{Key, Side};
use super::message::{
    DigestOfAll, MOST_ANSWER_BYTES, MOST_KEYS, Request, ServicesPage, decode, decode_owners, encode,
};
use super::refusal::Refusal;
use super::{MOST_BYTES, Told};
use crate::desired::ServiceKey;

/// After this part of an exchange's time, no more services are asked for.
const LAST_REQUEST: Duration = Duration::from_millis(2_500);

/// What a peer has told.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The digest of all its services.
    pub(super) whole: Digest,
    /// Answers with the owners of services that differ. They have been decoded once, and are kept as they came, which
    /// takes an eighth of the memory.
    pub(super) pages: Vec<Page>,
    /// The last service that was asked for, if others follow that differ.
    pub(super) rest_after: Option<ServiceKey>,
    /// Whether nothing was asked for, because an earlier exchange left nothing to take.
    pub(super) was_settled: bool,
}

/// An answer with owners.
#[derive(Debug)]
pub(super) struct Page {
    keys: Vec<ServiceKey>,
    bytes: Vec<u8>,
}

impl Page {
    /// Returns the size of the answer in bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the owners of those services that the peer shares.
    pub(super) fn told(&self) -> Result<Told, Refusal> {
        let owners = decode_owners(&self.bytes, self.keys.len())?;
        let told = self.keys.iter().zip(owners);
        let told = told.filter_map(|(key, owners)| Some((*key, owners?)));
        Ok(told.collect())
    }
}

/// What an exchange begins with.
#[derive(Clone, Debug, Default)]
pub(super) struct Question {
    /// This edge's digests.
    pub(super) own: Summary,
    /// The peer's digest and this edge's after an exchange that left nothing to take.
    pub(super) settled: Option<(Digest, Digest)>,
    /// The last service that an earlier exchange asked for.
    pub(super) after: Option<ServiceKey>,
}

/// Asks a peer for the owners that differ; `None` if the peer is this very agent.
pub(super) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    key: &Key,
    instance: &Instance,
    question: &Question,
) -> Result<Option<Heard>, Refusal> {
    let began = Instant::now();
    let connection = Connection::open(stream, key, Side::Asker, instance).await?;
    if connection.is_own {
        return Ok(None);
    }
    let mut peer = Peer {
        connection,
        left: MOST_BYTES,
    };
    let answer = peer.ask(&Request::Digest).await?;
    let DigestOfAll { whole, seed } = decode(&answer)?;
    if seed != question.own.seed {
        let digits = |seed: SeedFingerprint| String::from_utf8_lossy(&seed).into_owned();
        return Err(Refusal::OtherSeed {
            theirs: digits(seed),
            ours: digits(question.own.seed),
        });
    }
    let mut heard = Heard {
        whole,
        ..Heard::default()
    };
    let own = question.own.whole;
    heard.was_settled = question.settled == Some((heard.whole, own));
    if heard.whole == own || heard.was_settled {
        return Ok(Some(heard));
    }
    let mut differing = peer.differing(&question.own).await?;
    // Those that an earlier exchange had no time for come first.
    let behind = question
        .after
        .map(|after| differing.partition_point(|key| *key <= after));
    differing.rotate_left(behind.unwrap_or_default());
    let mut rest = &differing[..];
    while !rest.is_empty() {
        if began.elapsed() > LAST_REQUEST || peer.left < MOST_ANSWER_BYTES {
            let last = heard.pages.last().and_then(|page| page.keys.last());
            heard.rest_after = last.copied().or(question.after);
            break;
        }
        let keys = &rest[..rest.len().min(MOST_KEYS)];
        let bytes = peer.ask(&Request::Owners(keys.to_vec())).await?;
        let count = decode_owners(&bytes, keys.len())?.len();
        let keys;
        (keys, rest) = rest.split_at(count);
        heard.pages.push(Page {
            keys: keys.to_vec(),
            bytes,
        });
    }
    Ok(Some(heard))
}

/// A peer in an exchange.
struct Peer<'k, S> {
    connection: Connection<'k, S>,
    /// Bytes that it may still send.
    left: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<'_, S> {
    async fn ask(&mut self, request: &Request) -> Result<Vec<u8>, Refusal> {
        let most = self.left.min(MOST_ANSWER_BYTES);
        let answer = self.connection.ask(&encode(request), most).await?;
        self.left = self.left.saturating_sub(answer.len() + FRAME_BYTES);
        Ok(answer)
    }

    /// Lists the services of both edges whose digests differ, in order.
    async fn differing(&mut self, own: &Summary) -> Result<Vec<ServiceKey>, Refusal> {
        let mut differing = BTreeSet::new();
        let mut after = None;
        loop {
            let answer = self.ask(&Request::Services(after)).await?;
            let page = ServicesPage::decode(&answer, after.as_ref())?;
            after = page.services.last().map(|(key, _)| *key);
            let others = page.services.iter();
            differing.extend(others.filter_map(|(key, digest)| {
                let own = own.services.get(key)?;
                (own != digest).then_some(*key)
            }));
            if !page.has_more {
                return Ok(differing.into_iter().collect());
            }
        }
    }
}
