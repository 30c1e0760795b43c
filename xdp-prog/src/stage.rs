//! Stages: programs of their own for everything that the edge's plain path does not decide.
//!
//! A tail call leaves the frame to a stage, which parses it anew. The kernel verifies each XDP program as
//! a whole and limits how many of its paths it follows, so one program could not hold everything. The plain path pays
//! nothing for the stages that it does not use.

/// A program that goes on where the plain path leaves a frame; its number is its index in `STAGES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Node role: takes IP-in-IP from edges.
    Receive = 0,
    /// Delivers bare packets to pods of this machine.
    Local = 1,
    /// Bare ICMP to addresses of ours.
    Icmp = 2,
    /// Bare fragments to addresses of ours.
    Fragment = 3,
    /// NAT mode: packets from client to backend.
    Nat = 4,
    /// Answers to this machine's own checks of backends.
    Probe = 5,
    /// NAT mode: the first packet of a flow.
    NatBegin = 6,
    /// NAT mode: packets from backend to client.
    NatReply = 7,
    /// Fragments inside IP-in-IP.
    FragmentWithin = 8,
    /// Makes the answers of this machine: ICMP errors, RSTs and echo replies.
    Answer = 9,
    /// ICMP errors for pods of this machine, bare or inside IP-in-IP.
    IcmpLocal = 10,
    /// NAT mode: later fragments, in both directions.
    NatFragment = 11,
    /// NAT mode: ICMP errors, in both directions.
    NatIcmp = 12,
    /// ARP requests and neighbour solicitations for announced addresses.
    Neighbour = 13,
    /// ICMP errors about outer packets that this machine sent.
    Path = 14,
    /// Delivers to pods of this machine if the flow begins, is being proved, or has another client port at the pod.
    PodFlow = 15,
    /// NAT mode: client packets that may prove their flow.
    NatProof = 16,
    /// NAT mode: the first packet of a flow that takes the place of another flow of its service.
    NatShare = 17,
    /// Node role: IP-in-IP whose flow has no note. Checks the edge, and finds the pod.
    Decap = 18,
    /// Hands frames to the agent that XDP cannot finish, or ends them where nobody takes them.
    Punt = 19,
    /// Packets of slots that have had other owners: at an edge, and at a node what an edge has sent by L2 DSR.
    Past = 20,
    /// Edge role: takes a packet that a node has returned, and leaves those of datagrams for [`Self::ReturnedDatagram`].
    Returned = 21,
    /// Node role: delivers a packet if its flow is known here.
    Ask = 22,
    /// Edge role: sends a packet to the backend that an earlier stage has chosen.
    Send = 23,
    /// Node role: returns a packet whose flow is not known here to the edge.
    Return = 24,
    /// Looks for a bare packet's flow at this machine's own pods: of an edge that is a node too, or of a node by L2 DSR.
    AskHere = 25,
    /// Edge role: takes a packet of a flow of datagrams that a node has returned.
    ReturnedDatagram = 26,
}

/// What a machine does beside balancing for other machines. Some stages are reached on machines that do it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// It has pods (node role).
    pub node: bool,
    /// It balances services by NAT.
    pub nat: bool,
}

impl Duties {
    /// All that a machine may do.
    pub const ALL: Self = Self {
        node: true,
        nat: true,
    };
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 27] = [
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
        Self::Decap,
        Self::Punt,
        Self::Past,
        Self::Returned,
        Self::Ask,
        Self::Send,
        Self::Return,
        Self::AskHere,
        Self::ReturnedDatagram,
    ];
    /// Number of places in `STAGES`: one more than the highest index.
    pub const PLACES: usize = 27;

    /// Tells whether frames get to the stage on a machine with these duties.
    pub const fn is_reached(self, duties: Duties) -> bool {
        match self {
            Self::Local
            | Self::FragmentWithin
            | Self::IcmpLocal
            | Self::PodFlow
            | Self::Ask
            | Self::Return
            | Self::AskHere => duties.node,
            Self::Nat
            | Self::NatBegin
            | Self::NatReply
            | Self::NatFragment
            | Self::NatIcmp
            | Self::NatProof
            | Self::NatShare => duties.nat,
            Self::Receive
            | Self::Icmp
            | Self::Fragment
            | Self::Probe
            | Self::Answer
            | Self::Neighbour
            | Self::Path
            | Self::Decap
            | Self::Punt
            | Self::Past
            | Self::Returned
            | Self::ReturnedDatagram
            | Self::Send => true,
        }
    }

    /// Returns the index in `STAGES`.
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Tells whether the stage asks for the device of a frame that may be a mended one. Such a frame has come back by
    /// another device than the one that it came in by. The other stages remember no device, and ask the FIB for no
    /// mended frame: what waited for its next hop finds it in the tables.
    #[inline(always)]
    pub const fn takes_mended(self) -> bool {
        matches!(
            self,
            Self::Fragment
                | Self::FragmentWithin
                | Self::NatBegin
                | Self::NatFragment
                | Self::Decap
                | Self::Send
                | Self::Return
        )
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
            Self::Decap => "guideway_decap",
            Self::Punt => "guideway_punt",
            Self::Past => "guideway_past",
            Self::Returned => "guideway_returned",
            Self::Ask => "guideway_ask",
            Self::Send => "guideway_send",
            Self::Return => "guideway_return",
            Self::AskHere => "guideway_ask_here",
            Self::ReturnedDatagram => "guideway_returned_datagram",
        }
    }
}
