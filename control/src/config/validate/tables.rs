//! The rules for the sizes of the kernel's tables, and for what must fit into them.

use std::collections::{BTreeMap, BTreeSet};

use fastpath::tables::OwnedBackend;
use ipnet::IpNet;
use xdp_prog::maglev::MAX_LOG2_LEN;

use super::super::TableSizes;
use super::values::{number, refusal};
use super::{Rules, position, raw};
use crate::desired::{Service, ServiceKey};

/// Largest arena: 2^28 slots, which is as many as a service entry can address.
const MAX_ARENA_MIB: u32 = 1_024;
/// 2^18 slots of 4 bytes are one MiB.
const SLOTS_PER_MIB_LOG2: u32 = 18;

impl Rules {
    pub(super) fn tables(&mut self, tables: Option<&raw::Tables>) -> TableSizes {
        const MANY: u32 = 1 << 20;
        const MOST: u32 = 1 << 24;
        let mut sizes = TableSizes::default();
        let Some(tables) = tables else {
            return sizes;
        };
        let mut arena_mib = sizes.lut_slots >> SLOTS_PER_MIB_LOG2;
        let edges = &mut sizes.trusted_edges;
        let ranges = &mut sizes.source_ranges;
        for (name, text, largest, size) in [
            (
                "lut_arena_mib",
                &tables.lut_arena_mib,
                MAX_ARENA_MIB,
                &mut arena_mib,
            ),
            ("services", &tables.services, MANY, &mut sizes.services),
            ("backends", &tables.backends, MOST, &mut sizes.backends),
            ("next_hops", &tables.next_hops, MANY, &mut sizes.next_hops),
            ("vips", &tables.vips, MANY, &mut sizes.vips),
            ("trusted_edges", &tables.trusted_edges, MANY, edges),
            ("pods", &tables.pods, MANY, &mut sizes.pods),
            ("source_ranges", &tables.source_ranges, MANY, ranges),
            ("flows", &tables.flows, MOST, &mut sizes.flows),
            ("nat_flows", &tables.nat_flows, MOST, &mut sizes.nat_flows),
        ] {
            let remedy = format!("give a number from 1 to {largest}");
            let read = |text: &str| number(text, &(1..=largest), "not a table size", remedy);
            *size = self
                .read(&format!("tables.{name}"), text, read)
                .unwrap_or(*size);
        }
        sizes.lut_slots = arena_mib << SLOTS_PER_MIB_LOG2;
        sizes
    }

    /// Rejects a file with more entries than the tables hold.
    pub(super) fn tables_fit(
        &mut self,
        file: &raw::File,
        services: &BTreeMap<ServiceKey, Service>,
        trusted_edges: &BTreeSet<IpNet>,
        sizes: TableSizes,
    ) {
        self.arena_fits(file, services, sizes.lut_slots);
        let backends = services.values().flat_map(|service| {
            let spec = &service.spec;
            spec.backends.iter().map(|backend| OwnedBackend {
                key: backend.key(spec.mode),
                owner: spec.owner,
            })
        });
        let backends = backends.collect::<BTreeSet<_>>().len();
        let vips = self.origins.vips.len();
        let at_services = file.services.as_ref().map(position);
        let at_vips = file.vips.as_ref().map(position);
        let at_edges = file.trusted_edges.as_ref().map(position);
        for (table, entries, room, at) in [
            ("services", services.len(), sizes.services, at_services),
            ("backends", backends, sizes.backends, at_services),
            ("vips", vips, sizes.vips, at_vips),
            (
                "trusted_edges",
                trusted_edges.len(),
                sizes.trusted_edges,
                at_edges,
            ),
        ] {
            if u32::try_from(entries).is_ok_and(|entries| entries <= room) {
                continue;
            }
            let reason = format!("{entries} entries do not fit a table with room for {room}");
            let field = format!("tables.{table}");
            let remedy = format!("raise {field}");
            self.report(at, &field, &room.to_string(), refusal(reason, remedy));
        }
    }

    /// Rejects a file whose lookup tables do not fit into the arena.
    fn arena_fits(
        &mut self,
        file: &raw::File,
        services: &BTreeMap<ServiceKey, Service>,
        slots: u32,
    ) {
        let tables = services.values().map(|service| {
            let log2 = service.spec.log2_slots_for(service.spec.sharing().count());
            1_u64 << log2.unwrap_or(MAX_LOG2_LEN)
        });
        // One slot more: slot 0 is never used.
        let needed = tables.sum::<u64>() + 1;
        if needed <= slots.into() {
            return;
        }
        let mib = needed.div_ceil(1 << SLOTS_PER_MIB_LOG2);
        let reason = format!("the lookup tables need {needed} slots, the arena has {slots}");
        let remedy =
            format!("raise tables.lut_arena_mib to {mib} or more, or ask for smaller tables");
        self.report(
            file.services.as_ref().map(position),
            "tables.lut_arena_mib",
            &(slots >> SLOTS_PER_MIB_LOG2).to_string(),
            refusal(reason, remedy),
        );
    }
}
