//! TCP flows to pods whose clients have proved nothing yet: what to note of the client's segments, and which of the
//! pod's segments answer them.
//!
//! Anybody can send a segment in a client's name. The client may talk to the pod by the pod's own address at the same
//! time, from the same port. The pod's segments of that connection must not leave as the VIP's: the client would
//! reset the connection with a valid sequence number. So the number of an entry in `FLOWS_EMBRYONIC` ties the pod's
//! segments to the client's last one:
//!
//! | state | number | the pod's segment answers |
//! |---|---|---|
//! | [`FLOW_ASKED`] | sequence number of the SYN | a SYN+ACK or RST that acknowledges it (RFC 9293 section 3.10.7.1) |
//! | [`FLOW_ACCEPTED`] | sequence number of the SYN+ACK | what follows that, by a first window at most |
//! | both | the same | likewise, and a SYN+ACK or RST: the client may have begun anew, or somebody else have sent the SYN |
//! | none | upper halves of both numbers | what is near them: the flow is older than its entry |
//!
//! In the last case, the flow goes on after the tables were lost, or the table had no room for it. Then the pod's
//! next segment begins at the number that the client last acknowledged, or ahead of it within the client's window.
//! The client's last segment begins at the number that the pod acknowledges, or ahead of it within the pod's window,
//! or behind it if the client has repeated it because the pod's ACKs were lost. Most connections send in one
//! direction at a time. So one of the two numbers must be near and the other within a window. One of 5 million forged
//! segments passes, as many as TCP itself accepts with windows of that size (RFC 5961 section 5). The client's last
//! segment counts, not its first: so a forged segment does not keep the client out. A pod whose segment was not
//! translated repeats what the client waits for, and that is near.

use crate::{
    abi::{FLOW_ACCEPTED, FLOW_ASKED, PodFlow},
    parse::Segment,
};

/// Bytes that a SYN may carry, and that a pod may send at first (RFC 6928: 10 segments).
const FIRST_BYTES: u32 = 1 << 16;
/// Reach of "near", in units of 64 KiB: the upper halves of two numbers cannot tell more of a packet.
const NEAR: u16 = 1;
/// Reach of a window, in units of 64 KiB: the largest that Linux offers by default (`tcp_rmem`: 6 MiB).
const WINDOW: u16 = 96;

/// Notes a segment of the client. A RST, or a segment that acknowledges nothing, is not noted.
#[inline(always)]
pub const fn remember(flow: &mut PodFlow, segment: &Segment) {
    let is_accepted = flow.state() & FLOW_ACCEPTED != 0;
    if segment.flags.begins_connection() {
        if is_accepted {
            flow.add_state(FLOW_ASKED);
        } else {
            flow.set_number(segment.sequence, FLOW_ASKED);
        }
    } else if segment.flags.acknowledges() && !is_accepted {
        let (sequence, acknowledgement) = (segment.sequence, segment.acknowledgement);
        flow.set_number(sequence & 0xffff_0000 | acknowledgement >> 16, 0);
    }
}

/// Tells whether a segment of the client acknowledges the pod's SYN+ACK. Only a client that got the SYN+ACK can do
/// so.
#[inline(always)]
pub const fn is_proof(flow: &PodFlow, segment: &Segment) -> bool {
    flow.state() & FLOW_ACCEPTED != 0
        && segment.flags.acknowledges()
        && segment.acknowledgement == flow.number().wrapping_add(1)
}

/// Notes that the pod has accepted the connection, by a SYN+ACK with this sequence number.
#[inline(always)]
pub const fn accept(flow: &mut PodFlow, sequence: u32) {
    flow.set_number(sequence, FLOW_ACCEPTED);
}

/// Whether a segment of the pod answers the client's; a word, because it may lie on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Judgement {
    /// It does not, as far as the entry shows: the client may talk to the pod itself.
    Unrelated,
    /// It answers the client.
    Answer,
    /// It answers the client, and the pod sends it only to a client that has proved its address.
    Proof,
}

