//! The memory of the backends that clients keep.

use super::Clock;
use crate::abi::{Client, ClientBackend};

/// The backends to which clients of services with affinity sent their last new connections.
pub trait Clients: Clock {
    /// Returns the entry of a client; all zero if there is none.
    fn client(&self, client: &Client) -> ClientBackend;
    /// Sets the entry of a client.
    fn set_client(&self, client: &Client, entry: ClientBackend);
}
