//! The label selectors of pools, read by the rules of Kubernetes.
//!
//! The API server checks them with the patterns here, but a pool may be older than its checks. What it takes for a
//! selector that selects nobody, such as `In` without values, takes nothing away here: it cannot be read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Expression, Selector};

use crate::index::quoted;

/// The longest key of a label: prefix, slash and name.
pub(super) const LONGEST_KEY: usize = 253 + 1 + 63;
/// The longest value of a label, and the longest name in its key.
pub(super) const LONGEST_VALUE: usize = 63;
/// Labels, expressions, and values of an expression that the API server takes.
pub(super) const MOST_PARTS: usize = 32;
/// What the key of a label looks like.
pub(super) const KEY: &str =
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// What the value of a label looks like.
pub(super) const VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";
/// Operators that need values, and those that take none.
pub(super) const WITH_VALUES: [&str; 2] = ["In", "NotIn"];
pub(super) const WITHOUT_VALUES: [&str; 2] = ["Exists", "DoesNotExist"];

/// Reads a selector; without one everything is selected.
///
/// # Errors
///
/// With what cannot be read of it, and what to do.
pub(super) fn read(selector: Option<&LabelSelector>) -> Result<Selector, String> {
    let mut expressions = Vec::new();
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    for (key, value) in labels.into_iter().flatten() {
        check("key", key, is_key)?;
        check("value", value, is_value)?;
        expressions.push(Expression::Equal(key.clone(), value.clone()));
    }
    let requirements = selector.and_then(|selector| selector.match_expressions.as_ref());
    for requirement in requirements.into_iter().flatten() {
        expressions.push(expression(requirement)?);
    }
    Ok(expressions.into_iter().collect())
}

fn expression(requirement: &LabelSelectorRequirement) -> Result<Expression, String> {
    let LabelSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    check("key", key, is_key)?;
    let values = values.as_deref().unwrap_or_default();
    for value in values {
        check("value", value, is_value)?;
    }
    let operator = operator.as_str();
    let [needs, takes_none] =
        [WITH_VALUES, WITHOUT_VALUES].map(|operators| operators.contains(&operator));
    if !needs && !takes_none {
        return Err(format!(
            "operator {} is none; use In, NotIn, Exists or DoesNotExist",
            quoted(operator)
        ));
    }
    if needs == values.is_empty() {
        let what = if needs { "needs" } else { "takes no" };
        return Err(format!(
            "operator {operator} of key {} {what} values",
            quoted(key)
        ));
    }
    let (key, values) = (key.clone(), values.iter().cloned().collect());
    Ok(match operator {
        "In" => Expression::In(key, values),
        "NotIn" => Expression::NotIn(key, values),
        "Exists" => Expression::Exists(key),
        _ => Expression::DoesNotExist(key),
    })
}

fn check(what: &str, text: &str, is_fine: impl Fn(&str) -> bool) -> Result<(), String> {
    if is_fine(text) {
        return Ok(());
    }
    Err(format!(
        "{} is no {what} that a label can have",
        quoted(text)
    ))
}

/// Tells whether a text fits [`KEY`].
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').unwrap_or(("a", text));
    let in_prefix = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && is_value(name) && {
        let length = 1..=LONGEST_KEY - 1 - LONGEST_VALUE;
        let is_inner = |byte: &u8| in_prefix(*byte) || b"-.".contains(byte);
        length.contains(&prefix.len())
            && prefix.bytes().all(|byte| is_inner(&byte))
            && has_ends(prefix, in_prefix)
    }
}

/// Tells whether a text fits [`VALUE`].
fn is_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.is_empty()
        || (text.len() <= LONGEST_VALUE
            && text.bytes().all(is_inner)
            && has_ends(text, |byte| byte.is_ascii_alphanumeric()))
}

fn has_ends(text: &str, may_be: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(|byte| may_be(*byte)))
}

#[cfg(test)]
mod tests {
    use kube::core::SelectorExt;
    use serde_json::{Value, json};

    use super::*;

    fn parsed(selector: Value) -> Result<Selector, String> {
        read(Some(&serde_json::from_value(selector).unwrap()))
    }

    #[test]
    fn what_selects_by_the_rules_is_read() {
        let labels = [("example.com/tier", "gold"), ("app", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        for selector in [
            json!({}),
            json!({"matchLabels": {"example.com/tier": "gold", "app": ""}}),
            json!({"matchExpressions": [
                {"key": "app", "operator": "In", "values": ["", "x"]},
                {"key": "app", "operator": "Exists", "values": []},
                {"key": "other", "operator": "DoesNotExist"},
                {"key": "app", "operator": "NotIn", "values": ["x"]},
            ]}),
        ] {
            let read = parsed(selector.clone()).unwrap();
            assert!(read.matches(&labels.clone().into()), "{selector}");
        }
        assert!(read(None).unwrap().selects_all());
    }

    #[test]
    fn what_breaks_the_rules_is_named() {
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let long = "a".repeat(64);
        for (selector, named) in [
            (json!({"matchLabels": {"a b": "x"}}), "\"a b\" is no key"),
            (json!({"matchLabels": {"A/b": "x"}}), "\"A/b\" is no key"),
            (json!({"matchLabels": {"/b": "x"}}), "\"/b\" is no key"),
            (json!({"matchLabels": {"a/": "x"}}), "\"a/\" is no key"),
            (json!({"matchLabels": {"a": "-x"}}), "\"-x\" is no value"),
            (json!({"matchLabels": {"a": long}}), "is no value"),
            (expression("", "Exists", json!(null)), "\"\" is no key"),
            (
                expression("a", "in", json!(["x"])),
                "operator \"in\" is none",
            ),
            (
                expression("a", "In", json!(null)),
                "In of key \"a\" needs values",
            ),
            (expression("a", "In", json!([])), "needs values"),
            (expression("a", "NotIn", json!([])), "needs values"),
            (expression("a", "NotIn", json!(["x y"])), "is no value"),
            (expression("a", "Exists", json!(["x"])), "takes no values"),
        ] {
            let error = parsed(selector.clone()).unwrap_err();
            assert!(error.contains(named), "{selector}: {error}");
        }
    }
}
