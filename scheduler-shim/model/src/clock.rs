//! Timestamps in the fields of objects, on the policy's clock: durations since 1970.

use std::time::Duration;

use apportion_groups::ObjectView;
use apportion_kubernetes::parse_timestamp;

/// When an object was created; `now` if it does not exist yet.
pub fn created(object: ObjectView<'_>, now: Duration) -> Duration {
    field(object, "/metadata/creationTimestamp").unwrap_or(now)
}

/// The timestamp in a field.
pub fn field(object: ObjectView<'_>, path: &str) -> Option<Duration> {
    object
        .json()
        .pointer(path)?
        .as_str()
        .and_then(parse_timestamp)
}
