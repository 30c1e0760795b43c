//! The tar file of a bundle.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;

use super::redact::redacted;

const WRITE: &str = "cannot write the bundle";

/// A file with files, all in one directory.
pub(super) struct Archive {
    tar: tar::Builder<BufWriter<File>>,
    directory: String,
    /// When it was begun, in seconds since 1970.
    time: u64,
    files: usize,
    /// What could not be had, a line each.
    errors: Vec<String>,
}

impl Archive {
    /// Creates the file, which only its owner may read, with the version of this program in it. A file that exists is left
    /// as it is.
    pub(super) fn create(path: &Path, directory: String, now: Timestamp) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let mut archive = Self {
            tar: tar::Builder::new(BufWriter::new(file)),
            directory,
            time: u64::try_from(now.as_second()).unwrap_or(0),
            files: 0,
            errors: Vec::new(),
        };
        let about = format!("guideway {} at {now}\n", env!("CARGO_PKG_VERSION"));
        archive.append("version.txt", about.as_bytes())?;
        Ok(archive)
    }

    /// Adds a file, without what looks like a secret.
    pub(super) fn add(&mut self, name: &str, text: &[u8]) -> Result<()> {
        self.append(name, text)?;
        self.files += 1;
        Ok(())
    }

    /// Notes that a file, or a part of it, could not be had.
    pub(super) fn miss(&mut self, name: &str, reason: &str) {
        self.errors.push(format!("{name}: {reason}\n"));
    }

    /// Adds the notes, and says how many files were added, and how many notes.
    pub(super) fn finish(mut self) -> Result<(usize, usize)> {
        let errors = self.errors.concat();
        self.append("errors.txt", errors.as_bytes())?;
        let mut file = self.tar.into_inner().context(WRITE)?;
        file.flush().context(WRITE)?;
        Ok((self.files, self.errors.len()))
    }

    fn append(&mut self, name: &str, text: &[u8]) -> Result<()> {
        let text = redacted(text);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(self.time);
        header.set_size(u64::try_from(text.len())?);
        let path = format!("{}/{name}", self.directory);
        let written = self.tar.append_data(&mut header, path, &*text);
        written.context(WRITE)
    }
}
