//! Segments: equal runs of a group's workers, each placed together (a rack, an NVLink domain).

use crate::group::Topology;
use crate::malformed::Malformed;
use crate::names::{
    ANNOTATION_SEGMENT_PREFERRED, ANNOTATION_SEGMENT_REQUIRED, ANNOTATION_SEGMENT_SIZE,
    ANNOTATION_TOPOLOGY,
};
use crate::object::Object;

/// More than these are a mistake, and would make an object that the API server refuses.
pub(crate) const MAX_SEGMENTS: u32 = 10_000;

/// The segment size that annotations ask for.
pub(crate) fn annotated_size(template: Object<'_>) -> Result<Option<u32>, Malformed> {
    let Some(text) = template.annotation(ANNOTATION_SEGMENT_SIZE) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(size) if size > 0 => Ok(Some(size)),
        _ => Err(Malformed::SegmentSize(text.to_owned())),
    }
}

/// Cuts `pods` into runs of `size`; the last may be shorter.
pub(crate) fn cut(pods: u32, size: u32) -> Result<Vec<u32>, Malformed> {
    let count = pods.div_ceil(size);
    if count > MAX_SEGMENTS {
        return Err(Malformed::TooManySegments(u64::from(count)));
    }
    Ok((0..count).map(|i| size.min(pods - i * size)).collect())
}

/// Where each segment wants to be.
pub(crate) fn topology(
    template: Object<'_>,
    owner: Object<'_>,
) -> Result<Option<Topology>, Malformed> {
    let text = |key| template.annotation(key).unwrap_or_default().to_owned();
    let name = [template, owner]
        .iter()
        .find_map(|object| object.annotation(ANNOTATION_TOPOLOGY));
    let wish = Topology {
        name: name.unwrap_or_default().to_owned(),
        required: text(ANNOTATION_SEGMENT_REQUIRED),
        preferred: text(ANNOTATION_SEGMENT_PREFERRED),
    };
    match wish.some() {
        Some(wish) if wish.name.is_empty() => Err(Malformed::NoTopology(owner.to_string())),
        wish => Ok(wish),
    }
}
