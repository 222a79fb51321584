//! Translates HAMi's resources to KAI's annotations, for manifests that were written for
//! [HAMi](https://github.com/Project-HAMi/HAMi).
//!
//! In HAMi a container asks in its limits: `nvidia.com/gpumem` is MiB of each of its GPUs,
//! `nvidia.com/gpumem-percentage` a part of each, and `nvidia.com/gpu` their number (1 by default). They become
//! `gpu-memory` or `gpu-fraction` with `gpu-fraction-num-devices`, and are removed from the container, because no node
//! has such resources. If several containers ask, each gets an annotation of KAI 0.18.
//!
//! A share that Apportion would not enforce is refused: `nvidia.com/gpucores` asks for a part of the compute time.

use apportion_abi::names as abi;
pub use apportion_abi::names::{
    HAMI_CORES as CORES, HAMI_MEMORY as MEMORY, HAMI_PERCENTAGE as PERCENTAGE,
};
use serde_json::Value;

use crate::containers::{ContainerIndex, ContainerList, is_shared, positions};
use crate::names;
use crate::pod::{Container, Pod};
use apportion_kubernetes::Quantity;

/// The resources that HAMi's device plugin offers and Apportion replaces.
pub const RESOURCES: [&str; 3] = [MEMORY, PERCENTAGE, CORES];
/// HAMi's annotations that choose GPUs.
const CHOICES: [&str; 6] = [
    abi::HAMI_USE_TYPE,
    abi::HAMI_USE_NO_TYPE,
    abi::HAMI_USE_UUID,
    abi::HAMI_USE_NO_UUID,
    abi::HAMI_MODE,
    abi::HAMI_POLICY,
];

/// Why a pod is refused.
#[expect(missing_docs, reason = "the message of each refusal names its fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HamiRefusal {
    /// It asks for compute time.
    #[error(
        "container {container} asks for {CORES}: {value}, and Apportion does not limit compute; leave {CORES} out"
    )]
    Cores { container: String, value: String },
    /// An amount is invalid.
    #[error("container {container} asks for {resource}: {value}, which is not {expected}")]
    Amount {
        container: String,
        resource: &'static str,
        value: String,
        /// What would be valid.
        expected: &'static str,
    },
    /// It asks for memory twice.
    #[error("container {0} asks for both {MEMORY} and {PERCENTAGE}; keep one")]
    MemoryTwice(String),
    /// The pod also has KAI's annotations.
    #[error(
        "container {container} asks for {resource}, and the pod has KAI's annotations for a share; keep one"
    )]
    TwoWays {
        container: String,
        resource: &'static str,
    },
    /// KAI has no annotation for this.
    #[error(
        "{0} containers ask for shares, so each can only ask for {MEMORY} of one GPU; container {1} asks for {2}"
    )]
    Several(usize, String, &'static str),
}

/// What one container asks for.
struct HamiRequest {
    position: ContainerIndex,
    container: String,
    amount: HamiAmount,
    devices: u64,
}

/// How much of each GPU.
#[derive(Clone, Copy)]
enum HamiAmount {
    Mib(u64),
    /// From 1 to 99.
    Percent(u64),
}

/// Replaces a pod's HAMi resources with KAI's annotations. Returns a warning for each annotation that is ignored.
///
/// # Errors
/// The first request that Apportion does not support. The pod is then unchanged.
pub fn translate(pod: &mut Pod) -> Result<Vec<String>, HamiRefusal> {
    let mut asks = Vec::new();
    for position in positions(pod) {
        if let Some(container) = position.of(pod) {
            asks.extend(read(pod, position, container)?);
        }
    }
    check(&asks)?;
    let has_hami_resources = positions(pod).iter().any(|position| {
        let container = position.of(pod);
        container.is_some_and(|container| RESOURCES.iter().any(|name| asks_for(container, name)))
    });
    if !has_hami_resources {
        return Ok(Vec::new());
    }
    for position in positions(pod) {
        let is_share = asks.iter().any(|ask| ask.position == position);
        if let Some(container) = position.of_mut(pod) {
            strip(container, is_share);
        }
    }
    let annotations = &mut pod.metadata.annotations;
    match asks.as_slice() {
        [] => {}
        [ask] => {
            let (name, value) = match ask.amount {
                HamiAmount::Mib(mib) => (names::MEMORY, mib.to_string()),
                HamiAmount::Percent(percent) => (names::FRACTION, format!("0.{percent:02}")),
            };
            annotations.insert(name.to_owned(), value);
            if ask.devices > 1 {
                annotations.insert(names::DEVICES.to_owned(), ask.devices.to_string());
            }
            let first = ContainerIndex {
                list: ContainerList::Regular,
                index: 0,
            };
            if ask.position != first {
                annotations.insert(names::CONTAINER.to_owned(), ask.container.clone());
            }
        }
        several => {
            for ask in several {
                let key = format!(
                    "{}{}{}",
                    names::PER_CONTAINER,
                    ask.container,
                    names::PER_CONTAINER_LIMIT
                );
                if let HamiAmount::Mib(mib) = ask.amount {
                    annotations.insert(key, format!("{mib}Mi"));
                }
            }
        }
    }
    let ignored = CHOICES.iter().filter(|name| pod.annotation(name).is_some());
    Ok(ignored
        .map(|name| format!("annotation {name} is ignored: Apportion does not choose GPUs by it"))
        .collect())
}