/// Judges whether a segment of the pod answers the client's.
#[inline(always)]
pub const fn judge(flow: &PodFlow, segment: &Segment) -> Judgement {
    let flags = segment.flags;
    let number = flow.number();
    let is_asked = flow.state() & FLOW_ASKED != 0;
    let answers_syn = flags.accepts_connection() || flags.rst();
    if flow.state() & FLOW_ACCEPTED != 0 {
        if is_asked && answers_syn {
            return Judgement::Answer;
        }
        if segment.sequence.wrapping_sub(number) > FIRST_BYTES {
            return Judgement::Unrelated;
        }
        // A pod that waits for the end of the handshake may answer forged segments with bare ACKs (RFC 9293 section
        // 3.10.7.4).
        return answer(!flags.rst() && (flags.psh() || flags.fin()));
    }
    if is_asked {
        let behind_syn = segment.acknowledgement.wrapping_sub(number.wrapping_add(1));
        if !answers_syn || behind_syn > FIRST_BYTES {
            return Judgement::Unrelated;
        }
        return Judgement::Answer;
    }
    if flags.accepts_connection() {
        return Judgement::Unrelated;
    }
    let pod_ahead = ahead(segment.sequence >> 16, number);
    // Such a RST refuses a segment that had an ACK, and its sequence number is what that segment acknowledged (RFC
    // 9293 section 3.10.7.1).
    if flags.rst() && !flags.has_acknowledgement() {
        return if is_within(pod_ahead, NEAR) {
            Judgement::Answer
        } else {
            Judgement::Unrelated
        };
    }
    let client_ahead = ahead(number >> 16, segment.acknowledgement >> 16);
    let (is_pod_near, is_client_near) = (is_within(pod_ahead, NEAR), is_within(client_ahead, NEAR));
    let is_client_within =
        is_within(client_ahead, WINDOW) || is_within(client_ahead.wrapping_neg(), WINDOW);
    if (is_pod_near && is_client_within) || (is_client_near && is_within(pod_ahead, WINDOW)) {
        // The forger of a handshake's SYN knows half of the numbers, and could get a bare ACK as an answer by a
        // guess.
        let is_sure = flags.psh() || flags.fin() || (is_pod_near && is_client_near);
        return answer(!flags.rst() && is_sure);
    }
    Judgement::Unrelated
}

#[inline(always)]
const fn answer(is_proof: bool) -> Judgement {
    if is_proof {
        Judgement::Proof
    } else {
        Judgement::Answer
    }
}

/// Returns how far the lower half of `of` is ahead of the lower half of `other`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes the lower halves")]
const fn ahead(of: u32, other: u32) -> u16 {
    (of as u16).wrapping_sub(other as u16)
}

