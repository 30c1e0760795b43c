//! What pages have typed at `kubectl` and `helm` after an installation, in the order of reading, against a real API
//! server. The installation itself is typed by [`super::newcomer`].

use lab::kubernetes::ControlPlane;

use super::chart::{NAMESPACE, REQUIRED, deploy};
use super::page::{Page, manual, root};
use super::shell::commands;

/// The pages, in the order in which an operator may need them.
const PAGES: [&str; 9] = [
    "troubleshoot",
    "migrate",
    "outside-edges",
    "upgrade",
    "kubernetes",
    "configuration",
    "security",
    "api",
    "operate",
];
/// The pages that are typed elsewhere, or have none of these commands of their own.
const OTHERS: [&str; 9] = [
    "README.md",
    "bench/README.md",
    "deploy/README.md",
    "deploy/docs/README.md",
    "deploy/docs/install-kubernetes.md",
    "deploy/docs/commands.md",
    "deploy/docs/concepts.md",
    "deploy/docs/drops.md",
    "deploy/docs/without-kubernetes.md",
];
/// What a kubelet would have to run: a command in a pod, its log, a rollout.
const OF_A_KUBELET: [&str; 3] = ["exec", "logs", "rollout"];
/// What pages leave open, with what is put there.
const OPEN: [(&str, &str); 2] = [("NAME", "default"), ("$pool", "lbpool/default")];

/// The cluster of an operator who has installed Guideway, whose controller has made the key of edges, and who has a Service of
/// another class.
const OBJECTS: &str = r#"
apiVersion: guideway.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: default, finalizers: [guideway.dev/in-use]}
spec: {addresses: [192.0.2.10-192.0.2.20]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, loadBalancerClass: example.com/other, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: guideway-edge-n2, namespace: guideway-edges}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-root-ca.crt, namespace: guideway-system}
data: {ca.crt: "a certificate"}
---
apiVersion: v1
kind: Secret
metadata: {name: guideway-peers, namespace: guideway-system}
stringData: {key: "a key"}
"#;

#[test]
fn commands_of_the_pages_are_carried_out() {
    let server = ControlPlane::start().unwrap();
    server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let chart = deploy("helm/guideway");
    let mut install = vec!["-n", NAMESPACE, "install", "guideway"];
    install.push(chart.to_str().unwrap());
    install.extend(REQUIRED.iter().flat_map(|value| ["--set", value]));
    server.helm(&install).unwrap();
    server.apply(OBJECTS).unwrap();

    let mut typed = Vec::new();
    for (at, words) in in_order() {
        let [program, arguments @ ..] = words.as_slice() else {
            panic!("{at}: no command");
        };
        let outcome = match program.as_str() {
            "helm" => server.helm(arguments),
            _ => server.kubectl(arguments),
        };
        outcome.unwrap_or_else(|error| panic!("{at}: {}: {error}", words.join(" ")));
        typed.push(words.join(" "));
    }
    assert!(typed.len() >= 20, "{typed:#?}");
    // As the last commands say.
    assert!(
        server
            .get(&["crd", "loadbalancerpools.guideway.dev"])
            .is_err()
    );
    let releases = server.helm(&["list", "--all-namespaces", "-q"]).unwrap();
    assert_eq!(releases.trim(), "");
}

/// The commands of the pages, each with its place.
fn in_order() -> Vec<(String, Vec<String>)> {
    let pages = manual();
    let path = |name: &str| format!("deploy/docs/{name}.md");
    let is_known = |page: &&Page| {
        let name = page.path.to_str().unwrap();
        OTHERS.contains(&name) || PAGES.iter().any(|known| path(known) == name)
    };
    let unknown = pages
        .iter()
        .find(|page| !is_known(page) && !of(page).is_empty());
    assert!(unknown.is_none(), "nothing types what is on {unknown:?}");
    PAGES
        .iter()
        .flat_map(|name| {
            let page = pages.iter().find(|page| page.path == *path(name));
            of(page.unwrap())
        })
        .collect()
}

/// The commands of a page in its order.
fn of(page: &Page) -> Vec<(String, Vec<String>)> {
    let typed = commands(page).into_iter();
    let typed = typed.map(|command| (command.at, command.words));
    let code = page.code.iter().map(|code| {
        let words = code.text.split('|').next().unwrap_or_default();
        (code.at.clone(), shlex::split(words).unwrap_or_default())
    });
    let mut all: Vec<_> = typed
        .chain(code)
        .filter(|(_, words)| is_whole(words))
        .collect();
    all.sort_by_key(|(at, _)| line(at));
    let all = all.into_iter();
    all.map(|(at, words)| (at, words.into_iter().filter_map(filled).collect()))
        .collect()
}

fn line(at: &str) -> usize {
    at.rsplit(':').next().unwrap().parse().unwrap()
}

/// Tells whether words are a command of kubectl or helm that needs no kubelet, and not the name of one only.
fn is_whole(words: &[String]) -> bool {
    let [program, first, .., _] = words else {
        return false;
    };
    ["helm", "kubectl"].contains(&program.as_str())
        && first != "guideway"
        && !words
            .iter()
            .any(|word| OF_A_KUBELET.contains(&word.as_str()))
}

/// Fills in what a page leaves open; leaves out a wait for pods that nobody runs.
fn filled(word: String) -> Option<String> {
    if word == "--wait" {
        return None;
    }
    let open = OPEN.iter().find(|(open, _)| *open == word);
    let is_file = word.contains('/') && root().join(&word).exists();
    Some(match open {
        Some((_, value)) => (*value).to_owned(),
        None if is_file => root().join(word).display().to_string(),
        None => word,
    })
}
