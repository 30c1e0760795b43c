//! What comes to the sinks.

use anyhow::{Context, Result, ensure};
use aya::Ebpf;
use xdp_prog::{
    abi::Traffic,
    wire::{ethernet::Ethernet, ipv4::Ipv4},
};

use super::{FULL, Family, Subject};
use crate::datapath::object;

/// Frames that have come to the sinks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrived {
    /// From the far ends where they were sent to.
    pub(super) back: Traffic,
    /// Pieces, and frames by a bridge.
    pub(super) by_thread: Traffic,
}

impl Arrived {
    /// Reads what the sinks of both have counted.
    pub(super) fn read(back: &mut Ebpf, by_thread: &mut Ebpf) -> Result<Self> {
        Ok(Self {
            back: object::received(back)?,
            by_thread: object::received(by_thread)?,
        })
    }

    /// Returns the number of a subject's frames while more may come: the sinks may be counting, so lengths tell nothing.
    pub(super) fn frames(&self, subject: Subject) -> u64 {
        match subject {
            Subject::HalfCut => self.back.packets,
            Subject::Cut | Subject::CutPaced => self.by_thread.packets / 2,
            _ => self.packets(),
        }
    }

    pub(super) fn packets(&self) -> u64 {
        self.back.packets + self.by_thread.packets
    }

    fn bytes(&self) -> u64 {
        self.back.bytes + self.by_thread.bytes
    }

    /// Returns the number of a subject's frames when no more come. Each must have the length that it gets on its way.
    pub(super) fn whole_frames(
        &self,
        subject: Subject,
        family: Family,
        frame: usize,
    ) -> Result<u64> {
        let outer = family.header_length();
        let lengths_are = |of: Traffic, length: usize| {
            ensure!(
                of.bytes == of.packets * length as u64,
                "{} frames came with {} bytes in all, expected {length} bytes each",
                of.packets,
                of.bytes
            );
            Ok(of.packets)
        };
        let all = Traffic {
            packets: self.packets(),
            bytes: self.bytes(),
        };
        match subject {
            Subject::L2Fwd | Subject::L2FwdBridge => lengths_are(all, frame),
            Subject::HalfCut => lengths_are(self.back, frame + outer),
            Subject::Cut | Subject::CutPaced => pieces(self.by_thread, frame, outer),
            _ => lengths_are(all, frame + outer),
        }
    }
}

/// Returns the number of frames whose two pieces have both come.
fn pieces(of: Traffic, frame: usize, outer: usize) -> Result<u64> {
    let headers = Ethernet::LENGTH + Ipv4::LENGTH;
    let payload = frame - headers;
    // Fragments count eight bytes each.
    let first = (usize::from(FULL) - outer - Ipv4::LENGTH) / 8 * 8;
    let [long, short] = [first, payload - first].map(|payload| (headers + outer + payload) as u64);
    let longer = of.bytes.checked_sub(of.packets * short);
    let longer = longer.filter(|bytes| bytes % (long - short) == 0);
    let firsts = longer.map(|bytes| bytes / (long - short));
    let firsts = firsts.filter(|firsts| *firsts <= of.packets);
    let firsts = firsts.with_context(|| {
        format!(
            "{} pieces came with {} bytes in all, expected {long} and {short} bytes",
            of.packets, of.bytes
        )
    })?;
    Ok(firsts.min(of.packets - firsts))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 1514;

    fn frames(subject: Subject, back: [u64; 2], by_thread: [u64; 2]) -> Result<u64> {
        let [back, by_thread] =
            [back, by_thread].map(|[packets, bytes]| Traffic { packets, bytes });
        let frame = if subject.is_cut() { FRAME } else { 60 };
        Arrived { back, by_thread }.whole_frames(subject, Family::V4, frame)
    }

    #[test]
    fn packet_that_was_cut_counts_when_both_pieces_came() {
        let pieces = |first: u64, second: u64| {
            frames(
                Subject::Cut,
                [0, 0],
                [first + second, first * 1510 + second * 78],
            )
        };
        assert_eq!(pieces(10, 10).unwrap(), 10);
        assert_eq!(pieces(10, 7).unwrap(), 7);
        assert_eq!(pieces(0, 3).unwrap(), 0);
        let other = frames(Subject::CutPaced, [0, 0], [2, 1600]);
        assert!(format!("{:#}", other.unwrap_err()).contains("expected 1510 and 78 bytes"));
    }

    #[test]
    fn frames_have_the_length_that_they_get_on_their_way() {
        assert_eq!(frames(Subject::L2Fwd, [5, 300], [0, 0]).unwrap(), 5);
        assert_eq!(frames(Subject::Thousandth, [5, 400], [1, 80]).unwrap(), 6);
        assert_eq!(frames(Subject::HalfCut, [2, 3068], [9, 9]).unwrap(), 2);
        let short = frames(Subject::Carried, [0, 0], [2, 159]);
        assert!(format!("{:#}", short.unwrap_err()).contains("expected 80 bytes each"));
    }
}
