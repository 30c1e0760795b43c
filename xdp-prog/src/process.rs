//! The whole way of a packet: decide, rewrite, count. The XDP programs and the host tests call it.

use crate::{
    abi::HOP_CARRIED,
    decide::{
        allowance, answer,
        edge::{self, ask_here, neighbour, past, probe, returned, send},
        fragment, icmp, nat,
        node::{
            ask, decap,
            flow_lookup::{self, FlowLookup},
            local, pod_flow, receive, stack,
        },
    },
    frame::{FrameMut, FrameSum},
    punt::{self, Punt},
    reason::{DropReason, PassReason, ReplyReason, ToClientReason, ToNodeReason},
    rewrite,
    stage::Stage,
    verdict::{
        Advertise, ClientAtPod, Decap, Delivery, Ending, ErrorDelivery, Forward, Reply, ReplyPath,
        TranslateError, Verdict,
    },
    wire::protocol,
    world::{HandOver, World},
};

/// The action that the caller has to take with the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hand the frame to the stack.
    Pass,
    /// Free the frame.
    Drop,
    /// Send the frame out of its ingress device.
    Transmit,
    /// Send the frame out of the device with this index.
    Redirect(u32),
    /// Continue in another stage. The outer header of a returned packet may be off by then, and what the agent is to
    /// send for XDP is finished; else the frame is unchanged.
    Continue(Stage),
}

/// Takes one frame all the way: decides, rewrites, counts.
#[inline(always)]
pub fn process<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let verdict = edge::decide(frame, tables);
    carry_out(frame, tables, ingress, verdict)
}

/// Continues with a frame in another stage.
#[inline(always)]
pub fn resume<F: FrameMut + FrameSum, T: World>(
    stage: Stage,
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let verdict = match stage {
        Stage::Receive => match receive::decide(frame, tables) {
            Verdict::Deliver(delivery) => {
                return action_or_drop(tables, deliver_as_sent(frame, tables, &delivery));
            }
            verdict => verdict,
        },
        Stage::Decap => decap::decide(frame, tables),
        Stage::Local => local::decide(frame, tables),
        Stage::Icmp => icmp::decide(frame, tables),
        Stage::Fragment => fragment::decide(frame, tables),
        Stage::Probe => return restore_probe(frame, tables),
        Stage::Nat => nat::to_backend::decide(frame, tables, ingress),
        Stage::NatBegin => nat::begin::decide(frame, tables, ingress),
        Stage::NatProof => nat::proof::decide(frame, tables),
        Stage::NatShare => nat::share::decide(frame, tables),
        Stage::NatReply => nat::to_client::decide(frame, tables),
        Stage::FragmentWithin => fragment::decide_within(frame, tables),
        Stage::Answer => return reply(frame, tables, ingress),
        Stage::IcmpLocal => match icmp::local::decide(frame, tables) {
            Ok(error) => return action_or_drop(tables, deliver_error(frame, tables, &error)),
            Err(verdict) => verdict,
        },
        Stage::NatFragment => nat::fragment::decide(frame, tables),
        Stage::NatIcmp => match nat::icmp::decide(frame, tables) {
            Ok(error) => {
                return action_or_drop(tables, translate_error(frame, tables, ingress, &error));
            }
            Err(verdict) => verdict,
        },
        Stage::Neighbour => return advertise(frame, tables, ingress),
        Stage::Path => icmp::path::decide(frame, tables),
        Stage::PodFlow => return action_or_drop(tables, deliver_handed_over(frame, tables)),
        Stage::Past => past::decide(frame, tables),
        Stage::Returned => match returned::decide::<false, _, _>(frame, tables) {
            Ok(decap) => return action_or_drop(tables, try_again(frame, &decap)),
            Err(verdict) => verdict,
        },
        Stage::ReturnedDatagram => match returned::decide::<true, _, _>(frame, tables) {
            Ok(decap) => return action_or_drop(tables, try_again(frame, &decap)),
            Err(verdict) => verdict,
        },
        Stage::Ask => match ask::decide(frame, tables) {
            Ok(delivery) => {
                frame.forget_views();
                return action_or_drop(tables, deliver_as_sent(frame, tables, &delivery));
            }
            Err(stage) => return Action::Continue(stage),
        },
        Stage::AskHere => ask_here::decide(frame, tables),
        Stage::Return => return action_or_drop(tables, return_to_edge(frame, tables)),
        Stage::Send => match send::decide(frame, tables) {
            (Verdict::Forward(forward), true) => {
                return action_or_drop(tables, send_again(frame, tables, ingress, &forward));
            }
            (verdict, _) => verdict,
        },
        // On the host. In the kernel, a program of its own hands the frame to the agent.
        Stage::Punt => return end_without_agent(tables),
    };
    frame.forget_views();
    carry_out(frame, tables, ingress, verdict)
}

