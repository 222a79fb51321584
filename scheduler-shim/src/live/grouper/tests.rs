//! What is written about groups, and how often. Only the model is real; the API server is a map.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::live::event::SchedulerEvent;

const NOW: Duration = Duration::from_secs(1_800_000_000);

/// The model, and the objects that the API server has.
struct GrouperCluster {
    model: ClusterModel,
    groups: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    now: Duration,
    /// How many writes there were.
    writes: usize,
}

impl GrouperCluster {
    fn new(whose: PodGroupMode) -> Self {
        let names = ["apportion-scheduler", KAI].map(str::to_owned);
        let mut model = ClusterModel::new(names.to_vec());
        model.grouper.whose = whose;
        Self {
            model,
            groups: BTreeMap::new(),
            pods: BTreeMap::new(),
            now: NOW,
            writes: 0,
        }
    }

    fn put(&mut self, json: Value) {
        let object = ObjectView::new(&json);
        let name = object.name().to_owned();
        let kept = match object.kind() {
            "Pod" => Some(&mut self.pods),
            "PodGroup" => Some(&mut self.groups),
            _ => None,
        };
        kept.map(|kept| kept.insert(name, json.clone()));
        let _ = self.model.apply(self.now, SchedulerEvent::Applied(json));
    }

    /// One round of writes, all answered. If they succeed, the watch shows them.
    fn round(&mut self, succeeds: bool) -> Vec<GroupWrite> {
        self.now += Duration::from_secs(1);
        let effects = self.model.write_groups(self.now);
        let writes: Vec<GroupWrite> = effects
            .into_iter()
            .map(|effect| match effect {
                SchedulerEffect::Group(write) => write,
                other => panic!("{other:?}"),
            })
            .collect();
        for write in &writes {
            self.writes += 1;
            let subject = write.subject().expect("an answer is awaited");
            let answer = SchedulerEvent::Grouped(subject, succeeds);
            let _ = self.model.apply(self.now, answer);
            if succeeds {
                self.perform(write.clone());
            }
        }
        writes
    }

    fn perform(&mut self, write: GroupWrite) {
        let changed = match write {
            GroupWrite::Create(mut object) | GroupWrite::Found(mut object) => {
                object["metadata"]["uid"] = format!("uid-{}", self.writes).into();
                object
            }
            GroupWrite::Change(_, name, change) => {
                let mut object = self.groups[&name].clone();
                merge(&mut object, &change);
                object
            }
            GroupWrite::Mark(pod, membership) => {
                let mut object = self.pods[&pod.name].clone();
                object["metadata"]["annotations"]["pod-group-name"] = membership.group.into();
                if let Some(part) = membership.part {
                    object["metadata"]["labels"]["kai.scheduler/subgroup-name"] = part.into();
                }
                object
            }
            GroupWrite::NotReady(..) => return,
        };
        self.put(changed);
    }

    /// Writes until nothing is left to write.
    fn settle(&mut self) {
        let rounds = (0..20).take_while(|_| !self.round(true).is_empty());
        assert!(rounds.count() < 20, "it does not come to rest");
    }
}

/// A merge patch, as the API server applies it.
fn merge(into: &mut Value, change: &Value) {
    for (key, value) in change.as_object().into_iter().flatten() {
        match value {
            Value::Null => {
                into.as_object_mut().map(|into| into.remove(key));
            }
            Value::Object(_) if into[key].is_object() => merge(&mut into[key], value),
            _ => into[key] = value.clone(),
        }
    }
}

fn pod(name: &str, scheduler: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default",
            "uid": format!("uid-{name}"), "labels": {"kai.scheduler/queue": "q"},
            "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main"}]},
        "status": {"phase": "Pending"}})
}

fn worker(number: usize) -> Value {
    let mut pod = pod(&format!("w{number}"), "apportion-scheduler");
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob", "name": "t", "uid": "t", "controller": true}]);
    let role = if number == 0 { "master" } else { "worker" };
    pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] = role.into();
    pod["metadata"]["labels"]["training.kubeflow.org/job-role"] = role.into();
    pod
}

