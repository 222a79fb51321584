//! Annotations that have a container's name in their own: `nvidia.com/container.NAME.gpu-memory.limit`.
//!
//! They are the words of KAI 0.18 and later. What is asked for is read from them in [`crate::request`]; here is only
//! what each of them is about.

use crate::names;
use crate::pod::Pod;

/// What an annotation says of its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnnotationSubject {
    /// The memory that it has at least.
    Request,
    /// The memory that it has at most.
    Limit,
    /// How it shares a card's time.
    Mode,
    /// What KAI's binder gave it.
    Given,
    /// A part of a card's time.
    Compute,
    /// Something that nobody has told us of.
    Unknown,
}

/// An annotation that names a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerAnnotation<'p> {
    /// All of its name.
    pub(crate) key: &'p str,
    /// The container.
    pub(crate) container: &'p str,
    /// What it is about.
    pub(crate) about: AnnotationSubject,
    /// What it says.
    pub(crate) value: &'p str,
}

/// What the end of a name means.
const ENDS: [(&str, AnnotationSubject); 5] = [
    (names::PER_CONTAINER_REQUEST, AnnotationSubject::Request),
    (names::PER_CONTAINER_LIMIT, AnnotationSubject::Limit),
    (names::PER_CONTAINER_MODE, AnnotationSubject::Mode),
    (names::PER_CONTAINER_DEVICES, AnnotationSubject::Given),
    (names::PER_CONTAINER_COMPUTE, AnnotationSubject::Given),
];
/// What the end of a name has in it that is about a card's time.
const COMPUTE: &str = ".gpu-compute.";

/// All of a pod that begin as NVIDIA's do.
pub(crate) fn all(pod: &Pod) -> impl Iterator<Item = ContainerAnnotation<'_>> {
    let annotations = pod.metadata.annotations.iter();
    annotations.filter_map(|(key, value)| {
        let rest = key.strip_prefix(names::PER_CONTAINER)?;
        let found = ENDS
            .into_iter()
            .find_map(|(end, about)| Some((rest.strip_suffix(end)?, about)));
        let (container, about) = found.unwrap_or(match rest.contains(COMPUTE) {
            true => (rest, AnnotationSubject::Compute),
            false => (rest, AnnotationSubject::Unknown),
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

/// The annotation that says of a container up to which part of a card it may grow.
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