/// Carries a verdict out and counts it.
#[inline(always)]
fn carry_out<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
    verdict: Verdict<'_>,
) -> Action {
    let dropped = match verdict {
        Verdict::Pass(reason) => {
            tables.count_reason(reason.index());
            return Action::Pass;
        }
        Verdict::Drop(reason) => reason,
        Verdict::Forward(forward) => match rewrite::forward(frame, &forward) {
            Ok(()) => {
                tables.count_forward(forward.service, forward.backend, forward.length as u64);
                return send_by(tables, forward.hop.ifindex, ingress);
            }
            Err(reason) => reason,
        },
        Verdict::Translate(translate) => match rewrite::nat::translate(frame, &translate) {
            Ok(()) => {
                match translate.service {
                    0 => tables.count_reason(ToClientReason::NatReply.index()),
                    _ => {
                        let (service, length) = (translate.service_id(), translate.length as u64);
                        tables.count_forward(service, translate.by.backend, length);
                    }
                }
                return send_by(tables, translate.by.ifindex, ingress);
            }
            Err(reason) => reason,
        },
        Verdict::Continue(stage) => return Action::Continue(stage),
        Verdict::Answer(answer) => {
            tables.hand_over(HandOver {
                detail: answer.0,
                ..HandOver::default()
            });
            return Action::Continue(Stage::Answer);
        }
        Verdict::Deliver(delivery) => match hand_to_pod(frame, tables, &delivery) {
            Ok(action) => return action,
            Err(reason) => reason,
        },
        Verdict::Decap(decap) => match hand_to_stack(frame, tables, ingress, &decap) {
            Ok(()) => return Action::Pass,
            Err(reason) => reason,
        },
    };
    tables.count_reason(dropped.index());
    Action::Drop
}

/// Ends the packet of [`Stage::Punt`] where nobody takes it.
#[inline(always)]
pub fn end_without_agent<T: World>(tables: &T) -> Action {
    match punt::action_without_agent(tables) {
        Ok(action) => action,
        Err(ending) => end_unanswered(tables, ending),
    }
}

/// Sends a finished frame by a device, which has [`HOP_CARRIED`] if it takes no frames from XDP. Such a device still
/// sends what it received itself, if that has not been mended meanwhile.
#[inline(always)]
fn send_by<T: World>(tables: &T, ifindex: u32, ingress: u32) -> Action {
    if ifindex == ingress {
        return Action::Transmit;
    }
    if ifindex & HOP_CARRIED == 0 {
        return Action::Redirect(ifindex);
    }
    let device = ifindex & !HOP_CARRIED;
    if device == ingress && !tables.is_mended() {
        return Action::Transmit;
    }
    Punt::leaving_by(device).hand_over(tables);
    Action::Continue(Stage::Punt)
}

/// Returns the action, or counts the reason of a drop.
#[inline(always)]
fn action_or_drop<T: World>(tables: &T, done: Result<Action, DropReason>) -> Action {
    match done {
        Ok(action) => action,
        Err(reason) => {
            tables.count_reason(reason.index());
            Action::Drop
        }
    }
}

