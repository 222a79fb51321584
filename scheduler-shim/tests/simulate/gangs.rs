//! Why gangs wait: the message is about all of their pods, not about one of them.

use serde_json::{Value, json};

use crate::field;
use crate::pod_affinity::{decide, node as usual, queue};

/// A node with slots for containers that have a share.
fn node(name: &str, zone: &str) -> Value {
    let mut node = usual(name, zone);
    node["status"]["allocatable"]["apportion.dev/gpu-slot"] = "128".into();
    node
}

/// A node with this number of GPUs.
fn with_cards(count: usize) -> Value {
    let mut node = node("n1", "a");
    node["status"]["allocatable"]["nvidia.com/gpu"] = count.to_string().into();
    node
}

/// A JobSet. For each replicated job: how many replicas, and how many pods with a share in each.
fn job_set(jobs: &[(usize, usize)], fraction: &str, minimum: Option<usize>) -> Value {
    let jobs: Vec<Value> = jobs
        .iter()
        .enumerate()
        .map(|(index, (replicas, pods))| {
            json!({"name": format!("part{index}"), "replicas": replicas, "template": {"spec": {
                "parallelism": pods, "completions": pods, "template": {
                    "metadata": {"annotations": {"gpu-fraction": fraction}},
                    "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]}}}}})
        })
        .collect();
    let mut set = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "set", "namespace": "ml", "labels": {"kai.scheduler/queue": "team"}},
        "spec": {"replicatedJobs": jobs}});
    if let Some(minimum) = minimum {
        set["metadata"]["annotations"] =
            json!({"kai.scheduler/batch-min-member": minimum.to_string()});
    }
    set
}

/// A pod group whose pods start together. Each has a share, and these fields in its spec.
fn group(pods: &[Value]) -> Vec<Value> {
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "ml"},
        "spec": {"minMember": pods.len(), "queue": "team"}});
    let members = pods.iter().enumerate();
    std::iter::once(group)
        .chain(members.map(|(number, more)| member(number, more)))
        .collect()
}

fn member(number: usize, more: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ml",
        "name": format!("gang-{number}"), "labels": {"app": "gang"},
        "annotations": {"gpu-fraction": "0.3", "pod-group-name": "gang"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main",
            "resources": {"limits": {"apportion.dev/gpu-slot": "1"}}}]}});
    for (field, value) in more.as_object().into_iter().flatten() {
        match field.as_str() {
            "ports" => pod["spec"]["containers"][0]["ports"] = value.clone(),
            field => pod["spec"][field] = value.clone(),
        }
    }
    pod
}

fn messages(objects: &[Value]) -> Vec<String> {
    let report = decide(objects);
    let messages = field(&report["waiting"], "message");
    messages.into_iter().map(str::to_owned).collect()
}

#[test]
fn whatever_the_shape_of_a_job_set_all_pods_that_start_together_are_meant() {
    for cards in 1..=2 {
        for jobs in [
            vec![(1, 4)],
            vec![(4, 1)],
            vec![(2, 2)],
            vec![(1, 2), (1, 2)],
            vec![(1, 1), (3, 1)],
            vec![(1, 3)],
            vec![(3, 1)],
            vec![(1, 1), (1, 2)],
        ] {
            let objects = [with_cards(cards), queue(), job_set(&jobs, "0.6", None)];
            let pods: usize = jobs.iter().map(|(replicas, pods)| replicas * pods).sum();
            let said = messages(&objects);
            assert_eq!(said.len(), pods, "{jobs:?}");
            for message in said {
                let words = format!("the {pods} pods that must start together");
                assert!(message.starts_with(&words), "{jobs:?}: {message}");
            }
        }
    }
}

#[test]
fn a_job_set_that_needs_some_of_its_jobs_waits_for_the_pods_of_these() {
    let set = job_set(&[(1, 3), (1, 2)], "0.9", Some(1));
    let said = messages(&[with_cards(1), queue(), set.clone()]);
    assert_eq!(said.len(), 5);
    for message in said {
        assert!(
            message.starts_with("the 2 pods that must start together"),
            "{message}"
        );
    }
    // Now the smaller job fits, and the other one waits for all of its own pods.
    let said = messages(&[with_cards(3), queue(), set]);
    assert!(!said.is_empty());
    for message in said {
        assert!(!message.contains("topology"), "{message}");
    }
}

#[test]
fn a_gang_on_one_port_of_the_host_is_told_so() {
    let by_port = json!({"ports": [{"containerPort": 8000, "hostPort": 8000}]});
    let by_network = json!({"hostNetwork": true, "ports": [{"containerPort": 8000}]});
    for spec in [&by_port, &by_network] {
        let objects = [
            vec![with_cards(4), queue()],
            group(&[spec.clone(), spec.clone()]),
        ]
        .concat();
        let said = messages(&objects);
        assert_eq!(said.len(), 2);
        for message in said {
            assert_eq!(
                message,
                "the 2 pods that must start together do not fit; one alone would fit on n1: 2 of them take host \
                 port 8000/TCP, so each of these needs a node of its own, and 1 has room for one"
            );
        }
    }
    let other = json!({"ports": [{"containerPort": 8001, "hostPort": 8001}]});
    let apart = group(&[by_port.clone(), other]);
    assert_eq!(
        messages(&[vec![with_cards(4), queue()], apart].concat()),
        [""; 0]
    );
    let two_nodes = vec![node("n1", "a"), node("n2", "b"), queue()];
    let both = group(&[by_port.clone(), by_port]);
    assert_eq!(messages(&[two_nodes, both].concat()), [""; 0]);
}

