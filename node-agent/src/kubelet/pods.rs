//! The pods of this node: what each requests, and whether it has ended. They come from the kubelet if it serves its
//! pods API (by default since Kubernetes 1.37), else from the API server.
//!
//! The kubelet's other APIs have neither. Without this source the agent still works if a scheduler places the pods,
//! and learns of their ends from the device lists alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::names::{
    ANNOTATION_BURST, ANNOTATION_DEVICES, ANNOTATION_FRACTION, ANNOTATION_FRACTION_LIMIT,
    ANNOTATION_IDLE, ANNOTATION_MEMORY, ANNOTATION_MEMORY_LIMIT,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::watch;

mod of_api_server;
mod of_kubelet;

use super::shadowed_mounts::covered;
use crate::options::AgentOptions;
pub(super) use of_api_server::client;

/// How long to wait before a failed source is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(2);

/// How many deleted pods are remembered, for later polls.
const REMEMBERED: usize = 1024;

/// What is kept of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodFacts {
    pub(crate) name: String,
    pub(crate) memory: Option<String>,
    pub(crate) fraction: Option<String>,
    pub(crate) devices: Option<String>,
    /// The limits of the two, of a pod that may burst.
    pub(crate) memory_limit: Option<String>,
    pub(crate) fraction_limit: Option<String>,
    /// After how long without a call of the driver its programs are to sleep.
    pub(crate) idle_after: Option<String>,
    /// Whether no container of it runs or will run again.
    pub(crate) has_ended: bool,
    /// Its init containers that run to completion; the kubelet lists no devices for them.
    init: BTreeSet<String>,
    /// The mount that hides our files, as text.
    pub(super) covered: Option<String>,
    /// Whether it is being deleted: containers that ended are not restarted.
    is_ending: bool,
    /// Whether all of its containers have started and none will start again.
    is_started_for_good: bool,
}

/// The pods of this node, by UID.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodePods {
    pods: BTreeMap<String, Arc<PodFacts>>,
    /// Those that were deleted, the latest last.
    deleted: VecDeque<String>,
}

impl NodePods {
    pub(crate) fn get(&self, uid: &str) -> Option<&Arc<PodFacts>> {
        self.pods.get(uid)
    }

    /// The UID of the pod with this name that has not ended.
    pub(super) fn uid_of(&self, name: &str) -> Option<&String> {
        let mut live = self.pods.iter().filter(|(_, pod)| !pod.has_ended);
        live.find(|(_, pod)| pod.name == name).map(|(uid, _)| uid)
    }

    /// The UIDs of pods that have ended or were deleted.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &String> {
        let ended = self.pods.iter().filter(|(_, pod)| pod.has_ended);
        ended.map(|(uid, _)| uid).chain(&self.deleted)
    }

    /// The UIDs of pods that are being deleted.
    pub(crate) fn ending(&self) -> impl Iterator<Item = &String> {
        let ending = self.pods.iter().filter(|(_, pod)| pod.is_ending);
        ending.map(|(uid, _)| uid)
    }

    /// The UIDs of pods that end with their last process. The API server reports that end much later.
    pub(crate) fn started_for_good(&self) -> impl Iterator<Item = &String> {
        let started = self.pods.iter();
        let started = started.filter(|(_, pod)| pod.is_started_for_good);
        started.map(|(uid, _)| uid)
    }

    /// The UIDs of pods that have not ended.
    pub(crate) fn live(&self) -> impl Iterator<Item = &String> {
        let live = self.pods.iter().filter(|(_, pod)| !pod.has_ended);
        live.map(|(uid, _)| uid)
    }

    /// Whether all these containers are init containers of a pod that has not ended.
    pub(super) fn are_init(&self, uid: &str, containers: &BTreeSet<String>) -> bool {
        let pod = self.pods.get(uid).filter(|pod| !pod.has_ended);
        pod.is_some_and(|pod| containers.is_subset(&pod.init))
    }

    fn enter(&mut self, pod: &Pod) {
        if let Some(uid) = pod.uid() {
            self.pods.insert(uid, Arc::new(facts(pod)));
        }
    }

    fn leave(&mut self, uid: String) {
        self.pods.remove(&uid);
        self.deleted.push_back(uid);
        if self.deleted.len() > REMEMBERED {
            self.deleted.pop_front();
        }
    }

    /// Replaces all pods by a complete list. Pods that it lacks are deleted.
    fn replace(&mut self, pods: BTreeMap<String, Arc<PodFacts>>) {
        let before = std::mem::take(&mut self.pods).into_keys();
        before
            .filter(|uid| !pods.contains_key(uid))
            .for_each(|uid| self.leave(uid));
        self.pods = pods;
    }
}

/// Watches the pods of the node: from the kubelet whose folder is `dir` if it serves its pods API, and from the API
/// server until it does.
pub(crate) fn watch(options: &AgentOptions, dir: &Path) -> watch::Receiver<NodePods> {
    let (pods, seen) = watch::channel(NodePods::default());
    let (node, socket) = (options.node.clone(), of_kubelet::socket(dir));
    tokio::spawn(async move {
        while !pods.is_closed() {
            follow(node.as_deref(), &socket, &pods).await;
            tokio::time::sleep(RETRY).await;
        }
    });
    seen
}

