//! Connections that the kernel of the pod is asked about.

use xdp_prog::abi::{FLOW_ACCEPTED, FLOW_FIN_CLIENT, FLOW_FIN_POD, NAMESPACE_OWN, PodFlow, Tuple};

use super::{
    super::super::pod_sockets::{PodEnd, PodSocket},
    ACK, Case, FIN, IN, Kind, NUMBER, OF_PODS, SECOND, TableSet, acknowledging, client, pods_like,
};

/// Both ends have closed the connection.
const BOTH: u8 = FLOW_FIN_CLIENT | FLOW_FIN_POD;

/// What the tables say of the connection.
#[derive(Clone, Copy)]
enum Entry {
    /// It is in `FLOWS`, and the pod has had a socket for it.
    Seen(u8),
    /// The same, and both ends had closed it two minutes ago, as far as segments tell; anybody may have sent the client's.
    Over,
    /// It is there, and the pod has had none.
    Missed,
    /// It is there, and nobody has asked.
    NotAsked,
    /// One by another VIP is there.
    OfAnother,
    /// It is in `FLOWS_EMBRYONIC`.
    Unproved,
    /// It is there, and the pod has sent its SYN+ACK.
    Accepted,
    None,
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in OF_PODS {
        cases.extend(by_socket(kind));
        cases.extend(without_socket(kind));
        cases.push(after_one_without_tries(kind));
        cases.extend(after_the_first_answer(kind));
    }
    cases
}

/// An ACK, while the pod's end is in one state or another.
#[rustfmt::skip]
fn by_socket(kind: Kind) -> Vec<Case> {
    [
        ("that_is_open", Entry::Seen(0), PodEnd::Open, ACK, true),
        ("that_its_client_has_closed", Entry::Seen(FLOW_FIN_CLIENT), PodEnd::CloseWait, ACK, true),
        ("that_its_pod_has_closed", Entry::Seen(FLOW_FIN_POD), PodEnd::FinWait, ACK, true),
        ("of_which_the_pod_only_waits_for_the_end", Entry::Seen(FLOW_FIN_POD), PodEnd::TimeWait, ACK, true),
        ("that_is_over", Entry::Seen(BOTH), PodEnd::TimeWait, ACK, false),
        ("whose_client_repeats_its_fin", Entry::Seen(BOTH), PodEnd::TimeWait, FIN | ACK, true),
        ("that_its_client_has_reset", Entry::Seen(0), PodEnd::Reset, ACK, false),
        ("that_seems_to_be_over_for_long", Entry::Over, PodEnd::FinWait, ACK, true),
        ("that_is_over_for_long", Entry::Over, PodEnd::TimeWait, FIN | ACK, false),
        ("whose_socket_is_elsewhere", Entry::Missed, PodEnd::Reset, ACK, true),
        ("whose_socket_was_never_asked_for", Entry::NotAsked, PodEnd::Reset, ACK, true),
        ("that_began_by_another_vip", Entry::OfAnother, PodEnd::Open, ACK, false),
        ("that_is_open_but_not_proved", Entry::Unproved, PodEnd::Open, ACK, true),
        ("that_is_not_proved", Entry::Unproved, PodEnd::Reset, ACK, false),
        ("that_the_tables_have_lost", Entry::None, PodEnd::Open, ACK, true),
        ("that_nothing_tells_of", Entry::None, PodEnd::Reset, ACK, false),
    ]
    .into_iter()
    .map(|(name, entry, end, flags, is_known)| {
        let install = move |tables: &mut TableSet| {
            kind.install(tables, entry);
            kind.has_socket(tables, end, false);
        };
        kind.asks(&format!("segment_of_a_connection_{name}"), flags, install, is_known)
    })
    .collect()
}

/// No connection of the machine itself has these ends. Where nobody knows the namespace, the flow's entry counts.
fn without_socket(kind: Kind) -> [Case; 2] {
    [(true, "somewhere"), (false, "on_the_host")].map(|(is_known, place)| {
        let install = move |tables: &mut TableSet| {
            kind.install(tables, Entry::Seen(0));
            if !is_known {
                kind.name_namespace(tables, NAMESPACE_OWN);
            }
        };
        let name = format!("segment_of_a_connection_that_had_a_socket_{place}");
        kind.asks(&name, ACK, install, is_known)
    })
}

