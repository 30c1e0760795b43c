//! Reading a load.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::{Reader, Text};
use crate::{
    datapath::Protocol,
    scenario::{
        AddressFamily, FlowOrder, FrameSize, GeneratorKind, LARGEST_FRAME, Load, Schedule,
        SearchKind,
    },
};

/// Rates that one thread with sockets can be asked for.
const SOCKET_RATES: RangeInclusive<f64> = 1.0..=1e6;
/// Rates that a program in the kernel can be asked for.
const LIVE_RATES: RangeInclusive<f64> = 1.0..=2e7;
/// Numbers of flows with sockets: each has one.
const SOCKET_FLOWS: RangeInclusive<u32> = 1..=512;
/// Numbers of flows of live frames: each has an entry in a list.
const LIVE_FLOWS: RangeInclusive<u32> = 1..=1 << 20;
/// Longest time between two requests of a flow, in seconds. Connection tracking forgets a UDP flow after 30.
const LONGEST_PAUSE: f64 = 10.0;
/// Requests of a burst, which queues on the way must hold.
const BURSTS: RangeInclusive<u32> = 2..=256;
const STEPS: RangeInclusive<u32> = 2..=100;
/// Most frames of a mix until it repeats.
const LONGEST_MIX: u32 = 64;
/// Mixes with names. The smallest size grows to what the headers need.
const MIXES: [(&str, &[(u32, u32)]); 2] = [
    ("imix", &[(64, 7), (594, 4), (1518, 1)]),
    ("imix-csit", &[(64, 28), (570, 16), (1518, 4)]),
];
const SIZE_REMEDY: &str = "write a size, imix, imix-csit, or sizes with weights: 64:7 594:4 1518:1";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadText {
    generator: Text,
    family: Text,
    protocol: Text,
    schedule: Text,
    rate: Text,
    search: Text,
    burst: Text,
    steps: Text,
    flows: Text,
    flow_order: Text,
    new_flow_share: Text,
    frame_bytes: Text,
}

impl Reader {
    pub(super) fn loads(&mut self, texts: Vec<Spanned<LoadText>>, whole: Location) -> Vec<Load> {
        let remedy = "write loads: [{ rate: 1000 }]";
        self.check(whole, !texts.is_empty(), "there are no loads", remedy);
        let loads = texts.into_iter();
        loads
            .map(|load| self.load(load.value, load.referenced))
            .collect()
    }

    fn load(&mut self, text: LoadText, at: Location) -> Load {
        let before = self.problems.len();
        let sockets = GeneratorKind::Sockets;
        let places = [
            &text.protocol,
            &text.schedule,
            &text.new_flow_share,
            &text.flows,
            &text.search,
        ];
        let places = places.map(|text| text.as_ref().map_or(at, |text| text.referenced));
        let generator = self.named(text.generator, at, "generator", Some(sockets));
        let (rates, flows) = match generator {
            GeneratorKind::Sockets => (SOCKET_RATES, SOCKET_FLOWS),
            GeneratorKind::Live => (LIVE_RATES, LIVE_FLOWS),
        };
        let family = self.named(text.family, at, "family", Some(AddressFamily::Ipv4));
        let protocol = self.named(text.protocol, at, "protocol", Some(Protocol::Udp));
        let schedule = self.named(text.schedule, at, "schedule", Some(Schedule::Constant));
        let load = Load {
            generator,
            family,
            protocol,
            schedule,
            rate: self.rate(text.rate, at, schedule, rates),
            search: self.named(text.search, at, "search", Some(SearchKind::None)),
            burst: self.only_with(text.burst, at, "burst", schedule == Schedule::Burst, BURSTS),
            steps: self.only_with(text.steps, at, "steps", schedule == Schedule::Step, STEPS),
            flows: self.number(text.flows, at, "flows", Some(16), flows),
            flow_order: self.named(text.flow_order, at, "flow_order", Some(FlowOrder::InTurn)),
            new_flow_share: self.number(
                text.new_flow_share,
                at,
                "new_flow_share",
                Some(0.0),
                0.0..=1.0,
            ),
            frame_bytes: self.frame_bytes(
                text.frame_bytes,
                at,
                Load::smallest_frame(generator, family, protocol),
            ),
        };
        if self.problems.len() == before {
            self.check_generator(&load, places);
        }
        load
    }

    fn rate(
        &mut self,
        text: Text,
        at: Location,
        schedule: Schedule,
        rates: RangeInclusive<f64>,
    ) -> Option<f64> {
        if schedule != Schedule::Max {
            return Some(self.number(text, at, "rate", None, rates));
        }
        if let Some(text) = text {
            let reason = "the schedule max has no rate";
            self.check(text.referenced, false, reason, "leave the rate out");
        }
        None
    }

