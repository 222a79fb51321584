//! What may change in an existing pod.

use apportion_admission::{AdmissionSettings, Pod, validate_update};
use serde_json::{Value, json};

use crate::build::{limited, pod, settings};

#[test]
fn a_bound_pod_keeps_what_it_asked_for() {
    let bound = |fraction: &str| {
        let mut pod = pod(json!({"gpu-fraction": fraction, "note": fraction}));
        pod.spec.node_name = "node-7".to_owned();
        pod
    };
    let words = validate_update(&bound("0.9"), &bound("0.01"), &settings())
        .unwrap_err()
        .to_string();
    assert_eq!(
        words,
        "annotation gpu-fraction of pod lab/train-0 cannot change from \"0.9\" to \"0.01\": the pod is bound to node node-7 and keeps its share there; delete the pod and create it anew"
    );
    let mut noted = bound("0.9");
    noted
        .metadata
        .annotations
        .insert("note".to_owned(), "other".to_owned());
    assert_eq!(validate_update(&bound("0.9"), &noted, &settings()), Ok(()));
    let mut gone = noted.clone();
    gone.metadata.annotations.clear();
    assert!(validate_update(&noted, &gone, &settings()).is_err());
    let mut over = bound("0.9");
    over.status.phase = "Succeeded".to_owned();
    assert_eq!(validate_update(&over, &bound("0.01"), &settings()), Ok(()));
}

/// A pod that the scheduler has bound with this request.
fn placed(annotations: Value, limits: Value) -> Pod {
    let mut pod = limited(annotations.clone(), limits);
    pod.spec.node_name = "node-7".to_owned();
    let memory = annotations["gpu-memory"].as_str();
    let text = memory.map_or("gpu-fraction=0.5".to_owned(), |mib| {
        format!("gpu-memory={mib}")
    });
    let annotations = &mut pod.metadata.annotations;
    annotations.insert("apportion.dev/allocated".to_owned(), text);
    pod
}

/// What is said about a change of one annotation; nothing if it is admitted.
fn said(old: &Pod, key: &str, value: Option<&str>) -> String {
    let mut new = old.clone();
    match value {
        Some(value) => new
            .metadata
            .annotations
            .insert(key.to_owned(), value.to_owned()),
        None => new.metadata.annotations.remove(key),
    };
    let judged = validate_update(old, &new, &settings());
    judged.map_or_else(|refusal| refusal.to_string(), |()| String::new())
}

#[test]
fn a_pod_that_the_scheduler_has_bound_can_be_resized() {
    let memory = placed(json!({"gpu-memory": "2000"}), json!({}));
    for size in ["3000", "2"] {
        assert_eq!(said(&memory, "gpu-memory", Some(size)), "", "{size}");
    }
    let half = placed(
        json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
        json!({}),
    );
    assert_eq!(said(&half, "gpu-fraction", Some("0.25")), "");
    // The rules are those of a new pod.
    assert_eq!(
        said(&memory, "gpu-memory", Some("3Gi")),
        "gpu-memory annotation value must be a positive integer greater than 0"
    );
    assert_eq!(
        said(&half, "gpu-fraction", Some("1.5")),
        "gpu-fraction annotation value must be a positive number smaller than 1.0"
    );
}

#[test]
fn the_kind_and_the_number_of_the_gpus_of_a_bound_pod_stay() {
    let half = placed(
        json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
        json!({}),
    );
    let keeps = ": the pod is bound to node node-7, where only the value of gpu-fraction can change; delete the pod and create it anew";
    for (key, value, change) in [
        ("gpu-fraction-num-devices", Some("3"), "from \"2\" to \"3\""),
        ("gpu-fraction-num-devices", None, "from \"2\" to nothing"),
        ("gpu-memory", Some("2000"), "from nothing to \"2000\""),
        ("gpu-fraction", None, "from \"0.5\" to nothing"),
        ("gpu-fraction.limit", Some("0.7"), "from nothing to \"0.7\""),
        (
            "gpu-fraction-container-name",
            Some("side"),
            "from nothing to \"side\"",
        ),
    ] {
        let words = format!("annotation {key} of pod lab/train-0 cannot change {change}{keeps}");
        assert_eq!(said(&half, key, value), words);
    }
}

#[test]
fn a_share_that_a_quota_counts_keeps_its_size() {
    let limits = json!({"apportion.dev/gpu-share-mib": "2000"});
    let counted = placed(json!({"gpu-memory": "2000"}), limits);
    assert_eq!(
        said(&counted, "gpu-memory", Some("3000")),
        "annotation gpu-memory of pod lab/train-0 cannot change from \"2000\" to \"3000\": its container main requests 2000 of apportion.dev/gpu-share-mib, which Kubernetes cannot change while the pod runs; delete the pod and create it anew"
    );
}

#[test]
fn the_card_of_a_bound_pod_is_named_once() {
    let mut bound = pod(json!({"gpu-fraction": "0.5"}));
    bound.spec.node_name = "node-7".to_owned();
    let mut adopted = bound.clone();
    adopted
        .metadata
        .labels
        .insert("runai-gpu-group".to_owned(), "a".to_owned());
    assert_eq!(validate_update(&bound, &adopted, &settings()), Ok(()));
    let mut moved = adopted.clone();
    moved
        .metadata
        .labels
        .insert("runai-gpu-group".to_owned(), "b".to_owned());
    assert!(validate_update(&adopted, &moved, &settings()).is_err());
}

#[test]
fn what_an_update_leaves_alone_is_not_judged_again() {
    let off = AdmissionSettings {
        sharing: false,
        ..settings()
    };
    let wrong = pod(json!({"gpu-fraction": "7"}));
    let mut labelled = wrong.clone();
    labelled
        .metadata
        .labels
        .insert("a".to_owned(), "b".to_owned());
    assert_eq!(validate_update(&wrong, &labelled, &off), Ok(()));
    let mut ending = pod(json!({"gpu-fraction": "8"}));
    ending.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert_eq!(validate_update(&wrong, &ending, &off), Ok(()));
    assert!(validate_update(&wrong, &pod(json!({"gpu-fraction": "8"})), &settings()).is_err());
    assert_eq!(
        validate_update(&wrong, &pod(json!({"gpu-fraction": "0.5"})), &settings()),
        Ok(())
    );
}
