//! How KAI delivers and counts a share: names of config maps, the container with the share, amounts.
//!
//! Amounts are compared as Kubernetes compares them, not as text. docs/development/kai-cases.md describes the cases.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use apportion_admission::gpu_amounts::{self, GpuAmountError, Node, ResourceQuantities};
use apportion_admission::{
    ContainerIndex, ContainerList, Pod, config_map, fraction_container, names,
};
use apportion_kubernetes::Quantity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::differs;

pub(super) fn ask(case: &Value) -> Result<Option<String>> {
    let inputs = &case["inputs"];
    let expected = &case["expected"];
    match case["kind"].as_str().unwrap_or_default() {
        "fraction_container" => Ok(container(&pod(inputs)?, expected)),
        "capabilities_configmap_name" => Ok(name(&pod(inputs)?, inputs, expected)),
        "generate_configmap_name" => {
            let mut pod = pod(inputs)?;
            let generated = config_map::set_capabilities(&mut pod, position(inputs), 77);
            Ok(generated_name(&pod, &generated, expected))
        }
        "upsert_configmap" => upsert(inputs, expected),
        "rollback" => Ok(rollback(&pod(inputs)?, inputs, expected)),
        "allocated_gpus" => Ok(explained(allocated(inputs)?, expected, amount)),
        "received_resources" => {
            let pod = pod(inputs)?;
            let answer = in_nodes(inputs, &pod.spec.node_name, |node| {
                gpu_amounts::received(&pod, node)
            })?;
            Ok(explained(answer, expected, amount_list))
        }
        "requested_resources" => Ok(explained(
            gpu_amounts::requested(&pod(inputs)?),
            expected,
            amount_list,
        )),
        kind @ ("node_gpu_memory" | "node_gpu_memory_amd" | "node_gpu_memory_nvidia") => {
            let labels = labels(&inputs["node"])?;
            let node = node(&inputs["node"], &labels);
            let answer = match kind {
                "node_gpu_memory_amd" => one(gpu_amounts::amd_memory(node), node),
                "node_gpu_memory_nvidia" => one(gpu_amounts::nvidia_memory(node), node),
                _ => gpu_amounts::card_memory(node),
            };
            Ok(explained(
                answer,
                expected,
                |given: &Value, memory: &f64| given.as_f64() == Some(*memory),
            ))
        }
        other => bail!("unknown kind {other}"),
    }
}

fn pod(inputs: &Value) -> Result<Pod> {
    Pod::read(&inputs["pod"]).context("failed to read the pod")
}

fn position(inputs: &Value) -> ContainerIndex {
    let index = inputs["container_index"].as_u64().unwrap_or_default();
    ContainerIndex {
        list: match inputs["container_type"].as_str() {
            Some("InitContainer") => ContainerList::Init,
            _ => ContainerList::Regular,
        },
        index: usize::try_from(index).unwrap_or(usize::MAX),
    }
}

fn container(pod: &Pod, expected: &Value) -> Option<String> {
    let answer = match fraction_container(pod) {
        Ok(found) => json!({
            "error": false,
            "index": found.index,
            "type": match found.list {
                ContainerList::Init => "InitContainer",
                ContainerList::Regular => "RegularContainer",
            },
            "container": found.of(pod).map(|container| &container.name),
        }),
        Err(why) => json!({"error": true, "error_text": why.to_string()}),
    };
    differs_in(&answer, expected)
}

/// The first difference in the expected fields; other fields are ignored.
fn differs_in(answer: &Value, expected: &Value) -> Option<String> {
    let fields = expected.as_object().into_iter().flatten();
    let mut wrong = fields.filter_map(|(field, value)| differs(&answer[field], value));
    wrong.next()
}

fn name(pod: &Pod, inputs: &Value, expected: &Value) -> Option<String> {
    let answer = config_map::capabilities(pod, position(inputs));
    if expected["error"].as_bool().unwrap_or_default() != answer.is_err() {
        return Some(format!("{answer:?}"));
    }
    let texts = expected
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(field, _)| !field.starts_with("error"));
    let mut texts = texts.filter_map(|(_, value)| value.as_str());
    let name = answer.unwrap_or_default();
    texts
        .find(|text| *text != name)
        .map(|text| format!("{name}, not {text}"))
}

fn generated_name(pod: &Pod, generated: &str, expected: &Value) -> Option<String> {
    let own = pod.annotation(names::CONFIG_MAP).unwrap_or_default();
    let is_valid = generated.len() <= 253
        && generated.split('.').all(|label| {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let (first, last) = (label.bytes().next(), label.bytes().last());
            first.is_some_and(plain)
                && last.is_some_and(plain)
                && label.bytes().all(|b| plain(b) || b == b'-')
        });
    let unwanted = expected["must_not_contain"].as_str();
    let wanted = expected["equals"]
        .as_str()
        .map(|text| text.replace("$CM", own));
    let holds = (is_valid || expected["valid_dns1123_subdomain"] != json!(true))
        && unwanted.is_none_or(|text| !generated.contains(text))
        && wanted.is_none_or(|wanted| wanted == generated);
    (!holds).then(|| format!("{generated} is not {expected}"))
}

