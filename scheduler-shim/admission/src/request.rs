//! What a pod asks for, and whether it may: KAI's checks, in KAI's order, the first mistake first.
//!
//! KAI's words and those of KAI 0.18 become the same [`GpuRequest`]. Where the latter say both what a container
//! has at least and what it has at most, the share is the most: the container never gets less than its limit
//! promises, and the card never holds more than what was promised.

use apportion_abi::{Bytes, Fraction, GpuRequest, Share};

use crate::containers::{
    Place, fraction_container, has_pod_share, is_shared, named_in_keys, shared_containers,
};
use crate::names;
use crate::number;
use crate::pod::Pod;
use crate::quantity::Quantity;
use crate::refusal::Refusal;

/// Holds a pod's request against KAI's rules.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(pod: &Pod) -> Result<(), Refusal> {
    let fraction = pod.annotation(names::FRACTION);
    let memory = pod.annotation(names::MEMORY);
    let devices = pod.annotation(names::DEVICES);
    let has_memory = memory.is_some() || !named_in_keys(pod).is_empty();
    let has_whole = wants_whole(pod);
    let rules = [
        (
            pod.annotation(names::MPS) == Some("true") && !is_shared(pod),
            Refusal::ServiceWithoutShare,
        ),
        (fraction.is_some() && has_whole, Refusal::FractionAndWhole),
        (
            (memory.is_some() && fraction.is_some()) || (has_memory && has_whole),
            Refusal::MemoryAndOther,
        ),
        (
            devices.is_some() && !is_shared(pod),
            Refusal::DevicesWithoutShare,
        ),
        (memory.is_some_and(is_no_count), Refusal::Memory),
        (fraction.is_some_and(is_no_fraction), Refusal::Fraction),
        (
            fraction.is_some_and(|text| text.parse::<Quantity>().is_err()),
            Refusal::FractionForm(fraction.unwrap_or_default().to_owned()),
        ),
        (devices.is_some_and(is_no_count), Refusal::Devices),
    ];
    match rules.into_iter().find(|(broken, _)| *broken) {
        Some((_, refusal)) => Err(refusal),
        None => check_named(pod),
    }
}

/// Holds KAI 0.18's annotations against their rules.
fn check_named(pod: &Pod) -> Result<(), Refusal> {
    for name in named_in_keys(pod) {
        let key = |end| format!("{}{name}{end}", names::PER_CONTAINER);
        if has_pod_share(pod) {
            let [request, limit] =
                [names::PER_CONTAINER_REQUEST, names::PER_CONTAINER_LIMIT].map(key);
            let there = pod.annotation(&request).map(|_| request);
            return Err(Refusal::TwoWays {
                key: there.unwrap_or(limit),
            });
        }
        named_share(pod, name)?;
    }
    // A pod without containers is the API server's to refuse, not ours.
    let names_one = pod.annotation(names::CONTAINER).is_some() || !has_pod_share(pod);
    if names_one {
        shared_containers(pod)?;
    }
    Ok(())
}

fn is_no_count(text: &str) -> bool {
    number::positive(text).is_none()
}

/// Whether KAI says that a text is no fraction; `NaN` is none and yet passes here.
fn is_no_fraction(text: &str) -> bool {
    number::float(text).is_none_or(|value| value <= 0.0 || value >= 1.0)
}

/// Whether a container has a limit for whole cards, of whatever amount.
pub(crate) fn wants_whole(pod: &Pod) -> bool {
    let mut all = pod.all_containers();
    all.any(|container| container.resources.limits.contains_key(names::WHOLE))
}

/// What one container asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Which container.
    pub container: Place,
    /// What it asks for.
    pub request: GpuRequest,
}

/// What the containers of a pod ask for; nothing if it shares no card.
///
/// # Errors
/// The first rule that it breaks, or [`Refusal::Fraction`] or [`Refusal::Memory`] where KAI lets pass what is
/// less than a byte or more than any card.
pub fn read(pod: &Pod) -> Result<Vec<Asked>, Refusal> {
    check(pod)?;
    let devices = pod.annotation(names::DEVICES).and_then(number::positive);
    let devices = u32::try_from(devices.unwrap_or(1)).map_err(|_| Refusal::Devices)?;
    let asked = |container, share| Asked {
        container,
        request: GpuRequest { share, devices },
    };
    if let Some(share) = pod_share(pod)? {
        return Ok(vec![asked(fraction_container(pod)?, share)]);
    }
    let mut found = Vec::new();
    for place in shared_containers(pod)? {
        let name = place.of(pod).map_or("", |container| &container.name);
        found.push(asked(place, Share::Memory(named_share(pod, name)?)));
    }
    Ok(found)
}

fn pod_share(pod: &Pod) -> Result<Option<Share>, Refusal> {
    if let Some(text) = pod.annotation(names::FRACTION) {
        let fraction: Fraction = text.parse().map_err(|_| Refusal::Fraction)?;
        return Ok(Some(Share::Fraction(fraction)));
    }
    let Some(text) = pod.annotation(names::MEMORY) else {
        return Ok(None);
    };
    let mib = number::positive(text).ok_or(Refusal::Memory)?;
    let bytes = mib.checked_mul(1 << 20).ok_or(Refusal::Memory)?;
    Ok(Some(Share::Memory(Bytes(bytes))))
}

/// What KAI 0.18's annotations give one container.
fn named_share(pod: &Pod, name: &str) -> Result<Bytes, Refusal> {
    let amount = |end| {
        let key = format!("{}{name}{end}", names::PER_CONTAINER);
        let text = pod.annotation(&key).map(str::to_owned);
        text.map(|value| match bytes(&value) {
            Some(bytes) => Ok((bytes, value)),
            None => Err(Refusal::ContainerMemory { key, value }),
        })
        .transpose()
    };
    match (
        amount(names::PER_CONTAINER_REQUEST)?,
        amount(names::PER_CONTAINER_LIMIT)?,
    ) {
        (Some((least, at_least)), Some((most, at_most))) if least > most => {
            Err(Refusal::RequestOverLimit {
                request: format!(
                    "{}{name}{}",
                    names::PER_CONTAINER,
                    names::PER_CONTAINER_REQUEST
                ),
                at_least,
                at_most,
            })
        }
        (_, Some((bytes, _))) | (Some((bytes, _)), None) => Ok(bytes),
        (None, None) => Err(Refusal::Container(name.to_owned())),
    }
}

/// A positive quantity of whole bytes.
fn bytes(text: &str) -> Option<Bytes> {
    let whole = text.parse::<Quantity>().ok()?.whole()?;
    u64::try_from(whole)
        .ok()
        .filter(|bytes| *bytes > 0)
        .map(Bytes)
}
