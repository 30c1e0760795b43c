//! Facts about the kernel that is running, as its configuration tells them where that is kept.

use std::{fs, process::Command};

use super::said_by;

/// Parts of the configuration that say when a task yields its CPU.
const PREEMPTION: [&str; 6] = [
    "PREEMPT_NONE",
    "PREEMPT_VOLUNTARY",
    "PREEMPT",
    "PREEMPT_LAZY",
    "PREEMPT_RT",
    "PREEMPT_DYNAMIC",
];

/// Returns the facts: `kernel.hz` and `kernel.preempt`.
pub(super) fn facts(release: &str) -> Vec<(String, String)> {
    let kept = fs::read_to_string(format!("/boot/config-{release}"));
    let config = kept.unwrap_or_else(|_| said_by(Command::new("zcat").arg("/proc/config.gz")));
    let facts = of_config(&config).into_iter();
    facts
        .map(|(name, value)| (format!("kernel.{name}"), value))
        .collect()
}

fn of_config(config: &str) -> [(&'static str, String); 2] {
    let value = |name: &str| {
        let settings = config
            .lines()
            .filter_map(|line| line.strip_prefix("CONFIG_"));
        let mut settings = settings.filter_map(|setting| setting.split_once('='));
        settings
            .find(|(own, _)| *own == name)
            .map(|(_, value)| value)
    };
    let preemption = PREEMPTION
        .into_iter()
        .filter(|name| value(name) == Some("y"));
    let preemption: Vec<&str> = preemption.collect();
    [
        ("hz", value("HZ").unwrap_or_default().to_owned()),
        ("preempt", preemption.join(", ")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_preemption_are_those_of_the_configuration() {
        let config = "CONFIG_PREEMPT_NONE=y\n# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_DYNAMIC=y\n\
                      CONFIG_HZ_250=y\nCONFIG_HZ=250\nCONFIG_PREEMPT_COUNT=y\n";
        let [hz, preempt] = of_config(config).map(|(_, value)| value);
        assert_eq!(hz, "250");
        assert_eq!(preempt, "PREEMPT_NONE, PREEMPT_DYNAMIC");
        assert_eq!(of_config("").map(|(_, value)| value), ["", ""]);
    }
}
