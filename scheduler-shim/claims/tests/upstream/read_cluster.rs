//! Reads a cluster of the test and allocates its claims.

use std::collections::BTreeMap;

use apportion_claims::allocate::allocate;
use apportion_claims::objects::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use apportion_claims::{DeviceInventory, DeviceUsage, NodeView};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Allocates the claims of a cluster on its node, or says why not.
pub(crate) fn allocate_in(cluster: &Value) -> Result<Vec<AllocationResult>, String> {
    let mut inventory = DeviceInventory::default();
    for class in list::<DeviceClass>(&cluster["classes"]) {
        inventory.set_class(class);
    }
    for slice in list::<ResourceSlice>(&cluster["slices"]) {
        inventory.set_slice(slice);
    }
    let mut usage = DeviceUsage::default();
    for claim in list::<ResourceClaim>(&cluster["allocated"]) {
        usage.add(&claim.status.allocation.expect("it is allocated"));
    }
    let claims: Vec<ResourceClaim> = list(&cluster["claims"]);
    let claims: Vec<&ResourceClaim> = claims.iter().collect();
    let labels: BTreeMap<String, String> =
        serde_json::from_value(cluster["node"]["labels"].clone()).unwrap_or_default();
    let node = NodeView {
        name: cluster["node"]["name"].as_str().expect("it has a name"),
        labels: &labels,
    };
    let mut shares = 0;
    let result = allocate(&inventory, &usage, node, &claims, &mut || {
        shares += 1;
        format!("share-{shares}")
    });
    result.map_err(|refusal| refusal.to_string())
}

fn list<T: DeserializeOwned>(all: &Value) -> Vec<T> {
    let all = all.as_array().into_iter().flatten();
    all.map(|one| serde_json::from_value(one.clone()).expect("it is such an object"))
        .collect()
}
