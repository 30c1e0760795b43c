//! The maps of the generator and the sink.

use anyhow::{Context, Error, Result};
use aya::{
    Ebpf, Pod,
    maps::{Array, MapData, PerCpuArray, PerCpuValues},
};
use xdp_prog::bench::{Counted, Pace, map};

/// Fills an array.
///
/// # Errors
///
/// When the object has none of this name and type, or too short a one.
pub(super) fn fill<T: Pod>(object: &mut Ebpf, name: &str, entries: &[T]) -> Result<()> {
    let map = object.map_mut(name);
    let map = map.with_context(|| format!("the object has no map {name}"))?;
    let mut array: Array<&mut MapData, T> = Array::try_from(map)?;
    for (place, entry) in (0..).zip(entries) {
        array.set(place, entry, 0)?;
    }
    Ok(())
}

/// Sets the pace of the generator on some CPUs. On the others it sends nothing.
///
/// # Errors
///
/// When there is no such CPU.
pub(super) fn set_paces(object: &mut Ebpf, paces: &[(usize, Pace)]) -> Result<()> {
    let mut values = vec![Pace::default(); possible_cpus()?];
    for (cpu, pace) in paces {
        *values.get_mut(*cpu).with_context(|| no_value(*cpu))? = *pace;
    }
    set(object, map::PACE, values)
}

/// Returns the pace of the generator on a CPU.
///
/// # Errors
///
/// When there is no such CPU.
pub(super) fn pace(object: &Ebpf, cpu: usize) -> Result<Pace> {
    let values: PerCpuValues<Pace> = values(object, map::PACE)?;
    values.get(cpu).copied().with_context(|| no_value(cpu))
}

/// Has each CPU of the sink begin with the same.
///
/// # Errors
///
/// When the object has no sink.
pub(super) fn set_counted(object: &mut Ebpf, counted: Counted) -> Result<()> {
    set(object, map::COUNTED, vec![counted; possible_cpus()?])
}

/// Returns what all CPUs of the sink have counted.
///
/// # Errors
///
/// When the object has no sink.
pub(super) fn counted(object: &Ebpf) -> Result<Counted> {
    let values: PerCpuValues<Counted> = values(object, map::COUNTED)?;
    let sum = |of: fn(&Counted) -> u64| values.iter().map(of).sum();
    Ok(Counted {
        received: sum(|one| one.received),
        bytes: sum(|one| one.bytes),
        reordered: sum(|one| one.reordered),
        ..Counted::default()
    })
}

/// Sets the one entry of an array for each CPU.
fn set<T: Pod>(object: &mut Ebpf, name: &str, values: Vec<T>) -> Result<()> {
    let map = object.map_mut(name);
    let map = map.with_context(|| format!("the object has no map {name}"))?;
    let mut array: PerCpuArray<&mut MapData, T> = PerCpuArray::try_from(map)?;
    Ok(array.set(0, PerCpuValues::try_from(values)?, 0)?)
}

/// Returns the one entry of an array of each CPU.
fn values<T: Pod>(object: &Ebpf, name: &str) -> Result<PerCpuValues<T>> {
    let map = object.map(name);
    let map = map.with_context(|| format!("the object has no map {name}"))?;
    let array: PerCpuArray<&MapData, T> = PerCpuArray::try_from(map)?;
    Ok(array.get(&0, 0)?)
}

fn possible_cpus() -> Result<usize> {
    aya::util::nr_cpus().map_err(|(file, error)| Error::new(error).context(file))
}

fn no_value(cpu: usize) -> String {
    format!("the kernel has no value of CPU {cpu}")
}
