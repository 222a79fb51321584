//! What the chart's admission policy lets the scheduler's account write on pods: the fields that the scheduler writes,
//! and nothing else.

use std::fs;
use std::path::Path;

use apportion_tests::{cards, eventually};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, pod};

/// The namespace of the scheduler's account in the manifests.
const NAMESPACE: &str = "apportion-system";
const ACCOUNT: &str = "apportion-scheduler";
const AS: &str = "--as=system:serviceaccount:apportion-system:apportion-scheduler";
/// The policy and its binding.
const POLICY: &str = "apportion-scheduler-own-fields";
/// A scheduler name that no scheduler has.
const STILL: &str = "still";

impl Cluster {
    /// Installs a policy of the chart and its binding.
    pub(crate) fn install_policy(&self, name: &str) {
        let manifest = "../deploy/manifests/default.yaml";
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest));
        let text = text.expect("the manifest is there");
        let documents = text.split("\n---\n");
        let wanted = documents.filter(|one| one.contains(&format!("name: {name}\n")));
        let wanted: Vec<&str> = wanted.collect();
        assert_eq!(wanted.len(), 2, "a policy and its binding");
        let path = self.plane.dir().join("policy.yaml");
        fs::write(&path, wanted.join("\n---\n")).expect("the folder is writable");
        let path = path.display().to_string();
        let _ = self.plane.kubectl(&["apply", "-f", &path]);
    }

    /// A cluster whose scheduler, once it is started, has the account that the policy is about.
    pub(crate) fn under_policy() -> Self {
        let mut cluster = Self::with_policy();
        cluster.kubeconfig = Some(cluster.plane.kubeconfig_of(NAMESPACE, ACCOUNT));
        cluster
    }

    /// Whether the policy refused nothing of what the scheduler did.
    pub(crate) fn was_never_refused(&self) -> bool {
        !self.whole_log().contains(POLICY)
    }

    /// The scheduler's policy in effect, and a pod.
    fn with_policy() -> Self {
        let cluster = Self::bare();
        cluster.install_policy(POLICY);
        let mut still = pod(STILL, json!({"gpu-fraction": "0.5"}));
        still["spec"]["schedulerName"] = json!("nobody");
        cluster.plane.apply(&[still]);
        let probe = ["annotate", "pod", STILL, "probe=1", "--dry-run=server", AS];
        eventually(PATIENCE, "the policy is in force", || {
            cluster.plane.refusal(&probe).is_some()
        });
        cluster
    }

    fn patch(&self, kind: &str, patch: &Value, status: bool) -> Option<String> {
        let text = patch.to_string();
        let mut words = vec!["patch", "pod", STILL, AS, "--type", kind, "-p", &text];
        words.extend(status.then_some("--subresource=status"));
        self.plane.refusal(&words)
    }

    fn create(&self, name: &str, object: &Value) -> Option<String> {
        let path = self.plane.dir().join("object.json");
        fs::write(&path, object.to_string()).expect("the folder is writable");
        let raw = format!("/api/v1/namespaces/default/pods/{STILL}/{name}");
        let file = path.display().to_string();
        self.plane
            .refusal(&["create", "--raw", &raw, "-f", &file, AS])
    }

    fn still(&self) -> Value {
        let pods = self.plane.all("pods");
        let mut found = pods
            .into_iter()
            .filter(|one| one["metadata"]["name"] == STILL);
        found.next().unwrap_or_default()
    }
}

fn binding(annotations: Value, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": STILL, "namespace": "default", "annotations": annotations, "labels": labels},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}})
}

fn is_refused(said: Option<String>, what: &str) {
    let said = said.unwrap_or_else(|| panic!("{what} is allowed"));
    assert!(said.contains(POLICY), "{what}: {said}");
}

fn is_allowed(said: Option<String>, what: &str) {
    assert_eq!(said, None, "{what}");
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status, "reason": "Test"}]}})
}

