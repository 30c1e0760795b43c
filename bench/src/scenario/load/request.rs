//! Who sends, and what a request is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use xdp_prog::bench::NUMBER_LENGTH;

use crate::{
    datapath::Protocol,
    load::{message::Form, pktgen},
    probe::PROBE_LENGTH,
    result::Stream,
};

/// What sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GeneratorKind {
    /// Sockets: a request to a backend, and its answer. Open loop: no request waits for an answer.
    Sockets,
    /// Numbered frames that a BPF program makes in the kernel, right before the system, and counts right behind it.
    /// Nobody answers, and there are no latencies.
    Live,
    /// The same frames, made by this program and sent by an AF_XDP socket.
    Afxdp,
    /// Frames of the kernel's own generator, by threads of the kernel. Counted by the same sink.
    Pktgen,
}

/// What a request of the generator `sockets` is, and when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Request and answer; with TCP by the flow's connection, which is open before.
    Rr,
    /// A TCP connection of its own: opened, used for request and answer, and reset.
    Crr,
    /// The same, but the round trip ends when the connection is open. The answer still tells the backend.
    Connect,
    /// Request and answer by HTTP/1.1, on the flow's connection, which is open before.
    Http,
}

/// What the TCP segments of frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Segment {
    /// Data of a connection, without a handshake before.
    Data,
    /// The begin of a connection: a SYN. With flows that are all new, a SYN flood.
    Syn,
}

/// Who stamps datagrams as they leave the client, and answers as they come (`SO_TIMESTAMPING`): so the time between has no
/// wake-up of a thread in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stamps {
    /// Nobody.
    None,
    /// The kernel: when the driver gets a datagram, and when the driver has handed an answer over.
    Kernel,
    /// The network card, by its own clock: as they leave for the cable, and as they come from it.
    Card,
}

impl GeneratorKind {
    /// Returns the quantities that it measures of each request.
    pub fn streams(self) -> &'static [Stream] {
        match self {
            Self::Sockets => &Stream::ALL,
            Self::Live | Self::Afxdp | Self::Pktgen => &[],
        }
    }

    /// Tells whether it makes frames of its own that a sink counts, and not requests that are answered.
    pub fn makes_frames(self) -> bool {
        matches!(self, Self::Live | Self::Afxdp | Self::Pktgen)
    }

    /// Returns the bytes of a payload by which requests are told apart.
    pub(super) fn mark_length(self, protocol: Protocol, exchange: Exchange) -> usize {
        match (self, protocol) {
            (Self::Sockets, Protocol::Udp) => PROBE_LENGTH,
            (Self::Sockets, Protocol::Tcp) => Form::of(exchange).overhead() + PROBE_LENGTH,
            (Self::Live | Self::Afxdp, _) => NUMBER_LENGTH,
            (Self::Pktgen, _) => pktgen::HEADER_LENGTH,
        }
    }
}

impl Exchange {
    /// Tells whether each request makes a connection of its own.
    pub fn connects(self) -> bool {
        matches!(self, Self::Crr | Self::Connect)
    }
}
