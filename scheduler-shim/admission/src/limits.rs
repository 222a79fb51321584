//! Limits above the request. KAI lets such a container grow beyond its request if its card has room.
//!
//! A cluster chooses what that means here: such a pod is refused, or its limit is scheduled and charged, or its request
//! is guaranteed and it may burst up to its limit. In all cases the limit must be valid by KAI's rules.
//!
//! # Decision: a mark on the pod says that it may burst
//! The scheduler and the agents could have the setting, too. But then a pod that runs would change its meaning with the
//! setting, and programs with different settings would count it differently. So the webhook writes the choice on the
//! pod when it is created ([`names::BURST`]), and the others read it there.

use apportion_abi::{GpuFraction, SHARE_UNIT, Share};

use crate::container_annotations;
use crate::containers::fraction_container;
use crate::names;
use crate::number;
use crate::pod::Pod;
use crate::refusal::PodRefusal;
use crate::request;

/// How many decimals KAI allows in a limit that is a part of a card.
const DECIMALS: usize = 5;

/// What to do with a pod whose limit is above its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestBelowLimit {
    /// The webhook refuses the pod.
    #[default]
    Refuse,
    /// Schedule and charge the limit, and warn the creator.
    ChargeLimit,
    /// Schedule and charge the request, and let the pod burst up to the limit.
    Burst,
}

/// The value of the mark of pods that may burst.
pub const MAY: &str = "true";

/// Whether a pod is marked: its request is guaranteed, and it may burst up to its limit.
#[must_use]
pub fn may_burst(pod: &Pod) -> bool {
    pod.annotation(names::BURST) == Some(MAY)
}

/// Marks a pod that may burst, and no other.
pub fn mark(pod: &mut Pod, setting: RequestBelowLimit) {
    let may = setting == RequestBelowLimit::Burst && growing(pod).is_some();
    let annotations = &mut pod.metadata.annotations;
    annotations.remove(names::BURST);
    if may {
        annotations.insert(names::BURST.to_owned(), MAY.to_owned());
    }
}

/// The setting for an update of a pod. A pod that runs keeps the meaning that it was created with.
pub(crate) fn setting_of(old: &Pod, setting: RequestBelowLimit) -> RequestBelowLimit {
    if may_burst(old) && !old.spec.node_name.is_empty() {
        RequestBelowLimit::Burst
    } else {
        setting
    }
}

/// Checks that an update leaves the mark alone.
///
/// # Errors
/// [`PodRefusal::BurstMark`] if it writes one.
pub(crate) fn check_mark(old: &Pod, new: &Pod) -> Result<(), PodRefusal> {
    match new.annotation(names::BURST) {
        Some(mark) if old.annotation(names::BURST) != Some(mark) => Err(PodRefusal::BurstMark),
        Some(_) | None => Ok(()),
    }
}

/// Checks a pod with a limit above its request against the setting.
///
/// # Errors
/// The setting does not allow it, or it could not burst.
pub(crate) fn check_setting(pod: &Pod, setting: RequestBelowLimit) -> Result<(), PodRefusal> {
    let Some(growing) = growing(pod) else {
        return Ok(());
    };
    match setting {
        RequestBelowLimit::Refuse => Err(PodRefusal::Growing(Box::new(growing))),
        RequestBelowLimit::ChargeLimit if may_burst(pod) => Err(PodRefusal::BurstMark),
        RequestBelowLimit::ChargeLimit => Ok(()),
        RequestBelowLimit::Burst => check_guarantees(pod),
    }
}

/// Checks that each container is guaranteed something.
fn check_guarantees(pod: &Pod) -> Result<(), PodRefusal> {
    let ranges = request::ranges(pod)?;
    let too_small = ranges
        .into_iter()
        .find(|range| matches!(range.request.share, Share::Memory(bytes) if bytes.0 < SHARE_UNIT));
    match too_small {
        Some(range) => Err(PodRefusal::GuaranteeTooSmall(Box::new(
            range.request.annotation,
        ))),
        None => Ok(()),
    }
}

/// An annotation with its value, for messages.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationValue {
    pub key: String,
    pub value: String,
}

impl std::fmt::Display for AnnotationValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.key, self.value)
    }
}

/// A share whose limit is above its request.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{request} is below {limit}: a share does not grow here, its limit is scheduled, charged and kept; set both to the same amount, or let an administrator have shares grow or limits charged (webhook.requestBelowLimit=burst or charge-limit)"
)]
pub struct BurstableShare {
    pub request: AnnotationValue,
    pub limit: AnnotationValue,
}

impl BurstableShare {
    /// The warning for the creator if the pod is admitted.
    #[must_use]
    pub fn warning(&self) -> String {
        let Self { request, limit } = self;
        format!(
            "{limit} is scheduled and charged, not {request}: a share does not grow here, so the pod waits for a GPU with room for its limit"
        )
    }
}

