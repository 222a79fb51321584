//! Shares as Kubernetes resources.

use apportion_admission::{AdmissionSettings, Pod, mutate};
use serde_json::{Value, json};

use crate::build::{limited, pod, said, settings};

const MIB: &str = "apportion.dev/gpu-share-mib";
const MICRO: &str = "apportion.dev/gpu-share-micro";

fn counting() -> AdmissionSettings {
    AdmissionSettings {
        count_shares: true,
        ..settings()
    }
}

/// What the containers of a pod request after mutation, in the order main, side, fetch.
fn requested(annotations: Value) -> [Value; 3] {
    let mut pod = pod(annotations);
    mutate(&mut pod, &counting(), 1).expect("it can be completed");
    assert_eq!(said(&pod, &counting()), "");
    let of = |container: &apportion_admission::Container| {
        let resources = &container.resources;
        assert_eq!(
            resources.limits.get(MIB),
            resources.requests.get(MIB),
            "extended resources are never overcommitted"
        );
        let [mib, micro] = [MIB, MICRO].map(|name| resources.limits.get(name).cloned());
        mib.map_or_else(
            || micro.map_or(Value::Null, |micro| json!({"micro": micro})),
            |mib| json!({"mib": mib}),
        )
    };
    [
        of(&pod.spec.containers[0]),
        of(&pod.spec.containers[1]),
        of(&pod.spec.init_containers[0]),
    ]
}

#[test]
fn a_container_requests_what_its_annotations_ask_for() {
    let none = Value::Null;
    for (annotations, expected) in [
        (
            json!({"gpu-memory": "2000"}),
            [json!({"mib": "2000"}), none.clone(), none.clone()],
        ),
        // A share is a whole number of 2 MiB.
        (
            json!({"gpu-memory": "2001"}),
            [json!({"mib": "2000"}), none.clone(), none.clone()],
        ),
        (
            json!({"gpu-memory": "2000", "gpu-fraction-num-devices": "3", "gpu-fraction-container-name": "fetch"}),
            [none.clone(), none.clone(), json!({"mib": "6000"})],
        ),
        (
            json!({"gpu-fraction": "0.3339"}),
            [json!({"micro": "333775"}), none.clone(), none.clone()],
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
            [json!({"micro": "999750"}), none.clone(), none.clone()],
        ),
        (
            json!({"gpu-fraction": "0.0001"}),
            [none.clone(), none.clone(), none.clone()],
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "2Gi", "nvidia.com/container.side.gpu-memory.limit": "1Gi"}),
            [json!({"mib": "2048"}), json!({"mib": "1024"}), none.clone()],
        ),
        (json!({}), [none.clone(), none.clone(), none]),
    ] {
        assert_eq!(requested(annotations.clone()), expected, "{annotations}");
    }
}

#[test]
fn nobody_is_counted_for_another_amount_than_the_share() {
    let with = |annotations: Value, limits: Value| -> Pod {
        let mut pod = limited(annotations, limits);
        // An amount that was set by hand is kept, and reported by validation.
        let _ = mutate(&mut pod, &counting(), 1);
        pod
    };
    let memory = json!({"gpu-memory": "2000"});
    for limits in [
        json!({(MIB): "2000"}),
        json!({(MIB): 2000}),
        json!({(MIB): "2k"}),
    ] {
        assert_eq!(
            said(&with(memory.clone(), limits.clone()), &settings()),
            "",
            "{limits}"
        );
    }
    for (annotations, limits, words) in [
        (
            memory.clone(),
            json!({(MIB): "100"}),
            "container main requests 100 of apportion.dev/gpu-share-mib, but its share counts 2000",
        ),
        (
            memory.clone(),
            json!({(MIB): "many"}),
            "container main requests many of apportion.dev/gpu-share-mib, but its share counts 2000",
        ),
        (
            memory,
            json!({(MICRO): 499875}),
            "container main requests 499875 of apportion.dev/gpu-share-micro, but its share counts 0",
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "side"}),
            json!({(MICRO): "499875"}),
            "container main requests 499875 of apportion.dev/gpu-share-micro, but its share counts 0",
        ),
        (
            json!({"gpu-fraction-container-name": "main"}),
            json!({(MIB): "1"}),
            "container main requests 1 of apportion.dev/gpu-share-mib, but its share counts 0",
        ),
    ] {
        for settings in [settings(), counting()] {
            let refused = said(&with(annotations.clone(), limits.clone()), &settings);
            assert!(refused.starts_with(words), "{refused}");
        }
    }
}

#[test]
fn shares_are_counted_only_where_that_is_asked_for() {
    let mut pod = pod(json!({"gpu-memory": "2000"}));
    mutate(&mut pod, &settings(), 1).unwrap();
    let limits = &pod.spec.containers[0].resources.limits;
    assert_eq!(limits.keys().collect::<Vec<_>>(), ["example.com/slot"]);
}
