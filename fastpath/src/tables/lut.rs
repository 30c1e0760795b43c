//! From a specification to the owners of the slots.

use xdp_prog::maglev::{self, Identity, MAX_LOG2_LEN, MaglevError, Member};

use super::{ServiceKey, ServiceSpec, TableError};

/// A lookup table that is not in the arena yet.
pub(super) struct Lut {
    /// Logarithm of the number of slots.
    pub(super) log2: u8,
    /// For each slot the index of the owning backend; all 0 where there is none.
    pub(super) owners: Vec<u32>,
}

/// Builds the table of a service: a function of its specification and the seed only.
///
/// The length is the specification's, else by the number of backends; weights do
/// not count, so that a change of weight never changes the length.
///
/// # Errors
///
/// When the table cannot be built: more backends than slots, a weight of zero or
/// too small for one slot, one backend twice.
pub(super) fn build(key: &ServiceKey, spec: &ServiceSpec, seed: u64) -> Result<Lut, TableError> {
    let backends = &spec.backends;
    if backends.is_empty() {
        let log2 = spec.log2_slots.unwrap_or(0).min(MAX_LOG2_LEN);
        let owners = vec![0; 1 << log2];
        return Ok(Lut { log2, owners });
    }
    let members: Vec<Member> = backends
        .iter()
        .map(|backend| Member {
            identity: match backend.pod {
                Some(pod) => Identity::new(pod.ip(), pod.port()),
                // The port is the service's: the node takes packets as they are.
                None => Identity::new(backend.address, 0),
            },
            weight: backend.weight,
        })
        .collect();
    let log2 = spec
        .log2_slots_for(backends.len())
        .ok_or(TableError::TooManyBackends {
            service: *key,
            backends: backends.len(),
            slots: 1 << MAX_LOG2_LEN,
        })?;
    match maglev::table(seed, &members, log2) {
        Ok(owners) => Ok(Lut { log2, owners }),
        Err(MaglevError::NoSlot { member }) => Err(TableError::WeightTooSmall {
            service: *key,
            backend: backends[member].key(spec.mode),
            slots: 1 << log2,
        }),
        Err(source) => Err(TableError::Lut {
            service: *key,
            source,
        }),
    }
}
