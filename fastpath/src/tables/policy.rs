//! The entries under a service's id: this machine's pods that serve it, and the clients that may use it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use xdp_prog::abi::{Pod, PodKey, Tag};

use super::{
    ServiceKey, TableError, Tables,
    encode::{source_prefix_key, source_prefix_of},
    whole_edge::Hash,
};

/// This machine's pods of one service: from the pod's bits of the tag to the backend id.
pub(super) type Pods = BTreeMap<u16, u32>;

impl Tables {
    /// Adds the wanted pods that are missing; pods that are not wanted stay.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write; the pods are then as before.
    pub(super) fn add_pods(
        &mut self,
        service: u32,
        wanted: &Pods,
        present: &Pods,
    ) -> Result<(), TableError> {
        let new = |(tag, backend): &(&u16, &u32)| present.get(*tag) != Some(*backend);
        for (tag, backend) in wanted.iter().filter(new) {
            if let Err(error) = self.insert_pod(service, *tag, *backend) {
                self.restore_pods(service, wanted, present);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the pods that are no longer wanted.
    pub(super) fn remove_pods(&mut self, service: u32, wanted: &Pods, present: &Pods) {
        for tag in present.keys().filter(|tag| !wanted.contains_key(tag)) {
            // The entry may be gone already.
            let _ = self.pods.remove(&PodKey::new(service, Tag(*tag)));
        }
    }

    /// Undoes an attempt to add pods.
    fn restore_pods(&mut self, service: u32, wanted: &Pods, present: &Pods) {
        self.remove_pods(service, present, wanted);
        for (tag, backend) in present {
            // This replaces an entry with the same key, for which there is room.
            let _ = self.insert_pod(service, *tag, *backend);
        }
    }

    fn insert_pod(&mut self, service: u32, tag: u16, backend: u32) -> Result<(), TableError> {
        let key = PodKey::new(service, Tag(tag));
        self.pods.insert_new(key, Pod::new(key, backend))
    }

    /// Lists the pods of every service id; leaves out entries whose value belongs to another key.
    pub(super) fn pods_by_service(&self) -> Result<BTreeMap<u32, Pods>, TableError> {
        let mut pods: BTreeMap<u32, Pods> = BTreeMap::new();
        for (key, pod) in self.pods.entries()? {
            let (service, tag) = key.parts();
            if let Some(backend) = pod.backend(key) {
                pods.entry(service)
                    .or_default()
                    .insert(tag.pod_bits(), backend);
            }
        }
        Ok(pods)
    }

    /// Removes pods that belong to none of the services in the tables.
    pub(super) fn remove_stray_pods(&mut self) -> Result<(), TableError> {
        let known: BTreeMap<u32, &Pods> = self
            .contents
            .installed
            .values()
            .map(|service| (service.id, &service.pods))
            .collect();
        for key in self.pods.keys()? {
            let (service, tag) = key.parts();
            let is_known = known
                .get(&service)
                .is_some_and(|pods| pods.contains_key(&tag.pod_bits()));
            if !is_known {
                self.pods.remove(&key)?;
            }
        }
        Ok(())
    }

    /// Adds the wanted source ranges that are missing; ranges that are not wanted stay.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses a write; the ranges are then as before.
    pub(super) fn add_source_ranges(
        &mut self,
        service: u32,
        wanted: &BTreeSet<IpNet>,
        present: &BTreeSet<IpNet>,
    ) -> Result<(), TableError> {
        for range in wanted.difference(present) {
            let key = source_prefix_key(service, *range);
            if let Err(error) = self.source_ranges.insert_new(key, 1) {
                self.remove_source_ranges(service, wanted.difference(present));
                return Err(error);
            }
        }
        if !wanted.is_subset(present) {
            self.show_hash(Hash::SourceRanges);
        }
        Ok(())
    }

    /// Removes source ranges of a service.
    pub(super) fn remove_source_ranges<'r>(
        &mut self,
        service: u32,
        ranges: impl IntoIterator<Item = &'r IpNet>,
    ) {
        if self.clear_source_ranges(service, ranges) {
            self.show_hash(Hash::SourceRanges);
        }
    }

    /// Removes source ranges, which threads go on to see. Returns whether there were any to remove.
    pub(super) fn clear_source_ranges<'r>(
        &mut self,
        service: u32,
        ranges: impl IntoIterator<Item = &'r IpNet>,
    ) -> bool {
        let mut has_any = false;
        for range in ranges {
            has_any = true;
            // The entry may be gone already.
            let _ = self
                .source_ranges
                .remove(&source_prefix_key(service, *range));
        }
        has_any
    }

    /// Lists the source ranges of every service id.
    pub(super) fn source_ranges_by_service(
        &self,
    ) -> Result<BTreeMap<u32, BTreeSet<IpNet>>, TableError> {
        let mut ranges: BTreeMap<u32, BTreeSet<IpNet>> = BTreeMap::new();
        for key in self.source_ranges.keys()? {
            if let Some((service, range)) = source_prefix_of(key) {
                ranges.entry(service).or_default().insert(range);
            }
        }
        Ok(ranges)
    }
}

/// Returns the source ranges of a service's own family, without bits beyond their lengths.
pub(super) fn ranges_of(key: &ServiceKey, ranges: &BTreeSet<IpNet>) -> BTreeSet<IpNet> {
    ranges
        .iter()
        .filter(|range| range.addr().is_ipv4() == key.address.is_ipv4())
        .map(IpNet::trunc)
        .collect()
}
