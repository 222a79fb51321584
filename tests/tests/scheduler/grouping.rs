//! Pod groups that follow from owners, as objects: what KAI's tools need, and the number of requests.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use apportion_tests::{cards, eventually};

use crate::cluster::{Cluster, PATIENCE, pod};

const KINDS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/chart/apportion/crds"
);
/// The namespace of the scheduler's account in the manifests.
const NAMESPACE: &str = "apportion-system";
const ACCOUNT: &str = "apportion-scheduler";
/// The log message if groups may not be written.
const REFUSED: &str = "Pod groups are not written";

impl Cluster {
    fn with_kinds() -> Self {
        let cluster = Self::with_cards(1);
        let _ = cluster.plane.kubectl(&["apply", "-f", KINDS]);
        cluster
    }

    fn group(&self, seen: impl Fn(&Value) -> bool) -> Value {
        self.eventually("a group is written", |_| {
            self.plane.all("podgroups").into_iter().find(&seen)
        })
    }

    /// How many requests the API server got with this verb for this resource.
    fn requests(&self, verb: &str, resource: &str, part: &str) -> u64 {
        let metrics = self.plane.kubectl(&["get", "--raw", "/metrics"]);
        let counts = metrics
            .lines()
            .filter(|line| {
                let has = |name: &str, value: &str| line.contains(&format!("{name}=\"{value}\""));
                line.starts_with("apiserver_request_total{")
                    && has("verb", verb)
                    && has("resource", resource)
                    && has("subresource", part)
            })
            .filter_map(|line| {
                let (_, count) = line.rsplit_once(' ')?;
                count.parse::<u64>().ok()
            });
        counts.sum()
    }

    /// Gives the scheduler's account the permissions of a manifest's roles.
    fn grant(&self, manifest: &str) {
        let roles = manifest.split("\n---\n").filter(|one| {
            one.contains("kind: ClusterRole") && one.contains("name: apportion-scheduler\n")
        });
        let roles: Vec<&str> = roles.collect();
        assert_eq!(roles.len(), 2, "a role and its binding");
        let path = self.plane.dir().join("roles.yaml");
        fs::write(&path, roles.join("\n---\n")).expect("the folder is writable");
        let path = path.display().to_string();
        let _ = self.plane.kubectl(&["apply", "-f", &path]);
    }

    /// A Job whose `size` pods start together, and its pods.
    fn job(&self, name: &str, size: usize) -> Vec<Value> {
        let template = json!({"spec": {"restartPolicy": "Never",
            "containers": [{"name": "main", "image": "none"}]}});
        self.plane
            .apply(&[json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "namespace": "default", "labels": {"team": "a"},
                "annotations": {"kai.scheduler/batch-min-member": size.to_string()}},
            "spec": {"parallelism": size, "suspend": true, "template": template}})]);
        let uid = ["get", "job", name, "-o=jsonpath={.metadata.uid}"];
        let uid = self.plane.kubectl(&uid);
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid,
            "controller": true}]);
        (0..size)
            .map(|number| {
                let mut pod = pod(&format!("{name}-{number}"), json!({"gpu-fraction": "0.1"}));
                pod["metadata"]["ownerReferences"] = owner.clone();
                pod
            })
            .collect()
    }
}

fn named(pod: &Value) -> &Value {
    &pod["metadata"]["annotations"]["pod-group-name"]
}

#[test]
fn a_gang_of_a_job_has_its_object_before_it_is_complete_and_its_pods_name_it() {
    let cluster = Cluster::with_kinds();
    let pods = cluster.job("train", 2);
    cluster.plane.apply(&pods[..1]);
    let group = cluster.group(|_| true);
    let owner = &group["metadata"]["ownerReferences"][0];
    let uid = owner["uid"].as_str().expect("it has an owner");
    let name = format!("pg-train-{uid}");
    assert_eq!(
        (&owner["kind"], &group["metadata"]["name"]),
        (&json!("Job"), &json!(name))
    );
    assert_eq!(group["metadata"]["labels"]["team"], "a");
    assert_eq!(group["spec"]["minMember"], 2);
    assert_eq!(group["spec"]["queue"], "default-queue");
    assert_eq!(group["spec"]["priorityClassName"], "train");
    cluster.eventually("the pod that waits names it", |pods| {
        (pods.len() == 1 && *named(&pods[0]) == name).then_some(())
    });
    let sentence =
        "Job is not ready for scheduling. Waiting for 2 pods, currently 1 exist, 0 are gated";
    cluster.eventually("it is said that a pod is missing", |_| {
        let events = cluster.plane.all("events.events.k8s.io");
        events
            .iter()
            .find(|event| {
                event["regarding"]["kind"] == "PodGroup"
                    && event["reason"] == "NotReady"
                    && event["type"] == "Normal"
                    && event["note"] == sentence
            })
            .map(|_| ())
    });
    cluster.plane.apply(&pods[1..]);
    cluster.bound(2);
    cluster.eventually("both name it", |pods| {
        pods.iter().all(|pod| *named(pod) == name).then_some(())
    });
    assert_eq!(cluster.plane.all("podgroups").len(), 1);
}

