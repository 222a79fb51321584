//! How much of a resource each sibling queue gets.

use anyhow::{Context, Result, bail};
use apportion_policy::amounts::ResourceKind;
use apportion_policy::divide::{
    DivisionSettings, SurplusGranularity, by_priority, divide, divide_surplus,
};
use apportion_policy::share::QueueShare;
use serde_json::{Map, Value, json};

use super::{differs, number, queues};

pub(super) fn ask(case: &Value) -> Result<Option<String>> {
    match case["kind"].as_str() {
        Some("priority_buckets") => Ok(buckets(case)),
        Some(kind @ ("divide" | "over_quota_only")) => division(case, kind == "divide"),
        _ => bail!("unknown kind {}", case["kind"]),
    }
}

fn division(case: &Value, with_quota: bool) -> Result<Option<String>> {
    let given = case["queues"].as_array().context("a case has queues")?;
    let mut shares: Vec<QueueShare> = given.iter().map(queues::queue).collect();
    let members: Vec<usize> = (0..shares.len()).collect();
    let division = DivisionSettings {
        k_value: number(&case["k_value"]),
        pieces: SurplusGranularity::Whole,
    };
    let mut left = 0.0;
    let names = case["resources"]
        .as_array()
        .context("a case has resources")?;
    for name in names {
        let name = name.as_str().unwrap_or_default();
        let resource = resource(name)?;
        let total = number(&case["totals"][name]);
        let divide = if with_quota { divide } else { divide_surplus };
        left = divide(division, resource, total, &mut shares, &members);
    }
    let expected = &case["expected"];
    if let Some(remaining) = expected["remaining"].as_f64()
        && remaining != left
    {
        return Ok(Some(format!("{left} remain, not {remaining}")));
    }
    let wanted = expected["fair_share"]
        .as_object()
        .context("a case has shares")?;
    Ok(wrong_share(given, &shares, wanted))
}

fn wrong_share(
    given: &[Value],
    shares: &[QueueShare],
    wanted: &Map<String, Value>,
) -> Option<String> {
    given.iter().zip(shares).find_map(|(value, share)| {
        let key = value["key"].as_str().unwrap_or_default();
        let by_resource = wanted.get(key)?.as_object()?;
        by_resource.iter().find_map(|(name, amount)| {
            let fair = share.of(resource(name).ok()?).fair;
            let is_right = amount.as_f64() == Some(fair);
            (!is_right).then(|| format!("{key} gets {fair} of {name}, not {amount}"))
        })
    })
}

fn buckets(case: &Value) -> Option<String> {
    let given = case["queues"].as_object()?;
    let shares: Vec<QueueShare> = given
        .iter()
        .map(|(name, priority)| QueueShare {
            uid: name.clone(),
            priority: number(priority) as i32,
            ..QueueShare::default()
        })
        .collect();
    let members: Vec<usize> = (0..shares.len()).collect();
    let found = by_priority(&shares, &members);
    let order: Vec<i32> = found.iter().map(|(priority, _)| *priority).collect();
    let named: Map<String, Value> = found
        .iter()
        .map(|(priority, members)| {
            let names = members.iter().map(|&member| &shares[member].uid);
            (priority.to_string(), json!(names.collect::<Vec<_>>()))
        })
        .collect();
    differs(
        &json!({"order": order, "buckets": named}),
        &case["expected"],
    )
}

fn resource(name: &str) -> Result<ResourceKind> {
    Ok(match name {
        "cpu" => ResourceKind::Cpu,
        "memory" => ResourceKind::Memory,
        "gpu" => ResourceKind::Gpu,
        other => bail!("unknown resource {other}"),
    })
}
