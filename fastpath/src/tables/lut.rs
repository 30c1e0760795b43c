//! From a specification to the owners of the slots.

use xdp_prog::maglev::{self, Identity, MAX_LOG2_LEN, Member, SLOTS_PER_BACKEND};

use super::{ServiceKey, ServiceSpec, TableError};

/// Returns the logarithm of the table size that a service gets.
///
/// # Errors
///
/// When there are more backends than the largest table can serve.
pub(super) fn length_class(key: &ServiceKey, spec: &ServiceSpec) -> Result<u8, TableError> {
    let backends = spec.backends.len();
    if backends == 0 {
        return Ok(0);
    }
    let by_count = || {
        let members = u32::try_from(backends).ok()?;
        // Beyond 2^20 / 40 backends the largest class serves with fewer slots each.
        maglev::class_for(members, SLOTS_PER_BACKEND).or(maglev::class_for(members, 1))
    };
    spec.log2_slots
        .or_else(by_count)
        .ok_or(TableError::TooManyBackends {
            service: *key,
            backends,
            slots: 1 << MAX_LOG2_LEN,
        })
}

/// Returns the index of the owning backend for each of 2^`log2` slots.
///
/// Without backends no index exists that could own a slot; all are 0.
///
/// # Errors
///
/// When the table cannot be built: more backends than slots, a bad weight, one backend twice.
pub(super) fn owners(
    key: &ServiceKey,
    spec: &ServiceSpec,
    log2: u8,
    seed: u64,
) -> Result<Vec<u32>, TableError> {
    if spec.backends.is_empty() {
        return Ok(vec![0; 1 << log2]);
    }
    let members: Vec<Member> = spec
        .backends
        .iter()
        .map(|backend| Member {
            // The port is the service's: a backend takes packets as they are.
            identity: Identity::new(backend.address, 0),
            weight: backend.weight,
        })
        .collect();
    maglev::table(seed, &members, log2).map_err(|source| TableError::Lut {
        service: *key,
        source,
    })
}
