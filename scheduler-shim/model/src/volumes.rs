//! Which nodes reach a pod's volumes, and which volumes to bind once the pod has a place.
//!
//! A bound claim ties its pods to the nodes of its volume. A claim whose class waits for the first pod
//! (`WaitForFirstConsumer`) is bound when that pod has a place: to the smallest volume that suffices and can be
//! reached from there, else a new one is provisioned for that node, if the class has room for it as far as its driver
//! reports (`CSIStorageCapacity`). All other claims are bound by somebody else, and their pods wait. A dump without
//! any claims says nothing about them.

use std::collections::BTreeSet;

use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::{capacity, node_requirements, pods, selector};

const CLAIM: &str = "PersistentVolumeClaim";
const VOLUME: &str = "PersistentVolume";
/// The annotation of a claim with the node for which its volume is provisioned.
pub const SELECTED: &str = "volume.kubernetes.io/selected-node";
/// The provisioner of a class that makes no volumes.
const NOBODY: &str = "kubernetes.io/no-provisioner";

/// A claim to bind for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeBinding {
    /// The claim, in the pod's namespace.
    pub claim: String,
    /// The existing volume for it; `None` if one is to be provisioned.
    pub volume: Option<String>,
}

/// Why a pod's volumes keep it from a node.
pub fn refusal(
    pod: ObjectView<'_>,
    node: ObjectView<'_>,
    inventory: &ObjectInventory,
) -> Option<String> {
    bindings(pod, node, inventory).err()
}

/// The claims to bind for a pod on a node, or why the pod can't be there.
pub fn bindings(
    pod: ObjectView<'_>,
    node: ObjectView<'_>,
    inventory: &ObjectInventory,
) -> Result<Vec<VolumeBinding>, String> {
    let mut claimed = BTreeSet::new();
    let mut bindings = Vec::new();
    for name in pods::volume_claims(pod) {
        let Some(claim) = inventory.find(CLAIM, pod.namespace(), &name) else {
            match inventory.all(CLAIM).next() {
                Some(_) => {
                    return Err(format!("volume claim {name} does not exist"));
                }
                None => continue,
            }
        };
        match text(&claim.json()["spec"]["volumeName"]) {
            Some(volume) => reachable_nodes(&name, volume, node, inventory)?,
            None => {
                let volume = open(claim, node, inventory, &claimed)?;
                claimed.extend(volume.clone());
                let claim = name;
                bindings.push(VolumeBinding { claim, volume });
            }
        }
    }
    Ok(bindings)
}

/// Whether the volume of a claim can be reached from a node.
fn reachable_nodes(
    claim: &str,
    volume: &str,
    node: ObjectView<'_>,
    inventory: &ObjectInventory,
) -> Result<(), String> {
    let volume = inventory.find(VOLUME, "", volume);
    if volume.is_none_or(|volume| is_near(volume, node)) {
        Ok(())
    } else {
        Err(format!("cannot reach the volume of claim {claim}"))
    }
}

