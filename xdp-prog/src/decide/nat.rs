//! NAT mode: DNAT and SNAT at the edge, and back.
//!
//! ```text
//! client:port -> VIP:80          NAT_FORWARD            edge:61234 -> backend:8080
//! client:port <- VIP:80          NAT_REVERSE            edge:61234 <- backend:8080
//! ```
//!
//! A flow has an entry in each table. `NAT_REVERSE` is what reserves the
//! source port: its key is what the reply looks like, and it is inserted only
//! where no such key is there, so two flows never share a port towards one
//! backend, whatever CPUs they come in on. It is there before the forward entry
//! and goes after it.
//!
//! **Whether a flow lives** is told by the mark of its forward entry alone. Packets
//! of both directions renew it, at most once a second unless they tell something new,
//! so that a reply costs one look-up. A flow that was idle for too long is never renewed, and its
//! port is given out again only [`GUARD_NS`] later: whoever removes it need not
//! fear a packet that has just found it.
//!
//! **What is proved.** Anybody can send a SYN, and a backend that lives answers it. So a TCP flow is half-open until its
//! client acknowledges the very sequence number of the SYN+ACK, which lies in the reverse entry, or the backend sends
//! the first data after it; others until the client goes on after an answer. What a half-open flow's packets say
//! otherwise renews nothing, but a SYN. Nor does a RST or a SYN end anything: the backend shows whether it heeds them by
//! what it sends next. A client's RST counts only with a number that the backend may wait for, which lies in the reverse
//! entry too. Where the backend accepts another connection after a RST or the FINs of both ends, that one is proved in the
//! same way.
//!
//! **Under pressure**, where the ports that are tried are all taken, or the service has its share of the table
//! ([`crate::abi::NatCount::leaves_room`], [`share`]), a flow gives its port to the new one: the half-open one that is silent for
//! longest, which is the oldest, after [`HANDSHAKE_NS`]. Unless it is half-open flows that take the ports, an open one
//! does of which the backend has said nothing for long: for [`QUIET_RESET_NS`] after a RST, or of UDP for
//! [`QUIET_DATAGRAMS_NS`]. Anybody can open a flow of UDP by two datagrams that the backend answers, so one in use for
//! less than [`SPAN_OF_USE_NS`] counts as half-open here; an association of SCTP has only one port to be tried, which a
//! single packet would take from it, so none gives way. A flow is condemned first, by an exchange of its
//! mark that fails if the mark is not what was judged: so no packet renews a flow that goes, and none goes that was renewed.
//! The backend may remember it still. Then it answers the new SYN for the old flow, at which the new client resets it
//! (RFC 9293 section 3.5.1) and sends its SYN again.
//!
//! **Removal.** Entries go in pairs, by whoever holds the flow's claim in
//! `NAT_CLAIMS` and has looked again under it: the sweep of user space, a packet
//! that found every port taken and takes one of them, or one that begins its own
//! old flow anew.
//!
//! **Fragments.** The first one goes the way of any packet, the later ones follow by its ports. All keep their
//! identification: two clients whose datagrams have the same one at the same time meet in the backend, as behind
//! every NAT of this kind, and the checksums tell.

mod arrived;
pub mod begin;
mod follow;
pub mod fragment;
pub mod icmp;
mod lifetime;
pub mod proof;
pub mod share;
pub mod to_backend;
pub mod to_client;

pub use self::lifetime::{
    ANSWER_NS, Fate, GUARD_NS, HANDSHAKE_NS, IDLE_CLOSED_NS, IDLE_HALF_OPEN_NS,
    IDLE_HALF_OPEN_TCP_NS, QUIET_DATAGRAMS_NS, QUIET_RESET_NS, SPAN_OF_USE_NS, fate, idle_limit,
    may_be_over_after,
};
