//! Why no pod group can be derived from an owner.
//!
//! Each error names the object and the field. Its reader sees it as an event on the pod, and wrote the manifest.

use crate::object::ObjectView;
use crate::segments::MAX_SEGMENTS;

/// An owner, or an object that its rule looks up, lacks what the rule needs.
#[expect(missing_docs, reason = "the message of each error names its fields")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupingError {
    /// A field, label or annotation is missing or invalid.
    #[error("failed to get {field} from {object}: {why}")]
    Field {
        /// Kind, namespace and name.
        object: String,
        /// The field as a path, or the key of the label or annotation.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// An entry of a list lacks a required field.
    #[error("missing required '{0}' field")]
    Required(&'static str),
    /// A CronJob's pod that no Job owns.
    #[error("no owner reference of type 'Job'")]
    NoJob,
    /// A referenced object does not exist; worded like the API server's message.
    #[error("{resource} \"{name}\" not found")]
    NotFound {
        /// Its resource and API group.
        resource: &'static str,
        name: String,
    },
    /// A negative number of pods or parts, or more than any cluster has.
    #[error("{what} of {object} is {count}, which is no number of pods")]
    Count {
        /// Kind, namespace and name.
        object: String,
        what: &'static str,
        count: i64,
    },
    /// An invalid part of an object, with its path.
    #[error("failed to parse {path} from {object}. Err: {why}")]
    Part {
        /// The field as a path.
        path: String,
        /// Kind, namespace and name.
        object: String,
        /// What is wrong with it.
        why: Box<GroupingError>,
    },
    /// A field that should be a list and is not.
    #[error("failed to get {path} from {object}. Err: {why}")]
    Unread {
        /// The field as a path.
        path: String,
        /// Kind, namespace and name.
        object: String,
        /// What is wrong with it.
        why: Box<GroupingError>,
    },
    /// A field that is not a list of the required entries.
    #[error("failed to parse '{0}' field")]
    Unparsed(&'static str),
    /// An invalid field of an entry.
    #[error("invalid '{field}' field. {why}")]
    Invalid {
        field: &'static str,
        /// What it must be.
        why: &'static str,
    },
    /// An entry of a list that is not an object.
    #[error("invalid {path} in {object}")]
    Entry {
        path: String,
        /// Kind, namespace and name.
        object: String,
    },
    /// The grouping keys of an owner do not form a valid group name.
    #[error(
        "Karta grouping keys [{keys}] produce invalid Kubernetes PodGroup name {name:?}: a lowercase RFC 1123 \
         subdomain has only a-z, 0-9, '-' and '.', at most 253 of them, and begins and ends with a letter or digit"
    )]
    GroupingKeys {
        keys: String,
        /// The name that they form.
        name: String,
    },
    /// A topology constraint without a topology, or without any level.
    #[error("topology constraint must include {0}")]
    Constraint(&'static str),
    /// A gang may not claim the pods of another namespace.
    #[error(
        "cross-namespace pod reference not allowed: {gang} of namespace {namespace} names a pod of {other}"
    )]
    ForeignPod {
        gang: String,
        namespace: String,
        /// The namespace it points to.
        other: String,
    },
    /// An invalid segment size: not a number, or too small or too large.
    #[error("invalid segment size '{size}': it must be a whole number {bounds}")]
    SegmentSize { size: String, bounds: String },
    /// More subgroups than a pod group may have.
    #[error(
        "the number of segments, {0}, is greater than max allowed segmentation ({MAX_SEGMENTS})"
    )]
    TooManySegments(u64),
    /// Segments have a topology level, but no topology is named.
    #[error("{0} asks for segment placement and names no topology")]
    NoTopology(String),
    /// An invalid index of a pod in its group.
    #[error("index '{found}' of {pod} is not valid. It must be bigger than 0")]
    Index { pod: String, found: String },
    /// The Karta definition of the owner's kind has no component for the pod.
    #[error("{0} does not match any Karta pod group member definition")]
    NoMember(String),
    /// A Karta expression that cannot be parsed, or that yields the wrong type.
    #[error("Karta expression `{expression}`: {why}")]
    Expression {
        /// The expression as written.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Checks a number of pods or parts that was read from an object, or computed from several numbers.
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