fn is_near(volume: ObjectView<'_>, node: ObjectView<'_>) -> bool {
    let terms = &volume.json()["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    node_requirements::has_one_of(terms, node)
}

/// The volume that a claim without one would get on a node; `None` if one would be provisioned.
fn open(
    claim: ObjectView<'_>,
    node: ObjectView<'_>,
    inventory: &ObjectInventory,
    claimed: &BTreeSet<String>,
) -> Result<Option<String>, String> {
    let (name, class_name) = (claim.name(), class_of(claim));
    let class = inventory.find("StorageClass", "", class_name);
    let Some(class) =
        class.filter(|class| class.json()["volumeBindingMode"] == "WaitForFirstConsumer")
    else {
        return Err(format!("volume claim {name} is not bound"));
    };
    match claim.annotation(SELECTED) {
        Some(other) if other != node.name() => {
            return Err(format!(
                "the volume of claim {name} is being provisioned for {other}"
            ));
        }
        Some(_) => return Ok(None),
        None => {}
    }
    if let Some(volume) = there(claim, node, inventory, claimed) {
        return Ok(Some(volume));
    }
    if text(&class.json()["provisioner"]).is_none_or(|maker| maker == NOBODY) {
        return Err(format!(
            "has no free volume of class {class_name} for claim {name}"
        ));
    }
    let topologies = class.json()["allowedTopologies"].as_array();
    if !topologies.is_none_or(|topologies| {
        topologies.is_empty()
            || topologies.iter().any(|topology| {
                let mut labels = topology["matchLabelExpressions"]
                    .as_array()
                    .into_iter()
                    .flatten();
                labels.all(|one| {
                    let found = text(&one["key"]).and_then(|key| node.label(key));
                    let mut values = one["values"].as_array().into_iter().flatten();
                    found.is_some() && values.any(|value| value.as_str() == found)
                })
            })
    }) {
        return Err(format!(
            "is outside the allowed topology of class {class_name}, for claim {name}"
        ));
    }
    let asked = &claim.json()["spec"]["resources"]["requests"]["storage"];
    if capacity::is_there(class, asked, node, inventory) {
        Ok(None)
    } else {
        Err(format!(
            "has no capacity of class {class_name} for the {} of claim {name}",
            asked.as_str().unwrap_or_default()
        ))
    }
}

fn class_of(claim: ObjectView<'_>) -> &str {
    text(&claim.json()["spec"]["storageClassName"])
        .or_else(|| claim.annotation("volume.beta.kubernetes.io/storage-class"))
        .unwrap_or_default()
}

/// The smallest volume that a claim could get on a node. One that is reserved for this claim goes first.
fn there(
    claim: ObjectView<'_>,
    node: ObjectView<'_>,
    inventory: &ObjectInventory,
    claimed: &BTreeSet<String>,
) -> Option<String> {
    let best = inventory
        .all(VOLUME)
        .filter(|volume: &ObjectView<'_>| {
            is_near(*volume, node) && !claimed.contains(volume.name()) && suits(*volume, claim)
        })
        .min_by(|left, right| {
            let key = |volume: &ObjectView<'_>| {
                let size = Quantity::from_json(&volume.json()["spec"]["capacity"]["storage"]);
                (is_free(*volume), size.unwrap_or_default())
            };
            let (left_key, right_key) = (key(left), key(right));
            (left_key.0.cmp(&right_key.0))
                .then(left_key.1.cmp(&right_key.1))
                .then_with(|| left.name().cmp(right.name()))
        });
    best.map(|volume| volume.name().to_owned())
}

fn is_free(volume: ObjectView<'_>) -> bool {
    volume.json()["spec"]["claimRef"].is_null()
}

