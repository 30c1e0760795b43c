//! Reads the label selectors of pools by the rules of Kubernetes.
//!
//! The API server checks selectors with the patterns declared here, but a pool may be older than these checks.
//! Kubernetes takes some invalid selectors, such as `In` without values, as selecting nothing. Here they count
//! as unreadable, so that no Service loses its address.

use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Expression, Selector};
use regex::Regex;

use crate::index::quoted;

/// Longest key of a label: prefix, slash and name.
pub(super) const LONGEST_KEY: usize = 253 + 1 + 63;
/// Longest value of a label, and longest name in its key.
pub(super) const LONGEST_VALUE: usize = 63;
/// Most labels, expressions and values of an expression that the API server accepts.
pub(super) const MOST_PARTS: usize = 32;
/// Pattern of a label's key.
pub(super) const KEY: &str =
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// Pattern of a label's value.
pub(super) const VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";
static IS_KEY: LazyLock<Regex> = LazyLock::new(|| Regex::new(KEY).expect("a pattern"));
static IS_VALUE: LazyLock<Regex> = LazyLock::new(|| Regex::new(VALUE).expect("a pattern"));
/// Operators that need values, and operators that take none.
pub(super) const WITH_VALUES: [&str; 2] = ["In", "NotIn"];
pub(super) const WITHOUT_VALUES: [&str; 2] = ["Exists", "DoesNotExist"];

/// Reads a selector. No selector selects everything.
///
/// # Errors
///
/// With the part that is unreadable, and what to do.
pub(super) fn read(selector: Option<&LabelSelector>) -> Result<Selector, String> {
    let mut expressions = Vec::new();
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    for (key, value) in labels.into_iter().flatten() {
        check("key", key, &IS_KEY)?;
        check("value", value, &IS_VALUE)?;
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
    check("key", key, &IS_KEY)?;
    let values = values.as_deref().unwrap_or_default();
    for value in values {
        check("value", value, &IS_VALUE)?;
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

fn check(what: &str, text: &str, pattern: &Regex) -> Result<(), String> {
    if pattern.is_match(text) {
        return Ok(());
    }
    Err(format!(
        "{} is no {what} that a label can have",
        quoted(text)
    ))
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
