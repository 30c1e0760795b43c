//! Numbered frames: their templates, their flows and their pace.
//!
//! Clients have addresses of the networks for benchmarks (RFC 2544, RFC 5180).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use xdp_prog::bench::{self, NEW_FLOW, NUMBER_LENGTH, NUMBERED_LENGTH, Numbered, Pace};

use super::frame::{Framing, Offsets};
use crate::scenario::{AddressFamily, FlowOrder, GeneratorKind, Load};

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

/// What each thread of a load has to send.
#[derive(Debug)]
pub(crate) struct Dealt {
    /// The list of flows: the first thread's, then the next one's.
    pub(crate) flows: Vec<u32>,
    /// The pace of each thread, without a schedule.
    pub(crate) paces: Vec<Pace>,
}

/// Deals the flows of a load to so many Services out to its threads. Divided by the number of threads, flows leave the number
/// of their thread, new ones too: so no flow has two threads.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the list has at most as many entries as there are flows, or 2^17"
)]
pub(crate) fn deal(load: &Load, services: u32, seed: u64) -> Dealt {
    let threads = match load.generator {
        GeneratorKind::Live => load.threads,
        // The threads of pktgen have no list.
        GeneratorKind::Sockets | GeneratorKind::Afxdp | GeneratorKind::Pktgen => 1,
    };
    let mut parts = vec![Vec::new(); threads as usize];
    let mut next_new = load.flows;
    for listed in load.flows_of(listed(load) as usize, seed) {
        let flow = if listed == NEW_FLOW {
            next_new += 1;
            next_new - 1
        } else {
            listed
        };
        parts[(flow % threads) as usize].push(listed);
    }
    let sizes = load.sizes().len() as u32;
    let mut first_flow = 0;
    let mut pace = |(thread, part): (u32, &Vec<u32>)| {
        let pace = Pace {
            sizes,
            services,
            first_flow,
            next_flow: first_flow,
            flows: part.len() as u32,
            new_flow: load.flows + (thread + threads - load.flows % threads) % threads,
            thread,
            threads,
            ..Pace::default()
        };
        first_flow += pace.flows;
        pace
    };
    Dealt {
        paces: (0..).zip(&parts).map(&mut pace).collect(),
        flows: parts.concat(),
    }
}

/// Has the threads take turns with the frames of a trial, from `start` on in nanoseconds. Without a rate each is as fast as it
/// can be.
pub(super) fn set_schedule(paces: &mut [Pace], start: u64, rate: Option<f64>, seconds: f64) {
    for pace in paces {
        let Pace {
            thread, threads, ..
        } = *pace;
        let (due, interval, limit) = match rate {
            Some(rate) => {
                let frames = frames_in(seconds, rate);
                (
                    start + u64::from(thread) * interval(rate),
                    interval(rate / f64::from(threads)),
                    frames / threads + u32::from(thread < frames % threads),
                )
            }
            None => (start, 0, u32::MAX / threads),
        };
        (pace.due, pace.interval, pace.limit) = (due, interval, limit);
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::load;

    fn of_threads(threads: u32, flows: u32) -> Load {
        Load {
            generator: GeneratorKind::Live,
            threads,
            flows,
            ..load()
        }
    }

    /// Returns the flows of so many frames of each thread.
    fn sent(load: &Load, frames: usize) -> Vec<Vec<u32>> {
        let Dealt { flows, mut paces } = deal(load, 1, 1);
        let mut of = |pace: &mut Pace| {
            let each = (0..frames).map(|_| {
                let listed = flows[pace.next_flow as usize];
                pace.advance(listed).unwrap().0
            });
            each.collect()
        };
        paces.iter_mut().map(&mut of).collect()
    }

    #[test]
    fn one_thread_has_the_list_as_it_is() {
        for load in [
            of_threads(1, 5),
            Load {
                flow_order: FlowOrder::Zipf,
                new_flow_share: 0.25,
                ..of_threads(1, 100)
            },
            Load {
                generator: GeneratorKind::Pktgen,
                ..of_threads(3, 7)
            },
        ] {
            let Dealt { flows, paces } = deal(&load, 2, 1);
            assert_eq!(flows, load.flows_of(listed(&load) as usize, 1));
            let expected = Pace {
                sizes: 1,
                flows: listed(&load),
                new_flow: load.flows,
                services: 2,
                threads: 1,
                ..Pace::default()
            };
            assert_eq!(paces, [expected]);
        }
    }

    #[test]
    fn threads_have_disjoint_flows_which_are_all_flows_together() {
        for flow_order in [FlowOrder::InTurn, FlowOrder::Uniform, FlowOrder::Zipf] {
            for (threads, flows) in [(2, 8), (3, 8), (3, 3)] {
                let load = Load {
                    flow_order,
                    ..of_threads(threads, flows)
                };
                let sets = sent(&load, 1 << 12).into_iter();
                let sets: Vec<BTreeSet<u32>> = sets.map(BTreeSet::from_iter).collect();
                let together: usize = sets.iter().map(BTreeSet::len).sum();
                let all: BTreeSet<u32> = sets.into_iter().flatten().collect();
                assert_eq!(all, (0..flows).collect(), "{load}");
                assert_eq!(together, all.len(), "{load}");
            }
        }
    }

    #[test]
    fn no_two_threads_begin_the_same_new_flow() {
        for (share, flows, frames) in [(1.0, 5, 1 << 17), (0.25, 9, 1_000)] {
            let load = Load {
                new_flow_share: share,
                ..of_threads(3, flows)
            };
            let sent = sent(&load, frames).concat();
            let new: Vec<u32> = sent.into_iter().filter(|flow| *flow >= flows).collect();
            let distinct: BTreeSet<u32> = new.iter().copied().collect();
            assert_eq!(new.len(), distinct.len(), "{load}");
            assert!(new.len() > frames / 2, "{load}: {}", new.len());
        }
    }

    #[test]
    fn threads_take_turns_with_the_frames_of_a_rate() {
        let mut paces = deal(&of_threads(3, 3), 1, 1).paces;
        set_schedule(&mut paces, 1_000, Some(1e6), 10.1e-6);
        let of = |pace: &Pace| (pace.due, pace.interval, pace.limit);
        let expected = [(1_000, 3_000, 4), (2_000, 3_000, 3), (3_000, 3_000, 3)];
        assert_eq!(paces.iter().map(of).collect::<Vec<_>>(), expected);
        set_schedule(&mut paces, 1_000, None, 1.0);
        let fastest = (1_000, 0, u32::MAX / 3);
        assert!(paces.iter().all(|pace| of(pace) == fastest), "{paces:?}");
    }
}
