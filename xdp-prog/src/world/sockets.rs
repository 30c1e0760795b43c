//! The connections that the kernel knows in the network namespaces of this machine's pods.

use crate::abi::Tuple;

/// The TCP connections of pods.
pub trait Sockets {
    /// Returns the state of the connection with this tuple, as its pod sees it, in a network namespace
    /// ([`Backend::namespace`](crate::abi::Backend::namespace)); always [`SocketState::UNKNOWN`] where nobody can tell.
    #[inline(always)]
    fn socket_state(&self, _connection: &Tuple, _namespace: u32) -> SocketState {
        SocketState::UNKNOWN
    }
}

/// The state of a connection: the bit with the number that Linux gives the state (`include/net/tcp_states.h`). So a program
/// asks for several states without a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketState(u32);

impl SocketState {
    /// Nobody can tell. Bit 0, which no state has.
    pub const UNKNOWN: Self = Self(1);
    /// There is no such connection (`TCP_CLOSE`).
    pub const NONE: Self = Self::of_number(7);

    /// `TCP_ESTABLISHED`, `TCP_FIN_WAIT1`, `TCP_FIN_WAIT2`, `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`.
    const OPEN: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
    /// `TCP_SYN_RECV`, `TCP_NEW_SYN_RECV`.
    const BEGUN: u32 = 1 << 3 | 1 << 12;
    /// `TCP_TIME_WAIT`, which also stands for a closed socket in `FIN_WAIT2`.
    const TIME_WAIT: u32 = 1 << 6;

    /// Returns the state with this number of the kernel's, which is below 32. A listener (`TCP_LISTEN`) is found where there
    /// is no connection, and counts as none.
    #[inline(always)]
    pub const fn of_number(number: u32) -> Self {
        Self(1 << (number & 31))
    }

    /// Tells whether the kernel has said anything.
    #[inline(always)]
    pub const fn is_known(self) -> bool {
        self.0 != Self::UNKNOWN.0
    }

    /// Tells whether the pod's kernel goes on with the connection.
    #[inline(always)]
    pub const fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    /// Tells whether the pod's kernel has a socket for the connection, or for its handshake.
    #[inline(always)]
    pub const fn has_socket(self) -> bool {
        self.0 & (Self::OPEN | Self::BEGUN) != 0
    }

    /// Tells whether the pod may still answer segments of a connection that has had a socket. A handshake counts, because
    /// anybody can begin one in the client's name. `TIME_WAIT` counts for a client that is not through: `waits_for_client`.
    #[inline(always)]
    pub const fn is_answered(self, waits_for_client: bool) -> bool {
        let time_wait = if waits_for_client { Self::TIME_WAIT } else { 0 };
        self.0 & (Self::UNKNOWN.0 | Self::OPEN | Self::BEGUN | time_wait) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TCP_ESTABLISHED` to `TCP_NEW_SYN_RECV`, by their numbers: open, there, goes on, goes on if the pod waits.
    const STATES: [(u32, [bool; 4]); 12] = [
        (1, [true; 4]),
        (2, [false; 4]),
        (3, [false, true, true, true]),
        (4, [true; 4]),
        (5, [true; 4]),
        (6, [false, false, false, true]),
        (7, [false; 4]),
        (8, [true; 4]),
        (9, [true; 4]),
        (10, [false; 4]),
        (11, [true; 4]),
        (12, [false, true, true, true]),
    ];

    #[test]
    fn connections_go_on_by_the_state_of_their_socket() {
        for (number, expected) in STATES {
            let state = SocketState::of_number(number);
            let found = [
                state.is_open(),
                state.has_socket(),
                state.is_answered(false),
                state.is_answered(true),
            ];
            assert_eq!(found, expected, "{number}");
            assert!(state.is_known());
        }
        let unknown = SocketState::UNKNOWN;
        assert!(!unknown.is_known() && !unknown.has_socket());
        assert!(unknown.is_answered(false));
    }
}
