//! The pods: each leaves a file that says what size of a card it saw.

use std::fs;
use std::path::PathBuf;

use apportion_cluster::managed::{MIB, ManagedNode};
use apportion_cluster::{LocalCluster, eventually};
use serde_json::{Value, json};

use crate::api::ApiProxy;

/// A folder of the node in which each pod writes; it is in the cluster's folder, too.
const SAID: &str = "/run/apportion/crowd";
const SELECTOR: &str = "app=crowd";

/// What the pod with this number asks for, and no other pod.
pub(crate) fn bytes(number: usize) -> u64 {
    mebibytes(number) * MIB
}

/// A share is a whole number of 2 MiB.
fn mebibytes(number: usize) -> u64 {
    10 + 2 * u64::try_from(number).unwrap_or_default()
}

/// How long a pod lives after it has said what it sees.
#[derive(Clone, Copy)]
pub(crate) enum PodLifetime {
    Seconds(usize),
    Stays,
}

/// How a pod stands.
#[derive(Debug)]
pub(crate) enum CrowdPodState {
    /// It waits, starts or runs.
    Live,
    /// All of it has ended.
    Ended,
    /// The kubelet has not taken it.
    Refused,
    /// It was deleted and has not gone yet.
    Leaving,
}

impl CrowdPodState {
    fn of(pod: &Value) -> Self {
        let status = |field: &str| pod["status"][field].as_str().unwrap_or_default();
        match (status("phase"), status("reason")) {
            _ if !pod["metadata"]["deletionTimestamp"].is_null() => Self::Leaving,
            ("Failed", reason) if is_refusal(reason) => Self::Refused,
            ("Succeeded" | "Failed", _) => Self::Ended,
            _ => Self::Live,
        }
    }
}

/// No agent answered, or slots were not yet back from the pods before.
fn is_refusal(reason: &str) -> bool {
    reason == "UnexpectedAdmissionError" || reason.starts_with("OutOf")
}

/// A pod as the API server has it.
#[derive(Debug)]
pub(crate) struct CrowdPod {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) state: CrowdPodState,
}

/// All pods of the test; they go with it.
pub(crate) struct PodCrowd {
    api: ApiProxy,
    said: PathBuf,
    /// A number that comes again has another name.
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

    /// Makes a pod of each number.
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
            .for_each(|pod| self.api.create(&pod));
    }

    /// How all of them stand.
    pub(crate) fn look(&self) -> Vec<CrowdPod> {
        let pods = self.api.pods(SELECTOR);
        pods.iter().filter_map(member).collect()
    }

    /// How large the pod's card was, as the pod itself saw it.
    pub(crate) fn said(&self, name: &str) -> Option<u64> {
        // What is written at once is seen as a whole or not yet.
        let text = fs::read_to_string(self.said.join(name)).ok();
        let text = text.filter(|text| text.ends_with('\n'))?;
        let words = text.trim().strip_prefix("total 0 ");
        let words = words.unwrap_or_else(|| panic!("{name} said {text:?}"));
        words.parse().ok()
    }

    /// Deletes pods, whether they run or not.
    pub(crate) fn remove(&self, pods: &[&CrowdPod]) {
        pods.iter().for_each(|pod| self.api.delete(&pod.name));
    }
}

impl Drop for PodCrowd {
    fn drop(&mut self) {
        self.api.delete_all(SELECTOR);
        // Whoever comes next finds a node where no slot is held.
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
