//! What users do with pods: create, delete and edit them.

use apportion_abi::names::{ANNOTATION_BURST, ANNOTATION_FRACTION_LIMIT, RESOURCE_SLOT};
use serde_json::json;

use super::{FakeCluster, FakePod, MOST, SchedulerEvent, resizes};

impl FakeCluster {
    pub(super) fn create(&mut self, ask: u64, is_gang: bool) {
        self.create_in("default-queue", "non-preemptible", ask, is_gang);
    }

    pub(super) fn create_in(&mut self, queue: &str, preemptibility: &str, ask: u64, is_gang: bool) {
        let size = if is_gang { 2 } else { 1 };
        let group = self.made;
        if self.pods.len() + size > MOST {
            return;
        }
        for _ in 0..size {
            self.made += 1;
            let name = format!("p{}", self.made);
            let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name,
                    "namespace": "default", "uid": format!("uid-{name}"), "annotations": {},
                    "labels": {"kai.scheduler/queue": queue,
                        "kai.scheduler/preemptibility": preemptibility}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]},
                "status": {"phase": "Pending"}});
            if ask == 100 {
                object["spec"]["containers"][0]["resources"] =
                    json!({"limits": {"nvidia.com/gpu": 1}});
            } else {
                let annotations = &mut object["metadata"]["annotations"];
                annotations["gpu-fraction"] = format!("0.{ask:02}").into();
                // Every second pod may burst.
                if self.made % 2 == 1 {
                    annotations[ANNOTATION_BURST] = "true".into();
                }
                object["spec"]["containers"][0]["resources"] =
                    json!({"limits": {RESOURCE_SLOT: "1"}});
            }
            if is_gang {
                object["metadata"]["annotations"]["pod-group-name"] = format!("g{group}").into();
            }
            self.events
                .push_back(SchedulerEvent::Applied(object.clone()));
            self.pods.insert(name, FakePod { object, ask });
        }
        if is_gang {
            let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": {"name": format!("g{group}"), "namespace": "default", "uid": format!("g{group}")},
                "spec": {"minMember": 2, "queue": queue, "preemptibility": preemptibility}});
            self.groups.push(group.clone());
            self.events.push_back(SchedulerEvent::Applied(group));
        }
    }

    pub(super) fn delete(&mut self, which: usize) {
        let Some(name) = self.pods.keys().nth(which).cloned() else {
            return;
        };
        let pod = self.pods.remove(&name).expect("it is there");
        let group = |pod: &FakePod| pod.object["metadata"]["annotations"]["pod-group-name"].clone();
        let gang = group(&pod);
        self.events.push_back(SchedulerEvent::Gone(pod.object));
        // The group goes with the last pod of its gang.
        if gang.is_null() || self.pods.values().any(|pod| group(pod) == gang) {
            return;
        }
        let mut gone = self.groups.iter();
        let gone = gone.position(|group| group["metadata"]["name"] == gang);
        let gone = gone.map(|position| self.groups.remove(position));
        self.events.extend(gone.map(SchedulerEvent::Gone));
    }

    /// Edits a pod's request. A bound pod with a share is resized.
    pub(super) fn edit(&mut self, which: usize, ask: u64) {
        let Some(pod) = self.pods.values_mut().nth(which) else {
            return;
        };
        // A request for a whole card and a share at once is invalid, and the pod gets no place.
        if ask == 100 || (pod.ask == 100 && !Self::is_bound(pod)) {
            return;
        }
        if !Self::is_bound(pod) {
            pod.ask = ask;
        }
        let annotations = &mut pod.object["metadata"]["annotations"];
        annotations["gpu-fraction"] = format!("0.{ask:02}").into();
        if resizes::limit(annotations).is_some_and(|limit| limit <= ask) {
            let all = annotations.as_object_mut().expect("they are a map");
            all.remove(ANNOTATION_FRACTION_LIMIT);
        }
        self.events
            .push_back(SchedulerEvent::Applied(pod.object.clone()));
    }
}