/// The first share of a pod whose limit is above its request.
#[must_use]
pub fn growing(pod: &Pod) -> Option<BurstableShare> {
    let ranges = request::ranges(pod).ok()?;
    let mut growing = ranges.into_iter().filter_map(|range| {
        let limit = range
            .limit
            .filter(|limit| limit.share != range.request.share)?;
        Some(BurstableShare {
            request: range.request.annotation,
            limit: limit.annotation,
        })
    });
    growing.next()
}

/// Checks the limits of `gpu-fraction` and `gpu-memory` against KAI's rules.
///
/// # Errors
/// The first rule that a limit breaks.
pub(crate) fn check(pod: &Pod) -> Result<(), PodRefusal> {
    if let Some(text) = pod.annotation(names::FRACTION_LIMIT) {
        check_fraction(pod, names::FRACTION_LIMIT, text)?;
    }
    check_memory(pod)?;
    let Some(limit) = container_annotations::portion_limit(pod) else {
        return Ok(());
    };
    check_fraction(pod, limit.key, limit.value)?;
    let position = fraction_container(pod)?;
    let target = position.of(pod).map_or("", |container| &container.name);
    if target != limit.container {
        return Err(PodRefusal::OtherContainer {
            key: limit.key.to_owned(),
            target: target.to_owned(),
        });
    }
    match pod.annotation(names::FRACTION_LIMIT) {
        Some(text) if text != limit.value => Err(conflict(names::FRACTION_LIMIT, limit.key)),
        _ => Ok(()),
    }
}

fn check_fraction(pod: &Pod, key: &str, text: &str) -> Result<(), PodRefusal> {
    let Some(request) = pod.annotation(names::FRACTION) else {
        return Err(PodRefusal::LimitAlone {
            key: key.to_owned(),
            of: names::FRACTION,
        });
    };
    let decimals = text.split_once('.').map_or(0, |(_, after)| after.len());
    if decimals > DECIMALS {
        return Err(PodRefusal::LimitDecimals(key.to_owned()));
    }
    let Some(limit) = number::float(text).filter(|limit| *limit > 0.0 && *limit < 1.0) else {
        return Err(PodRefusal::LimitForm(key.to_owned()));
    };
    if text.parse::<GpuFraction>().is_err() {
        return Err(PodRefusal::LimitForm(key.to_owned()));
    }
    if number::float(request).is_none_or(|request| limit <= request) {
        return Err(PodRefusal::LimitTooSmall {
            key: key.to_owned(),
            value: text.to_owned(),
            least: "be greater than",
            of: names::FRACTION,
            request: request.to_owned(),
        });
    }
    Ok(())
}

fn check_memory(pod: &Pod) -> Result<(), PodRefusal> {
    let key = names::MEMORY_UP_TO;
    let Some(text) = pod.annotation(key) else {
        return Ok(());
    };
    let Some(request) = pod.annotation(names::MEMORY) else {
        return Err(PodRefusal::LimitAlone {
            key: key.to_owned(),
            of: names::MEMORY,
        });
    };
    let has_unit = number::float(text).is_none();
    let Some(limit) = request::bytes(text).filter(|_| has_unit) else {
        return Err(PodRefusal::LimitQuantity(key));
    };
    if number::positive(request).is_some_and(|mib| limit.0 >> 20 < mib) {
        return Err(PodRefusal::LimitTooSmall {
            key: key.to_owned(),
            value: text.to_owned(),
            least: "not be smaller than",
            of: names::MEMORY,
            request: format!("{request} MiB"),
        });
    }
    Ok(())
}

/// The limit of a pod's `gpu-fraction`, with its annotation.
pub(crate) fn of_fraction(pod: &Pod) -> Option<(Share, AnnotationValue)> {
    let short = pod
        .annotation(names::FRACTION_LIMIT)
        .map(|text| (names::FRACTION_LIMIT, text));
    let (key, text) = short.or_else(|| {
        container_annotations::portion_limit(pod).map(|limit| (limit.key, limit.value))
    })?;
    Some((Share::Fraction(text.parse().ok()?), annotation(key, text)))
}

/// The limit of a pod's `gpu-memory`.
pub(crate) fn of_memory(pod: &Pod) -> Option<(Share, AnnotationValue)> {
    let text = pod.annotation(names::MEMORY_UP_TO)?;
    Some((
        Share::Memory(request::bytes(text)?),
        annotation(names::MEMORY_UP_TO, text),
    ))
}

/// Checks a container's limit against the pod's limit, from which KAI derives it.
///
/// # Errors
/// The pod has no limit, or a different one.
pub(crate) fn check_written(pod: &Pod, key: &str, limit: Share) -> Result<(), PodRefusal> {
    match of_memory(pod) {
        Some((share, _)) if share == limit => Ok(()),
        Some(_) => Err(conflict(names::MEMORY_UP_TO, key)),
        None if of_fraction(pod).is_some() => Ok(()),
        None => Err(PodRefusal::LimitBeside),
    }
}

fn conflict(of: &'static str, key: &str) -> PodRefusal {
    PodRefusal::LimitConflict {
        of,
        key: key.to_owned(),
    }
}

/// An annotation and its value.
pub(crate) fn annotation(key: &str, value: &str) -> AnnotationValue {
    AnnotationValue {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}
