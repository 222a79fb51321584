//! What may change in an existing pod.

use apportion_admission::resize::{read_text, request_text};
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

const MARK: &str = "apportion.dev/gpu-memory-burst";
const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";

/// A pod that may burst, and that the scheduler has bound with this request.
fn elastic(mut annotations: Value, limits: Value) -> Pod {
    let asked = annotations.as_object().expect("it is a map").clone();
    annotations[MARK] = "true".into();
    let mut pod = limited(annotations, limits);
    pod.spec.node_name = "node-7".to_owned();
    let text = asked
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().expect("it is text")));
    let text = text.collect::<Vec<_>>().join(",");
    let annotations = &mut pod.metadata.annotations;
    annotations.insert("apportion.dev/allocated".to_owned(), text);
    pod
}

/// What is said about a change of several annotations; `null` removes one.
fn said_of(old: &Pod, changes: Value) -> String {
    let mut new = old.clone();
    let all = &mut new.metadata.annotations;
    for (key, value) in changes.as_object().expect("it is a map") {
        match value.as_str() {
            Some(value) => all.insert(key.clone(), value.to_owned()),
            None => all.remove(key),
        };
    }
    // What the cluster says about new pods by now does not matter.
    let judged = validate_update(old, &new, &settings());
    judged.map_or_else(|refusal| refusal.to_string(), |()| String::new())
}

#[test]
fn the_request_and_the_limit_of_a_pod_that_may_burst_can_change_in_each_form() {
    let portion = "kai.scheduler/container.main.gpu-memory.portion.limit";
    for (pod, changes) in [
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi"}),
            vec![
                json!({"gpu-memory": "3000"}),
                json!({"gpu-memory.limit": "12Gi"}),
                json!({"gpu-memory": "5000", "gpu-memory.limit": "8Gi"}),
                json!({"gpu-memory.limit": null}),
                json!({"gpu-memory": "4096"}),
            ],
        ),
        (
            json!({"gpu-memory": "2000"}),
            vec![json!({"gpu-memory.limit": "4Gi"})],
        ),
        (
            json!({"gpu-fraction": "0.25", "gpu-fraction.limit": "0.75"}),
            vec![
                json!({"gpu-fraction": "0.5"}),
                json!({"gpu-fraction.limit": "0.5"}),
                json!({"gpu-fraction.limit": null}),
                json!({"gpu-fraction.limit": null, (portion): "0.5"}),
            ],
        ),
        (
            json!({(REQUEST): "2Gi", (LIMIT): "4Gi"}),
            vec![
                json!({(REQUEST): "1Gi"}),
                json!({(LIMIT): "8Gi"}),
                json!({(REQUEST): null}),
                json!({(LIMIT): null}),
            ],
        ),
    ] {
        let old = elastic(pod, json!({}));
        for change in changes {
            assert_eq!(said_of(&old, change.clone()), "", "{change}");
        }
    }
}

#[test]
fn a_pod_that_may_burst_keeps_the_rest_of_its_request_and_the_rules_of_a_new_pod() {
    let old = elastic(
        json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi"}),
        json!({}),
    );
    let keeps = "where only how much it requests and its limit can change";
    let named = elastic(json!({(REQUEST): "2Gi", (LIMIT): "4Gi"}), json!({}));
    let other = "nvidia.com/container.side.gpu-memory.limit";
    for (pod, change, words) in [
        (
            &old,
            json!({"gpu-memory": null, "gpu-fraction": "0.5", "gpu-memory.limit": null}),
            keeps,
        ),
        (&old, json!({"gpu-fraction-num-devices": "2"}), keeps),
        (&old, json!({(REQUEST): "2000Mi"}), keeps),
        (&old, json!({(MARK): null}), keeps),
        (&named, json!({(other): "1Gi"}), keeps),
        (&named, json!({(REQUEST): null, (LIMIT): null}), keeps),
        (
            &old,
            json!({"gpu-memory.limit": "1Gi"}),
            "must not be smaller than",
        ),
        (
            &old,
            json!({"gpu-memory": "1"}),
            "less than 2 MiB, the smallest share",
        ),
        (&named, json!({(LIMIT): "1Gi"}), REQUEST),
    ] {
        let said = said_of(pod, change.clone());
        assert!(said.contains(words), "{change}: {said}");
    }
    let mut unknown = old.clone();
    unknown
        .metadata
        .annotations
        .remove("apportion.dev/allocated");
    let said = said_of(&unknown, json!({"gpu-memory.limit": "8Gi"}));
    assert!(said.contains("keeps its share there"), "{said}");
}

#[test]
fn a_fixed_pod_gets_no_limit_and_nobody_writes_the_mark() {
    let fixed = placed(json!({"gpu-memory": "2000"}), json!({}));
    let said = said_of(&fixed, json!({"gpu-memory.limit": "4Gi"}));
    assert!(
        said.contains("only the value of gpu-memory can change"),
        "{said}"
    );
    let said = said_of(&fixed, json!({(MARK): "true"}));
    assert!(said.contains(MARK), "{said}");
    let waiting = pod(json!({"gpu-memory": "2000"}));
    for change in [
        json!({(MARK): "true"}),
        json!({(MARK): "true", "gpu-memory.limit": "4Gi"}),
    ] {
        let said = said_of(&waiting, change);
        assert!(
            said.contains("may only be written by the webhook"),
            "{said}"
        );
    }
}

#[test]
fn a_limit_changes_where_a_quota_counts_the_request() {
    let limits = json!({"apportion.dev/gpu-share-mib": "2000"});
    let counted = elastic(
        json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi"}),
        limits,
    );
    assert_eq!(said_of(&counted, json!({"gpu-memory.limit": "8Gi"})), "");
    let said = said_of(&counted, json!({"gpu-memory": "3000"}));
    let words = "requests 2000 of apportion.dev/gpu-share-mib, which Kubernetes cannot change";
    assert!(said.contains(words), "{said}");
}

#[test]
fn the_text_of_a_request_has_all_amounts_of_a_pod_that_may_burst() {
    let text = |annotations: Value| {
        let pod = pod(annotations);
        let all = pod.metadata.annotations.iter();
        request_text(all.map(|(key, value)| (key.as_str(), value.as_str())))
    };
    let both = json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi", "note": "x"});
    assert_eq!(text(both.clone()).as_deref(), Some("gpu-memory=2000"));
    let mut marked = both;
    marked[MARK] = "true".into();
    assert_eq!(
        text(marked).as_deref(),
        Some("gpu-memory=2000,gpu-memory.limit=4Gi")
    );
    let named = json!({(REQUEST): "2Gi", (LIMIT): "4Gi", (MARK): "true"});
    let said = text(named).unwrap();
    assert_eq!(said, format!("{LIMIT}=4Gi,{REQUEST}=2Gi"));
    assert_eq!(read_text(&said).unwrap().len(), 2);
    for (annotations, expected) in [
        (json!({(REQUEST): "2Gi"}), None),
        (
            json!({"gpu-memory": "2000", "gpu-fraction": "0.5", (MARK): "true"}),
            None,
        ),
        (json!({"note": "x", (MARK): "true"}), None),
    ] {
        assert_eq!(text(annotations), expected);
    }
    for text in ["", "gpu-memory", "gpu-memory=1,note=2", "note=1"] {
        assert_eq!(read_text(text), None, "{text}");
    }
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
