//! Flows to pods, and datagrams that arrive in fragments.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::check::{CHECK_MULTIPLIER, mix};
use super::{AddressKey, age, plain_data};
use crate::words::{join_u16, join_u32, split_u32, split_u64};

plain_data! {
    Tuple: 40,
    PodFlow: 40,
    Datagram: 16,
}

/// A five-tuple of either family, in wire order: source and destination (16 bytes each, as [`AddressKey`]), their
/// ports, the protocol, three zeros.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Tuple([u64; 5]);

impl Tuple {
    /// Builds the key.
    #[inline(always)]
    pub const fn new(
        source: AddressKey,
        destination: AddressKey,
        source_port: [u8; 2],
        destination_port: [u8; 2],
        protocol: u8,
    ) -> Self {
        let [a, b] = source.words();
        let [c, d] = destination.words();
        let ports = join_u16(source_port, destination_port);
        let protocol = u32::from_ne_bytes([protocol, 0, 0, 0]);
        Self([a, b, c, d, join_u32(ports, protocol)])
    }

    /// Builds the key that the fragments of one datagram share. The identification takes the place of the ports; that
    /// of IPv4 is in the last two bytes (RFC 791 section 3.2, RFC 8200 section 4.5).
    #[inline(always)]
    pub const fn fragments(
        source: AddressKey,
        destination: AddressKey,
        identification: [u8; 4],
        protocol: u8,
    ) -> Self {
        let [a, b, c, d] = identification;
        Self::new(source, destination, [a, b], [c, d], protocol)
    }

    /// Returns the source address.
    #[inline(always)]
    pub const fn source(&self) -> AddressKey {
        let [a, b, ..] = self.0;
        AddressKey([a, b])
    }

    /// Returns the destination address.
    #[inline(always)]
    pub const fn destination(&self) -> AddressKey {
        let [_, _, c, d, _] = self.0;
        AddressKey([c, d])
    }

    /// Returns the source port, in wire order.
    #[inline(always)]
    pub const fn source_port(&self) -> [u8; 2] {
        split_u32(self.ports())[0]
    }

    /// Returns the destination port, in wire order.
    #[inline(always)]
    pub const fn destination_port(&self) -> [u8; 2] {
        split_u32(self.ports())[1]
    }

