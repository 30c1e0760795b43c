//! The way to the stack, for frames that turn out not to be ours.

use std::io;

use xdp_prog::parse::Link;

use crate::mend::{Back as _, Pair, PairError, WayBack};

/// Hands frames to the stack.
pub(super) trait Stack {
    /// Hands a frame over, whose link is read already.
    ///
    /// # Errors
    ///
    /// Fails if it is not taken.
    fn take(&mut self, frame: &[u8], link: Link) -> io::Result<()>;
}

/// The stack by the veth pair by which mended frames go to it as well.
#[derive(Debug)]
pub(super) struct PairStack {
    sender: WayBack,
    mac: [u8; 6],
    /// The frame as it goes into the pair.
    frame: Vec<u8>,
}

impl PairStack {
    /// Opens the way by a pair.
    ///
    /// # Errors
    ///
    /// Fails if the kernel opens no packet socket.
    pub(super) fn by(pair: &Pair) -> Result<Self, PairError> {
        Ok(Self {
            sender: pair.sender()?,
            mac: pair.mac,
            frame: Vec::new(),
        })
    }
}

impl Stack for PairStack {
    fn take(&mut self, frame: &[u8], link: Link) -> io::Result<()> {
        put_for_stack(&mut self.frame, frame, link, self.mac);
        self.sender.send(&self.frame)
    }
}

/// Writes a frame as the stack takes it at the pair's end: for the MAC there, and without VLAN tags.
fn put_for_stack(to: &mut Vec<u8>, frame: &[u8], link: Link, mac: [u8; 6]) {
    to.clear();
    to.extend_from_slice(&mac);
    to.extend_from_slice(frame.get(6..12).unwrap_or_default());
    to.extend_from_slice(&link.ether_type.to_be_bytes());
    to.extend_from_slice(frame.get(link.l3..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_gets_frame_without_tags_for_its_own_mac() {
        let frame = b"DDDDDDSSSSSS\x81\x00\x00\x07\x08\x00packet";
        let link = Link {
            ether_type: 0x0800,
            l3: 18,
        };
        let mut written = b"other".to_vec();
        put_for_stack(&mut written, frame, link, *b"MMMMMM");
        assert_eq!(written, b"MMMMMMSSSSSS\x08\x00packet");
    }
}
