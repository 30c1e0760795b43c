//! kube-proxy's rules: taken from a running kube-proxy that follows a real API server, as `nft` and `iptables-save`
//! print them.
//!
//! They are taken on one machine and loaded on another, because kube-proxy and its API server are too much for an
//! emulated one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use lab::{
    Machine, Process, Topology,
    kubernetes::{ControlPlane, ProxyMode, wait_until_programmed},
    output,
};

use super::{backends, service};
use crate::{
    control::writer,
    datapath::{
        frames::{Family, PORT, Protocol},
        tables::TARGET_PORT,
    },
    wire::kube_proxy::Service,
};

/// The kinds of files, by their ends.
pub(super) const NFT: &str = "nft";
pub(super) const IPTABLES_V4: &str = "iptables";
pub(super) const IPTABLES_V6: &str = "ip6tables";

/// Returns the file of a kind with the rules of so many Services.
pub(super) fn file(directory: &Path, protocol: Protocol, services: u32, kind: &str) -> PathBuf {
    directory.join(format!("{protocol}-{services}.{kind}"))
}

/// Returns the files with the rules of so many Services, of both modes.
fn files(directory: &Path, protocol: Protocol, services: u32) -> impl Iterator<Item = PathBuf> {
    let kinds = [NFT, IPTABLES_V4, IPTABLES_V6].into_iter();
    kinds.map(move |kind| file(directory, protocol, services, kind))
}

/// Writes the rules of so many Services of one protocol, of both modes, into a directory, unless they are there.
///
/// # Errors
///
/// When the caller is not root, a program is missing, or the cluster does not come up.
pub fn take(
    directory: &Path,
    protocol: Protocol,
    services: u32,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<()> {
    if files(directory, protocol, services).all(|file| file.exists()) {
        return Ok(());
    }
    let net = Topology::builder().edges(2).build()?;
    let cluster = ControlPlane::start()?;
    let gateway = writer::serve(&cluster)?;
    let write = |writer: &mut _, number| service_of(protocol, number).write(writer);
    let fill = || writer::write_all(services, progress, write);
    (cluster.machine().run(fill)).context("writing Services to the API server")?;
    drop(gateway);
    progress("starting kube-proxy");
    let modes = [ProxyMode::Nftables, ProxyMode::Iptables];
    let start = |(edge, mode): (&Machine, ProxyMode)| {
        cluster.connect(edge.namespace())?;
        cluster.add_node(edge)?;
        cluster.start_kube_proxy(edge.namespace(), edge.label(), mode)
    };
    let proxies = net.edges().iter().zip(modes).map(start);
    let proxies: Vec<Process> = proxies.collect::<lab::Result<_>>()?;
    for ((edge, mode), mut proxy) in net.edges().iter().zip(modes).zip(proxies) {
        let machine = edge.namespace();
        wait_until_programmed(machine, &mut proxy)?;
        let sources: &[(&str, &[&str], &str)] = match mode {
            ProxyMode::Nftables => &[("nft", &["list", "ruleset"], NFT)],
            ProxyMode::Iptables => &[
                ("iptables-save", &[], IPTABLES_V4),
                ("ip6tables-save", &[], IPTABLES_V6),
            ],
        };
        for (program, arguments, kind) in sources {
            let rules = output(machine.command(program).args(*arguments))?;
            let file = file(directory, protocol, services, kind);
            fs::write(&file, without_accounting(&rules))
                .with_context(|| format!("writing {}", file.display()))?;
        }
    }
    Ok(())
}

/// Leaves out the match that counts what a rule takes in an object of the kernel's (`nfacct`), which no rule makes.
/// kube-proxy has it behind the match of packets that conntrack calls invalid, and of which no trial has any.
fn without_accounting(rules: &str) -> String {
    const MATCH: &str = "-m nfacct --nfacct-name ";
    let without = |line: &str| match line.split_once(MATCH) {
        Some((before, after)) => {
            let (_, after) = after.trim_start().split_once(' ').unwrap_or_default();
            format!("{before}{after}\n")
        }
        None => format!("{line}\n"),
    };
    rules.lines().map(without).collect()
}

fn service_of(protocol: Protocol, number: u32) -> Service {
    let backends = |family: Family| (family.into(), backends(family).to_vec());
    Service {
        name: format!("bench-{number}"),
        vips: Family::ALL.map(|family| service(family, number)).to_vec(),
        protocols: vec![protocol],
        port: PORT,
        backends: Family::ALL.map(backends).to_vec(),
        target: TARGET_PORT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounting_is_left_out_of_its_rule_alone() {
        let rules = "*filter
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
";
        let expected = "*filter
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
";
        assert_eq!(without_accounting(rules), expected);
    }
}
