//! The programs on this machine's devices: attached, inherited from an earlier agent, or lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use fastpath::attach::{AttachError, Attachment, EgressAttachment, EgressHook, Mode, Options};
use fastpath::facts::Devices;
use fastpath::load::Loaded;
use fastpath::pins::{PinError, Pins};
use fastpath::tables::{FormerTables, InheritedFlows, Tables};

use super::problems::{Item, Problems};
use super::view::Running;
use crate::api::{Egress, Interface};
use crate::chain::chain;
use crate::desired::AttachMode;

/// An attached program, and the mode that was configured for it.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) allowed: AttachMode,
    pub(super) attachment: Attachment,
}

/// The loaded programs, their pins, and the devices that have them.
#[derive(Debug)]
pub(super) struct Attachments {
    pub(super) loaded: Loaded,
    pub(super) pins: Pins,
    /// Keeps other agents off the pins while it is open.
    _pins_lock: File,
    /// Whether an earlier agent's programs use other tables than ours: of another layout, or of other sizes.
    pub(super) has_former_tables: bool,
    /// Those tables, as far as they can be read, until our programs have replaced those everywhere.
    former_tables: Vec<FormerTables>,
    /// Why frames that XDP fails to send are not counted; `None` if they are.
    pub(super) uncounted: Option<String>,
    pub(super) interfaces: BTreeMap<String, Attached>,
    /// Interfaces with an earlier agent's program, which this agent has not replaced yet.
    inherited: BTreeSet<String>,
    /// Configured interfaces without the program, with their indices at the last look.
    unattached: BTreeMap<String, Option<u32>>,
    /// Devices with the egress program.
    pub(super) egress: BTreeMap<String, EgressAttachment>,
    /// Devices with an earlier agent's egress program, which this agent has not replaced yet.
    inherited_egress: BTreeSet<String>,
}

