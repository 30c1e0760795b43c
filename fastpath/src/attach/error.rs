//! Reasons why a program could not be attached.

use std::{io, path::Path};

use aya::programs::{ProgramError, links::LinkError};

use super::{Obstacle, Owner};
use crate::{
    facts::{Interface, InterfaceError, RequestError, XdpMode},
    pins::PinError,
    refusal::Refusal,
};

/// Reasons why a program could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error("interface {interface}: cannot attach: {refusal}")]
    Refused {
        interface: String,
        refusal: Refusal,
        #[source]
        source: io::Error,
    },
    #[error("interface {interface}: {owner}")]
    Occupied {
        interface: String,
        /// The owner of the other program, as far as it is known.
        owner: Owner,
        #[source]
        source: io::Error,
    },
    #[error("interface {interface}: {mode} XDP is not possible: {obstacle}")]
    Impossible {
        interface: String,
        mode: XdpMode,
        obstacle: Obstacle,
        #[source]
        source: io::Error,
    },
    #[error(
        "interface {interface}: generic XDP would see packets merged by {}; switch that off: \
         `ethtool -K {interface}{}`", .features.join(", "), off(.features)
    )]
    Merging {
        interface: String,
        features: Vec<String>,
    },
    #[error("interface {interface}: cannot switch off {}", .features.join(", "))]
    Offloads {
        interface: String,
        features: Vec<String>,
        #[source]
        source: RequestError,
    },
    #[error(
        "interface {interface}: an earlier run attached in {in_force} mode, which the configuration does not allow; \
         `guideway detach` first (packets pass unbalanced until the next start), or allow that mode"
    )]
    OtherMode {
        interface: String,
        in_force: XdpMode,
    },
    #[error(
        "interface {interface}: the link pinned as {pin} works in another network namespace; \
         give each its own pin directory"
    )]
    OtherNamespace { interface: String, pin: String },
    #[error(
        "interface {interface}: kernel {release} has no place for a program at egress: neither tcx (6.6 or \
         later) nor the clsact qdisc with BPF filters; `modprobe -a sch_ingress cls_bpf`, or upgrade the kernel"
    )]
    NoEgress {
        interface: String,
        release: String,
        #[source]
        source: RequestError,
    },
    #[error(
        "interface {interface}: its ingress qdisc stands in the way of clsact, and this kernel has no tcx; \
         have its owner use clsact, which takes the same filters (`tc qdisc del dev {interface} ingress` \
         removes it with them)"
    )]
    IngressQdisc { interface: String },
    #[error("interface {interface}: cannot {attempt}")]
    Link {
        interface: String,
        attempt: &'static str,
        #[source]
        source: Box<LinkFailure>,
    },
}

/// The part of an attachment that failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum LinkFailure {
    /// The program in the link.
    Program(#[from] ProgramError),
    /// The link itself.
    Link(#[from] LinkError),
    /// The filter that stands in for the link.
    Request(#[from] RequestError),
}

impl AttachError {
    /// Tells whether generic mode may succeed where native mode failed.
    pub(super) const fn allows_fallback(&self) -> bool {
        matches!(self, Self::Impossible { .. })
    }
}

pub(super) fn link_error<E: Into<LinkFailure>>(
    device: &Interface,
    attempt: &'static str,
) -> impl Fn(E) -> AttachError {
    let interface = device.name.clone();
    move |source| AttachError::Link {
        interface: interface.clone(),
        attempt,
        source: Box::new(source.into()),
    }
}

pub(super) fn other_namespace(device: &Interface, pin: &Path) -> AttachError {
    AttachError::OtherNamespace {
        interface: device.name.clone(),
        pin: pin.display().to_string(),
    }
}

fn off(features: &[String]) -> String {
    features
        .iter()
        .map(|feature| format!(" {feature} off"))
        .collect()
}
