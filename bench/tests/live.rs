//! The generator `live` on one thread and on two, frame by frame. Needs root and two CPUs.

use std::{collections::BTreeSet, net::Ipv4Addr, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{
    exit::Exit,
    load::{
        Asked, Generator, Trial,
        live::{Live, Path},
    },
    probe::Tally,
    scenario::{Load, Scenario},
};
use lab::{Namespace, RawSocket, Veth, wait_for};

/// `ETH_P_ALL`: packet sockets of one EtherType see frames behind TC alone, where the sink has taken them.
const ALL: u16 = 0x0003;
const IPV4: [u8; 2] = [0x08, 0x00];
/// Offsets of the EtherType in a frame, of the client's address and port, and of the tag.
const TYPE_AT: usize = 12;
const ADDRESS_AT: usize = 26;
const PORT_AT: usize = 34;
const TAG_AT: usize = 42;
/// The address and the port of flow 0, and how many ports an address has.
const FIRST_CLIENT: (u32, u16) = (u32::from_be_bytes([198, 18, 0, 0]), 32_768);
const PORTS: u32 = 64;

/// A frame as it arrived: its number, and its flow by its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrived {
    number: u32,
    flow: u32,
}

impl Arrived {
    /// Reads a frame of UDP over IPv4.
    fn read(frame: &[u8]) -> Result<Self> {
        let word = |at: usize| -> Result<u32> {
            let bytes = frame.get(at..at + 4).context("the frame is short")?;
            Ok(u32::from_be_bytes(bytes.try_into()?))
        };
        let port = u16::try_from(word(PORT_AT)? >> 16)?;
        let client = word(ADDRESS_AT)?.wrapping_sub(FIRST_CLIENT.0);
        Ok(Self {
            number: word(TAG_AT + 2)?,
            flow: client * PORTS + u32::from(port.wrapping_sub(FIRST_CLIENT.1)),
        })
    }
}

/// A cable from the generator to the sink.
struct Cable {
    sender: Namespace,
    sink: Namespace,
}

impl Cable {
    fn new(queues: u32) -> Result<Self> {
        let cable = Self {
            sender: Namespace::new("sender")?,
            sink: Namespace::new("sink")?,
        };
        Veth::between((&cable.sender, "eth0"), (&cable.sink, "eth0"))
            .queues(queues)
            .create()?;
        Ok(cable)
    }

    /// Returns the way of the frames over the cable. Behind the stack, a packet socket sees what the sink counts.
    fn path(&self, from_stack: bool) -> Result<Path<'_>> {
        let (out, end) = (self.sender.link("eth0")?, self.sink.link("eth0")?);
        let macs = [end.mac(), out.mac()].concat();
        Ok(Path {
            macs: *macs.first_chunk().context("two addresses")?,
            out,
            entry: from_stack.then(|| end.clone()),
            sink: end,
            replaces_pass: false,
            from_stack,
            services: vec![(Ipv4Addr::new(10, 99, 0, 1), 80).into()],
            outer: 0,
            untags: false,
        })
    }
}

/// Seconds of a trial.
const SECONDS: f64 = 0.2;
/// Frames of a trial with [`RATE`]: as many as a packet socket has room for.
const FRAMES: u32 = 32;
const RATE: &str = "rate: 160";
/// A machine that is busy for long has frames stay behind.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a trial of a load.
fn run(path: Path<'_>, load: &Load) -> Result<Trial> {
    let asked = Asked {
        rate: load.rate,
        seconds: SECONDS,
        seed: 1,
    };
    Live::new(path, load, 1)?.run(asked)
}

/// Runs a trial in which all [`FRAMES`] leave. Returns what arrived.
fn run_and_read(load: &str) -> (Tally, Vec<Arrived>) {
    let load = load_of(&format!("{RATE}, {load}")).expect("it is a load");
    wait_for("all frames leave", PATIENCE, || {
        let cable = Cable::new(load.threads)?;
        let tap = RawSocket::open(&cable.sink.link("eth0")?, ALL)?;
        let tally = run(cable.path(true)?, &load)?.tally;
        ensure!(tally.sent == u64::from(FRAMES), "{tally:?}");
        let mut arrived = Vec::new();
        while let Some(frame) = tap.receive(Duration::ZERO)? {
            // The machines' own frames are of IPv6.
            if frame.get(TYPE_AT..TYPE_AT + 2) == Some(&IPV4) {
                arrived.push(Arrived::read(&frame)?);
            }
        }
        Ok((tally, arrived))
    })
    .expect("a machine that is not too busy sends them all")
}

