//! Pods that ask for their GPUs with resource claims.

use serde_json::{Value, json};

/// The agent's DeviceClass, which is also its driver.
pub const DEVICE_CLASS: &str = "gpu.apportion.dev";

/// The DeviceClass, as the chart makes it; with the extended resource whose pods get whole GPUs, if there is one.
#[must_use]
pub fn device_class(extended: Option<&str>) -> Value {
    let mut class = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DEVICE_CLASS},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DEVICE_CLASS}'")}}]},
    });
    if let Some(name) = extended {
        class["spec"]["extendedResourceName"] = json!(name);
    }
    class
}

/// A template of claims for one device: so much memory, or all of a card, on the card with this UUID, or on any.
#[must_use]
pub fn template(name: &str, memory: Option<&str>, card: Option<&str>) -> Value {
    let mut request = json!({"deviceClassName": DEVICE_CLASS});
    if let Some(memory) = memory {
        request["capacity"] = json!({"requests": {"memory": memory}});
    }
    if let Some(card) = card {
        let expression = format!("device.attributes['{DEVICE_CLASS}'].uuid == '{card}'");
        request["selectors"] = json!([{"cel": {"expression": expression}}]);
    }
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}},
    })
}

/// Lets a pod with a share by annotation ask by a claim of this template: each container with a slot names the claim.
pub fn by_claim(pod: &mut Value, template: &str) {
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.remove("gpu-memory");
    }
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": template}]);
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            if container["resources"]["limits"]["apportion.dev/gpu-slot"] != Value::Null {
                container["resources"] = json!({"claims": [{"name": "gpu"}]});
            }
        }
    }
}
