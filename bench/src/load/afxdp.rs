//! Numbered frames made by this program, and sent by a port: an AF_XDP socket whose frames the kernel copies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastpath::port::{
    Buffer, Port,
    xsk::{Options, Xsk},
};
use xdp_prog::{
    bench::{Numbered, Pace, client},
    csum::{self, Sum},
};

use super::sockets::now_ns;
use crate::host;

/// Frames that are made until the kernel is called.
const BATCH: usize = 64;
/// How long the kernel may take for the last frames.
const GRACE: Duration = Duration::from_secs(2);

/// Sends frames out of an interface of this thread's namespace, at a pace: `frames` for each Service in each size, in
/// flows that are listed. Returns how long it took, with a rate by the clock and else in core time, and the pace at
/// the end.
pub(super) fn send(
    interface: &str,
    (frames, flows): (&[Numbered], &[u32]),
    pace: Pace,
    seconds: f64,
) -> Result<(f64, Pace)> {
    let options = Options {
        // None for what arrives.
        reserve: Options::default().buffers,
        ..Options::default()
    };
    let mut sender = Sender {
        port: Port::open(interface, 0, &options)?,
        batch: Vec::with_capacity(BATCH),
        frames,
        flows,
        pace,
    };
    let core = host::occupy_core(None)?;
    let (before, began) = (host::core_clock(core)?, Instant::now());
    while sender.pace.sent < sender.pace.limit && began.elapsed().as_secs_f64() < seconds {
        sender.make()?;
        sender.pass_on()?;
    }
    sender.finish()?;
    let pace = sender.pace;
    let took = if pace.interval > 0 {
        began.elapsed().as_secs_f64()
    } else {
        host::core_clock(core)?.since(before)
    };
    Ok((took, pace))
}

struct Sender<'a> {
    port: Port<Xsk>,
    batch: Vec<Buffer>,
    frames: &'a [Numbered],
    flows: &'a [u32],
    pace: Pace,
}

impl Sender<'_> {
    /// Makes the frames that are due, as far as there is room.
    fn make(&mut self) -> Result<()> {
        while self.batch.len() < BATCH
            && let Some(mut buffer) = self.port.allocate()
        {
            if !self.pace.is_due(now_ns) {
                self.port.release(buffer);
                break;
            }
            let number = self.pace.sent;
            let listed = self.flows[self.pace.next_flow as usize];
            let (flow, place) = self.pace.advance(listed).context("there is no Service")?;
            let numbered = &self.frames[place as usize];
            ensure!(
                self.port.resize(&mut buffer, numbered.length as usize),
                "a frame of {} bytes fits no buffer",
                numbered.length
            );
            write(self.port.bytes_mut(&mut buffer), numbered, flow, number);
            self.batch.push(buffer);
        }
        Ok(())
    }

    fn pass_on(&mut self) -> Result<()> {
        self.port.send(&mut self.batch);
        self.port.turn().context("sending frames by AF_XDP")
    }

    /// Waits until the last frame has left.
    fn finish(&mut self) -> Result<()> {
        let deadline = Instant::now() + GRACE;
        loop {
            self.pass_on()?;
            if self.batch.is_empty() && self.port.balance().tx == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the kernel keeps frames back");
        }
    }
}

/// Writes a frame, as the program in the kernel does.
fn write(frame: &mut [u8], numbered: &Numbered, flow: u32, number: u32) {
    let (front, rest) = frame.split_at_mut(numbered.bytes.len().min(frame.len()));
    front.copy_from_slice(&numbered.bytes[..front.len()]);
    rest.fill(0);
    let (address, port) = client(flow);
    let added = Sum::ZERO.add_u32(address);
    let at: &mut [u8; 4] = field(front, numbered.address_at);
    *at = (u32::from_be_bytes(*at) | address).to_be_bytes();
    *field(front, numbered.port_at) = port.to_be_bytes();
    *field(front, numbered.number_at) = number.to_be_bytes();
    add_to_checksum(
        field(front, numbered.check_at),
        added.add_u16(port).add_u32(number),
    );
    if numbered.ip_check_at != 0 {
        add_to_checksum(field(front, numbered.ip_check_at), added);
    }
}

fn field<const LENGTH: usize>(frame: &mut [u8], at: u32) -> &mut [u8; LENGTH] {
    let field = frame[at as usize..].first_chunk_mut();
    field.expect("templates have all their fields in front")
}

/// All ones stand for zero: that is right in every protocol, and in UDP zero means that there is none.
fn add_to_checksum(check: &mut [u8; 2], added: Sum) {
    let sum = csum::update(u16::from_be_bytes(*check), added);
    *check = csum::udp_checksum(sum).to_be_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        datapath::Protocol,
        load::{
            frame::Framing,
            numbered::{self, templates},
        },
        scenario::{AddressFamily, FrameSize, Load, load},
    };

    #[test]
    fn frames_are_those_of_their_flow_and_number_with_right_checksums() {
        let families = [
            (AddressFamily::Ipv4, "10.99.0.1:80"),
            (AddressFamily::Ipv6, "[fd00:99::1]:80"),
        ];
        for (family, service) in families {
            for protocol in Protocol::ALL {
                let load = Load {
                    generator: crate::scenario::GeneratorKind::Afxdp,
                    family,
                    protocol,
                    frame_bytes: [100, 300]
                        .map(|bytes| FrameSize { bytes, weight: 1 })
                        .into(),
                    ..load()
                };
                let service = service.parse().unwrap();
                let macs = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
                let templates = templates(&[service], macs, &load, 0x8123);
                for (size, template) in load.sizes().into_iter().zip(&templates) {
                    let (flow, number) = (70_000, 0x0102_0304);
                    let mut frame = vec![0xff; template.length as usize];
                    write(&mut frame, template, flow, number);
                    let mut payload = vec![0; load.payload(size)];
                    payload[..6].copy_from_slice(&[0x81, 0x23, 1, 2, 3, 4]);
                    let client = numbered::client(family, flow);
                    let expected = Framing::plain(macs, protocol).frame(client, service, &payload);
                    assert_eq!(frame, expected, "{family} {protocol} {size}");
                }
            }
        }
    }
}
