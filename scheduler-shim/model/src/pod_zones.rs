//! What a pod requests of NUMA zones, and the zones that are written on it.
//!
//! A pod's zones are written on it: by KAI's numa-placement-exporter after the kubelet has decided, by the scheduler
//! when it binds the pod.

use apportion_abi::names::{ANNOTATION_NUMA_OBSERVED, ANNOTATION_NUMA_PREDICTED, RESOURCE_WHOLE};
use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use apportion_policy::cluster::{ContainerZones, ZoneAmounts};
use serde_json::{Map, Value, json};

use super::requests::WHOLE;

/// The part of a pod that is in each zone, by the zone's name.
pub type ZonesOfPod = Vec<(String, ZoneAmounts)>;

/// The zones that are written on a pod: what its kubelet did, else what the scheduler expected.
pub fn written(pod: ObjectView<'_>) -> ZonesOfPod {
    let read = |name: &str| {
        let record: Vec<Value> = serde_json::from_str(pod.annotation(name)?).ok()?;
        let zones = record
            .iter()
            .map(|zone| Some((zone["zone"].as_str()?.to_owned(), amounts(&zone["amount"]))))
            .collect::<Option<ZonesOfPod>>()?;
        Some(zones).filter(|zones| !zones.is_empty())
    };
    read(ANNOTATION_NUMA_OBSERVED)
        .or_else(|| read(ANNOTATION_NUMA_PREDICTED))
        .unwrap_or_default()
}

/// A pod's zones as text, to write on the pod.
pub fn text(zones: &[(String, ZoneAmounts)]) -> String {
    Value::Array(
        zones
            .iter()
            .map(|(zone, amounts)| {
                let mut amount = Map::new();
                let mut add = |name: &str, count: i64, unit: &str| {
                    if count > 0 {
                        amount.insert(name.to_owned(), format!("{count}{unit}").into());
                    }
                };
                add("cpu", amounts.cpu, "m");
                add("memory", amounts.memory, "");
                add(RESOURCE_WHOLE, amounts.cards, "");
                json!({"zone": zone, "amount": amount})
            })
            .collect(),
    )
    .to_string()
}

/// Whether the kubelet gives the pod exclusive processors and memory: its QoS class is Guaranteed, and its containers
/// request them. Pods with `spec.resources` get neither.
pub fn is_guaranteed(pod: ObjectView<'_>) -> bool {
    let spec = &pod.json()["spec"];
    let mut all = list(spec, "containers").chain(list(spec, "initContainers"));
    spec["resources"].is_null()
        && list(spec, "containers").next().is_some()
        && all.all(|container| ["cpu", "memory"].iter().all(|name| is_set(container, name)))
}

/// Whether a container has a limit of the resource and requests as much.
fn is_set(container: &Value, name: &str) -> bool {
    let resources = &container["resources"];
    let limit =
        Quantity::from_json(&resources["limits"][name]).filter(|limit| *limit > Quantity::ZERO);
    let request = Quantity::from_json(&resources["requests"][name]).or(limit);
    limit.is_some() && limit == request
}

fn list<'s>(spec: &'s Value, name: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    spec[name].as_array().into_iter().flatten()
}

/// What the containers of a pod request of zones, if it has several.
pub fn containers(pod: ObjectView<'_>, is_guaranteed: bool) -> Option<Box<ContainerZones>> {
    let spec = &pod.json()["spec"];
    let has_several = list(spec, "containers").nth(1).is_some();
    if !has_several && list(spec, "initContainers").next().is_none() && spec["overhead"].is_null() {
        return None;
    }
    let (mut running, mut init) = (Vec::new(), Vec::new());
    let (mut sidecars, mut peak) = (ZoneAmounts::default(), ZoneAmounts::default());
    for container in list(spec, "initContainers") {
        let asked = asked(container, is_guaranteed);
        if container["restartPolicy"] == "Always" {
            sidecars = sidecars.plus(asked, 1);
            running.push(asked);
        } else {
            peak = most(peak, sidecars.plus(asked, 1));
            init.push(asked);
        }
    }
    running.extend(list(spec, "containers").map(|container| asked(container, is_guaranteed)));
    let sum = running
        .iter()
        .fold(ZoneAmounts::default(), |sum, one| sum.plus(*one, 1));
    Some(Box::new(ContainerZones {
        pod: most(sum, peak),
        running,
        init,
    }))
}

/// What a container requests of zones. It gets exclusive processors only if it requests a whole number of them.
fn asked(container: &Value, is_guaranteed: bool) -> ZoneAmounts {
    const WHOLE_CPU: i64 = 1000;
    let resources = &container["resources"];
    let mut list = resources["limits"].as_object().cloned().unwrap_or_default();
    list.extend(
        resources["requests"]
            .as_object()
            .cloned()
            .unwrap_or_default(),
    );
    let amounts = amounts(&Value::Object(list));
    let has_cpus = is_guaranteed && amounts.cpu % WHOLE_CPU == 0;
    amounts.only(has_cpus, is_guaranteed, true)
}

fn most(left: ZoneAmounts, right: ZoneAmounts) -> ZoneAmounts {
    ZoneAmounts {
        cpu: left.cpu.max(right.cpu),
        memory: left.memory.max(right.memory),
        cards: left.cards.max(right.cards),
    }
}

/// A list of resources with their amounts.
pub(crate) fn amounts(list: &Value) -> ZoneAmounts {
    let amount = |name: &str| {
        let amount = Quantity::from_json(&list[name]).unwrap_or_default();
        amount.max(Quantity::ZERO)
    };
    ZoneAmounts {
        cpu: amount("cpu").millis(),
        memory: amount("memory").units(),
        cards: WHOLE.iter().map(|name| amount(name).units()).sum(),
    }
}
