//! What an earlier agent left in the maps.

use std::{collections::BTreeSet, mem::offset_of};

use xdp_prog::abi::{Backend, NextHop, Service, Slot, map};

use super::{
    ForwardMode, InstalledBackend, InstalledService, Run, ServiceKey, TableError, Tables, Way,
    encode::{backend_key, key_check, service_key, settings_of},
    error::read_failed,
    grace,
};

impl Tables {
    /// Takes over what the maps hold; what nothing leads to is cleared.
    pub(super) fn adopt(&mut self) -> Result<(), TableError> {
        self.current_config = self.config.get(&0, 0).map_err(read_failed(map::CONFIG))?;
        self.settings = settings_of(&self.current_config);
        for (key, id) in self.installed_keys()? {
            match self.adopt_service(&key, id) {
                Some(service) => {
                    self.installed.insert(key, service);
                }
                None => self.remove_key(&key)?,
            }
        }
        // The agent before this one may have ended right after it took something out of use.
        grace::wait();
        self.clear_unreferenced();
        Ok(())
    }

    /// Lists the keys of both families with their ids.
    ///
    /// A list that ends early would have the services beyond it taken for removed.
    fn installed_keys(&self) -> Result<Vec<(ServiceKey, u32)>, TableError> {
        let mut keys = Vec::new();
        for entry in self.services_v4.iter() {
            let (key, id) = entry.map_err(read_failed(map::SERVICES_V4))?;
            let (address, port, protocol) = key.parts();
            keys.extend(service_key(address.into(), port, protocol).zip(Some(id)));
        }
        for entry in self.services_v6.iter() {
            let (key, id) = entry.map_err(read_failed(map::SERVICES_V6))?;
            let (address, port, protocol) = key.parts();
            keys.extend(service_key(address.into(), port, protocol).zip(Some(id)));
        }
        Ok(keys)
    }

    /// Reads a service back, or nothing where the entries contradict each other.
    fn adopt_service(&mut self, key: &ServiceKey, id: u32) -> Option<InstalledService> {
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
        let owners: BTreeSet<u32> = self
            .run_slots(run)
            .map(Slot::current)
            .filter(|owner| *owner != 0)
            .collect();
        let backends = owners
            .into_iter()
            .filter(|owner| self.adopt_backend(*owner))
            .collect();
        let mode = ForwardMode::from_abi(entry.mode, entry.flags);
        Some(InstalledService {
            id,
            run,
            mode,
            backends,
            spec: None,
        })
    }

    /// Counts a service for a backend in the maps; returns whether there is such a backend.
    fn adopt_backend(&mut self, id: u32) -> bool {
        let Some(entry) = self.backends.read(id).filter(|entry| entry.flags != 0) else {
            return false;
        };
        let key = backend_key(&entry);
        if let Some(backend) = self.backend_by_key.get_mut(&key) {
            if backend.id == id {
                backend.services += 1;
            }
            return backend.id == id;
        }
        if !self.backend_ids.reserve(id) {
            return false;
        }
        match self.ways.get(&key.address) {
            // A change of the node's next hop may have been under way.
            Some(way) => self.store_backend_word(id, offset_of!(Backend, next_hop), way.next_hop),
            None if self.next_hop_ids.reserve(entry.next_hop) => {
                let way = Way {
                    next_hop: entry.next_hop,
                    resolution: None,
                };
                self.ways.insert(key.address, way);
            }
            None => {}
        }
        self.backend_by_key
            .insert(key, InstalledBackend { id, services: 1 });
        true
    }

    fn clear_unreferenced(&mut self) {
        for id in 1..self.service.length() {
            if self.service_ids.is_free(id) && self.service.read(id) != Some(Service::default()) {
                self.service.write(id, Service::default());
            }
        }
        for id in 1..self.backends.length() {
            if self.backend_ids.is_free(id) && self.backends.read(id) != Some(Backend::default()) {
                self.backends.write(id, Backend::default());
            }
        }
        for id in 1..self.next_hops.length() {
            if self.next_hop_ids.is_free(id) && self.next_hops.read(id) != Some(NextHop::default())
            {
                self.next_hops.write(id, NextHop::default());
            }
        }
    }
}
