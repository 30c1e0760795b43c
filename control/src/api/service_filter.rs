//! Selects the services of a request.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::desired::ServiceKey;

/// Selects the services of a request. Without any field it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceFilter {
    /// A name or key: `web`, `default/web`, `default/web:http`, `default/web:80`, `192.0.2.10`, `192.0.2.10:80`
    /// or `192.0.2.10:80/tcp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whether to count flows, which takes a walk through the tables of flows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connections: bool,
}

/// The parts of a service's name `namespace/name:port`. Namespace and port are empty if the name has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameParts<'n> {
    /// The text before the slash.
    pub namespace: &'n str,
    /// The name itself.
    pub name: &'n str,
    /// The text after the colon.
    pub port: &'n str,
}

impl<'n> NameParts<'n> {
    /// Splits a name.
    pub fn of(text: &'n str) -> Self {
        let (namespace, rest) = text.split_once('/').unwrap_or(("", text));
        let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
        Self {
            namespace,
            name,
            port,
        }
    }
}

impl ServiceFilter {
    /// Returns whether the filter selects a service, given its name in the configuration and its key.
    pub fn includes(&self, name: &str, key: &ServiceKey) -> bool {
        let own = NameParts::of(name);
        let is_in = |namespace: &String| namespace == own.namespace;
        self.namespace.as_ref().is_none_or(is_in)
            && (self.service.as_ref()).is_none_or(|wanted| is_meant(wanted, own, key))
    }
}

fn is_meant(wanted: &str, own: NameParts<'_>, key: &ServiceKey) -> bool {
    if let Ok(wanted) = wanted.parse::<ServiceKey>() {
        return wanted == *key;
    }
    if let Ok(wanted) = wanted.parse::<SocketAddr>() {
        return wanted == SocketAddr::new(key.address, key.port);
    }
    if let Ok(wanted) = wanted.parse::<IpAddr>() {
        return wanted == key.address;
    }
    let wanted = NameParts::of(wanted);
    wanted.name == own.name
        && (wanted.namespace.is_empty() || wanted.namespace == own.namespace)
        && (wanted.port.is_empty()
            || wanted.port == own.port
            || wanted.port == key.port.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_meant_by_name_address_and_namespace() {
        let key: ServiceKey = "192.0.2.10:80/tcp".parse().unwrap();
        let includes = |service: &str, namespace: &str| {
            let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let filter = ServiceFilter {
                service: given(service),
                namespace: given(namespace),
                connections: false,
            };
            filter.includes("default/web:http", &key)
        };
        for service in [
            "",
            "web",
            "default/web",
            "web:80",
            "default/web:http",
            "192.0.2.10",
            "192.0.2.10:80",
            "192.0.2.10:80/tcp",
        ] {
            assert!(includes(service, ""), "{service}");
            assert!(includes(service, "default"), "{service}");
            assert!(!includes(service, "other"), "{service}");
        }
        for service in [
            "we",
            "other/web",
            "web:443",
            "192.0.2.1",
            "192.0.2.10:80/udp",
        ] {
            assert!(!includes(service, ""), "{service}");
        }
    }
}
