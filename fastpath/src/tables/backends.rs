//! Backends, and the next hops to their nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::offset_of,
    net::IpAddr,
    sync::Arc,
};

use xdp_prog::abi::{Backend, map};

use super::{
    BackendKey, InstalledBackend, NodeRoute, OwnedBackend, ServiceKey, ServiceSpec, TableError,
    Tables,
    encode::{backend_entry, backend_flags, namespace_word, next_hop_entry, owned_backend},
};
use crate::nexthop::Resolution;

/// The network namespace of a pod of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNamespace {
    /// That of this machine: the pod uses the host's network.
    Own,
    /// The one with this id in this machine's (`ip-netns(8)`).
    Other(u32),
}

impl Tables {
    /// Sets the next hop of a node address; best before a service names it.
    ///
    /// For an unresolved next hop, every packet asks the kernel's FIB.
    ///
    /// # Errors
    ///
    /// Fails if the table of next hops is full; the old next hop stays.
    pub fn set_next_hop(
        &mut self,
        target: IpAddr,
        resolution: Resolution,
    ) -> Result<(), TableError> {
        let old_route = self.contents.node_routes.get(&target).copied();
        let old = old_route.map_or(0, |route| route.next_hop);
        let was_local = old_route.is_some_and(|route| route.local);
        let local = resolution == Resolution::Local;
        let next_hop = match resolution {
            Resolution::Resolved(mut hop) => {
                hop.mtu = self
                    .path_mtu(target)
                    .map_or(hop.mtu, |mtu| mtu.min(hop.mtu));
                let hop = next_hop_entry(target, &hop, &self.settings);
                if old != 0 && self.next_hops.read(old) == Some(hop) {
                    old
                } else {
                    let id = self.allocate(map::NEXTHOPS, |tables| &mut tables.next_hop_ids)?;
                    self.next_hops.write(id, hop);
                    id
                }
            }
            Resolution::Local | Resolution::Unresolved(_) => 0,
        };
        self.contents.node_routes.insert(
            target,
            NodeRoute {
                next_hop,
                resolution: Some(resolution),
                local,
            },
        );
        for (backend, id) in self.backends_of(target) {
            let next_hop = (offset_of!(Backend, next_hop), next_hop);
            let flags = (
                offset_of!(Backend, flags),
                backend_flags(&backend.key, local, self.unreachable.contains(&target)),
            );
            // While the flags say that the node is this machine, no packet looks at the next hop.
            let words = if local {
                [flags, next_hop]
            } else {
                [next_hop, flags]
            };
            for (offset, word) in words {
                self.store_backend_word(id, offset, word);
            }
        }
        if old != 0 && old != next_hop {
            self.retired.next_hops.push(old);
        }
        if local != was_local {
            let services = self.services_with_pods_on(target);
            self.put_again(services);
        }
        self.reclaim_if_worth_it();
        Ok(())
    }

    /// Replaces the nodes that are known to be unreachable. Past owners of slots are not tried there.
    pub fn set_unreachable_nodes(&mut self, nodes: &BTreeSet<IpAddr>) {
        let before = std::mem::replace(&mut self.unreachable, nodes.clone());
        for node in before.symmetric_difference(nodes) {
            let route = self.contents.node_routes.get(node);
            let local = route.is_some_and(|route| route.local);
            for (backend, id) in self.backends_of(*node) {
                let flags = backend_flags(&backend.key, local, nodes.contains(node));
                self.store_backend_word(id, offset_of!(Backend, flags), flags);
            }
        }
    }

    /// Lists the addresses of this machine's pods, those that have left their services included.
    pub fn own_pod_addresses(&self) -> BTreeSet<IpAddr> {
        let nodes = self.contents.node_routes.iter();
        let own = nodes.filter(|(_, route)| route.local);
        let backends = own.flat_map(|(node, _)| self.backends_of(*node));
        backends
            .filter_map(|(owned, _)| Some(owned.key.pod?.ip()))
            .collect()
    }

