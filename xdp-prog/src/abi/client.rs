//! The backends that clients keep (`sessionAffinity: ClientIP`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AddressKey, Backend, age, check::mix, plain_data};

plain_data! {
    Client: 24,
    ClientBackend: 16,
}

/// Key of `CLIENTS`: a client of the services with one affinity seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Client {
    /// The client's address.
    pub address: AddressKey,
    /// [`Service::affinity`](super::Service::affinity), which is not 0.
    pub affinity: u64,
}

/// Value of `CLIENTS`: the backend that a client's last new connection went to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ClientBackend {
    /// The backend's id in the low half; in the high one, a check of client and backend. It reveals an element that the
    /// kernel has recycled for another client, and an id that is another backend's by now.
    pub word: u64,
    /// When the connection began, in ns of the monotonic clock.
    pub seen: u64,
}

impl ClientBackend {
    /// A renewed entry is younger than this, in ns: one entry is written once a second at most.
    const RENEWAL_NS: u64 = 1_000_000_000;

    /// Makes the entry of a connection that begins now.
    #[inline(always)]
    pub const fn new(client: &Client, id: u32, backend: &Backend, now: u64) -> Self {
        Self {
            word: Self::check(client, backend) | id as u64,
            seen: now,
        }
    }

    /// Returns the backend's id.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    pub const fn backend(self) -> u32 {
        self.word as u32
    }

    /// Tells whether this is the entry of the client, for the backend that has its id.
    #[inline(always)]
    pub const fn is_of(self, client: &Client, backend: &Backend) -> bool {
        self.word == Self::check(client, backend) | self.backend() as u64
    }

    /// Tells whether the connection began less than so many seconds ago.
    #[inline(always)]
    pub const fn is_within(self, seconds: u64, now: u64) -> bool {
        age(self.seen, now) < seconds * 1_000_000_000
    }

    /// Tells whether a connection to the backend need not be written down.
    #[inline(always)]
    pub const fn says(self, other: Self) -> bool {
        self.word == other.word && age(self.seen, other.seen) < Self::RENEWAL_NS
    }

    #[inline(always)]
    const fn check(client: &Client, backend: &Backend) -> u64 {
        let [high, low] = client.address.words();
        let of_client = mix(mix(high) ^ low) ^ client.affinity;
        mix(of_client ^ backend.check()) & !0xffff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_of_its_client_and_backend_alone() {
        let client = |byte, affinity| Client {
            address: AddressKey::v4([192, 0, 2, byte]),
            affinity,
        };
        let backend = |byte| Backend {
            pod: AddressKey::v4([10, 0, 0, byte]),
            ..Backend::default()
        };
        let entry = ClientBackend::new(&client(1, 5), 7, &backend(1), 100);
        assert_eq!(entry.backend(), 7);
        assert!(entry.is_of(&client(1, 5), &backend(1)));
        assert!(!entry.is_of(&client(2, 5), &backend(1)));
        assert!(!entry.is_of(&client(1, 6), &backend(1)));
        assert!(!entry.is_of(&client(1, 5), &backend(2)));
    }

    #[test]
    fn entry_is_renewed_after_a_second_and_ends_with_its_time() {
        const SECOND: u64 = 1_000_000_000;
        let client = Client {
            address: AddressKey::v4([192, 0, 2, 1]),
            affinity: 5,
        };
        let at = |id, now| ClientBackend::new(&client, id, &Backend::default(), now);
        let entry = at(7, SECOND);
        assert!(entry.says(at(7, 2 * SECOND - 1)));
        assert!(!entry.says(at(7, 2 * SECOND)));
        assert!(!entry.says(at(8, SECOND)));
        assert!(entry.is_within(10, 11 * SECOND - 1));
        assert!(!entry.is_within(10, 11 * SECOND));
    }
}
