//! The frame of a new flow, as a client would send it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, PacketBuilder};

use super::super::{Protocol, ServiceKey};

/// MACs from the locally administered range.
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 2];
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
const TTL: u8 = 64;
/// Payload of a datagram, small enough for every path.
const PAYLOAD: [u8; 16] = [0; 16];

/// Builds the first frame of a flow; `None` if service and client are of different families.
pub(super) fn first_frame(service: &ServiceKey, from: SocketAddr) -> Option<Vec<u8>> {
    let link = PacketBuilder::ethernet2(SOURCE, DESTINATION);
    let packet = match (from.ip(), service.address) {
        (IpAddr::V4(source), IpAddr::V4(to)) => link.ipv4(source.octets(), to.octets(), TTL),
        (IpAddr::V6(source), IpAddr::V6(to)) => link.ipv6(source.octets(), to.octets(), TTL),
        _ => return None,
    };
    let mut frame = Vec::new();
    let ports = (from.port(), service.port);
    let written = match service.protocol {
        Protocol::Tcp => {
            let segment = packet.tcp(ports.0, ports.1, 0, u16::MAX).syn();
            segment.write(&mut frame, &[])
        }
        Protocol::Udp => packet.udp(ports.0, ports.1).write(&mut frame, &PAYLOAD),
        Protocol::Sctp => {
            // A verification tag and a CRC follow the ports; only the two ends check them.
            let ports = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
            let message = [&ports[..], &[0; 8], &PAYLOAD].concat();
            packet.write(&mut frame, IpNumber::SCTP, &message)
        }
    };
    written.ok().map(|()| frame)
}

#[cfg(test)]
mod tests {
    use xdp_prog::csum::{Sum, pseudo_header_v4, pseudo_header_v6};

    use super::*;

    #[test]
    fn checksums_are_those_that_the_datapath_computes() {
        for (service, from, l4) in [
            ("10.99.0.1:80/tcp", "192.0.2.1:4711", 34),
            ("10.99.0.1:53/udp", "192.0.2.1:4711", 34),
            ("[fd00::1]:80/tcp", "[2001:db8::1]:4711", 54),
            ("[fd00::1]:53/udp", "[2001:db8::1]:4711", 54),
        ] {
            let key: ServiceKey = service.parse().unwrap();
            let from: SocketAddr = from.parse().unwrap();
            let frame = first_frame(&key, from).unwrap();
            let (header, transport) = frame[14..].split_at(l4 - 14);
            let length = u16::try_from(transport.len()).unwrap();
            let number = key.protocol.number();
            let sum = match (from.ip(), key.address) {
                (IpAddr::V4(source), IpAddr::V4(to)) => {
                    assert_eq!(Sum::ZERO.add_bytes(header).checksum(), 0, "{service}");
                    pseudo_header_v4(&source.octets(), &to.octets(), number, length)
                }
                (IpAddr::V6(source), IpAddr::V6(to)) => {
                    pseudo_header_v6(&source.octets(), &to.octets(), number, length.into())
                }
                _ => unreachable!("one family"),
            };
            assert_eq!(sum.add_bytes(transport).checksum(), 0, "{service}");
        }
    }

    #[test]
    fn message_of_sctp_has_the_ports_in_front() {
        let key = "10.99.0.1:80/sctp".parse().unwrap();
        let frame = first_frame(&key, "192.0.2.1:4711".parse().unwrap()).unwrap();
        assert_eq!((frame.len(), frame[23]), (14 + 20 + 12 + 16, 132));
        assert_eq!(frame[34..38], [0x12, 0x67, 0, 80]);
    }
}