#[test]
fn a_gang_that_keeps_apart_is_told_so() {
    let apart = |domain: &str| {
        let term =
            json!({"labelSelector": {"matchLabels": {"app": "gang"}}, "topologyKey": domain});
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    let nodes = vec![node("n1", "a"), node("n2", "a"), queue()];
    let spec = apart("zone");
    let said = messages(&[nodes.clone(), group(&[spec.clone(), spec])].concat());
    assert_eq!(said.len(), 2);
    for message in said {
        let words =
            "2 of them keep apart by their anti-affinity, so each of these needs a zone of its own";
        assert!(message.contains(words), "{message}");
    }
    let spec = apart("kubernetes.io/hostname");
    assert_eq!(
        messages(&[nodes, group(&[spec.clone(), spec])].concat()),
        [""; 0]
    );
}

#[test]
fn a_port_that_another_pod_has_just_got_is_named() {
    let port = json!({"ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}]});
    let mut objects = vec![with_cards(4), queue()];
    for name in ["first", "second"] {
        let [_, mut pod] = group(std::slice::from_ref(&port))
            .try_into()
            .expect("a group and a pod");
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["labels"] = json!({"kai.scheduler/queue": "team"});
        pod["metadata"]["annotations"] = json!({"gpu-fraction": "0.3"});
        objects.push(pod);
    }
    let said = messages(&objects);
    assert_eq!(said.len(), 1);
    assert!(
        said[0].contains("n1: has host port 8080/UDP in use"),
        "{said:?}"
    );
}

#[test]
fn a_node_that_has_no_place_for_another_pod_says_so_in_kais_words() {
    for (places, why) in [
        ("0", "runs its maximum of 0 pods"),
        (
            "1",
            "has 1 of 1 places for pods free; a share on a GPU that nobody shares yet takes two",
        ),
    ] {
        let mut full = with_cards(4);
        full["status"]["allocatable"]["pods"] = places.into();
        let said = messages(&[vec![full, queue()], group(&[json!({})])].concat());
        assert_eq!(said.len(), 1, "{said:?}");
        for words in ["1 node(s) pod number exceeded", why] {
            assert!(said[0].contains(words), "{said:?}");
        }
    }
    let mut enough = with_cards(4);
    enough["status"]["allocatable"]["pods"] = "2".into();
    let said = messages(&[vec![enough, queue()], group(&[json!({})])].concat());
    assert_eq!(said, [""; 0]);
}

/// A Knative service as its controllers leave it: each object is owned by the one before, and the last owns two pods.
fn knative_service(min_scale: &str) -> Vec<Value> {
    let kinds = [
        ("serving.knative.dev/v1", "Service", "web"),
        ("serving.knative.dev/v1", "Configuration", "web"),
        ("serving.knative.dev/v1", "Revision", "web-00001"),
        ("apps/v1", "Deployment", "web-00001-deployment"),
    ];
    let mut owner = Value::Null;
    let mut objects = Vec::new();
    let mut add = |version: &str, kind: &str, name: &str, more: Value| {
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name,
            "namespace": "ml", "uid": format!("{kind}-{name}"), "labels": {"kai.scheduler/queue": "team"},
            "annotations": {"autoscaling.knative.dev/min-scale": min_scale}}});
        if !owner.is_null() {
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        for (field, value) in more.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        if kind != "Pod" {
            owner = json!({"apiVersion": version, "kind": kind, "name": name, "controller": true,
                "uid": object["metadata"]["uid"]});
        }
        objects.push(object);
    };
    for (version, kind, name) in kinds {
        add(version, kind, name, json!({}));
    }
    add(
        "apps/v1",
        "ReplicaSet",
        "web-00001-deployment-77",
        json!({}),
    );
    let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}});
    for pod in ["web-1", "web-2"] {
        let spec = json!({"schedulerName": "kai-scheduler", "containers": [container]});
        add("v1", "Pod", pod, json!({ "spec": spec }));
    }
    for pod in objects.iter_mut().filter(|one| one["kind"] == "Pod") {
        pod["metadata"]["labels"]["serving.knative.dev/revision"] = "web-00001".into();
    }
    objects
}

#[test]
fn as_many_pods_of_a_knative_revision_start_together_as_its_smallest_scale() {
    let waiting = |cards: usize, min_scale: &str| {
        let cluster = vec![with_cards(cards), queue()];
        messages(&[cluster, knative_service(min_scale)].concat())
    };
    assert_eq!(waiting(2, "2"), [""; 0]);
    let said = waiting(1, "2");
    assert_eq!(said.len(), 2, "{said:?}");
    for message in said {
        let words = "the 2 pods that must start together";
        assert!(message.starts_with(words), "{message}");
    }
    assert_eq!(waiting(1, "1").len(), 1);
}
