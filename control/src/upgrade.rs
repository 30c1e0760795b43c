//! `guideway upgrade --check`: what becomes of the tables in the kernel when the agent of this program takes over.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use fastpath::load::{Fate, Takeover};
use fastpath::pins::Pins;
use serde::Serialize;
use xdp_prog::abi::{VERSION, map};

use crate::agent::start::loader;
use crate::config::{self, TableSizes};
use crate::render::{Page, Table};
use crate::{cli, commands};

/// What an upgrade does to the tables.
#[derive(Debug, Serialize)]
struct Upgrade {
    /// Layout version of the programs in force; `None` if there are none.
    from: Option<u32>,
    /// Layout version of this program.
    to: u32,
    /// Whether the connections that the programs in force know go on.
    connections_go_on: bool,
    tables: Vec<UpgradedTable>,
}

#[derive(Debug, Serialize)]
struct UpgradedTable {
    name: String,
    becomes: &'static str,
    /// What is lost; empty for nothing.
    lost: &'static str,
}

/// Prints what an upgrade to this program does to the tables in the kernel. The exit code is 1 if connections that they know
/// would end.
///
/// # Errors
///
/// When the configuration is wrong, a pin cannot be used, or the answer cannot be written.
pub fn upgrade(options: &cli::Upgrade) -> Result<ExitCode> {
    let (pin_dir, sizes) = match &options.config {
        Some(path) => {
            let config = config::load(path, config::Source::AsWritten)?;
            (config.pin_dir, config.tables)
        }
        None => (options.pin_dir.clone(), TableSizes::default()),
    };
    let takeover = loader(Pins::new(&pin_dir), &sizes).takeover();
    let takeover =
        takeover.with_context(|| format!("cannot judge the pins below {}", pin_dir.display()))?;
    let upgrade = Upgrade::of(&takeover);
    let answer = commands::written(&upgrade, options.format.output(), Upgrade::show)?;
    commands::print(&answer)?;
    Ok(match upgrade.connections_go_on {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Upgrade {
    fn of(takeover: &Takeover) -> Self {
        let replaced = || takeover.of(Fate::Replaced);
        let tables = takeover.maps.iter().map(|(name, fate)| UpgradedTable {
            name: name.clone(),
            becomes: match fate {
                Fate::Adopted => "adopted",
                Fate::Converted => "converted",
                Fate::Replaced => "made anew",
                Fate::New => "new",
            },
            lost: match fate {
                Fate::Replaced => loss(name).text(),
                Fate::Adopted | Fate::Converted | Fate::New => "",
            },
        });
        Self {
            from: takeover.layout,
            to: VERSION,
            connections_go_on: !replaced().any(|name| loss(name).ends_connections()),
            tables: tables.collect(),
        }
    }

    fn show(&self, page: &mut Page) {
        let Some(from) = self.from else {
            return page.line("No programs are in force: nothing is taken over.");
        };
        let mut table = Table::new(["TABLE", "BECOMES", "LOST"]);
        for one in &self.tables {
            table.row([&one.name, &one.becomes, &one.lost]);
        }
        page.line(&format!(
            "Layout {from} is in force, this program has layout {}.",
            self.to
        ));
        page.line("");
        page.table(&table, "");
        page.line("");
        page.line(match self.connections_go_on {
            true => "Connections go on.",
            false => "Connections end: see LOST.",
        });
    }
}

/// What goes with the contents of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The agent fills it from the configuration, or it holds for a moment.
    Nothing,
    Counters,
    PathMtus,
    Fragments,
    PodFlows,
    KernelFlows,
    NatFlows,
    PastOwners,
}

impl Loss {
    const fn text(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Counters => "counters begin at 0",
            Self::PathMtus => "MTUs of paths, until the next ICMP error",
            Self::Fragments => "datagrams whose fragments are under way",
            Self::PodFlows => "connections on which the pod speaks next",
            Self::KernelFlows => "connections of this machine's kernel from NodePorts",
            Self::NatFlows => "connections of mode nat",
            Self::PastOwners => "connections to pods whose slots have other owners by now",
        }
    }

    const fn ends_connections(self) -> bool {
        match self {
            Self::Nothing | Self::Counters | Self::PathMtus | Self::Fragments => false,
            Self::PodFlows | Self::KernelFlows | Self::NatFlows | Self::PastOwners => true,
        }
    }
}

fn loss(table: &str) -> Loss {
    match table {
        map::REASONS | map::FAILURES | map::SERVICE_TRAFFIC | map::BACKEND_TRAFFIC => {
            Loss::Counters
        }
        map::PATHS => Loss::PathMtus,
        map::FRAGMENTS => Loss::Fragments,
        map::FLOWS | map::FLOWS_DATAGRAM | map::FLOWS_EMBRYONIC => Loss::PodFlows,
        map::LOCAL_FLOWS | map::LOCAL_PORTS => Loss::KernelFlows,
        map::NAT_FORWARD | map::NAT_REVERSE => Loss::NatFlows,
        map::PASTS | map::HISTORY | map::PINS | map::PINS_YOUNG => Loss::PastOwners,
        _ => Loss::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrade_of(fates: &[(&str, Fate)]) -> Upgrade {
        let maps = fates.iter().map(|(map, fate)| ((*map).to_owned(), *fate));
        Upgrade::of(&Takeover::new(Some(VERSION - 1), maps.collect()))
    }

    #[test]
    fn only_what_programs_remember_of_connections_ends_them() {
        let kept = [
            (map::REASONS, Fate::Replaced),
            (map::LUT, Fate::Replaced),
            (map::FLOWS, Fate::Adopted),
            (map::NAT_REVERSE, Fate::Converted),
            (map::HISTORY, Fate::New),
        ];
        let upgrade = upgrade_of(&kept);
        assert!(upgrade.connections_go_on);
        let lost: Vec<_> = upgrade.tables.iter().map(|table| table.lost).collect();
        // In the order of the names.
        assert_eq!(lost, ["", "", "", "", "counters begin at 0"]);
        for map in [map::FLOWS, map::NAT_FORWARD, map::LOCAL_FLOWS, map::PINS] {
            let upgrade = upgrade_of(&[(map, Fate::Replaced)]);
            assert!(!upgrade.connections_go_on, "{map}");
            assert_ne!(upgrade.tables[0].lost, "", "{map}");
        }
    }

    #[test]
    fn page_tells_of_each_table_and_of_no_programs() {
        let mut page = Page::new(Page::ENDLESS);
        upgrade_of(&[(map::REASONS, Fate::Replaced), (map::FLOWS, Fate::Adopted)]).show(&mut page);
        let expected = format!(
            "Layout {} is in force, this program has layout {VERSION}.\n\n\
             TABLE    BECOMES    LOST\n\
             FLOWS    adopted\n\
             REASONS  made anew  counters begin at 0\n\n\
             Connections go on.\n",
            VERSION - 1
        );
        assert_eq!(page.into_text(), expected);
        let mut page = Page::new(Page::ENDLESS);
        Upgrade::of(&Takeover::default()).show(&mut page);
        assert!(page.into_text().starts_with("No programs are in force"));
    }
}