    /// Reads a number that one schedule needs and no other has; 1 for the others.
    fn only_with(
        &mut self,
        text: Text,
        at: Location,
        field: &str,
        is_of_schedule: bool,
        allowed: RangeInclusive<u32>,
    ) -> u32 {
        if is_of_schedule {
            return self.number(text, at, field, None, allowed);
        }
        if let Some(text) = text {
            let reason = format!("{field} belongs to another schedule");
            let remedy = "leave it out, or write schedule: burst or step";
            self.check(text.referenced, false, &reason, remedy);
        }
        1
    }

    /// Checks that the generator can send the load.
    fn check_generator(
        &mut self,
        load: &Load,
        [protocol, schedule, new_flows, flows, search]: [Location; 5],
    ) {
        const LIVE: &str = "write generator: live";
        let searches = load.search != SearchKind::None;
        let can = !searches || load.schedule == Schedule::Constant;
        let reason = "a search tries constant rates";
        self.check(
            search,
            can,
            reason,
            "write schedule: constant, and the highest rate to try",
        );
        if load.generator == GeneratorKind::Live {
            let can = matches!(load.schedule, Schedule::Constant | Schedule::Max);
            let reason = format!("live frames have no schedule {}", load.schedule);
            let remedy = "write constant or max, or generator: sockets";
            self.check(schedule, can, &reason, remedy);
            return;
        }
        let Some(rate) = load.mean_rate() else {
            let reason = "the schedule max is not for sockets: they measure latency, at a rate";
            self.check(schedule, false, reason, LIVE);
            return;
        };
        let udp = load.protocol == Protocol::Udp;
        let remedy = "write generator: live, or protocol: udp";
        self.check(protocol, udp, "sockets send UDP", remedy);
        let reason = "flows with sockets are open before a trial";
        self.check(new_flows, load.new_flow_share == 0.0, reason, LIVE);
        let pause = 1.0 / (rate * Load::rarest_share(load.flows, load.flow_order));
        let reason = format!("some of {} flows send every {pause:.0} s only", load.flows);
        let higher = pause / LONGEST_PAUSE;
        let remedy = format!("write fewer flows, or a rate {higher:.1} times as high");
        self.check(flows, pause <= LONGEST_PAUSE, &reason, &remedy);
    }

    fn frame_bytes(&mut self, text: Text, at: Location, smallest: u32) -> Vec<FrameSize> {
        let (value, at) = text.map_or((smallest.to_string(), at), |text| {
            (text.value, text.referenced)
        });
        let sizes = sizes(&value, smallest).unwrap_or_else(|(reason, remedy)| {
            self.check(at, false, &reason, &remedy);
            Vec::new()
        });
        let frames: u64 = sizes.iter().map(|size| u64::from(size.weight)).sum();
        let reason = format!("a mix of {frames} frames is too long");
        let remedy = format!("write weights with a sum of at most {LONGEST_MIX}");
        self.check(at, frames <= LONGEST_MIX.into(), &reason, &remedy);
        sizes
    }
}

