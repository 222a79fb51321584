//! Device claims (dynamic resource allocation): which there are, for which pods, and which devices nodes have.
//!
//! Only for a cluster in files. As in KAI, a class is of cards if its name says so. The devices of a class are those
//! of the drivers that its selectors name, or of the driver with its own name. Selectors that test more than the
//! driver are not simulated, and a warning says so.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::LABEL_QUEUE;
use apportion_groups::ObjectView;
use apportion_policy::cluster::{Cluster, ResourceClaim};
use serde_json::{Value, json};

use super::inventory::ObjectInventory;
use super::object_warnings::{ObjectWarnings, called};
use super::pods;

/// The annotation of a claim that was created from a template, for one pod.
const OF_POD: &str = "resource.kubernetes.io/pod-claim-name";
const CARDS: &str = "gpu";
/// How a selector names a driver.
const DRIVER: &str = "device.driver ==";

/// The claims that would be created from templates, for pods without theirs.
pub fn of_templates(inventory: &ObjectInventory) -> Vec<Value> {
    let made = inventory.all("Pod").flat_map(|pod| {
        let entries = list(pod.json(), "/spec/resourceClaims");
        entries.filter_map(move |entry| {
            let name = entry["resourceClaimTemplateName"].as_str()?;
            let template = inventory.find("ResourceClaimTemplate", pod.namespace(), name)?;
            let claim = pods::claim(pod, entry)?;
            let spec = &template.json()["spec"];
            let metadata = json!({"name": claim, "namespace": pod.namespace(),
                "labels": spec["metadata"]["labels"], "annotations": {OF_POD: entry["name"]}});
            let is_new = inventory
                .find("ResourceClaim", pod.namespace(), &claim)
                .is_none();
            is_new.then(|| {
                json!({"apiVersion": template.api_version(), "kind": "ResourceClaim",
                    "metadata": metadata, "spec": spec["spec"]})
            })
        })
    });
    made.collect()
}

/// Adds devices and claims to the cluster.
pub fn enter(inventory: &ObjectInventory, cluster: &mut Cluster, warnings: &mut ObjectWarnings) {
    let drivers = drivers(inventory, warnings);
    for slice in inventory.all("ResourceSlice").map(|slice| slice.json()) {
        let node = slice["spec"]["nodeName"].as_str().unwrap_or_default();
        let Some(node) = cluster.nodes.iter_mut().find(|known| known.name == node) else {
            continue;
        };
        let count = whole(list(slice, "/spec/devices").count());
        let driver = slice["spec"]["driver"].as_str().unwrap_or_default();
        let classes: Vec<&String> = (drivers.iter())
            .filter(|(_, drivers)| drivers.contains(driver))
            .map(|(class, _)| class)
            .collect();
        if classes.iter().any(|class| class.contains(CARDS)) {
            node.cards += count;
        }
        for class in classes {
            *node.devices.entry(class.clone()).or_default() += count;
        }
    }
    let claims = inventory.all("ResourceClaim");
    cluster.claims = claims
        .filter_map(|claim| read(claim, inventory, warnings))
        .collect();
}

/// The drivers of each class.
fn drivers(
    inventory: &ObjectInventory,
    warnings: &mut ObjectWarnings,
) -> BTreeMap<String, BTreeSet<String>> {
    let classes = inventory.all("DeviceClass");
    let drivers = classes.map(|class| {
        let selectors = list(class.json(), "/spec/selectors");
        let texts: Vec<&str> = selectors
            .filter_map(|one| one["cel"]["expression"].as_str())
            .collect();
        let mut drivers: BTreeSet<String> = texts.iter().filter_map(|text| driver(text)).collect();
        if texts
            .iter()
            .any(|text| text.contains("&&") || driver(text).is_none())
        {
            let message = "its selectors test more than the driver, which is not simulated";
            warnings.add(called("DeviceClass", "", class.name()), message);
        }
        if drivers.is_empty() {
            drivers.insert(class.name().to_owned());
        }
        (class.name().to_owned(), drivers)
    });
    drivers.collect()
}

/// The driver that a selector names.
fn driver(expression: &str) -> Option<String> {
    let (_, rest) = expression.split_once(DRIVER)?;
    let rest = rest.trim_start();
    let quote = rest.chars().next().filter(|first| "'\"".contains(*first))?;
    let (name, _) = rest[1..].split_once(quote)?;
    Some(name.to_owned())
}

fn read(
    claim: ObjectView<'_>,
    inventory: &ObjectInventory,
    warnings: &mut ObjectWarnings,
) -> Option<ResourceClaim> {
    let mut warn = |message: &str| {
        warnings.add(
            called("ResourceClaim", claim.namespace(), claim.name()),
            message,
        );
    };
    let mut devices: BTreeMap<&str, i64> = BTreeMap::new();
    for request in list(claim.json(), "/spec/devices/requests") {
        // The first API version had the fields one level higher. Of alternatives the first is taken.
        let exact = [&request["exactly"], &request["firstAvailable"][0], request];
        let exact = exact
            .into_iter()
            .find(|one| one["deviceClassName"].is_string());
        let Some(exact) = exact else {
            continue;
        };
        if exact["allocationMode"] == "All" {
            warn("it asks for all devices of a node, which is not simulated");
            return None;
        }
        let class = exact["deviceClassName"].as_str().unwrap_or_default();
        let count = exact["count"].as_i64().unwrap_or(1).max(0);
        let sum = devices.entry(class).or_default();
        *sum = sum.saturating_add(count);
    }
    if devices.len() > 1 {
        warn("it asks for devices of several classes; only the first is simulated");
    }
    let (class, devices) = devices.into_iter().next()?;
    let status = &claim.json()["status"];
    Some(ResourceClaim {
        name: format!("{}/{}", claim.namespace(), claim.name()),
        queue: claim.label(LABEL_QUEUE).map(str::to_owned),
        class: class.to_owned(),
        devices,
        is_of_cards: class.contains(CARDS),
        is_for_one_pod: claim.annotation(OF_POD).is_some(),
        node: list(status, "/allocation/devices/results")
            .next()
            .and_then(|result| node_of(result["pool"].as_str()?, inventory)),
        consumers: list(status, "/reservedFor").count(),
    })
}

/// The node of a pool: that of its slices, else the node with its name.
fn node_of(pool: &str, inventory: &ObjectInventory) -> Option<String> {
    let mut slices = inventory.all("ResourceSlice").map(|slice| slice.json());
    let slice = slices.find(|slice| slice["spec"]["pool"]["name"] == pool);
    let node = slice.and_then(|slice| slice["spec"]["nodeName"].as_str());
    Some(node.unwrap_or(pool).to_owned())
}

fn list<'a>(json: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    let list = json.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
