//! The MSS option of SYN+ACKs.

use super::{BOTH, Case, Ends, OUT, TCP, case};
use crate::{
    packets::{
        Flags::{self, Ack, SynAck},
        tcp,
    },
    support::packet::patched,
};

const MTU: u32 = 1500;
const NOP: [u8; 1] = [1];
const END: [u8; 1] = [0];
const SACK: [u8; 2] = [4, 2];
const TIMESTAMPS: [u8; 10] = [8, 10, 1, 2, 3, 4, 5, 6, 7, 8];

const fn mss(value: u16) -> [u8; 4] {
    let [high, low] = value.to_be_bytes();
    [2, 4, high, low]
}

/// A segment with these options, as it leaves from the pod and as the client must see it.
struct Clamping {
    ends: Ends,
    flags: Flags,
    outer: u8,
    mtu: u32,
}

impl Clamping {
    fn case(&self, name: String, before: &[&[u8]], after: &[&[u8]]) -> Case {
        let Self {
            ends,
            flags,
            outer,
            mtu,
        } = *self;
        let segment = |from, options: &[&[u8]]| {
            let mut options = options.concat();
            options.resize(options.len().next_multiple_of(4), 0);
            OUT.carry(&tcp(from, ends.client, flags, &options, b""))
        };
        case(name, segment(ends.pod, before))
            .with(|set| set.config.mtu = mtu)
            .embryonic(ends.key(TCP), ends.accepted(outer, 0))
            .translated(segment(ends.vip, after))
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        let family = ends.family;
        let headers: u16 = if family == "v4" { 40 } else { 60 };
        for outer in [20, 40] {
            let largest = 1500 - u16::from(outer) - headers;
            let clamping = Clamping {
                ends,
                flags: SynAck,
                outer,
                mtu: MTU,
            };
            let name = |what: &str| format!("{family}: SYN+ACK, outer header of {outer}: {what}");
            for (what, front) in [
                ("MSS first", &[][..]),
                ("MSS at an odd offset", &[&NOP[..]]),
                ("MSS behind others", &[&SACK[..], &TIMESTAMPS]),
                (
                    "MSS behind others at an odd offset",
                    &[&SACK[..], &NOP, &TIMESTAMPS],
                ),
                ("MSS as the eighth", &[&NOP[..]; 7]),
            ] {
                let with = |value| [front, &[&mss(value)[..]]].concat().concat();
                cases.push(clamping.case(name(what), &[&with(1460)], &[&with(largest)]));
            }
            for value in [0, 536, largest] {
                let options: &[&[u8]] = &[&mss(value)];
                cases.push(clamping.case(name(&format!("MSS {value} fits")), options, options));
            }
            let options: &[&[u8]] = &[&mss(largest + 1)];
            cases.push(clamping.case(name("one too many"), options, &[&mss(largest)]));

            let eight = [NOP; 8].concat();
            for (what, options) in [
                ("no options", &[][..]),
                ("no MSS", &[&SACK[..], &TIMESTAMPS]),
                (
                    "MSS behind the end",
                    &[&END[..], &NOP, &NOP, &NOP, &mss(1460)],
                ),
                ("MSS as the ninth", &[&eight[..], &mss(1460)]),
                ("MSS of three bytes", &[&[2, 3, 5][..], &NOP]),
                ("MSS of no bytes", &[&[2, 0, 5, 180][..]]),
                (
                    "an option of no bytes",
                    &[&[9, 0][..], &NOP, &NOP, &mss(1460)],
                ),
                (
                    "an option beyond the header",
                    &[&[9, 200][..], &NOP, &NOP, &mss(1460)],
                ),
                ("MSS cut by the header", &[&TIMESTAMPS[..], &[2, 4]]),
            ] {
                cases.push(clamping.case(name(what), options, options));
            }
        }
        let both: &[&[u8]] = &[&mss(1460)];
        let bare = Clamping {
            ends,
            flags: SynAck,
            outer: 0,
            mtu: MTU,
        };
        cases.push(bare.case(
            format!("{family}: MSS of a flow that comes bare"),
            both,
            both,
        ));
        let off = Clamping {
            ends,
            flags: SynAck,
            outer: 20,
            mtu: 0,
        };
        cases.push(off.case(format!("{family}: MSS where no MTU is set"), both, both));
        let jumbo = Clamping {
            ends,
            flags: SynAck,
            outer: 20,
            mtu: 9000,
        };
        cases.push(jumbo.case(
            format!("{family}: MSS of jumbo frames"),
            &[&mss(8960)],
            &[&mss(9000 - 20 - headers)],
        ));
        let tiny = Clamping {
            ends,
            flags: SynAck,
            outer: 20,
            mtu: 68,
        };
        cases.push(tiny.case(
            format!("{family}: MSS is never below the default"),
            both,
            &[&mss(536)],
        ));

        let data = Clamping {
            ends,
            flags: Ack,
            outer: 20,
            mtu: MTU,
        };
        cases.push(data.case(format!("{family}: MSS of an ACK"), both, both));
        cases.push(beyond(ends));
    }
    cases
}

/// A data offset that points beyond the packet: translated, but no option looked for.
fn beyond(ends: Ends) -> Case {
    let header = if ends.client.0.is_ipv4() { 20 } else { 40 };
    let segment = |from| {
        let options = mss(1460);
        let frame = OUT.carry(&tcp(from, ends.client, SynAck, &options, b""));
        let flags = frame[14 + header + 13];
        // The checksum is made for what the header says.
        let check = &frame[14 + header + 16..14 + header + 18];
        let check = u16::from_be_bytes([check[0], check[1]]);
        let (sum, carry) = check.overflowing_sub(0xf000 - 0x6000);
        let check = sum - u16::from(carry);
        let frame = patched(frame, 14 + header + 12, &[0xf0, flags]);
        patched(frame, 14 + header + 16, &check.to_be_bytes())
    };
    case(
        format!(
            "{}: SYN+ACK whose header ends beyond the packet",
            ends.family
        ),
        segment(ends.pod),
    )
    .with(|set| set.config.mtu = MTU)
    .embryonic(ends.key(TCP), ends.accepted(20, 0))
    .translated(segment(ends.vip))
}
