//! The statuses of queues and pod groups, with KAI's CRDs validated by the API server.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster::{Cluster, placed, pod, queue};

const KINDS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/chart/apportion/crds"
);

fn with_kinds(cards: usize) -> Cluster {
    let cluster = Cluster::with_cards(cards);
    let _ = cluster.plane.kubectl(&["apply", "-f", KINDS]);
    cluster
}

/// All statuses of a kind by name, once `seen` finds something in them.
fn eventually<T>(
    cluster: &Cluster,
    kind: &str,
    what: &str,
    seen: impl Fn(&BTreeMap<String, Value>) -> Option<T>,
) -> T {
    cluster.eventually(what, |_| {
        let all = cluster.plane.all(kind);
        seen(
            &all.iter()
                .map(|object| {
                    (
                        object["metadata"]["name"].as_str().unwrap_or("").to_owned(),
                        object["status"].clone(),
                    )
                })
                .collect(),
        )
    })
}

fn condition<'a>(status: &'a Value, field: &str, kind: &str) -> &'a Value {
    let mut all = status[field].as_array().into_iter().flatten();
    all.find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// Waits for an event of an object with this message.
fn tells(cluster: &Cluster, kind: &str, name: &str, sentence: &str) {
    let what = format!("an event of {kind} {name}");
    eventually(cluster, "events.events.k8s.io", &what, |_| {
        let events = cluster.plane.all("events.events.k8s.io");
        let mut events = events.iter();
        events
            .any(|event| {
                let object = &event["regarding"];
                let is_its = object["kind"] == kind && object["name"] == name;
                is_its && event["type"] == "Warning" && event["note"] == sentence
            })
            .then_some(())
    });
}

fn of_queue(name: &str, queue: &str, annotations: Value) -> Value {
    let mut pod = pod(name, annotations);
    pod["metadata"]["labels"]["kai.scheduler/queue"] = queue.into();
    pod
}

