//! Reads pages of agents and controllers, and of the API server.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::core::Status;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::api::{MAX_REPLY_BYTES, Reply};
use crate::chain::chain;
use crate::render::printable;

/// Time limit of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest text of an answer that is quoted, in characters.
const QUOTED: usize = 200;

/// Where the pages of a process are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a pod, which the API server's proxy reaches.
    Pod {
        namespace: String,
        name: String,
        port: u16,
    },
    /// On a machine outside the cluster.
    Outside(SocketAddr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { name, .. } => write!(f, "pod {name}"),
            Self::Outside(address) => write!(f, "{address}"),
        }
    }
}

impl Place {
    /// Reads a document that a process answers as its socket does. The error is a line for people.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        client: &Client,
        page: &'static str,
    ) -> Result<T, String> {
        let text = self.get(client, page).await?;
        match serde_json::from_slice(&text) {
            Ok(Reply::Ok(document)) => Ok(document),
            Ok(Reply::Error(reason)) => Err(reason),
            Err(error) => Err(format!("its page {page} is not understood: {error}")),
        }
    }

    /// Reads a page. The error is a line for people.
    async fn get(&self, client: &Client, page: &'static str) -> Result<Vec<u8>, String> {
        let most = usize::try_from(MAX_REPLY_BYTES).unwrap_or(usize::MAX);
        let answer = self.page(page).read(client, most).await?;
        if answer.is_cut {
            return Err(format!("its page {page} has more than {most} bytes"));
        }
        match answer.refusal() {
            Some(refusal) => Err(refusal),
            None => Ok(answer.text),
        }
    }

    /// Returns what to ask for a page.
    pub(super) fn page(&self, page: &'static str) -> Target {
        match self {
            Self::Pod {
                namespace,
                name,
                port,
            } => Target::Api(format!(
                "/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{page}"
            )),
            Self::Outside(address) => Target::Outside(*address, page),
        }
    }
}

/// What can be asked.
#[derive(Debug)]
pub(super) enum Target {
    /// A path of the API server.
    Api(String),
    /// A page of a machine outside the cluster.
    Outside(SocketAddr, &'static str),
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    pub(super) text: Vec<u8>,
    /// Whether the text goes on.
    pub(super) is_cut: bool,
}

impl Target {
    /// Reads an answer, at most so many bytes of it. The error is a line for people.
    pub(super) async fn read(&self, client: &Client, most: usize) -> Result<Answer, String> {
        let read = async {
            match self {
                Self::Api(path) => {
                    let request = Request::get(path).body(kube::client::Body::empty())?;
                    Answer::read(client.send(request).await?, most).await
                }
                Self::Outside(address, page) => {
                    Answer::read(directly(*address, page).await?, most).await
                }
            }
        };
        match tokio::time::timeout(TIMEOUT, read).await {
            Ok(read) => read.map_err(|error| chain(&*error)),
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }
}

async fn directly(address: SocketAddr, page: &str) -> Result<Response<hyper::body::Incoming>> {
    let stream = TcpStream::connect(address)
        .await
        .context("cannot connect")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, after which the other side closes.
    tokio::spawn(connection);
    let request = Request::get(page).header(HOST, address.to_string());
    let request = request.body(Empty::<Bytes>::new())?;
    Ok(sender.send_request(request).await?)
}

impl Answer {
    async fn read<B>(response: Response<B>, most: usize) -> Result<Self>
    where
        B: Body<Data = Bytes, Error: Into<anyhow::Error>> + Unpin,
    {
        let status = response.status();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while text.len() <= most
            && let Some(frame) = body.frame().await
        {
            let frame = frame.map_err(Into::into)?;
            text.extend(frame.data_ref().into_iter().flatten());
        }
        let is_cut = text.len() > most;
        text.truncate(most);
        Ok(Self {
            status,
            text,
            is_cut,
        })
    }

    /// Returns why it is not what was asked for: the API server's own words if it has any.
    pub(super) fn refusal(&self) -> Option<String> {
        if self.status.is_success() {
            return None;
        }
        Some(self.words_of_api().unwrap_or_else(|| {
            let text: String = String::from_utf8_lossy(&self.text)
                .trim()
                .chars()
                .take(QUOTED)
                .collect();
            printable(&format!("HTTP status {}: {text}", self.status))
        }))
    }

    /// Returns the message of the API server, if it answers in place of a pod.
    pub(super) fn words_of_api(&self) -> Option<String> {
        let status: Status = serde_json::from_slice(&self.text).ok()?;
        Some(status.message).filter(|message| !message.is_empty())
    }
}
