//! Builds lookup tables: from a set of backends to the owners of the slots.

use xdp_prog::maglev::{self, Identity, MAX_LOG2_LEN, MaglevError, Member};

use super::{BackendSpec, ServiceKey, ServiceSpec, TableError};

/// A lookup table that is not in the arena yet.
pub(super) struct Lut {
    /// Base-2 logarithm of the number of slots.
    pub(super) log2: u8,
    /// The index of each slot's owner among the backends; all are [`NOBODY`] without backends.
    pub(super) owners: Vec<u32>,
}

/// Owner of the slots of a table without backends.
pub(super) const NOBODY: u32 = u32::MAX;

/// Builds the table of a service over these of its backends; it depends only on them and the seed.
///
/// The length is that of the specification, else it follows the number of backends, and is 2^`least` at least. Weights do
/// not count, so a change of weight never changes the length.
///
/// # Errors
///
/// Fails if there are more backends than slots, if a weight is too small for one slot, or if one backend is listed
/// twice. A weight of zero is too small: backends without weight must not be among `backends`.
pub(super) fn build(
    key: &ServiceKey,
    spec: &ServiceSpec,
    backends: &[BackendSpec],
    least: u8,
    seed: u64,
) -> Result<Lut, TableError> {
    if backends.is_empty() {
        let log2 = spec.log2_slots.unwrap_or(least).min(MAX_LOG2_LEN);
        let owners = vec![NOBODY; 1 << log2];
        return Ok(Lut { log2, owners });
    }
    let members: Vec<Member> = backends.iter().map(BackendSpec::member).collect();
    let log2 = spec
        .log2_slots_for(backends.len())
        .map(|log2| log2.max(least))
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

impl BackendSpec {
    /// Returns the backend as a member of a lookup table.
    pub fn member(&self) -> Member {
        Member {
            identity: match self.pod {
                Some(pod) => Identity::new(pod.ip(), pod.port()),
                // The port is the service's, because the node takes packets unchanged.
                None => Identity::new(self.address, 0),
            },
            weight: self.weight,
        }
    }
}
