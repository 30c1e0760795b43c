//! The key that edges share, and the tags that it makes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::{digest, hmac};

/// Fewest bytes of a key: as many as the hash has (RFC 2104 section 3).
const FEWEST_BYTES: usize = 32;
/// Most bytes of a key. More add nothing, and the file is hardly a key.
const MOST_BYTES: u64 = 4096;
/// Length of a tag in bytes.
pub(super) const TAG_BYTES: usize = 32;
/// Length of a nonce in bytes.
pub(super) const NONCE_BYTES: usize = 32;

/// The key with which edges authenticate each other.
#[derive(Clone, Debug)]
pub struct Key(hmac::Key);

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The key is too short.
    #[error("the key has {0} bytes, which is fewer than {FEWEST_BYTES}")]
    TooShort(usize),
    /// The file is too long.
    #[error("the file has more than {MOST_BYTES} bytes, which is no key")]
    TooLong,
}

/// Who made a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Asker = 1,
    Answerer = 2,
}

impl Key {
    /// Reads the key in a file. A line break at its end is not part of it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or has too few or too many bytes.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let read = |source| KeyError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(read)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(KeyError::TooLong);
        }
        Self::of_text(&bytes)
    }

    /// Makes a key of its bytes. A line break at their end is not part of it.
    ///
    /// # Errors
    ///
    /// When there are too few.
    pub(crate) fn of_text(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        Self::new(bytes.strip_suffix(b"\r").unwrap_or(bytes))
    }

    /// Makes a key of its bytes.
    ///
    /// # Errors
    ///
    /// When there are too few.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.len() < FEWEST_BYTES {
            return Err(KeyError::TooShort(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// Returns the tag of a side's message with this number in a session.
    pub(super) fn tag(
        &self,
        side: Side,
        session: &Session,
        number: u32,
        body: &[u8],
    ) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.0, &session.signed(side, number, body));
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Tells whether a message has its tag. Takes the same time for all tags.
    pub(super) fn has_tag(
        &self,
        side: Side,
        session: &Session,
        number: u32,
        body: &[u8],
        tag: &[u8],
    ) -> bool {
        hmac::verify(&self.0, &session.signed(side, number, body), tag).is_ok()
    }
}

/// What both greetings of a connection make; no two connections have the same.
#[derive(Clone, Debug)]
pub(super) struct Session(digest::Digest);

impl Session {
    pub(super) fn new(asker: &[u8], answerer: &[u8]) -> Self {
        let mut both = digest::Context::new(&digest::SHA256);
        both.update(asker);
        both.update(answerer);
        Self(both.finish())
    }

    fn signed(&self, side: Side, number: u32, body: &[u8]) -> Vec<u8> {
        let body = digest::digest(&digest::SHA256, body);
        let parts = [
            b"guideway peers".as_slice(),
            &[side as u8],
            self.0.as_ref(),
            &number.to_be_bytes(),
            body.as_ref(),
        ];
        parts.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_32_bytes_at_least_and_no_line_break() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Key::read(&path)
        };
        let short = read(b"secret\n").unwrap_err().to_string();
        assert_eq!(short, "the key has 6 bytes, which is fewer than 32");
        assert!(matches!(read(&[7; 4097]), Err(KeyError::TooLong)));
        let session = Session::new(b"a", b"b");
        let tag = |bytes: &[u8]| read(bytes).unwrap().tag(Side::Asker, &session, 0, b"x");
        let plain = tag(&[b'k'; 32]);
        assert_eq!(tag(&[&[b'k'; 32][..], b"\r\n"].concat()), plain);
        assert_ne!(tag(&[b'k'; 33]), plain);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Key::read(&path), Err(KeyError::Read { .. })));
    }

    #[test]
    fn tag_is_of_one_side_session_number_and_body() {
        let key = Key::new(&[1; 32]).unwrap();
        let sessions = [Session::new(b"a", b"b"), Session::new(b"b", b"a")];
        let tag = key.tag(Side::Asker, &sessions[0], 3, b"body");
        assert!(key.has_tag(Side::Asker, &sessions[0], 3, b"body", &tag));
        assert!(!key.has_tag(Side::Answerer, &sessions[0], 3, b"body", &tag));
        assert!(!key.has_tag(Side::Asker, &sessions[1], 3, b"body", &tag));
        assert!(!key.has_tag(Side::Asker, &sessions[0], 4, b"body", &tag));
        assert!(!key.has_tag(Side::Asker, &sessions[0], 3, b"bodY", &tag));
        assert!(!key.has_tag(Side::Asker, &sessions[0], 3, b"body", &tag[..31]));
        let other = Key::new(&[2; 32]).unwrap();
        assert!(!other.has_tag(Side::Asker, &sessions[0], 3, b"body", &tag));
    }
}
