//! Ten faults that tests plant, with the words by which an operator finds each: what a command, a log or an Event
//! says. The page about troubleshooting has a row with the same words for each, which `tests/docs` checks.

/// A fault, with the words that lead to it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// What is said of cause and remedy, and where: a command, `log` or `Event`.
    pub(crate) said: &'static [(&'static str, &'static [&'static str])],
}

impl Fault {
    /// Checks that a command's output has its words, however it is wrapped.
    pub(crate) fn assert_said(&self, by: &str, output: &str) {
        let output = one_line(output);
        for words in self.words(by) {
            assert!(
                output.contains(words),
                "{}: {by} does not say {words:?}:\n{output}",
                self.name
            );
        }
    }

    /// Tells whether a command's output has its words.
    pub(crate) fn is_said(&self, by: &str, output: &str) -> bool {
        let output = one_line(output);
        self.words(by).iter().all(|words| output.contains(words))
    }

    fn words(&self, by: &str) -> &'static [&'static str] {
        let mut said = self.said.iter();
        said.find(|(command, _)| *command == by).unwrap().1
    }
}

/// Returns a text with single spaces in place of line breaks and indents.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) const PEER_WITHOUT_XDP: Fault = Fault {
    name: "a veth's other end has no XDP program",
    said: &[
        ("guideway drops", &["transmit", "xdp_tx_errors"]),
        (
            "guideway check",
            &[
                "veth peer",
                "attach a pass-through XDP program to the other end, or ethtool -K DEV gro on there",
            ],
        ),
    ],
};

pub(crate) const PARTIAL_CHECKSUMS: Fault = Fault {
    name: "a sender behind a veth leaves checksums to its device",
    said: &[(
        "guideway check",
        &[
            "veth checksums",
            "ethtool -K DEV tx off at the sender's end",
        ],
    )],
};

pub(crate) const SMALL_MTU: Fault = Fault {
    name: "outer headers do not fit",
    said: &[
        (
            "guideway check",
            &[
                "1500: with mode ipip, larger packets than 1480",
                "ip link set eth0 mtu 1540",
            ],
        ),
        ("guideway drops", &["fragmentation_needed"]),
    ],
};

pub(crate) const STRICT_REVERSE_PATHS: Fault = Fault {
    name: "rp_filter is strict",
    said: &[(
        "guideway check",
        &[
            "rp_filter strict",
            "sysctl -w net.ipv4.conf.eth0.rp_filter=2",
        ],
    )],
};

pub(crate) const TWO_SEEDS: Fault = Fault {
    name: "two edges have two seeds",
    said: &[
        (
            "guideway status",
            &["hash seed", "fingerprint", "the same on all edges"],
        ),
        (
            "guideway check",
            &[
                "is not the seed of the Secret guideway-system/guideway-seed",
                "leave hash_seed out of the file, or set it equal on every edge",
            ],
        ),
    ],
};

pub(crate) const TAKEN_PORT: Fault = Fault {
    name: "kube-proxy has the health port",
    said: &[("log", TAKEN), ("guideway check", TAKEN)],
};
const TAKEN: &[&str] = &[
    "cannot listen on",
    "10256, kube-proxy's port for health checks",
    "free it or set kubernetes.healthz to another address",
];

pub(crate) const MISSING_RIGHTS: Fault = Fault {
    name: "the agent's rights are missing",
    said: &[
        (
            "guideway check",
            &[
                "this token may not: ",
                "bind the ClusterRole and the Role of the chart's agent",
            ],
        ),
        ("guideway status", &["BROKEN", "forbidden"]),
    ],
};

pub(crate) const UNLISTED_EDGE: Fault = Fault {
    name: "an edge is in no EndpointSlice",
    said: &[
        ("guideway check", UNLISTED),
        ("guideway status", UNLISTED),
        (
            "guideway drops",
            &["encap_untrusted", "last untrusted outer source"],
        ),
    ],
};
const UNLISTED: &[&str] = &[
    "is in no EndpointSlice of guideway-system/guideway",
    "list it as an endpoint without nodeName in an EndpointSlice of that Service",
];

pub(crate) const EMPTY_POOL: Fault = Fault {
    name: "the pool is empty",
    said: &[(
        "Event",
        &[
            "AllocationFailed",
            "address that is open to this Service is in use",
        ],
    )],
};

pub(crate) const WRONG_CLASS: Fault = Fault {
    name: "the Service has another class",
    said: &[(
        "Event",
        &[
            "NoLoadBalancer",
            "create the Service anew with the other class",
        ],
    )],
};

/// Every fault that is planted.
pub(crate) const ALL: [&Fault; 10] = [
    &PEER_WITHOUT_XDP,
    &PARTIAL_CHECKSUMS,
    &MISSING_RIGHTS,
    &WRONG_CLASS,
    &UNLISTED_EDGE,
    &SMALL_MTU,
    &STRICT_REVERSE_PATHS,
    &EMPTY_POOL,
    &TWO_SEEDS,
    &TAKEN_PORT,
];