    /// Returns both ports in wire order, the source's first.
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        split_u64(self.0[4])[0]
    }

    /// Returns the protocol.
    #[inline(always)]
    pub const fn protocol(&self) -> u8 {
        self.0[4].to_ne_bytes()[4]
    }

    /// Compares two keys as words: the BPF target has no `memcmp`.
    #[inline(always)]
    pub const fn is(&self, other: &Self) -> bool {
        let [a, b, c, d, e] = self.0;
        let [f, g, h, i, j] = other.0;
        (a ^ f) | (b ^ g) | (c ^ h) | (d ^ i) | (e ^ j) == 0
    }

    /// Returns a check that a value carries, so that it is not taken for the value of another key.
    #[inline(always)]
    pub const fn check(&self) -> u32 {
        let [a, b, c, d, rest] = self.0;
        (mix(mix(mix(mix(mix(a) ^ b) ^ c) ^ d) ^ rest) >> 32) as u32
    }

    /// Returns a hash that nobody can predict without the seed.
    #[inline(always)]
    pub const fn hash(&self, seed: u64) -> u32 {
        let [a, b, c, d, rest] = self.0;
        (mix(mix(mix(mix(mix(seed ^ a) ^ b) ^ c) ^ d) ^ rest) >> 32) as u32
    }

    /// Returns the three bytes behind the protocol; they are not part of the key.
    #[inline(always)]
    pub(super) const fn spare(&self) -> [u8; 3] {
        let [.., a, b, c] = self.0[4].to_ne_bytes();
        [a, b, c]
    }

    /// Returns the key with other bytes behind the protocol, which are zero in every key.
    #[inline(always)]
    pub(super) const fn with_spare(&self, [a, b, c]: [u8; 3]) -> Self {
        const SPARE: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0, 0xff, 0xff, 0xff]);
        let [d, e, f, g, rest] = self.0;
        let spare = u64::from_ne_bytes([0, 0, 0, 0, 0, a, b, c]);
        Self([d, e, f, g, rest & !SPARE | spare])
    }

    /// Returns a word that depends on all of the key.
    #[inline(always)]
    pub(super) const fn folded(&self) -> u64 {
        self.folded_addresses() ^ self.0[4]
    }

    /// Returns the key's place in an array of `places` entries, a power of two.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "arrays are smaller")]
    pub(super) const fn place(&self, places: usize) -> u32 {
        // The addresses are mixed by themselves first. Otherwise their last bytes and the ports of many flows would
        // cancel each other out.
        let mixed = (mix(self.folded_addresses()) ^ self.0[4]).wrapping_mul(CHECK_MULTIPLIER);
        (mixed >> (64 - places.trailing_zeros())) as u32
    }

    #[inline(always)]
    const fn folded_addresses(&self) -> u64 {
        let [a, b, c, d, _] = self.0;
        a ^ b.rotate_left(7) ^ c.rotate_left(17) ^ d.rotate_left(29)
    }

    /// Returns source, destination, source port and destination port (host order), protocol.
    pub const fn parts(self) -> (AddressKey, AddressKey, u16, u16, u8) {
        let [a, b, c, d, rest] = self.0;
        let [e, f, g, h, protocol, ..] = rest.to_ne_bytes();
        (
            AddressKey([a, b]),
            AddressKey([c, d]),
            u16::from_be_bytes([e, f]),
            u16::from_be_bytes([g, h]),
            protocol,
        )
    }
}

/// A node's memory of a flow to one of its pods: how to translate the replies.
///
/// If the pod sees another port than the client's, the flow has a second entry ([`Self::forward`]). Its key is the
/// tuple as the client sends it, and it names the pod and that port.
///
/// A flow has three addresses. The key has two of them, and the entry has the third:
///
/// ```text
/// key                             third address
/// client           -> pod         the address that the client talks to
/// that address     -> pod         client          FLOW_HAIRPIN: the pod does not see the client
/// client  -> that address         pod             FLOW_FORWARD
/// ```
///
/// The check comes first. The kernel copies a value from its start and readers look at the check last, so they notice
/// an element that was recycled while they read it. The entry is made of whole words, as all values are that the
/// programs build on their stack.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PodFlow {
    /// Check of the key (4 bytes), the client's own port (2, wire order), two zeros.
    head: u64,
    /// The address of the flow that its key does not have.
    pub third_address: AddressKey,
    /// As below: the layout by which the tests prove that flows outlive a change of their layout.
    #[cfg(feature = "test-layout")]
    pub packed: u64,
    /// When its last packet was seen, on the monotonic clock in ns; up to [`RENEWAL_NS`] too early.
    pub seen: u64,
    /// One word, which is replaced as a whole: port (2 bytes, wire order), length of the outer header (1), state (1),
    /// and for TCP a number (4). Of a flow that is not proved yet, it is that of [`crate::decide::node::unproved`]; of
    /// another one, it is what [`Self::note_socket`] has noted, or 0.
    #[cfg(not(feature = "test-layout"))]
    pub packed: u64,
}

impl PodFlow {
    /// Makes the entry of a flow whose client talks to `port` and whose packets have an outer header of `outer`
    /// bytes, 0 for none. The pod sees the client's own port.
    #[inline(always)]
    pub const fn new(
        key: &Tuple,
        third_address: AddressKey,
        port: [u8; 2],
        outer: u8,
        state: u8,
        seen: u64,
    ) -> Self {
        Self {
            head: Self::head(key, key.source_port()),
            third_address,
            seen,
            packed: join_u32(join_u16(port, [outer, state]), 0),
        }
    }

