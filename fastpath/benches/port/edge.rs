//! A whole edge as the product runs it, for frames to one service, which leave by the link that they came in by.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use etherparse::PacketBuilder;
use fastpath::{
    attach,
    load::{Loaded, Loader},
    mend::Queue,
    nexthop::{NextHop, Resolution},
    tables::{
        Addresses, BackendSpec, ForwardMode, Protocol, ServiceKey, ServiceSpec, Settings, Tables,
    },
    whole_edge::{EdgeOutcome, EdgeReader, WholeEdge},
};
use lab::Link;

const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
const PORT: u16 = 7000;
/// What a frame's payload takes, so that it has 64 bytes.
const PAYLOAD: [u8; 22] = [0x61; 22];

/// An edge on a link.
pub(crate) struct Edge {
    _edge: WholeEdge,
    _tables: Tables,
    _loaded: Loaded,
    reader: EdgeReader,
}

impl Edge {
    /// Serves what comes by a link from the other one, to which it sends.
    pub(crate) fn open(link: &Link<'_>, to: &Link<'_>, mode: ForwardMode) -> Result<Self> {
        let mut loaded = Loader::unpinned().whole_edge().load()?;
        let mut tables = Tables::open(&loaded)?;
        tables.set_settings(Settings {
            hash_seed: 7,
            source_v4: Some(Ipv4Addr::new(192, 0, 2, 1)),
            ..Settings::default()
        })?;
        tables.set_addresses(Arc::new(Addresses {
            vips: BTreeSet::from([IpAddr::from(VIP)]),
            ..Addresses::default()
        }))?;
        tables.set_next_hop(
            NODE.into(),
            Resolution::Resolved(NextHop {
                ifindex: link.index(),
                is_carried: false,
                source_mac: link.mac(),
                destination_mac: to.mac(),
                via_gateway: false,
                vlan: None,
                mtu: 1500,
                source: None,
            }),
        )?;
        let service = ServiceKey {
            address: VIP.into(),
            port: PORT,
            protocol: Protocol::Udp,
        };
        let spec = ServiceSpec {
            mode,
            backends: [BackendSpec::node(NODE.into(), 1)].into(),
            ..ServiceSpec::default()
        };
        tables.put_service(service, &spec)?;
        loaded.attach(link.name(), &attach::Options::default())?;
        let mut edge = WholeEdge::start(&loaded, &mut tables)?;
        edge.follow(&BTreeSet::from([Queue {
            interface: link.name().to_owned(),
            device: link.index(),
            queue: 0,
        }]))?;
        Ok(Self {
            reader: edge.reader(),
            _edge: edge,
            _tables: tables,
            _loaded: loaded,
        })
    }

    /// Returns the frames that it has sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.reader.of(EdgeOutcome::Sent)
    }

    /// Waits until it has dealt with all frames.
    pub(crate) fn settle(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let before = self.reader.of(EdgeOutcome::Taken);
            thread::sleep(Duration::from_millis(5));
            if self.reader.of(EdgeOutcome::Taken) == before {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < Duration::from_secs(10),
                "frames go on coming"
            );
        }
    }
}

/// Makes a frame of 64 bytes from one link's MAC to the other's, to the service.
pub(crate) fn request(from: &Link<'_>, to: &Link<'_>) -> Result<[u8; 64]> {
    let packet = PacketBuilder::ethernet2(from.mac(), to.mac())
        .ipv4([198, 51, 100, 7], VIP.octets(), 64)
        .udp(40_000, PORT);
    let mut frame = Vec::new();
    packet.write(&mut frame, &PAYLOAD)?;
    frame.try_into().ok().context("not 64 bytes")
}
