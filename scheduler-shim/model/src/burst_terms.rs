//! What a pod's share is worth beside others that burst on a GPU.
//!
//! # Decision: the weight of the pod's own queue, and nothing from above
//! KAI divides what nobody deserves level by level, so a weight says something only among the children of one queue. On a
//! GPU there are single pods of any queues. Each of them counts with its weight, however many others its queue has there.
//! So weights of parents, multiplied in, would not give departments their parts either, and the number that counts would
//! stand nowhere. A queue that says no weight has 1. One that says 0 gets what the others leave.

use apportion_abi::{BurstTerms, BurstWeight};
use apportion_groups::{GroupingSettings, ObjectView};

use super::inventory::ObjectInventory;
use super::jobs;
use super::parsed_objects::ParsedPod;

/// The terms of a pod: the weight of its queue for GPUs, and the priority of its group. Without a group they are the
/// usual ones.
pub fn of_pod(pod: ObjectView<'_>, read: &ParsedPod, inventory: &ObjectInventory) -> BurstTerms {
    let group = read.group(pod, inventory, &GroupingSettings::default());
    let Ok(group) = group.as_ref() else {
        return BurstTerms::default();
    };
    BurstTerms {
        weight: weight(&group.queue, inventory),
        priority: jobs::priority_of(&group.priority_class, inventory).unwrap_or(jobs::PRIORITY),
    }
}

fn weight(queue: &str, inventory: &ObjectInventory) -> BurstWeight {
    let queue = inventory.find("Queue", "", queue);
    let said = queue.and_then(|queue| {
        let field = "/spec/resources/gpu/overQuotaWeight";
        queue.json().pointer(field)?.as_f64()
    });
    said.map_or_else(BurstWeight::default, BurstWeight::of_queue)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::object_warnings::ObjectWarnings;

    fn queue(name: &str, parent: &str, weight: Value) -> Value {
        json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
            "spec": {"parentQueue": parent, "resources": {"gpu": {"overQuotaWeight": weight}}}})
    }

    #[test]
    fn a_pod_counts_with_the_weight_of_its_own_queue_and_with_its_priority() {
        let pod = |queue: &str, class: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": queue, "namespace": "team",
                    "labels": {"kai.scheduler/queue": queue, "priorityClassName": class}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]}})
        };
        let objects = vec![
            queue("department", "", json!(7)),
            queue("research", "department", json!(2.5)),
            queue("spare", "department", json!(0)),
            queue("silent", "department", Value::Null),
            pod("research", "build"),
            pod("spare", "train"),
            pod("silent", "train"),
            pod("nowhere", "none-such"),
        ];
        let mut warnings = ObjectWarnings::default();
        let inventory = ObjectInventory::of(objects, &mut warnings);
        let terms = |name: &str| {
            let pod = inventory.find("Pod", "team", name).unwrap();
            let terms = of_pod(pod, inventory.pod("team", name).unwrap(), &inventory);
            (terms.weight.to_string(), terms.priority)
        };
        assert_eq!(terms("research"), ("2.5".to_owned(), 100));
        assert_eq!(terms("spare"), ("0".to_owned(), 50));
        assert_eq!(terms("silent"), ("1".to_owned(), 50));
        assert_eq!(terms("nowhere"), ("1".to_owned(), 50));
    }
}