fn upsert(inputs: &Value, expected: &Value) -> Result<Option<String>> {
    let pod = pod(inputs)?;
    let data = BTreeMap::deserialize(&inputs["data"]).unwrap_or_default();
    let name = inputs["name"].as_str().unwrap_or_default();
    let existing = Some(&inputs["existing_configmap"]).filter(|map| !map.is_null());
    let after = config_map::upsert(existing, &pod, name, &data);
    let wanted = &expected["configmap"];
    let fields = [
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/ownerReferences",
        "/data",
    ];
    let mut wrong = fields.iter().filter_map(|field| {
        let wanted = wanted.pointer(field)?;
        differs(after.pointer(field).unwrap_or(&Value::Null), wanted)
    });
    Ok(wrong.next())
}

fn rollback(pod: &Pod, inputs: &Value, expected: &Value) -> Option<String> {
    let received = inputs["received_resource_type"]
        .as_str()
        .unwrap_or_default();
    let gone = config_map::to_delete(pod, received);
    let existing = inputs["existing_configmaps"]
        .as_array()
        .into_iter()
        .flatten();
    let remaining = existing.filter(|name| !gone.iter().any(|gone| **name == gone.as_str()));
    let answer = json!({"error": false, "remaining_configmaps": remaining.count()});
    differs_in(&answer, expected)
}

/// Compares an amount with the expected one.
fn explained<T: std::fmt::Debug>(
    answer: Result<T, GpuAmountError>,
    expected: &Value,
    is: impl Fn(&Value, &T) -> bool,
) -> Option<String> {
    let fails = expected["error"].as_bool().unwrap_or_default();
    match &answer {
        Err(_) if fails => None,
        Ok(value) if !fails && is(&expected["value"], value) => None,
        wrong => Some(format!("{wrong:?}, not {expected}")),
    }
}

fn amount(given: &Value, quantity: &Quantity) -> bool {
    let text = given.as_str().and_then(|text| text.parse().ok());
    text == Some(*quantity)
}

fn amount_list(given: &Value, amounts: &ResourceQuantities) -> bool {
    let Some(given) = given.as_object() else {
        return false;
    };
    given.len() == amounts.len()
        && amounts.iter().all(|(name, quantity): (&&str, &Quantity)| {
            given
                .get(*name)
                .is_some_and(|given| amount(given, quantity))
        })
}

fn allocated(inputs: &Value) -> Result<Result<Quantity, GpuAmountError>> {
    if let Some(memory) = inputs["gpu_memory"].as_str() {
        let name = inputs["node_name"].as_str().unwrap_or_default();
        return in_nodes(inputs, name, |node| {
            gpu_amounts::part_of(memory, name, node)
        });
    }
    let pod = pod(inputs)?;
    in_nodes(inputs, &pod.spec.node_name, |node| {
        gpu_amounts::allocated(&pod, node)
    })
}

/// Asks with the node of this name, if the case has it.
fn in_nodes<T>(inputs: &Value, name: &str, ask: impl FnOnce(Option<Node<'_>>) -> T) -> Result<T> {
    let mut nodes = inputs["nodes"].as_array().into_iter().flatten();
    let found = nodes.find(|node| node["metadata"]["name"].as_str().unwrap_or_default() == name);
    let Some(found) = found else {
        return Ok(ask(None));
    };
    let labels = labels(found)?;
    Ok(ask(Some(node(found, &labels))))
}

fn labels(node: &Value) -> Result<BTreeMap<String, String>> {
    let labels = Option::deserialize(&node["metadata"]["labels"])?;
    Ok(labels.unwrap_or_default())
}

fn node<'a>(json: &'a Value, labels: &'a BTreeMap<String, String>) -> Node<'a> {
    Node {
        name: json["metadata"]["name"].as_str().unwrap_or_default(),
        labels,
    }
}

/// One vendor's label must be there.
fn one(memory: Result<Option<f64>, GpuAmountError>, node: Node<'_>) -> Result<f64, GpuAmountError> {
    memory?.ok_or_else(|| GpuAmountError::NoLabel(node.name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_compared_by_value_and_errors_are_no_amounts() {
        let pod = json!({"metadata": {"annotations": {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}}});
        for (expected, passes) in [
            (
                json!({"error": false, "value": {"nvidia.com/gpu": "1000m"}}),
                true,
            ),
            (
                json!({"error": false, "value": {"nvidia.com/gpu": "0.5"}}),
                false,
            ),
            (json!({"error": false, "value": {}}), false),
            (json!({"error": true}), false),
        ] {
            let case = json!({"kind": "requested_resources", "inputs": {"pod": pod}, "expected": expected});
            let wrong = ask(&case).expect("it can be asked");
            assert_eq!(wrong.is_none(), passes, "{expected}: {wrong:?}");
        }
    }
}
