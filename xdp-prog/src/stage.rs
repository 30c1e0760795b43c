//! The parts of the program that decide what is not common, each a program of its own.
//!
//! The edge's plain path is decided in one go. The rest is left to a stage, which begins anew with the frame as it came: the
//! kernel verifies each XDP program as a whole and only so many of its paths, and the plain path pays nothing for what
//! it does not use.

/// A part of the program that decides what is not common; its number is its index in `STAGES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Node role: IP-in-IP.
    Receive = 0,
    /// Delivery to a pod of this machine, of what came bare.
    Local = 1,
    /// Bare ICMP to addresses of ours.
    Icmp = 2,
    /// Bare fragments to addresses of ours.
    Fragment = 3,
    /// NAT mode, from client to backend.
    Nat = 4,
    /// Answers to this machine's own checks.
    Probe = 5,
    /// NAT mode: the first packet of a flow.
    NatBegin = 6,
    /// NAT mode, from backend to client.
    NatReply = 7,
    /// Fragments within IP-in-IP.
    FragmentWithin = 8,
    /// Answers that this machine gives itself.
    Answer = 9,
    /// ICMP errors for pods of this machine, bare or within IP-in-IP.
    IcmpLocal = 10,
    /// NAT mode: later fragments, both ways.
    NatFragment = 11,
    /// NAT mode: ICMP errors, both ways.
    NatIcmp = 12,
    /// Questions for the MAC of announced addresses.
    Neighbour = 13,
    /// ICMP errors about outer packets of this machine.
    Path = 14,
    /// Delivery to a pod of this machine, where the flow begins, is proved or has another client port at the pod.
    PodFlow = 15,
    /// NAT mode: what a client's packet proves of its flow.
    NatProof = 16,
    /// NAT mode: the first packet of a flow for which another one of its service goes.
    NatShare = 17,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 18] = [
        Self::Receive,
        Self::Local,
        Self::Icmp,
        Self::Fragment,
        Self::Nat,
        Self::Probe,
        Self::NatBegin,
        Self::NatReply,
        Self::FragmentWithin,
        Self::Answer,
        Self::IcmpLocal,
        Self::NatFragment,
        Self::NatIcmp,
        Self::Neighbour,
        Self::Path,
        Self::PodFlow,
        Self::NatProof,
        Self::NatShare,
    ];

    /// Returns the index in `STAGES`.
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Returns the name of the stage's program in the object.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Receive => "guideway_receive",
            Self::Local => "guideway_local",
            Self::Icmp => "guideway_icmp",
            Self::Fragment => "guideway_fragment",
            Self::Nat => "guideway_nat",
            Self::Probe => "guideway_probe",
            Self::NatBegin => "guideway_nat_begin",
            Self::NatReply => "guideway_nat_reply",
            Self::FragmentWithin => "guideway_fragment_within",
            Self::Answer => "guideway_answer",
            Self::IcmpLocal => "guideway_icmp_local",
            Self::NatFragment => "guideway_nat_fragment",
            Self::NatIcmp => "guideway_nat_icmp",
            Self::Neighbour => "guideway_neighbour",
            Self::Path => "guideway_path",
            Self::PodFlow => "guideway_pod_flow",
            Self::NatProof => "guideway_nat_proof",
            Self::NatShare => "guideway_nat_share",
        }
    }
}
