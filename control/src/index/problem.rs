//! Problems of objects, in words that the object's owner understands.

use std::fmt;

use super::objects::ObjectName;

/// The object that has a problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A Service, by namespace and name.
    Service(ObjectName),
    /// An EndpointSlice, by namespace and name.
    Slice(ObjectName),
    /// A Node, by name.
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
        /// The rule that an object breaks. Its name is the reason of the Event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum BrokenRule {
            $($(#[$doc])* $rule,)+
        }

        impl BrokenRule {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$rule,)+];

            /// Returns the name in CamelCase, as Events have it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => stringify!($rule),)+
                }
            }
        }
    };
}

rules! {
    /// A virtual address belongs to a machine. An assigned address is served at the Service's ports only; an
    /// external address is not served.
    AddressIsNode,
    /// A machine claimed an address that had been assigned to the Service. The Service keeps it.
    AddressClaimed,
    /// The address and port belong to the API server. They are not served.
    AddressIsApiServer,
    /// Another Service has the same address, port and protocol, and is served there.
    Conflict,
    /// A text is not an address that traffic can be sent to.
    InvalidAddress,
    /// A number is not a valid port.
    InvalidPort,
    /// The protocol is not TCP, UDP or SCTP.
    InvalidProtocol,
    /// A source range cannot be read. It admits nobody.
    InvalidSourceRange,
    /// A `guideway.dev/` annotation has an invalid value. The default is used.
    InvalidAnnotation,
    /// Kubernetes has no such traffic policy or session affinity. The default is used.
    InvalidPolicy,
    /// A port name, or a port and protocol, occurs twice. The first one counts.
    DuplicatePort,
    /// An address has a family that the Service or slice does not have.
    OtherFamily,
    /// An external address is outside the configured networks. It is not served.
    ExternalAddressNotAllowed,
    /// SCTP ports cannot be translated, and port and targetPort differ.
    SctpPort,
    /// Endpoints are on machines that do not run Guideway. They get traffic by NAT, or none.
    MachineWithoutGuideway,
    /// An endpoint has an address at which its own Service is served. It gets no traffic.
    EndpointIsVip,
    /// A slice does not name its Service. It is ignored.
    NoServiceName,
    /// The table size asked for has fewer slots than there are backends. The default is used.
    TooManyBackends,
    /// A Service or namespace would take more than its share of a table. What exceeds the share is not served.
    TableShare,
    /// A Node has no InternalIP or ExternalIP. Its pods are reached by NAT at best.
    NoInternalAddress,
    /// A health check port cannot be opened.
    FailedToStartServiceHealthcheck,
    /// The object cannot be decoded. Its last readable version stays in force.
    Unreadable,
}

/// A broken rule with its explanation, as shown to users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The object that breaks the rule.
    pub object: Object,
    /// The rule.
    pub rule: BrokenRule,
    /// What is wrong, and the consequence.
    pub text: String,
    /// What the owner should do.
    pub remedy: String,
    /// Whether only this machine has the problem, so that no other machine or controller can report it.
    pub only_here: bool,
}

impl Problem {
    /// Returns whether every agent sees the problem, and the controller does not: that one follows no slices, and reads
    /// each Service by itself.
    pub fn is_for_agents(&self) -> bool {
        let is_of_others = match self.object {
            Object::Service(_) => matches!(
                self.rule,
                BrokenRule::Conflict
                    | BrokenRule::SctpPort
                    | BrokenRule::EndpointIsVip
                    | BrokenRule::TooManyBackends
                    | BrokenRule::TableShare
            ),
            Object::Slice(_) => true,
            Object::Node(_) => false,
        };
        is_of_others && !self.only_here
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.text, self.remedy)
    }
}

/// The problems of one object. A rule broken several times gives one problem with a count.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

#[derive(Debug)]
struct Finding {
    rule: BrokenRule,
    only_here: bool,
    text: String,
    remedy: &'static str,
    count: usize,
}

impl Findings {
    /// Adds a broken rule. The first text of a rule is kept, later ones are only counted.
    pub(super) fn add(&mut self, rule: BrokenRule, text: fmt::Arguments<'_>, remedy: &'static str) {
        self.note(rule, false, text, remedy);
    }

    /// Adds a rule that is broken on this machine alone.
    pub(super) fn add_here(
        &mut self,
        rule: BrokenRule,
        text: fmt::Arguments<'_>,
        remedy: &'static str,
    ) {
        self.note(rule, true, text, remedy);
    }

    fn note(
        &mut self,
        rule: BrokenRule,
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

    /// Returns the problems, ordered by rule.
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

/// Returns the text that counts the cases beside the one shown; empty if there is only one.
pub(super) fn more(all: usize, of_what: &str) -> String {
    match all {
        1 => String::new(),
        all => format!(" (and {} more{of_what})", all - 1),
    }
}

/// Quotes a text from an object for a message: at most 64 characters, escaped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_lists_exactly_the_rules_there_are() {
        let page = include_str!("../../../deploy/docs/kubernetes.md");
        let (_, section) = page.split_once("\n## Problems\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let rules: Vec<&str> = BrokenRule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(documented, rules);
    }
}
