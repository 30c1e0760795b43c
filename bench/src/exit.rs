//! Exit codes: what each means, and what to do about it. The page of the bench has them as a table.

use std::{fmt::Write as _, process::ExitCode};

use crate::{
    host::{CoreTakenAway, FewCores, Hindrance},
    load::pktgen::PktgenError,
    preflight::{Noisy, Unable},
    report::wrong_packets,
    result::{OF_FULL_TABLE, Run},
    run::OfAnotherRun,
    scenario::System,
    stats::median,
    wire::{LinkDown, SystemEnded},
};

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// As it should.
    Success = 0,
    /// With an error that none of the others names.
    Failed = 1,
    /// With a command, scenario or results that cannot be used.
    Usage = 2,
    /// With a bar or a comparison that fails.
    Worse = 3,
    /// Without an answer.
    Inconclusive = 4,
    /// With packets that no system may send.
    WrongPackets = 5,
    /// On a machine that other work keeps busy.
    Noisy = 6,
    /// With a generator that has not sent what was asked of it.
    SlowGenerator = 7,
    /// With a full connection table.
    ConntrackFull = 8,
    /// With a device without carrier.
    LinkDown = 9,
    /// On a machine with settings that falsify figures.
    Settings = 10,
    /// Without rights.
    NoRights = 11,
    /// On a device whose driver runs no XDP.
    NoNativeXdp = 12,
    /// On a kernel without pktgen, or with one that others use.
    NoPktgen = 13,
    /// With a system that has ended while it was measured.
    SystemEnded = 14,
    /// On a machine that lacks something else.
    Unable = 77,
}

/// Share of what was offered to the direct wire that the generator must send.
const SENT: f64 = 0.99;

impl Exit {
    /// All codes.
    pub const ALL: [Self; 16] = [
        Self::Success,
        Self::Failed,
        Self::Usage,
        Self::Worse,
        Self::Inconclusive,
        Self::WrongPackets,
        Self::Noisy,
        Self::SlowGenerator,
        Self::ConntrackFull,
        Self::LinkDown,
        Self::Settings,
        Self::NoRights,
        Self::NoNativeXdp,
        Self::NoPktgen,
        Self::SystemEnded,
        Self::Unable,
    ];

