//! An admission policy that adapts every pod, so that manifests for other clusters run here. There is no pod network,
//! so pods share the node's. There is no registry, so an image must already be loaded under its name.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cluster::LocalCluster;

const NAME: &str = "apportion.test";

/// Installs the policy.
pub(crate) fn adapt(cluster: &LocalCluster) -> Result<()> {
    for object in [policy(), binding()] {
        cluster.apply(&object)?;
    }
    Ok(())
}

fn policy() -> Value {
    let mutation = |expression: String| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    let images = |field: &str| {
        format!(
            "Object{{spec: Object.spec{{{field}: has(object.spec.{field}) ? object.spec.{field}\
             .filter(c, c.?imagePullPolicy.orValue('') == 'Always')\
             .map(c, Object.spec.{field}{{name: c.name, imagePullPolicy: 'IfNotPresent'}}) : []}}}}"
        )
    };
    let network = "Object{spec: Object.spec{hostNetwork: true}}".to_owned();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"]}]},
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [mutation(network), mutation(images("containers")), mutation(images("initContainers"))],
        },
    })
}

fn binding() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME},
    })
}
