//! Why no group can be derived from an owner.
//!
//! Each says which object and which field, because the person who reads it (as an event on the pod) is
//! the one who wrote the manifest.

use crate::object::Object;
use crate::segments::MAX_SEGMENTS;

/// An owner, or something that its rule looks up, does not say what the rule needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field, label or annotation is absent or has a value that means nothing.
    #[error("failed to get {field} from {object}: {why}")]
    Field {
        /// Kind, namespace and name.
        object: String,
        /// The field as a path, or the key of the label or annotation.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// An entry of a list lacks a field without which it means nothing.
    #[error("missing required '{0}' field")]
    Required(&'static str),
    /// A pod of a CronJob that no Job owns.
    #[error("no owner reference of type 'Job'")]
    NoJob,
    /// An object that another one names does not exist.
    #[error("{kind} {namespace}/{name} was not found")]
    NotFound {
        /// Its kind.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A gang may not claim the pods of another namespace.
    #[error(
        "cross-namespace pod reference not allowed: {gang} of namespace {namespace} names a pod of {other}"
    )]
    ForeignPod {
        /// The gang.
        gang: String,
        /// Its namespace.
        namespace: String,
        /// The namespace it points to.
        other: String,
    },
    /// The pods of one segment: not a number, or none.
    #[error("invalid segment size '{0}': it must be a whole number >= 1")]
    SegmentSize(String),
    /// More subgroups than a pod group may have.
    #[error(
        "the number of segments, {0}, is greater than max allowed segmentation ({MAX_SEGMENTS})"
    )]
    TooManySegments(u64),
    /// Segments shall be placed together, and nothing says in which topology.
    #[error("{0} asks for segment placement and names no topology")]
    NoTopology(String),
    /// The index of a pod among its group's.
    #[error("index '{found}' of {pod} is not valid. It must be bigger than 0")]
    Index {
        /// The pod.
        pod: String,
        /// What its label says.
        found: String,
    },
    /// The Karta definition of the owner's kind knows no component for the pod.
    #[error("{0} does not match any Karta pod group member definition")]
    NoMember(String),
    /// A Karta expression that cannot be read, or that yields something else than it must.
    #[error("Karta expression `{expression}`: {why}")]
    Expression {
        /// The expression as it stands.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Malformed {
    pub(crate) fn field(object: Object<'_>, field: &str, why: impl Into<String>) -> Self {
        Self::Field {
            object: object.to_string(),
            field: field.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn unset(object: Object<'_>, field: &str) -> Self {
        Self::field(object, field, "it is not set")
    }
}
