//! Numbered frames: their templates, their flows and their pace.
//!
//! Clients have addresses of the networks for benchmarks (RFC 2544, RFC 5180).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use xdp_prog::bench::{self, NUMBER_LENGTH, NUMBERED_LENGTH, Numbered};

use super::frame::{Framing, Offsets};
use crate::scenario::{AddressFamily, FlowOrder, Load};

/// Client of flow 0, without its port.
const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0);
/// Entries of the list of flows where chance orders them.
const DRAWN: u32 = 1 << 17;

/// Returns the length of the list of flows, which repeats.
pub(crate) fn listed(load: &Load) -> u32 {
    let is_drawn = load.flow_order != FlowOrder::InTurn || load.new_flow_share > 0.0;
    let least = if is_drawn { DRAWN } else { 1 };
    load.flows.max(least)
}

/// Returns the time between two frames, in whole nanoseconds: the next higher rate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are between 1 and 20 million"
)]
pub(crate) fn interval(rate: f64) -> u64 {
    (1e9 / rate) as u64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a product of positive numbers; more than fit end at the largest"
)]
pub(crate) fn frames_in(seconds: f64, rate: f64) -> u32 {
    (seconds * rate) as u32
}

/// Returns the frames of flow 0 with number 0, for each Service in each size.
pub(super) fn templates(
    services: &[SocketAddr],
    macs: [u8; 12],
    load: &Load,
    tag: u16,
) -> Vec<Numbered> {
    let mut client = client(load.family, 0);
    client.set_port(0);
    let at = offsets(services, macs, load);
    let framing = Framing::of(macs, load);
    let sizes = load.sizes();
    let each = services
        .iter()
        .flat_map(|service| sizes.iter().map(move |size| (*service, *size)));
    #[expect(clippy::cast_possible_truncation, reason = "frames are short")]
    let template = |(service, size): (SocketAddr, u32)| {
        let mut payload = vec![0; load.payload(size).max(NUMBER_LENGTH)];
        payload[..2].copy_from_slice(&tag.to_be_bytes());
        let frame = framing.frame(client, service, &payload);
        let mut bytes = [0; NUMBERED_LENGTH];
        let front = frame.len().min(NUMBERED_LENGTH);
        bytes[..front].copy_from_slice(&frame[..front]);
        Numbered {
            bytes,
            length: frame.len() as u32,
            address_at: at.address as u32,
            port_at: at.port as u32,
            check_at: at.check as u32,
            ip_check_at: at.ip_check.unwrap_or(0) as u32,
            number_at: at.payload as u32 + 2,
        }
    };
    each.map(template).collect()
}

pub(super) fn offsets(services: &[SocketAddr], macs: [u8; 12], load: &Load) -> Offsets {
    let is_v4 = services.iter().all(SocketAddr::is_ipv4);
    Framing::of(macs, load).offsets(is_v4)
}

/// Returns the client of a flow, as the generator makes it.
pub(crate) fn client(family: AddressFamily, flow: u32) -> SocketAddr {
    let (bits, port) = bench::client(flow);
    let address: IpAddr = match family {
        AddressFamily::Ipv4 => Ipv4Addr::from(u32::from(CLIENT_V4) | bits).into(),
        AddressFamily::Ipv6 => Ipv6Addr::from(u128::from(CLIENT_V6) | u128::from(bits)).into(),
    };
    SocketAddr::new(address, port)
}
