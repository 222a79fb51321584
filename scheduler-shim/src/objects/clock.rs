//! Timestamps of objects, on the policy's clock: durations since 1970.

use std::time::Duration;

use apportion_groups::ObjectView;
use jiff::Timestamp;

/// A timestamp on the policy's clock.
pub(crate) fn since_epoch(at: Timestamp) -> Duration {
    Duration::try_from(at.as_duration()).unwrap_or_default()
}

/// A timestamp as text.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    text.parse().ok().map(since_epoch)
}

/// When an object was created; `now` if it does not exist yet.
pub(crate) fn created(object: ObjectView<'_>, now: Duration) -> Duration {
    field(object, "/metadata/creationTimestamp").unwrap_or(now)
}

/// The timestamp in a field.
pub(crate) fn field(object: ObjectView<'_>, path: &str) -> Option<Duration> {
    object.json().pointer(path)?.as_str().and_then(parse)
}
