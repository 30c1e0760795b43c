//! Pages about packets: dropped ones, and the path of one flow or frame.

use super::{last_untrusted, only_if, rate};
use crate::api::{AtAddress, Detached, Flow, Flows, Reason, Trace, Which};
use crate::reasons::{Explanation, explanation};
use crate::render::{Page, Table, count, duration, percent};

/// Width of the titles of lines.
const TITLE: usize = 9;

/// Formats the reasons of packets that were not forwarded. Reasons without packets are shown only with `all`.
pub fn drops(reasons: &[Reason], all: bool, page: &mut Page) {
    let rates = reasons.iter().any(|reason| reason.rates.is_some());
    let rates = only_if(rates, ">PKT/S");
    let mut table = Table::new(["ACTION", "REASON", ">PACKETS", rates, "MEANING"]);
    let mut notes = Vec::new();
    for reason in reasons {
        for (counter, frames) in &reason.drivers {
            let label = &reason.reason;
            notes.push(format!("{label}: the driver counts {counter} {frames}"));
        }
        notes.extend(reason.last.as_ref().map(last_untrusted));
        if !all && reason.packets == 0 {
            continue;
        }
        let meaning = explanation(&reason.action, &reason.reason).map(|known| known.meaning);
        table.row([
            &reason.action,
            &reason.reason,
            &count(reason.packets),
            &rate(reason.rates.map(|rates| rates.packets)),
            &meaning.unwrap_or_default(),
        ]);
    }
    page.table(&table, "nothing dropped or passed");
    for note in notes {
        page.line(&note);
    }
}

/// Formats flows, and the number of further ones.
pub fn flows(flows: &Flows, page: &mut Page) {
    let mut table = Table::new(["CLIENT", "SERVICE", "BACKEND", "STATE", ">IDLE"]);
    for flow in &flows.flows {
        table.row([
            &flow.client,
            &flow.service,
            &flow.backend,
            &state(flow),
            &duration(flow.idle_seconds),
        ]);
    }
    page.table(&table, "no flows");
    if flows.more > 0 {
        let more = flows.more;
        page.line(&format!("and {more} more; --limit lists more of them"));
    }
}

/// Returns whether a flow is open, and whether it is one of NAT mode.
fn state(flow: &Flow) -> &'static str {
    match (flow.open, flow.table.as_str()) {
        (true, "nat") => "open nat",
        (false, "nat") => "new nat",
        (true, _) => "open",
        (false, _) => "new",
    }
}

/// Formats the explanation of a reason.
pub fn explained(explanation: &Explanation, page: &mut Page) {
    add(page, "reason", explanation.reason);
    add(page, "action", explanation.action);
    add(page, "meaning", explanation.meaning);
    add(page, "cause", explanation.cause);
    add(page, "remedy", explanation.remedy);
}

/// Adds a line that begins with a title.
fn add(page: &mut Page, title: &str, text: impl AsRef<str>) {
    page.hanging(&format!("{title:<TITLE$}"), TITLE, text.as_ref());
}

/// Adds hexadecimal digits, 16 bytes per line.
fn add_bytes(page: &mut Page, title: &str, digits: &str) {
    for (index, line) in digits.as_bytes().chunks(32).enumerate() {
        let pairs = line.chunks(2).map(|pair| String::from_utf8_lossy(pair));
        let title = if index == 0 { title } else { "" };
        add(page, title, pairs.collect::<Vec<_>>().join(" "));
    }
}

/// Formats the path of a frame.
pub fn trace(trace: &Trace, page: &mut Page) {
    for step in &trace.steps {
        add(page, &step.name, &step.text);
    }
    add_bytes(page, "before", &trace.before);
    if trace.after != trace.before {
        add_bytes(page, "after", &trace.after);
    }
    let action = &trace.action;
    let verdict = match (&trace.reason, &trace.device) {
        (Some(reason), _) => format!("{action}: {reason}"),
        (None, Some(device)) => format!("{action} by {device}"),
        (None, None) => action.clone(),
    };
    add(page, "verdict", verdict);
}

/// Formats the steps of a backend's lookup.
pub fn which(which: &Which, page: &mut Page) {
    let name = which.name.as_ref().map(|name| format!(" ({name})"));
    add(
        page,
        "service",
        which.service.clone() + &name.unwrap_or_default(),
    );
    add(page, "from", &which.from);
    if let Some(choice) = &which.choice {
        add(page, "hash", format!("{:#010x}", choice.hash));
        add(
            page,
            "slot",
            format!("{} of {}", choice.slot, choice.table_size),
        );
        let weight = choice.weight.map(|weight| format!("weight {weight}, "));
        let owns = format!(
            "{} ({}owns {} slots, {})",
            choice.backend,
            weight.unwrap_or_default(),
            choice.slots,
            percent(choice.slots.into(), choice.table_size.into())
        );
        add(page, "backend", owns);
        add(page, "mode", &choice.mode);
    }
    if let Some(ends) = &which.translated {
        add(page, "nat", ends);
    }
    let action = &which.action;
    let verdict = match which.reason.as_deref() {
        // For each packet the datapath can ask the FIB; the agent cannot.
        Some(reason @ "next_hop_unresolved") => {
            format!("{action}: {reason}, unless the kernel's FIB has one")
        }
        Some(reason) => format!("{action}: {reason}"),
        None => action.clone(),
    };
    add(page, "verdict", verdict);
    if let Some(next_hop) = &which.next_hop {
        add(page, "next hop", next_hop);
    }
}

/// Formats the use of an address on a machine.
pub fn at_address(at: &AtAddress, page: &mut Page) {
    add(page, "address", at.address.to_string());
    let services = match at.services.as_slice() {
        [] => "none".to_owned(),
        services => services.join(" "),
    };
    add(page, "services", services);
    let announced = match at.announced_on.as_slice() {
        [] => "not by this machine; in a cluster, `guideway cluster which` asks all of them"
            .to_owned(),
        interfaces => format!("by this machine, on {}", interfaces.join(", ")),
    };
    add(page, "announce", announced);
}

/// Formats what a detach removed.
pub fn detached(detached: &Detached, page: &mut Page) {
    if detached.interfaces.is_empty() {
        return page.line("nothing was attached; no pins are left");
    }
    let interfaces = detached.interfaces.join(", ");
    page.line(&format!("detached from {interfaces}; no pins are left"));
}