    /// Returns the code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Says what happened.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "done: measured, all bars hold, better or the same",
            Self::Failed => "the command failed, or a file cannot be read or written",
            Self::Usage => "wrong usage or scenario, or results that cannot be compared",
            Self::Worse => "a bar fails, the second result is worse, or a report was edited",
            Self::Inconclusive => "inconclusive: an interval contains the bar, or both answers",
            Self::WrongPackets => {
                "wrong packets: answers were damaged, or came from another backend than their flow's"
            }
            Self::Noisy => {
                "noisy machine: other work took more of the core than `--max-noise` allows, or a hypervisor took it"
            }
            Self::SlowGenerator => {
                "slow generator: less than 99 % of what was offered to the direct wire was sent"
            }
            Self::ConntrackFull => "conntrack full: a connection table had no room",
            Self::LinkDown => "link down or flapping: a device on the way lost its carrier",
            Self::Settings => "`kernel.bpf_stats_enabled` is on, or the BPF JIT is off",
            Self::NoRights => "no rights to load BPF programs and make network namespaces",
            Self::NoNativeXdp => "no native XDP: the driver of a device runs none",
            Self::NoPktgen => {
                "no pktgen: the kernel has none, too few CPUs for its threads, or others use it"
            }
            Self::SystemEnded => {
                "a system has ended while it was measured: one of its programs, or the check of a device fails"
            }
            Self::Unable => {
                "this machine cannot run it: programs, CPUs or parts of the kernel are missing"
            }
        }
    }

    /// Says what to do.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Success => "nothing",
            Self::Failed | Self::Usage => "the message says what is wrong",
            Self::Worse => "look into the rows that are named",
            Self::Inconclusive => "more rounds, or a quieter machine",
            Self::WrongPackets => "a defect of the system: no figure of it counts",
            Self::Noisy => "end other work, or allow more and read marked percentiles with care",
            Self::SlowGenerator => "a lower rate, larger frames, or the generator `live`",
            Self::ConntrackFull => {
                "raise `net.netfilter.nf_conntrack_max`, or have fewer new flows in a trial"
            }
            Self::LinkDown => "bring it up, check cable and driver",
            Self::Settings => {
                "`sysctl kernel.bpf_stats_enabled=0`, `sysctl net.core.bpf_jit_enable=1`"
            }
            Self::NoRights => "run it as root",
            Self::NoNativeXdp => "a device or kernel whose driver has it",
            Self::NoPktgen => "`modprobe pktgen`, fewer threads, or the generator `live`",
            Self::SystemEnded => {
                "the message has the last that it wrote; the same command goes on after the rounds that are kept"
            }
            Self::Unable => "the message names each with its remedy",
        }
    }

    /// Lists codes for the help of a command.
    pub fn help(codes: &[Self]) -> String {
        let mut text = "Exit codes:".to_owned();
        for one in codes {
            let _ = write!(text, "\n  {:<3} {}", one.code(), one.meaning());
        }
        text
    }

    /// Tells how a command with this error ends.
    pub fn of_error(error: &anyhow::Error) -> Self {
        let of_cause = |cause: &(dyn std::error::Error + 'static)| {
            if let Some(hindrance) = cause.downcast_ref::<Hindrance>() {
                Some(match hindrance {
                    Hindrance::NoRights => Self::NoRights,
                    Hindrance::BpfStats | Hindrance::NoJit => Self::Settings,
                })
            } else if let Some(Unable(obstacles)) = cause.downcast_ref() {
                let first = obstacles.first();
                Some(first.map_or(Self::Unable, |obstacle| obstacle.exit))
            } else if cause.is::<FewCores>() {
                Some(Self::Unable)
            } else if cause.is::<OfAnotherRun>() {
                Some(Self::Usage)
            } else if cause.is::<Noisy>() || cause.is::<CoreTakenAway>() {
                Some(Self::Noisy)
            } else if cause.is::<LinkDown>() {
                Some(Self::LinkDown)
            } else if cause.is::<SystemEnded>() {
                Some(Self::SystemEnded)
            } else if let Some(lab::Error::NoNativeXdp { .. }) = cause.downcast_ref() {
                Some(Self::NoNativeXdp)
            } else if let Some(error) = cause.downcast_ref::<PktgenError>() {
                error.is_of_machine().then_some(Self::NoPktgen)
            } else {
                None
            }
        };
        error.chain().find_map(of_cause).unwrap_or(Self::Failed)
    }

    /// Tells how a run with this result ends. Other work may have taken `most_noise` (0 to 1) of the core.
    pub fn of_run(run: &Run, most_noise: f64) -> Self {
        let trials = || run.series.iter().flat_map(|series| &series.trials);
        let lost = run.quietness.iter().map(|look| look.lost);
        let is_full = |place: &String| OF_FULL_TABLE.iter().any(|own| place.ends_with(own));
        if wrong_packets(run) > 0 {
            Self::WrongPackets
        } else if trials().any(|trial| !trial.carrier_changes.is_empty()) {
            Self::LinkDown
        } else if trials().any(|trial| trial.drops.keys().any(is_full)) {
            Self::ConntrackFull
        } else if is_generator_slow(run) {
            Self::SlowGenerator
        } else if median(&lost.collect::<Vec<_>>()) > most_noise {
            Self::Noisy
        } else {
            Self::Success
        }
    }
}

