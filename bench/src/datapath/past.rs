//! Slots that have had other owners, and connections that are pinned to one of these.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, Map, MapData};
use fastpath::{
    load::Loaded,
    tables::{BackendSpec, ForwardMode, ServiceSpec, Tables},
};
use xdp_prog::abi::{Backend, PastPair, Pin, Tag, Tuple, map};

use super::{
    System,
    frames::{Family, Protocol},
    tables::{KNOWN_FLOWS, client_of, pods_of_nodes, service, spec, tuple},
};

/// Number of the first pod that owns slots now, and of the first one that owned them before.
const NEW_PODS: u32 = 300;
const FORMER_PODS: u32 = 200;

/// Lists the owners of a service whose slots have had others.
pub(super) fn owners(system: System, family: Family) -> Vec<BackendSpec> {
    owners_from(system, family, NEW_PODS)
}

fn owners_from(system: System, family: Family, first: u32) -> Vec<BackendSpec> {
    let count = match system {
        // With one owner, all packets come back from the same node.
        System::Retry => 1,
        _ => usize::MAX,
    };
    pods_of_nodes(family, first).take(count).collect()
}

/// Returns the service as it was before its slots got their present owners; `None` if they have had no others.
pub(super) fn former_spec(system: System, family: Family) -> Option<ServiceSpec> {
    match system {
        System::Past | System::Pinned | System::Retry => Some(ServiceSpec {
            backends: owners_from(system, family, FORMER_PODS),
            ..spec(system, family)
        }),
        _ => None,
    }
}

/// Returns the node and the pod that own all slots of [`System::Retry`].
pub(super) fn owner_of_retries(family: Family) -> Option<(IpAddr, IpAddr)> {
    let owner = owners(System::Retry, family).pop()?;
    Some((owner.address, owner.pod?.ip()))
}

/// Returns a tag with the tries of a packet of a slot that has had one other owner.
pub(super) fn with_tries(tag: Tag) -> Tag {
    Tag(tag.0 | Tag::tries_bits(2))
}

/// Returns the id of the past owner to which all flows of [`System::Pinned`] are pinned.
pub(super) fn pinned_backend(tables: &Tables, family: Family) -> Result<u32> {
    let former = owners_from(System::Pinned, family, FORMER_PODS);
    let former = former[0].key(ForwardMode::Ipip);
    let mut backends = tables.backends();
    let known = backends.find(|(owned, _)| owned.key == former);
    let (_, known) = known.context("a past owner has its entry")?;
    Ok(known.id)
}

/// Pins flows of [`System::Pinned`] to a past owner, in a second long past.
pub(super) fn pin_flows(product: &Loaded, tables: &Tables, family: Family) -> Result<()> {
    let protocol = Protocol::Tcp;
    let service = service(System::Pinned, family, protocol).context("the way has a service")?;
    let installed = tables.service(&service).context("the service is there")?;
    let former = pinned_backend(tables, family)?;
    let entries: Array<MapData, Backend> =
        Array::try_from(Map::Array(product.map(map::BACKENDS)?))?;
    let entry = entries.get(&former, 0)?;

    let mut pasts: Array<MapData, PastPair> =
        Array::try_from(Map::Array(product.map(map::PASTS)?))?;
    let run = installed.run.slots();
    for pair in run.start / 2..run.end / 2 {
        let words = pasts.get(&pair, 0)?;
        pasts.set(pair, words.pinned(0).pinned(1), 0)?;
    }
    let mut pins: HashMap<MapData, Tuple, Pin> =
        HashMap::try_from(Map::LruHashMap(product.map(map::PINS)?))?;
    let vip = SocketAddr::new(service.address, service.port);
    for flow in 0..KNOWN_FLOWS {
        let flow = tuple(client_of(family, flow), vip, protocol);
        pins.insert(flow, Pin::new(&flow, former, &entry, 0), 0)?;
    }
    Ok(())
}
