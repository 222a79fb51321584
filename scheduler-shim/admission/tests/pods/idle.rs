//! Pods that are suspended when they are idle.

use apportion_admission::{names, validate_update, warnings};
use serde_json::json;

use crate::build::{limited, pod, said, settings};

const IDLE: &str = "apportion.dev/suspend-when-idle";
const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const OTHER: &str = "nvidia.com/container.side.gpu-memory.request";

#[test]
fn a_pod_with_a_share_in_any_form_may_be_suspended_when_it_is_idle() {
    for share in [
        json!({"gpu-memory": "2000", (IDLE): "10m"}),
        json!({"gpu-fraction": "0.5", (IDLE): "1h30m"}),
        json!({(REQUEST): "2Gi", (IDLE): "10s"}),
        json!({(REQUEST): "2Gi", (OTHER): "1Gi", (IDLE): "90s"}),
    ] {
        let pod = pod(share.clone());
        assert_eq!(said(&pod, &settings()), "", "{share}");
        assert_eq!(warnings(&pod), [""; 0], "{share}");
    }
}

#[test]
fn what_is_no_time_is_refused_in_one_line() {
    for (text, words) in [
        ("soon", "\"soon\" is not a duration such as 90s, 30m or 12h"),
        ("", "\"\" is not a duration such as 90s, 30m or 12h"),
        ("600", "\"600\" is not a duration such as 90s, 30m or 12h"),
        ("-10m", "\"-10m\" is not a duration such as 90s, 30m or 12h"),
        (
            "1d",
            "\"1d\" is not a duration such as 90s, 30m or 12h (write 24h0m0s)",
        ),
        (
            "0s",
            "\"0s\" is no time; a pod without the annotation is never suspended when it is idle",
        ),
    ] {
        let pod = pod(json!({"gpu-memory": "2000", (IDLE): text}));
        assert_eq!(said(&pod, &settings()), format!("{IDLE} {words}"));
    }
}

#[test]
fn a_pod_without_a_share_is_refused() {
    let whole = json!({"nvidia.com/gpu": "1"});
    for pod in [
        pod(json!({(IDLE): "10m"})),
        limited(json!({(IDLE): "10m"}), whole),
    ] {
        let said = said(&pod, &settings());
        assert!(said.starts_with(&format!("{IDLE} needs a share")), "{said}");
    }
}

#[test]
fn a_time_below_the_usual_minimum_is_admitted_with_a_warning() {
    let pod = pod(json!({"gpu-memory": "2000", (IDLE): "1500ms"}));
    assert_eq!(said(&pod, &settings()), "");
    let [warning] = warnings(&pod).try_into().expect("one warning");
    assert_eq!(
        warning,
        format!(
            "{IDLE} 1.5s is shorter than what agents accept unless their --suspend-when-idle-min is lower: they suspend the pod after 10s"
        )
    );
}

#[test]
fn a_bound_pod_keeps_its_time() {
    let mut old = pod(json!({"gpu-memory": "2000", (IDLE): "10m"}));
    old.spec.node_name = "node-7".to_owned();
    let annotations = &mut old.metadata.annotations;
    annotations.insert(names::ALLOCATED.to_owned(), "gpu-memory=2000".to_owned());
    for changed in [Some("20m"), None] {
        let mut new = old.clone();
        match changed {
            Some(time) => new
                .metadata
                .annotations
                .insert(IDLE.to_owned(), time.to_owned()),
            None => new.metadata.annotations.remove(IDLE),
        };
        let said = validate_update(&old, &new, &settings());
        let said = said.map_or_else(|refusal| refusal.to_string(), |()| String::new());
        let to = changed.map_or("nothing".to_owned(), |time| format!("{time:?}"));
        assert_eq!(
            said,
            format!(
                "annotation {IDLE} of pod lab/train-0 cannot change from \"10m\" to {to}: the pod is bound to node node-7, where only the value of gpu-memory can change; delete the pod and create it anew"
            )
        );
    }
}