/// Follows one source until it fails.
async fn follow(node: Option<&str>, socket: &Path, pods: &watch::Sender<NodePods>) {
    let events = match of_kubelet::open(socket).await {
        Some(events) => events,
        None => tokio::select! {
            () = of_api_server::follow(node, pods) => return,
            events = of_kubelet::opened(socket) => events,
        },
    };
    of_kubelet::follow(events, pods).await;
}

pub(super) fn facts(pod: &Pod) -> PodFacts {
    let annotation = |name: &str| pod.annotations().get(name).cloned();
    let may_burst = pod.annotations().contains_key(ANNOTATION_BURST);
    let limit = |name: &str| annotation(name).filter(|_| may_burst);
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    PodFacts {
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        memory: annotation(ANNOTATION_MEMORY),
        fraction: annotation(ANNOTATION_FRACTION),
        devices: annotation(ANNOTATION_DEVICES),
        memory_limit: limit(ANNOTATION_MEMORY_LIMIT),
        fraction_limit: limit(ANNOTATION_FRACTION_LIMIT),
        idle_after: annotation(ANNOTATION_IDLE),
        init: init(pod),
        covered: covered(pod),
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        is_started_for_good: is_started_for_good(pod),
        has_ended: matches!(phase, Some("Succeeded" | "Failed")),
    }
}

/// Whether no container of the pod can start any more: all have started, and the pod restarts none. A container with
/// its own restart policy may restart.
fn is_started_for_good(pod: &Pod) -> bool {
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else {
        return false;
    };
    let statuses = status.container_statuses.iter().flatten();
    let states = statuses.filter_map(|container| container.state.as_ref());
    let started = states.filter(|state| state.running.is_some() || state.terminated.is_some());
    let mut all = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    spec.restart_policy.as_deref() == Some("Never")
        && all.all(|container| container.restart_policy.is_none())
        && started.count() == spec.containers.len()
}

/// The init containers, without sidecars.
fn init(pod: &Pod) -> BTreeSet<String> {
    let spec = pod.spec.as_ref();
    let all = spec.and_then(|spec| spec.init_containers.as_ref());
    let end = all.into_iter().flatten();
    let end = end.filter(|container| container.restart_policy.as_deref() != Some("Always"));
    end.map(|container| container.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, phase: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"uid": uid, "name": "a", "namespace": "team", "annotations": {"gpu-memory": "2000"}},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_that_is_missing_from_a_new_list_is_no_more() {
        let mut pods = NodePods::default();
        pods.enter(&pod("u1", "Running"));
        pods.enter(&pod("u2", "Failed"));
        pods.enter(&pod("u3", "Running"));
        pods.leave("u3".into());
        assert_eq!(pods.live().collect::<Vec<_>>(), ["u1"]);
        assert_eq!(pods.ended().collect::<Vec<_>>(), ["u2", "u3"]);
        pods.replace(BTreeMap::new());
        assert_eq!(pods.ended().collect::<Vec<_>>(), ["u3", "u1", "u2"]);
    }

    #[test]
    fn a_sidecar_is_no_container_that_ends_before_the_others() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"uid": "u1", "name": "a", "namespace": "team"},
            "spec": {"containers": [{"name": "main"}], "initContainers": [
                {"name": "convert"}, {"name": "proxy", "restartPolicy": "Always"}]},
        }))
        .unwrap();
        let mut pods = NodePods::default();
        pods.enter(&pod);
        let are_init = |names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            pods.are_init("u1", &names)
        };
        assert!(are_init(&["convert"]));
        assert!(!are_init(&["proxy"]) && !are_init(&["convert", "main"]));
        assert!(!pods.are_init("u2", &BTreeSet::new()));
    }

    #[test]
    fn what_a_pod_asks_for_is_in_its_annotations() {
        let facts = facts(&pod("u1", "Running"));
        assert_eq!(facts.name, "team/a");
        assert_eq!(facts.memory.as_deref(), Some("2000"));
        assert_eq!(facts.fraction, None);
    }

    #[test]
    fn a_pod_has_started_for_good_when_all_its_containers_have_and_none_is_restarted() {
        let of = |policy: &str, rule: Option<&str>, second: serde_json::Value| {
            let pod = serde_json::json!({
                "metadata": {"uid": "u1"},
                "spec": {
                    "restartPolicy": policy,
                    "initContainers": [{"name": "init", "restartPolicy": rule}],
                    "containers": [{"name": "a"}, {"name": "b"}],
                },
                "status": {"phase": "Running", "containerStatuses": [
                    {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                     "state": {"terminated": {"exitCode": 0}}},
                    {"name": "b", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                     "state": second},
                ]},
            });
            let mut pods = NodePods::default();
            pods.enter(&serde_json::from_value(pod).unwrap());
            pods.started_for_good().count() == 1
        };
        let running = serde_json::json!({"running": {}});
        assert!(of("Never", None, running.clone()));
        assert!(!of("Never", Some("Always"), running.clone()));
        assert!(!of("OnFailure", None, running.clone()));
        assert!(!of("Never", None, serde_json::json!({"waiting": {}})));
    }
}
