//! The kinds of other operators whose workloads KAI's suite creates: from the versions that the checkout of KAI names.
//!
//! For most of them a stand-in creates the children of their objects. LeaderWorkerSet's controller and KubeRay's
//! operator are the real ones.

use std::path::Path;

use anyhow::Result;
use apportion_cluster::operators::Operator;
use apportion_cluster::{Cluster, operators};
use serde_json::json;

use crate::workspace::Workspace;

/// The Go module of an operator, and where it keeps the definitions of its kinds.
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
];

/// Starts the operators that are real.
pub(super) fn start(workspace: &Workspace, cluster: &mut Cluster) -> Result<()> {
    let modules = workspace.root.join("tests/kubernetes");
    let real = [Operator::LeaderWorkerSet, Operator::KubeRay];
    operators::start(cluster, &modules, &real)?;
    // KAI's suite looks for this Deployment. The operator runs beside the cluster, so it has no pods.
    let labels = json!({"app": "kuberay-operator"});
    let container = json!({"name": "operator", "image": "none"});
    cluster
        .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ray"}}))?;
    cluster.apply(&json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "kuberay-operator", "namespace": "ray"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}}))?;
    Ok(())
}

/// Installs the kinds.
pub(super) fn install_kinds(cluster: &Cluster, dir: &Path) -> Result<()> {
    for (module, files) in KINDS {
        let folder = operators::module(dir, module)?;
        for file in *files {
            let file = folder.join(file).display().to_string();
            // Some are too large for what `kubectl apply` remembers.
            cluster.kubectl(&["apply", "--server-side", "-f", &file])?;
        }
    }
    Ok(())
}
