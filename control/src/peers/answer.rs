//! The side that answers: it accepts the connections of other edges.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::frame::{Connection, Instance};
use super::key::{Key, Side};
use super::message::{
    DigestOfAll, MOST_REQUEST_BYTES, Request, ServicesPage, decode, encode, encode_owners,
};
use super::refusal::Refusal;
use super::{ComingKey, EXCHANGE_TIMEOUT, Owners, PeerStates};
use crate::http::{ConnectionLimit, SourceLimit};

/// Most simultaneous connections. One more closes the oldest that has not asked anything.
const MOST_CONNECTIONS: usize = 32;
/// Most simultaneous connections of one address.
const MOST_OF_SOURCE: usize = 4;
/// How long a peer may take to its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers peers for ever.
pub(crate) async fn serve<O: Owners>(
    listener: TcpListener,
    key: ComingKey,
    owners: O,
    states: PeerStates,
) -> Infallible {
    let key = key.await;
    let connections = ConnectionLimit::new(MOST_CONNECTIONS);
    let sources = SourceLimit::new(MOST_OF_SOURCE);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a peer's connection is not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(source) = sources.admit(peer.ip()) else {
            continue;
        };
        let close = Arc::new(Notify::new());
        let permit = connections.take(&close);
        let (key, owners, states) = (key.clone(), owners.clone(), states.clone());
        tokio::spawn(async move {
            let noted = || permit.note_question();
            let instance = states.instance();
            let answered = answer(stream, &key, &instance, &owners, noted);
            let outcome = tokio::select! {
                outcome = answered => outcome,
                () = close.notified() => Err(Refusal::TimedOut),
            };
            states.note_answers(peer_address(peer), outcome);
            drop((permit, source));
        });
    }
}

/// The peer without the port, which is another one in each connection.
fn peer_address(peer: SocketAddr) -> String {
    peer.ip().to_canonical().to_string()
}

/// Answers the requests of one connection; returns how many. `first` is called when the first one has come.
pub(super) async fn answer<S, O>(
    stream: S,
    key: &Key,
    instance: &Instance,
    owners: &O,
    first: impl Fn(),
) -> Result<u64, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
    O: Owners,
{
    let begin = async {
        let mut peer = Connection::open(stream, key, Side::Answerer, instance).await?;
        let request = peer.next_request(MOST_REQUEST_BYTES).await?;
        Ok::<_, Refusal>((peer, request))
    };
    let begun = timeout(FIRST_REQUEST_TIMEOUT, begin).await;
    let (mut peer, mut request) = begun.map_err(|_| Refusal::TimedOut)??;
    if request.is_some() {
        first();
    }
    let go_on = async {
        let mut answers = 0;
        while let Some(body) = request.take() {
            let answer = answer_to(decode(&body)?, owners).await;
            let ending = || Refusal::Unreachable("the agent is ending".to_owned());
            peer.answer(&answer.ok_or_else(ending)?).await?;
            answers += 1;
            request = peer.next_request(MOST_REQUEST_BYTES).await?;
        }
        Ok(answers)
    };
    let outcome = timeout(2 * EXCHANGE_TIMEOUT, go_on).await;
    outcome.map_err(|_| Refusal::TimedOut)?
}

/// Returns the answer to a request; `None` if the tables are gone.
async fn answer_to<O: Owners>(request: Request, owners: &O) -> Option<Vec<u8>> {
    match request {
        Request::Digest => {
            let summary = owners.summary();
            Some(encode(&DigestOfAll {
                whole: summary.whole,
                seed: summary.seed,
            }))
        }
        Request::Services(after) => {
            let services = owners.summary().services;
            let page = match after {
                None => ServicesPage::of(services.iter()),
                Some(after) => {
                    let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
                    ServicesPage::of(services.range(behind))
                }
            };
            Some(encode(&page))
        }
        Request::Owners(keys) => Some(encode_owners(&owners.owners(keys).await?)),
    }
}