/// Tells whether a number is at most `reach` ahead, or so little behind as packets in flight can make it.
#[inline(always)]
const fn is_within(ahead: u16, reach: u16) -> bool {
    ahead.wrapping_add(NEAR) <= reach + NEAR
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        abi::{AddressKey, Tuple},
        parse::TcpFlags,
    };

    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const PSH: u8 = 0x08;
    const ACK: u8 = 0x10;
    /// The client's and the pod's first numbers, about to overflow.
    const CLIENT: u32 = 0xffff_f000;
    const POD: u32 = 0xffff_ff00;
    /// Anybody's.
    const OTHER: u32 = 0x5000_0000;
    const MIB: u32 = 1 << 20;

    fn flow(segments: &[Segment]) -> PodFlow {
        let key = Tuple::default();
        let mut flow = PodFlow::new(&key, AddressKey::default(), [0, 80], 20, 0, 0);
        for segment in segments {
            remember(&mut flow, segment);
        }
        flow
    }

    fn says(flags: u8, sequence: u32, acknowledgement: u32) -> Segment {
        Segment {
            flags: TcpFlags(flags),
            sequence,
            acknowledgement,
        }
    }

    #[test]
    fn syn_is_answered_by_what_acknowledges_it() {
        let flow = flow(&[says(SYN, CLIENT, 0)]);
        let judged = |flags, acknowledgement| judge(&flow, &says(flags, POD, acknowledgement));
        let next = CLIENT.wrapping_add(1);
        for flags in [SYN | ACK, RST | ACK] {
            assert_eq!(judged(flags, next), Judgement::Answer);
            assert_eq!(judged(flags, next.wrapping_add(1460)), Judgement::Answer);
            assert_eq!(judged(flags, CLIENT), Judgement::Unrelated);
            assert_eq!(judged(flags, next.wrapping_add(MIB)), Judgement::Unrelated);
        }
        for flags in [ACK, PSH | ACK] {
            assert_eq!(judged(flags, next), Judgement::Unrelated, "{flags:#x}");
        }
    }

    #[test]
    fn accepted_connection_goes_on_behind_its_syn_ack() {
        let mut flow = flow(&[says(SYN, CLIENT, 0)]);
        accept(&mut flow, POD);
        let judged = |flow: &PodFlow, flags, sequence| judge(flow, &says(flags, sequence, 0));
        let next = POD.wrapping_add(1);
        assert_eq!(judged(&flow, SYN | ACK, POD), Judgement::Answer);
        assert_eq!(judged(&flow, ACK, next), Judgement::Answer);
        assert_eq!(judged(&flow, PSH | ACK, next), Judgement::Proof);
        assert_eq!(judged(&flow, RST, next), Judgement::Answer);
        for flags in [SYN | ACK, ACK, PSH | ACK, RST] {
            let far = POD.wrapping_add(MIB);
            assert_eq!(
                judged(&flow, flags, far),
                Judgement::Unrelated,
                "{flags:#x}"
            );
        }
        assert!(is_proof(&flow, &says(ACK, CLIENT, next)));
        assert!(!is_proof(&flow, &says(ACK, CLIENT, POD)));
        assert!(!is_proof(&flow, &says(RST | ACK, CLIENT, next)));
        // Neither segments nor another SYN take the number away.
        for forged in [
            says(ACK, OTHER, OTHER),
            says(RST, OTHER, 0),
            says(SYN, OTHER, 0),
        ] {
            remember(&mut flow, &forged);
            assert!(is_proof(&flow, &says(ACK, CLIENT, next)), "{forged:?}");
        }
        // The client may have begun anew.
        assert_eq!(judged(&flow, SYN | ACK, OTHER), Judgement::Answer);
        assert_eq!(judged(&flow, PSH | ACK, OTHER), Judgement::Unrelated);
        accept(&mut flow, OTHER);
        assert_eq!(judged(&flow, SYN | ACK, POD), Judgement::Unrelated);
    }

    #[test]
    fn flow_older_than_its_entry_is_known_by_its_numbers() {
        let flow = flow(&[says(ACK, CLIENT, POD)]);
        let judged = |flags, pod: u32, client: u32| {
            let (sequence, acknowledgement) = (POD.wrapping_add(pod), CLIENT.wrapping_add(client));
            judge(&flow, &says(flags, sequence, acknowledgement))
        };
        let behind = 0_u32.wrapping_sub(5 * MIB);
        for (flags, pod, client, expected) in [
            (ACK, 0, 1460, Judgement::Proof),
            (PSH | ACK, 0, 1460, Judgement::Proof),
            (RST | ACK, 0, 0, Judgement::Answer),
            (RST, 0, 0x1234_5678, Judgement::Answer),
            (RST, MIB, 0x1234_5678, Judgement::Unrelated),
            (SYN | ACK, 0, 0, Judgement::Unrelated),
            // The pod sends, and the client.
            (ACK, 5 * MIB, 0, Judgement::Answer),
            (PSH | ACK, 5 * MIB, 0, Judgement::Proof),
            (ACK, 0, behind, Judgement::Answer),
            // It sends again what the pod has.
            (ACK, 0, 5 * MIB, Judgement::Answer),
            // Nobody is as far ahead, or behind, or both.
            (PSH | ACK, 7 * MIB, 0, Judgement::Unrelated),
            (
                PSH | ACK,
                0,
                0_u32.wrapping_sub(7 * MIB),
                Judgement::Unrelated,
            ),
            (PSH | ACK, behind, 0, Judgement::Unrelated),
            (PSH | ACK, 0, 7 * MIB, Judgement::Unrelated),
            (PSH | ACK, MIB, MIB, Judgement::Unrelated),
            (PSH | ACK, 5 * MIB, behind, Judgement::Unrelated),
        ] {
            let actual = judged(flags, pod, client);
            assert_eq!(actual, expected, "{flags:#x} {pod:#x} {client:#x}");
        }
    }

    #[test]
    fn last_segment_of_the_client_counts() {
        let forged = [says(ACK, OTHER, OTHER), says(SYN, OTHER, 0)];
        let pod = says(PSH | ACK, POD, CLIENT);
        for forged in forged {
            let known = flow(&[forged]);
            assert_eq!(judge(&known, &pod), Judgement::Unrelated, "{forged:?}");
            let known = flow(&[forged, says(ACK, CLIENT, POD)]);
            assert_eq!(judge(&known, &pod), Judgement::Proof, "{forged:?}");
            let known = flow(&[says(ACK, CLIENT, POD), says(RST, OTHER, 0)]);
            assert_eq!(judge(&known, &pod), Judgement::Proof);
        }
    }
}