    /// Makes the second entry of a flow that its client sends as `key`: the pod sees it come from `port`.
    #[inline(always)]
    pub const fn forward(key: &Tuple, pod: AddressKey, port: [u8; 2], seen: u64) -> Self {
        Self::new(key, pod, port, 0, FLOW_FORWARD, seen)
    }

    /// Returns the entry with this port as the client's own.
    #[inline(always)]
    #[must_use]
    pub const fn with_client_port(self, key: &Tuple, port: [u8; 2]) -> Self {
        Self {
            head: Self::head(key, port),
            ..self
        }
    }

    #[inline(always)]
    const fn head(key: &Tuple, port: [u8; 2]) -> u64 {
        join_u32(key.check(), join_u16(port, [0; 2]))
    }

    /// Tells whether the entry belongs to this key.
    #[inline(always)]
    pub const fn is_for(&self, key: &Tuple) -> bool {
        split_u64(self.head)[0] == key.check()
    }

    /// Returns the client's own port, in wire order.
    #[inline(always)]
    pub const fn client_port(&self) -> [u8; 2] {
        split_u32(split_u64(self.head)[1])[0]
    }

    /// Tells whether the pod sees another port than the client's in the flow with this key.
    #[inline(always)]
    pub const fn has_other_port(&self, key: &Tuple) -> bool {
        u16::from_ne_bytes(self.client_port()) != u16::from_ne_bytes(key.source_port())
    }

    /// Returns the address that the client talks to; not for an entry of [`Self::forward`].
    #[inline(always)]
    pub const fn service_address(&self, key: &Tuple) -> AddressKey {
        if self.is_hairpin() {
            key.source()
        } else {
            self.third_address
        }
    }

    /// Returns the client's address; not for an entry of [`Self::forward`].
    #[inline(always)]
    pub const fn client(&self, key: &Tuple) -> AddressKey {
        if self.is_hairpin() {
            self.third_address
        } else {
            key.source()
        }
    }

    /// Returns the tuple of the client's packets as they come in.
    #[inline(always)]
    pub const fn forward_key(&self, key: &Tuple) -> Tuple {
        Tuple::new(
            self.client(key),
            self.service_address(key),
            self.client_port(),
            self.port(),
            key.protocol(),
        )
    }

    /// Returns the port that the client talks to, in wire order. In an entry of [`Self::forward`] it is the client's
    /// port as the pod sees it.
    #[inline(always)]
    pub const fn port(&self) -> [u8; 2] {
        split_u32(split_u64(self.packed)[0])[0]
    }

    /// Returns the length in bytes of the outer header on the client's packets; 0 for none.
    #[inline(always)]
    pub const fn outer(&self) -> u8 {
        self.packed.to_ne_bytes()[2]
    }

    /// Returns the state: [`FLOW_FIN_CLIENT`] and the other flags.
    #[inline(always)]
    pub const fn state(&self) -> u8 {
        self.packed.to_ne_bytes()[3]
    }

    /// Tells whether the pod sees the address that the client talks to as its client.
    #[inline(always)]
    pub const fn is_hairpin(&self) -> bool {
        self.state() & FLOW_HAIRPIN != 0
    }

    /// Tells whether this is a flow's second entry.
    #[inline(always)]
    pub const fn is_forward(&self) -> bool {
        self.state() & FLOW_FORWARD != 0
    }

    /// Renews the flow by one of its packets. It stores only news, or a time that has become old, because packets of
    /// the other direction read the same cache line on other CPUs.
    #[inline(always)]
    pub const fn renew(&mut self, state: u8, now: u64) {
        let is_news = state & !self.state() != 0;
        if is_news || age(self.seen, now) >= RENEWAL_NS {
            self.seen = now;
        }
        if is_news {
            self.add_state(state);
        }
    }

