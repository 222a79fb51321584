//! Annotations whose key contains a container's name: `nvidia.com/container.NAME.gpu-memory.limit`.
//!
//! KAI 0.18 and later have them. This module only sorts them by subject; [`crate::request`] reads the amounts.

use crate::names;
use crate::pod::Pod;

/// The subject of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnnotationSubject {
    /// The container's memory request.
    Request,
    /// The container's memory limit.
    Limit,
    /// How the container shares a card's time.
    Mode,
    /// What KAI's binder assigned to the container.
    Given,
    /// A part of a card's time.
    Compute,
    Unknown,
}

/// An annotation whose key names a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerAnnotation<'p> {
    pub(crate) key: &'p str,
    /// The container that the key names.
    pub(crate) container: &'p str,
    pub(crate) about: AnnotationSubject,
    pub(crate) value: &'p str,
}

/// The subject for each ending of a key.
const ENDS: [(&str, AnnotationSubject); 5] = [
    (names::PER_CONTAINER_REQUEST, AnnotationSubject::Request),
    (names::PER_CONTAINER_LIMIT, AnnotationSubject::Limit),
    (names::PER_CONTAINER_MODE, AnnotationSubject::Mode),
    (names::PER_CONTAINER_DEVICES, AnnotationSubject::Given),
    (names::PER_CONTAINER_COMPUTE, AnnotationSubject::Given),
];
/// Keys that contain this are about a card's time.
const COMPUTE: &str = ".gpu-compute.";

/// All annotations of a pod with NVIDIA's prefix.
pub(crate) fn all(pod: &Pod) -> impl Iterator<Item = ContainerAnnotation<'_>> {
    let annotations = pod.metadata.annotations.iter();
    annotations.filter_map(|(key, value)| {
        let rest = key.strip_prefix(names::PER_CONTAINER)?;
        let found = ENDS
            .into_iter()
            .find_map(|(end, about)| Some((rest.strip_suffix(end)?, about)));
        let (container, about) = found.unwrap_or(if rest.contains(COMPUTE) {
            (rest, AnnotationSubject::Compute)
        } else {
            (rest, AnnotationSubject::Unknown)
        });
        let about = match container {
            "" => AnnotationSubject::Unknown,
            _ => about,
        };
        Some(ContainerAnnotation {
            key,
            container,
            about,
            value,
        })
    })
}

/// The annotation with the part of a card up to which a container may grow.
pub(crate) fn portion_limit(pod: &Pod) -> Option<ContainerAnnotation<'_>> {
    let annotations = pod.metadata.annotations.iter();
    annotations
        .filter_map(|(key, value)| {
            let rest = key.strip_prefix(names::KAI_CONTAINER)?;
            Some(ContainerAnnotation {
                key,
                container: rest.strip_suffix(names::PORTION_LIMIT)?,
                about: AnnotationSubject::Limit,
                value,
            })
        })
        .next()
}
