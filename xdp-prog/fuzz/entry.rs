//! What is fuzzed: parsers of bytes that anybody may send. Each entry takes any bytes, and panics where a parser breaks
//! what it promises. The targets beside feed them under libFuzzer, `tests/parsers.rs` under proptest.

use xdp_prog::{
    frame::{Frame, HostFrame},
    parse::{self, Packet, quote},
};

/// Follows a frame to its transport header.
pub(crate) fn packet(bytes: &[u8]) {
    let frame = HostFrame::new(bytes);
    let link = parse::any_link(&frame);
    if parse::link(&frame).is_ok() {
        assert_eq!(parse::link(&frame), link);
    }
    let Ok(link) = link else {
        return;
    };
    assert!(link.l3 <= bytes.len());
    if let Ok(packet) = parse::ipv4(&frame, link.l3) {
        assert_is_within(&frame, &packet);
    }
    if let Ok(packet) = parse::ipv6(&frame, link.l3) {
        assert_is_within(&frame, &packet);
    }
}

/// What later stages build on: no header reaches beyond the packet, and the packet not beyond the frame.
fn assert_is_within<A: Copy>(frame: &HostFrame, packet: &Packet<A>) {
    let end = packet.l3 + packet.length;
    assert!(frame.holds(end));
    assert!(packet.l3 < packet.l4 && packet.l4 <= end);
    if parse::flow(frame, packet).is_ok() {
        assert!(packet.l4 + parse::transport_length(packet.protocol) <= end);
        parse::tcp_flags(frame, packet);
    }
}

/// Reads what an ICMP error quotes, wherever in the frame it begins.
pub(crate) fn quoted(bytes: &[u8]) {
    let frame = HostFrame::new(bytes);
    for l3 in 0..bytes.len() {
        if let Some(quote) = quote::ipv4(&frame, l3, bytes.len()) {
            assert!(l3 < quote.l4 && quote.l4 + quote::QUOTED_TRANSPORT <= bytes.len());
        }
        if let Some(quote) = quote::ipv6(&frame, l3, bytes.len()) {
            assert!(l3 < quote.l4 && quote.l4 + quote::QUOTED_TRANSPORT <= bytes.len());
        }
    }
}
