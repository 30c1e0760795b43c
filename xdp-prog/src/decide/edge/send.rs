//! Sends a packet to the backend that [`past`](super::past), [`returned`](super::returned) or [`ask_here`](super::ask_here)
//! has chosen.

use crate::{
    abi::{BACKEND_POD, MODE_IPIP, MODE_L2DSR, Tag},
    decide::{edge::balance::forward, owner::is_from_edge},
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    reason::DropReason,
    stage::Stage,
    verdict::{Owner, Verdict},
    world::{HandOver, World},
};

/// How a packet is tried at a backend, in one word.
///
/// ```text
/// 31              16 15  6     5       4   3     0
/// | low half of hash | zero | bare | retry | tries |
/// ```
///
/// A *bare* one goes to its node by L2 DSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Try(pub u32);

impl Try {
    const RETRY: u32 = Tag::MAX_TRIES + 1;
    const BARE: u32 = Self::RETRY << 1;

    /// The first try of a flow with this hash, after which so many are left.
    #[inline(always)]
    pub const fn first(hash: u32, tries: u32) -> Self {
        Self(hash << 16 | tries)
    }

    /// A try of a packet that was returned, after which so many are left.
    #[inline(always)]
    pub const fn again(tries: u32) -> Self {
        Self(tries | Self::RETRY)
    }

    /// The try of the same packet at another backend, after which so many are left.
    #[inline(always)]
    #[must_use]
    pub const fn with_left(self, tries: u32) -> Self {
        Self(self.0 & !Tag::MAX_TRIES | tries)
    }

    /// The same try by a service's mode.
    #[inline(always)]
    #[must_use]
    pub const fn by_mode(self, mode: u32) -> Self {
        if mode == MODE_L2DSR {
            Self(self.0 | Self::BARE)
        } else {
            self
        }
    }

    /// Returns the mode of the service.
    #[inline(always)]
    const fn mode(self) -> u32 {
        if self.0 & Self::BARE != 0 {
            MODE_L2DSR
        } else {
            MODE_IPIP
        }
    }

    /// Returns how many tries are left.
    #[inline(always)]
    pub const fn left(self) -> u32 {
        self.0 & Tag::MAX_TRIES
    }

    /// Tells whether the packet was returned before.
    #[inline(always)]
    pub const fn is_retry(self) -> bool {
        self.0 & Self::RETRY != 0
    }

    /// Returns the flow's bits for the outer source.
    #[inline(always)]
    const fn hash(self) -> u32 {
        self.0 >> 16
    }
}

/// Decides about a bare packet whose backend was chosen. The result says too whether the packet was returned before.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> (Verdict<'t>, bool) {
    let known = tables.handed_over();
    let is_retry = Try(known.detail).is_retry();
    let verdict = with_packet!(frame,
        packet => send(frame, tables, &packet, known),
        reason => Verdict::Pass(reason));
    match verdict {
        // The frame has been on the way to a node. Where it would be sent back to is not the client.
        Verdict::Answer(_) if is_retry => (Verdict::Drop(DropReason::MtuExceeded), true),
        // It would come back as a packet of the client's, with all tries.
        Verdict::Continue(Stage::Punt) if is_retry => {
            (Verdict::Drop(DropReason::NextHopUnresolved), true)
        }
        verdict => (verdict, is_retry),
    }
}

#[inline(always)]
fn send<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    known: HandOver,
) -> Verdict<'t> {
    let attempt = Try(known.detail);
    let Some(backend) = tables.backend(known.backend) else {
        return Verdict::Drop(DropReason::TableChanged);
    };
    if backend.is_own_pod() {
        return Verdict::Continue(if attempt.left() != 0 {
            Stage::AskHere
        } else if packet.protocol == A::ICMP {
            Stage::IcmpLocal
        } else {
            Stage::Local
        });
    }
    // As in [`FoundService::reach`](crate::decide::owner::FoundService::reach); the pod has left this machine.
    if attempt.mode() == MODE_L2DSR && is_from_edge(frame, tables) {
        return Verdict::Drop(DropReason::UnknownPod);
    }
    let owner = Owner {
        service: known.service,
        id: known.backend,
        backend,
        hash: attempt.hash(),
    };
    let flow = packet.flow_of(known.ports);
    // A retry is no hop more.
    let packet = Packet {
        hop_limit: if attempt.is_retry() {
            u8::MAX
        } else {
            packet.hop_limit
        },
        ..*packet
    };
    match forward(tables, &packet, &flow, attempt.mode(), &owner) {
        // Only a Guideway node returns packets. It returns them to their outer source, and no route need lead to one that
        // differs from flow to flow.
        Ok(Verdict::Forward(forward))
            if backend.flags & BACKEND_POD != 0 && forward.hop.spread == 0 =>
        {
            Verdict::Forward(forward.with_tries(attempt.left()))
        }
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}
