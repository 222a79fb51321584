//! Where the volumes of a pod can be reached from.
//!
//! A claim that is bound ties its pods to the nodes of its volume. One that is not is not bound here: its pod
//! waits until somebody does. A dump without any claims says nothing about them.

use apportion_groups::Object;

use super::admission;
use super::inventory::Inventory;

const CLAIM: &str = "PersistentVolumeClaim";

/// Why a pod's volumes keep it from a node.
pub(crate) fn refusal(pod: Object<'_>, node: Object<'_>, inventory: &Inventory) -> Option<String> {
    claims(pod).into_iter().find_map(|name| {
        let Some(claim) = inventory.find(CLAIM, pod.namespace(), &name) else {
            let is_known = inventory.all(CLAIM).next().is_some();
            return is_known
                .then(|| format!("can't give the volume claim {name}, which does not exist"));
        };
        let volume = claim.json()["spec"]["volumeName"]
            .as_str()
            .filter(|name| !name.is_empty());
        let Some(volume) = volume else {
            return Some(format!(
                "can't give the volume claim {name}, which is not bound"
            ));
        };
        let volume = inventory.find("PersistentVolume", "", volume)?;
        let terms = &volume.json()["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        let is_near = admission::has_one_of(terms, node);
        (!is_near).then(|| format!("can't reach the volume of claim {name}"))
    })
}

/// Whether a pod has volumes that tie it to nodes.
pub(crate) fn concerns(pod: Object<'_>) -> bool {
    !claims(pod).is_empty()
}

fn claims(pod: Object<'_>) -> Vec<String> {
    let volumes = pod.json()["spec"]["volumes"]
        .as_array()
        .into_iter()
        .flatten();
    volumes
        .filter_map(|volume| {
            let named = volume["persistentVolumeClaim"]["claimName"].as_str();
            let own = || {
                volume["ephemeral"]
                    .is_object()
                    .then(|| volume["name"].as_str())?
            };
            let own = || Some(format!("{}-{}", pod.name(), own()?));
            named.map(str::to_owned).or_else(own)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::remark::Remarks;
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
        let inventory = Inventory::of(all, &mut Remarks::default());
        let pod = json!({"metadata": {"name": "p", "namespace": "default"},
            "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}});
        let nodes = inventory.all("Node");
        nodes
            .filter_map(|node| refusal(Object::new(&pod), node, &inventory))
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
            ["can't reach the volume of claim c"]
        );
        assert_eq!(
            refusals(&[claim("c", "")])[0],
            "can't give the volume claim c, which is not bound"
        );
        assert_eq!(
            refusals(&[claim("d", "v")])[1],
            "can't give the volume claim c, which does not exist"
        );
    }
}
