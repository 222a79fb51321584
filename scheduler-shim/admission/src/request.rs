//! What a pod requests, and whether it may: KAI's checks, in KAI's order, first mistake first.
//!
//! KAI's annotations and those of KAI 0.18 become the same [`GpuRequest`]. If a container has both a request and a
//! limit, the share is the limit, unless the webhook has marked the pod ([`names::BURST`]): then the share is the
//! request, and the container may burst up to the limit. The mark is on the pod, so a pod keeps the meaning that its
//! annotations had when it was created. [`limits`] decides whether such a pod is admitted at all.

use apportion_abi::{Bytes, GpuFraction, GpuRequest, Share};

use crate::containers::{
    ContainerIndex, has_pod_share, is_shared, named_in_keys, shared_containers,
};
use crate::limits::{self, AnnotationValue, annotation};
use crate::names;
use crate::number;
use crate::pod::Pod;
use crate::refusal::PodRefusal;
use apportion_kubernetes::Quantity;

/// Checks a pod's request against KAI's rules.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(pod: &Pod) -> Result<(), PodRefusal> {
    let fraction = pod.annotation(names::FRACTION);
    let memory = pod.annotation(names::MEMORY);
    let devices = pod.annotation(names::DEVICES);
    let has_memory = memory.is_some() || !named_in_keys(pod).is_empty();
    let has_whole = wants_whole(pod);
    let rules = [
        (
            pod.annotation(names::MPS) == Some("true") && !is_shared(pod),
            PodRefusal::ServiceWithoutShare,
        ),
        (
            fraction.is_some() && has_whole,
            PodRefusal::FractionAndWhole,
        ),
        (
            (memory.is_some() && fraction.is_some()) || (has_memory && has_whole),
            PodRefusal::MemoryAndOther,
        ),
        (
            devices.is_some() && !is_shared(pod),
            PodRefusal::DevicesWithoutShare,
        ),
        (memory.is_some_and(is_no_count), PodRefusal::Memory),
        (fraction.is_some_and(is_no_fraction), PodRefusal::Fraction),
        (
            fraction.is_some_and(|text| text.parse::<Quantity>().is_err()),
            PodRefusal::FractionForm(fraction.unwrap_or_default().to_owned()),
        ),
        (devices.is_some_and(is_no_count), PodRefusal::Devices),
    ];
    match rules.into_iter().find(|(broken, _)| *broken) {
        Some((_, refusal)) => Err(refusal),
        None => check_named(pod),
    }
}

/// Checks KAI 0.18's annotations against their rules.
fn check_named(pod: &Pod) -> Result<(), PodRefusal> {
    limits::check(pod)?;
    if has_pod_share(pod) {
        check_both(pod)?;
    }
    for name in named_in_keys(pod) {
        named_range(pod, name)?;
    }
    // Refusing a pod without containers is left to the API server.
    let names_one = pod.annotation(names::CONTAINER).is_some()
        || !has_pod_share(pod)
        || !named_in_keys(pod).is_empty();
    if names_one {
        shared_containers(pod)?;
    }
    Ok(())
}

