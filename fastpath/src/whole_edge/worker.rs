//! The frames of one queue, batch by batch.

use std::{io, sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;
use xdp_prog::{capture::Reasons, frame::HostFrame, parse, process::Action, whole_edge::ROOM};

use super::{
    copies::FrameCopier,
    counts::{EdgeCounts, EdgeOutcome, Tally},
    stack::Stack,
};
use crate::{
    capture::action,
    port::{Buffer, Port, Rings},
    tables::EdgeWorld,
};

/// Frames of a batch: as many as the kernel hands over at once (`NAPI_POLL_WEIGHT`).
const BATCH: usize = 64;
/// Longest sleep while frames are on their way out, which leave only for as long as turns are made.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// A frame in a buffer of the port.
pub(super) type BufferFrame<'b> = HostFrame<&'b mut [u8]>;

/// Decides about frames.
pub(super) trait Datapath {
    /// Begins a batch.
    fn begin(&mut self);
    /// Takes a frame of the batch all the way.
    fn process(&mut self, frame: &mut BufferFrame<'_>, ingress: u32) -> Action;
    /// Returns the reasons that were counted since they were returned last.
    fn take_reasons(&mut self) -> Reasons;
    /// Ends the batch.
    fn end(&mut self);
}

impl Datapath for EdgeWorld {
    fn begin(&mut self) {
        Self::begin(self);
    }

    fn process(&mut self, frame: &mut BufferFrame<'_>, ingress: u32) -> Action {
        Self::process(self, frame, ingress)
    }

    fn take_reasons(&mut self) -> Reasons {
        Self::take_reasons(self)
    }

    fn end(&mut self) {
        Self::end(self);
    }
}

/// One queue: its port, and what decides about its frames.
#[derive(Debug)]
pub(super) struct Worker<R, D, S> {
    port: Port<R>,
    datapath: D,
    stack: S,
    copier: FrameCopier,
    /// Interface index.
    device: u32,
    batch: Vec<Buffer>,
    /// Frames that found no room in the TX ring yet.
    leaving: Vec<Buffer>,
    tally: Tally,
    counts: Arc<CachePadded<EdgeCounts>>,
}

impl<R: Rings, D: Datapath, S: Stack> Worker<R, D, S> {
    pub(super) fn new(
        port: Port<R>,
        datapath: D,
        stack: S,
        copier: FrameCopier,
        device: u32,
        counts: Arc<CachePadded<EdgeCounts>>,
    ) -> Self {
        Self {
            port,
            datapath,
            stack,
            copier,
            device,
            batch: Vec::with_capacity(BATCH),
            leaving: Vec::with_capacity(BATCH),
            tally: Tally::default(),
            counts,
        }
    }

    /// Takes a batch and sends what comes of it. Returns the number of frames taken.
    ///
    /// # Errors
    ///
    /// Fails if the device sends no frames for another reason than that it is busy or down.
    pub(super) fn turn(&mut self) -> io::Result<usize> {
        let taken = self.take();
        self.port.send(&mut self.leaving);
        self.port.turn()?;
        Ok(taken)
    }

    /// Waits for frames for so long at most.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot wait.
    pub(super) fn wait(&mut self, longest: Duration) -> io::Result<()> {
        let is_sending = self.port.in_transit() + self.leaving.len() > 0;
        let timeout = if is_sending { SHORT_SLEEP } else { longest };
        self.port.wait(timeout).map(drop)
    }

    /// Shows others what the kernel has lost of this queue.
    pub(super) fn show_losses(&self) {
        // If the kernel does not tell, what it told last stands.
        if let Ok(losses) = self.port.losses() {
            self.counts.show_losses(losses);
        }
    }

    /// Takes a batch, unless frames of the last one wait for room. What is not taken is lost in the kernel, before it
    /// costs a copy.
    fn take(&mut self) -> usize {
        if !self.leaving.is_empty() {
            return 0;
        }
        let mut batch = std::mem::take(&mut self.batch);
        let taken = self.port.receive(&mut batch, BATCH);
        if taken > 0 {
            self.copier.begin();
            self.datapath.begin();
            for buffer in batch.drain(..) {
                self.finish(buffer);
            }
            self.datapath.end();
            self.tally[EdgeOutcome::Taken as usize] = taken as u64;
            self.counts.add(&mut self.tally);
        }
        self.batch = batch;
        taken
    }

    fn finish(&mut self, mut buffer: Buffer) {
        let bytes = self.port.bytes_mut(&mut buffer);
        let mut frame = HostFrame::behind(ROOM, &mut *bytes);
        let (datapath, copier) = (&mut self.datapath, &mut self.copier);
        let action = process(datapath, copier, &mut frame, self.device);
        let outcome = match action {
            Action::Transmit => {
                // A frame begins where its buffer's part begins.
                let place = frame.place();
                let length = place.len();
                bytes.copy_within(place, 0);
                if self.port.resize(&mut buffer, length) {
                    self.leaving.push(buffer);
                    self.tally[EdgeOutcome::Sent as usize] += 1;
                    return;
                }
                EdgeOutcome::Dropped
            }
            Action::Pass => match pass(&mut self.stack, &frame) {
                Ok(()) => EdgeOutcome::Passed,
                Err(_) => EdgeOutcome::NotPassed,
            },
            Action::Drop | Action::Continue(_) => EdgeOutcome::Dropped,
            Action::Redirect(_) => EdgeOutcome::OtherDevice,
        };
        self.tally[outcome as usize] += 1;
        self.port.release(buffer);
    }
}

/// Has the datapath take a frame all the way, and copies it before and after that if a capture wants it.
fn process<D: Datapath>(
    datapath: &mut D,
    copier: &mut FrameCopier,
    frame: &mut BufferFrame<'_>,
    device: u32,
) -> Action {
    if !copier.before(frame, device) {
        return datapath.process(frame, device);
    }
    // Those of frames before it.
    datapath.take_reasons();
    let action = datapath.process(frame, device);
    let code = match action {
        Action::Transmit => action::TRANSMIT,
        Action::Pass => action::PASS,
        // A thread cannot send by another device.
        Action::Drop | Action::Continue(_) | Action::Redirect(_) => action::DROP,
    };
    copier.after(frame, code, datapath.take_reasons());
    action
}

/// Hands a frame to the stack.
fn pass<S: Stack>(stack: &mut S, frame: &BufferFrame<'_>) -> io::Result<()> {
    let link = parse::any_link(frame).map_err(|reason| io::Error::other(reason.label()))?;
    stack.take(frame.bytes(), link)
}

#[cfg(test)]
mod tests {
    use xdp_prog::{frame::FrameMut as _, reason::DropReason};

    use super::{
        super::copies::{
            Shared,
            tests::{settings, taken},
        },
        *,
    };
    use crate::{
        clock::monotonic_ns,
        port::memory::{MemoryRings, START},
    };

    /// Does what the first byte of a frame says, and puts 20 bytes in front of what it sends.
    #[derive(Default)]
    struct ByFirstByte(Reasons);

    impl Datapath for ByFirstByte {
        fn begin(&mut self) {}

        fn process(&mut self, frame: &mut BufferFrame<'_>, _: u32) -> Action {
            match frame.bytes()[0] {
                b't' => {
                    assert!(frame.move_start(-20));
                    *frame.view_mut(0).unwrap() = *b"twenty bytes of head";
                    Action::Transmit
                }
                b'p' => Action::Pass,
                b'r' => Action::Redirect(9),
                _ => {
                    self.0.insert(DropReason::NoBackend.index());
                    Action::Drop
                }
            }
        }

        fn take_reasons(&mut self) -> Reasons {
            std::mem::take(&mut self.0)
        }

        fn end(&mut self) {}
    }

    /// Takes one frame.
    #[derive(Default)]
    struct OneFrame(Vec<u8>);

    impl Stack for OneFrame {
        fn take(&mut self, frame: &[u8], _: parse::Link) -> io::Result<()> {
            if !self.0.is_empty() {
                return Err(io::Error::other("full"));
            }
            self.0 = frame.to_vec();
            Ok(())
        }
    }

    const DEVICE: u32 = 7;

    fn worker(ring: usize) -> Worker<MemoryRings, ByFirstByte, OneFrame> {
        worker_of_captures(ring, &Arc::default())
    }

    fn worker_of_captures(
        ring: usize,
        captures: &Arc<Shared>,
    ) -> Worker<MemoryRings, ByFirstByte, OneFrame> {
        let port = Port::new(MemoryRings::new(4 * ring, ring), 0);
        let (datapath, stack) = (ByFirstByte::default(), OneFrame::default());
        let copier = FrameCopier::new(captures);
        Worker::new(port, datapath, stack, copier, DEVICE, Arc::default())
    }

    /// Has a frame arrive with room in front.
    fn arrive(worker: &mut Worker<MemoryRings, ByFirstByte, OneFrame>, frame: &[u8]) {
        let frame = [&[0; ROOM], frame].concat();
        assert!(worker.port.rings_mut().arrive(&frame, START));
    }

    /// A frame of 60 bytes that begins so.
    fn frame(first: u8) -> Vec<u8> {
        let mut frame = vec![first; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame
    }

    #[test]
    fn frame_leaves_with_what_was_put_in_front_of_it() {
        let mut worker = worker(64);
        arrive(&mut worker, &frame(b't'));
        assert_eq!(worker.turn().unwrap(), 1);
        let sent = [b"twenty bytes of head".as_slice(), &frame(b't')].concat();
        assert_eq!(worker.port.rings().sent, [sent]);
    }

    #[test]
    fn every_frame_is_counted_once_and_no_buffer_is_lost() {
        let mut worker = worker(64);
        for first in *b"tpprd" {
            arrive(&mut worker, &frame(first));
        }
        assert_eq!(worker.turn().unwrap(), 5);
        let counts = EdgeOutcome::ALL.map(|outcome| worker.counts.of(outcome));
        assert_eq!(counts, [5, 1, 1, 1, 1, 1]);
        assert_eq!(worker.stack.0, frame(b'p'));
        assert_eq!(worker.port.balance().held, 0);
    }

    #[test]
    fn capture_sees_each_frame_before_and_after_with_its_own_reasons() {
        let captures = Arc::default();
        let mut worker = worker_of_captures(64, &captures);
        // Before the capture.
        arrive(&mut worker, &frame(b'd'));
        worker.turn().unwrap();
        captures.follow(&settings(), monotonic_ns());
        for first in *b"tdpr" {
            arrive(&mut worker, &frame(first));
        }
        worker.turn().unwrap();

        let (events, lost) = taken(&captures);
        let mut counted = Reasons::default();
        counted.insert(DropReason::NoBackend.index());
        let seen = events
            .iter()
            .map(|one| (one.event.action, one.event.reasons));
        let expected = [
            (action::TRANSMIT, Reasons::default()),
            (action::DROP, counted),
            (action::PASS, Reasons::default()),
            (action::DROP, Reasons::default()),
        ];
        assert_eq!((seen.collect::<Vec<_>>(), lost), (expected.into(), 0));
        for (event, first) in events.iter().zip(*b"tdpr") {
            assert_eq!(event.before, frame(first));
            assert_eq!(event.event.ifindex, DEVICE);
        }
        let lengths = events.iter().map(|one| one.event.after_length);
        assert_eq!(lengths.collect::<Vec<_>>(), [80, 0, 60, 0]);
        assert_eq!(events[0].after, worker.port.rings().sent[0][..64]);
        assert_eq!(events[2].after, worker.stack.0);
    }

    #[test]
    fn nothing_is_taken_while_frames_wait_for_room() {
        let mut worker = worker(8);
        worker.port.rings_mut().refusals.extend([libc::EBUSY; 4]);
        for taken in [8, 8, 0] {
            for _ in 0..8 {
                arrive(&mut worker, &frame(b't'));
            }
            assert_eq!(worker.turn().unwrap(), taken);
        }
        // The device sends again.
        for _ in 0..8 {
            worker.turn().unwrap();
            worker.port.rings_mut().catch_up(8);
        }
        assert_eq!(worker.port.rings().sent.len(), 24);
        assert_eq!(worker.counts.of(EdgeOutcome::Sent), 24);
    }
}
