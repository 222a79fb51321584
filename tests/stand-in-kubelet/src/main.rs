//! A stand-in for the kubelets of nodes that exist only as objects. It reports their pods as running, and starts
//! nothing.
//!
//! A pod that is bound to one of its nodes becomes ready at once. If a pod's programs are shells that sleep for a time
//! and exit, the pod ends after that time. A pod that is being deleted is gone at once. On a node with NUMA zones, GPUs
//! are aligned with them. It has no volumes, probes or images: tests of those need a real kubelet.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_stream::StreamExt;

mod programs;
mod status;
mod topology_manager;

use programs::PodTermination;
use topology_manager::{TopologyAdmission, TopologyManager};

/// Says of the pods of some nodes that they run.
#[derive(Debug, Parser)]
#[command(version)]
struct StandInKubeletArguments {
    /// A node that this program speaks for; can be repeated
    #[arg(long = "node", required = true, value_name = "NAME")]
    nodes: Vec<String>,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let spoken = runtime
        .context("failed to start")
        .and_then(|runtime| runtime.block_on(speak(StandInKubeletArguments::parse())));
    match spoken {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apportion-stand-in-kubelet: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn speak(arguments: StandInKubeletArguments) -> Result<()> {
    let nodes: BTreeSet<String> = arguments.nodes.into_iter().collect();
    let client = Client::try_default().await;
    let client = client.context("failed to find the API server")?;
    let bound = Config::default().fields("spec.nodeName!=");
    let mut manager = TopologyManager::default();
    let mut events = pin!(watcher(Api::<Pod>::all(client.clone()), bound));
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => pod,
            Ok(Event::Delete(pod)) => {
                manager.release(&pod);
                continue;
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let Some(node) = node.filter(|node| nodes.contains(node)) else {
            continue;
        };
        // One after the other, so that two pods never get the same GPUs.
        let admission = if is_new(&pod) {
            manager.admit(
                &node,
                &pod,
                &topology_manager::describe(&client, &node).await,
            )
        } else {
            TopologyAdmission::Unaligned
        };
        tokio::spawn(serve(client.clone(), pod, admission));
    }
    Ok(())
}

/// Whether the pod has no reported state yet.
fn is_new(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_ref());
    pod.metadata.deletion_timestamp.is_none() && phase.is_none_or(|phase| phase == "Pending")
}

/// Moves one pod to its next state. A failure is retried at the pod's next event.
async fn serve(client: Client, pod: Pod, admission: TopologyAdmission) {
    let metadata = &pod.metadata;
    let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else {
        return;
    };
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let served = if metadata.deletion_timestamp.is_some() {
        let same = Preconditions {
            uid: metadata.uid.clone(),
            resource_version: None,
        };
        let at_once = DeleteParams::default().grace_period(0).preconditions(same);
        pods.delete(name, &at_once).await.map(drop)
    } else if is_new(&pod) {
        match admission {
            TopologyAdmission::Unaligned => run(&pods, name, &pod).await,
            TopologyAdmission::Aligned(zones) => run_in(&zones, &pods, name, &pod).await,
            TopologyAdmission::Refused => say(&pods, name, status::not_aligned(&pod)).await,
        }
    } else {
        return;
    };
    if let Err(error) = served
        && !is_over(&error)
    {
        eprintln!("{namespace}/{name}: {error}");
    }
}

/// Reports the NUMA zones of the pod's GPUs, and that the pod runs.
async fn run_in(zones: &str, pods: &Api<Pod>, name: &str, pod: &Pod) -> Result<(), kube::Error> {
    let patch = json!({"metadata": {"uid": pod.metadata.uid,
        "annotations": {topology_manager::OBSERVED: zones}}});
    let parameters = PatchParams::default();
    pods.patch_metadata(name, &parameters, &Patch::Merge(patch))
        .await?;
    run(pods, name, pod).await
}

/// Reports that the pod runs, and later that it has ended.
async fn run(pods: &Api<Pod>, name: &str, pod: &Pod) -> Result<(), kube::Error> {
    say(pods, name, status::running(pod)).await?;
    if let Some(PodTermination { after, code }) = PodTermination::of(pod) {
        tokio::time::sleep(Duration::from_secs(after)).await;
        say(pods, name, status::ended(pod, code)).await?;
    }
    Ok(())
}

async fn say(pods: &Api<Pod>, name: &str, status: Value) -> Result<(), kube::Error> {
    let parameters = PatchParams::default();
    let patch = Patch::Strategic(status);
    pods.patch_status(name, &parameters, &patch).await.map(drop)
}

/// Whether the pod is gone or replaced by another one of its name.
fn is_over(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}
