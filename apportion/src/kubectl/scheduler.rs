//! `explain --scheduler`: queries the leading scheduler, through `kubectl exec`.
//!
//! The scheduler only answers clients inside its own pod, because the answer includes objects of all namespaces. So
//! the API server decides who may ask.

use std::os::unix::process::CommandExt;
use std::process::Command;

use apportion_exit::CommandFailure;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::api::ClusterConnection;
use crate::explain;
use crate::options::ExplainOptions;

/// The label that the chart sets on everything of the scheduler.
const LABEL: &str = "app.kubernetes.io/name=apportion-scheduler";
/// The chart's name for the port with the explanations.
const PORT: &str = "metrics";

/// Replaces this process with kubectl. Returns only if that fails.
pub(crate) async fn ask(
    cluster: &ClusterConnection,
    asked: &ExplainOptions,
) -> Result<(), CommandFailure> {
    let pod = explain::find(cluster, asked).await?;
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let leader = leader(cluster).await?;
    let mut kubectl = Command::new("kubectl");
    kubectl.args(&cluster.options);
    kubectl.args([
        "exec",
        "--namespace",
        &leader.namespace().unwrap_or_default(),
    ]);
    kubectl.args([
        &leader.name_any(),
        "--",
        "apportion-scheduler",
        "explain",
        &name,
    ]);
    if let Some(port) = port(&leader) {
        kubectl.args(["--address", &format!("127.0.0.1:{port}")]);
    }
    if asked.format.json {
        kubectl.arg("--json");
    }
    let error = kubectl.exec();
    Err(CommandFailure::new("failed to start kubectl")
        .because(error)
        .hint("put kubectl into the PATH"))
}

/// The pod of the scheduler that holds the lease.
async fn leader(cluster: &ClusterConnection) -> Result<Pod, CommandFailure> {
    let labelled = || ListParams::default().labels(LABEL);
    let client = || cluster.client.clone();
    let leases: Vec<Lease> = cluster
        .listed(Api::all(client()), "leases", labelled())
        .await?;
    let holders = leases.iter().filter_map(|lease| {
        let identity = lease.spec.as_ref()?.holder_identity.as_ref()?;
        // A suffix distinguishes processes on one host. Host names contain no underscore.
        let (host, _) = identity.split_once('_').unwrap_or((identity, ""));
        Some((lease.namespace()?, host.to_owned()))
    });
    let holders: Vec<(String, String)> = holders.filter(|(_, host)| !host.is_empty()).collect();
    let [(namespace, host), ..] = holders.as_slice() else {
        return Err(CommandFailure::new("no scheduler leads in this cluster")
            .hint("look at the pods with the label app.kubernetes.io/name=apportion-scheduler"));
    };
    let pods = Api::namespaced(client(), namespace);
    let pods: Vec<Pod> = cluster.listed(pods, "pods", labelled()).await?;
    let alone = pods.len() == 1;
    let mut pods = pods.into_iter().filter(|pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        // On the host network, a pod has its node's host name.
        let is_on_node = is_on_host(pod) && node == Some(host.as_str());
        alone || pod.name_any() == *host || is_on_node
    });
    pods.next().ok_or_else(|| {
        CommandFailure::new(format!(
            "the scheduler that leads, {host}, has no pod in {namespace}"
        ))
    })
}

fn is_on_host(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.host_network)
        .unwrap_or_default()
}

fn port(pod: &Pod) -> Option<i32> {
    let containers = pod.spec.as_ref().map(|spec| &spec.containers);
    let mut ports = containers
        .into_iter()
        .flatten()
        .flat_map(|one| one.ports.iter().flatten());
    let found = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    Some(found.container_port)
}
