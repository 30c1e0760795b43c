//! Reasons why pins could not be made, read or removed.

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::maps::MapError;

use crate::{
    facts::RequestError,
    refusal::{Refusal, is_refusal},
};

/// Reasons why pins could not be made, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    #[error(
        "pin directory {}: {} is not on a BPF file system (magic {magic:#x}); \
         mount one with `mount -t bpf bpf /sys/fs/bpf`, in a container mount the host's /sys/fs/bpf",
        .root.display(), .directory.display()
    )]
    NotBpffs {
        root: PathBuf,
        directory: PathBuf,
        magic: u64,
    },
    #[error("pin {}: {refusal}", .path.display())]
    Refused {
        path: PathBuf,
        refusal: Refusal,
        #[source]
        source: io::Error,
    },
    #[error("pin {}: cannot {attempt}", .path.display())]
    Io {
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("map {map}: not pinned in {}; is the agent running with this pin directory?", .directory.display())]
    NoMap { map: String, directory: PathBuf },
    #[error("map {map}: cannot open its pin {}", .path.display())]
    Map {
        map: String,
        path: PathBuf,
        #[source]
        source: Box<MapError>,
    },
    #[error(
        "interface {interface}: program {program} is still attached although its pin is removed: \
         another process holds the link; `bpftool link` names it"
    )]
    StillAttached { interface: String, program: u32 },
    #[error("cannot {attempt}")]
    Devices {
        attempt: String,
        #[source]
        source: RequestError,
    },
}

impl PinError {
    pub(crate) fn io(attempt: &'static str, path: &Path, source: io::Error) -> Self {
        if is_refusal(&source) {
            return Self::Refused {
                path: path.to_owned(),
                refusal: Refusal::Ownership,
                source,
            };
        }
        Self::Io {
            attempt,
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn link(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if is_refusal(&source) {
            return Self::Refused {
                path,
                refusal: Refusal::of_bpf(),
                source,
            };
        }
        Self::Io {
            attempt: "open it as a link",
            path,
            source,
        }
    }
}
