//! Segments: equal runs of a group's workers, each placed together (a rack, an NVLink domain).

use crate::error::GroupingError;
use crate::group::DerivedTopologyConstraint;
use crate::names::{
    ANNOTATION_SEGMENT_PREFERRED, ANNOTATION_SEGMENT_REQUIRED, ANNOTATION_TOPOLOGY,
};
use crate::object::ObjectView;

/// A larger number is a mistake, and the API server would refuse the object.
pub(crate) const MAX_SEGMENTS: u32 = 10_000;

/// Parses the segment size of an annotation, at least `least` pods.
pub(crate) fn size(text: &str, least: i64) -> Result<i64, GroupingError> {
    let size: Option<i64> = text.parse().ok();
    size.filter(|size| *size >= least)
        .ok_or_else(|| GroupingError::SegmentSize {
            size: text.to_owned(),
            bounds: format!(">= {least}"),
        })
}

/// How many segments of `size` hold `pods`.
pub(crate) fn count(pods: i64, size: i64) -> Result<u32, GroupingError> {
    let count = u64::try_from(pods)
        .unwrap_or(0)
        .div_ceil(size.unsigned_abs().max(1));
    match u32::try_from(count) {
        Ok(count) if count <= MAX_SEGMENTS => Ok(count),
        _ => Err(GroupingError::TooManySegments(count)),
    }
}

/// The topology constraint of each segment. The pod's annotations win over those of the workers' template. The
/// owner may name the topology, too; without one, segments go wherever there is room.
pub(crate) fn topology(
    pod: ObjectView<'_>,
    template: Option<ObjectView<'_>>,
    owner: ObjectView<'_>,
) -> Option<DerivedTopologyConstraint> {
    let value = |key| {
        let template = template.and_then(|template| template.annotation(key));
        pod.annotation(key).or(template)
    };
    let level = |key| value(key).unwrap_or_default().to_owned();
    let name = value(ANNOTATION_TOPOLOGY).or_else(|| owner.annotation(ANNOTATION_TOPOLOGY))?;
    DerivedTopologyConstraint {
        name: name.to_owned(),
        required: level(ANNOTATION_SEGMENT_REQUIRED),
        preferred: level(ANNOTATION_SEGMENT_PREFERRED),
    }
    .some()
}

/// Parses the index of a pod in its group from a label.
pub(crate) fn index(pod: ObjectView<'_>, value: &str) -> Result<i64, GroupingError> {
    let index: Option<i64> = value.parse().ok();
    index
        .filter(|index| *index >= 0)
        .ok_or_else(|| GroupingError::Index {
            pod: pod.to_string(),
            found: value.to_owned(),
        })
}
