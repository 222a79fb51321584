//! The CRDs of other operators whose workloads KAI's suite creates, in the versions that KAI's checkout names.
//!
//! For most of them a stand-in creates the child objects. LeaderWorkerSet's controller and KubeRay's operator are the
//! real ones.

use std::path::Path;

use anyhow::{Context, Result};
use apportion_cluster::operators::WorkloadOperator;
use apportion_cluster::{LocalCluster, operators};
use serde_json::{Value, json};

use crate::workspace::Workspace;

/// The Go module of an operator, and the files of its CRDs.
const KINDS: &[(&str, &[&str])] = &[
    (
        "github.com/kubeflow/training-operator",
        &[
            "manifests/base/crds/kubeflow.org_jaxjobs.yaml",
            "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
            "manifests/base/crds/kubeflow.org_tfjobs.yaml",
            "manifests/base/crds/kubeflow.org_xgboostjobs.yaml",
        ],
    ),
    (
        "github.com/kubeflow/mpi-operator",
        &["manifests/base/kubeflow.org_mpijobs.yaml"],
    ),
    (
        "sigs.k8s.io/jobset",
        &["config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"],
    ),
    (
        "github.com/k8stopologyawareschedwg/noderesourcetopology-api",
        &["manifests/crd.yaml"],
    ),
    (
        "knative.dev/serving",
        &[
            "config/core/300-resources/configuration.yaml",
            "config/core/300-resources/revision.yaml",
            "config/core/300-resources/service.yaml",
        ],
    ),
];

/// A kind that two operators define in different versions: its name, and the module and file of the older one.
const OLDER: (&str, &str, &str) = (
    "mpijobs.kubeflow.org",
    "github.com/kubeflow/training-operator",
    "manifests/base/crds/kubeflow.org_mpijobs.yaml",
);

/// Starts the real operators.
pub(super) fn start(workspace: &Workspace, cluster: &mut LocalCluster) -> Result<()> {
    let modules = workspace.root.join("tests/kubernetes");
    let real = [WorkloadOperator::LeaderWorkerSet, WorkloadOperator::KubeRay];
    operators::start(cluster, &modules, &real)?;
    name_deployment(cluster, "ray", "kuberay-operator")
}

/// Creates a Deployment that KAI's suite looks for. Operators run beside the cluster, so it has no pods.
fn name_deployment(cluster: &LocalCluster, namespace: &str, name: &str) -> Result<()> {
    let labels = json!({"app": name});
    let container = json!({"name": "operator", "image": "none"});
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
    )?;
    cluster.apply(&json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}}))?;
    Ok(())
}

pub(super) fn install_kinds(cluster: &LocalCluster, dir: &Path) -> Result<()> {
    name_deployment(cluster, "knative-operator", "knative-operator")?;
    for (module, files) in KINDS {
        let folder = operators::module(dir, module)?;
        for file in *files {
            let file = folder.join(file).display().to_string();
            // Some are too large for the annotation of `kubectl apply`.
            cluster.kubectl(&["apply", "--server-side", "-f", &file])?;
        }
    }
    add_older_version(cluster, dir)
}

/// Serves the older version beside the newer one.
fn add_older_version(cluster: &LocalCluster, dir: &Path) -> Result<()> {
    let (name, module, file) = OLDER;
    let file = operators::module(dir, module)?.join(file);
    let read = [
        "create",
        "--dry-run=client",
        "-o",
        "json",
        "-f",
        &file.display().to_string(),
    ];
    let mut kind: Value = serde_json::from_str(&cluster.kubectl(&read)?)?;
    let mut version = kind["spec"]["versions"][0].take();
    version["storage"] = false.into();
    let patch = json!([{"op": "add", "path": "/spec/versions/-", "value": version}]);
    let path = cluster.folder().path().join("older-version.json");
    std::fs::write(&path, patch.to_string())
        .with_context(|| format!("failed to write {}", path.display()))?;
    let path = path.display().to_string();
    let patched = ["patch", "customresourcedefinition", name, "--type=json"];
    cluster.kubectl(&[&patched[..], &["--patch-file", &path]].concat())?;
    Ok(())
}
