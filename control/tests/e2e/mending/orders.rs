//! Many datagrams of two lengths, whose fragments come in any order.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
    time::Instant,
};

use super::LENGTH;
use crate::support::{Agent, Sender, TIMEOUT, number};

/// Variable with the number of datagrams of each length to each service; `make soak` asks for 10 000.
const DATAGRAMS: &str = "GUIDEWAY_DATAGRAMS";
/// One in each order.
const DATAGRAMS_BY_DEFAULT: u64 = 4;
/// Bytes of these datagrams: 4 fragments, and 48 by IPv4.
const LENGTHS: [usize; 2] = [LENGTH, 60_000];

/// Sends datagrams of both lengths in any order, beside another one or with fragments twice, and asserts that each is answered
/// unaltered. Prints how long the answers took.
pub(super) fn assert_datagrams_arrive(sender: &mut Sender<'_>, agent: &Agent<'_>, to: SocketAddr) {
    let datagrams = number(DATAGRAMS).unwrap_or(DATAGRAMS_BY_DEFAULT);
    let mut beside = sender.ask(to, LENGTH);
    for length in LENGTHS {
        let mut asked = sender.ask(to, length);
        let mut delays = Vec::new();
        for round in 0..datagrams {
            asked = sender.ask_again(asked, length);
            beside = sender.ask_again(beside, LENGTH);
            for frame in drawn(round, &asked.fragments, &beside.fragments) {
                sender.send(frame);
            }
            let sent = Instant::now();
            for one in [&asked, &beside] {
                let name = one.answer(TIMEOUT);
                assert!(
                    name.is_some(),
                    "datagram {round} of {length} to {to}\n{}",
                    agent.page(&["drops"])
                );
            }
            delays.push(sent.elapsed());
        }
        assert!(!asked.has_another(), "{to}");
        delays.sort_unstable();
        let at = |share: usize| delays[(delays.len() - 1) * share / 1000];
        println!(
            "{to}, {length} bytes, {datagrams} datagrams: answered after {:?} (p50), {:?} (p99.9)",
            at(500),
            at(999)
        );
    }
    assert!(!beside.has_another(), "{to}");
}

/// Lists the fragments of two datagrams: in order, reversed, mixed, or mixed with some of the first datagram twice,
/// in turn. Of mixed ones, that datagram's second fragment is the last.
fn drawn<'f>(round: u64, one: &'f [Vec<u8>], other: &'f [Vec<u8>]) -> Vec<&'f Vec<u8>> {
    let mut frames: Vec<&Vec<u8>> = one.iter().chain(other).collect();
    match round % 4 {
        0 => return frames,
        1 => {
            frames.reverse();
            return frames;
        }
        2 => {}
        // Copies that come when the datagram is complete begin it anew, and take memory where it is joined.
        // Of those between two of its fragments, Linux takes 64 (`ipfrag_max_dist`).
        _ => frames.extend(one.iter().step_by(2).take(8)),
    }
    let mut places: Vec<usize> = (0..frames.len()).collect();
    places.sort_by_cached_key(|place| {
        let mut hasher = DefaultHasher::new();
        (round, place).hash(&mut hasher);
        (*place == 1, hasher.finish())
    });
    places.into_iter().map(|place| frames[place]).collect()
}