#[test]
fn a_queue_says_what_its_pods_have_and_what_is_over_its_quota() {
    let cluster = with_kinds(2);
    let mut above = queue("above", -1);
    let mut below = queue("below", -1);
    for queue in [&mut above, &mut below] {
        queue["spec"]["resources"]["gpu"]["quota"] = json!(1);
    }
    below["spec"]["parentQueue"] = "above".into();
    cluster.plane.apply(&[above, below]);
    let halves: Vec<Value> = (0..3)
        .map(|number| {
            let annotations = json!({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"});
            of_queue(&format!("pod-{number}"), "below", annotations)
        })
        .collect();
    cluster.plane.apply(&halves);
    cluster.bound(3);
    eventually(&cluster, "queues", "the sums are written", |all| {
        let is_so = ["above", "below"].iter().all(|name| {
            let status = all.get(*name).unwrap_or(&Value::Null);
            let over = condition(status, "conditions", "OverQuota");
            let has = json!({"cpu": "300m", "memory": "0", "nvidia.com/gpu": "1500m"});
            status["allocated"] == has
                && status["requested"] == has
                && over["status"] == "True"
                && over["message"] == "allocated 1.5 GPUs of a quota of 1 GPUs"
        });
        (is_so && all["above"]["childQueues"] == json!(["below"])).then_some(())
    });
    cluster.eventually("kubectl shows quota, allocated and requested", |_| {
        let shown = cluster.plane.kubectl(&["get", "queue", "below"]);
        let (header, row) = shown.split_once('\n')?;
        let row: Vec<&str> = row.split_whitespace().collect();
        let names = header.ends_with("GPU QUOTA   GPU ALLOCATED   GPU REQUESTED");
        (names && row.ends_with(&["1", "1500m", "1500m"])).then_some(())
    });
    // Nothing is written while nothing changes.
    let versions = || {
        cluster.plane.kubectl(&[
            "get",
            "queues",
            "-o=jsonpath={.items[*].metadata.resourceVersion}",
        ])
    };
    let before = versions();
    cluster
        .plane
        .apply(&[of_queue("other", "default-queue", json!({}))]);
    eventually(&cluster, "queues", "the other queue says so", |all| {
        (all["default-queue"]["allocated"]["cpu"] == "100m").then_some(())
    });
    let after = versions();
    let changed = before
        .split(' ')
        .zip(after.split(' '))
        .filter(|(before, after)| before != after);
    assert_eq!(changed.count(), 1, "{before} and {after}");
}

#[test]
fn bad_objects_say_so_and_the_rest_goes_on() {
    let cluster = with_kinds(1);
    let mut negative = queue("negative", 1);
    negative["spec"]["resources"]["gpu"]["quota"] = json!(-3);
    let mut orphan = queue("orphan", 1);
    orphan["spec"]["parentQueue"] = "nobody".into();
    let mut circle = [queue("left", 1), queue("right", 1)];
    circle[0]["spec"]["parentQueue"] = "right".into();
    circle[1]["spec"]["parentQueue"] = "left".into();
    let mut empty = queue("empty", 1);
    empty["spec"] = json!({"displayName": "empty"});
    cluster.plane.apply(&circle);
    // The CRD refuses a run time that is no duration, but a queue may be older than the CRD.
    const FIELD: &str =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/preemptMinRuntime";
    let patch = r#"--patch={"spec":{"preemptMinRuntime":"1d"}}"#;
    let refused =
        cluster
            .plane
            .refusal(&["patch", "queue", "default-queue", "--type=merge", patch]);
    assert!(refused.is_some_and(|why| why.contains("preemptMinRuntime")));
    let older = format!(r#"--patch=[{{"op":"remove","path":"{FIELD}/pattern"}}]"#);
    let kind = "queues.scheduling.run.ai";
    let _ = cluster
        .plane
        .kubectl(&["patch", "crd", kind, "--type=json", &older]);
    let mut slow = queue("slow", 1);
    slow["spec"]["preemptMinRuntime"] = "1d".into();
    cluster.plane.apply(&[negative, orphan, empty, slow]);
    let ignored = eventually(&cluster, "queues", "what is ignored is said", |all| {
        let invalid = condition(all.get("slow")?, "conditions", "InvalidSpec");
        (invalid["status"] == "True").then(|| invalid["message"].as_str().unwrap_or("").to_owned())
    });
    assert!(ignored.contains("preemptMinRuntime \"1d\""), "{ignored}");
    let sentences = eventually(&cluster, "queues", "each says what is wrong", |all| {
        ["negative", "orphan", "left", "right", "empty"]
            .map(|name| {
                let usable = condition(all.get(name)?, "conditions", "Usable");
                let is_bad = usable["status"] == "False";
                is_bad.then(|| (name, usable["message"].as_str().unwrap_or("").to_owned()))
            })
            .into_iter()
            .collect::<Option<BTreeMap<_, _>>>()
    });
    for (name, part) in [
        ("negative", "its gpu quota is -3"),
        ("orphan", "its parent nobody does not exist"),
        ("left", "cycle"),
        ("right", "cycle"),
        ("empty", "resources must be specified"),
    ] {
        assert!(
            sentences[name].contains(part),
            "{name}: {}",
            sentences[name]
        );
    }
    let orphan = eventually(&cluster, "queues", "KAI's word is there", |all| {
        Some(condition(&all["orphan"], "conditions", "Orphan")["status"].clone())
    });
    assert_eq!(orphan, "True");
    for (name, sentence) in &sentences {
        tells(&cluster, "Queue", name, sentence);
    }
    cluster
        .plane
        .apply(&[pod("fine", json!({"gpu-fraction": "0.5"}))]);
    cluster.bound(1);
    // Once corrected, its status says so.
    cluster.plane.apply(&[queue("negative", 1)]);
    eventually(&cluster, "queues", "it can be used", |all| {
        let usable = condition(&all["negative"], "conditions", "Usable");
        (usable["status"] == "True").then_some(())
    });
}

#[test]
fn a_group_that_does_not_fit_says_why_until_it_does() {
    let cluster = with_kinds(1);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    cluster.plane.apply(&[namespace]);
    let group = |namespace: &str| {
        json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "gang", "namespace": namespace},
            "spec": {"minMember": 2, "queue": "default-queue"}})
    };
    let member = |namespace: &str, name: &str, fraction: &str| {
        let annotations = json!({"gpu-fraction": fraction, "pod-group-name": "gang"});
        let mut pod = pod(name, annotations);
        pod["metadata"]["namespace"] = namespace.into();
        pod
    };
    // Two groups with one name in two namespaces: one is larger than the cluster, the other fits.
    cluster.plane.apply(&[group("default"), group("other")]);
    cluster.plane.apply(&[
        member("default", "a", "0.8"),
        member("default", "b", "0.8"),
        member("other", "c", "0.1"),
        member("other", "d", "0.1"),
    ]);
    let of = |namespace: &str| {
        let path = ["-n", namespace, "get", "podgroup", "gang", "-o", "json"];
        let object: Value =
            serde_json::from_str(&cluster.plane.kubectl(&path)).expect("kubectl prints JSON");
        object["status"].clone()
    };
    let said = cluster.eventually("the group says why", |_| {
        let condition = condition(
            &of("default"),
            "schedulingConditions",
            "UnschedulableOnNodePool",
        )
        .clone();
        condition.is_object().then_some(condition)
    });
    assert_eq!(said["status"], "True");
    assert_eq!(said["reason"], "Unschedulable");
    assert_eq!(said["nodePool"], "default");
    let message = said["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("2 pods that must start together"),
        "{message}"
    );
    assert_eq!(said["reasons"][0]["reason"], "Unschedulable");
    tells(&cluster, "PodGroup", "gang", message);
    cluster.eventually("the other runs", |pods| {
        let placed = placed(pods);
        let has = &of("other")["resourcesStatus"]["allocated"]["nvidia.com/gpu"];
        (placed.contains_key("c") && placed.contains_key("d") && has == "200m").then_some(())
    });
    // With another member size, it fits.
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", "b", "--force", "--grace-period=0"]);
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", "a", "--force", "--grace-period=0"]);
    cluster
        .plane
        .apply(&[member("default", "a", "0.3"), member("default", "b", "0.3")]);
    cluster.eventually("the reason is gone", |_| {
        let status = of("default");
        let is_gone = status["schedulingConditions"]
            .as_array()
            .is_none_or(Vec::is_empty);
        let has = &status["resourcesStatus"]["allocated"]["nvidia.com/gpu"];
        (is_gone && has == "600m").then_some(())
    });
}