fn load_of(text: &str) -> Result<Load> {
    let scenario =
        format!("name: live\nsystems: [direct]\nloads: [{{ generator: live, {text} }}]\n");
    Ok(Scenario::parse(&scenario)?.loads.remove(0))
}

/// Checks that the sink has counted each frame once, in order.
fn expect_all(tally: Tally, arrived: &[Arrived]) {
    let frames = u64::from(FRAMES);
    let expected = Tally {
        offered: frames,
        sent: frames,
        received: frames,
        ..Tally::default()
    };
    assert_eq!(tally, expected);
    let mut numbers: Vec<u32> = arrived.iter().map(|frame| frame.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>());
}

fn flows_of(arrived: &[Arrived]) -> BTreeSet<u32> {
    arrived.iter().map(|frame| frame.flow).collect()
}

#[test]
fn one_thread_sends_its_flows_in_turn_in_the_order_of_their_numbers() {
    let (tally, arrived) = run_and_read("flows: 5");
    expect_all(tally, &arrived);
    let expected = (0..FRAMES).map(|number| Arrived {
        number,
        flow: number % 5,
    });
    assert_eq!(arrived, expected.collect::<Vec<_>>());
}

#[test]
fn frames_of_two_threads_are_counted_once_and_their_flows_are_disjoint() {
    const FLOWS: u32 = 7;
    let (tally, arrived) = run_and_read("threads: 2, flows: 7, new_flow_share: 0.25");
    expect_all(tally, &arrived);
    let of_thread = [0, 1].map(|thread| {
        let own = arrived.iter().filter(|frame| frame.number % 2 == thread);
        own.copied().collect::<Vec<_>>()
    });
    for own in &of_thread {
        assert!(own.is_sorted(), "{own:?}");
    }
    let [first, second] = of_thread.map(|own| flows_of(&own));
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    let all = flows_of(&arrived).into_iter();
    let (known, new): (Vec<u32>, Vec<u32>) = all.partition(|flow| *flow < FLOWS);
    assert_eq!(known, (0..FLOWS).collect::<Vec<_>>());
    // Each frame that begins a flow has a flow of its own.
    let begun = arrived.iter().filter(|frame| frame.flow >= FLOWS);
    assert_eq!(begun.count(), new.len());
    assert!(new.len() > 5, "{new:?}");
}

#[test]
fn the_fastest_frames_of_two_threads_are_in_order_each() {
    let load = load_of("threads: 2, schedule: max, frame_bytes: imix, flows: 100").unwrap();
    // With one queue, frames of both threads arrive in one sequence.
    for queues in [1, 2] {
        let cable = Cable::new(queues).unwrap();
        let trial = run(cable.path(false).unwrap(), &load).unwrap();
        let tally = trial.tally;
        assert!(trial.seconds > 0.0 && tally.received > 0, "{tally:?}");
        assert_eq!((tally.offered, tally.duplicates), (tally.sent, 0));
        assert_eq!(tally.reordered, 0, "{tally:?}");
    }
}

#[test]
fn more_threads_than_cpus_are_refused_with_the_remedy() {
    let found = thread::available_parallelism().unwrap().get();
    let load = Load {
        threads: u32::try_from(found + 1).unwrap(),
        ..load_of(RATE).unwrap()
    };
    let cable = Cable::new(1).unwrap();
    let error = run(cable.path(false).unwrap(), &load).unwrap_err();
    let told = format!("{error:#}");
    assert_eq!(Exit::of_error(&error), Exit::Unable, "{told}");
    let remedy = format!("write threads: {found}, or fewer");
    assert!(told.contains(&remedy), "{told}");
}
