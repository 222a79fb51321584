//! What may change in an existing pod.

use apportion_admission::{AdmissionSettings, validate_update};
use serde_json::json;

use crate::build::{pod, settings};

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
