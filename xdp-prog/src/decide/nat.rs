//! NAT mode: DNAT and SNAT at the edge, and back.
//!
//! ```text
//! client:port -> VIP:80          NAT_FORWARD            edge:61234 -> backend:8080
//! client:port <- VIP:80          NAT_REVERSE            edge:61234 <- backend:8080
//! ```
//!
//! Every flow has an entry in both tables. The reverse entry reserves the source port: its key is the reply's tuple,
//! and it is inserted only if that key is absent. So two flows never share a port towards one backend, on whichever
//! CPUs their packets arrive. The reverse entry is added before the forward entry and removed after it.
//!
//! **Lifetime.** The mark of the forward entry alone tells whether a flow lives. Packets of both directions renew it,
//! but only once a second unless they bring news, so that most replies cost one look-up. A flow that was idle for too
//! long is never renewed. Its port is reused only [`GUARD_NS`] later, so a packet that has just found the flow loses
//! nothing.
//!
//! **Proof.** Anybody can send a SYN, and a live backend answers it. So a TCP flow is half-open until its client
//! acknowledges the exact sequence number of the SYN+ACK, which the reverse entry holds, or until the backend sends
//! its first data after the SYN+ACK. A flow of another protocol is half-open until its client sends again after an
//! answer. Of the other packets of a half-open TCP flow, only a SYN renews it. Neither a RST nor a SYN ends a flow:
//! the backend's next packets show whether it has accepted them. A client's RST counts only if its number is near the
//! one that the backend expects, which the reverse entry holds too. After a RST, or the FINs of both ends, the
//! backend may accept another connection. That connection is proved in the same way.
//!
//! **Under pressure.** All ports that are tried may be taken, or the service may have used its share of the table
//! ([`crate::abi::NatCount::leaves_room`], [`share`]). Then an old flow gives its port to the new one. The first
//! choice is the half-open flow that has been silent longest, for [`HANDSHAKE_NS`] at least if it is TCP. If few
//! half-open flows hold ports, an open flow may give way whose backend has been silent for [`QUIET_RESET_NS`] after a
//! RST, or for [`QUIET_DATAGRAMS_NS`] if it is UDP. Anybody can open a UDP flow by two datagrams that the backend
//! answers, so a UDP flow in use for less than [`SPAN_OF_USE_NS`] counts as half-open here. An open SCTP association
//! never gives way: only one port can be tried for it, and a single packet would take that port away.
//!
//! A flow that gives way is condemned first, by a compare-exchange of its mark, which fails if the mark is not the
//! one that was judged. So no packet renews a condemned flow, and a renewed flow is not removed. The backend may
//! still remember the old flow and answer the new SYN as part of it. The new client resets that answer (RFC 9293
//! section 3.5.1) and sends its SYN again.
//!
//! **Removal.** Entries are removed in pairs. The remover holds the flow's claim in `NAT_CLAIMS` and has judged the
//! flow again under the claim. It is the sweep of user space, a packet that takes a port because all were taken, or a
//! packet that begins its own old flow anew.
//!
//! **Fragments.** The first fragment is handled as any packet; the later ones follow by its ports. All keep their
//! identification. If two clients use the same identification at the same time, the backend may join their fragments,
//! as behind every NAT of this kind, and the checksums fail.

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
