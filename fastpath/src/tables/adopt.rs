//! Adopts the contents that an earlier agent left in the maps.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
    mem::offset_of,
    sync::Arc,
};

use ipnet::IpNet;
use xdp_prog::abi::{
    BACKEND_DOWN, BACKEND_LOCAL, Backend, Config, DeliveryKeys, IndexEntry, IndexKey,
    NAMESPACE_UNKNOWN, Service, ServiceWord,
};

use super::{
    DroppedOwners, ForwardMode, InstalledBackend, InstalledService, NodeRoute, Run, ServiceKey,
    TableError, Tables,
    encode::{key_check, key_of_entry, owned_backend, settings_of},
    grace,
    ids::Ids,
    machine::addresses_of,
    mapped::Mapped,
    policy::Pods,
};

impl Tables {
    /// Adopts the contents of the maps, and clears entries to which nothing leads.
    pub(super) fn adopt(&mut self) -> Result<(), TableError> {
        self.current_config = self.config.read(&0)?;
        self.settings = settings_of(&self.current_config);
        self.adopt_delivery_keys()?;
        self.adopt_index()?;
        self.known_addresses = addresses_of(self.vips.held()).into();
        let pods = self.pods_by_service()?;
        let ranges = self.source_ranges_by_service()?;
        for (key, id) in self.installed_keys() {
            let service = self.adopt_service(&key, id, pods.get(&id), ranges.get(&id));
            self.contents
                .installed
                .extend(service.map(|service| (key, Arc::new(service))));
        }
        self.adopt_pasts();
        self.adopt_shared();
        self.retain_keys()?;
        self.remove_stray_pods()?;
        let known: BTreeSet<u32> = self
            .contents
            .installed
            .values()
            .map(|known| known.id)
            .collect();
        for (service, ranges) in &ranges {
            if !known.contains(service) {
                self.remove_source_ranges(*service, ranges);
            }
        }
        // The earlier agent may have ended right after it took something out of use, and notes of the programs may
        // name that too.
        self.invalidate_notes()?;
        grace::wait();
        self.index.reclaim();
        self.retain_egress_ports();
        self.clear_unreferenced();
        Ok(())
    }

    /// Draws the keys of the notes of deliveries, unless there are some.
    fn adopt_delivery_keys(&mut self) -> Result<(), TableError> {
        if self.current_config.delivery_keys.are_drawn() {
            return Ok(());
        }
        let random = RandomState::new();
        self.set_config(Config {
            delivery_keys: DeliveryKeys::new(|index| random.hash_one(index)),
            ..self.current_config
        })
    }

    /// Tells programs how large the tables are, and takes over the index of services, or begins it with a secret of its
    /// own.
    fn adopt_index(&mut self) -> Result<(), TableError> {
        let mask = self.index.mask();
        let current = self.current_config;
        let index_seed = match current.index_seed {
            seed if seed != 0 && current.index_mask == mask => seed,
            _ => RandomState::new().hash_one(mask) | 1,
        };
        self.set_config(Config {
            index_seed,
            index_mask: mask,
            services_of_cpu: self.counters.services.of_cpu(),
            backends_of_cpu: self.counters.backends.of_cpu(),
            ..current
        })?;
        self.index.adopt(self.current_config.index_seed)
    }

    /// Lists the services that the index leads to, with their ids.
    fn installed_keys(&self) -> Vec<(ServiceKey, u32)> {
        let entries =
            (1..self.service.length()).filter_map(|id| Some((id, self.service.read(id)?)));
        let known = entries.filter(|(_, entry)| entry.word.base() != 0);
        let keys = known.filter_map(|(id, entry)| Some((key_of_entry(&entry)?, id)));
        keys.filter(|(key, id)| {
            self.index.get(self.index.key(key)).map(IndexEntry::id) == Some(*id)
        })
        .collect()
    }

    /// Removes the keys that lead to no service. The earlier agent may have ended between the two stores that turn a
    /// service to another table; the index then gets the place that the service's entry has.
    fn retain_keys(&mut self) -> Result<(), TableError> {
        let known = self.contents.installed.iter();
        let known: HashMap<IndexKey, u32> = known
            .map(|(key, service)| (self.index.key(key), service.id))
            .collect();
        let Self { index, service, .. } = self;
        index.retain(|key, id| {
            let is_known = known.get(&key) == Some(&id);
            let entry = service.read(id).filter(|_| is_known)?;
            Some(IndexEntry::new(id, &entry))
        })
    }

