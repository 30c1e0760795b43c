//! ICMP errors about a flow of a pod of this machine.
//!
//! A router sends such an error to the VIP and quotes a packet of the VIP. The pod recognises its own packet only if
//! destination and quote name the pod instead: the reverse of the translation that egress makes of the pod's replies.
//! Where the pod knows the client by another port, the quote gets that port.
//!
//! A hidden client ([`crate::decide::node::flow_lookup`]) appears to the pod as the address that it talks to. That
//! address becomes the quote's destination, and the source of the error too: the error comes from this machine or the
//! pod, and the stack takes no packet from an address of its own.

use super::{
    decap,
    translate::{Ends, Quote, set_error},
};
use crate::{
    frame::FrameMut,
    reason::DropReason,
    verdict::{ErrorDelivery, SeenByPod},
    wire::transport::Ports,
};

/// Translates an ICMP error for its pod and takes off the outer header, if there is one.
///
/// # Errors
///
/// Returns the reason why the error cannot be delivered; the frame must then be dropped.
#[inline(always)]
pub fn deliver_error<F: FrameMut>(
    frame: &mut F,
    delivery: &ErrorDelivery<'_>,
) -> Result<(), DropReason> {
    let pod = delivery.backend.pod;
    let seen_by_pod = delivery.client_at_pod.seen_by_pod;
    let quote = Quote {
        l3: delivery.quoted_l3,
        l4: delivery.quoted_l4,
        protocol: delivery.protocol.into(),
        ports: Ports {
            source: delivery.backend.port,
            destination: delivery.client_at_pod.port.to_be_bytes(),
        },
        has_checksum: delivery.has_checksum,
    };
    let place = (delivery.place.inner_l3, delivery.l4);
    let to_pod = |(source, destination): Ends| match seen_by_pod {
        SeenByPod::Client => (source, pod),
        SeenByPod::Destination => (destination, pod),
    };
    let of_pod = |(source, destination): Ends| match seen_by_pod {
        SeenByPod::Client => (pod, destination),
        SeenByPod::Destination => (pod, source),
    };
    set_error(frame, delivery.place.inner, place, quote, to_pod, of_pod)?;
    if delivery.place.is_encapsulated() {
        decap(frame, &delivery.place)
    } else {
        Ok(())
    }
}
