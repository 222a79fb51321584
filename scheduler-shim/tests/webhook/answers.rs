//! Reviews and their answers.

use serde_json::{Value, json};

use crate::client::{TestAuthority, WebhookProcess};

fn start(options: &[&str]) -> (WebhookProcess, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = TestAuthority::new();
    authority.issue(folder.path());
    (
        WebhookProcess::start(folder.path(), &authority, options),
        folder,
    )
}

fn pod(scheduler: &str, annotations: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0", "annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "image": "i"}]}})
}

/// The patch of a response, decoded from base64 by a library that is not ours.
fn patch(response: &Value) -> Value {
    let bytes: k8s_openapi::ByteString =
        serde_json::from_value(response["patch"].clone()).expect("base64");
    serde_json::from_slice(&bytes.0).expect("a patch")
}

#[test]
fn a_pod_is_completed_and_judged() {
    let (webhook, _folder) = start(&["--runtime-class", "nvidia"]);
    let shared = pod("kai-scheduler", json!({"gpu-fraction": "0.5"}));
    let completed = webhook.review("/mutate--v1-pod", "CREATE", &shared, &Value::Null);
    assert_eq!(completed["allowed"], true);
    let patch = patch(&completed).to_string();
    assert!(
        patch.contains("apportion.dev~1gpu-slot") || patch.contains("apportion.dev/gpu-slot"),
        "{patch}"
    );
    assert!(patch.contains("/spec/runtimeClassName"), "{patch}");
    let judged = webhook.review("/validate--v1-pod", "CREATE", &shared, &Value::Null);
    assert_eq!(judged, json!({"uid": "42", "allowed": true}));
}

#[test]
fn a_refusal_has_kais_words() {
    let (webhook, _folder) = start(&[]);
    let wrong = pod("kai-scheduler", json!({"gpu-memory": "8Gi"}));
    let judged = webhook.review("/validate--v1-pod", "CREATE", &wrong, &Value::Null);
    let words = "gpu-memory annotation value must be a positive integer greater than 0";
    assert_eq!(
        judged,
        json!({"uid": "42", "allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": words}})
    );
    let missing = pod(
        "kai-scheduler",
        json!({"gpu-memory": "8", "gpu-fraction-container-name": "x"}),
    );
    let completed = webhook.review("/mutate--v1-pod", "CREATE", &missing, &Value::Null);
    let words = "failed to get fraction container ref: container with name x not found for fraction request";
    assert_eq!(completed["status"]["message"], words);
}

