//! The pods: many are made, looked at and removed with one program each, and each leaves a file that says
//! what size of a card it saw.

use std::fs;
use std::path::PathBuf;

use apportion_cluster::Cluster;
use apportion_cluster::managed::{MIB, Node};
use serde_json::{Value, json};

/// A folder of the node in which each pod writes; it is in the cluster's folder, too.
const SAID: &str = "/run/apportion/crowd";
const SELECTOR: &str = "app=crowd";
/// A line a pod.
const COLUMNS: &str = "jsonpath={range .items[*]}{.metadata.labels.number} {.metadata.name} {.metadata.uid} \
                       {.metadata.deletionTimestamp} {.status.phase} {.status.reason}{\"\\n\"}{end}";

/// What the pod with this number asks for, and no other pod.
pub(crate) fn bytes(number: usize) -> u64 {
    mebibytes(number) * MIB
}

fn mebibytes(number: usize) -> u64 {
    10 + u64::try_from(number).unwrap_or_default()
}

/// How long a pod lives after it has said what it sees.
#[derive(Clone, Copy)]
pub(crate) enum Life {
    Seconds(usize),
    Stays,
}

/// How a pod stands.
#[derive(Debug)]
pub(crate) enum State {
    /// It waits, starts or runs.
    Live,
    /// All of it has ended.
    Ended,
    /// The kubelet has not taken it.
    Refused,
    /// It was deleted and has not gone yet.
    Leaving,
}

impl State {
    fn of(deleted: &str, phase: &str, reason: &str) -> Self {
        match (deleted, phase, reason) {
            ("", "Failed", reason) if is_refusal(reason) => Self::Refused,
            ("", "Succeeded" | "Failed", _) => Self::Ended,
            ("", _, _) => Self::Live,
            _ => Self::Leaving,
        }
    }
}

/// No agent answered, or slots were not yet back from the pods before.
fn is_refusal(reason: &str) -> bool {
    reason == "UnexpectedAdmissionError" || reason.starts_with("OutOf")
}

/// A pod as the API server has it.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) state: State,
}

/// All pods of the test; they go with it.
pub(crate) struct Crowd {
    cluster: Cluster,
    said: PathBuf,
    /// A number that comes again has another name.
    rounds: std::cell::Cell<usize>,
}

impl Crowd {
    pub(crate) fn new(node: &Node) -> Self {
        let cluster = Cluster::of_tests();
        let said = cluster.folder().path().join("apportion/crowd");
        let _ = fs::remove_dir_all(&said);
        fs::create_dir_all(&said).expect("the folder is writable");
        assert!(
            node.instance().parent() == said.parent(),
            "both are in the node's room"
        );
        Self {
            cluster,
            said,
            rounds: 0.into(),
        }
    }

    /// Makes a pod of each number.
    pub(crate) fn create(&self, numbers: &[usize], mut life: impl FnMut() -> Life) {
        if numbers.is_empty() {
            return;
        }
        self.rounds.set(self.rounds.get() + 1);
        let round = self.rounds.get();
        let pod = |number: &usize| pod(*number, &format!("crowd-{number}-{round}"), life());
        let pods: Vec<Value> = numbers.iter().map(pod).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        self.cluster
            .apply(&list)
            .expect("the API server takes the pods");
    }

    /// How all of them stand.
    pub(crate) fn look(&self) -> Vec<Member> {
        let text = self
            .cluster
            .kubectl(&["get", "pods", "-l", SELECTOR, "-o", COLUMNS]);
        text.unwrap_or_default()
            .lines()
            .filter_map(member)
            .collect()
    }

    /// How large the pod's card was, as the pod itself saw it.
    pub(crate) fn said(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.said.join(name)).ok()?;
        let words = text.trim().strip_prefix("total 0 ");
        let words = words.unwrap_or_else(|| panic!("{name} said {text:?}"));
        words.parse().ok()
    }

    /// Deletes pods, whether they run or not.
    pub(crate) fn remove(&self, pods: &[&Member]) {
        if pods.is_empty() {
            return;
        }
        let names = pods.iter().map(|pod| pod.name.as_str());
        let delete = ["delete", "pod", "--wait=false", "--ignore-not-found"];
        let args: Vec<&str> = delete.into_iter().chain(names).collect();
        self.cluster.kubectl(&args).expect("the API server answers");
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let all = [
            "delete",
            "pods",
            "-l",
            SELECTOR,
            "--now",
            "--ignore-not-found",
        ];
        let _ = self.cluster.kubectl(&all);
        let _ = fs::remove_dir_all(&self.said);
    }
}

fn member(line: &str) -> Option<Member> {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    Some(Member {
        number: next().parse().ok()?,
        name: next().to_owned(),
        uid: next().to_owned(),
        state: State::of(next(), next(), next()),
    })
}

fn pod(number: usize, name: &str, life: Life) -> Value {
    let rest = match life {
        Life::Seconds(seconds) => seconds.to_string(),
        Life::Stays => "infinity".to_owned(),
    };
    // What is written at last is seen as a whole or not at all.
    let script = format!(
        "trap 'exit 0' TERM; victim total > /said/.{name} && mv /said/.{name} /said/{name}; sleep {rest} & wait"
    );
    let mut container = Node::container("main", &script);
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
