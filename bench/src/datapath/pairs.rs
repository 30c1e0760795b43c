//! The veth pairs of a bench.

use std::collections::BTreeMap;

use anyhow::Result;
use lab::{Namespace, Veth};

/// A veth pair with the sink at the near end and a program under test at the far one.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) near: u32,
    pub(super) far: u32,
    pub(super) far_name: String,
}

/// MTU of pairs through which no full packet goes.
pub(super) const MTU: u32 = 1500;

/// Creates a veth pair for each name, with this MTU. Must be called outside the namespace.
pub(super) fn create<N: Ord>(
    namespace: &Namespace,
    names: impl IntoIterator<Item = N>,
    mtu: u32,
) -> Result<BTreeMap<N, Pair>> {
    // The kernel's own IPv6 packets would be counted with ours.
    for scope in ["all", "default"] {
        namespace.set_sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
    }
    let mut pairs = BTreeMap::new();
    for (index, name) in names.into_iter().enumerate() {
        let (near, far) = (format!("near{index}"), format!("far{index}"));
        let pair = Veth::between((namespace, &near), (namespace, &far)).mtu(mtu);
        let (near, far) = pair.create()?;
        let pair = Pair {
            near: near.index(),
            far: far.index(),
            far_name: far.name().to_owned(),
        };
        pairs.insert(name, pair);
    }
    Ok(pairs)
}
