//! Masquerading rules in this network namespace; they use ports of the machine's addresses.

use std::fs;

use super::connection::{Connection, RequestError, find, generic_attributes};
use crate::netlink::{Attributes, NLM_F_DUMP, Request, read_string};

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETRULE`.
const GET_RULE: u16 = 10 << 8 | 7;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_TARGET_NAME: u16 = 1;

/// Tells whether an nftables rule masquerades, or whether legacy iptables has a NAT table, whose rules cannot be
/// listed. Returns `None` if the kernel does not answer.
#[must_use]
pub fn masquerades() -> Option<bool> {
    let has_legacy_table = |names: &str| {
        let names = fs::read_to_string(format!("/proc/net/{names}")).unwrap_or_default();
        names.lines().any(|name| name == "nat")
    };
    if has_legacy_table("ip_tables_names") || has_legacy_table("ip6_tables_names") {
        return Some(true);
    }
    match rules() {
        Ok(rules) => Some(rules.iter().any(|rule| rule_masquerades(rule))),
        Err(error) if is_without_nftables(&error) => Some(false),
        Err(_) => None,
    }
}

fn rules() -> Result<Vec<Vec<u8>>, RequestError> {
    // `struct nfgenmsg`: all families, version 0.
    Connection::netfilter()?.ask(Request::new(GET_RULE, NLM_F_DUMP, &[0u8; 4]))
}

fn is_without_nftables(error: &RequestError) -> bool {
    matches!(
        error.errno(),
        Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP | libc::EINVAL)
    )
}

fn rule_masquerades(rule: &[u8]) -> bool {
    let expressions = generic_attributes(rule).find(|(kind, _)| *kind == NFTA_RULE_EXPRESSIONS);
    let expressions = expressions.map_or(&[][..], |(_, run)| run);
    Attributes(expressions).any(|(_, expression)| {
        let text = |run, kind| find(run, kind).and_then(read_string);
        match text(expression, NFTA_EXPR_NAME).as_deref() {
            Some("masq") => true,
            // iptables-nft writes this for targets that nftables has no expression for.
            Some("target") => {
                let data = find(expression, NFTA_EXPR_DATA).unwrap_or(&[]);
                text(data, NFTA_TARGET_NAME).as_deref() == Some("MASQUERADE")
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::connection::{run, text};
    use super::*;

    fn rule(name: &str, data: &[u8]) -> Vec<u8> {
        let expression = run(&[(NFTA_EXPR_NAME, &text(name)), (NFTA_EXPR_DATA, data)]);
        let expressions = run(&[
            (1, &run(&[(NFTA_EXPR_NAME, &text("meta"))])),
            (1, &expression),
        ]);
        let mut body = vec![2, 0, 0, 0];
        body.extend(run(&[
            (1, &text("filter")),
            (NFTA_RULE_EXPRESSIONS, &expressions),
        ]));
        body
    }

    #[test]
    fn masquerade_is_found_among_expressions() {
        let target = |name| run(&[(NFTA_TARGET_NAME, &text(name))]);
        assert!(rule_masquerades(&rule("masq", &[])));
        assert!(rule_masquerades(&rule("target", &target("MASQUERADE"))));
        assert!(!rule_masquerades(&rule("target", &target("LOG"))));
        assert!(!rule_masquerades(&rule("counter", &[])));
        assert!(!rule_masquerades(&[]));
    }
}
