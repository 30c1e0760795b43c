//! Ports on the kernel's AF_XDP sockets, over a veth pair.

#[path = "../support/sockets.rs"]
mod sockets;

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use fastpath::{
    attach::{self, Merging},
    facts::{self, KernelVersion},
    load::Loader,
    port::{
        Buffer, Port,
        xsk::{Copying, Mode, OpenError, Options, Xsk},
    },
};
use lab::{Link, Namespace, RawSocket, Veth};

use self::sockets::Sockets;

/// An EtherType for experiments (IEEE 802).
const EXPERIMENTAL: u16 = 0x88b5;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that the program puts in front of a frame, where it is to.
const FRONT: u8 = 16;

struct Machines {
    near: Namespace,
    far: Namespace,
}

impl Machines {
    fn new() -> Self {
        let machine = |label| {
            let namespace = Namespace::new(label).unwrap();
            // The stack's own frames would come to the port.
            namespace
                .set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")
                .unwrap();
            namespace
        };
        Self {
            near: machine("near"),
            far: machine("far"),
        }
    }

    fn cable(&self, mtu: u32) -> (Link<'_>, Link<'_>) {
        let pair = Veth::between((&self.near, "near0"), (&self.far, "far0"));
        pair.mtu(mtu).create().unwrap()
    }
}

/// A port to which a program leads all frames.
struct Reflector {
    port: Port<Xsk>,
    _sockets: Sockets,
}

impl Reflector {
    /// Opens it on the queue of an interface; the program moves the start of each frame by so many bytes.
    fn open(link: &Link<'_>, options: &Options, front: u8) -> Self {
        let port = Port::open(link.name(), 0, options).unwrap();
        let sockets = Sockets::of(port.as_fd()).unwrap();
        assert_eq!(port.mode().unwrap(), Mode::None);
        link.attach_xdp(&sockets.redirect(front)).unwrap();
        assert_eq!(port.mode().unwrap(), Mode::NativeCopy);
        Self {
            port,
            _sockets: sockets,
        }
    }

    /// Waits for this many buffers.
    fn receive(&mut self, buffers: usize) -> Vec<Buffer> {
        let begin = Instant::now();
        let mut received = Vec::new();
        while received.len() < buffers {
            assert!(begin.elapsed() < TIMEOUT, "{:?}", self.port.losses());
            self.port.wait(Duration::from_millis(100)).unwrap();
            self.port.receive(&mut received, buffers);
            self.port.turn().unwrap();
        }
        received
    }

    /// Sends frames to where they came from.
    fn send_back(&mut self, mut frames: Vec<Buffer>) {
        let mut is_first = true;
        for buffer in &mut frames {
            let continues = buffer.continues();
            if is_first {
                self.port.bytes_mut(buffer)[..12].rotate_left(6);
            }
            is_first = !continues;
        }
        while !frames.is_empty() {
            self.port.send(&mut frames);
            self.port.turn().unwrap();
        }
    }

    /// Waits until all buffers are the port's or in the fill ring.
    fn settle(&mut self) {
        let begin = Instant::now();
        loop {
            self.port.turn().unwrap();
            let balance = self.port.balance();
            assert_eq!(balance.held, 0);
            if balance.tx + balance.completion == 0 {
                break;
            }
            assert!(begin.elapsed() < TIMEOUT, "{balance:?}");
        }
    }
}

fn frame(to: &Link<'_>, from: &Link<'_>, number: usize, length: usize) -> Vec<u8> {
    let ether_type = EXPERIMENTAL.to_be_bytes();
    let mut frame = [&to.mac()[..], &from.mac(), &ether_type].concat();
    let bytes = (0..=u8::MAX).cycle().skip(number % 256);
    frame.extend(bytes.take(length - frame.len()));
    frame
}

#[test]
fn frames_come_and_go_whole_and_in_order() {
    const FRAMES: usize = 40;
    let machines = Machines::new();
    let (near, far) = machines.cable(1500);
    let socket = RawSocket::open(&near, EXPERIMENTAL).unwrap();
    machines.far.run(|| {
        let mut reflector = Reflector::open(&far, &Options::default(), 0);
        // More than the kernel sends at a time, more than once around the rings.
        for round in 0..60 {
            let frames = |to, from| {
                (0..FRAMES).map(move |at| frame(to, from, round + at, 60 + (at * 37) % 1440))
            };
            for frame in frames(&far, &near) {
                assert!(socket.send(&frame).unwrap());
            }
            let received = reflector.receive(FRAMES);
            for (buffer, expected) in received.iter().zip(frames(&far, &near)) {
                assert_eq!(reflector.port.bytes(buffer), expected);
            }
            reflector.send_back(received);
            for expected in frames(&near, &far) {
                assert_eq!(socket.receive(TIMEOUT).unwrap(), Some(expected));
            }
        }
        reflector.settle();
        assert_eq!(reflector.port.losses().unwrap(), Default::default());
    });
}

