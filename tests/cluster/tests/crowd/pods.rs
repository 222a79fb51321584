//! The pods: each writes a file with the size of its card.

use std::fs;
use std::path::PathBuf;

use apportion_cluster::api_proxy::{ApiProxy, PODS};
use apportion_cluster::managed::{MIB, ManagedNode, is_rejection};
use apportion_cluster::{LocalCluster, eventually};
use serde_json::{Value, json};

/// The folder of the node that the pods write to. It is visible in the cluster's folder too.
const SAID: &str = "/run/apportion/crowd";
const SELECTOR: &str = "app=crowd";

/// The size that only the pod with this number asks for.
pub(crate) fn bytes(number: usize) -> u64 {
    mebibytes(number) * MIB
}

/// A share is a multiple of 2 MiB.
fn mebibytes(number: usize) -> u64 {
    10 + 2 * u64::try_from(number).unwrap_or_default()
}

/// How long a pod lives after it has written its file.
#[derive(Clone, Copy)]
pub(crate) enum PodLifetime {
    Seconds(usize),
    Stays,
}

/// The state of a pod.
#[derive(Debug)]
pub(crate) enum CrowdPodState {
    /// It is pending or running.
    Live,
    /// It has succeeded or failed.
    Ended,
    /// The kubelet has rejected it.
    Refused,
    /// It is being deleted.
    Leaving,
}

impl CrowdPodState {
    fn of(pod: &Value) -> Self {
        let status = |field: &str| pod["status"][field].as_str().unwrap_or_default();
        match (status("phase"), status("reason")) {
            _ if !pod["metadata"]["deletionTimestamp"].is_null() => Self::Leaving,
            ("Failed", reason) if is_rejection(reason) => Self::Refused,
            ("Succeeded" | "Failed", _) => Self::Ended,
            _ => Self::Live,
        }
    }
}

/// A pod as the API server returns it.
#[derive(Debug)]
pub(crate) struct CrowdPod {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) state: CrowdPodState,
}

/// All pods of the test. Dropping this deletes them.
pub(crate) struct PodCrowd {
    api: ApiProxy,
    said: PathBuf,
    /// Makes the names unique: a pod that is created again has another name.
    rounds: std::cell::Cell<usize>,
}

impl PodCrowd {
    pub(crate) fn new(node: &ManagedNode) -> Self {
        let cluster = LocalCluster::of_tests();
        let said = cluster.folder().path().join("apportion/crowd");
        let _ = fs::remove_dir_all(&said);
        fs::create_dir_all(&said).expect("the folder is writable");
        assert!(
            node.instance().parent() == said.parent(),
            "both are in the node's room"
        );
        Self {
            api: ApiProxy::of(&cluster),
            said,
            rounds: 0.into(),
        }
    }

    /// Creates a pod of each number.
    pub(crate) fn create(&self, numbers: &[usize], mut life: impl FnMut() -> PodLifetime) {
        if numbers.is_empty() {
            return;
        }
        self.rounds.set(self.rounds.get() + 1);
        let round = self.rounds.get();
        let pod = |number: &usize| pod(*number, &format!("crowd-{number}-{round}"), life());
        numbers
            .iter()
            .map(pod)
            .for_each(|pod| self.api.create(PODS, &pod));
    }

    /// The states of all pods.
    pub(crate) fn look(&self) -> Vec<CrowdPod> {
        let pods = self.api.list(PODS, SELECTOR);
        pods.iter().filter_map(member).collect()
    }

    /// The size of the pod's card, as the pod itself saw it.
    pub(crate) fn said(&self, name: &str) -> Option<u64> {
        // One small write is seen either completely or not at all.
        let text = fs::read_to_string(self.said.join(name)).ok();
        let text = text.filter(|text| text.ends_with('\n'))?;
        let words = text.trim().strip_prefix("total 0 ");
        let words = words.unwrap_or_else(|| panic!("{name} said {text:?}"));
        words.parse().ok()
    }

    /// Deletes pods, even running ones.
    pub(crate) fn remove(&self, pods: &[&CrowdPod]) {
        pods.iter().for_each(|pod| self.api.delete(PODS, &pod.name));
    }
}

impl Drop for PodCrowd {
    fn drop(&mut self) {
        self.api.delete_all(PODS, SELECTOR);
        // The next test needs a node without held slots.
        if !std::thread::panicking() {
            eventually("the crowd has gone", || self.look().is_empty());
        }
        let _ = fs::remove_dir_all(&self.said);
    }
}

fn member(pod: &Value) -> Option<CrowdPod> {
    let metadata = &pod["metadata"];
    Some(CrowdPod {
        number: metadata["labels"]["number"].as_str()?.parse().ok()?,
        name: metadata["name"].as_str()?.to_owned(),
        uid: metadata["uid"].as_str()?.to_owned(),
        state: CrowdPodState::of(pod),
    })
}

fn pod(number: usize, name: &str, life: PodLifetime) -> Value {
    let rest = match life {
        PodLifetime::Seconds(seconds) => seconds.to_string(),
        PodLifetime::Stays => "infinity".to_owned(),
    };
    let script = format!(
        "trap 'exit 0' TERM; seen=$(victim total) && echo \"$seen\" > /said/{name}; sleep {rest} & wait"
    );
    let mut container = ManagedNode::container("main", &script);
    container["volumeMounts"] = json!([{"name": "said", "mountPath": "/said"}]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"app": "crowd", "number": number.to_string()},
            "annotations": {"gpu-memory": mebibytes(number).to_string()},
        },
        "spec": {
            "hostNetwork": true,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "containers": [container],
            "volumes": [{"name": "said", "hostPath": {"path": SAID}}],
        },
    })
}