#[test]
fn the_schedulers_account_changes_nothing_else_on_pods() {
    let cluster = Cluster::with_policy();
    for (what, patch) in [
        (
            "an image",
            json!({"spec": {"containers": [{"name": "main", "image": "other"}]}}),
        ),
        (
            "the time to live",
            json!({"spec": {"activeDeadlineSeconds": 5}}),
        ),
        (
            "a request",
            json!({"metadata": {"annotations": {"gpu-fraction": "0.1"}}}),
        ),
        (
            "its own annotation outside a binding",
            json!({"metadata": {"annotations": {"apportion.dev/cards": "x=1"}}}),
        ),
        (
            "an annotation beside its own",
            json!({"metadata": {"annotations": {"pod-group-name": "gang", "note": "1"}}}),
        ),
        (
            "the loss of an annotation",
            json!({"metadata": {"annotations": {"gpu-fraction": null}}}),
        ),
        (
            "an annotation of others",
            json!({"metadata": {"annotations": {"note": "1"}}}),
        ),
        (
            "a label of others",
            json!({"metadata": {"labels": {"team": "mine"}}}),
        ),
        (
            "a label that begins alike",
            json!({"metadata": {"labels": {"runai-gpu-groups": "x"}}}),
        ),
        (
            "the loss of a label",
            json!({"metadata": {"labels": {"kai.scheduler/queue": null}}}),
        ),
        (
            "a finalizer",
            json!({"metadata": {"finalizers": ["example.com/mine"]}}),
        ),
        (
            "an owner",
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]}}),
        ),
    ] {
        is_refused(cluster.patch("strategic", &patch, false), what);
    }
    for (what, patch) in [
        ("another condition", condition("Ready", "True")),
        ("a phase", json!({"status": {"phase": "Failed"}})),
        (
            "an address",
            json!({"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}),
        ),
        (
            "an annotation by way of the status",
            json!({"metadata": {"annotations": {"note": "1"}}}),
        ),
        (
            "a label by way of the status",
            json!({"metadata": {"labels": {"team": "mine"}}}),
        ),
    ] {
        is_refused(cluster.patch("strategic", &patch, true), what);
    }
    let foreign = [
        (json!({"gpu-fraction": "0.1"}), json!({})),
        (
            json!({"received-resource-type": "Fraction", "note": "1"}),
            json!({}),
        ),
        (json!({}), json!({"team": "mine"})),
    ];
    for (annotations, labels) in foreign {
        let what = format!("a binding with {annotations} and {labels}");
        is_refused(
            cluster.create("binding", &binding(annotations, labels)),
            &what,
        );
    }
    let before = cluster.still();
    assert_eq!(before["metadata"]["annotations"]["gpu-fraction"], "0.5");
    assert!(before["spec"]["nodeName"].is_null());

    let other = ["annotate", "pod", STILL, "note=1"];
    is_allowed(cluster.plane.refusal(&other), "what somebody else writes");
    let membership = json!({"metadata": {"labels": {"kai.scheduler/subgroup-name": "workers"},
        "annotations": {"pod-group-name": "gang"}}});
    is_allowed(cluster.patch("merge", &membership, false), "its group");
    let label = json!({"metadata": {"labels": {"runai-gpu-group": "GPU-0"}}});
    is_allowed(cluster.patch("merge", &label, false), "its label");
    let label = json!({"metadata": {"labels": {"runai-gpu-group/GPU-1": "GPU-1"}}});
    is_allowed(
        cluster.patch("merge", &label, false),
        "its label of one of several GPUs",
    );
    let words = condition("PodScheduled", "False");
    is_allowed(cluster.patch("strategic", &words, true), "its condition");
    let own = json!({"received-resource-type": "Fraction", "apportion.dev/cards": "GPU-0=1",
        "apportion.dev/allocated": "gpu-fraction=0.5", "pod-group-name": "gang"});
    let labels = json!({"runai-gpu-group": "GPU-0"});
    is_allowed(
        cluster.create("binding", &binding(own, labels)),
        "a binding",
    );
    let bound = cluster.still();
    assert_eq!(bound["spec"]["nodeName"], "nowhere");
    assert_eq!(
        bound["metadata"]["annotations"]["apportion.dev/cards"],
        "GPU-0=1"
    );
    let resized = json!({"metadata": {"annotations": {"apportion.dev/cards": "GPU-0=2",
        "apportion.dev/allocated": "gpu-fraction=0.6"}}});
    is_allowed(cluster.patch("merge", &resized, false), "a resize");
    let other = json!({"metadata": {"annotations": {"received-resource-type": "Regular"}}});
    is_refused(
        cluster.patch("merge", &other, false),
        "another kind of share",
    );
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": STILL, "namespace": "default"}});
    is_allowed(cluster.create("eviction", &eviction), "an eviction");
}

#[test]
fn the_scheduler_does_all_of_its_work_under_the_policy() {
    let mut cluster = Cluster::under_policy();
    cluster.add_node("node-1", &cards(1));
    cluster.start_scheduler();
    cluster
        .plane
        .apply(&[pod("shares", json!({"gpu-fraction": "0.5"}))]);
    let placed = cluster.bound(1);
    assert!(placed["shares"].starts_with("GPU-"), "{placed:?}");
    cluster
        .plane
        .apply(&[pod("waits", json!({"gpu-fraction": "0.9"}))]);
    cluster.eventually("it is said why a pod waits", |pods| {
        let pod = pods.iter().find(|one| one["metadata"]["name"] == "waits")?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let mut said = conditions
            .iter()
            .filter(|one| one["type"] == "PodScheduled");
        (said.next()?["reason"] == "Unschedulable").then_some(())
    });
    let asks = [
        "annotate",
        "pod",
        "shares",
        "gpu-fraction=0.25",
        "--overwrite",
    ];
    let _ = cluster.plane.kubectl(&asks);
    cluster.eventually("it is resized", |pods| {
        let mut all = pods.iter();
        let pod = all.find(|one| one["metadata"]["name"] == "shares")?;
        let allocated = &pod["metadata"]["annotations"]["apportion.dev/allocated"];
        (*allocated == "gpu-fraction=0.25").then_some(())
    });
    assert!(cluster.was_never_refused(), "{}", cluster.said());
}
