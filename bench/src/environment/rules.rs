//! How many rules a packet may meet in the host's own network namespace.

use std::process::Command;

use serde_json::Value;

use super::said_by;

/// Programs that list the rules of iptables. Those for nftables list what `nft` lists, too.
const OF_IPTABLES: [&str; 2] = ["iptables-save", "ip6tables-save"];

/// Returns the facts: `net.rules.` and the program that counts them.
pub(super) fn facts() -> Vec<(String, String)> {
    let nft = said_by(Command::new("nft").args(["--json", "list", "ruleset"]));
    let nft = ("net.rules.nft".to_owned(), of_nft(&nft));
    let of_iptables = OF_IPTABLES.map(|program| {
        let rules = of_iptables(&said_by(&mut Command::new(program)));
        (format!("net.rules.{program}"), rules)
    });
    [nft].into_iter().chain(of_iptables).collect()
}

/// Counts the rules of a list of `nft`; nothing where there is none.
fn of_nft(list: &str) -> String {
    let Ok(list) = serde_json::from_str::<Value>(list) else {
        return String::new();
    };
    let objects = list["nftables"].as_array().into_iter().flatten();
    let rules = objects.filter(|object| object["rule"].is_object());
    rules.count().to_string()
}

/// Counts the rules of a list of `iptables-save`; nothing where there is none.
fn of_iptables(list: &str) -> String {
    let rules = list.lines().filter(|line| line.starts_with("-A "));
    match list {
        "" => String::new(),
        _ => rules.count().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_counted_and_not_tables_and_chains() {
        let list = r#"{"nftables": [{"metainfo": {}}, {"table": {}}, {"chain": {}}, {"rule": {}}, {"rule": {}}]}"#;
        assert_eq!(of_nft(list), "2");
        assert_eq!(of_nft(""), "");
        let list = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j ACCEPT\nCOMMIT";
        assert_eq!(of_iptables(list), "1");
        assert_eq!(of_iptables(""), "");
    }
}
