//! Reading a load.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use xdp_prog::bench::MOST_THREADS;

use super::{Reader, Text};
use crate::{
    datapath::Protocol,
    load::pktgen,
    scenario::{
        AddressFamily, Background, Exchange, FlowOrder, FrameSize, GeneratorKind, LARGEST_FRAME,
        Load, Schedule, SearchKind, Segment, ShareOfSearch, ShareOfSystem, Stamps, System,
    },
};

/// Rates that one thread with sockets can be asked for.
const SOCKET_RATES: RangeInclusive<f64> = 1.0..=1e6;
/// Rates that a program in the kernel can be asked for.
const LIVE_RATES: RangeInclusive<f64> = 1.0..=2e7;
/// Shares of a rate that is searched for or measured, in percent.
const SHARES: RangeInclusive<f64> = 1.0..=100.0;
/// Searches whose rates live frames beside requests may have a share of.
const SEARCHES: [SearchKind; 3] = [SearchKind::Ndr, SearchKind::Pdr, SearchKind::Rfc2544];
/// Numbers of flows with sockets: each has one.
const SOCKET_FLOWS: RangeInclusive<u32> = 1..=512;
/// Numbers of flows of live frames: each has an entry in a list.
const LIVE_FLOWS: RangeInclusive<u32> = 1..=1 << 20;
/// Numbers of flows of pktgen: each has a port.
const PKTGEN_FLOWS: RangeInclusive<u32> = 1..=pktgen::MOST_FLOWS;
/// Numbers of threads of live and pktgen.
const THREADS: RangeInclusive<u32> = 1..=MOST_THREADS;
/// Longest time between two requests of a flow, in seconds. Connection tracking forgets a UDP flow after 30.
const LONGEST_PAUSE: f64 = 10.0;
/// Requests of a burst, which queues on the way must hold.
const BURSTS: RangeInclusive<u32> = 2..=256;
const STEPS: RangeInclusive<u32> = 2..=100;
/// Ids of VLANs (IEEE 802.1Q).
const VLANS: RangeInclusive<u16> = 1..=4094;
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
    exchange: Text,
    segment: Text,
    schedule: Text,
    rate: Text,
    search: Text,
    burst: Text,
    steps: Text,
    threads: Text,
    flows: Text,
    flow_order: Text,
    new_flow_share: Text,
    frame_bytes: Text,
    vlan: Text,
    stamps: Text,
    background: Text,
}

impl Reader {
    pub(super) fn loads(
        &mut self,
        texts: Vec<Spanned<LoadText>>,
        whole: Location,
        systems: &[System],
    ) -> Vec<Load> {
        let remedy = "write loads: [{ rate: 1000 }]";
        self.check(whole, !texts.is_empty(), "there are no loads", remedy);
        let loads = texts.into_iter();
        loads
            .flat_map(|load| self.load(load.value, load.referenced, systems))
            .collect()
    }

