//! What is read of objects, be they hostile.

use serde_json::{Value, json};

use super::*;
use crate::index::objects::{self, TO_BE_DELETED};

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn shown<K>(object: &Value) -> Result<K, Unreadable>
where
    K: DeserializeOwned + Resource<DynamicType = ()>,
{
    read(object.to_string().as_bytes())
}

fn service(value: Value) -> objects::Service {
    of::<Service>(value).into()
}

fn slice(value: Value) -> objects::EndpointSlice {
    of::<EndpointSlice>(value).into()
}

fn node(value: Value) -> objects::Node {
    of::<Node>(value).into()
}

/// Times and numbers that decoders of all fields cannot read. This is how the API server tells a time in the year 0,
/// east of Greenwich.
fn hostile_metadata() -> Value {
    json!({
        "namespace": "shop", "name": "web", "creationTimestamp": "-001-12-31T23:00:00Z",
        "annotations": {"x": 7, "y": {"z": []}},
        "managedFields": [{"time": "-001-12-31T23:00:00Z", "fieldsV1": 7}],
        "generation": 1e300, "ownerReferences": "x", "deletionGracePeriodSeconds": "x",
    })
}

#[test]
fn what_nothing_reads_may_be_anything() {
    let object = json!({
        "metadata": hostile_metadata(),
        "spec": {
            "type": "?", "ports": [{"port": 99_999_999_999_u64, "nodePort": -1e300, "targetPort": [], "appProtocol": 7}],
            "clusterIPs": null, "clusterIP": "10.96.0.1", "trafficDistribution": 7, "internalTrafficPolicy": {},
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1e300, "x": 7}},
        },
        "status": {
            "conditions": [{"type": "x", "lastTransitionTime": "-001-12-31T23:00:00Z", "observedGeneration": "x"}],
            "loadBalancer": {"ingress": [{"ip": "192.0.2.1", "hostname": 7, "ports": {}}]},
        },
    });
    let service = shown::<Service>(&object).unwrap();
    assert_eq!(service.metadata.managed_fields, None);
    let service = objects::Service::from(service);
    assert_eq!(service.name, ObjectName::new("shop", "web"));
    assert_eq!(
        (service.created, service.annotations),
        (None, BTreeMap::new())
    );
    assert_eq!(service.affinity_seconds, Some(i32::MAX));
    let port = &service.ports[0];
    assert_eq!((port.port, port.node_port), (i32::MAX, Some(i32::MIN)));
    assert_eq!(service.ingress[0].ip.as_deref(), Some("192.0.2.1"));

    let slice = shown::<EndpointSlice>(&json!({
        "metadata": hostile_metadata(), "addressType": "?",
        "endpoints": [{
            "addresses": null, "conditions": {"ready": null, "x": 7}, "targetRef": "x", "deprecatedTopology": 7,
            "hints": {"forZones": [{"name": null, "x": 7}], "x": []},
        }],
        "ports": [{"port": u64::MAX, "appProtocol": {}}],
    }));
    let slice = objects::EndpointSlice::from(slice.unwrap());
    assert_eq!(slice.ports[0].port, Some(i32::MAX));
    assert_eq!(slice.endpoints[0], objects::Endpoint::default());

    let node = shown::<Node>(&json!({
        "metadata": hostile_metadata(), "spec": {"taints": [{"key": null, "timeAdded": 7}], "unschedulable": "x"},
        "status": {"addresses": null, "conditions": 7, "images": "x", "nodeInfo": []},
    }));
    assert!(objects::Node::from(node.unwrap()).addresses.is_empty());
    let lease = shown::<Lease>(&json!({
        "metadata": hostile_metadata(),
        "spec": {"holderIdentity": "x", "renewTime": "-001-12-31T23:00:00Z", "leaseDurationSeconds": 1e300},
    }));
    let spec = lease.unwrap().spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(i32::MAX));
}

#[test]
fn object_that_cannot_be_read_is_named_with_the_field_that_is_wrong() {
    for (field, value) in [
        ("type", json!(7)),
        ("ports", json!([{"port": 80}, {"port": "x"}])),
        ("externalIPs", json!({})),
    ] {
        let mut object = json!({
            "metadata": {"namespace": "shop", "name": "web", "resourceVersion": "7"}, "spec": {},
        });
        object["spec"][field] = value;
        let unreadable = shown::<Service>(&object).unwrap_err();
        assert_eq!(unreadable.name, ObjectName::new("shop", "web"));
        assert_eq!(unreadable.version.as_deref(), Some("7"));
        let reason = &unreadable.reason;
        assert!(reason.starts_with(&format!("spec.{field}")), "{reason}");
        assert!(
            reason.contains("invalid type") && !reason.contains(" line "),
            "{reason}"
        );
    }
    let long = json!({"metadata": {"name": "web"}, "spec": "x".repeat(5000)});
    let reason = shown::<Service>(&long).unwrap_err().reason;
    assert_eq!(reason.chars().count(), LONGEST_REASON);
    for object in [json!({}), json!({"metadata": {"name": ""}})] {
        let reason = shown::<Service>(&object).unwrap_err().reason;
        assert!(reason.contains("metadata.name"), "{reason}");
    }
    for object in [json!(7), json!({"metadata": 7}), json!([])] {
        assert_eq!(
            shown::<Service>(&object).unwrap_err().name,
            ObjectName::default()
        );
    }
}

