//! Why no group can be derived from an owner.
//!
//! Each says which object and which field, because the person who reads it (as an event on the pod) is
//! the one who wrote the manifest.

use crate::object::ObjectView;
use crate::segments::MAX_SEGMENTS;

/// An owner, or something that its rule looks up, does not say what the rule needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupingError {
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
    /// An object that another one names does not exist; said as the API server says it.
    #[error("{resource} \"{name}\" not found")]
    NotFound {
        /// Its resource and API group.
        resource: &'static str,
        /// Its name.
        name: String,
    },
    /// A number of pods or parts that is below zero, or more than any cluster has.
    #[error("{what} of {object} is {count}, which is no number of pods")]
    Count {
        /// Kind, namespace and name.
        object: String,
        /// What is counted.
        what: &'static str,
        /// The count.
        count: i64,
    },
    /// Part of an object that means nothing, with the place that has it.
    #[error("failed to parse {place} from {object}. Err: {why}")]
    Part {
        /// The field as a path.
        place: String,
        /// Kind, namespace and name.
        object: String,
        /// What is wrong with it.
        why: Box<GroupingError>,
    },
    /// A list of an object that is none.
    #[error("failed to get {place} from {object}. Err: {why}")]
    Unread {
        /// The field as a path.
        place: String,
        /// Kind, namespace and name.
        object: String,
        /// What is wrong with it.
        why: Box<GroupingError>,
    },
    /// A field that is no list of the entries that it must have.
    #[error("failed to parse '{0}' field")]
    Unparsed(&'static str),
    /// A field of an entry, when it does not say what it must.
    #[error("invalid '{field}' field. {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it must be.
        why: &'static str,
    },
    /// An entry of a list that is no object.
    #[error("invalid {place} in {object}")]
    Entry {
        /// Its place.
        place: String,
        /// Kind, namespace and name.
        object: String,
    },
    /// The keys by which the pods of an owner are grouped make no name for a group.
    #[error(
        "Karta grouping keys [{keys}] produce invalid Kubernetes PodGroup name {name:?}: a lowercase RFC 1123 \
         subdomain has only a-z, 0-9, '-' and '.', at most 253 of them, and begins and ends with a letter or digit"
    )]
    GroupingKeys {
        /// The keys.
        keys: String,
        /// The name that they make.
        name: String,
    },
    /// A placement that lacks the topology or every level of it.
    #[error("topology constraint must include {0}")]
    Constraint(&'static str),
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
    /// The pods of one segment: not a number, or too few or too many.
    #[error("invalid segment size '{size}': it must be a whole number {bounds}")]
    SegmentSize {
        /// What is said.
        size: String,
        /// What it must be.
        bounds: String,
    },
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

/// A number that was read from an object (or comes of several) as a number of pods or parts.
pub(crate) fn counted(
    object: ObjectView<'_>,
    what: &'static str,
    count: i64,
) -> Result<u32, GroupingError> {
    let in_range = i32::try_from(count)
        .ok()
        .and_then(|count| u32::try_from(count).ok());
    in_range.ok_or_else(|| GroupingError::Count {
        object: object.to_string(),
        what,
        count,
    })
}

impl GroupingError {
    pub(crate) fn field(object: ObjectView<'_>, field: &str, why: impl Into<String>) -> Self {
        Self::Field {
            object: object.to_string(),
            field: field.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn unset(object: ObjectView<'_>, field: &str) -> Self {
        Self::field(object, field, "it is not set")
    }
}