    /// Reads a load: several with as many shares of a rate in its background.
    fn load(&mut self, text: LoadText, at: Location, systems: &[System]) -> Vec<Load> {
        let before = self.problems.len();
        let sockets = GeneratorKind::Sockets;
        let places = [
            &text.exchange,
            &text.background,
            &text.schedule,
            &text.new_flow_share,
            &text.flows,
            &text.search,
            &text.segment,
            &text.vlan,
            &text.threads,
            &text.flow_order,
            &text.protocol,
            &text.stamps,
        ];
        let places = places.map(|text| text.as_ref().map_or(at, |text| text.referenced));
        let generator = self.named(text.generator, at, "generator", Some(sockets));
        let (rates, flows) = match generator {
            GeneratorKind::Sockets => (SOCKET_RATES, SOCKET_FLOWS),
            GeneratorKind::Live | GeneratorKind::Afxdp => (LIVE_RATES, LIVE_FLOWS),
            GeneratorKind::Pktgen => (LIVE_RATES, PKTGEN_FLOWS),
        };
        let family = self.named(text.family, at, "family", Some(AddressFamily::Ipv4));
        let protocol = self.named(text.protocol, at, "protocol", Some(Protocol::Udp));
        let vlan = (text.vlan).map(|id| self.number(Some(id), at, "vlan", None, VLANS));
        let schedule = self.named(text.schedule, at, "schedule", Some(Schedule::Constant));
        let exchange = self.named(text.exchange, at, "exchange", Some(Exchange::Rr));
        let backgrounds = self.backgrounds(text.background, systems);
        let load = Load {
            generator,
            family,
            protocol,
            exchange,
            segment: self.named(text.segment, at, "segment", Some(Segment::Data)),
            schedule,
            rate: self.rate(text.rate, at, schedule, rates),
            search: self.named(text.search, at, "search", Some(SearchKind::None)),
            burst: self.only_with(text.burst, at, "burst", schedule == Schedule::Burst, BURSTS),
            steps: self.only_with(text.steps, at, "steps", schedule == Schedule::Step, STEPS),
            threads: self.number(text.threads, at, "threads", Some(1), THREADS),
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
                Load::smallest_frame(generator, family, protocol, exchange, vlan),
            ),
            vlan,
            stamps: self.named(text.stamps, at, "stamps", Some(Stamps::None)),
            background: backgrounds.first().copied().unwrap_or(Background::None),
        };
        if self.problems.len() == before {
            let [rest @ .., segment, vlan, threads, order, protocol, stamps] = places;
            let [.., new_flows, flows, _] = rest;
            self.check_frames(&load, [segment, vlan], systems);
            self.check_stamps(&load, stamps);
            self.check_threads(&load, [threads, flows]);
            self.check_pktgen(&load, [order, new_flows, protocol]);
            self.check_generator(&load, rest);
        }
        let with = |background| Load {
            background,
            ..load.clone()
        };
        backgrounds.into_iter().map(with).collect()
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

