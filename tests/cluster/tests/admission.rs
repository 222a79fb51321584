//! The webhook with a real API server: the answers of `kubectl apply`, and what happens without the webhook.
#![expect(clippy::unwrap_used, reason = "a test may")]

use apportion_cluster::programs::{self, WebhookServer};
use apportion_cluster::{LocalCluster, eventually};
use serde_json::{Value, json};

const NAMESPACE: &str = "admission-suite";

fn pod(name: &str, scheduler: &str, annotations: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"schedulerName": scheduler, "hostNetwork": true, "containers": [{"name": "main", "image": "none"}]}})
}

/// The API server's message for an object that it refuses.
fn refusal(cluster: &LocalCluster, object: &Value) -> String {
    format!("{:#}", cluster.apply(object).unwrap_err())
}

fn start(cluster: &LocalCluster, port: u16) -> WebhookServer {
    WebhookServer::start(cluster, NAMESPACE, port, &["--runtime-class", "suite"])
}

fn prepare(cluster: &LocalCluster) -> WebhookServer {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    cluster.apply(&namespace).unwrap();
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "suite"}, "handler": "runc"});
    cluster.apply(&class).unwrap();
    programs::install_kinds(cluster);
    let webhook = start(cluster, 0);
    webhook.install(cluster);
    eventually("the API server trusts the webhook", || {
        cluster
            .apply(&pod(
                "first",
                "kai-scheduler",
                json!({"gpu-fraction": "0.5"}),
            ))
            .is_ok()
    });
    webhook
}

#[test]
fn kais_manifests_are_completed_refused_and_left_alone() {
    let cluster = LocalCluster::of_tests();
    let mut webhook = prepare(&cluster);
    says_what_kai_says(&cluster);
    completes_and_freezes(&cluster);
    judges_queues(&cluster);
    survives_a_new_authority(&cluster);

    let port = webhook.port;
    webhook.process.kill();
    // Without the webhook, only pods that ask for a share are refused.
    cluster
        .apply(&pod("plain", "kai-scheduler", json!({})))
        .unwrap();
    cluster
        .apply(&pod(
            "other",
            "default-scheduler",
            json!({"gpu-fraction": "7"}),
        ))
        .unwrap();
    let said = refusal(
        &cluster,
        &pod("late", "kai-scheduler", json!({"gpu-fraction": "0.5"})),
    );
    assert!(said.contains("failed calling webhook"), "{said}");
    let _again = start(&cluster, port);
    eventually("shares are taken again", || {
        cluster
            .apply(&pod(
                "late",
                "kai-scheduler",
                json!({"gpu-fraction": "0.5"}),
            ))
            .is_ok()
    });
    programs::uninstall_webhook(&cluster);
    cluster
        .kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])
        .unwrap();
}

fn says_what_kai_says(cluster: &LocalCluster) {
    for (annotations, words) in [
        (
            json!({"mps": "true"}),
            "MPS is only supported with GPU fraction request",
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-memory": "5"}),
            "cannot request both GPU and GPU memory",
        ),
        (
            json!({"gpu-fraction-num-devices": "2"}),
            "cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
        ),
        (
            json!({"gpu-memory": "2000Mi"}),
            "gpu-memory annotation value must be a positive integer greater than 0",
        ),
        (
            json!({"gpu-fraction": "1.0"}),
            "gpu-fraction annotation value must be a positive number smaller than 1.0",
        ),
        (
            json!({"gpu-fraction": "NaN"}),
            "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation .given value: NaN",
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}),
            "failed to get fraction container ref: container with name x not found for fraction request",
        ),
    ] {
        let said = refusal(cluster, &pod("wrong", "kai-scheduler", annotations));
        let whole = format!(
            "admission webhook \"apportion-webhook.apportion-system.svc\" denied the request: {words}"
        );
        assert!(said.contains(&whole), "{said}");
    }
}

fn completes_and_freezes(cluster: &LocalCluster) {
    let get = |path: &str| {
        let path = format!("jsonpath={path}");
        cluster
            .kubectl(&["get", "pod", "first", "-n", NAMESPACE, "-o", &path])
            .unwrap()
    };
    assert_eq!(get("{.spec.runtimeClassName}"), "suite");
    assert_eq!(
        get("{.spec.containers[0].resources.limits.apportion\\.dev/gpu-slot}"),
        "1"
    );
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "first", "namespace": NAMESPACE},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("binding.json");
    std::fs::write(&file, binding.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/first/binding");
    cluster
        .kubectl(&["create", "--raw", &path, "-f", file.to_str().unwrap()])
        .unwrap();
    let edit = ["annotate", "pod", "first", "-n", NAMESPACE, "--overwrite"];
    let said = cluster
        .kubectl(&[&edit[..], &["gpu-fraction=0.01"]].concat())
        .unwrap_err();
    let said = format!("{said:#}");
    assert!(
        said.contains("cannot change from \"0.5\" to \"0.01\": the pod is bound to node nowhere"),
        "{said}"
    );
    let removed = cluster.kubectl(&[&edit[..], &["gpu-fraction-"]].concat());
    assert!(removed.is_err(), "its request was taken away");
    cluster.kubectl(&[&edit[..], &["note=1"]].concat()).unwrap();
}

fn judges_queues(cluster: &LocalCluster) {
    let queue = |spec: Value| json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "suite"}, "spec": spec});
    let said = refusal(cluster, &queue(json!({"parentQueue": "lab"})));
    assert!(
        said.contains("denied the request: resources must be specified"),
        "{said}"
    );
    let unlimited = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let resources = json!({"cpu": unlimited, "gpu": unlimited, "memory": unlimited});
    cluster.apply(&queue(json!({"parentQueue": "lab", "displayName": "Suite", "priority": 7, "resources": resources}))).unwrap();
    let table = cluster
        .kubectl(&["get", "queue", "suite", "--no-headers"])
        .unwrap();
    let cells: Vec<&str> = table.split_whitespace().collect();
    // The GPU quota. Nothing is allocated or requested yet.
    assert_eq!(cells, ["suite", "7", "lab", "Suite", "-1"]);
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "suite", "namespace": NAMESPACE}, "spec": {"minMember": 2, "minSubGroup": 1}});
    let said = refusal(cluster, &group);
    assert!(
        said.contains("minMember and minSubGroup are mutually exclusive: set minMember (2)"),
        "{said}"
    );
    let topology = json!({"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "suite"},
        "spec": {"levels": [{"nodeLabel": "rack", "alias": "rack"}]}});
    let said = refusal(cluster, &topology);
    assert!(
        said.contains(
            "invalid topology aliases: an alias must not equal a nodeLabel; conflicting: [rack]"
        ),
        "{said}"
    );
    cluster.kubectl(&["delete", "queue", "suite"]).unwrap();
}

/// The hardest case: the secret is lost, so the CA that the API server trusts is no longer valid.
fn survives_a_new_authority(cluster: &LocalCluster) {
    let bundle = || {
        let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        let kind = "validatingwebhookconfiguration";
        cluster
            .kubectl(&["get", kind, "apportion-admission", "-o", path])
            .unwrap()
    };
    let before = bundle();
    assert!(!before.is_empty());
    cluster
        .kubectl(&["delete", "secret", "apportion-webhook-tls", "-n", NAMESPACE])
        .unwrap();
    eventually("another authority is trusted", || bundle() != before);
    eventually("shares are taken under the other authority", || {
        cluster
            .apply(&pod(
                "second",
                "kai-scheduler",
                json!({"gpu-memory": "2000"}),
            ))
            .is_ok()
    });
}
