//! How much of a device a request consumes, and whether that much is left.
//!
//! The rules are those of KEP-5075: an amount is rounded up to the next that the device's policy allows, and a
//! capacity that the request does not name is consumed by its default, else wholly.

use std::collections::BTreeMap;

use apportion_kubernetes::Quantity;

use crate::amount::{Amount, CapacityMap};
use crate::device_use::DeviceUse;
use crate::objects::{
    CapacityRange, CapacityRequestPolicy, CapacityRequirements, Device, DeviceCapacity,
};

/// The largest quantity that Kubernetes keeps, in billionths.
const MOST: i128 = (i64::MAX as i128) * 1_000_000_000;

/// Whether a device has enough left for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CapacityAnswer {
    /// It has, and this is what the request consumes.
    Enough(CapacityMap),
    /// It has too little, or does not have such a capacity at all.
    TooLittle,
}

/// Whether a device has enough left for a request, beside what claims have of it and what is being given.
///
/// # Errors
///
/// An amount is negative, or too large for Kubernetes. No other device is tried then.
pub(crate) fn check(
    device: &Device,
    required: Option<&CapacityRequirements>,
    used: Option<&DeviceUse>,
    giving: Option<&BTreeMap<&str, Quantity>>,
) -> Result<CapacityAnswer, String> {
    let requests = required.map(|required| &required.requests);
    let mut named = requests.into_iter().flat_map(BTreeMap::keys);
    if named.any(|name| !device.capacity.contains_key(name)) {
        return Ok(CapacityAnswer::TooLittle);
    }
    let consumed = device.capacity.iter().map(|(name, capacity)| {
        let asked = requests.and_then(|requests| requests.get(name));
        let amount = consumption(asked.copied(), capacity);
        let amount = amount.map_err(|error| format!("capacity {name}: {error}"))?;
        Ok((name.clone(), amount))
    });
    let consumed: CapacityMap = consumed.collect::<Result<_, String>>()?;
    let mut all = device.capacity.iter();
    let is_enough = all.all(|(name, capacity)| {
        let amount = consumed[name].0;
        let taken = used.map(|used| used.consumed(name)).unwrap_or_default();
        let giving = giving.and_then(|giving| giving.get(name.as_str()).copied());
        let sum = taken + amount + giving.unwrap_or_default();
        is_allowed(amount, capacity.request_policy.as_ref()) && sum <= capacity.value.0
    });
    Ok(if is_enough {
        CapacityAnswer::Enough(consumed)
    } else {
        CapacityAnswer::TooLittle
    })
}

fn consumption(asked: Option<Amount>, capacity: &DeviceCapacity) -> Result<Amount, String> {
    let policy = capacity.request_policy.as_ref();
    let default = policy.and_then(|policy| policy.default);
    let amount = match asked {
        None => default.unwrap_or(capacity.value).0,
        Some(asked) => match policy {
            None => asked.0,
            Some(policy) => rounded(asked.0, policy)?,
        },
    };
    if amount.is_negative() {
        return Err("the amount is negative".to_owned());
    }
    Ok(Amount(amount))
}

fn rounded(asked: Quantity, policy: &CapacityRequestPolicy) -> Result<Quantity, String> {
    if let Some(range) = &policy.valid_range
        && let Some(min) = range.min
    {
        return rounded_to_step(asked, min.0, range);
    }
    let mut values = policy.valid_values.iter();
    let next = values.find(|value| asked <= value.0);
    Ok(next.map_or(asked, |next| next.0))
}

fn rounded_to_step(
    asked: Quantity,
    min: Quantity,
    range: &CapacityRange,
) -> Result<Quantity, String> {
    if asked < min {
        return Ok(min);
    }
    let Some(step) = step(range) else {
        return Ok(asked);
    };
    let above = asked.billionths() - min.billionths();
    let steps = above / step.billionths() + i128::from(above % step.billionths() != 0);
    let amount = min.billionths() + steps * step.billionths();
    if amount > MOST {
        return Err(format!(
            "{asked} rounded up is more than Kubernetes can count"
        ));
    }
    Ok(step.with_billionths(amount))
}

fn step(range: &CapacityRange) -> Option<Quantity> {
    let step = range.step.map(|step| step.0);
    step.filter(|step| *step > Quantity::ZERO)
}

fn is_allowed(amount: Quantity, policy: Option<&CapacityRequestPolicy>) -> bool {
    let Some(policy) = policy else {
        return true;
    };
    if policy.default.is_some_and(|default| default.0 == amount) {
        return true;
    }
    let Some(range) = &policy.valid_range else {
        let mut values = policy.valid_values.iter();
        return policy.valid_values.is_empty() || values.any(|value| value.0 == amount);
    };
    let is_above = range.max.is_some_and(|max| amount > max.0);
    let min = range.min.map(|min| min.0).unwrap_or_default();
    !is_above
        && step(range)
            .is_none_or(|step| (amount.billionths() - min.billionths()) % step.billionths() == 0)
}
