//! Shares as Kubernetes resources, for whatever counts resources: Kueue, autoscalers, ResourceQuotas.
//!
//! The scheduler ignores them: the ledger of a node's agent decides what fits. A container may only request what its
//! annotations ask for. So nobody is counted for less than they get, and nobody takes from a node what they do not get.

use std::collections::BTreeMap;

use apportion_abi::names::{RESOURCE_SHARE_MIB as MIB, RESOURCE_SHARE_MICRO as MICRO};
use apportion_abi::{SHARE_UNIT, Share};
use serde_json::{Value, json};

use crate::containers::positions;
use crate::pod::Pod;
use crate::refusal::PodRefusal;
use crate::request::{self, ContainerGpuRequest};
use apportion_kubernetes::Quantity;

/// Parts per billion in a millionth.
const MILLIONTH: u32 = 1000;
/// How many millionths of a 16000 MiB GPU a share can lose when it is rounded down to 2 MiB. The request is lower by as
/// much, because that many more pods can share a GPU. On smaller GPUs a share can lose more, and the agents offer more.
const ROUNDING: u64 = 125;

/// The resource that counts a share, with its amount; `None` if the share is too small to count.
///
/// Amounts are rounded down as shares are, so their sum on a node never exceeds what the node offers.
fn counted(asked: &ContainerGpuRequest) -> Option<(&'static str, u64)> {
    let devices = u64::from(asked.request.devices);
    let (resource, each) = match asked.request.share {
        Share::Memory(bytes) => (MIB, (bytes.0 / SHARE_UNIT * SHARE_UNIT) >> 20),
        Share::Fraction(fraction) => {
            let millionths = u64::from(fraction.parts_per_billion() / MILLIONTH);
            (MICRO, millionths.saturating_sub(ROUNDING))
        }
        Share::Whole => return None,
    };
    let amount = each.saturating_mul(devices);
    (amount > 0).then_some((resource, amount))
}

/// Adds the counting resource to the containers with a share. Mistakes in the pod are reported by validation.
pub(crate) fn fill(pod: &mut Pod) {
    let asked = request::read(pod).unwrap_or_default();
    for one in asked {
        let Some((resource, amount)) = counted(&one) else {
            continue;
        };
        let Some(container) = one.container.of_mut(pod) else {
            continue;
        };
        let resources = &mut container.resources;
        for amounts in [&mut resources.limits, &mut resources.requests] {
            let amount = json!(amount.to_string());
            amounts.entry(resource.to_owned()).or_insert(amount);
        }
    }
}

/// Checks what containers request by hand against their shares.
///
/// # Errors
/// [`PodRefusal::Counted`] for the first that requests another amount.
pub(crate) fn check(pod: &Pod) -> Result<(), PodRefusal> {
    let mut shares = BTreeMap::new();
    for one in request::read(pod).unwrap_or_default() {
        shares.insert(one.container, counted(&one));
    }
    for position in positions(pod) {
        let Some(container) = position.of(pod) else {
            continue;
        };
        let share = shares.get(&position).copied().flatten();
        let resources = [&container.resources.limits, &container.resources.requests];
        for (resource, amounts) in resources
            .into_iter()
            .flat_map(|amounts| [MIB, MICRO].map(|resource| (resource, amounts)))
        {
            let Some(asked) = amounts.get(resource) else {
                continue;
            };
            let of_share = share.filter(|(counts, _)| *counts == resource);
            let is = of_share.map_or(0, |(_, amount)| amount);
            if !is_amount(asked, is) {
                return Err(PodRefusal::Counted {
                    container: container.name.clone(),
                    resource,
                    asked: asked.as_str().map_or(asked.to_string(), str::to_owned),
                    is,
                });
            }
        }
    }
    Ok(())
}

fn is_amount(asked: &Value, is: u64) -> bool {
    let quantity: Option<Quantity> = match asked {
        Value::String(text) => text.parse().ok(),
        number => number.to_string().parse().ok(),
    };
    let whole = quantity.and_then(Quantity::whole);
    whole.and_then(|whole| u64::try_from(whole).ok()) == Some(is)
}
