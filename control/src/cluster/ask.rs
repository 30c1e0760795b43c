//! Reads pages of agents and controllers.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::api::{MAX_REPLY_BYTES, Reply};
use crate::chain::chain;

/// Time limit of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

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
        page: &str,
    ) -> Result<T, String> {
        let text = self.get(client, page).await?;
        match serde_json::from_slice(&text) {
            Ok(Reply::Ok(document)) => Ok(document),
            Ok(Reply::Error(reason)) => Err(reason),
            Err(error) => Err(format!("its page {page} is not understood: {error}")),
        }
    }

    /// Reads a page. The error is a line for people.
    pub(super) async fn get(&self, client: &Client, page: &str) -> Result<Bytes, String> {
        let read = async {
            match self {
                Self::Pod {
                    namespace,
                    name,
                    port,
                } => by_proxy(client, namespace, &format!("{name}:{port}"), page).await,
                Self::Outside(address) => directly(*address, page).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, read).await {
            Ok(read) => read.map_err(|error| chain(&*error)),
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }
}

async fn by_proxy(client: &Client, namespace: &str, pod: &str, page: &str) -> Result<Bytes> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/proxy{page}");
    let request = Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?.into())
}

async fn directly(address: SocketAddr, page: &str) -> Result<Bytes> {
    let stream = TcpStream::connect(address)
        .await
        .context("cannot connect")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, after which the other side closes.
    tokio::spawn(connection);
    let request = Request::get(page).header(HOST, address.to_string());
    let response = sender
        .send_request(request.body(Empty::<Bytes>::new())?)
        .await?;
    let status = response.status();
    ensure!(status == StatusCode::OK, "HTTP status {status}");
    let limit = usize::try_from(MAX_REPLY_BYTES)?;
    match Limited::new(response.into_body(), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => bail!("{error}"),
    }
}