/// Ends a packet that gets no answer.
#[inline(always)]
fn end_unanswered<T: World>(tables: &T, ending: Ending) -> Action {
    match ending {
        Ending::Pass(reason) => {
            tables.count_reason(reason.index());
            Action::Pass
        }
        Ending::Drop(reason) => action_or_drop(tables, Err(reason)),
        Ending::Punt => Action::Continue(Stage::Punt),
    }
}

#[inline(always)]
fn hand_to_pod<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    delivery: &Delivery<'_>,
) -> Result<Action, DropReason> {
    let (delivery, is_returned_if_unknown) = delivery
        .relayed_with_return(tables)
        .ok_or(DropReason::StageMissing)?;
    if is_returned_if_unknown {
        delivery.note_key.hand_over_aside(tables);
        return Ok(Action::Continue(Stage::Ask));
    }
    frame.forget_views();
    let Some(lookup) = flow_lookup::look_up(frame, tables, &delivery) else {
        return Err(DropReason::NoHeadroom);
    };
    match lookup {
        FlowLookup::Embryonic if delivery.protocol == protocol::TCP => {
            delivery.hand_over(tables, false);
            Ok(Action::Continue(Stage::PodFlow))
        }
        FlowLookup::Established | FlowLookup::Embryonic => {
            deliver_as_sent(frame, tables, &delivery)
        }
        lookup => {
            delivery.hand_over(tables, lookup == FlowLookup::Unknown);
            Ok(Action::Continue(Stage::PodFlow))
        }
    }
}

/// Returns a packet whose flow is not known here.
#[inline(always)]
fn return_to_edge<F: FrameMut, T: World>(frame: &mut F, tables: &T) -> Result<Action, DropReason> {
    if !allowance::take_return(tables) {
        return Err(DropReason::ReturnLimited);
    }
    rewrite::send_back(frame)?;
    tables.count_reason(ReplyReason::Returned.index());
    Ok(Action::Transmit)
}

/// Takes the outer header off a returned packet, for which another owner is chosen.
#[inline(always)]
fn try_again<F: FrameMut>(frame: &mut F, decap: &Decap) -> Result<Action, DropReason> {
    rewrite::decap(frame, decap)?;
    Ok(Action::Continue(Stage::Send))
}

/// Sends a returned packet to the owner that was chosen. It was counted as forwarded when it was first sent.
#[inline(always)]
fn send_again<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
    forward: &Forward<'_>,
) -> Result<Action, DropReason> {
    rewrite::forward_again(frame, forward)?;
    tables.count_reason(ToNodeReason::Retried.index());
    Ok(send_by(tables, forward.hop.ifindex, ingress))
}

/// Delivers a packet of a known flow, whose pod sees the client's own address and port.
#[inline(always)]
fn deliver_as_sent<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    delivery: &Delivery<'_>,
) -> Result<Action, DropReason> {
    rewrite_and_count(frame, tables, delivery, delivery.unchanged_client())?;
    Ok(Action::Pass)
}

/// Delivers the packet that an earlier stage has handed over, whose flow may begin with it.
#[inline(always)]
fn deliver_handed_over<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
) -> Result<Action, DropReason> {
    let (delivery, client_at_pod) = pod_flow::settle(frame, tables)?;
    frame.forget_views();
    rewrite_and_count(frame, tables, &delivery, client_at_pod)?;
    Ok(Action::Pass)
}

/// Translates a packet for its pod, which sees the client as `client_at_pod`, and counts it.
#[inline(always)]
fn rewrite_and_count<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    delivery: &Delivery<'_>,
    client_at_pod: ClientAtPod,
) -> Result<(), DropReason> {
    rewrite::deliver(frame, delivery, client_at_pod)?;
    tables.count_forward(delivery.service, delivery.id, delivery.length as u64);
    tables.count_reason(PassReason::Delivered.index());
    Ok(())
}

