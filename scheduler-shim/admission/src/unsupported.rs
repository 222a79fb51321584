//! What KAI 0.18 and later let a pod request besides memory: a part of a card's time, a way to share it, named cards.
//!
//! Here a share is memory, and the scheduler chooses its cards. An unsupported request is refused with a message,
//! because the pod would not run as its author expects. A pod of KAI's that already runs is read as it is.

use crate::container_annotations::{self, AnnotationSubject, ContainerAnnotation};
use crate::names;
use crate::pod::Pod;
use crate::refusal::PodRefusal;

/// The way to share a card's time that the driver has.
const TIME_SLICING: &str = "time-slicing";
/// The other one that KAI knows.
const SM_SHARING: &str = "sm-sharing";

/// A request that Apportion does not support.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedRequest {
    /// Several programs at once on the multiprocessors of a card.
    #[error(
        "{0} sm-sharing needs NVIDIA's Multi-Process Service, which Apportion does not run; leave the annotation out, or set it to time-slicing"
    )]
    SmSharing(String),
    /// A way to share that KAI does not know.
    #[error("invalid NvFractions compute mode: {value} ({key} is time-slicing or sm-sharing)")]
    Mode { key: String, value: String },
    /// A part of a card's time.
    #[error(
        "{0} is not supported: a share limits GPU memory, and the pods on a GPU share its time as the driver divides it; leave the annotation out"
    )]
    Compute(String),
    /// An annotation that only KAI's binder writes.
    #[error(
        "{0} may only be written by KAI's binder; Apportion chooses the GPUs of a pod itself, so leave the annotation out"
    )]
    Given(String),
    #[error(
        "invalid NvFractions annotation key: {0} (known are .gpu-memory.request, .gpu-memory.limit and .gpu-compute.mode after the container's name)"
    )]
    Unknown(String),
}

/// Checks what a pod requests besides memory.
///
/// # Errors
/// The first unsupported annotation.
pub(crate) fn check(pod: &Pod) -> Result<(), PodRefusal> {
    let found = container_annotations::all(pod).find_map(vain);
    let found = found.or_else(|| {
        let value = pod.annotation(names::COMPUTE_MODE)?;
        mode(names::COMPUTE_MODE, value)
    });
    match found {
        Some(wish) => Err(PodRefusal::Unsupported(Box::new(wish))),
        None => Ok(()),
    }
}

fn vain(key: ContainerAnnotation<'_>) -> Option<UnsupportedRequest> {
    let name = key.key.to_owned();
    match key.about {
        AnnotationSubject::Request | AnnotationSubject::Limit => None,
        AnnotationSubject::Mode => mode(key.key, key.value),
        AnnotationSubject::Given => Some(UnsupportedRequest::Given(name)),
        AnnotationSubject::Compute => Some(UnsupportedRequest::Compute(name)),
        AnnotationSubject::Unknown => Some(UnsupportedRequest::Unknown(name)),
    }
}

fn mode(key: &str, value: &str) -> Option<UnsupportedRequest> {
    let key = key.to_owned();
    match value {
        TIME_SLICING => None,
        SM_SHARING => Some(UnsupportedRequest::SmSharing(key)),
        other => Some(UnsupportedRequest::Mode {
            key,
            value: other.to_owned(),
        }),
    }
}

/// The same check for an existing pod that waits. What KAI's binder wrote is ignored.
#[must_use]
pub fn unmet(pod: &Pod) -> Option<String> {
    match check(pod) {
        Err(PodRefusal::Unsupported(wish)) if !matches!(*wish, UnsupportedRequest::Given(_)) => {
            Some(wish.to_string())
        }
        Err(_) | Ok(()) => None,
    }
}

/// A warning about what is ignored in an admitted pod.
pub(crate) fn warnings(pod: &Pod) -> Option<String> {
    let both = pod.annotation(names::FRACTION).is_some();
    let request =
        container_annotations::all(pod).find(|key| key.about == AnnotationSubject::Request)?;
    both.then(|| {
        format!(
            "gpu-fraction is ignored beside {} ({}), as by KAI: the container gets that memory",
            request.key, request.value
        )
    })
}
