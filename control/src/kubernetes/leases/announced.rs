//! The Lease by which an edge tells the controller what it announces.
//!
//! It is not the Lease of the election. That one is renewed, and read by every edge, more than once a second.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::format::{LeaseContent, held, listed_in};
use super::renewal::write;
use crate::healthz::AnnouncedServices;
use crate::kubernetes::request_errors::{Purpose, RequestErrors};
use crate::kubernetes::schema::Lease;

/// Value of the label of these Leases.
pub(crate) const LABEL_VALUE: &str = "announced";
/// Prefix of their names, before the edge's name. The chart's admission policy uses it too.
pub(crate) const PREFIX: &str = "guideway-announced-";
/// Time without a renewal after which what an edge told no longer counts.
pub(crate) const DURATION: Duration = Duration::from_secs(30);
/// Time between two renewals while nothing changes.
const RENEWAL_PERIOD: Duration = Duration::from_secs(10);
/// Pause after each write, in which changes gather.
const PACE: Duration = Duration::from_secs(1);
/// Annotation with the addresses, separated by commas.
const ADDRESSES: &str = "guideway.dev/announced";
/// Most addresses in one Lease. All annotations of an object together may have 256 KiB.
const MOST: usize = 5_000;
/// Stands behind the addresses if there are more.
const MORE: &str = "more";

/// What an edge tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedBy {
    pub(crate) edge: String,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Whether it announces more addresses than these.
    pub(crate) has_more: bool,
}

/// Reads what an edge tells. Returns `None` if the Lease's name does not match its holder, as no edge writes it.
pub(crate) fn read(lease: &Lease) -> Option<AnnouncedBy> {
    let edge = lease.spec.as_ref()?.holder_identity.clone()?;
    if lease.metadata.name.as_deref()?.strip_prefix(PREFIX)? != edge {
        return None;
    }
    let listed = lease.annotations().get(ADDRESSES);
    Some(AnnouncedBy {
        edge,
        addresses: listed_in(lease, ADDRESSES),
        has_more: listed.is_some_and(|listed| listed.ends_with(MORE)),
    })
}

/// Tells what this edge announces, as soon as it announces something or takes part in the election.
pub(super) async fn tell(
    leases: Api<Lease>,
    edge: String,
    mut taking_part: watch::Receiver<Option<LeaseContent>>,
    mut services: watch::Receiver<AnnouncedServices>,
    request_errors: RequestErrors,
) {
    let has_begun = async {
        let _ = services.wait_for(|services| !services.is_empty()).await;
    };
    let takes_part = async {
        let _ = taking_part.wait_for(Option::is_some).await;
    };
    tokio::select! {
        () = has_begun => {}
        () = takes_part => {}
    }
    loop {
        let owner = taking_part
            .borrow()
            .as_ref()
            .and_then(|said| said.owner.clone());
        let addresses: BTreeSet<IpAddr> = {
            let services = services.borrow_and_update();
            services.values().flatten().copied().collect()
        };
        let lease = lease(&edge, &addresses, Timestamp::now());
        let outcome = write(&leases, lease, owner).await;
        request_errors.take(Purpose::Announced, outcome);
        sleep(PACE).await;
        if let Ok(Err(_)) = timeout(RENEWAL_PERIOD, services.changed()).await {
            // The agent is ending.
            return;
        }
    }
}

fn lease(edge: &str, addresses: &BTreeSet<IpAddr>, now: Timestamp) -> Lease {
    let listed = addresses.iter().take(MOST).map(IpAddr::to_string);
    let more = (addresses.len() > MOST).then(|| MORE.to_owned());
    let listed: Vec<String> = listed.chain(more).collect();
    held(
        edge,
        (format!("{PREFIX}{edge}"), LABEL_VALUE),
        &[(ADDRESSES, listed.join(","))],
        (now, DURATION),
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// Room for all annotations of an object.
    const ROOM: usize = 256 << 10;

    #[test]
    fn lease_reads_back_as_what_the_edge_told() {
        for number in [0, 3, MOST, MOST + 1] {
            let number = u128::try_from(number).unwrap();
            // The longest texts that addresses have.
            let addresses = (0..number).map(|one| Ipv6Addr::from(u128::MAX - one).into());
            let addresses: BTreeSet<IpAddr> = addresses.collect();
            let written = lease("n1", &addresses, Timestamp::UNIX_EPOCH);
            assert!(written.annotations()[ADDRESSES].len() < ROOM);
            let told = read(&written).unwrap();
            assert_eq!(told.edge, "n1");
            assert_eq!(told.has_more, addresses.len() > MOST);
            assert_eq!(told.addresses.len(), addresses.len().min(MOST));
            assert!(told.addresses.is_subset(&addresses));
        }
    }

    #[test]
    fn lease_that_speaks_for_another_edge_is_not_read() {
        let mut forged = lease("n1", &BTreeSet::new(), Timestamp::UNIX_EPOCH);
        forged.metadata.name = Some(format!("{PREFIX}n2"));
        assert_eq!(read(&forged), None);
    }
}
