//! Questions to the kernel: one snapshot of devices and neighbours, then the route of any number of targets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::neighbour::Key;
use super::route::Route;
use super::view::{Answer, View};
use super::{NetlinkError, Reason, Resolution, link, neighbour, route};
use crate::facts::{self, KernelVersion};
use crate::netlink::Request;
use crate::netlink::connection::{Connection, RequestError};

/// A connection to the kernel, for the network namespace in which it was opened.
#[derive(Debug)]
pub struct Resolver {
    connection: Connection,
    carries: bool,
    /// Whether the kernel keeps neighbours resolved by itself.
    manages: bool,
}

impl Resolver {
    /// Opens the connection in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be opened.
    pub fn new() -> Result<Self, NetlinkError> {
        let connection = Connection::route().map_err(NetlinkError::Open)?;
        Ok(Self {
            connection,
            carries: false,
            manages: !facts::kernel().is_older(KernelVersion::MANAGED_NEIGHBOURS),
        })
    }

    /// Sets whether the agent sends what is for devices that take no frames from XDP. Returns whether that has changed.
    pub fn set_carrying(&mut self, carries: bool) -> bool {
        std::mem::replace(&mut self.carries, carries) != carries
    }

    /// Resolves one target. For many targets, [`Resolver::snapshot`] is cheaper.
    ///
    /// This changes nothing: only [`super::Tracker::refresh`] makes the kernel ask for an unresolved neighbour.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be asked or its answer is not understood.
    pub fn resolve(&mut self, target: IpAddr) -> Result<Resolution, NetlinkError> {
        self.snapshot()?.resolve(target)
    }

    /// Returns the index of the device to which the kernel routes a target; `None` for an address of this machine, or
    /// without a route.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be asked or its answer is not understood.
    pub fn device(&mut self, target: IpAddr) -> Result<Option<u32>, NetlinkError> {
        let route = lookup(&mut self.connection, target)?;
        let unicast = route
            .ok()
            .filter(|route| route.route_type == libc::RTN_UNICAST);
        Ok(unicast.map(|route| route.ifindex))
    }

    /// Lists devices and neighbours once, so that any number of targets can be resolved.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be asked or its answer is not understood.
    pub fn snapshot(&mut self) -> Result<Snapshot<'_>, NetlinkError> {
        let failed = |attempt| move |source| NetlinkError::Ask { attempt, source };
        let links = self.connection.list(&link::list(), link::decode);
        let links = links.map_err(failed("list the network devices"))?;
        let neighbours = self.connection.list(&neighbour::list(), neighbour::decode);
        let neighbours = neighbours.map_err(failed("list the neighbours"))?;
        let redirect_targets = if self.carries {
            let known = facts::redirect_targets();
            Some(known.map_err(failed("ask which devices take frames from XDP"))?)
        } else {
            None
        };
        let view = View {
            redirect_targets,
            links: links.into_iter().map(|link| (link.ifindex, link)).collect(),
            neighbours: neighbours.into_iter().collect(),
        };
        Ok(Snapshot {
            connection: &mut self.connection,
            manages: self.manages,
            view,
        })
    }
}

/// Asks for the route to a target. The inner error is the kernel's reason why there is none.
fn lookup(
    connection: &mut Connection,
    target: IpAddr,
) -> Result<Result<Route, Reason>, NetlinkError> {
    let mut found = None;
    let asked = connection.exchange(&route::lookup(target), |message| {
        found = route::decode(message)
    });
    if let Err(source) = asked {
        return match route::refusal(&source) {
            Some(reason) => Ok(Err(reason)),
            None => Err(NetlinkError::Route { target, source }),
        };
    }
    found.map(Ok).ok_or(NetlinkError::Route {
        target,
        source: RequestError::Malformed,
    })
}

/// Devices and neighbours at one moment. Routes are looked up when a target is resolved.
#[derive(Debug)]
pub struct Snapshot<'a> {
    connection: &'a mut Connection,
    manages: bool,
    pub(super) view: View,
}

impl Snapshot<'_> {
    /// Resolves one target.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be asked or its answer is not understood.
    pub fn resolve(&mut self, target: IpAddr) -> Result<Resolution, NetlinkError> {
        self.answer(target).map(|answer| answer.resolution)
    }

    /// Returns the index of the device by which frames to a target leave if that takes none from XDP, whether or not the
    /// neighbour is known; `None` also if nothing is carried.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be asked or its answer is not understood.
    pub fn carried_by(&mut self, target: IpAddr) -> Result<Option<u32>, NetlinkError> {
        let route = lookup(self.connection, target)?;
        Ok(route.ok().and_then(|route| self.view.carried_by(&route)))
    }

    /// Resolves one target and names the neighbour that the result depends on.
    pub(super) fn answer(&mut self, target: IpAddr) -> Result<Answer, NetlinkError> {
        Ok(match lookup(self.connection, target)? {
            Ok(route) => self.view.resolve(target, &route),
            Err(reason) => Answer::from(reason),
        })
    }

    /// Makes the kernel keep the wanted neighbours resolved, and release those that we no longer want.
    pub(super) fn keep(&mut self, wanted: &BTreeSet<Key>) -> Result<(), NetlinkError> {
        let upkeep = self.view.upkeep(wanted);
        let mut refused: Option<NetlinkError> = None;
        let kept = upkeep.keep.into_iter();
        let keep = if self.manages {
            neighbour::keep
        } else {
            neighbour::ask
        };
        let kept = kept.map(|key| (key, keep(key)));
        let released = upkeep.release.into_iter();
        let released = released.map(|key| (key, neighbour::release(key)));
        for (key, request) in kept.chain(released) {
            if let Err(source) = self.command(&request) {
                match &mut refused {
                    Some(NetlinkError::Keep { failed, .. }) => *failed += 1,
                    _ => {
                        refused = Some(NetlinkError::Keep {
                            address: key.address,
                            ifindex: key.ifindex,
                            failed: 1,
                            source,
                        });
                    }
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Sends a request that changes something. It is no failure if the device or entry has just gone: an event
    /// reports that.
    fn command(&mut self, request: &Request) -> Result<(), RequestError> {
        match self.connection.exchange(request, |_| {}) {
            Ok(_) => Ok(()),
            Err(error) => match error.errno() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENETDOWN) => Ok(()),
                _ => Err(error),
            },
        }
    }
}
