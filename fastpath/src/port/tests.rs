use proptest::prelude::*;

use super::{
    memory::{MemoryRings, SIZE, START},
    open::{Copying, open},
    rings::whole_frames,
    *,
};

/// What happens to a port, in any order.
#[derive(Clone, Debug)]
enum Step {
    /// A frame of this length arrives at this place of its buffers.
    Arrive {
        length: usize,
        start: usize,
    },
    Receive(usize),
    /// The first buffers that are held are to be sent.
    Queue(usize),
    Release,
    /// A frame of one's own is to be sent.
    Write(usize),
    Send,
    Turn,
    CatchUp(usize),
    Refuse(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let errors = [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::ENETDOWN];
    prop_oneof![
        4 => (1..3 * SIZE, 0..2 * START).prop_map(|(length, start)| Step::Arrive { length, start }),
        2 => (0..80_usize).prop_map(Step::Receive),
        2 => (0..80_usize).prop_map(Step::Queue),
        1 => Just(Step::Release),
        2 => (1..SIZE - START).prop_map(Step::Write),
        2 => Just(Step::Send),
        3 => Just(Step::Turn),
        2 => (0..80_usize).prop_map(Step::CatchUp),
        1 => prop::sample::select(errors.to_vec()).prop_map(Step::Refuse),
    ]
}

/// A port, and what its owner knows of it.
struct Owner {
    port: Port<MemoryRings>,
    held: Vec<Buffer>,
    queue: Vec<Buffer>,
    /// Frames that arrived and were not received.
    expected: Vec<u8>,
    received: Vec<u8>,
    /// Bytes that were given away to be sent.
    given: Vec<u8>,
    written: u8,
}

impl Owner {
    fn new(buffers: usize, ring: usize, reserve: usize) -> Self {
        Self {
            port: Port::new(MemoryRings::new(buffers, ring), reserve),
            held: Vec::new(),
            queue: Vec::new(),
            expected: Vec::new(),
            received: Vec::new(),
            given: Vec::new(),
            written: 0,
        }
    }

    fn pattern(&mut self, length: usize) -> Vec<u8> {
        self.written = self.written.wrapping_add(1);
        let bytes = (0..=u8::MAX).cycle().map(|byte| byte ^ self.written);
        bytes.take(length).collect()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Arrive { length, start } => {
                let frame = self.pattern(length);
                if self.port.rings.arrive(&frame, start) {
                    self.expected.extend(frame);
                }
            }
            Step::Receive(limit) => {
                let before = self.held.len();
                let received = self.port.receive(&mut self.held, limit);
                assert_eq!(before + received, self.held.len());
                for buffer in &self.held[before..] {
                    assert_eq!(self.port.bytes(buffer).len(), buffer.length());
                    self.received.extend(self.port.bytes(buffer));
                }
            }
            Step::Queue(buffers) => {
                let whole = whole_frames(&self.held, buffers);
                self.queue.extend(self.held.drain(..whole));
            }
            Step::Release => {
                let whole = whole_frames(&self.held, self.held.len());
                for buffer in self.held.drain(..whole) {
                    self.port.release(buffer);
                }
            }
            Step::Write(length) => {
                let frame = self.pattern(length);
                let Some(mut buffer) = self.port.allocate() else {
                    return;
                };
                assert_eq!((buffer.length(), buffer.continues()), (0, false));
                assert!(!self.port.resize(&mut buffer, SIZE - START + 1));
                assert!(self.port.resize(&mut buffer, length));
                self.port.bytes_mut(&mut buffer).copy_from_slice(&frame);
                self.queue.push(buffer);
            }
            Step::Send => {
                let bytes: Vec<Vec<u8>> = self
                    .queue
                    .iter()
                    .map(|buffer| self.port.bytes(buffer).to_vec())
                    .collect();
                let sent = self.port.send(&mut self.queue);
                self.given.extend(bytes[..sent].concat());
            }
            Step::Turn => self.port.turn().unwrap(),
            Step::CatchUp(buffers) => self.port.rings.catch_up(buffers),
            Step::Refuse(error) => self.port.rings.refusals.push_back(error),
        }
    }
}

proptest! {
    /// Frames arrive and leave whole and in order, and no buffer is lost track of, whatever the kernel does.
    #[test]
    fn no_frame_is_changed_and_no_buffer_lost(
        steps in prop::collection::vec(step(), 1..200),
        (buffers, ring, reserve) in (1..160_usize, prop::sample::select(vec![4_usize, 16, 64]), 0..80_usize),
    ) {
        let mut owner = Owner::new(buffers, ring, reserve);
        for step in &steps {
            owner.take(step);
            let balance = owner.port.balance();
            prop_assert_eq!(balance.total(), buffers, "{:?} {:?}", step, balance);
            prop_assert_eq!(balance.held, owner.held.len() + owner.queue.len());
        }
        // The port's owner and the kernel end what they have begun.
        for _ in 0..3 * buffers.div_ceil(ring) + owner.port.rings.refusals.len() {
            owner.take(&Step::Receive(usize::MAX));
            owner.take(&Step::Release);
            owner.take(&Step::Send);
            owner.take(&Step::Turn);
            owner.take(&Step::CatchUp(usize::MAX));
        }
        owner.take(&Step::Turn);
        prop_assert_eq!(&owner.received, &owner.expected);
        prop_assert_eq!(owner.port.rings.sent.concat(), owner.given);
        let balance = owner.port.balance();
        prop_assert_eq!(balance.free + balance.fill, buffers, "{:?}", balance);
        prop_assert!(balance.free >= reserve.min(buffers));
    }
}