fn training(workers: usize) -> Value {
    let replicas = |count: usize| json!({"replicas": count, "template": {}});
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": "t", "namespace": "default", "uid": "t", "labels": {"team": "a"}},
        "spec": {"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(workers)}}})
}

#[test]
fn a_pod_alone_costs_one_object_and_one_mark() {
    let mut cluster = GrouperCluster::new(PodGroupMode::On);
    for number in 0..50 {
        cluster.put(pod(&format!("p{number}"), "apportion-scheduler"));
    }
    cluster.settle();
    assert_eq!(cluster.writes, 100);
    let group = &cluster.groups["pg-p1-uid-p1"];
    assert_eq!(group["spec"]["minMember"], 1);
    assert_eq!(group["spec"]["queue"], "q");
    assert_eq!(group["spec"]["priorityClassName"], "train");
    assert_eq!(group["metadata"]["ownerReferences"][0]["kind"], "Pod");
    let marked = &cluster.pods["p1"]["metadata"]["annotations"]["pod-group-name"];
    assert_eq!(marked, "pg-p1-uid-p1");
    for _ in 0..5 {
        assert!(cluster.round(true).is_empty());
    }
}

#[test]
fn a_gang_gets_one_object_with_its_parts_and_follows_its_owner() {
    let mut cluster = GrouperCluster::new(PodGroupMode::Auto);
    cluster.put(training(2));
    (0..3).for_each(|number| cluster.put(worker(number)));
    cluster.settle();
    assert_eq!((cluster.groups.len(), cluster.writes), (1, 4));
    let group = cluster.groups["pg-t-t"].clone();
    assert_eq!(group["spec"]["minMember"], 3);
    assert_eq!(group["metadata"]["labels"]["team"], "a");
    let part = |number: usize| {
        let labels = &cluster.pods[&format!("w{number}")]["metadata"]["labels"];
        labels["kai.scheduler/subgroup-name"].clone()
    };
    assert_eq!((part(0), part(2)), (json!("master"), json!("worker")));

    // Others own the queue and `markUnschedulable`; the rest follows the owner.
    let mut moved = group;
    moved["spec"]["queue"] = "other".into();
    moved["spec"]["markUnschedulable"] = true.into();
    moved["spec"]["minMember"] = 1.into();
    cluster.put(moved);
    cluster.put(training(3));
    cluster.settle();
    let group = &cluster.groups["pg-t-t"];
    assert_eq!(group["spec"]["minMember"], 4);
    assert_eq!(group["spec"]["queue"], "other");
    assert_eq!(group["spec"]["markUnschedulable"], true);
    assert_eq!(cluster.writes, 5, "one change, and no mark again");
}

#[test]
fn what_somebody_made_is_left_alone_and_what_somebody_deleted_is_made_again() {
    let mut cluster = GrouperCluster::new(PodGroupMode::On);
    let mut named = pod("named", "apportion-scheduler");
    named["metadata"]["annotations"]["pod-group-name"] = "mine".into();
    cluster.put(json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "mine", "namespace": "default", "uid": "m"}, "spec": {"minMember": 7}}));
    cluster.put(named);
    let mut opted_out = pod("out", "apportion-scheduler");
    opted_out["metadata"]["annotations"]["kai.scheduler/skip-podgrouper"] = "true".into();
    cluster.put(opted_out);
    cluster.put(pod("other", "default-scheduler"));
    cluster.settle();
    assert_eq!(cluster.writes, 0);

    cluster.put(pod("p", "apportion-scheduler"));
    cluster.settle();
    assert_eq!(cluster.writes, 2);
    let gone = cluster.groups.remove("pg-p-uid-p").expect("it was written");
    let _ = cluster.model.apply(cluster.now, SchedulerEvent::Gone(gone));
    let written = cluster.round(true);
    assert!(
        matches!(written.as_slice(), [GroupWrite::Create(_)]),
        "{written:?}"
    );
    cluster.settle();
    assert_eq!(cluster.writes, 3);
}

#[test]
fn no_group_is_written_while_kais_grouper_is_there() {
    let mut grouper = pod("grouper", "default-scheduler");
    grouper["metadata"]["labels"]["app"] = "pod-grouper".into();
    for (whose, is_there, expected) in [
        (PodGroupMode::Auto, false, 2),
        (PodGroupMode::Auto, true, 0),
        (PodGroupMode::On, true, 2),
        (PodGroupMode::Off, false, 0),
    ] {
        let mut cluster = GrouperCluster::new(whose);
        cluster.put(pod("kais", KAI));
        cluster.put(pod("ours", "apportion-scheduler"));
        if is_there {
            cluster.put(grouper.clone());
        }
        cluster.settle();
        assert_eq!(cluster.groups.len(), expected, "{whose:?} {is_there}");
    }
}

#[test]
fn a_write_that_fails_is_tried_again_more_and_more_seldom() {
    let mut cluster = GrouperCluster::new(PodGroupMode::On);
    cluster.put(pod("p", "apportion-scheduler"));
    let tries = (0..60).map(|_| cluster.round(false).len());
    let tries: usize = tries.sum();
    assert!((8..=14).contains(&tries), "{tries} writes in a minute");
    cluster.now += Duration::from_secs(60);
    cluster.settle();
    assert_eq!(cluster.groups.len(), 1);
}

#[test]
fn a_start_carries_the_group_unless_the_pod_names_it() {
    let mut cluster = GrouperCluster::new(PodGroupMode::On);
    cluster.put(pod("p", "apportion-scheduler"));
    let find = |cluster: &GrouperCluster| cluster.model.pod("default/p").expect("it is there");
    let joins = cluster.model.joins(&find(&cluster));
    assert_eq!(
        joins.map(|joins| joins.group).as_deref(),
        Some("pg-p-uid-p")
    );
    cluster.settle();
    assert_eq!(cluster.model.joins(&find(&cluster)), None);
}

#[test]
fn the_groups_of_a_few_pods_are_made_with_their_bindings_and_only_once() {
    let mut cluster = GrouperCluster::new(PodGroupMode::On);
    let names: Vec<String> = (0..40).map(|number| format!("p{number}")).collect();
    for name in &names {
        cluster.put(pod(name, "apportion-scheduler"));
    }
    let starting: Vec<PodRef> = names
        .iter()
        .map(|name| {
            cluster
                .model
                .pod(&format!("default/{name}"))
                .expect("it is there")
        })
        .collect();
    let now = cluster.now;
    let effects = cluster.model.found_groups(now, starting.iter());
    assert_eq!(effects.len(), 16);
    for effect in effects {
        let SchedulerEffect::Group(write @ GroupWrite::Found(_)) = effect else {
            panic!("{effect:?}");
        };
        cluster.writes += 1;
        cluster.perform(write);
    }
    let again = cluster.model.found_groups(now, starting[..16].iter());
    assert_eq!(again, []);
    cluster.settle();
    assert_eq!(cluster.groups.len(), 40);
}
