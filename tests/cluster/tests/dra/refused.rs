//! Two that chose the same memory: kube-scheduler bound a pod with a claim, and the memory was given away before the
//! kubelet asked for the claim.

use std::process::Child;

use apportion_cluster::eventually;
use apportion_cluster::managed::{ManagedNode, by_claim, template};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::ClaimNode;

const JOB: &str = "refused";

/// The Job and its template, and the program on the node that was faster. Dropping this removes them.
struct RefusedJob<'a> {
    node: &'a ManagedNode,
    holder: Option<Child>,
}

impl RefusedJob<'_> {
    /// The Job's pod that is not being deleted.
    fn pod(&self) -> Value {
        let list = [
            "get",
            "pods",
            "-l",
            &format!("job-name={JOB}"),
            "-o",
            "json",
        ];
        let list: Value = serde_json::from_str(&self.node.kubectl(&list)).unwrap_or_default();
        let pods = list["items"].as_array().into_iter().flatten();
        let mut current = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        current.next().cloned().unwrap_or_default()
    }

    fn events(&self, pod: &Value) -> String {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let selector = format!("involvedObject.uid={uid}");
        let message = "jsonpath={.items[*].message}";
        self.node.kubectl(&[
            "get",
            "events",
            "--field-selector",
            &selector,
            "-o",
            message,
        ])
    }

    fn release_memory(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

impl Drop for RefusedJob<'_> {
    fn drop(&mut self) {
        self.release_memory();
        for object in [format!("job/{JOB}"), format!("resourceclaimtemplate/{JOB}")] {
            let _ = self
                .node
                .kubectl(&["delete", &object, "--ignore-not-found", "--now"]);
        }
    }
}

/// Stops the kubelet while it lives.
struct PausedKubelet(Pid);

impl PausedKubelet {
    fn new(node: &ManagedNode) -> Self {
        let mut servers = node.cluster.servers();
        let (_, pid) = servers
            .find(|server| server.0 == "kubelet")
            .expect("it runs");
        kill(Pid::from_raw(pid), Signal::SIGSTOP).expect("it runs");
        Self(Pid::from_raw(pid))
    }
}

impl Drop for PausedKubelet {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn job() -> Value {
    let mut pod = json!({
        "metadata": {},
        "spec": {
            "hostNetwork": true,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [ManagedNode::container("main", "victim total hold")],
        },
    });
    by_claim(&mut pod, JOB);
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": JOB},
        "spec": {"backoffLimit": 6, "template": pod},
    })
}

#[test]
fn a_pod_whose_claim_is_refused_is_replaced_and_the_next_one_waits_for_the_memory() {
    let claims = ClaimNode::start();
    let all = claims
        .offered(&claims.cards[0])
        .expect("the slice is there");
    let mut refused = RefusedJob {
        node: &claims.node,
        holder: None,
    };
    let paused = PausedKubelet::new(&claims.node);
    let most = format!("{}Mi", all / 4 * 3);
    for object in [template(JOB, Some(&most), Some(&claims.cards[0])), job()] {
        claims
            .node
            .cluster
            .apply(&object)
            .expect("the API server takes it");
    }
    eventually("kube-scheduler binds the pod", || {
        refused.pod()["spec"]["nodeName"].is_string()
    });
    let first = refused.pod();

    let half = (all / 2).to_string();
    let mut faster = claims.node.in_node("apportion");
    faster.args([
        "run",
        "--gpu-memory",
        &half,
        "--gpu",
        &claims.cards[0],
        "--",
        "sleep",
        "600",
    ]);
    refused.holder = Some(faster.spawn().expect("util-linux is there"));
    eventually("the memory is given away", || claims.given()[0].0 > 0.0);
    drop(paused);

    eventually("an event says why the first pod does not start", || {
        refused.events(&first).contains("asked for")
    });
    eventually("the Job has another pod", || {
        let uid = &refused.pod()["metadata"]["uid"];
        uid.is_string() && *uid != first["metadata"]["uid"]
    });
    eventually("kube-scheduler says that the next one waits", || {
        refused
            .events(&refused.pod())
            .contains("cannot allocate all claims")
    });
    refused.release_memory();
    eventually("the next one runs", || {
        refused.pod()["status"]["phase"] == "Running"
    });
    drop(refused);
    claims.ends_clean();
}
