//! What KAI 0.18 and later let a pod ask for beside memory: a part of a card's time, a way to share it, cards by name.
//!
//! A share here is memory, and its cards are chosen by the scheduler. What is asked for in vain is refused in words,
//! because the pod would run otherwise than its author thinks. Where a pod of KAI's runs already, it is read as it is.

use crate::container_annotations::{self, AnnotationSubject, ContainerAnnotation};
use crate::names;
use crate::pod::Pod;
use crate::refusal::PodRefusal;

/// The way to share a card's time that the driver has.
const TIME_SLICING: &str = "time-slicing";
/// The other one that KAI knows.
const SM_SHARING: &str = "sm-sharing";

/// Something that Apportion cannot do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedRequest {
    /// Several programs at once on the multiprocessors of a card.
    #[error(
        "{0} sm-sharing needs NVIDIA's Multi-Process Service, which Apportion does not run; leave the annotation out, or set it to time-slicing"
    )]
    SmSharing(String),
    /// A way to share that KAI does not know.
    #[error("invalid NvFractions compute mode: {value} ({key} is time-slicing or sm-sharing)")]
    Mode {
        /// The annotation.
        key: String,
        /// What it says.
        value: String,
    },
    /// A part of a card's time.
    #[error(
        "{0} is not supported: a share limits GPU memory, and the pods on a GPU share its time as the driver divides it; leave the annotation out"
    )]
    Compute(String),
    /// What only KAI's binder writes.
    #[error(
        "{0} may only be written by KAI's binder; Apportion chooses the GPUs of a pod itself, so leave the annotation out"
    )]
    Given(String),
    /// Nobody knows what it means.
    #[error(
        "invalid NvFractions annotation key: {0} (known are .gpu-memory.request, .gpu-memory.limit and .gpu-compute.mode after the container's name)"
    )]
    Unknown(String),
}

/// Holds what a pod asks for beside memory against what can be done.
///
/// # Errors
/// The first annotation that asks in vain.
pub(crate) fn check(pod: &Pod) -> Result<(), PodRefusal> {
    let found = container_annotations::all(pod).find_map(vain);
    let found = found.or_else(|| {
        let value = pod.annotation(names::COMPUTE_MODE)?;
        mode(names::COMPUTE_MODE, value)
    });
    match found {
        Some(wish) => Err(PodRefusal::Wish(Box::new(wish))),
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

/// The same of a pod that is there and waits; what KAI's binder wrote is left alone.
#[must_use]
pub fn unmet(pod: &Pod) -> Option<String> {
    match check(pod) {
        Err(PodRefusal::Wish(wish)) if !matches!(*wish, UnsupportedRequest::Given(_)) => {
            Some(wish.to_string())
        }
        Err(_) | Ok(()) => None,
    }
}

/// What is not done although the pod is taken.
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