/// Reads sizes; tells what is wrong and what to write.
fn sizes(text: &str, smallest: u32) -> Result<Vec<FrameSize>, (String, String)> {
    if let Some((_, mix)) = MIXES.iter().find(|(name, _)| *name == text) {
        let size = |&(bytes, weight): &(u32, u32)| FrameSize {
            bytes: bytes.max(smallest),
            weight,
        };
        return Ok(mix.iter().map(size).collect());
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_alone = words.len() == 1;
    let unknown = |word: &str| (format!("frame_bytes has {word:?}"), SIZE_REMEDY.to_owned());
    let size = |word: &&str| {
        let (bytes, weight) = match word.split_once(':') {
            Some(pair) => pair,
            None if is_alone => (*word, "1"),
            None => {
                let reason = format!("the size {word} of a mix has no weight");
                return Err((reason, SIZE_REMEDY.to_owned()));
            }
        };
        let bytes: u32 = bytes.parse().map_err(|_| unknown(word))?;
        let weight: u32 = weight.parse().map_err(|_| unknown(word))?;
        if !(smallest..=LARGEST_FRAME).contains(&bytes) {
            let remedy = format!("write sizes from {smallest} to {LARGEST_FRAME}");
            return Err((format!("frame_bytes has the size {bytes}"), remedy));
        }
        if weight == 0 {
            return Err((
                format!("the size {bytes} has weight 0"),
                SIZE_REMEDY.to_owned(),
            ));
        }
        Ok(FrameSize { bytes, weight })
    };
    if words.is_empty() {
        return Err(unknown(text));
    }
    words.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    /// Reads a scenario with this load, and returns what is wrong with it.
    fn read(load: &str) -> Result<Load, String> {
        let text = format!("name: one\nsystems: [direct]\nloads:\n  - {{ {load} }}\n");
        let scenario = Scenario::parse(&text).map_err(|refused| refused.to_string())?;
        Ok(scenario.loads[0].clone())
    }

    fn of_sizes(load: &str) -> Vec<(u32, u32)> {
        let sizes = read(load).unwrap().frame_bytes.into_iter();
        sizes.map(|size| (size.bytes, size.weight)).collect()
    }

    #[test]
    fn loads_are_read_with_the_defaults_of_their_generator() {
        let sockets = read("rate: 1000").unwrap();
        let text = "sockets, ipv4, udp, constant, 1000/s, 16 flows in-turn, frames of 64 bytes";
        assert_eq!(sockets.to_string(), text);
        let live = "generator: live, family: ipv6, protocol: tcp, schedule: max, flows: 1000, \
                    flow_order: zipf, new_flow_share: 0.5, frame_bytes: imix";
        let text = "live, ipv6, tcp, max, 1000 flows zipf and 50 % of new ones, \
                    frames of 84:7 594:4 1518:1 bytes";
        assert_eq!(read(live).unwrap().to_string(), text);
        let steps = read("rate: 900, schedule: step, steps: 3").unwrap();
        assert_eq!(steps.mean_rate(), Some(600.0));
        let search = read("rate: 5e6, generator: live, search: pdr").unwrap();
        let text = "live, ipv4, udp, constant, 5000000/s, search pdr, 16 flows in-turn, frames of 64 bytes";
        assert_eq!(search.to_string(), text);
        let ramp = read("rate: 900, schedule: ramp").unwrap();
        assert_eq!(ramp.mean_rate(), Some(450.0));
    }

    #[test]
    fn sizes_are_one_a_named_mix_or_a_mix_of_ones_own() {
        assert_eq!(
            of_sizes("rate: 9, flows: 1, frame_bytes: 1280"),
            [(1280, 1)]
        );
        let own = of_sizes("rate: 9, flows: 1, frame_bytes: 128:3 1500:2");
        assert_eq!(own, [(128, 3), (1500, 2)]);
        let csit = of_sizes("rate: 9, flows: 1, family: ipv6, frame_bytes: imix-csit");
        assert_eq!(csit, [(82, 28), (570, 16), (1518, 4)]);
    }

    #[test]
    fn each_broken_rule_of_a_load_has_its_place_and_a_remedy() {
        for (load, expected) in [
            (
                "rate: 0",
                "line 4, column 13: rate is \"0\"; write a number from 1 to 1000000",
            ),
            (
                "rate: 5kpps",
                "line 4, column 13: rate is \"5kpps\"; write a number",
            ),
            (
                "flows: 3",
                "line 4, column 5: rate is missing; write a number from 1",
            ),
            (
                "rate: 1, flows: 11",
                "column 23: some of 11 flows send every 11 s only; write fewer",
            ),
            (
                "rate: 10, flows: 40, flow_order: zipf",
                "some of 40 flows send every 17 s only; write fewer flows, or a rate 1.7 times",
            ),
            (
                "rate: 9, frame_bytes: 63",
                "column 29: frame_bytes has the size 63; write sizes from 64",
            ),
            (
                "rate: 9, frame_bytes: 64 594",
                "the size 64 of a mix has no weight; write a size, imix",
            ),
            ("rate: 9, frame_bytes: 64:0", "the size 64 has weight 0"),
            (
                "rate: 9, frame_bytes: 64:60 128:5",
                "a mix of 65 frames is too long; write weights",
            ),
            (
                "rate: 9, frame_bytes: jumbo",
                "frame_bytes has \"jumbo\"; write a size, imix",
            ),
            (
                "rate: 9, family: ipv6, frame_bytes: 64",
                "write sizes from 82 to 1518",
            ),
            (
                "rate: 9, pace: 2",
                "unknown field \"pace\"; the fields here are generator, family",
            ),
            (
                "rate: 9, protocol: tcp",
                "sockets send UDP; write generator: live, or protocol: udp",
            ),
            ("schedule: max", "the schedule max is not for sockets"),
            (
                "rate: 9, new_flow_share: 0.5",
                "open before a trial; write generator: live",
            ),
            ("rate: 9, new_flow_share: 1.5", "write a number from 0 to 1"),
            (
                "rate: 9, schedule: burst",
                "burst is missing; write a number from 2 to 256",
            ),
            (
                "rate: 9, steps: 3",
                "column 23: steps belongs to another schedule; leave it out",
            ),
            (
                "rate: 9, generator: live, schedule: max",
                "the schedule max has no rate; leave the",
            ),
            (
                "rate: 9, schedule: ramp, search: ndr",
                "column 40: a search tries constant rates; write",
            ),
            (
                "rate: 9, generator: live, schedule: ramp",
                "live frames have no schedule ramp; write constant or max, or generator: sockets",
            ),
        ] {
            let found = read(load).unwrap_err();
            assert!(found.contains(expected), "{load}: {found}");
        }
    }
}
