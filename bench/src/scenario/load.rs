//! Loads: what is sent, in which flows, in which sizes and when.

mod background;
mod order;
mod request;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    background::{Background, ReferenceRate, ShareOfSearch, ShareOfSystem},
    request::{Exchange, GeneratorKind, Segment, Stamps},
};
use crate::datapath::Protocol;

/// Smallest frame with its FCS, in bytes.
pub const SMALLEST_FRAME: u32 = 64;
/// Largest frame with its FCS, in bytes.
pub const LARGEST_FRAME: u32 = 1518;
/// Ethernet header and FCS, in bytes.
const FRAMING: u32 = 14 + 4;
/// A VLAN tag, in bytes.
const VLAN_TAG: u32 = 4;
/// The option with timestamps, which the kernel's TCP has in every segment.
const TCP_TIMESTAMPS: u32 = 12;

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The generator.
    pub generator: GeneratorKind,
    /// Address family of clients and Services.
    pub family: AddressFamily,
    /// Transport protocol.
    pub protocol: Protocol,
    /// What a request is.
    pub exchange: Exchange,
    /// What TCP segments are, where the generator makes frames.
    pub segment: Segment,
    /// When requests are due.
    pub schedule: Schedule,
    /// Requests a second; with `ramp`, `step` and a search the highest rate; `null` with `max`.
    pub rate: Option<f64>,
    /// What is searched for below the rate. Each trial of the result is then the one at the load that a search has found.
    pub search: SearchKind,
    /// Requests that are due at once: more than one with `burst` only.
    pub burst: u32,
    /// Steps up to the rate: more than one with `step` only.
    pub steps: u32,
    /// Threads that send, on as many CPUs: more than one with the generators `live` and `pktgen` only.
    pub threads: u32,
    /// Flows.
    pub flows: u32,
    /// Which flow the next request is of.
    pub flow_order: FlowOrder,
    /// Share (0 to 1) of requests of which each begins a flow.
    pub new_flow_share: f64,
    /// Sizes of requests' frames, which take turns. An answer has the size of its request, but at least that of the
    /// headers and 22 bytes.
    pub frame_bytes: Vec<FrameSize>,
    /// The id of the VLAN tag that frames have; `null` without one.
    pub vlan: Option<u16>,
    /// Who stamps requests and answers at the client, besides this program.
    pub stamps: Stamps,
    /// Live frames that pass the system meanwhile: in as many flows of their own, by UDP, of the same sizes.
    pub background: Background,
}

/// A size of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrameSize {
    /// Bytes of the frame, FCS included.
    pub bytes: u32,
    /// How many of the sum of all weights have this size.
    pub weight: u32,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AddressFamily {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// At equal distances.
    Constant,
    /// At independent random distances: a Poisson process.
    Poisson,
    /// Several at once, at equal distances.
    Burst,
    /// At a rate that rises evenly from zero to the load's.
    Ramp,
    /// At rates that rise to the load's in equal steps of equal length.
    Step,
    /// As soon as they can be sent.
    Max,
}

/// A load to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SearchKind {
    /// Nothing: the rate is the load's.
    None,
    /// The non-drop rate: of three trials of a load, two lose nothing.
    Ndr,
    /// The partial-drop rate: of three trials of a load, two lose at most 0.5 %.
    Pdr,
    /// The throughput of RFC 2544: a load's one trial loses nothing.
    Rfc2544,
    /// Nothing, but the loss at the rate and at each tenth of it less, until two trials lose nothing: the frame loss rate of
    /// RFC 2544.
    Rfc2544Loss,
}

impl SearchKind {
    /// Tells whether a rate is searched for.
    pub fn finds_a_rate(self) -> bool {
        !matches!(self, Self::None | Self::Rfc2544Loss)
    }

    /// Tells whether it is a procedure of RFC 2544.
    pub fn is_of_rfc2544(self) -> bool {
        matches!(self, Self::Rfc2544 | Self::Rfc2544Loss)
    }
}