#[test]
fn a_limit_above_the_request_is_refused_or_charged_with_a_warning() {
    let growing = pod(
        "kai-scheduler",
        json!({"nvidia.com/container.main.gpu-memory.request": "10Gi",
            "nvidia.com/container.main.gpu-memory.limit": "40Gi"}),
    );
    let (webhook, _folder) = start(&[]);
    let judged = webhook.review("/validate--v1-pod", "CREATE", &growing, &Value::Null);
    assert_eq!(judged["allowed"], false);
    let message = judged["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("a share does not grow here"), "{message}");

    let (webhook, _folder) = start(&["--request-below-limit", "charge-limit"]);
    let judged = webhook.review("/validate--v1-pod", "CREATE", &growing, &Value::Null);
    assert_eq!(judged["allowed"], true);
    let warning = judged["warnings"][0].as_str().unwrap_or_default();
    let words = "nvidia.com/container.main.gpu-memory.limit (40Gi) is scheduled and charged, not nvidia.com";
    assert!(warning.starts_with(words), "{warning}");
    let relabelled = webhook.review("/validate--v1-pod", "UPDATE", &growing, &growing);
    assert_eq!(relabelled, json!({"uid": "42", "allowed": true}));

    let (webhook, _folder) = start(&["--request-below-limit", "burst"]);
    let judged = webhook.review("/validate--v1-pod", "CREATE", &growing, &Value::Null);
    assert_eq!(judged["allowed"], true);
    let completed = webhook.review("/mutate--v1-pod", "CREATE", &growing, &Value::Null);
    assert_eq!(completed["allowed"], true);
    assert!(completed["patch"].is_string(), "{completed}");
}

#[test]
fn the_pods_of_other_schedulers_are_nobodys_business() {
    let (webhook, _folder) = start(&["--block-visible-devices", "--no-sharing"]);
    let other = pod(
        "default-scheduler",
        json!({"gpu-memory": "8Gi", "gpu-fraction": "7"}),
    );
    for path in ["/mutate--v1-pod", "/validate--v1-pod"] {
        let response = webhook.review(path, "CREATE", &other, &Value::Null);
        assert_eq!(response, json!({"uid": "42", "allowed": true}), "{path}");
    }
}

#[test]
fn a_bound_pod_keeps_its_request() {
    let (webhook, _folder) = start(&[]);
    let bound = |fraction: &str| {
        let mut pod = pod("kai-scheduler", json!({"gpu-fraction": fraction}));
        pod["spec"]["nodeName"] = json!("node-7");
        pod
    };
    let judged = webhook.review("/validate--v1-pod", "UPDATE", &bound("0.01"), &bound("0.9"));
    let words = judged["status"]["message"].as_str().unwrap_or_default();
    assert!(
        words.starts_with(
            "annotation gpu-fraction of pod lab/train-0 cannot change from \"0.9\" to \"0.01\""
        ),
        "{words}"
    );
    assert_eq!(
        webhook.review("/validate--v1-pod", "UPDATE", &bound("0.9"), &bound("0.9"))["allowed"],
        true
    );
}

#[test]
fn queues_groups_and_topologies_are_judged() {
    let (webhook, _folder) = start(&[]);
    let queue = json!({"metadata": {"name": "lab"}, "spec": {}});
    let judged = webhook.review(
        "/validate-scheduling-run-ai-v2-queue",
        "CREATE",
        &queue,
        &Value::Null,
    );
    assert_eq!(judged["status"]["message"], "resources must be specified");
    assert_eq!(judged["warnings"], json!(["resources must be specified"]));
    let group = json!({"spec": {"minMember": 2, "minSubGroup": 1}});
    let path = "/validate-scheduling-run-ai-v2alpha2-podgroup";
    let judged = webhook.review(path, "CREATE", &group, &Value::Null);
    let words = judged["status"]["message"].as_str().unwrap_or_default();
    assert!(
        words.starts_with("minMember and minSubGroup are mutually exclusive: set minMember (2)"),
        "{words}"
    );
    let topology = json!({"spec": {"levels": [{"nodeLabel": "a", "alias": "a"}]}});
    let path = "/validate-kai-scheduler-v1alpha1-topology";
    let judged = webhook.review(path, "UPDATE", &topology, &topology);
    let words = "invalid topology aliases: an alias must not equal a nodeLabel; conflicting: [a]";
    assert_eq!(judged["status"]["message"], words);
    assert_eq!(
        webhook.review(path, "DELETE", &Value::Null, &topology)["allowed"],
        true
    );
}

#[test]
fn what_is_no_review_is_answered_and_counted() {
    let (webhook, _folder) = start(&[]);
    assert!(
        webhook
            .post("/validate--v1-pod", "{")
            .contains("400 Bad Request")
    );
    assert!(webhook.post("/elsewhere", "{}").contains("404 Not Found"));
    webhook.review(
        "/validate--v1-pod",
        "CREATE",
        &pod("kai-scheduler", json!({})),
        &Value::Null,
    );
    let metrics = webhook.shows("/metrics");
    for line in [
        "apportion_admission_reviews_total{path=\"/validate--v1-pod\",answer=\"unreadable\"} 1",
        "apportion_admission_reviews_total{path=\"/validate--v1-pod\",answer=\"allowed\"} 1",
        "apportion_admission_review_seconds_count 2",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(webhook.shows("/healthz").contains("200 OK"));
}