impl Attachments {
    pub(super) fn new(
        loaded: Loaded,
        pins: Pins,
        pins_lock: File,
        has_former_tables: bool,
    ) -> Result<Self, PinError> {
        let former_tables = FormerTables::open(&pins).unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "flows of the former tables begin anew"
            );
            Vec::new()
        });
        Ok(Self {
            former_tables,
            inherited: pins.interfaces()?.into_iter().collect(),
            inherited_egress: pins.egress_devices()?.into_iter().collect(),
            loaded,
            pins,
            _pins_lock: pins_lock,
            has_former_tables,
            uncounted: None,
            interfaces: BTreeMap::new(),
            unattached: BTreeMap::new(),
            egress: BTreeMap::new(),
        })
    }

    /// Copies what programs of former tables remember and have counted into our tables. To be called before ours take
    /// their place.
    pub(super) fn inherit(&mut self, tables: &mut Tables) {
        // To copy a million flows takes seconds; the second time finds those that began meanwhile.
        for _ in 0..2 {
            self.inherit_flows(tables, false);
        }
        for former in &self.former_tables {
            tables.inherit_counters(former);
        }
        self.tell_of_copying(tables, true);
    }

    /// Copies flows for the last time once no such program runs any more, for flows that began while one did.
    pub(super) fn finish_inheritance(&mut self, tables: &mut Tables) {
        if self.inherited.is_empty() && self.inherited_egress.is_empty() {
            self.inherit_flows(tables, true);
            self.tell_of_copying(tables, false);
            self.former_tables.clear();
        }
    }

    /// Lets egress drop what pods send on connections that only the former tables have, until those are copied.
    fn tell_of_copying(&self, tables: &mut Tables, is_copying: bool) {
        if !self.former_tables.iter().any(FormerTables::has_pod_flows) {
            return;
        }
        if let Err(error) = tables.set_copying_flows(is_copying) {
            tracing::warn!(
                error = chain(&error),
                "replies on connections that begin at this moment may leave untranslated"
            );
        }
    }

    fn inherit_flows(&mut self, tables: &mut Tables, have_ended: bool) {
        for former in &mut self.former_tables {
            match tables.inherit_flows(former, have_ended) {
                Ok(flows) => log_inherited(flows),
                Err(error) => tracing::warn!(
                    error = chain(&error),
                    "flows of the former tables begin anew"
                ),
            }
        }
    }

    pub(super) fn attach(&mut self, name: &str, allowed: AttachMode) -> Result<(), AttachError> {
        let options = Options {
            mode: match allowed {
                AttachMode::Native => Mode::Native,
                AttachMode::NativeOrGeneric => Mode::NativeOrGeneric,
                AttachMode::Generic => Mode::Generic,
            },
            ..Options::default()
        };
        self.count_failures();
        let attachment = self.loaded.attach(name, &options)?;
        tracing::info!(
            interface = name,
            mode = %attachment.mode,
            adopted = attachment.replaced.is_some(),
            "attached"
        );
        if let Some(obstacle) = &attachment.fallback {
            tracing::warn!(
                interface = name,
                reason = chain(obstacle.as_ref()),
                "native mode is not possible, generic mode is several times slower"
            );
        }
        if !attachment.switched_off.is_empty() {
            tracing::warn!(interface = name, offloads = ?attachment.switched_off, "switched off: generic mode needs single packets");
        }
        self.inherited.remove(name);
        let attached = Attached {
            allowed,
            attachment,
        };
        self.interfaces.insert(name.to_owned(), attached);
        Ok(())
    }

    /// Starts to count frames that XDP fails to send. If that fails, the agent serves without the counters.
    fn count_failures(&mut self) {
        let uncounted = self.loaded.count_failures().err().map(|error| {
            let reason = chain(&error);
            format!("frames that XDP fails to send are not counted: {reason}")
        });
        if let Some(warning) = &uncounted
            && uncounted != self.uncounted
        {
            tracing::warn!("{warning}");
        }
        self.uncounted = uncounted;
    }

    pub(super) fn detach(&mut self, name: &str) -> Result<(), PinError> {
        self.pins.detach(name)?;
        tracing::info!(interface = name, "detached");
        self.inherited.remove(name);
        self.interfaces.remove(name);
        Ok(())
    }

    pub(super) fn attach_egress(&mut self, device: &str) -> Result<(), AttachError> {
        let attachment = self.loaded.attach_egress(device, EgressHook::TcxOrClsact)?;
        tracing::info!(
            device,
            mode = %attachment.mode,
            adopted = attachment.replaced.is_some(),
            "egress program attached"
        );
        for other in &attachment.ahead {
            tracing::warn!(
                device,
                ahead = %other,
                "runs before the egress program: replies that it ends with anything but TC_ACT_UNSPEC are not translated"
            );
        }
        self.inherited_egress.remove(device);
        self.egress.insert(device.to_owned(), attachment);
        Ok(())
    }

    pub(super) fn detach_egress(&mut self, device: &str) -> Result<(), PinError> {
        self.pins.detach_egress(device)?;
        tracing::info!(device, "egress program detached");
        self.inherited_egress.remove(device);
        self.egress.remove(device);
        Ok(())
    }

    /// Detaches every program and removes all pins. Returns the interfaces that had a program.
    pub(super) fn detach_all(&mut self) -> Result<Vec<String>, PinError> {
        let interfaces = self.pins.remove_all()?;
        self.interfaces.clear();
        self.egress.clear();
        Ok(interfaces)
    }

    /// Lists the interfaces with the program and the configured mode, which is `None` for an earlier agent's.
    pub(super) fn interfaces_in_force(&self) -> BTreeMap<String, Option<AttachMode>> {
        let inherited = self.inherited.iter().map(|name| (name.clone(), None));
        let attached = self.interfaces.iter();
        let attached = attached.map(|(name, attached)| (name.clone(), Some(attached.allowed)));
        inherited.chain(attached).collect()
    }

    /// Lists the devices with the egress program, and whether this agent has attached its own there.
    pub(super) fn egress_in_force(&self) -> BTreeMap<String, bool> {
        let inherited = self
            .inherited_egress
            .iter()
            .map(|name| (name.clone(), false));
        let attached = self.egress.keys().map(|name| (name.clone(), true));
        inherited.chain(attached).collect()
    }

    /// Finds the configured interfaces without the program. Returns whether these changed.
    pub(super) fn look_for_unattached<'n>(
        &mut self,
        wanted: impl Iterator<Item = &'n String>,
    ) -> bool {
        let unattached = wanted.filter(|name| !self.interfaces.contains_key(*name));
        let unattached = unattached
            .map(|name| (name.clone(), index_of(name)))
            .collect();
        let is_changed = unattached != self.unattached;
        self.unattached = unattached;
        is_changed
    }

    /// Forgets programs that interfaces and devices have lost. Returns whether there were any.
    ///
    /// A device counts as inherited then, because its pin may still be there.
    pub(super) fn forget_lost(&mut self) -> bool {
        if self.interfaces.is_empty() && self.egress.is_empty() {
            return false;
        }
        match Devices::list() {
            Ok(mut devices) => {
                self.forget_lost_interfaces(&devices) | self.forget_lost_egress(&mut devices)
            }
            Err(error) => {
                // The next event or the timer repeats this.
                tracing::warn!(error = chain(&error), "cannot list the network devices");
                false
            }
        }
    }

    fn forget_lost_interfaces(&mut self, devices: &Devices) -> bool {
        let lost = self.interfaces.extract_if(.., |interface, attached| {
            let Attachment {
                interface: name_then,
                ifindex,
                program,
                ..
            } = &attached.attachment;
            // By the name of that time: the configuration may use an alternative name.
            let reason = match devices.find(name_then) {
                Some(device) if device.index == *ifindex && device.runs(*program) => return false,
                Some(_) => "somebody removed the program or its pin",
                None => "the interface is gone or has another name",
            };
            tracing::warn!(interface, reason, "not attached any more");
            true
        });
        let lost: Vec<String> = lost.map(|(name, _)| name).collect();
        let is_any = !lost.is_empty();
        self.inherited.extend(lost);
        is_any
    }

    fn forget_lost_egress(&mut self, devices: &mut Devices) -> bool {
        let lost = self.egress.extract_if(.., |_, attachment| {
            let EgressAttachment {
                device,
                ifindex,
                program,
                ..
            } = attachment;
            let runs = devices.runs_at_egress(device, *ifindex, *program);
            // If the kernel does not answer, the next event or the timer repeats this.
            !runs.unwrap_or(true)
        });
        let lost: Vec<String> = lost.map(|(device, _)| device).collect();
        for device in &lost {
            tracing::info!(device, "the egress program is gone, or the device is");
        }
        let is_any = !lost.is_empty();
        self.inherited_egress.extend(lost);
        is_any
    }

    /// Returns the index of the first interface with the program; 0 if there is none.
    pub(super) fn first_ifindex(&self) -> u32 {
        let mut attached = self.interfaces.values();
        attached
            .next()
            .map_or(0, |attached| attached.attachment.ifindex)
    }

    pub(super) fn interface_status(
        &self,
        wanted: &BTreeMap<String, AttachMode>,
        problems: &Problems,
    ) -> Vec<Interface> {
        let status = |(name, mode): (&String, &AttachMode)| {
            let attachment = self
                .interfaces
                .get(name)
                .map(|attached| &attached.attachment);
            let problem = problems.of(&Item::Interface(name.clone())).cloned();
            let fallback = attachment.and_then(|attachment| attachment.fallback.as_deref());
            Interface {
                name: name.clone(),
                wanted: mode.name().to_owned(),
                mode: attachment.map(|attachment| attachment.mode.to_string()),
                note: problem.or_else(|| fallback.map(|error| chain(error))),
            }
        };
        wanted.iter().map(status).collect()
    }

    /// Lists the devices that have or should have the egress program.
    pub(super) fn egress_status(
        &self,
        wanted: BTreeSet<String>,
        problems: &Problems,
    ) -> Vec<Egress> {
        let attached: BTreeSet<String> = self.egress.keys().cloned().collect();
        let status = |device: String| {
            let attachment = self.egress.get(&device);
            let problem = problems.of(&Item::Egress(device.clone())).cloned();
            let ahead = attachment.and_then(|attachment| attachment.ahead.first());
            let ahead = ahead.map(|other| {
                format!("device {device}: {other} runs first and may end replies untranslated")
            });
            Egress {
                mode: attachment.map(|attachment| attachment.mode.to_string()),
                note: problem.or(ahead),
                device,
            }
        };
        (&attached | &wanted).into_iter().map(status).collect()
    }

    /// Lists where this agent has attached the XDP program.
    pub(super) fn running_xdp(&self) -> Vec<Running> {
        let running = |(name, attached): (&String, &Attached)| Running {
            wanted: name.clone(),
            device: attached.attachment.interface.clone(),
            ifindex: attached.attachment.ifindex,
            program: attached.attachment.program,
        };
        self.interfaces.iter().map(running).collect()
    }

    /// Lists where this agent has attached the egress program.
    pub(super) fn running_egress(&self) -> Vec<Running> {
        let running = |(name, attachment): (&String, &EgressAttachment)| Running {
            wanted: name.clone(),
            device: attachment.device.clone(),
            ifindex: attachment.ifindex,
            program: attachment.program,
        };
        self.egress.iter().map(running).collect()
    }
}

fn log_inherited(flows: InheritedFlows) {
    let InheritedFlows {
        local,
        to_pods,
        nat,
        left_out,
    } = flows;
    tracing::info!(local, to_pods, nat, "flows of the former tables go on");
    if left_out > 0 {
        tracing::warn!(
            left_out,
            "smaller tables take the newest flows; the oldest begin anew"
        );
    }
}

pub(super) fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}