    /// Begins the flow anew by a SYN of its client and forgets the end of the port's last use. The flag of the pod's
    /// SYN+ACK stays, because the SYN may be forged.
    #[inline(always)]
    pub const fn begin_anew(&mut self, outer: u8, now: u64) {
        let [a, b, _, state, c, d, e, f] = self.packed.to_ne_bytes();
        let state = state & (FLOW_HAIRPIN | FLOW_UNPROVED);
        self.packed = u64::from_ne_bytes([a, b, outer, state, c, d, e, f]);
        self.seen = now;
    }

    /// Adds flags to the state.
    #[inline(always)]
    pub const fn add_state(&mut self, state: u8) {
        self.packed |= u64::from_ne_bytes([0, 0, 0, state, 0, 0, 0, 0]);
    }

    /// Returns the number; its meaning depends on the table.
    #[inline(always)]
    pub const fn number(&self) -> u32 {
        split_u64(self.packed)[1]
    }

    /// Notes a number, and the flag that tells its meaning, or no flag.
    #[inline(always)]
    pub const fn set_number(&mut self, number: u32, flag: u8) {
        const STATE: u32 = u32::from_ne_bytes([0, 0, 0, FLOW_UNPROVED]);
        let flag = u32::from_ne_bytes([0, 0, 0, flag]);
        let first = split_u64(self.packed)[0] & !STATE | flag;
        self.packed = join_u32(first, number);
    }

    /// Tells whether the pod's kernel has had a socket for the connection; not for a flow that is not proved.
    #[inline(always)]
    pub const fn has_had_socket(&self) -> bool {
        self.number() == SOCKET_SEEN
    }

    /// Notes whether the pod's kernel had a socket with this key, unless that is noted already: one that comes after none is
    /// of somebody else. Not for a flow that is not proved.
    ///
    /// Stage `pod_flow` notes either answer when the client proves its address. Stage `ask` notes an open socket only, because
    /// one that is missing may have been there before.
    #[inline(always)]
    pub const fn note_socket(&mut self, is_there: bool) {
        if self.number() == 0 {
            let number = if is_there { SOCKET_SEEN } else { SOCKET_MISSED };
            self.packed = join_u32(split_u64(self.packed)[0], number);
        }
    }

    /// Forgets what [`Self::note_socket`] has noted: the pod has accepted another connection, whose socket may be elsewhere.
    /// Not for a flow that is not proved.
    #[inline(always)]
    pub const fn forget_socket(&mut self) {
        self.packed = join_u32(split_u64(self.packed)[0], 0);
    }

    /// Returns the entry of a flow whose client has proved its address.
    #[inline(always)]
    #[must_use]
    pub const fn established(self, now: u64) -> Self {
        let mut flow = Self { seen: now, ..self };
        flow.set_number(0, 0);
        flow
    }

    /// Tells whether this entry has this third address and these ports: the client's, and the one that the client
    /// talks to. `hairpin` is [`FLOW_HAIRPIN`] or 0.
    #[inline(always)]
    pub const fn is_between(
        &self,
        client: [u8; 2],
        third_address: AddressKey,
        port: [u8; 2],
        hairpin: u8,
    ) -> bool {
        const KIND: u8 = FLOW_FORWARD | FLOW_HAIRPIN;
        let [a, b] = self.third_address.words();
        let [c, d] = third_address.words();
        const ENDS: u32 = join_u16([0xff; 2], [0, KIND]);
        const PORT: u32 = join_u16([0xff; 2], [0; 2]);
        let ends = split_u64(self.packed)[0] ^ join_u16(port, [0, hairpin]);
        let client = split_u64(self.head)[1] ^ join_u16(client, [0; 2]);
        (a ^ c) | (b ^ d) | ((ends & ENDS) | (client & PORT)) as u64 == 0
    }
}

/// How old the time in a flow's entry may become before a packet renews it, in ns: in `FLOWS` and in NAT mode.
pub const RENEWAL_NS: u64 = 1_000_000_000;