#[test]
fn service_keeps_what_rules_read() {
    let converted = service(json!({
        "metadata": {
            "namespace": "shop", "name": "web", "creationTimestamp": "1970-01-01T00:01:00Z",
            "labels": {"app": "web", "service.kubernetes.io/service-proxy-name": "other"},
            "annotations": {"guideway.dev/mode": "nat", "kubectl.kubernetes.io/last-applied": "{}"},
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "externalIPs": ["192.0.2.9"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "www", "nodePort": 30080}],
            "loadBalancerSourceRanges": [" 192.0.2.0/24"], "loadBalancerClass": "guideway.dev/guideway",
            "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP", "healthCheckNodePort": 31000,
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}, {"hostname": "x"}]}},
    }));
    let expected = objects::Service {
        name: ObjectName::new("shop", "web"),
        created: Some(60),
        labels: [("service.kubernetes.io/service-proxy-name", "other")]
            .map(owned)
            .into(),
        annotations: [("guideway.dev/mode", "nat")].map(owned).into(),
        kind: Some("LoadBalancer".into()),
        cluster_ips: vec!["10.96.0.7".into()],
        ports: vec![objects::ServicePort {
            name: Some("http".into()),
            protocol: Some("TCP".into()),
            port: 80,
            node_port: Some(30_080),
        }],
        external_ips: vec!["192.0.2.9".into()],
        ingress: vec![
            objects::Ingress {
                ip: Some("192.0.2.1".into()),
                ip_mode: Some("VIP".into()),
            },
            objects::Ingress::default(),
        ],
        source_ranges: vec![" 192.0.2.0/24".into()],
        load_balancer_class: Some("guideway.dev/guideway".into()),
        external_traffic_policy: Some("Local".into()),
        session_affinity: Some("ClientIP".into()),
        affinity_seconds: Some(600),
        health_check_node_port: Some(31_000),
    };
    assert_eq!(converted, expected);
}

#[test]
fn traffic_distribution_is_never_read() {
    let with = |distribution: Option<&str>| {
        service(json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {
                "type": "NodePort", "clusterIP": "10.96.0.7", "trafficDistribution": distribution,
                "ports": [{"port": 80, "nodePort": 30080}],
            },
        }))
    };
    for distribution in ["PreferClose", "PreferSameZone", "PreferSameNode", "?"] {
        assert_eq!(with(Some(distribution)), with(None), "{distribution}");
    }
}

#[test]
fn slice_keeps_conditions_and_hints() {
    let converted = slice(json!({
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.244.0.1"], "nodeName": "a", "zone": "z",
             "conditions": {"ready": false, "serving": true, "terminating": true},
             "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "a"}]}},
            {"addresses": ["10.244.0.2"]},
        ],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {}],
    }));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = objects::EndpointSlice {
        name: ObjectName::new("shop", "web-1"),
        labels: [("kubernetes.io/service-name", "web")].map(owned).into(),
        address_type: "IPv4".to_owned(),
        endpoints: vec![
            objects::Endpoint {
                addresses: names(&["10.244.0.1"]),
                ready: Some(false),
                serving: Some(true),
                terminating: Some(true),
                node_name: Some("a".to_owned()),
                for_nodes: names(&["a"]),
                for_zones: names(&["z"]),
            },
            objects::Endpoint {
                addresses: names(&["10.244.0.2"]),
                ..objects::Endpoint::default()
            },
        ],
        ports: vec![
            objects::EndpointPort {
                name: Some("http".to_owned()),
                protocol: Some("TCP".to_owned()),
                port: Some(8080),
            },
            objects::EndpointPort::default(),
        ],
    };
    assert_eq!(converted, expected);
}

#[test]
fn null_lists_are_empty() {
    let converted = slice(json!({
        "metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": null, "ports": null,
    }));
    assert_eq!((converted.endpoints, converted.ports), (vec![], vec![]));
}

#[test]
fn node_keeps_zone_addresses_and_signs_that_it_goes() {
    let converted = node(json!({
        "metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z", "x": "y"},
                     "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
                            {"key": "x", "effect": "NoExecute"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    }));
    assert_eq!(
        converted.labels,
        [("topology.kubernetes.io/zone", "z")].map(owned).into()
    );
    assert!(converted.deleting);
    assert_eq!(converted.taints, [TO_BE_DELETED.to_owned()].into());
    assert_eq!(converted.addresses[0].kind, "InternalIP");
    assert_eq!(converted.addresses[0].address, "10.0.0.1");
}

#[test]
fn time_of_the_change_is_read() {
    let metadata = |time: &str| ObjectMeta {
        annotations: Some([(LAST_CHANGE.to_owned(), time.to_owned())].into()),
        ..ObjectMeta::default()
    };
    let time = last_change(&metadata("1970-01-01T00:00:01.5Z")).unwrap();
    assert_eq!(time.as_millisecond(), 1500);
    assert_eq!(last_change(&metadata("yesterday")), None);
    assert_eq!(last_change(&ObjectMeta::default()), None);
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}
