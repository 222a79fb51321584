//! Whether a CSI driver has room for a volume near a node, as far as it reports that.
//!
//! A driver that reports its room (`CSIDriver`, `storageCapacity`) writes an object for each class and each part of
//! the cluster. If none of them covers a node, the driver provisions nothing there. A driver that does not report is
//! tried.

use apportion_groups::ObjectView;
use apportion_kubernetes::Quantity;
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::selector;

/// Whether a volume of this class and size may be provisioned near a node.
pub(crate) fn is_there(
    class: ObjectView<'_>,
    asked: &Value,
    node: ObjectView<'_>,
    inventory: &ObjectInventory,
) -> bool {
    let maker = class.json()["provisioner"].as_str().unwrap_or_default();
    let driver = inventory.find("CSIDriver", "", maker);
    let reports_capacity =
        driver.is_some_and(|driver| driver.json()["spec"]["storageCapacity"] == true);
    let asked = Quantity::from_json(asked).unwrap_or_default();
    !reports_capacity
        || inventory
            .all("CSIStorageCapacity")
            .any(|capacity: ObjectView<'_>| {
                let room_of = |field: &str| Quantity::from_json(&capacity.json()[field]);
                let largest = room_of("maximumVolumeSize").or_else(|| room_of("capacity"));
                capacity.json()["storageClassName"] == class.name()
                    && selector::matches(&capacity.json()["nodeTopology"], node)
                    && largest.is_some_and(|largest| largest >= asked)
            })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object_warnings::ObjectWarnings;

    fn is_there_for(asked: &str, reports_capacity: bool, capacity: &Value) -> [bool; 2] {
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "disks"}, "spec": {"storageCapacity": reports_capacity}});
        let mut capacity = capacity.clone();
        capacity["apiVersion"] = "storage.k8s.io/v1".into();
        capacity["kind"] = "CSIStorageCapacity".into();
        capacity["metadata"] = json!({"name": "room", "namespace": "kube-system"});
        capacity["nodeTopology"] = json!({"matchLabels": {"zone": "a"}});
        let inventory = ObjectInventory::of(vec![driver, capacity], &mut ObjectWarnings::default());
        let class =
            json!({"kind": "StorageClass", "metadata": {"name": "late"}, "provisioner": "disks"});
        ["a", "b"].map(|zone| {
            let node =
                json!({"kind": "Node", "metadata": {"name": zone, "labels": {"zone": zone}}});
            let (class, node) = (ObjectView::new(&class), ObjectView::new(&node));
            is_there(class, &json!(asked), node, &inventory)
        })
    }

    #[test]
    fn a_driver_that_tells_of_its_room_makes_no_more_than_that() {
        let capacity = json!({"storageClassName": "late", "capacity": "10Gi"});
        assert_eq!(is_there_for("5Gi", true, &capacity), [true, false]);
        assert_eq!(is_there_for("50Gi", true, &capacity), [false, false]);
        assert_eq!(is_there_for("50Gi", false, &capacity), [true, true]);
        let other = json!({"storageClassName": "other", "capacity": "10Gi"});
        assert_eq!(is_there_for("5Gi", true, &other), [false, false]);
        let least =
            json!({"storageClassName": "late", "capacity": "100Gi", "maximumVolumeSize": "1Gi"});
        assert_eq!(is_there_for("5Gi", true, &least), [false, false]);
    }
}
