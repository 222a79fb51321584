//! The cluster that KAI's suite expects: its own node pool, and the chart in place of KAI.
//!
//! KAI's suite runs on kind with four nodes of eight GPUs with a device plugin, two with dynamic resource allocation
//! and one without GPUs. Here are the first four, or as many as the options say, and the last. Those with GPUs for
//! claims are left out.

use std::fs;
use std::path::Path;

use anyhow::Result;
use apportion_cluster::stand_ins::{self, AgentServiceAccount, StandInNode};
use apportion_cluster::{LocalCluster, image};
use serde_json::json;

use super::{chart, operators};
use crate::stage;
use crate::steps::run;
use crate::workspace::Workspace;

/// The stand-in for kubelets, and the one for other operators.
const KUBELET: &str = "apportion-stand-in-kubelet";
const OPERATOR: &str = "apportion-stand-in-operator";
/// The memory of a GPU in KAI's pool, in MiB.
const GPU_MEMORY: u32 = 11441;
const GPUS: u32 = 8;
/// Two specs look for a node with this resource. The resource of GPUs is `nvidia.com/gpu`.
const NAMED_BY_SPECS: &str = "gpu";

/// Prepares the cluster with this many GPU nodes. An existing one gets the current programs.
pub(super) fn prepare(
    workspace: &Workspace,
    cluster: &mut LocalCluster,
    dir: &Path,
    gpu_nodes: usize,
) -> Result<()> {
    run(workspace
        .cargo_build_for_tests()
        .args(["--bin", KUBELET, "--bin", OPERATOR]))?;
    let staged = stage::build(workspace, false)?;
    let is_ready = cluster
        .servers()
        .any(|(name, _)| name == stand_ins::KUBELET);
    let loaded = load(cluster, &staged)?;
    if is_ready {
        return if loaded {
            chart::restart(cluster)
        } else {
            Ok(())
        };
    }
    keep_for_the_chart(cluster)?;
    let nodes = nodes(gpu_nodes);
    add_storage(cluster, &nodes)?;
    operators::install_kinds(cluster, dir)?;
    add_numa_zones(cluster, &nodes)?;
    operators::start(workspace, cluster)?;
    chart::install(workspace, cluster)?;
    let account = AgentServiceAccount {
        namespace: chart::NAMESPACE,
        name: "apportion-agent",
    };
    let kubelet = workspace.target.join("debug").join(KUBELET);
    stand_ins::start(cluster, &nodes, account, &staged, &kubelet)?;
    let operator = workspace.target.join("debug").join(OPERATOR);
    stand_ins::start_beside(cluster, "stand-in-operator", &operator)?;
    chart::await_it(cluster)
}

/// Loads the images of the programs in `staged`. Returns whether they changed.
fn load(cluster: &LocalCluster, staged: &Path) -> Result<bool> {
    let program = staged.join("bin/apportion-scheduler");
    let changed = fs::metadata(&program)?.modified()?;
    let stamp = cluster.folder().path().join("kai-e2e.stamp");
    let loaded = fs::metadata(&stamp).and_then(|stamp| stamp.modified());
    if loaded.is_ok_and(|loaded| changed <= loaded) {
        return Ok(false);
    }
    for image in image::released(staged)? {
        image::import(cluster, &image)?;
    }
    fs::write(&stamp, "")?;
    Ok(true)
}

/// Makes the node with the kubelet the control plane, as in kind: only the chart's pods run there, on the node's
/// network.
fn keep_for_the_chart(cluster: &LocalCluster) -> Result<()> {
    let node = cluster.node();
    let taint = "node-role.kubernetes.io/control-plane=:NoSchedule";
    cluster.kubectl(&["taint", "node", &node, taint, "--overwrite"])?;
    let ours = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In",
        "values": [chart::NAMESPACE]}]});
    let narrowed = json!({"spec": {"matchResources": {"namespaceSelector": ours}}}).to_string();
    let binding = "mutatingadmissionpolicybinding/apportion.test";
    cluster.kubectl(&["patch", binding, "--type=merge", "-p", &narrowed])?;
    Ok(())
}

/// The objects of a CSI driver for the nodes: the suite looks for OpenEBS's. Nothing is provisioned.
fn add_storage(cluster: &LocalCluster, nodes: &[StandInNode]) -> Result<()> {
    let driver = "local.csi.openebs.io";
    cluster.apply(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": driver},
        "spec": {"storageCapacity": true, "attachRequired": false}}))?;
    let namespace = "openebs";
    cluster.apply(
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
    )?;
    for node in nodes {
        cluster.apply(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {"name": node.name, "namespace": namespace}, "storageClassName": "openebs-lvmpv",
            "capacity": "10Gi",
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node.name}}}))?;
    }
    Ok(())
}

/// The NUMA zones of the GPU nodes, as an exporter reports them: two each, with half of everything. The policies are
/// those of KAI's test cluster for these specs.
fn add_numa_zones(cluster: &LocalCluster, nodes: &[StandInNode]) -> Result<()> {
    let policies = ["single-numa-node", "restricted", "best-effort", "none"];
    for (node, policy) in nodes.iter().filter(|node| node.gpus > 0).zip(policies) {
        let of = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
        let gpus = (GPUS / 2).to_string();
        let resources = [
            of("cpu", "4"),
            of("memory", "16Gi"),
            of("nvidia.com/gpu", &gpus),
        ];
        let zones = ["node-0", "node-1"]
            .map(|zone| json!({"name": zone, "type": "Node", "resources": resources}));
        cluster.apply(&json!({"apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology", "metadata": {"name": node.name}, "zones": zones,
            "attributes": [{"name": "topologyManagerPolicy", "value": policy},
                {"name": "topologyManagerScope", "value": "container"}]}))?;
    }
    Ok(())
}

fn nodes(with_gpus: usize) -> Vec<StandInNode> {
    let capacity = || {
        let capacity = [
            ("cpu", "8"),
            ("memory", "32Gi"),
            ("pods", "110"),
            ("ephemeral-storage", "200Gi"),
        ];
        capacity
            .map(|(name, much)| (name, much.to_owned()))
            .to_vec()
    };
    let with_gpus = (1..=with_gpus).map(|number| StandInNode {
        name: format!("gpu-{number}"),
        gpus: GPUS,
        gpu_memory: GPU_MEMORY,
        capacity: [capacity(), vec![(NAMED_BY_SPECS, GPUS.to_string())]].concat(),
        labels: vec![
            ("nvidia.com/gpu.memory", GPU_MEMORY.to_string()),
            ("nvidia.com/gpu.count", GPUS.to_string()),
            ("nvidia.com/gpu.deploy.device-plugin", "true".to_owned()),
        ],
    });
    let without = StandInNode {
        name: "cpu-1".to_owned(),
        gpus: 0,
        gpu_memory: 0,
        capacity: capacity(),
        labels: Vec::new(),
    };
    with_gpus.chain([without]).collect()
}