    /// Reads a service back; `None` if its entries contradict each other.
    fn adopt_service(
        &mut self,
        key: &ServiceKey,
        id: u32,
        pods: Option<&Pods>,
        source_ranges: Option<&BTreeSet<IpNet>>,
    ) -> Option<InstalledService> {
        let entry = self.service.read(id)?;
        let run = Run {
            base: entry.word.base(),
            log2: entry.word.log2_length(),
        };
        if entry.word.check() != key_check(key) || !self.service_ids.reserve(id) {
            return None;
        }
        if !self.arena.reserve(run) {
            self.service_ids.release(id);
            return None;
        }
        let local = self.adopt_local_run(id, run, entry.local);
        let pods = pods.into_iter().flatten();
        let runs = std::iter::once(run).chain(local);
        let mut sharing: BTreeSet<u32> = runs
            .flat_map(|run| self.lut.of(run).map(|slot| slot.owner()))
            .collect();
        sharing.remove(&0);
        let mut named = sharing.clone();
        named.extend(pods.clone().map(|(_, backend)| *backend));
        named.remove(&0);
        let backends: BTreeSet<u32> = named
            .into_iter()
            .filter(|backend| self.adopt_backend(*backend, |backend| &mut backend.services))
            .collect();
        sharing.retain(|owner| {
            backends.contains(owner) && self.adopt_backend(*owner, |backend| &mut backend.shared)
        });
        let pods = pods
            .filter(|(_, backend)| backends.contains(backend))
            .map(|(tag, backend)| (*tag, *backend))
            .collect();
        let mode = ForwardMode::from_abi(entry.mode, entry.flags);
        let first = backends.first().and_then(|id| self.backends.read(*id));
        let owner = first.map_or(0, |backend| backend.owner);
        Some(InstalledService {
            id,
            run,
            local,
            mode,
            backends: backends.into_iter().collect(),
            sharing: sharing.into_iter().collect(),
            pods,
            source_ranges: source_ranges.cloned().unwrap_or_default(),
            owner,
            left_out: Box::default(),
            is_shared: false,
            last_change: 0,
            dropped_owners: DroppedOwners::default(),
        })
    }

    /// Reads the run of a service's local pods back; clears it if it contradicts the others.
    fn adopt_local_run(&mut self, id: u32, table: Run, word: ServiceWord) -> Option<Run> {
        let run = Run {
            base: word.base(),
            log2: word.log2_length(),
        };
        if run.base == 0 {
            return None;
        }
        if run == table || self.arena.reserve(run) {
            return Some(run);
        }
        self.service.store_u64(id, offset_of!(Service, local), 0);
        None
    }

    /// Counts one more user of a kind for a backend in the maps; returns false if there is no such backend.
    pub(super) fn adopt_backend(
        &mut self,
        id: u32,
        users: fn(&mut InstalledBackend) -> &mut u32,
    ) -> bool {
        let Some(entry) = self.backends.read(id).filter(|entry| entry.flags != 0) else {
            return false;
        };
        let owned = owned_backend(&entry);
        if entry.flags & BACKEND_DOWN != 0 {
            // Whether its node is unreachable has to be found out anew.
            let flags = entry.flags & !BACKEND_DOWN;
            self.store_backend_word(id, offset_of!(Backend, flags), flags);
        }
        if entry.namespace != NAMESPACE_UNKNOWN {
            // The id may name another namespace by now.
            self.store_backend_word(id, offset_of!(Backend, namespace), NAMESPACE_UNKNOWN);
        }
        if let Some(backend) = self.contents.backend_by_key.get_mut(&owned) {
            if backend.id == id {
                *users(backend) += 1;
            }
            return backend.id == id;
        }
        if !self.backend_ids.reserve(id) {
            return false;
        }
        let node = owned.key.address;
        match self.contents.node_routes.get(&node) {
            // The earlier agent may have ended while it changed the node's next hop.
            Some(route) => {
                self.store_backend_word(id, offset_of!(Backend, next_hop), route.next_hop);
            }
            None => {
                let known = self.next_hop_ids.reserve(entry.next_hop);
                let route = NodeRoute {
                    next_hop: if known { entry.next_hop } else { 0 },
                    resolution: None,
                    local: entry.flags & BACKEND_LOCAL != 0,
                };
                self.contents.node_routes.insert(node, route);
            }
        }
        let mut backend = InstalledBackend {
            id,
            services: 0,
            lists: 0,
            shared: 0,
        };
        *users(&mut backend) = 1;
        self.contents.backend_by_key.insert(owned, backend);
        true
    }

    fn clear_unreferenced(&mut self) {
        clear_free(&mut self.service, &self.service_ids);
        clear_free(&mut self.backends, &self.backend_ids);
        clear_free(&mut self.next_hops, &self.next_hop_ids);
    }
}

/// Clears the entries of ids that are free.
fn clear_free<T: aya::Pod + Default + PartialEq>(entries: &mut Mapped<T>, ids: &Ids) {
    for id in 1..entries.length() {
        if ids.is_free(id) && entries.read(id) != Some(T::default()) {
            entries.write(id, T::default());
        }
    }
}
