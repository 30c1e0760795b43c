//! Finished frames, and how they leave by devices that take none from XDP.

use std::{io, ops::Range};

use crate::port::{Port, Rings};

/// Finished frames of a turn, each with the index of its device.
#[derive(Debug, Default)]
pub(super) struct Finished {
    bytes: Vec<u8>,
    frames: Vec<(u32, Range<usize>)>,
}

impl Finished {
    /// Appends a frame.
    pub(super) fn push(&mut self, device: u32, frame: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        self.frames.push((device, start..self.bytes.len()));
    }

    /// Groups the frames by device, those of each in the order in which they came.
    pub(super) fn by_device(
        &mut self,
    ) -> impl Iterator<Item = (u32, impl ExactSizeIterator<Item = &[u8]>)> {
        self.frames.sort_by_key(|(device, _)| *device);
        let bytes = &self.bytes;
        let groups = self.frames.chunk_by(|(one, _), (other, _)| one == other);
        groups.filter_map(move |frames| {
            let (device, _) = frames.first()?;
            let frames = frames.iter();
            Some((*device, frames.map(move |(_, range)| &bytes[range.clone()])))
        })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Forgets the frames, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
    }
}

/// What became of frames that were to be sent by a port.
#[derive(Debug)]
pub(super) struct Sent {
    /// Frames for which there was no room.
    pub(super) refused: u64,
    /// Why the device sends nothing.
    pub(super) outcome: io::Result<()>,
}

/// Sends frames by a port, as far as the device takes them.
pub(super) fn send<'f, R: Rings>(
    port: &mut Port<R>,
    frames: impl Iterator<Item = &'f [u8]>,
) -> Sent {
    let mut sent = Sent {
        refused: 0,
        outcome: Ok(()),
    };
    let mut filled = Vec::new();
    let mut is_stuck = false;
    for frame in frames {
        let mut free = port.allocate();
        if free.is_none() && !is_stuck {
            port.send(&mut filled);
            sent.outcome = port.turn();
            free = port.allocate();
            is_stuck = free.is_none() || sent.outcome.is_err();
        }
        let Some(mut buffer) = free else {
            sent.refused += 1;
            continue;
        };
        if port.resize(&mut buffer, frame.len()) {
            port.bytes_mut(&mut buffer).copy_from_slice(frame);
            filled.push(buffer);
        } else {
            sent.refused += 1;
            port.release(buffer);
        }
    }
    while sent.outcome.is_ok() && port.send(&mut filled) > 0 {
        sent.outcome = port.turn();
    }
    for buffer in filled {
        sent.refused += 1;
        port.release(buffer);
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::memory::MemoryRings;

    fn frame(number: usize) -> Vec<u8> {
        vec![u8::try_from(number).unwrap(); 60 + number]
    }

    #[test]
    fn frames_of_a_device_stay_in_order() {
        let mut finished = Finished::default();
        for (number, device) in [7, 9, 7, 7, 9].into_iter().enumerate() {
            finished.push(device, &frame(number));
        }
        let grouped = |finished: &mut Finished| -> Vec<(u32, Vec<Vec<u8>>)> {
            let groups = finished.by_device();
            groups
                .map(|(device, frames)| (device, frames.map(<[u8]>::to_vec).collect()))
                .collect()
        };
        let expected = vec![
            (7, vec![frame(0), frame(2), frame(3)]),
            (9, vec![frame(1), frame(4)]),
        ];
        assert_eq!(grouped(&mut finished), expected);
        finished.clear();
        assert_eq!(grouped(&mut finished), vec![]);
    }

    #[test]
    fn more_frames_than_buffers_leave_while_the_device_takes_them() {
        let mut port = Port::new(MemoryRings::new(64, 64), 64);
        let frames: Vec<_> = (0..100).map(frame).collect();
        let mut left = 0;
        for some in frames.chunks(40) {
            port.rings_mut().catch_up(usize::MAX);
            let sent = send(&mut port, some.iter().map(Vec::as_slice));
            sent.outcome.unwrap();
            left += some.len() as u64 - sent.refused;
        }
        assert_eq!(left, 100);
        assert_eq!(port.rings().sent, frames);
    }

    #[test]
    fn device_that_takes_nothing_gets_what_its_ring_holds() {
        let mut port = Port::new(MemoryRings::new(40, 32), 40);
        port.rings_mut().refusals.extend([libc::EAGAIN; 64]);
        let frames: Vec<_> = (0..100).map(frame).collect();
        let sent = send(&mut port, frames.iter().map(Vec::as_slice));
        sent.outcome.unwrap();
        assert_eq!(sent.refused, 100 - 32);
        assert_eq!(port.in_transit(), 32);
        assert_eq!(port.balance().held, 0);
    }

    #[test]
    fn device_that_is_gone_is_told() {
        let mut port = Port::new(MemoryRings::new(40, 32), 40);
        port.rings_mut().refusals.push_back(libc::ENXIO);
        let frames: Vec<_> = (0..3).map(frame).collect();
        let sent = send(&mut port, frames.iter().map(Vec::as_slice));
        let error = sent.outcome.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        assert_eq!((sent.refused, port.in_transit()), (0, 3));
    }
}