/// A packet without tries is delivered whatever it is. That tells nothing of the next one.
fn after_one_without_tries(kind: Kind) -> Case {
    let packet = kind.segment(ACK);
    let install = move |tables: &mut TableSet| {
        kind.install(tables, Entry::Seen(0));
        kind.name_namespace(tables, NAMESPACE_OWN);
    };
    let earlier = IN.carry(&kind.outer(&packet, kind.tag(), 0));
    let name = "segment_of_a_connection_that_is_over_after_one_without_tries";
    let draft = kind.case(name, &packet, 2).with(install).after(earlier);
    kind.returns(draft, &packet, kind.tag(), 2)
}

/// What is noted when the kernel is first asked shows by a FIN, which uses no notes, once the client has reset the
/// connection.
fn after_the_first_answer(kind: Kind) -> [Case; 4] {
    [
        ("proved", Entry::Accepted, PodEnd::Open, false),
        ("asked_for", Entry::NotAsked, PodEnd::Open, false),
        ("missed", Entry::Missed, PodEnd::Open, true),
        ("proved_elsewhere", Entry::Accepted, PodEnd::Reset, true),
    ]
    .map(|(name, entry, end, is_known)| {
        let install = move |tables: &mut TableSet| {
            kind.install(tables, entry);
            kind.has_socket(tables, end, end == PodEnd::Open);
        };
        let packet = kind.segment(FIN | ACK);
        let name = format!("fin_of_a_connection_that_was_{name}_and_reset");
        let earlier = acknowledging(kind, NUMBER + 1);
        let earlier = IN.carry(&kind.outer(&earlier, kind.tag(), 2));
        let draft = kind.case(&name, &packet, 2).with(install).after(earlier);
        if is_known {
            kind.delivers(draft, FIN | ACK, kind.own_port())
        } else {
            kind.returns(draft, &packet, kind.tag(), 2)
        }
    })
}

impl Kind {
    /// Says which namespace the pod has.
    fn name_namespace(self, tables: &mut TableSet, namespace: u32) {
        let [(.., backend), _] = pods_like(self.to().0);
        tables.backends[backend as usize].namespace = namespace;
    }

    fn has_socket(self, tables: &mut TableSet, end: PodEnd, is_lost_at_last: bool) {
        self.name_namespace(tables, 1);
        let (connection, _) = self.flow(self.to(), self.own_port(), 0, 0);
        tables.socket = Some(PodSocket {
            connection,
            end,
            is_lost_at_last,
        });
    }

    fn install(self, tables: &mut TableSet, entry: Entry) {
        let idle = |to, state, seconds| self.flow(to, client(to).1, state, seconds * SECOND);
        let flow = |to, state| idle(to, state, 30);
        let asked = |(key, mut flow): (Tuple, PodFlow), is_there| {
            flow.note_socket(is_there);
            (key, flow)
        };
        let own = |state| flow(self.to(), state);
        let unproved = |number, flag| -> (Tuple, PodFlow) {
            let (key, mut flow) = own(0);
            flow.set_number(number, flag);
            (key, flow)
        };
        match entry {
            Entry::Seen(state) => tables.flows.extend([asked(own(state), true)]),
            Entry::Over => tables
                .flows
                .extend([asked(idle(self.to(), BOTH, 120), true)]),
            Entry::Missed => tables.flows.extend([asked(own(0), false)]),
            Entry::NotAsked => tables.flows.extend([own(0)]),
            Entry::OfAnother => tables.flows.extend([flow(self.other, 0)]),
            Entry::Unproved => tables.embryonic.extend([unproved(NUMBER, 0)]),
            Entry::Accepted => tables.embryonic.extend([unproved(NUMBER, FLOW_ACCEPTED)]),
            Entry::None => {}
        }
    }

    /// The node is asked about a segment with tries.
    fn asks(
        self,
        name: &str,
        flags: u8,
        install: impl FnOnce(&mut TableSet),
        is_known: bool,
    ) -> Case {
        let packet = self.segment(flags);
        let draft = self.case(name, &packet, 2).with(install);
        if is_known {
            self.delivers(draft, flags, self.own_port())
        } else {
            self.returns(draft, &packet, self.tag(), 2)
        }
    }
}
