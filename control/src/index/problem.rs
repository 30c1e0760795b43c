//! What is wrong with an object, in words that its owner understands.

use std::fmt;

use super::objects::ObjectName;

/// The object that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A Service.
    Service(ObjectName),
    /// An EndpointSlice.
    Slice(ObjectName),
    /// A Node.
    Node(String),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Slice(name) => write!(f, "EndpointSlice {name}"),
            Self::Node(name) => write!(f, "Node {name}"),
        }
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident,)+) => {
        /// The rule that an object breaks; its name is the reason of an Event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($(#[$doc])* $rule,)+
        }

        impl Rule {
            /// Returns the name, in the form of an Event's reason.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => stringify!($rule),)+
                }
            }
        }
    };
}

rules! {
    /// A virtual address is that of a machine: the Service's ports are served there, nothing else changes.
    AddressIsNode,
    /// A machine has come to have an address that was assigned to the Service: the Service keeps it.
    AddressClaimed,
    /// A port of the API server stays its own.
    AddressIsApiServer,
    /// Another Service has the address, port and protocol.
    Conflict,
    /// A text is no address that can be balanced.
    InvalidAddress,
    /// A number is no port.
    InvalidPort,
    /// A protocol is not balanced.
    InvalidProtocol,
    /// A source range is none.
    InvalidSourceRange,
    /// An annotation of ours has a value that it cannot have.
    InvalidAnnotation,
    /// A policy or affinity is none that Kubernetes has.
    InvalidPolicy,
    /// A port name, or a port and protocol, is there twice.
    DuplicatePort,
    /// An address is of a family that the Service, or the slice, is not of.
    OtherFamily,
    /// An external address is outside the networks that are configured.
    ExternalAddressNotAllowed,
    /// SCTP's ports cannot be translated.
    SctpPort,
    /// Backends are on machines that do not run Guideway.
    MachineWithoutGuideway,
    /// An endpoint is at an address that the Service itself is served at.
    EndpointIsVip,
    /// A slice names no Service.
    NoServiceName,
    /// A lookup table cannot have a slot for each backend.
    TooManyBackends,
    /// Lookup tables would take more room than a Service or a namespace has.
    TableShare,
    /// A Node has no address that packets could be sent to.
    NoInternalAddress,
    /// Nothing can listen at a health check port.
    FailedToStartServiceHealthcheck,
    /// An object cannot be read.
    Unreadable,
}

/// A rule that an object breaks, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The object.
    pub object: Object,
    /// The rule.
    pub rule: Rule,
    /// What is wrong, and what follows from it.
    pub text: String,
    /// What to do.
    pub remedy: String,
    /// Whether it lies in this machine alone, so that nobody else could tell of it.
    pub only_here: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.text, self.remedy)
    }
}

/// What is found wrong with one object: one problem for each rule, however often it is broken.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

#[derive(Debug)]
struct Finding {
    rule: Rule,
    only_here: bool,
    text: String,
    remedy: &'static str,
    count: usize,
}

impl Findings {
    /// Notes that a rule is broken; the first text of a rule stands for all.
    pub(super) fn add(&mut self, rule: Rule, text: fmt::Arguments<'_>, remedy: &'static str) {
        self.note(rule, false, text, remedy);
    }

    /// Notes that a rule is broken on this machine alone.
    pub(super) fn add_here(&mut self, rule: Rule, text: fmt::Arguments<'_>, remedy: &'static str) {
        self.note(rule, true, text, remedy);
    }

    fn note(
        &mut self,
        rule: Rule,
        only_here: bool,
        text: fmt::Arguments<'_>,
        remedy: &'static str,
    ) {
        let is_same = |found: &&mut Finding| (found.rule, found.only_here) == (rule, only_here);
        match self.0.iter_mut().find(is_same) {
            Some(found) => found.count += 1,
            None => self.0.push(Finding {
                rule,
                only_here,
                text: text.to_string(),
                remedy,
                count: 1,
            }),
        }
    }

    /// Returns the problems in the order of their rules.
    pub(super) fn problems(self, object: &Object) -> Vec<Problem> {
        let mut found = self.0;
        found.sort_unstable_by_key(|found| (found.rule, found.only_here));
        let problem = |found: Finding| Problem {
            object: object.clone(),
            rule: found.rule,
            text: found.text + &more(found.count, " of this kind"),
            remedy: found.remedy.to_owned(),
            only_here: found.only_here,
        };
        found.into_iter().map(problem).collect()
    }
}

/// Says how many there are beside the one that was named.
pub(super) fn more(all: usize, of_what: &str) -> String {
    match all {
        1 => String::new(),
        all => format!(" (and {} more{of_what})", all - 1),
    }
}

/// Shortens a text from an object for a message, and makes it printable.
pub(crate) fn quoted(text: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        const LONGEST: usize = 64;
        let mut shown: String = text.chars().take(LONGEST).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        write!(f, "{shown:?}")
    })
}
