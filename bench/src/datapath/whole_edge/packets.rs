//! What a thread of the whole edge does for a packet between receiving and sending, without a port: decide, rewrite, and
//! move the frame to the start of its buffer.

use std::{
    fmt,
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fastpath::{
    load::{Loaded, Loader},
    tables::{EdgeWorld, Tables},
};
use xdp_prog::{bench::Cursor, frame::HostFrame, process::Action, whole_edge::ROOM};

use super::{Family, Forwarder, Protocol};
use crate::datapath::{frames, tables};

/// Frames of a batch, as a thread takes them.
const BATCH: usize = 64;
/// Size of a buffer, as the threads have them for an MTU of 1500.
const BUFFER: usize = 2048;
/// Bytes that the kernel keeps in front of a frame (`XDP_PACKET_HEADROOM`).
const KERNEL_ROOM: usize = 256;
/// The device that all packets come in by and leave by.
const DEVICE: u32 = 7;

/// Packets of flows in random order to a service, and the live tables that they are decided by.
pub struct Packets {
    world: EdgeWorld,
    _tables: Tables,
    _product: Loaded,
    /// The frame of each flow, as the kernel hands it over: with room in front.
    frames: Vec<Vec<u8>>,
    cursor: Cursor,
    buffers: Vec<u8>,
    /// Bytes of a frame that leaves.
    length: usize,
}

impl fmt::Debug for Packets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packets").finish_non_exhaustive()
    }
}

impl Packets {
    /// Fills the tables, and takes a packet of each flow through them.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the tables, the forwarder has no services, or a packet does not leave as it should.
    pub fn new(
        forwarder: Forwarder,
        family: Family,
        protocol: Protocol,
        flows: u32,
    ) -> Result<Self> {
        let service = forwarder
            .system()
            .and_then(|system| tables::service(system, family, protocol));
        let port = service.context("a forwarder without services")?.port;
        let product = Loader::unpinned().whole_edge().load()?;
        let mut tables = Tables::open(&product)?;
        tables::fill_edge(&mut tables, DEVICE)?;
        let world = Tables::edge_tables(&product)?.world(0)?;
        let frames = (0..flows).map(|flow| {
            let frame = frames::frame_of(family, protocol, port, flow);
            [&[0; ROOM], &frame[..]].concat()
        });
        let frames: Vec<Vec<u8>> = frames.collect();
        let length = frames::frame(family, protocol, port).len() + forwarder.outer(family);
        let mut packets = Self {
            world,
            _tables: tables,
            _product: product,
            frames,
            cursor: Cursor {
                flows,
                next: 0,
                random: 0,
            },
            buffers: vec![0; BATCH * BUFFER],
            length,
        };
        // In turn, so that each flow has one.
        let (left, _) = packets.take(flows.into());
        ensure!(
            left == u64::from(flows),
            "{left} of {flows} packets leave with {length} bytes"
        );
        packets.cursor.random = 1;
        Ok(packets)
    }

    /// Takes so many packets through the tables. Returns how long that took.
    ///
    /// It leaves out the laying of frames into the buffers, which the kernel does for a thread.
    ///
    /// # Panics
    ///
    /// When a packet does not leave.
    pub fn time(&mut self, packets: u64) -> Duration {
        let (left, taken) = self.take(packets);
        assert_eq!(left, packets, "all packets leave");
        taken
    }

    /// Takes so many packets through the tables. Returns how many leave as they should, and how long that took.
    fn take(&mut self, packets: u64) -> (u64, Duration) {
        let (mut leaving, mut taken) = (0, Duration::ZERO);
        let mut rest = packets;
        while rest > 0 {
            let lengths = self.lay(rest);
            let begin = Instant::now();
            leaving += self.finish(&lengths);
            taken += begin.elapsed();
            rest -= lengths.len() as u64;
        }
        (leaving, taken)
    }

    /// Lays the next frames into buffers, `most` of them or a batch. Returns their lengths, with the room in front.
    fn lay(&mut self, most: u64) -> Vec<usize> {
        let batch = usize::try_from(most).map_or(BATCH, |most| most.min(BATCH));
        let buffers = self.buffers.chunks_exact_mut(BUFFER).take(batch);
        let lay = |buffer: &mut [u8]| {
            let frame = &self.frames[self.cursor.advance() as usize];
            buffer[KERNEL_ROOM..][..frame.len()].copy_from_slice(frame);
            frame.len()
        };
        buffers.map(lay).collect()
    }

    /// Does with the frames of a batch what a thread does. Returns how many leave with the right length.
    fn finish(&mut self, lengths: &[usize]) -> u64 {
        self.world.begin();
        let mut leaving = 0;
        for (buffer, length) in self.buffers.chunks_exact_mut(BUFFER).zip(lengths) {
            let bytes = &mut buffer[KERNEL_ROOM..][..*length];
            let mut frame = HostFrame::behind(ROOM, &mut *bytes);
            let action = self.world.process(&mut frame, DEVICE);
            let place = frame.place();
            leaving += u64::from(action == Action::Transmit && place.len() == self.length);
            bytes.copy_within(place, 0);
        }
        self.world.end();
        black_box(&self.buffers);
        leaving
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn packets_leave_to_many_nodes_with_what_the_service_asks_for() {
        for family in Family::ALL {
            for (forwarder, outer) in [
                (Forwarder::Ipip, family.header_length()),
                (Forwarder::L2Dsr, 0),
            ] {
                let mut packets = Packets::new(forwarder, family, Protocol::Udp, 1000).unwrap();
                let bare = frames::frame(family, Protocol::Udp, 0).len();
                assert_eq!(packets.length, bare + outer);
                packets.time(BATCH as u64);
                let frames = packets.buffers.chunks_exact(BUFFER);
                let frames = frames.map(|buffer| &buffer[KERNEL_ROOM..][..packets.length]);
                assert!(frames.clone().all(|frame| frame[..12] == frames::MACS_BACK));
                let destinations: BTreeSet<_> = frames
                    .map(|frame| match family {
                        Family::V4 => frame[30..34].to_vec(),
                        Family::V6 => frame[38..54].to_vec(),
                    })
                    .collect();
                assert_eq!(destinations.len() > 1, outer > 0, "{destinations:?}");
            }
        }
    }

    #[test]
    fn loop_without_services_has_no_packets() {
        Packets::new(Forwarder::L2Fwd, Family::V4, Protocol::Udp, 1).unwrap_err();
    }
}