    /// Replaces what is known of the network namespaces of this machine's pods, by the pods' addresses. The programs
    /// ask the kernel for connections there.
    pub fn set_pod_namespaces(&mut self, namespaces: &BTreeMap<IpAddr, PodNamespace>) {
        if self.pod_namespaces == *namespaces {
            return;
        }
        let before = std::mem::replace(&mut self.pod_namespaces, namespaces.clone());
        let changed: Vec<(u32, u32)> = self
            .contents
            .backends()
            .filter_map(|(owned, backend)| {
                let pod = owned.key.pod?.ip();
                let [old, new] = [&before, namespaces].map(|known| known.get(&pod).copied());
                (old != new).then(|| (backend.id, namespace_word(new)))
            })
            .collect();
        for (id, word) in changed {
            self.store_backend_word(id, offset_of!(Backend, namespace), word);
        }
    }

    /// Rewrites the next hops with the outer sources of the present settings.
    pub(super) fn rewrite_next_hops(&mut self) -> Result<(), TableError> {
        let known: Vec<(IpAddr, Resolution)> = self
            .contents
            .node_routes
            .iter()
            .filter_map(|(target, way)| Some((*target, way.resolution?)))
            .collect();
        for (target, resolution) in known {
            self.set_next_hop(target, resolution)?;
        }
        Ok(())
    }

    /// Forgets the next hops of all addresses except `targets` and the nodes of backends.
    pub fn retain_next_hops(&mut self, targets: &BTreeSet<IpAddr>) {
        let backends = self.contents.backend_by_key.keys();
        let nodes: BTreeSet<IpAddr> = backends.map(|backend| backend.key.address).collect();
        let is_needed = |target: &IpAddr| targets.contains(target) || nodes.contains(target);
        let known = self.contents.node_routes.keys().copied();
        let unneeded: Vec<IpAddr> = known.filter(|target| !is_needed(target)).collect();
        for target in unneeded {
            let route = self.contents.node_routes.remove(&target);
            let next_hop = route.map(|route| route.next_hop).filter(|id| *id != 0);
            self.retired.next_hops.extend(next_hop);
        }
    }

