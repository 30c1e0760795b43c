//! Explains which backend a flow gets and why, with the datapath's own code over the live tables.
//!
//! A frame runs through the same `decide`, stages and rewrites as in the kernel. Look-ups use the live tables and the
//! kernel's FIB; nothing is remembered or counted.

mod fib;
mod flow_frame;
mod headers;
mod run;
mod world;

use std::{fmt, net::SocketAddr};

use xdp_prog::frame::HostFrame;

use self::{flow_frame::first_frame, run::Run};
use super::{BackendKey, ServiceKey, Tables};

/// The result of one decision, as far as it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The chosen backend, if there is such a service, it has one, and the packet got as far.
    pub choice: Option<ChosenBackend>,
    /// The new addresses and ports of a packet in NAT mode.
    pub translated: Option<Translated>,
    pub verdict: Outcome,
}

/// The new addresses and ports of a packet in NAT mode: `10.0.0.9:61001 -> 10.0.0.7:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// New source.
    pub source: SocketAddr,
    /// New destination.
    pub destination: SocketAddr,
    /// Whether the packet belongs to no known flow. When a real packet comes, another port may be free.
    pub is_new: bool,
}

impl fmt::Display for Translated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.source, self.destination)?;
        if self.is_new {
            f.write_str(", a new flow: by this port or another one that is free")?;
        }
        Ok(())
    }
}

/// The steps by which the backend of a flow was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenBackend {
    pub hash: u32,
    /// Index of the slot within the service's table.
    pub slot: u32,
    pub slots: u32,
    pub backend: BackendKey,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is sent out of the device with this index.
    Forward(u32),
    /// It is handed to the stack, for this reason.
    Pass(&'static str),
    /// It is dropped, for this reason.
    Drop(&'static str),
    /// It is answered, with this reply.
    Reply(&'static str),
}

/// The way of one frame, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The steps, in order.
    pub steps: Vec<TraceStep>,
    pub before: Vec<u8>,
    /// The frame as it goes on; the frame of a dropped packet may be half edited.
    pub after: Vec<u8>,
    pub verdict: Outcome,
}

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// Topic of the step: `parse`, `inner`, `ports`, `service`, `policy`, `pod`, `slot`, `past`, `pin`, `backend`,
    /// `next hop`, `fib`, `nat`, `flow`, `stage`, `mend`, `count`.
    pub name: &'static str,
    pub text: String,
}

impl Tables {
    /// Decides as the datapath would about the first small packet of a flow that comes in by device `ingress`.
    ///
    /// With device 0, the kernel's FIB is not asked, because it could not answer.
    ///
    /// Returns `None` if service and client are of different families.
    pub fn which(
        &self,
        service: &ServiceKey,
        from: SocketAddr,
        ingress: u32,
    ) -> Option<Explanation> {
        let run = Run::of(self, HostFrame::new(&first_frame(service, from)?), ingress);
        Some(Explanation {
            choice: run.choice,
            translated: run.translated,
            verdict: run.verdict,
        })
    }

    /// Follows the first small packet of a flow; see [`Tables::trace_frame`].
    ///
    /// Returns `None` if service and client are of different families.
    pub fn trace(&self, service: &ServiceKey, from: SocketAddr, ingress: u32) -> Option<Trace> {
        Some(self.trace_frame(&first_frame(service, from)?, ingress))
    }

    /// Follows a frame, which begins with its Ethernet header, as if it had come in by device `ingress`; see
    /// [`Tables::which`].
    pub fn trace_frame(&self, bytes: &[u8], ingress: u32) -> Trace {
        let run = Run::of(self, HostFrame::new(bytes), ingress);
        Trace {
            steps: run.steps,
            before: bytes.to_vec(),
            after: run.after,
            verdict: run.verdict,
        }
    }
}