#[inline(always)]
fn deliver_error<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    delivery: &ErrorDelivery<'_>,
) -> Result<Action, DropReason> {
    rewrite::deliver_error(frame, delivery)?;
    tables.count_forward(delivery.service, delivery.id, delivery.length as u64);
    tables.count_reason(PassReason::Delivered.index());
    Ok(Action::Pass)
}

#[inline(always)]
fn translate_error<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
    error: &TranslateError<'_>,
) -> Result<Action, DropReason> {
    rewrite::nat::translate_error(frame, error)?;
    let by = error.error.by;
    match error.error.service {
        0 => tables.count_reason(ToClientReason::NatError.index()),
        _ => {
            let length = error.error.length as u64;
            tables.count_forward(error.error.service_id(), by.backend, length);
        }
    }
    Ok(send_by(tables, by.ifindex, ingress))
}

#[inline(always)]
fn hand_to_stack<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
    decap: &Decap,
) -> Result<(), DropReason> {
    stack::admit(frame, tables, ingress, decap)?;
    rewrite::decap(frame, decap)?;
    tables.count_reason(PassReason::Decapsulated.index());
    Ok(())
}

/// Hands a packet without a service to the stack. The answer to a check of this machine gets the source address that
/// the check's socket expects.
#[inline(always)]
fn restore_probe<F: FrameMut, T: World>(frame: &mut F, tables: &T) -> Action {
    let reason = match probe::decide(frame, tables) {
        Ok(restore) => match rewrite::restore_source(frame, &restore) {
            Some(()) => PassReason::ProbeAnswer,
            None => PassReason::NoService,
        },
        Err(reason) => reason,
    };
    tables.count_reason(reason.index());
    Action::Pass
}

/// Answers a question for the MAC of an announced address, or hands it to the stack.
#[inline(always)]
fn advertise<F: FrameMut + FrameSum, T: World>(frame: &mut F, tables: &T, ingress: u32) -> Action {
    let answered = match neighbour::decide(frame, tables, ingress) {
        Ok(Advertise::Arp { l3, mac }) => rewrite::neighbour::arp(frame, l3, mac),
        Ok(Advertise::Neighbour { l3, mac }) => rewrite::neighbour::advertisement(frame, l3, mac),
        Err(ending) => return end_unanswered(tables, ending),
    };
    match answered {
        Ok(()) => {
            tables.count_reason(ReplyReason::Neighbour.index());
            Action::Transmit
        }
        Err(reason) => action_or_drop(tables, Err(reason)),
    }
}

/// Answers a frame if it may be answered.
///
/// A reply is not a [`Verdict`]: each kind of verdict costs every stage registers that only some of its paths fill,
/// and the verifier refuses those.
#[inline(always)]
fn reply<F: FrameMut + FrameSum, T: World>(frame: &mut F, tables: &T, ingress: u32) -> Action {
    let reply = match answer::decide(frame, tables) {
        Ok(reply) => reply,
        Err(ending) => return end_unanswered(tables, ending),
    };
    let sent = send_reply(frame, tables, reply, ingress);
    if sent.is_ok() {
        tables.count_reason(reply.reason().index());
    }
    action_or_drop(tables, sent)
}

#[inline(always)]
fn send_reply<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    reply: Reply,
    ingress: u32,
) -> Result<Action, DropReason> {
    let reply = reply.relayed(tables).ok_or(DropReason::StageMissing)?;
    frame.forget_views();
    let (way, ifindex) = match reply.answer.inner() {
        None => (ReplyPath::back(&reply), ingress),
        Some(_) => answer::way_to_client(frame, tables, &reply, ingress)?,
    };
    if reply.has_options() {
        rewrite::enter_options(frame, reply.l3, reply.l4, tables.now())?;
    }
    rewrite::reply(frame, &reply, &way)?;
    Ok(send_by(tables, ifindex, ingress))
}