    /// Reads a rate, or shares of one that is searched for or is another system's: `50% of routing`, `10% 50% 90% of pdr`.
    fn backgrounds(&mut self, text: Text, systems: &[System]) -> Vec<Background> {
        let Some(text) = text else {
            return vec![Background::None];
        };
        let (value, at) = (text.value, text.referenced);
        let read = if value.contains('%') {
            shares_of(&value, systems)
        } else {
            let rate: Option<f64> = value.parse().ok();
            let rate = rate.filter(|rate| LIVE_RATES.contains(rate));
            rate.map(|rate| vec![Background::Rate(rate)])
        };
        let reason = format!("background is {value:?}");
        let remedy = "write live frames a second from 1 to 20000000, or rising shares from 1 to 100 of pdr, ndr, rfc2544 \
                      or of the rate of one of the systems: 50% of pdr, 10% 50% 90% of pdr";
        self.check(at, read.is_some(), &reason, remedy);
        read.unwrap_or_else(|| vec![Background::None])
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

    /// Checks that what only made frames have is asked of them alone, and that all systems take it.
    fn check_frames(&mut self, load: &Load, [segment, vlan]: [Location; 2], systems: &[System]) {
        let frames = load.generator.makes_frames();
        let can = load.segment == Segment::Data || (frames && load.protocol == Protocol::Tcp);
        let reason = "SYN segments are frames of TCP";
        let remedy = "write generator: live and protocol: tcp";
        self.check(segment, can, reason, remedy);
        if load.vlan.is_none() {
            return;
        }
        let reason = "the machines of sockets have no VLAN";
        self.check(vlan, frames, reason, "write generator: live");
        let stack = systems.iter().find(|system| !system.takes_tags());
        let named = stack.map_or_else(String::new, ToString::to_string);
        let reason = format!("the machine of {named} has no VLAN");
        let remedy = "leave that system out, or the VLAN";
        self.check(vlan, stack.is_none(), &reason, remedy);
    }

    /// Checks that there are datagrams to stamp.
    fn check_stamps(&mut self, load: &Load, at: Location) {
        let are_datagrams =
            load.generator == GeneratorKind::Sockets && load.protocol == Protocol::Udp;
        self.check(
            at,
            load.stamps == Stamps::None || are_datagrams,
            "datagrams of sockets are stamped alone",
            "leave stamps out, or write generator: sockets and protocol: udp",
        );
    }

    /// Checks that only generators with threads are asked for several, and that each of them has a flow.
    fn check_threads(&mut self, load: &Load, [threads, flows]: [Location; 2]) {
        let has_threads = matches!(load.generator, GeneratorKind::Live | GeneratorKind::Pktgen);
        let can = has_threads || load.threads == 1;
        let reason = format!("{} sends from one thread", load.generator);
        let remedy = "leave threads out, or write generator: live or pktgen";
        self.check(threads, can, &reason, remedy);
        let can = !has_threads || load.flows >= load.threads;
        let reason = format!("{} threads send {} flows", load.threads, load.flows);
        let remedy = "write at least one flow for each thread";
        self.check(flows, can, &reason, remedy);
    }

    /// Checks that pktgen can send the load, if it is to.
    fn check_pktgen(&mut self, load: &Load, [order, new_flows, protocol]: [Location; 3]) {
        const LIVE: &str = "write generator: live";
        if load.generator != GeneratorKind::Pktgen {
            return;
        }
        let can = load.flow_order != FlowOrder::Zipf;
        self.check(
            order,
            can,
            "pktgen has flows in turn, or drawn evenly",
            LIVE,
        );
        let can = load.new_flow_share == 0.0;
        self.check(new_flows, can, "pktgen has no new flows", LIVE);
        let can = load.protocol == Protocol::Udp;
        self.check(protocol, can, "pktgen sends UDP alone", LIVE);
    }

    /// Checks that the generator can send the load.
    fn check_generator(
        &mut self,
        load: &Load,
        [exchange, background, schedule, new_flows, flows, search]: [Location; 6],
    ) {
        const LIVE: &str = "write generator: live";
        let reason = "only requests through sockets are answered";
        let frames = load.generator.makes_frames();
        let can = !frames || load.exchange == Exchange::Rr;
        self.check(
            exchange,
            can,
            reason,
            "leave exchange out, or write generator: sockets",
        );
        let reason = "live frames pass beside requests that are timed";
        let can = !frames || load.background == Background::None;
        self.check(
            background,
            can,
            reason,
            "leave it out, or write generator: sockets",
        );
        let can = frames || load.search != SearchKind::Rfc2544Loss;
        self.check(search, can, "a frame loss is one of frames", LIVE);
        let searches = load.search != SearchKind::None;
        let can = !searches || load.schedule == Schedule::Constant;
        let reason = "a search tries constant rates";
        self.check(
            search,
            can,
            reason,
            "write schedule: constant, and the highest rate to try",
        );
        if frames {
            let can = matches!(load.schedule, Schedule::Constant | Schedule::Max);
            let reason = format!("{} has no schedule {}", load.generator, load.schedule);
            let remedy = "write constant or max, or generator: sockets";
            self.check(schedule, can, &reason, remedy);
            return;
        }
        let Some(rate) = load.mean_rate() else {
            let reason = "the schedule max is not for sockets: they measure latency, at a rate";
            self.check(schedule, false, reason, LIVE);
            return;
        };
        let can = load.protocol == Protocol::Tcp || load.exchange == Exchange::Rr;
        let reason = format!("{} needs connections, which UDP has none of", load.exchange);
        self.check(exchange, can, &reason, "write protocol: tcp");
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

/// Reads shares in percent, and what they are of: `of` and the name of a search or of one of the systems.
fn shares_of(text: &str, systems: &[System]) -> Option<Vec<Background>> {
    let (shares, of) = text.split_once(" of ")?;
    let shares = shares.trim().strip_suffix('%')?.split('%');
    let share = |share: &str| {
        let percent = share.trim().parse::<f64>().ok()?;
        SHARES.contains(&percent).then_some(percent / 100.0)
    };
    let shares: Vec<f64> = shares.map(share).collect::<Option<_>>()?;
    if !shares.is_sorted_by(|one, next| one < next) {
        return None;
    }
    let name = of.trim();
    let search = SEARCHES.iter().find(|one| one.to_string() == name);
    let system = systems.iter().find(|one| one.to_string() == name);
    let of_share = |share| match (search, system) {
        (Some(&search), _) => Some(Background::OfSearch(ShareOfSearch { share, search })),
        (_, Some(&system)) => Some(Background::OfSystem(ShareOfSystem { share, system })),
        _ => None,
    };
    shares.into_iter().map(of_share).collect()
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
mod tests;