/// Whether a volume suits a claim, wherever it is.
fn suits(volume: ObjectView<'_>, claim: ObjectView<'_>) -> bool {
    let (has, wants) = (&volume.json()["spec"], &claim.json()["spec"]);
    let reference = &has["claimRef"];
    let is_for_it = reference["namespace"] == claim.namespace()
        && reference["name"] == claim.name()
        && (reference["uid"].is_null() || reference["uid"] == claim.uid());
    let is_open = is_free(volume) && volume.json()["status"]["phase"] == "Available";
    let size = |value: &Value| Quantity::from_json(value).unwrap_or_default();
    let asked = &wants["resources"]["requests"]["storage"];
    let mode = |spec: &Value| text(&spec["volumeMode"]).unwrap_or("Filesystem").to_owned();
    let mut accesses = wants["accessModes"].as_array().into_iter().flatten();
    let chosen = &wants["selector"];
    volume.json()["metadata"]["deletionTimestamp"].is_null()
        && (is_for_it || is_open)
        && text(&has["storageClassName"]).unwrap_or_default() == class_of(claim)
        && size(&has["capacity"]["storage"]) >= size(asked)
        && mode(has) == mode(wants)
        && accesses.all(|access| {
            let given = has["accessModes"].as_array();
            given.is_some_and(|given| given.contains(access))
        })
        && (chosen.is_null() || selector::matches(chosen, volume))
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::object_warnings::ObjectWarnings;
    use super::*;

    fn refusals(claims: &[Value]) -> Vec<String> {
        let node = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"zone": name}}})
        };
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}}});
        let all = claims
            .iter()
            .cloned()
            .chain([node("a"), node("b"), volume])
            .collect();
        let inventory = ObjectInventory::of(all, &mut ObjectWarnings::default());
        let pod = json!({"metadata": {"name": "p", "namespace": "default"},
            "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}});
        let nodes = inventory.all("Node");
        nodes
            .filter_map(|node| refusal(ObjectView::new(&pod), node, &inventory))
            .collect()
    }

    fn claim(name: &str, volume: &str) -> Value {
        json!({"apiVersion": "v1", "kind": CLAIM, "metadata": {"name": name, "namespace": "default"},
            "spec": {"volumeName": volume}})
    }

    #[test]
    fn a_pod_goes_where_its_volumes_are() {
        assert!(refusals(&[]).is_empty());
        assert_eq!(
            refusals(&[claim("c", "v")]),
            ["cannot reach the volume of claim c"]
        );
        assert_eq!(
            refusals(&[claim("c", "")])[0],
            "volume claim c is not bound"
        );
        assert_eq!(
            refusals(&[claim("d", "v")])[1],
            "volume claim c does not exist"
        );
    }

    /// A claim of this size, of a class that waits for the first pod.
    fn open_claim(size: &str) -> Value {
        json!({"apiVersion": "v1", "kind": CLAIM, "metadata": {"name": "c", "namespace": "default"},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": size}}}})
    }

    fn class(provisioner: &str) -> Value {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"},
            "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]})
    }

    fn disk(name: &str, size: &str, zone: &str) -> Value {
        let there =
            json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]);
        json!({"apiVersion": "v1", "kind": VOLUME, "metadata": {"name": name},
            "spec": {"storageClassName": "local", "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "nodeAffinity": {"required": {"nodeSelectorTerms": there}}},
            "status": {"phase": "Available"}})
    }

    #[test]
    fn a_claim_that_waits_for_its_pod_gets_the_smallest_volume_that_will_do() {
        let objects = vec![
            open_claim("5Gi"),
            class(NOBODY),
            disk("tiny", "1Gi", "a"),
            disk("large", "50Gi", "a"),
            disk("small", "10Gi", "a"),
        ];
        let inventory = ObjectInventory::of(objects, &mut ObjectWarnings::default());
        let pod = json!({"metadata": {"name": "p", "namespace": "default"},
            "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}});
        let found = |zone: &str| {
            let node =
                json!({"kind": "Node", "metadata": {"name": zone, "labels": {"zone": zone}}});
            bindings(ObjectView::new(&pod), ObjectView::new(&node), &inventory)
        };
        let (claim, volume) = ("c".to_owned(), Some("small".to_owned()));
        assert_eq!(found("a"), Ok(vec![VolumeBinding { claim, volume }]));
        let nothing = "has no free volume of class local for claim c".to_owned();
        assert_eq!(found("b"), Err(nothing));
    }

    #[test]
    fn a_volume_is_made_where_its_class_makes_them() {
        assert_eq!(
            refusals(&[open_claim("5Gi"), class("example.com/disks")]),
            ["is outside the allowed topology of class local, for claim c"]
        );
        let mut chosen = open_claim("5Gi");
        chosen["metadata"]["annotations"] = json!({SELECTED: "a"});
        assert_eq!(
            refusals(&[chosen, class("example.com/disks")]),
            ["the volume of claim c is being provisioned for a"]
        );
    }
}
