//! Whether a frame is a packet as its sender's stack would write it, by etherparse.

use etherparse::{NetHeaders, PacketHeaders, TransportHeader, UdpHeader};

/// Tells whether a frame is a whole TCP or UDP packet, its lengths and checksums right.
pub(crate) fn is_whole(frame: &[u8]) -> bool {
    let Ok(packet) = PacketHeaders::from_ethernet_slice(frame) else {
        return false;
    };
    let (Some(net), Some(transport)) = (packet.net, packet.transport) else {
        return false;
    };
    let payload = packet.payload.slice();
    match (net, transport) {
        (NetHeaders::Ipv4(ip, _), TransportHeader::Tcp(tcp)) => {
            ip.calc_header_checksum() == ip.header_checksum
                && tcp.calc_checksum_ipv4(&ip, payload) == Ok(tcp.checksum)
        }
        (NetHeaders::Ipv4(ip, _), TransportHeader::Udp(udp)) => {
            ip.calc_header_checksum() == ip.header_checksum
                && fits(&udp, payload)
                && udp.calc_checksum_ipv4(&ip, payload) == Ok(udp.checksum)
        }
        (NetHeaders::Ipv6(ip, _), TransportHeader::Tcp(tcp)) => {
            tcp.calc_checksum_ipv6(&ip, payload) == Ok(tcp.checksum)
        }
        (NetHeaders::Ipv6(ip, _), TransportHeader::Udp(udp)) => {
            fits(&udp, payload) && udp.calc_checksum_ipv6(&ip, payload) == Ok(udp.checksum)
        }
        _ => false,
    }
}

fn fits(udp: &UdpHeader, payload: &[u8]) -> bool {
    usize::from(udp.length) == UdpHeader::LEN + payload.len()
}