/// State of a [`PodFlow`]: the client has sent a FIN.
pub const FLOW_FIN_CLIENT: u8 = 1;
/// State of a [`PodFlow`]: the pod has sent a FIN.
pub const FLOW_FIN_POD: u8 = 2;
/// State of a [`PodFlow`]: the pod has sent a RST. A client's RST does not count, because anybody can forge one.
pub const FLOW_RESET: u8 = 4;
/// State of a [`PodFlow`]: the pod sees the address that the client talks to as its client.
pub const FLOW_HAIRPIN: u8 = 8;
/// State of a [`PodFlow`]: the number is the sequence number of the pod's SYN+ACK, which nobody has acknowledged yet.
pub const FLOW_ACCEPTED: u8 = 16;
/// State of a [`PodFlow`]: this is a flow's second entry, made by [`PodFlow::forward`].
pub const FLOW_FORWARD: u8 = 32;
/// State of a [`PodFlow`]: the pod has not accepted the client's last SYN. The number is that of the SYN, unless
/// [`FLOW_ACCEPTED`] is set too.
pub const FLOW_ASKED: u8 = 64;

// Numbers of proved flows of TCP. With 0, nobody has asked yet.

/// The pod's kernel has had a socket for the connection.
const SOCKET_SEEN: u32 = 1;
/// The pod's kernel had none when the client proved its address.
const SOCKET_MISSED: u32 = 2;

/// Flags that tell the meaning of a flow's number.
const FLOW_UNPROVED: u8 = FLOW_ACCEPTED | FLOW_ASKED;

/// The facts of a datagram's first fragment that later ones need, in whole words.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Datagram {
    /// When the first fragment was seen, on the monotonic clock in ns.
    pub seen: u64,
    /// Source and destination port (2 bytes each, wire order), four zeros.
    ports: u64,
}

impl Datagram {
    /// How long later fragments may follow the first, as in Linux (`ipfrag_time`; RFC 791 section 3.2 suggests 15 s,
    /// RFC 8200 section 4.5 asks for 60 s).
    pub const LIFETIME_NS: u64 = 30_000_000_000;

    /// Makes the entry of a datagram whose first fragment has these ports.
    #[inline(always)]
    pub const fn new(source: [u8; 2], destination: [u8; 2], seen: u64) -> Self {
        Self {
            seen,
            ports: join_u32(join_u16(source, destination), 0),
        }
    }

    /// Makes the entry of a datagram whose first fragment has gone to the agent, as if it had not come yet.
    #[inline(always)]
    pub const fn withdrawn(now: u64) -> Self {
        Self::new([0; 2], [0; 2], now.wrapping_sub(Self::LIFETIME_NS))
    }

    /// Tells whether later fragments may still come.
    #[inline(always)]
    pub const fn is_awaited(&self, now: u64) -> bool {
        age(self.seen, now) < Self::LIFETIME_NS
    }

    /// Returns the source port, in wire order.
    #[inline(always)]
    pub const fn source_port(&self) -> [u8; 2] {
        split_u32(split_u64(self.ports)[0])[0]
    }

    /// Returns the destination port, in wire order.
    #[inline(always)]
    pub const fn destination_port(&self) -> [u8; 2] {
        split_u32(split_u64(self.ports)[0])[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(state: u8) -> PodFlow {
        let service = AddressKey::v4([192, 0, 2, 1]);
        PodFlow::new(&Tuple::default(), service, [0, 80], 20, state, 1)
    }

    #[test]
    fn what_the_kernel_says_first_of_a_connection_counts_until_the_next_one() {
        let mut known = flow(FLOW_HAIRPIN | FLOW_FIN_POD);
        assert!(!known.has_had_socket());
        known.note_socket(true);
        known.note_socket(false);
        assert!(known.has_had_socket());
        known.forget_socket();
        assert_eq!(known, flow(FLOW_HAIRPIN | FLOW_FIN_POD));
        known.note_socket(false);
        known.note_socket(true);
        assert!(!known.has_had_socket());
    }
}