/// Where a system is in between, it may be what holds the generator up.
fn is_generator_slow(run: &Run) -> bool {
    let direct = System::Direct.to_string();
    let mut wires = run.series.iter().filter(|series| series.system == direct);
    wires.any(|series| {
        let [offered, sent, _] = series.totals();
        (sent as f64) < offered as f64 * SENT
    })
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::{
        host,
        preflight::Obstacle,
        result::tests::{rates, sample},
    };

    /// The table of the page.
    const PAGE: &str = include_str!("../README.md");

    #[test]
    fn the_page_has_each_code_with_its_meaning_and_remedy_and_no_other() {
        let table = PAGE
            .split_once("| code | meaning | what to do |")
            .unwrap()
            .1;
        let rows = table.trim_start().lines().skip(1);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
        let row = |one: Exit| format!("| {} | {} | {} |", one.code(), one.meaning(), one.remedy());
        assert_eq!(rows, Exit::ALL.map(row));
    }

    #[test]
    fn codes_differ_and_rise() {
        assert!(Exit::ALL.is_sorted_by(|one, next| one.code() < next.code()));
    }

    #[test]
    fn errors_have_the_code_of_their_cause_whatever_was_attempted() {
        let of = |cause: anyhow::Error| Exit::of_error(&cause.context("bringing the systems up"));
        let unable = |exit| {
            let text = "it is missing".to_owned();
            anyhow!(Unable(vec![Obstacle { text, exit }]))
        };
        let no_xdp = lab::Error::NoNativeXdp {
            namespace: "edge0".to_owned(),
            interface: "eth0".to_owned(),
        };
        let ended = SystemEnded {
            system: System::OursIpip,
            what: "guideway of edge0: signal: 9 (SIGKILL)".to_owned(),
            log: "panicked".to_owned(),
        };
        for (cause, expected) in [
            (anyhow!("something else"), Exit::Failed),
            (anyhow!(ended), Exit::SystemEnded),
            (anyhow!(Hindrance::NoRights), Exit::NoRights),
            (anyhow!(Hindrance::BpfStats), Exit::Settings),
            (anyhow!(Hindrance::NoJit), Exit::Settings),
            (host::cores(usize::MAX).unwrap_err(), Exit::Unable),
            (unable(Exit::Unable), Exit::Unable),
            (unable(Exit::NoRights), Exit::NoRights),
            (anyhow!(OfAnotherRun(String::new())), Exit::Usage),
            (anyhow!(Noisy { lost: 0.5 }), Exit::Noisy),
            (anyhow!(CoreTakenAway { core: 1, tries: 5 }), Exit::Noisy),
            (anyhow!(LinkDown("edge0: eth0".to_owned())), Exit::LinkDown),
            (anyhow!(no_xdp), Exit::NoNativeXdp),
            (anyhow!(PktgenError::Missing), Exit::NoPktgen),
        ] {
            assert_eq!(of(cause), expected);
        }
    }

    #[test]
    fn runs_have_the_code_of_what_was_found_in_them() {
        let of = |change: fn(&mut Run)| {
            let mut run = sample(1, 1.5).run;
            for look in &mut run.quietness {
                look.lost = 0.01;
            }
            change(&mut run);
            Exit::of_run(&run, 0.25)
        };
        assert_eq!(of(|_| ()), Exit::Success);
        assert_eq!(of(|run| run.quietness[0].lost = 0.3), Exit::Noisy);
        // A system in between that takes less is no slow generator.
        assert_eq!(
            of(|run| run.series[1].trials[0].tally.offered *= 2),
            Exit::Success
        );
        assert_eq!(
            of(|run| run.series[0].trials[0].tally.offered *= 2),
            Exit::SlowGenerator
        );
        let full = |run: &mut Run| {
            let drops = &mut run.series[1].trials[2].drops;
            drops.insert("edge4: conntrack early_drop".to_owned(), 3);
        };
        assert_eq!(of(full), Exit::ConntrackFull);
        let flapping = |run: &mut Run| {
            let changes = &mut run.series[1].trials[2].carrier_changes;
            changes.insert("edge0: eth0".to_owned(), 2);
        };
        assert_eq!(of(flapping), Exit::LinkDown);
        // What is worst is told.
        let wrong = |run: &mut Run| {
            run.series[1].trials[2].tally.corrupt = 1;
            run.quietness[0].lost = 0.9;
        };
        assert_eq!(of(wrong), Exit::WrongPackets);
        assert_eq!(Exit::of_run(&rates().run, 1.0), Exit::Success);
    }
}
