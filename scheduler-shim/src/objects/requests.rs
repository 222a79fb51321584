//! What a pod asks for: cards by KAI's annotations or by resource names, processors and memory.
//!
//! The rules and their words are those of KAI's admission webhook, first mistake first, so that what
//! would never have been let into a cluster is not simulated as if it had been.

use std::collections::BTreeMap;

use apportion_abi::GpuRequest;
use apportion_groups::Object;
use apportion_policy::cluster::Cards;
use serde_json::Value;

use super::quantity;

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
/// Whole cards, by resource name.
pub(crate) const WHOLE: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];
/// What the names of partitions begin with.
pub(crate) const PARTITION: &str = "nvidia.com/mig-";

/// What a pod wants of cards, or why it may not exist.
pub(crate) fn cards(pod: Object<'_>) -> Result<Cards, String> {
    let text = |key| pod.annotation(key);
    let (fraction, memory, devices) = (text(FRACTION), text(MEMORY), text(DEVICES));
    let whole: i64 = WHOLE
        .iter()
        .map(|name| quantity::whole(total(pod, name)))
        .sum();
    let is_shared = fraction.is_some() || memory.is_some();
    let refusal = |message: &str| Err(message.to_owned());
    if pod.annotation("mps") == Some("true") && !is_shared {
        return refusal("MPS is only supported with GPU fraction request");
    }
    if fraction.is_some() && whole > 0 {
        return refusal(
            "cannot have both GPU fraction request and whole GPU resource request/limit",
        );
    }
    if memory.is_some() && (fraction.is_some() || whole > 0) {
        return refusal("cannot request both GPU and GPU memory");
    }
    if devices.is_some() && !is_shared {
        return refusal(
            "cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
        );
    }
    if memory.is_some_and(|text| !is_count(text)) {
        return refusal("gpu-memory annotation value must be a positive integer greater than 0");
    }
    if let Some(text) = fraction {
        let value: Option<f64> = text.parse().ok();
        if value.is_none_or(|value| value <= 0.0 || value >= 1.0) {
            return refusal(
                "gpu-fraction annotation value must be a positive number smaller than 1.0",
            );
        }
        if quantity::parse(text).is_none() {
            return Err(format!(
                "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation .given value: {text}"
            ));
        }
    }
    if devices.is_some_and(|text| !is_count(text)) {
        return refusal(
            "fraction count annotation value must be a positive integer greater than 0",
        );
    }
    if let Some(name) = text(CONTAINER).filter(|name| is_shared && !has_container(pod, name)) {
        return Err(format!(
            "container with name {name} not found for fraction request"
        ));
    }
    if is_shared {
        let request = GpuRequest::parse(memory, fraction, devices);
        return request
            .map(|request| Cards::Shared {
                share: request.share,
                devices: request.devices,
            })
            .map_err(|error| error.to_string());
    }
    let partitions = partitions(pod);
    Ok(match whole {
        0 if partitions.is_empty() => Cards::None,
        0 => Cards::Partitions(partitions),
        count => Cards::Whole(count),
    })
}

fn is_count(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<u64>().is_ok_and(|count| count > 0)
}

pub(crate) fn containers<'a>(pod: Object<'a>, field: &str) -> impl Iterator<Item = &'a Value> {
    let list = pod.json().pointer(&format!("/spec/{field}"));
    list.and_then(Value::as_array).into_iter().flatten()
}

fn has_container(pod: Object<'_>, name: &str) -> bool {
    let mut all = containers(pod, "initContainers").chain(containers(pod, "containers"));
    all.any(|container| container["name"] == name)
}

fn partitions(pod: Object<'_>) -> BTreeMap<String, i64> {
    let names = containers(pod, "containers").flat_map(|container| {
        let limits = container["resources"]["limits"].as_object();
        limits.into_iter().flatten().map(|(name, _)| name.as_str())
    });
    let names = names.filter(|name| name.starts_with(PARTITION));
    names
        .map(|name| (name.to_owned(), quantity::whole(total(pod, name))))
        .collect()
}