/// Checks a container's annotations against its pod's. KAI's webhook and binder write the former beside the latter, so
/// both are in what people copy from a cluster with KAI.
fn check_both(pod: &Pod) -> Result<(), PodRefusal> {
    let named: Vec<&str> = named_in_keys(pod).into_iter().collect();
    let name = match named.as_slice() {
        [] => return Ok(()),
        [name] => *name,
        [name, ..] => {
            let [request, limit] = [names::PER_CONTAINER_REQUEST, names::PER_CONTAINER_LIMIT]
                .map(|end| key(name, end));
            let there = pod.annotation(&request).map(|_| request);
            return Err(PodRefusal::TwoWays {
                key: there.unwrap_or(limit),
            });
        }
    };
    if let Some(container) = pod
        .annotation(names::CONTAINER)
        .filter(|other| *other != name)
    {
        return Err(PodRefusal::ContainerMismatch {
            pods: container.to_owned(),
            named: name.to_owned(),
        });
    }
    if let Some(limit) = amount(pod, name, names::PER_CONTAINER_LIMIT)? {
        limits::check_written(pod, &limit.annotation.key, limit.share)?;
    }
    let Some(request) = amount(pod, name, names::PER_CONTAINER_REQUEST)? else {
        return Ok(());
    };
    match (pod.annotation(names::MEMORY), pod_request(pod)?) {
        (Some(memory), Some(of_pod)) if of_pod.share != request.share => {
            Err(PodRefusal::MemoryMismatch {
                named: request.annotation.value,
                pods: memory.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

fn is_no_count(text: &str) -> bool {
    number::positive(text).is_none()
}

/// Whether KAI says that a text is not a fraction. `NaN` passes here.
fn is_no_fraction(text: &str) -> bool {
    number::float(text).is_none_or(|value| value <= 0.0 || value >= 1.0)
}

/// Whether a container has a limit for whole cards, of any amount.
pub(crate) fn wants_whole(pod: &Pod) -> bool {
    let mut all = pod.all_containers();
    all.any(|container| container.resources.limits.contains_key(names::WHOLE))
}

/// What one container requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerGpuRequest {
    /// The container.
    pub container: ContainerIndex,
    /// What it is guaranteed.
    pub request: GpuRequest,
    /// How much of each card it may use, if that is more.
    pub limit: Option<Share>,
}

/// An amount with its annotation.
#[derive(Clone, Debug)]
pub(crate) struct AnnotatedShare {
    pub(crate) share: Share,
    pub(crate) annotation: AnnotationValue,
}

/// A container's request and limit.
#[derive(Clone, Debug)]
pub(crate) struct ShareRange {
    pub(crate) request: AnnotatedShare,
    /// `None` if only one amount is given.
    pub(crate) limit: Option<AnnotatedShare>,
}

impl ShareRange {
    /// What is scheduled and charged, and up to what the container may burst if that is more.
    fn shares(&self, bursts: bool) -> (Share, Option<Share>) {
        let request = self.request.share;
        let limit = self.limit.as_ref().map(|limit| limit.share);
        match limit.filter(|limit| *limit != request) {
            Some(limit) if bursts => (request, Some(limit)),
            Some(limit) => (limit, None),
            None => (request, None),
        }
    }
}

/// What the containers of a pod request; empty if it shares no card.
///
/// # Errors
/// The first rule that it breaks. [`PodRefusal::Fraction`] or [`PodRefusal::Memory`] also where KAI admits less than a
/// byte or more than any card has.
pub fn read(pod: &Pod) -> Result<Vec<ContainerGpuRequest>, PodRefusal> {
    check(pod)?;
    let devices = pod.annotation(names::DEVICES).and_then(number::positive);
    let devices = u32::try_from(devices.unwrap_or(1)).map_err(|_| PodRefusal::Devices)?;
    let shared = shared_containers_of(pod)?;
    let asked = shared.into_iter().zip(ranges(pod)?);
    let bursts = limits::may_burst(pod);
    let asked = asked.map(|(container, range)| {
        let (share, limit) = range.shares(bursts);
        ContainerGpuRequest {
            container,
            request: GpuRequest { share, devices },
            limit,
        }
    });
    Ok(asked.collect())
}

/// The containers with a share, if any.
fn shared_containers_of(pod: &Pod) -> Result<Vec<ContainerIndex>, PodRefusal> {
    if is_shared(pod) {
        shared_containers(pod)
    } else {
        Ok(Vec::new())
    }
}

/// The request and limit of each container with a share, in their order.
///
/// # Errors
/// As [`read`].
pub(crate) fn ranges(pod: &Pod) -> Result<Vec<ShareRange>, PodRefusal> {
    let named = named_in_keys(pod);
    if let (true, Some(request)) = (named.is_empty(), pod_request(pod)?) {
        return Ok(vec![ShareRange {
            request,
            limit: pod_limit(pod),
        }]);
    }
    let positions = shared_containers_of(pod)?;
    let ranges = positions.into_iter().map(|position| {
        let name = position.of(pod).map_or("", |container| &container.name);
        named_range(pod, name)
    });
    ranges.collect()
}

/// What `gpu-fraction` or `gpu-memory` requests.
fn pod_request(pod: &Pod) -> Result<Option<AnnotatedShare>, PodRefusal> {
    if let Some(text) = pod.annotation(names::FRACTION) {
        let fraction: GpuFraction = text.parse().map_err(|_| PodRefusal::Fraction)?;
        return Ok(Some(AnnotatedShare {
            share: Share::Fraction(fraction),
            annotation: annotation(names::FRACTION, text),
        }));
    }
    let Some(text) = pod.annotation(names::MEMORY) else {
        return Ok(None);
    };
    let mib = number::positive(text).ok_or(PodRefusal::Memory)?;
    let bytes = mib.checked_mul(1 << 20).ok_or(PodRefusal::Memory)?;
    Ok(Some(AnnotatedShare {
        share: Share::Memory(Bytes(bytes)),
        annotation: annotation(names::MEMORY, &format!("{text} MiB")),
    }))
}

fn pod_limit(pod: &Pod) -> Option<AnnotatedShare> {
    let limit = limits::of_memory(pod).or_else(|| limits::of_fraction(pod));
    limit.map(|(share, annotation)| AnnotatedShare { share, annotation })
}

/// The request and limit that annotations with its name give a container.
fn named_range(pod: &Pod, name: &str) -> Result<ShareRange, PodRefusal> {
    let least = amount(pod, name, names::PER_CONTAINER_REQUEST)?;
    let most = amount(pod, name, names::PER_CONTAINER_LIMIT)?;
    if let (Some(least), Some(most)) = (&least, &most)
        && memory(least) > memory(most)
    {
        return Err(PodRefusal::RequestOverLimit {
            request: least.annotation.key.clone(),
            at_least: least.annotation.value.clone(),
            at_most: most.annotation.value.clone(),
        });
    }
    let limit = most.clone().or_else(|| pod_limit(pod));
    match least.or(most) {
        Some(request) => Ok(ShareRange { request, limit }),
        None => Err(PodRefusal::Container(name.to_owned())),
    }
}

fn memory(amount: &AnnotatedShare) -> Bytes {
    match amount.share {
        Share::Memory(bytes) => bytes,
        Share::Fraction(_) | Share::Whole => Bytes::ZERO,
    }
}

fn key(name: &str, end: &str) -> String {
    format!("{}{name}{end}", names::PER_CONTAINER)
}

fn amount(pod: &Pod, name: &str, end: &str) -> Result<Option<AnnotatedShare>, PodRefusal> {
    let key = key(name, end);
    let Some(value) = pod.annotation(&key) else {
        return Ok(None);
    };
    match bytes(value) {
        Some(bytes) => Ok(Some(AnnotatedShare {
            share: Share::Memory(bytes),
            annotation: annotation(&key, value),
        })),
        None => Err(PodRefusal::ContainerMemory {
            value: value.to_owned(),
            key,
        }),
    }
}

/// Parses a positive quantity of whole bytes.
pub(crate) fn bytes(text: &str) -> Option<Bytes> {
    let whole = text.parse::<Quantity>().ok()?.whole()?;
    u64::try_from(whole)
        .ok()
        .filter(|bytes| *bytes > 0)
        .map(Bytes)
}