/// A port with this many frames of its own in the TX ring.
fn with_frames(frames: usize) -> Owner {
    let mut owner = Owner::new(256, 128, 256);
    for _ in 0..frames {
        owner.take(&Step::Write(60));
    }
    owner.take(&Step::Send);
    owner
}

#[test]
fn one_turn_sends_all_although_a_kick_sends_32() {
    let mut owner = with_frames(100);
    owner.take(&Step::Turn);
    assert_eq!(owner.port.rings.sent.len(), 100);
    let kicks = owner.port.kicks();
    assert_eq!((kicks.made, kicks.refused), (4, 3));
}

#[test]
fn frames_of_a_congested_device_leave_in_later_turns() {
    let mut owner = with_frames(1);
    owner.take(&Step::Refuse(libc::ENOBUFS));
    owner.take(&Step::Turn);
    assert_eq!(owner.port.rings.sent.len(), 0);
    owner.take(&Step::Turn);
    assert_eq!(owner.port.rings.sent.len(), 1);
}

#[test]
fn turn_without_frames_makes_no_call() {
    let mut owner = with_frames(1);
    owner.take(&Step::Turn);
    owner.take(&Step::CatchUp(1));
    owner.take(&Step::Turn);
    assert_eq!(owner.port.kicks().made, 1);
}

#[test]
fn device_that_is_gone_is_an_error() {
    let mut owner = with_frames(1);
    owner.take(&Step::Refuse(libc::ENXIO));
    let error = owner.port.turn().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
}

#[test]
fn frame_of_several_buffers_waits_for_room_for_all() {
    let mut owner = Owner::new(64, 4, 0);
    for length in [60, 3 * SIZE, 60] {
        owner.take(&Step::Arrive { length, start: 0 });
        owner.take(&Step::Receive(4));
        owner.take(&Step::Turn);
    }
    owner.take(&Step::Queue(5));
    owner.take(&Step::Send);
    assert_eq!(owner.queue.len(), 1);
    // Of a frame of three buffers two have room.
    let mut owner = Owner::new(64, 4, 0);
    for length in [60, 60, 3 * SIZE] {
        owner.take(&Step::Arrive { length, start: 0 });
        owner.take(&Step::Receive(4));
        owner.take(&Step::Turn);
    }
    owner.take(&Step::Queue(5));
    owner.take(&Step::Send);
    assert_eq!(owner.queue.len(), 3);
    owner.take(&Step::Turn);
    owner.take(&Step::Send);
    assert_eq!(owner.queue.len(), 0);
}

#[test]
fn losses_are_told_by_cause() {
    let mut owner = Owner::new(8, 4, 0);
    for _ in 0..5 {
        owner.take(&Step::Arrive {
            length: 60,
            start: 0,
        });
    }
    let losses = owner.port.losses().unwrap();
    assert_eq!((losses.ring_full, losses.no_buffer), (1, 0));
    owner.take(&Step::Receive(4));
    for _ in 0..5 {
        owner.take(&Step::Arrive {
            length: 60,
            start: 0,
        });
    }
    let losses = owner.port.losses().unwrap();
    assert_eq!((losses.ring_full, losses.no_buffer), (1, 1));
}

fn refused(code: i32) -> io::Result<&'static str> {
    Err(io::Error::from_raw_os_error(code))
}

#[test]
fn queue_in_use_is_tried_again_until_it_is_free() {
    let mut attempts = 0;
    let opened = open(Copying::Always, Duration::from_secs(60), |copy| {
        assert!(copy);
        attempts += 1;
        if attempts < 3 {
            refused(libc::EBUSY)
        } else {
            Ok("open")
        }
    });
    assert_eq!((opened.unwrap(), attempts), ("open", 3));
}

#[test]
fn queue_that_stays_in_use_is_an_error() {
    let opened = open(Copying::Always, Duration::ZERO, |_| refused(libc::EBUSY));
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EBUSY));
}

#[test]
fn driver_that_must_copy_is_let_copy() {
    for code in [libc::EOPNOTSUPP, libc::EINVAL] {
        let mut attempts = Vec::new();
        let opened = open(Copying::IfNeeded, Duration::ZERO, |copy| {
            attempts.push(copy);
            if copy { Ok("copying") } else { refused(code) }
        });
        assert_eq!(opened.unwrap(), "copying");
        assert_eq!(attempts, [false, true]);
    }
}

#[test]
fn other_errors_are_not_tried_again() {
    let mut attempts = 0;
    let opened = open(Copying::Always, Duration::from_secs(60), |_| {
        attempts += 1;
        refused(libc::EINVAL)
    });
    assert_eq!((opened.is_err(), attempts), (true, 1));
}