    /// Counts one more user of each backend; writes backends that are new.
    pub(super) fn take_backends(
        &mut self,
        keys: &[BackendKey],
        owner: u32,
    ) -> Result<Vec<u32>, TableError> {
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            match self.take_backend(OwnedBackend { key: *key, owner }) {
                Ok(id) => taken.push(id),
                Err(error) => {
                    self.drop_backends(taken);
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    fn take_backend(&mut self, owned: OwnedBackend) -> Result<u32, TableError> {
        if let Some(backend) = self.contents.backend_by_key.get_mut(&owned) {
            backend.services += 1;
            return Ok(backend.id);
        }
        let id = self.allocate_backend_id()?;
        self.write_backend(id, owned);
        Ok(id)
    }

    /// Writes a new backend under its id, for its first user.
    pub(super) fn write_backend(&mut self, id: u32, owned: OwnedBackend) {
        let route = self.contents.node_routes.get(&owned.key.address);
        let entry = backend_entry(
            &owned,
            route.map_or(0, |route| route.next_hop),
            route.is_some_and(|route| route.local),
            self.unreachable.contains(&owned.key.address),
            self.namespace_of(&owned.key),
        );
        self.counters.backends.clear(id);
        self.backends.write(id, entry);
        self.contents
            .backend_by_key
            .insert(owned, InstalledBackend::used(id));
    }

    fn namespace_of(&self, key: &BackendKey) -> Option<PodNamespace> {
        self.pod_namespaces.get(&key.pod?.ip()).copied()
    }

    fn allocate_backend_id(&mut self) -> Result<u32, TableError> {
        let allocate =
            |tables: &mut Self| tables.allocate(map::BACKENDS, |tables| &mut tables.backend_ids);
        // What serves comes before what has served: at first before the older half of that.
        for part in [2, 1] {
            if let Ok(id) = allocate(self) {
                return Ok(id);
            }
            self.forget_oldest_past_owners(part);
        }
        allocate(self)
    }

    /// Moves backends to a new owner, if only one service uses them and the owner does not have them already. So
    /// their counters continue when a service gets another name.
    pub(super) fn hand_over(&mut self, ids: &[u32], owner: u32) {
        for id in ids {
            let Some(entry) = self.backends.read(*id) else {
                continue;
            };
            let old = owned_backend(&entry);
            let new = OwnedBackend { owner, ..old };
            if let Some(backend) = self.contents.backend_by_key.get(&old).copied()
                && backend.services == 1
                && !self.contents.backend_by_key.contains_key(&new)
            {
                self.contents.backend_by_key.remove(&old);
                self.contents.backend_by_key.insert(new, backend);
                self.store_backend_word(*id, offset_of!(Backend, owner), owner);
            }
        }
    }

    /// Counts one user less of each backend; retires those that have none left.
    pub(super) fn drop_backends(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            let Some(entry) = self.backends.read(id) else {
                continue;
            };
            let owned = owned_backend(&entry);
            let Some(backend) = self.contents.backend_by_key.get_mut(&owned) else {
                continue;
            };
            // No service uses a backend that only lists of past owners name.
            backend.services = backend.services.saturating_sub(1);
            self.retire_if_unneeded(id, &owned);
        }
    }

    /// Counts one service more in which each backend takes new connections.
    pub(super) fn share(&mut self, ids: &[u32]) {
        for id in ids {
            self.set_shared(*id, |services| services + 1);
        }
    }

    /// Counts one service less in which each backend takes new connections.
    pub(super) fn unshare(&mut self, ids: &[u32]) {
        for id in ids {
            self.set_shared(*id, |services| services.saturating_sub(1));
        }
    }

    /// Tells the programs which of the adopted backends take new connections; an earlier agent may have ended before it did.
    pub(super) fn adopt_shared(&mut self) {
        let ids: Vec<u32> = self
            .contents
            .backends()
            .map(|(_, backend)| backend.id)
            .collect();
        for id in ids {
            self.set_shared(id, |services| services);
        }
    }

    /// Changes the number of services in which a backend takes new connections, and tells the programs whether there are any.
    fn set_shared(&mut self, id: u32, change: impl FnOnce(u32) -> u32) {
        let Some(entry) = self.backends.read(id) else {
            return;
        };
        let Some(backend) = self.contents.backend_by_key.get_mut(&owned_backend(&entry)) else {
            return;
        };
        backend.shared = change(backend.shared);
        let takes_new = u32::from(backend.shared != 0);
        if entry.takes_new != takes_new {
            self.store_backend_word(id, offset_of!(Backend, takes_new), takes_new);
        }
    }

    /// Counts one list of past owners more that names each backend.
    pub(super) fn list_backends(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            let Some(entry) = self.backends.read(id) else {
                continue;
            };
            let owned = owned_backend(&entry);
            if let Some(backend) = self.contents.backend_by_key.get_mut(&owned) {
                backend.lists += 1;
            }
        }
    }

    /// Counts one list of past owners less that names each backend; retires those that nobody needs.
    pub(super) fn unlist_backends(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            let Some(entry) = self.backends.read(id) else {
                continue;
            };
            let owned = owned_backend(&entry);
            if let Some(backend) = self.contents.backend_by_key.get_mut(&owned) {
                backend.lists = backend.lists.saturating_sub(1);
                self.retire_if_unneeded(id, &owned);
            }
        }
    }

    /// Retires a backend that neither a service nor a list of past owners names.
    fn retire_if_unneeded(&mut self, id: u32, owned: &OwnedBackend) {
        let backend = self.contents.backend_by_key.get(owned);
        if backend.is_some_and(|backend| backend.services == 0 && backend.lists == 0) {
            self.contents.backend_by_key.remove(owned);
            self.retired.backends.push(id);
            self.freed.entries += 1;
        }
    }

    fn services_with_pods_on(&self, node: IpAddr) -> Vec<(ServiceKey, Arc<ServiceSpec>)> {
        let has_pods = |spec: &&Arc<ServiceSpec>| {
            spec.backends
                .iter()
                .any(|backend| backend.pod.is_some() && backend.address == node)
        };
        let specs = self
            .contents
            .specs
            .iter()
            .filter(|(_, spec)| has_pods(spec));
        specs.map(|(key, spec)| (*key, Arc::clone(spec))).collect()
    }

    /// Lists the backends on one node.
    pub(super) fn backends_of(&self, address: IpAddr) -> Vec<(OwnedBackend, u32)> {
        self.contents
            .backend_by_key
            .range(OwnedBackend::first_of(address)..)
            .take_while(|(owned, _)| owned.key.address == address)
            .map(|(owned, backend)| (*owned, backend.id))
            .collect()
    }

    pub(super) fn store_backend_word(&mut self, id: u32, offset: usize, value: u32) {
        self.backends.store_u32(id, offset, value);
    }
}
