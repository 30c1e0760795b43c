//! What must hold of every frame, whatever is in it.

mod returns;

use etherparse::{
    Ethernet2Header, Ipv4Header, Ipv6Header, SingleVlanHeader, checksum::Sum16BitWords,
};
use xdp_prog::{
    abi::{BACKEND_NAT, BACKEND_V4, MODE_L2DSR},
    process::Action,
    reason::{DropReason, PassReason, ReplyReason, ToClientReason, ToNodeReason},
};

use crate::support::{
    host::Outcome,
    routes::VLANS,
    tables::{Event, ModelTables, TableSet},
};

/// Checks an outcome against its input.
///
/// # Errors
///
/// Returns a sentence about the rule that is broken.
pub(crate) fn check(tables: &TableSet, input: &[u8], outcome: &Outcome) -> Result<(), String> {
    let event = match outcome.events[..] {
        [event] => event,
        // What goes to a pod is counted for its service and as passed.
        [Event::Forward { .. }, reason @ Event::Reason(index)]
            if index == PassReason::Delivered.index() =>
        {
            reason
        }
        _ => return Err(format!("counted {} times", outcome.events.len())),
    };
    match (outcome.action, event) {
        (Action::Pass, Event::Reason(reason)) if reason == PassReason::Decapsulated.index() => {
            decapsulated(input, &outcome.bytes)
        }
        (Action::Pass, Event::Reason(reason)) if reason == PassReason::Delivered.index() => ensure(
            input != outcome.bytes && outcome.bytes.len() <= input.len(),
            "a delivered packet was not translated, or has grown",
        ),
        (Action::Pass, Event::Reason(reason)) if reason == PassReason::ProbeAnswer.index() => {
            ensure(
                input != outcome.bytes && outcome.bytes.len() == input.len(),
                "an answer to a check was not translated, or has another length",
            )
        }
        (Action::Transmit | Action::Redirect(_), Event::Reason(reason))
            if ToClientReason::ALL
                .iter()
                .any(|back| back.index() == reason) =>
        {
            translated(input, &outcome.bytes)
        }
        (Action::Transmit, Event::Reason(reason)) if reason == ReplyReason::Neighbour.index() => {
            neighbour_answered(input, &outcome.bytes)
        }
        (Action::Transmit | Action::Redirect(_), Event::Reason(reason))
            if reason == ReplyReason::Reset.index() && is_encapsulated(input) =>
        {
            reset_within(input, &outcome.bytes)
        }
        (Action::Transmit, Event::Reason(reason)) if reason == ReplyReason::Returned.index() => {
            returns::returned(input, &outcome.bytes)
        }
        (Action::Transmit | Action::Redirect(_), Event::Reason(reason))
            if reason == ToNodeReason::Retried.index() =>
        {
            returns::retried(input, &outcome.bytes)
        }
        (Action::Transmit, Event::Reason(reason)) => {
            ensure(
                ReplyReason::ALL.iter().any(|reply| reply.index() == reason),
                "an answer counts as something else",
            )?;
            answered(input, &outcome.bytes)
        }
        (Action::Pass, Event::Reason(reason)) => {
            ensure(
                (reason as usize) < PassReason::ALL.len(),
                "a pass counts as a drop",
            )?;
            ensure(input == outcome.bytes, "a frame that passes was changed")
        }
        (Action::Drop, Event::Reason(reason)) => {
            ensure(
                (reason as usize) >= PassReason::ALL.len(),
                "a drop counts as a pass",
            )?;
            // The inner header is looked at last, when the rest may have been translated.
            let at_decap = [DropReason::EcnDropped, DropReason::MalformedInner];
            // A packet that was returned loses its outer header before the way to the next node is known.
            ensure(
                input == outcome.bytes
                    || returns::is_returned(input)
                    || at_decap.iter().any(|late| late.index() == reason),
                "a frame that is dropped was changed",
            )
        }
        (Action::Transmit | Action::Redirect(_), Event::Forward { .. }) => {
            forwarded(tables, input, outcome, event)
        }
        (action, event) => Err(format!("{action:?} counts as {event:?}")),
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}

fn forwarded(
    tables: &TableSet,
    input: &[u8],
    outcome: &Outcome,
    event: Event,
) -> Result<(), String> {
    let Event::Forward {
        service,
        backend,
        bytes,
    } = event
    else {
        return Err("a forwarded frame counts no traffic".to_owned());
    };
    let output = &outcome.bytes;
    let backend = &tables.backends[backend as usize];
    let hop = match backend.next_hop {
        0 => xdp_prog::world::Tables::fib_next_hop(&ModelTables::new(tables), backend).copied(),
        id => Some(tables.next_hops[id as usize]),
    };
    let hop = hop.ok_or("it went where no way leads")?;
    ensure(
        output.starts_with(&hop.macs),
        "the MACs are not the next hop's",
    )?;
    let (ether_type, tag, packet) = link(output)?;
    if backend.flags & BACKEND_NAT != 0 {
        let l3 = 14 + 4 * tags(output);
        let at = if output[l3] >> 4 == 4 {
            l3 + 16
        } else {
            l3 + 24
        };
        let pod = &backend.pod.octets()[if at == l3 + 16 { 12 } else { 0 }..];
        ensure(
            output[at..].starts_with(pod),
            "the destination is not the backend",
        )?;
        return translated(input, output);
    }
    ensure(
        tag == u16::from_be_bytes(hop.vlan),
        "the tag is not the next hop's",
    )?;

    let inner = if tables.service[service as usize].mode == MODE_L2DSR {
        packet
    } else {
        let stated = usize::try_from(bytes).unwrap();
        let (protocol, inner) = if backend.flags & BACKEND_V4 != 0 {
            ensure(ether_type == 0x0800, "the outer header is not IPv4's")?;
            let (header, inner) = Ipv4Header::from_slice(packet).map_err(|e| e.to_string())?;
            ensure(
                header.header_checksum == header.calc_header_checksum(),
                "the outer checksum is wrong",
            )?;
            ensure(
                header.destination == backend.address_v4(),
                "the outer destination is wrong",
            )?;
            ensure(
                header.total_len as usize == stated + 20,
                "the outer length is wrong",
            )?;
            (header.protocol.0, inner)
        } else {
            ensure(ether_type == 0x86dd, "the outer header is not IPv6's")?;
            let (header, inner) = Ipv6Header::from_slice(packet).map_err(|e| e.to_string())?;
            ensure(
                header.destination == backend.address,
                "the outer destination is wrong",
            )?;
            ensure(
                header.payload_length as usize == stated,
                "the outer length is wrong",
            )?;
            (header.next_header.0, inner)
        };
        let version = inner.first().map(|first| first >> 4);
        ensure(
            matches!((protocol, version), (4, Some(4)) | (41, Some(6))),
            "the outer protocol does not fit",
        )?;
        inner
    };
    let came = tail(input, inner.len())?;
    // Bytes that may differ: TTL and header checksum, or hop limit.
    match same_but(came, inner, &[8, 10, 11], &[7])? {
        4 => {
            ensure(inner[8] == came[8] - 1, "the TTL is not one less")?;
            ensure(
                checksum_error(inner) == checksum_error(came),
                "the checksum was not kept right",
            )?;
            ensure(
                u64::from(word(inner, 2)) == bytes,
                "the length counted is not the packet's",
            )
        }
        _ => {
            ensure(inner[7] == came[7] - 1, "the hop limit is not one less")?;
            ensure(
                u64::from(word(inner, 4)) + 40 == bytes,
                "the length counted is not the packet's",
            )
        }
    }
}

/// NAT changes addresses, ports and checksums, and keeps wrong checksums as wrong as they were.
fn translated(input: &[u8], output: &[u8]) -> Result<(), String> {
    let [came, sent] = [input, output].map(|frame| &frame[14 + 4 * tags(frame)..]);
    let (header, life, length, first_address) = if sent[0] >> 4 == 4 {
        let header = usize::from(sent[0] & 15) * 4;
        (header, 8, usize::from(word(sent, 2)), 12)
    } else {
        (40, 7, usize::from(word(sent, 4)) + 40, 8)
    };
    ensure(sent[life] == came[life] - 1, "the TTL is not one less")?;
    let protocol = if header == 40 && first_address == 8 {
        sent[6]
    } else {
        sent[9]
    };
    let covered = |packet: &[u8], addresses: &[u8]| {
        Sum16BitWords::new()
            .add_slice(addresses)
            .add_slice(&packet[header..length])
            .ones_complement()
    };
    match protocol {
        1 if first_address == 12 => {
            return ensure(
                covered(sent, &[]) == covered(came, &[]),
                "the checksum of an ICMP error was not kept right",
            );
        }
        58 => {
            return ensure(
                covered(sent, &sent[8..40]) == covered(came, &came[8..40]),
                "the checksum of an ICMPv6 error was not kept right",
            );
        }
        _ => {}
    }
    let checksum = header
        + match protocol {
            6 => 16,
            17 => 6,
            _ => return Ok(()),
        };
    let mut expected = came[..length].to_vec();
    let addresses = if first_address == 8 { 8..40 } else { 12..20 };
    // Behind its IP header a later fragment has payload alone.
    let is_later = first_address == 12 && word(sent, 6) & 0x1fff != 0;
    let (ports, checked) = if is_later {
        (header..header, header..header)
    } else {
        (header..header + 4, checksum..checksum + 2)
    };
    let changed = [
        life..life + 1,
        10..if first_address == 12 { 12 } else { 10 },
        addresses.clone(),
        ports,
        checked,
    ];
    for bytes in changed {
        expected[bytes.clone()].copy_from_slice(&sent[bytes]);
    }
    ensure(expected == sent[..length], "other bytes were changed")?;
    ensure(
        first_address == 8 || checksum_error(sent) == checksum_error(came),
        "the header checksum was not kept right",
    )?;
    if is_later {
        return Ok(());
    }
    let error = |packet: &[u8]| covered(packet, &packet[addresses.clone()]);
    let has_none = protocol == 17 && word(came, checksum) == 0;
    ensure(
        if has_none {
            word(sent, checksum) == 0
        } else {
            error(sent) == error(came)
        },
        "the transport checksum was not kept right",
    )
}

/// An answer to a question for a MAC goes from one of ours to who asked, or to all nodes where the question came
/// from no address (RFC 4861), and is the question's kind and size, with room for the option that tells the MAC.
fn neighbour_answered(input: &[u8], output: &[u8]) -> Result<(), String> {
    const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
    ensure(
        (output[..6] == input[6..12] || output[..6] == ALL_NODES) && output[6] & 1 == 0,
        "an answer about a neighbour goes from or to somewhere else",
    )?;
    same_tags(input, output)?;
    ensure(output.len() <= input.len() + 8, "an answer is too large")
}

/// An answer has the tags of its packet; returns where they end.
fn same_tags(input: &[u8], output: &[u8]) -> Result<usize, String> {
    let l3 = 14 + 4 * tags(output);
    ensure(
        output[12..l3] == input[12..l3],
        "the tags of an answer are not those of its packet",
    )?;
    Ok(l3)
}

/// An answer goes back by MAC and tags, and is at most the packet and the headers of an ICMP error.
fn answered(input: &[u8], output: &[u8]) -> Result<(), String> {
    ensure(
        output[..6] == input[6..12] && output[6..12] == input[..6],
        "the MACs of an answer are not those of its packet",
    )?;
    let l3 = same_tags(input, output)?;
    let (length, room, longest) = if input[l3] >> 4 == 4 {
        (usize::from(word(input, l3 + 2)), 28, 576)
    } else {
        (usize::from(word(input, l3 + 4)) + 40, 48, 1280)
    };
    ensure(
        output.len() - l3 <= length.max(longest.min(length + room)),
        "an answer is too large",
    )?;
    if input[l3] >> 4 == 4 {
        Ipv4Header::from_slice(&output[l3..]).map_err(|e| e.to_string())?;
    } else {
        Ipv6Header::from_slice(&output[l3..]).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn is_encapsulated(frame: &[u8]) -> bool {
    let packet = &frame[14 + 4 * tags(frame)..];
    let protocol = packet[if packet[0] >> 4 == 4 { 9 } else { 6 }];
    matches!(protocol, 4 | 41)
}

/// The RST for a segment within another packet has its ends turned round, right checksums, and the frame's tags, a
/// known VLAN's or none.
fn reset_within(input: &[u8], output: &[u8]) -> Result<(), String> {
    let (came, l3) = (14 + 4 * tags(input), 14 + 4 * tags(output));
    let is_known = |&(_, _, vlan): &(u32, u32, u16)| {
        let [high, low] = vlan.to_be_bytes();
        l3 == 18 && output[12..16] == [0x81, 0, high, low]
    };
    ensure(
        l3 == 14
            || (l3 == came && output[12..l3 - 2] == input[12..l3 - 2])
            || VLANS.iter().any(is_known),
        "the tags of a RST are neither its packet's, nor a known VLAN's, nor none",
    )?;
    let outer = if input[came] >> 4 == 4 { 20 } else { 40 };
    let (segment, reset) = (&input[came + outer..], &output[l3..]);
    let (header, source, destination) = if reset[0] >> 4 == 4 {
        (20, 12..16, 16..20)
    } else {
        (40, 8..24, 24..40)
    };
    ensure(
        reset[source.clone()] == segment[destination.clone()]
            && reset[destination.clone()] == segment[source.clone()],
        "the ends of a RST are not those of its segment",
    )?;
    ensure(
        reset.len() == header + 20 && reset[header + 13] & 4 != 0,
        "the answer is no RST",
    )?;
    ensure(
        header == 40 || checksum_error(reset) == 0,
        "the header checksum of a RST is wrong",
    )?;
    let sum = Sum16BitWords::new()
        .add_slice(&reset[source.start..destination.end])
        .add_2bytes([0, 6])
        .add_2bytes([0, 20])
        .add_slice(&reset[header..])
        .ones_complement();
    ensure(sum == 0, "the checksum of a RST is wrong")
}

fn decapsulated(input: &[u8], output: &[u8]) -> Result<(), String> {
    ensure(
        output.len() < input.len(),
        "decapsulation did not make the frame shorter",
    )?;
    ensure(
        output[..12] == input[..12],
        "decapsulation changed the MACs",
    )?;
    let l3 = 14 + 4 * tags(output);
    ensure(
        output[12..l3 - 2] == input[12..l3 - 2],
        "decapsulation changed the tags",
    )?;
    let (inner, came) = (&output[l3..], tail(input, output.len() - l3)?);
    // Bytes that may differ: type of service and header checksum, or traffic class.
    let version = same_but(came, inner, &[1, 10, 11], &[0, 1])?;
    let (class, before) = if version == 4 {
        ensure(
            output[l3 - 2..l3] == [0x08, 0x00],
            "the EtherType is not IPv4's",
        )?;
        ensure(
            checksum_error(inner) == checksum_error(came),
            "the checksum was not kept right",
        )?;
        Ipv4Header::from_slice(inner).map_err(|e| e.to_string())?;
        (inner[1], came[1])
    } else {
        ensure(
            output[l3 - 2..l3] == [0x86, 0xdd],
            "the EtherType is not IPv6's",
        )?;
        ensure(inner[1] & 15 == came[1] & 15, "the flow label was changed")?;
        Ipv6Header::from_slice(inner).map_err(|e| e.to_string())?;
        (inner[0] << 4 | inner[1] >> 4, came[0] << 4 | came[1] >> 4)
    };
    ensure(
        class & !3 == before & !3,
        "decapsulation changed the inner DSCP",
    )
}

/// Returns EtherType, VLAN tag (0 for none) and payload of a frame that we sent.
fn link(frame: &[u8]) -> Result<(u16, u16, &[u8]), String> {
    let (ethernet, rest) = Ethernet2Header::from_slice(frame).map_err(|e| e.to_string())?;
    if ethernet.ether_type.0 != 0x8100 {
        return Ok((ethernet.ether_type.0, 0, rest));
    }
    let tag = word(rest, 0);
    let (vlan, rest) = SingleVlanHeader::from_slice(rest).map_err(|e| e.to_string())?;
    Ok((vlan.ether_type.0, tag, rest))
}

fn tags(frame: &[u8]) -> usize {
    (0..2)
        .take_while(|depth| matches!(word(frame, 12 + 4 * depth), 0x8100 | 0x88a8))
        .count()
}

/// Returns the last bytes of the frame that came in.
fn tail(input: &[u8], length: usize) -> Result<&[u8], String> {
    input
        .len()
        .checked_sub(length)
        .map(|start| &input[start..])
        .ok_or_else(|| "the packet has grown".to_owned())
}

/// Checks that two packets are the same but for some bytes, and returns their version.
fn same_but(before: &[u8], after: &[u8], in_v4: &[usize], in_v6: &[usize]) -> Result<u8, String> {
    let version = after.first().ok_or("the packet is empty")? >> 4;
    let may_differ = if version == 4 { in_v4 } else { in_v6 };
    let mut compared = before.to_vec();
    for position in may_differ {
        *compared
            .get_mut(*position)
            .ok_or("the packet is cut short")? = after[*position];
    }
    ensure(compared == after, "other bytes of the packet were changed")?;
    Ok(version)
}

/// Returns what the sum over an IPv4 header lacks to be right.
fn checksum_error(packet: &[u8]) -> u16 {
    let header = usize::from(packet[0] & 15) * 4;
    Sum16BitWords::new()
        .add_slice(packet.get(..header).unwrap_or_default())
        .ones_complement()
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