/// What a container asks for; `None` if it asks for no share.
fn read(
    pod: &Pod,
    position: ContainerIndex,
    container: &Container,
) -> Result<Option<HamiRequest>, HamiRefusal> {
    let name = || container.name.clone();
    let number = |resource, expected| {
        let value = asked(container, resource).filter(|value| !is_nothing(value));
        let value = value.map(|value| {
            let whole = whole(&value).filter(|number| *number > 0);
            whole.ok_or(HamiRefusal::Amount {
                container: name(),
                resource,
                value,
                expected,
            })
        });
        value.transpose()
    };
    let memory = number(MEMORY, "a number of MiB")?;
    let percentage = number(PERCENTAGE, "a number from 1 to 100")?;
    // All compute time of a whole GPU is no limit.
    let is_whole = memory.is_none() && matches!(percentage, None | Some(100));
    if let Some(value) = asked(container, CORES)
        && !is_nothing(&value)
        && !(is_whole && whole(&value) == Some(100))
    {
        return Err(HamiRefusal::Cores {
            container: name(),
            value,
        });
    }
    let (amount, resource) = match (memory, percentage) {
        (None, None | Some(100)) => return Ok(None),
        (Some(_), Some(_)) => return Err(HamiRefusal::MemoryTwice(name())),
        (Some(mib), None) => (HamiAmount::Mib(mib), MEMORY),
        (None, Some(percent @ 1..=99)) => (HamiAmount::Percent(percent), PERCENTAGE),
        (None, Some(_)) => {
            return Err(HamiRefusal::Amount {
                container: name(),
                resource: PERCENTAGE,
                value: asked(container, PERCENTAGE).unwrap_or_default(),
                expected: "a number from 1 to 100",
            });
        }
    };
    if is_shared(pod) {
        return Err(HamiRefusal::TwoWays {
            container: name(),
            resource,
        });
    }
    let devices = number(names::WHOLE, "a number of GPUs")?.unwrap_or(1);
    Ok(Some(HamiRequest {
        position,
        container: name(),
        amount,
        devices,
    }))
}

/// Checks that KAI's annotations can express all requests together.
fn check(asks: &[HamiRequest]) -> Result<(), HamiRefusal> {
    if asks.len() < 2 {
        return Ok(());
    }
    let wrong = asks.iter().find_map(|ask| match ask.amount {
        HamiAmount::Percent(_) => Some((ask, PERCENTAGE)),
        HamiAmount::Mib(_) => (ask.devices > 1).then_some((ask, "several GPUs")),
    });
    match wrong {
        Some((ask, what)) => Err(HamiRefusal::Several(
            asks.len(),
            ask.container.clone(),
            what,
        )),
        None => Ok(()),
    }
}

/// Removes HAMi's resources from a container, and for a share also the number of its GPUs. 100 % of a GPU is a whole
/// GPU; HAMi gives one also where `nvidia.com/gpu` is missing.
fn strip(container: &mut Container, is_share: bool) {
    let is_whole = asks_for(container, PERCENTAGE) && !is_share;
    let has_count = asks_for(container, names::WHOLE);
    let resources = &mut container.resources;
    for amounts in [&mut resources.limits, &mut resources.requests] {
        for name in RESOURCES {
            amounts.remove(name);
        }
        if is_share {
            amounts.remove(names::WHOLE);
        }
    }
    if is_whole && !has_count {
        let one = Value::from("1");
        resources.limits.insert(names::WHOLE.to_owned(), one);
    }
}

fn asks_for(container: &Container, resource: &str) -> bool {
    asked(container, resource).is_some()
}

/// The amount as written. The limit comes before the request, as for all extended resources.
fn asked(container: &Container, resource: &str) -> Option<String> {
    let resources = &container.resources;
    let found = resources
        .limits
        .get(resource)
        .or_else(|| resources.requests.get(resource))?;
    Some(match found {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

fn is_nothing(value: &str) -> bool {
    value.parse::<Quantity>().is_ok_and(Quantity::is_zero)
}

fn whole(value: &str) -> Option<u64> {
    u64::try_from(value.parse::<Quantity>().ok()?.whole()?).ok()
}
