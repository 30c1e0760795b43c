//! Measures what it costs to show the tables to their readers, and to change a service afterwards.
//!
//! `cargo bench -p fastpath --bench publish -- 10000 25`: services, and backends of each.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fastpath::{
    load::Loader,
    tables::{BackendSpec, Protocol, ServiceKey, ServiceSpec, Tables},
};
use xdp_prog::abi::map;

/// How often each thing is done.
const TIMES: u32 = 100;

fn main() -> Result<()> {
    // Cargo adds an option of its own.
    let mut arguments = std::env::args().skip(1).filter(|one| one != "--bench");
    let mut number = |name| -> Result<u32> {
        let argument = arguments.next().with_context(|| format!("no {name}"))?;
        argument
            .parse()
            .with_context(|| format!("{name}: {argument}"))
    };
    let (services, backends) = (number("services")?, number("backends of each")?);
    let loaded = Loader::unpinned()
        .max_entries(map::SERVICE_INDEX, services.next_power_of_two())
        .max_entries(map::SERVICE, services + 1)
        .max_entries(map::SERVICE_TRAFFIC, services + 1)
        .max_entries(map::BACKENDS, services * backends + 100)
        .max_entries(map::BACKEND_TRAFFIC, services * backends + 100)
        .max_entries(map::LUT, (services * 256).next_power_of_two() * 2)
        .load()?;
    let mut tables = Tables::open(&loaded)?;
    let reader = tables.reader(&loaded)?;
    for service in 0..services {
        tables.put_service(key(service), &spec(service, backends, 0))?;
    }
    tables.reclaim();

    let publish = mean(|_| {
        tables.publish();
        Ok(())
    })?;
    let change = mean(|time| {
        tables.put_service(key(0), &spec(0, backends, time))?;
        Ok(())
    })?;
    let change_after_publishing = mean(|time| {
        tables.publish();
        tables.put_service(key(0), &spec(0, backends, TIMES + time))?;
        Ok(())
    })?;
    let view = tables.publish();
    let began = Instant::now();
    let read = reader.backend_traffic(&view).len() + reader.service_traffic(&view).len();
    let reading = began.elapsed();
    let began = Instant::now();
    let mut slots = 0;
    for (_, service) in view.services() {
        slots += reader.slots_by_id(service).values().sum::<u32>();
    }
    println!("publish: {publish:?}");
    println!(
        "change of a service: {change:?}, right after publishing: {change_after_publishing:?}"
    );
    println!("{read} counters read beside: {reading:?}");
    println!("{slots} slots counted beside: {:?}", began.elapsed());
    Ok(())
}

fn mean(mut act: impl FnMut(u32) -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    for time in 0..TIMES {
        act(time)?;
    }
    Ok(began.elapsed() / TIMES)
}

fn key(service: u32) -> ServiceKey {
    ServiceKey {
        address: address(Ipv4Addr::new(10, 96, 0, 0), service),
        port: 80,
        protocol: Protocol::Tcp,
    }
}

/// Lays out the backends of a service; another turn has another first one.
fn spec(service: u32, backends: u32, turn: u32) -> ServiceSpec {
    let first = service * backends;
    let indices = (first..first + backends).map(|index| match index == first && turn > 0 {
        true => (1 << 20) + turn,
        false => index,
    });
    ServiceSpec {
        backends: indices
            .map(|index| {
                let node = address(Ipv4Addr::new(10, 0, 0, 1), index % 5000);
                let pod = (address(Ipv4Addr::new(100, 64, 0, 0), index), 8080);
                BackendSpec::pod(node, pod.into(), 1)
            })
            .collect(),
        log2_slots: Some(8),
        ..ServiceSpec::default()
    }
}

fn address(base: Ipv4Addr, offset: u32) -> IpAddr {
    Ipv4Addr::from_bits(base.to_bits() + offset).into()
}
