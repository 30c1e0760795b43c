//! Half-open sockets: the backend has one, and its client has gone.

use std::collections::HashMap;

use super::{
    addresses::Client,
    backends::{Backends, Pod},
};

/// The half-open sockets by the client's end.
#[derive(Debug, Default)]
pub(super) struct HalfOpen(HashMap<Client, Vec<Pod>>);

impl HalfOpen {
    pub(super) fn add(&mut self, client: Client, pod: Pod, backends: &Backends) {
        let pods = self.0.entry(client).or_default();
        pods.retain(|pod| backends.is_alive(*pod));
        pods.push(pod);
    }

    /// Removes the socket that a new connection of the same end takes over.
    pub(super) fn remove(&mut self, client: Client, pod: Pod) {
        if let Some(pods) = self.0.get_mut(&client) {
            pods.retain(|other| *other != pod);
        }
    }

    /// Lists the pods that have such a socket for a client's end.
    pub(super) fn of<'a>(
        &'a self,
        client: Client,
        backends: &'a Backends,
    ) -> impl Iterator<Item = Pod> + 'a {
        let pods = self.0.get(&client).into_iter().flatten().copied();
        pods.filter(|pod| backends.is_alive(*pod))
    }
}
