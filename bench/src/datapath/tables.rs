//! The tables of the program under test: four services, each of a hundred backends.

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap, Map, MapData, PerCpuArray},
};
use xdp_prog::{
    abi::{
        BACKEND_V4, BACKEND_V6, Backend, Bucket, IndexKey, MODE_IPIP, NextHop, Service,
        ServiceKeyV4, ServiceKeyV6, ServiceWord, Slot, SlotPair, Traffic, lay_out, map,
    },
    bench::map as yardstick,
};

use super::frames::{
    EDGE_V4, EDGE_V6, Family, MACS_BACK, PORT, Protocol, VIP_V4, VIP_V6, backend_v4, backend_v6,
};

/// Backends of each service.
pub(super) const BACKENDS: u8 = 100;
/// Slots of each service's lookup table, as a power of two: what so many backends get by default.
pub(super) const LOG2_SLOTS: u8 = 14;

/// Secret of the index of services.
pub(super) const INDEX_SEED: u64 = 0x6775_6964_6577_6179;
/// Its buckets: few, but no fewer than three times as many places as services.
pub(super) const BUCKETS: u32 = 16;

/// Returns the id of a service.
pub(super) const fn service_id(family: Family, protocol: Protocol) -> u32 {
    1 + family as u32 * 2 + protocol as u32
}

/// Returns the id of the first backend of a family, and of its next hop.
pub(super) const fn first_backend(family: Family) -> u32 {
    1 + family as u32 * BACKENDS as u32
}

/// Fills everything that the `guideway` program looks at on the plain way.
///
/// Frames leave by `device`, the one they come in on.
pub(super) fn fill(object: &mut Ebpf, device: u32) -> Result<()> {
    for family in Family::ALL {
        let first = first_backend(family);
        fill_backends(object, family, first, device)?;
        for protocol in Protocol::ALL {
            fill_service(object, family, protocol, first)?;
        }
    }
    Ok(())
}

/// Adds the services to the yardstick's hash maps.
pub(super) fn register_services(object: &mut Ebpf) -> Result<()> {
    for protocol in Protocol::ALL {
        let mut services: HashMap<_, ServiceKeyV4, u32> =
            HashMap::try_from(map_mut(object, yardstick::SERVICES_V4)?)?;
        services.insert(key_v4(protocol, PORT), service_id(Family::V4, protocol), 0)?;
        let mut services: HashMap<_, ServiceKeyV6, u32> =
            HashMap::try_from(map_mut(object, yardstick::SERVICES_V6)?)?;
        services.insert(key_v6(protocol, PORT), service_id(Family::V6, protocol), 0)?;
    }
    Ok(())
}

/// Leads packets to services; the settings must have the seed.
pub(super) fn fill_index(object: &mut Ebpf, services: &[(IndexKey, u32)]) -> Result<()> {
    let mut buckets = vec![Bucket::default(); BUCKETS as usize];
    for (key, id) in services {
        ensure!(
            lay_out(&mut buckets, INDEX_SEED, *key, *id),
            "the index of services is too small"
        );
    }
    let mut index = array(object, map::SERVICE_INDEX)?;
    for (number, bucket) in (0..).zip(buckets) {
        index.set(number, bucket, 0)?;
    }
    Ok(())
}

/// Returns what leads to a service in the index.
pub(super) fn index_key(family: Family, protocol: Protocol, port: u16) -> IndexKey {
    match family {
        Family::V4 => IndexKey::v4(key_v4(protocol, port)),
        Family::V6 => IndexKey::v6(&key_v6(protocol, port), INDEX_SEED),
    }
}

fn key_v4(protocol: Protocol, port: u16) -> ServiceKeyV4 {
    ServiceKeyV4::new(VIP_V4.octets(), port.to_be_bytes(), protocol.number())
}

fn key_v6(protocol: Protocol, port: u16) -> ServiceKeyV6 {
    ServiceKeyV6::new(VIP_V6.octets(), port.to_be_bytes(), protocol.number())
}

/// A next hop per backend: all on one link, as in a rack.
fn fill_backends(object: &mut Ebpf, family: Family, first: u32, device: u32) -> Result<()> {
    for index in 0..BACKENDS {
        let id = first + u32::from(index);
        let (address, source, flags) = match family {
            Family::V4 => (
                first_four(backend_v4(index).octets()),
                first_four(EDGE_V4.octets()),
                BACKEND_V4,
            ),
            Family::V6 => (backend_v6(index).octets(), EDGE_V6.octets(), BACKEND_V6),
        };
        let hop = NextHop {
            ifindex: device,
            mtu: 1500,
            source,
            own: source,
            macs: MACS_BACK,
            ..NextHop::default()
        };
        array(object, map::NEXTHOPS)?.set(id, hop, 0)?;
        let backend = Backend {
            address,
            next_hop: id,
            flags,
            ..Backend::default()
        };
        array(object, map::BACKENDS)?.set(id, backend, 0)?;
    }
    Ok(())
}

fn fill_service(object: &mut Ebpf, family: Family, protocol: Protocol, first: u32) -> Result<()> {
    let id = service_id(family, protocol);
    let slots = 1 << LOG2_SLOTS;
    let base = id * slots;
    let mut lut: Array<_, SlotPair> = array(object, map::LUT)?;
    // Which backend owns which slot makes no difference to the cost; equal shares do.
    let owner = |slot: u32| Slot(first + slot % u32::from(BACKENDS));
    for slot in (0..slots).step_by(2) {
        lut.set(
            (base + slot) / 2,
            SlotPair([owner(slot), owner(slot + 1)]),
            0,
        )?;
    }
    set_service(object, family, protocol, PORT, id, 0)
}

/// Adds a service; one off the plain way has a table that is never looked at.
pub(super) fn set_service(
    object: &mut Ebpf,
    family: Family,
    protocol: Protocol,
    port: u16,
    id: u32,
    flags: u32,
) -> Result<()> {
    let check = match family {
        Family::V4 => key_v4(protocol, port).check(),
        Family::V6 => key_v6(protocol, port).check(),
    };
    let service = Service {
        word: ServiceWord::new(id << LOG2_SLOTS, LOG2_SLOTS, check),
        mode: MODE_IPIP,
        flags,
        ..Service::default()
    };
    array(object, map::SERVICE)?.set(id, service, 0)?;
    Ok(())
}

/// Returns how many packets the program has forwarded for a service.
pub(super) fn forwarded(object: &Ebpf, service: u32) -> Result<u64> {
    let name = map::SERVICE_TRAFFIC;
    let traffic: PerCpuArray<_, Traffic> =
        PerCpuArray::try_from(object.map(name).with_context(|| missing(name))?)?;
    let traffic = traffic.get(&service, 0)?;
    Ok(traffic.iter().map(|cpu| cpu.packets).sum())
}

/// Returns how many packets ended under a reason.
pub(super) fn counted(object: &Ebpf, reason: u32) -> Result<u64> {
    let name = map::REASONS;
    let reasons: PerCpuArray<_, u64> =
        PerCpuArray::try_from(object.map(name).with_context(|| missing(name))?)?;
    Ok(reasons.get(&reason, 0)?.iter().sum())
}

/// Opens an array of the object.
pub(super) fn array<'a, T: Pod>(
    object: &'a mut Ebpf,
    name: &str,
) -> Result<Array<&'a mut MapData, T>> {
    Ok(Array::try_from(map_mut(object, name)?)?)
}

pub(super) fn map_mut<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Map> {
    object.map_mut(name).with_context(|| missing(name))
}

fn missing(name: &str) -> String {
    format!("the object has no map {name}")
}

fn first_four([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}
