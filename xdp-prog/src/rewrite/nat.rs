//! NAT mode: both addresses and both ports of a packet, and those in the quote of an ICMP error.

use super::{
    decrement_hop_limit,
    translate::{Quote, set_addresses, set_error, set_transport},
    write_ethernet,
};
use crate::{
    frame::FrameMut,
    reason::DropReason,
    verdict::{Translate, TranslateError},
    wire::{
        ethernet::{Ethernet, VlanTag},
        transport::Ports,
    },
    words::split_u32,
};

/// Turns the frame of a packet into the frame that goes to the other end of its flow.
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if the VLAN tag does not fit in front of the frame. The frame is then half edited and
/// must be dropped.
#[inline(always)]
pub fn translate<F: FrameMut>(frame: &mut F, translate: &Translate<'_>) -> Result<(), DropReason> {
    let Translate {
        family, l3, l4, by, ..
    } = *translate;
    decrement_hop_limit(frame, l3, family)?;
    let (addresses, _) = set_addresses(frame, family, l3, |_| (by.source, by.destination))?;
    let [source, destination] = split_u32(by.ports);
    let ports = Ports {
        source,
        destination,
    };
    set_transport(frame, by.protocol, l4, ports, addresses)?;
    begin_frame(frame, translate)
}

/// Turns the frame of an ICMP error into the frame that goes to the sender of the quoted packet.
///
/// # Errors
///
/// As [`translate`].
#[inline(always)]
pub fn translate_error<F: FrameMut>(
    frame: &mut F,
    error: &TranslateError<'_>,
) -> Result<(), DropReason> {
    let Translate {
        family, l3, l4, by, ..
    } = error.error;
    decrement_hop_limit(frame, l3, family)?;
    // The quoted packet went the other way, so it gets the ends in the other order.
    let [destination, source] = split_u32(by.ports);
    let quote = Quote {
        l3: error.quoted_l3,
        l4: error.quoted_l4,
        protocol: by.protocol,
        ports: Ports {
            source,
            destination,
        },
        has_checksum: error.has_checksum != 0,
    };
    let ends = |_| (by.source, by.destination);
    let quoted_ends = |_| (by.destination, by.source);
    set_error(frame, family, (l3, l4), quote, ends, quoted_ends)?;
    begin_frame(frame, &error.error)
}

/// Writes a fresh Ethernet header, and a VLAN tag if the link needs one, right in front of the packet.
#[inline(always)]
fn begin_frame<F: FrameMut>(frame: &mut F, translate: &Translate<'_>) -> Result<(), DropReason> {
    let vlan = translate.by.link.vlan();
    let length = if vlan == [0; 2] {
        Ethernet::LENGTH
    } else {
        Ethernet::LENGTH + VlanTag::LENGTH
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "both are at most 22"
    )]
    let delta = translate.l3 as i32 - length as i32;
    if delta != 0 && !frame.move_start(delta) {
        return Err(DropReason::NoHeadroom);
    }
    let payload = translate.family.ether_type();
    write_ethernet(frame, translate.by.link.macs(), vlan, payload)
}