#[test]
fn frames_of_ones_own_leave_however_few_or_many() {
    let machines = Machines::new();
    let (near, far) = machines.cable(1500);
    let socket = RawSocket::open(&near, EXPERIMENTAL).unwrap();
    machines.far.run(|| {
        let mut reflector = Reflector::open(&far, &Options::default(), 0);
        let port = &mut reflector.port;
        for frames in [1, 31, 32, 33, 100] {
            let frames = (0..frames).map(|number| frame(&near, &far, number, 60));
            let frames: Vec<_> = frames.collect();
            let mut buffers = Vec::new();
            for frame in &frames {
                let mut buffer = port.allocate().unwrap();
                assert!(!port.resize(&mut buffer, 2048));
                assert!(port.resize(&mut buffer, frame.len()));
                port.bytes_mut(&mut buffer).copy_from_slice(frame);
                buffers.push(buffer);
            }
            assert_eq!(port.send(&mut buffers), frames.len());
            port.turn().unwrap();
            for frame in frames {
                assert_eq!(socket.receive(TIMEOUT).unwrap(), Some(frame));
            }
        }
        let kicks = port.kicks();
        let sends_all_at_once = KernelVersion {
            major: 6,
            minor: 17,
        };
        if facts::kernel().version >= Some(sends_all_at_once) {
            assert_eq!(kicks.refused, 0, "{kicks:?}");
        }
        reflector.settle();
    });
}

#[test]
fn what_a_program_puts_in_front_is_received() {
    let machines = Machines::new();
    let (near, far) = machines.cable(1500);
    let socket = RawSocket::open(&near, EXPERIMENTAL).unwrap();
    machines.far.run(|| {
        let mut reflector = Reflector::open(&far, &Options::default(), FRONT);
        let sent = frame(&far, &near, 1, 1514);
        assert!(socket.send(&sent).unwrap());
        let received = reflector.receive(1).pop().unwrap();
        let bytes = reflector.port.bytes(&received);
        assert_eq!(bytes[FRONT.into()..], sent);
        reflector.port.release(received);
        reflector.settle();
        // Where it began says nothing of the buffer's next frame.
        let mut all: Vec<_> = std::iter::from_fn(|| reflector.port.allocate()).collect();
        for buffer in &mut all {
            assert!(reflector.port.resize(buffer, 1514));
        }
        all.into_iter()
            .for_each(|buffer| reflector.port.release(buffer));
    });
}

#[test]
fn jumbo_frames_come_and_go_in_several_buffers() {
    let machines = Machines::new();
    let (near, far) = machines.cable(9000);
    let socket = RawSocket::open(&near, EXPERIMENTAL).unwrap();
    machines.far.run(|| {
        let options = Options {
            buffer_size: 4096,
            several_buffers: true,
            ..Options::default()
        };
        let mut reflector = Reflector::open(&far, &options, 0);
        for number in 0..40 {
            assert!(socket.send(&frame(&far, &near, number, 9014)).unwrap());
            let received = reflector.receive(3);
            let continues = received.iter().map(Buffer::continues);
            assert_eq!(continues.collect::<Vec<_>>(), [true, true, false]);
            let bytes = received.iter().map(|buffer| reflector.port.bytes(buffer));
            assert_eq!(
                bytes.collect::<Vec<_>>().concat(),
                frame(&far, &near, number, 9014)
            );
            reflector.send_back(received);
            let back = frame(&near, &far, number, 9014);
            assert_eq!(socket.receive(TIMEOUT).unwrap(), Some(back));
        }
        reflector.settle();
    });
}

#[test]
fn frame_that_fits_no_buffer_is_told_from_one_for_which_there_is_none() {
    let machines = Machines::new();
    let (near, far) = machines.cable(3000);
    let socket = RawSocket::open(&near, EXPERIMENTAL).unwrap();
    machines.far.run(|| {
        let options = Options {
            buffers: 8,
            reserve: 0,
            ..Options::default()
        };
        let mut reflector = Reflector::open(&far, &options, 0);
        assert!(socket.send(&frame(&far, &near, 0, 2942)).unwrap());
        for number in 0..9 {
            assert!(socket.send(&frame(&far, &near, number, 60)).unwrap());
        }
        let port = &mut reflector.port;
        lab::wait_until("the losses are told", TIMEOUT, || {
            let losses = port.losses().unwrap();
            (losses.too_large, losses.no_buffer, losses.ring_full) == (1, 1, 0)
        })
        .unwrap();
        for buffer in reflector.receive(8) {
            reflector.port.release(buffer);
        }
    });
}

#[test]
fn queue_belongs_to_one_port_at_a_time() {
    let machines = Machines::new();
    let (_near, far) = machines.cable(1500);
    machines.far.run(|| {
        let options = Options {
            patience: Duration::ZERO,
            copying: Copying::IfNeeded,
            ..Options::default()
        };
        let first = Port::open(far.name(), 0, &options).unwrap();
        let refused = Port::open(far.name(), 0, &options).unwrap_err();
        assert!(
            matches!(refused, OpenError::InUse { queue: 0, .. }),
            "{refused:?}"
        );
        drop(first);
        let patient = Options {
            patience: TIMEOUT,
            ..options
        };
        Port::open(far.name(), 0, &patient).unwrap();

        let refused = Port::open(far.name(), 1, &options).unwrap_err();
        assert!(
            matches!(refused, OpenError::NoQueue { queues: 1, .. }),
            "{refused:?}"
        );
        let refused = Port::open("nowhere", 0, &options).unwrap_err();
        assert!(matches!(refused, OpenError::Interface(_)), "{refused:?}");
    });
}

#[test]
fn frames_from_the_stack_are_told_from_those_of_the_driver() {
    let machines = Machines::new();
    let (_near, far) = machines.cable(1500);
    machines.far.run(|| {
        let port = Port::open(far.name(), 0, &Options::default()).unwrap();
        let mut loaded = Loader::unpinned().object(&super::STUBS).load().unwrap();
        let generic = attach::Options {
            mode: attach::Mode::Generic,
            merging: Merging::SwitchOff,
        };
        let _attachment = loaded.attach(far.name(), &generic).unwrap();
        assert_eq!(port.mode().unwrap(), Mode::GenericCopy);
    });
}