/// Which flow a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlowOrder {
    /// Flows take turns.
    InTurn,
    /// Each is as likely as any other.
    Uniform,
    /// The n-th is as likely as 1/n (Zipf's law with exponent 1): few large flows and many small ones.
    Zipf,
}

impl Load {
    /// Returns the load of as many live frames of one flow as can be sent.
    pub fn of_frames(
        family: AddressFamily,
        protocol: Protocol,
        frame_bytes: Vec<FrameSize>,
    ) -> Self {
        Self {
            generator: GeneratorKind::Live,
            family,
            protocol,
            exchange: Exchange::Rr,
            segment: Segment::Data,
            schedule: Schedule::Max,
            rate: None,
            search: SearchKind::None,
            burst: 1,
            steps: 1,
            threads: 1,
            flows: 1,
            flow_order: FlowOrder::InTurn,
            new_flow_share: 0.0,
            frame_bytes,
            vlan: None,
            stamps: Stamps::None,
            background: Background::None,
        }
    }

    /// Returns the requests by which a system proves that it answers packets as those of this load, one by each of so many
    /// flows.
    pub fn of_proof(&self, flows: u32) -> Self {
        let (family, protocol) = (self.family, self.protocol);
        let generator = GeneratorKind::Sockets;
        let bytes = Self::smallest_frame(generator, family, protocol, Exchange::Rr, None);
        let size = FrameSize { bytes, weight: 1 };
        Self {
            generator,
            flows,
            ..Self::of_frames(family, protocol, vec![size])
        }
    }

    /// Tells whether each request makes a connection of its own.
    pub fn connects(&self) -> bool {
        self.exchange.connects()
    }

    /// Tells whether requests are timed beside the throughput of RFC 2544.
    pub fn is_at_throughput(&self) -> bool {
        matches!(self.background, Background::OfSearch(of) if of.search.is_of_rfc2544())
    }

    /// Returns the length of a frame's headers and FCS, without a VLAN tag.
    pub fn overhead(generator: GeneratorKind, family: AddressFamily, protocol: Protocol) -> u32 {
        let network = match family {
            AddressFamily::Ipv4 => 20,
            AddressFamily::Ipv6 => 40,
        };
        let transport = match (protocol, generator) {
            (Protocol::Udp, _) => 8,
            (Protocol::Tcp, GeneratorKind::Sockets) => 20 + TCP_TIMESTAMPS,
            (Protocol::Tcp, _) => 20,
        };
        FRAMING + network + transport
    }

    /// Returns the smallest frame that a generator can send.
    pub fn smallest_frame(
        generator: GeneratorKind,
        family: AddressFamily,
        protocol: Protocol,
        exchange: Exchange,
        vlan: Option<u16>,
    ) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
        let mark = generator.mark_length(protocol, exchange) as u32;
        SMALLEST_FRAME.max(Self::overhead(generator, family, protocol) + tag_length(vlan) + mark)
    }

    /// Returns the length of the payload of a frame with so many bytes.
    pub fn payload(&self, frame_bytes: u32) -> usize {
        let overhead = Self::overhead(self.generator, self.family, self.protocol);
        frame_bytes.saturating_sub(overhead + tag_length(self.vlan)) as usize
    }

    /// Returns the mean rate in requests a second; `None` if as many are sent as can be.
    pub fn mean_rate(&self) -> Option<f64> {
        let steps = f64::from(self.steps);
        let share = match self.schedule {
            Schedule::Ramp => 0.5,
            Schedule::Step => (steps + 1.0) / (2.0 * steps),
            _ => 1.0,
        };
        Some(self.rate? * share)
    }

    /// Returns the sizes of frames as scenarios have them: one, or several with weights.
    pub fn frame_sizes(&self) -> String {
        let sizes = self.frame_bytes.iter();
        let sizes: Vec<String> = match self.frame_bytes.as_slice() {
            [one] => vec![one.bytes.to_string()],
            _ => sizes
                .map(|size| format!("{}:{}", size.bytes, size.weight))
                .collect(),
        };
        sizes.join(" ")
    }

    /// Returns the share of requests that the rarest flow has.
    pub fn rarest_share(flows: u32, order: FlowOrder) -> f64 {
        let flows_as_share = 1.0 / f64::from(flows.max(1));
        match order {
            FlowOrder::InTurn | FlowOrder::Uniform => flows_as_share,
            FlowOrder::Zipf => flows_as_share / harmonic(flows),
        }
    }
}