/// What a pod asks for of one resource, as the kubelet counts it: its containers together, or what is
/// needed while it starts if that is more. Containers that start first and stay count with the others.
pub(crate) fn total(pod: Object<'_>, resource: &str) -> f64 {
    let of = |container: &Value| {
        let resources = &container["resources"];
        let asked = quantity::of(&resources["requests"][resource]);
        asked
            .or_else(|| quantity::of(&resources["limits"][resource]))
            .unwrap_or(0.0)
    };
    let running: f64 = containers(pod, "containers").map(of).sum();
    let (mut staying, mut starting) = (0.0_f64, 0.0_f64);
    for container in containers(pod, "initContainers") {
        if container["restartPolicy"] == "Always" {
            staying += of(container);
            starting = starting.max(staying);
        } else {
            starting = starting.max(staying + of(container));
        }
    }
    let overhead = quantity::of(&pod.json()["spec"]["overhead"][resource]).unwrap_or(0.0);
    starting.max(running + staying).max(0.0) + overhead.max(0.0)
}

/// The first quantity of a pod that can't be read, or is below zero.
pub(crate) fn unreadable(pod: Object<'_>) -> Option<String> {
    let all = containers(pod, "initContainers").chain(containers(pod, "containers"));
    let amounts = all.flat_map(|container| {
        let kinds = ["requests", "limits"].into_iter();
        kinds.flat_map(|kind| {
            container["resources"][kind]
                .as_object()
                .into_iter()
                .flatten()
        })
    });
    let mut wrong =
        amounts.filter(|(_, value)| quantity::of(value).is_none_or(|amount| amount < 0.0));
    let (name, value) = wrong.next()?;
    Some(format!(
        "its container asks {value} of {name}, which is not an amount"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(annotations: Value, limits: Value) -> Result<Cards, String> {
        let pod = json!({"metadata": {"annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}});
        cards(Object::new(&pod))
    }

    #[test]
    fn refuses_what_kai_refuses_in_the_same_words() {
        let none = || json!({});
        let positive = "gpu-memory annotation value must be a positive integer greater than 0";
        let fraction = "gpu-fraction annotation value must be a positive number smaller than 1.0";
        for (annotations, limits, words) in [
            (
                json!({"mps": "true"}),
                none(),
                "MPS is only supported with GPU fraction request",
            ),
            (
                json!({"gpu-fraction": "0.5"}),
                json!({"nvidia.com/gpu": 1}),
                "cannot have both GPU fraction request and whole GPU resource request/limit",
            ),
            (
                json!({"gpu-fraction": "0.5", "gpu-memory": "100"}),
                none(),
                "cannot request both GPU and GPU memory",
            ),
            (
                json!({"gpu-fraction-num-devices": "2"}),
                none(),
                "cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
            ),
            (json!({"gpu-memory": "8Gi"}), none(), positive),
            (json!({"gpu-memory": "0"}), none(), positive),
            (json!({"gpu-memory": "+5"}), none(), positive),
            (json!({"gpu-fraction": "1"}), none(), fraction),
            (
                json!({"gpu-fraction": "NaN"}),
                none(),
                "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation .given value: NaN",
            ),
            (json!({"gpu-fraction": "-0.1"}), none(), fraction),
            (
                json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}),
                none(),
                "fraction count annotation value must be a positive integer greater than 0",
            ),
            (
                json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"}),
                none(),
                "container with name other not found for fraction request",
            ),
        ] {
            assert_eq!(
                ask(annotations.clone(), limits),
                Err(words.to_owned()),
                "{annotations}"
            );
        }
    }

    #[test]
    fn a_pod_needs_what_its_greediest_moment_needs() {
        let container = |amount: u32| json!({"resources": {"requests": {"cpu": amount}}});
        let mut staying = container(2);
        staying["restartPolicy"] = "Always".into();
        let pod = json!({"spec": {"containers": [container(1), container(3)],
            "initContainers": [staying, container(5)], "overhead": {"cpu": "500m"}}});
        // While it starts: 2 + 5; while it runs: 2 + 1 + 3.
        assert_eq!(total(Object::new(&pod), "cpu"), 7.5);
    }
}