#[test]
fn what_is_bound_at_once_costs_one_object_a_group_and_nothing_for_its_pods() {
    let cluster = Cluster::with_kinds();
    let (made, patched) = (
        cluster.requests("POST", "podgroups", ""),
        cluster.requests("PATCH", "pods", ""),
    );
    let pods: Vec<Value> = (0..20)
        .map(|number| pod(&format!("pod-{number}"), json!({"gpu-fraction": "0.04"})))
        .collect();
    cluster.plane.apply(&pods);
    cluster.bound(20);
    cluster.eventually("each has its object", |pods| {
        let groups = cluster.plane.all("podgroups");
        (groups.len() == 20
            && pods.iter().all(|pod| {
                groups
                    .iter()
                    .any(|group| group["metadata"]["name"] == *named(pod))
            }))
        .then_some(())
    });
    let made = cluster.requests("POST", "podgroups", "") - made;
    assert_eq!(made, 20);
    assert_eq!(cluster.requests("PATCH", "podgroups", ""), 0);
    // A pod that is not bound at the first look is marked by a patch before its binding.
    let patched = cluster.requests("PATCH", "pods", "") - patched;
    assert!(patched <= 20, "{patched} pods were patched");

    // A restarted scheduler finds nothing to write.
    let path = "-o=jsonpath={.items[*].metadata.generation}";
    let before = cluster.plane.kubectl(&["get", "podgroups,pods", path]);
    let mut cluster = cluster;
    cluster.kill_scheduler();
    cluster.start_scheduler();
    cluster.await_leader();
    cluster
        .plane
        .apply(&[pod("another", json!({"gpu-fraction": "0.04"}))]);
    cluster.bound(21);
    cluster.eventually("the new one has its object", |_| {
        (cluster.plane.all("podgroups").len() == 21).then_some(())
    });
    assert_eq!(cluster.requests("PATCH", "podgroups", ""), 0, "{before}");
}

#[test]
fn a_group_that_somebody_deletes_is_made_again_and_one_that_somebody_made_is_not_touched() {
    let cluster = Cluster::with_kinds();
    let mine = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "mine", "namespace": "default"},
        "spec": {"minMember": 1, "queue": "default-queue", "priorityClassName": "build"}});
    let member = pod(
        "member",
        json!({"gpu-fraction": "0.1", "pod-group-name": "mine"}),
    );
    cluster.plane.apply(&[mine, member]);
    cluster
        .plane
        .apply(&[pod("alone", json!({"gpu-fraction": "0.1"}))]);
    cluster.bound(2);
    let ours = |group: &Value| group["metadata"]["name"] != "mine";
    let written = cluster.group(ours);
    let (name, uid) = (&written["metadata"]["name"], &written["metadata"]["uid"]);
    let name = name.as_str().expect("it has a name");
    let _ = cluster.plane.kubectl(&["delete", "podgroup", name]);
    let again = cluster.group(|group| ours(group) && group["metadata"]["uid"] != *uid);
    assert_eq!(again["metadata"]["name"], name);
    assert_eq!(again["spec"], written["spec"]);
    // An edit of a field that follows from the owner is reverted. The user's queue stays.
    let edit = json!({"spec": {"minMember": 5, "queue": "other"}}).to_string();
    let patch = ["patch", "podgroup", name, "--type=merge", "-p", &edit];
    let _ = cluster.plane.kubectl(&patch);
    let put_right = cluster.group(|group| {
        ours(group) && group["spec"]["minMember"] == 1 && group["spec"]["queue"] == "other"
    });
    assert_eq!(put_right["metadata"]["name"], name);
    let mine = cluster.group(|group| !ours(group));
    assert_eq!(mine["metadata"]["generation"], 1);
    assert_eq!(
        mine["metadata"]["annotations"]["kai.scheduler/top-owner-metadata"],
        Value::Null
    );
}

#[test]
fn without_the_right_it_is_said_once_and_pods_are_scheduled_all_the_same() {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &cards(1));
    let account = cluster.plane.kubeconfig_of(NAMESPACE, ACCOUNT);
    let manifest = "../deploy/manifests/default.yaml";
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest));
    let text = text.expect("the manifest is there");
    let right = "    resources: [podgroups]\n    verbs: [create, patch]\n";
    assert!(text.contains(right), "the role has the right");
    cluster.grant(&text.replace(right, "    resources: [podgroups]\n    verbs: [list]\n"));
    // These permissions in a namespace do not matter here.
    let all = json!([{"apiGroups": ["*"], "resources": ["leases", "secrets", "configmaps"], "verbs": ["*"]}]);
    let role = "rbac.authorization.k8s.io/v1";
    cluster.plane.apply(&[
        json!({"apiVersion": role, "kind": "ClusterRole", "metadata": {"name": "home"}, "rules": all}),
        json!({"apiVersion": role, "kind": "ClusterRoleBinding", "metadata": {"name": "home"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "home"},
            "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": ACCOUNT}]}),
    ]);
    cluster.plane.ask_for_rights();
    cluster.kubeconfig = Some(account);
    cluster.start_scheduler();
    let pods: Vec<Value> = (0..5)
        .map(|number| pod(&format!("pod-{number}"), json!({"gpu-fraction": "0.1"})))
        .collect();
    cluster.plane.apply(&pods);
    cluster.bound(5);
    let said = || cluster.whole_log().matches(REFUSED).count();
    eventually(PATIENCE, "it is said that groups are not written", || {
        said() > 0
    });
    cluster
        .plane
        .apply(&[pod("later", json!({"gpu-fraction": "0.1"}))]);
    cluster.bound(6);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(said(), 1, "{}", cluster.said());
    assert!(cluster.plane.all("podgroups").is_empty());
    cluster.grant(&text);
    cluster.eventually("they are written once that is allowed", |_| {
        (cluster.plane.all("podgroups").len() == 6).then_some(())
    });
}
