//! Pages about packets: dropped ones, and the path of one flow or frame.

use super::{last_untrusted, only_if, rate};
use crate::api::{AtAddress, Detached, Flow, Flows, Reason, Trace, Which};
use crate::reasons::{Explanation, explanation};
use crate::render::{Table, count, duration, percent, printable, wrapped};

/// Width of a line after its title.
const LINE: usize = 71;

/// Formats the reasons of packets that were not forwarded. Reasons without packets are shown only with `all`.
pub fn drops(reasons: &[Reason], all: bool) -> String {
    let rates = reasons.iter().any(|reason| reason.rates.is_some());
    let rates = only_if(rates, ">PKT/S");
    let mut table = Table::new(["ACTION", "REASON", ">PACKETS", rates, "MEANING"]);
    let mut notes = String::new();
    for reason in reasons {
        for (counter, frames) in &reason.drivers {
            notes += &format!("{}: the driver counts {counter} {frames}\n", reason.reason);
        }
        notes += &reason.last.as_ref().map(last_untrusted).unwrap_or_default();
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
    table.render("nothing dropped or passed") + &notes
}

/// Formats flows, and the number of further ones.
pub fn flows(flows: &Flows) -> String {
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
    let more = match flows.more {
        0 => String::new(),
        more => format!("and {more} more; --limit lists more of them\n"),
    };
    table.render("no flows") + &more
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
pub fn explained(explanation: &Explanation) -> String {
    let mut page = Lines::default();
    page.add("reason", explanation.reason);
    page.add("action", explanation.action);
    page.add("meaning", explanation.meaning);
    page.add("cause", explanation.cause);
    page.add("remedy", explanation.remedy);
    page.0
}

/// A page of lines that begin with a title.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, title: &str, text: impl AsRef<str>) {
        let mut title = title;
        for line in wrapped(text.as_ref(), LINE) {
            self.0 += &format!("{title:<9}{line}\n");
            title = "";
        }
    }

    /// Adds hexadecimal digits, 16 bytes per line.
    fn add_bytes(&mut self, title: &str, digits: &str) {
        for (index, line) in digits.as_bytes().chunks(32).enumerate() {
            let pairs = line.chunks(2).map(|pair| String::from_utf8_lossy(pair));
            let title = if index == 0 { title } else { "" };
            self.add(title, pairs.collect::<Vec<_>>().join(" "));
        }
    }
}

/// Formats the path of a frame.
pub fn trace(trace: &Trace) -> String {
    let mut page = Lines::default();
    for step in &trace.steps {
        page.add(&step.name, printable(&step.text));
    }
    page.add_bytes("before", &trace.before);
    if trace.after != trace.before {
        page.add_bytes("after", &trace.after);
    }
    let action = &trace.action;
    let verdict = match (&trace.reason, &trace.device) {
        (Some(reason), _) => format!("{action}: {reason}"),
        (None, Some(device)) => format!("{action} by {device}"),
        (None, None) => action.clone(),
    };
    page.add("verdict", verdict);
    page.0
}

/// Formats the steps of a backend's lookup.
pub fn which(which: &Which) -> String {
    let mut page = Lines::default();
    let name = which.name.as_ref().map(|name| format!(" ({name})"));
    page.add("service", which.service.clone() + &name.unwrap_or_default());
    page.add("from", &which.from);
    if let Some(choice) = &which.choice {
        page.add("hash", format!("{:#010x}", choice.hash));
        page.add("slot", format!("{} of {}", choice.slot, choice.table_size));
        let weight = choice.weight.map(|weight| format!("weight {weight}, "));
        let owns = format!(
            "{} ({}owns {} slots, {})",
            choice.backend,
            weight.unwrap_or_default(),
            choice.slots,
            percent(choice.slots.into(), choice.table_size.into())
        );
        page.add("backend", owns);
        page.add("mode", &choice.mode);
    }
    if let Some(ends) = &which.translated {
        page.add("nat", ends);
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
    page.add("verdict", verdict);
    if let Some(next_hop) = &which.next_hop {
        page.add("next hop", next_hop);
    }
    page.0
}

/// Formats the use of an address on a machine.
pub fn at_address(at: &AtAddress) -> String {
    let mut page = Lines::default();
    page.add("address", at.address.to_string());
    let services = match at.services.as_slice() {
        [] => "none".to_owned(),
        services => services.join(" "),
    };
    page.add("services", services);
    let announced = match at.announced_on.as_slice() {
        [] => "not by this machine; in a cluster, `guideway cluster which` asks all of them"
            .to_owned(),
        interfaces => format!("by this machine, on {}", interfaces.join(", ")),
    };
    page.add("announce", announced);
    page.0
}

/// Formats what a detach removed.
pub fn detached(detached: &Detached) -> String {
    if detached.interfaces.is_empty() {
        return "nothing was attached; no pins are left\n".to_owned();
    }
    let interfaces = detached.interfaces.join(", ");
    format!("detached from {interfaces}; no pins are left\n")
}