fn tag_length(vlan: Option<u16>) -> u32 {
    if vlan.is_some() { VLAN_TAG } else { 0 }
}

fn harmonic(flows: u32) -> f64 {
    (1..=flows).map(|rank| 1.0 / f64::from(rank)).sum()
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            generator,
            family,
            protocol,
            schedule,
            flows,
            flow_order,
            ..
        } = self;
        write!(f, "{generator}, {family}, {protocol}")?;
        if self.exchange != Exchange::Rr {
            write!(f, " {}", self.exchange)?;
        }
        if self.segment != Segment::Data {
            write!(f, " {}", self.segment)?;
        }
        write!(f, ", {schedule}")?;
        match schedule {
            Schedule::Burst => write!(f, " of {}", self.burst)?,
            Schedule::Step => write!(f, " in {}", self.steps)?,
            _ => {}
        }
        if let Some(rate) = self.rate {
            write!(f, ", {rate}/s")?;
        }
        match self.search {
            SearchKind::None => {}
            SearchKind::Rfc2544Loss => f.write_str(" and down, frame loss of RFC 2544")?,
            search => write!(f, ", search {search}")?,
        }
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        write!(f, ", {flows} flows {flow_order}")?;
        if self.new_flow_share > 0.0 {
            write!(f, " and {} % of new ones", self.new_flow_share * 100.0)?;
        }
        write!(f, ", frames of {} bytes", self.frame_sizes())?;
        if let Some(vlan) = self.vlan {
            write!(f, " in VLAN {vlan}")?;
        }
        if self.stamps != Stamps::None {
            write!(f, ", stamped by the {}", self.stamps)?;
        }
        match (self.background, self.background.share_in_words()) {
            (_, Some(share)) => write!(f, ", beside live frames at {share}"),
            (Background::Rate(rate), _) => write!(f, ", beside {rate} live frames a second"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A load to change in tests.
    pub(crate) fn load() -> Load {
        Load {
            generator: GeneratorKind::Sockets,
            family: AddressFamily::Ipv4,
            protocol: Protocol::Udp,
            exchange: Exchange::Rr,
            segment: Segment::Data,
            schedule: Schedule::Constant,
            rate: Some(1_000.0),
            search: SearchKind::None,
            burst: 1,
            steps: 1,
            threads: 1,
            flows: 4,
            flow_order: FlowOrder::InTurn,
            new_flow_share: 0.0,
            frame_bytes: vec![FrameSize {
                bytes: 64,
                weight: 1,
            }],
            vlan: None,
            stamps: Stamps::None,
            background: Background::None,
        }
    }

    #[test]
    fn the_smallest_frame_holds_all_headers_and_the_mark() {
        let smallest = Load::smallest_frame;
        let (sockets, live) = (GeneratorKind::Sockets, GeneratorKind::Live);
        let (v4, v6) = (AddressFamily::Ipv4, AddressFamily::Ipv6);
        assert_eq!(smallest(sockets, v4, Protocol::Udp, Exchange::Rr, None), 64);
        assert_eq!(smallest(sockets, v6, Protocol::Udp, Exchange::Rr, None), 82);
        assert_eq!(smallest(sockets, v4, Protocol::Tcp, Exchange::Rr, None), 88);
        assert_eq!(smallest(live, v4, Protocol::Tcp, Exchange::Rr, None), 64);
        assert_eq!(smallest(live, v6, Protocol::Tcp, Exchange::Rr, None), 84);
        assert_eq!(smallest(live, v6, Protocol::Tcp, Exchange::Rr, Some(7)), 88);
        assert_eq!(
            smallest(sockets, v4, Protocol::Tcp, Exchange::Http, None),
            140
        );
    }
}
