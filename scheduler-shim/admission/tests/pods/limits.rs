//! Limits above the request, and what KAI 0.18 and later let a pod request besides memory.

use apportion_abi::{Bytes, Share};
use apportion_admission::{
    AdmissionSettings, Pod, RequestBelowLimit, mutate, request, validate, validate_update, warnings,
};
use serde_json::{Value, json};

use crate::build::{pod, said, settings};

const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
const PORTION: &str = "kai.scheduler/container.main.gpu-memory.portion.limit";
const MARK: &str = "apportion.dev/gpu-memory-burst";
const MODE: &str = "nvidia.com/container.main.gpu-compute.mode";
const DEVICES: &str = "nvidia.com/container.main.gpus.devices";

fn charging() -> AdmissionSettings {
    AdmissionSettings {
        request_below_limit: RequestBelowLimit::ChargeLimit,
        ..settings()
    }
}

/// The shares of an admitted pod.
fn shares(annotations: Value) -> Vec<Share> {
    let asked = request::read(&pod(annotations)).expect("it is a request");
    asked.iter().map(|one| one.request.share).collect()
}

#[test]
fn a_request_that_is_the_limit_is_the_share() {
    let memory = |mib| vec![Share::Memory(Bytes::from_mib(mib))];
    for (annotations, expected) in [
        (json!({(REQUEST): "2Gi", (LIMIT): "2048Mi"}), memory(2048)),
        (json!({(REQUEST): "2Gi"}), memory(2048)),
        (json!({(LIMIT): "2Gi"}), memory(2048)),
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "2000Mi"}),
            memory(2000),
        ),
        // KAI 0.18 writes the annotation of the container into a pod with `gpu-memory`.
        (
            json!({"gpu-memory": "2048", (REQUEST): "2Gi"}),
            memory(2048),
        ),
        // If both are present, KAI takes the container's.
        (
            json!({"gpu-fraction": "0.5", (REQUEST): "2Gi"}),
            memory(2048),
        ),
        (
            json!({"gpu-memory": "2048", (MODE): "time-slicing"}),
            memory(2048),
        ),
    ] {
        assert_eq!(
            said(&pod(annotations.clone()), &settings()),
            "",
            "{annotations}"
        );
        assert_eq!(shares(annotations.clone()), expected, "{annotations}");
    }
}

#[test]
fn a_limit_above_the_request_is_refused_or_charged() {
    let half_more = Share::Fraction("0.75".parse().unwrap());
    let memory = |mib| Share::Memory(Bytes::from_mib(mib));
    for (annotations, request, limit, share) in [
        (
            json!({(REQUEST): "10Gi", (LIMIT): "40Gi"}),
            format!("{REQUEST} (10Gi)"),
            format!("{LIMIT} (40Gi)"),
            memory(40 << 10),
        ),
        (
            json!({"gpu-fraction": "0.5", (PORTION): "0.75"}),
            "gpu-fraction (0.5)".to_owned(),
            format!("{PORTION} (0.75)"),
            half_more,
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.75"}),
            "gpu-fraction (0.5)".to_owned(),
            "gpu-fraction.limit (0.75)".to_owned(),
            half_more,
        ),
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "4000Mi"}),
            "gpu-memory (2000 MiB)".to_owned(),
            "gpu-memory.limit (4000Mi)".to_owned(),
            memory(4000),
        ),
    ] {
        let pod = pod(annotations.clone());
        let refused = said(&pod, &settings());
        let words = format!("{request} is below {limit}: a share does not grow here");
        assert!(refused.starts_with(&words), "{refused}");
        assert_eq!(said(&pod, &charging()), "", "{annotations}");
        let [warning] = warnings(&pod).try_into().expect("one warning");
        let words = format!("{limit} is scheduled and charged, not {request}");
        assert!(warning.starts_with(&words), "{warning}");
        assert_eq!(shares(annotations), [share]);
    }
    assert_eq!(
        warnings(&pod(json!({(REQUEST): "2Gi", (LIMIT): "2Gi"}))),
        [""; 0]
    );
}

fn bursting() -> AdmissionSettings {
    AdmissionSettings {
        request_below_limit: RequestBelowLimit::Burst,
        count_shares: true,
        ..settings()
    }
}

#[test]
fn where_pods_may_burst_the_request_is_guaranteed_and_counted() {
    let memory = |mib| Share::Memory(Bytes::from_mib(mib));
    let fraction = |text: &str| Share::Fraction(text.parse().unwrap());
    for (annotations, request, limit, counted) in [
        (
            json!({(REQUEST): "10Gi", (LIMIT): "40Gi"}),
            memory(10 << 10),
            memory(40 << 10),
            ("apportion.dev/gpu-share-mib", "10240"),
        ),
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "4000Mi"}),
            memory(2000),
            memory(4000),
            ("apportion.dev/gpu-share-mib", "2000"),
        ),
        (
            json!({"gpu-fraction": "0.5", (PORTION): "0.75"}),
            fraction("0.5"),
            fraction("0.75"),
            ("apportion.dev/gpu-share-micro", "499875"),
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.75"}),
            fraction("0.5"),
            fraction("0.75"),
            ("apportion.dev/gpu-share-micro", "499875"),
        ),
    ] {
        let mut pod = pod(annotations.clone());
        mutate(&mut pod, &bursting(), 1).unwrap();
        assert_eq!(said(&pod, &bursting()), "", "{annotations}");
        assert_eq!(warnings(&pod), [""; 0]);
        let [asked] = request::read(&pod).unwrap().try_into().unwrap();
        assert_eq!((asked.request.share, asked.limit), (request, Some(limit)));
        let (resource, amount) = counted;
        let limits = &pod.spec.containers[0].resources.limits;
        assert_eq!(limits[resource], amount, "{annotations}");
    }
}

#[test]
fn a_pod_that_may_burst_is_guaranteed_at_least_the_smallest_share() {
    for annotations in [
        json!({"gpu-memory": "1", "gpu-memory.limit": "4Gi"}),
        json!({(REQUEST): "1Mi", (LIMIT): "4Gi"}),
    ] {
        let refused = said(&pod(annotations), &bursting());
        let words = "is less than 2 MiB, the smallest share";
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn only_the_webhook_says_that_a_pod_may_burst() {
    let by_hand = json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi", (MARK): "true"});
    let mut completed = pod(by_hand.clone());
    mutate(&mut completed, &charging(), 1).unwrap();
    assert!(!completed.metadata.annotations.contains_key(MARK));
    assert_eq!(said(&completed, &charging()), "");
    let words = "may only be written by the webhook";
    let edited = validate_update(&completed, &pod(by_hand.clone()), &charging());
    assert!(edited.unwrap_err().to_string().contains(words));
    // Nor does the mark change a pod that runs.
    let bound = |annotations: &Value| {
        let mut pod = pod(annotations.clone());
        pod.spec.node_name = "node-7".to_owned();
        pod
    };
    let mut unmarked = by_hand.clone();
    unmarked.as_object_mut().unwrap().remove(MARK);
    for (old, new) in [(&by_hand, &unmarked), (&unmarked, &by_hand)] {
        let refused = validate_update(&bound(old), &bound(new), &bursting());
        let words = refused.unwrap_err().to_string();
        assert!(words.contains(MARK), "{words}");
    }
}

#[test]
fn a_pod_without_a_limit_is_not_marked() {
    for annotations in [
        json!({"gpu-memory": "2000"}),
        json!({"gpu-memory": "2000", "gpu-memory.limit": "2000Mi"}),
        json!({(REQUEST): "2Gi", (LIMIT): "2Gi"}),
        json!({}),
    ] {
        let mut completed = pod(annotations);
        mutate(&mut completed, &bursting(), 1).unwrap();
        assert!(!completed.metadata.annotations.contains_key(MARK));
    }
}

#[test]
fn limits_have_kais_form() {
    for (annotations, words) in [
        (
            json!({(PORTION): "0.5"}),
            format!("{PORTION} annotation can only be used together with the gpu-fraction annotation"),
        ),
        (
            json!({"gpu-memory.limit": "1Gi", "gpu-fraction": "0.5"}),
            "gpu-memory.limit annotation can only be used together with the gpu-memory annotation"
                .to_owned(),
        ),
        (
            json!({"gpu-fraction": "0.5", (PORTION): "0.5"}),
            format!("{PORTION} annotation value (0.5) must be greater than gpu-fraction annotation value (0.5)"),
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "1.0"}),
            "gpu-fraction.limit annotation value must be a positive number smaller than 1.0"
                .to_owned(),
        ),
        (
            json!({"gpu-fraction": "0.5", (PORTION): "0.555555"}),
            format!("{PORTION} annotation value must have at most 5 digits after the decimal point"),
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "side", (PORTION): "0.6"}),
            format!("{PORTION} annotation is for a container that does not get the share: side gets it"),
        ),
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "4000"}),
            "gpu-memory.limit annotation value must be a positive Kubernetes memory quantity with a unit".to_owned(),
        ),
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "1Gi"}),
            "gpu-memory.limit annotation value (1Gi) must not be smaller than gpu-memory annotation value (2000 MiB)".to_owned(),
        ),
        (
            json!({"gpu-memory": "2000", (REQUEST): "1Gi"}),
            "NvFractions memory request (1Gi) does not match gpu-memory annotation value (2000 MiB)".to_owned(),
        ),
        (
            json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi", (LIMIT): "5Gi"}),
            format!("gpu-memory.limit annotation conflicts with {LIMIT} annotation"),
        ),
        (
            json!({"gpu-fraction-container-name": "side", "gpu-memory": "1024", (REQUEST): "1Gi"}),
            "gpu-fraction-container-name annotation value side does not match container name main".to_owned(),
        ),
    ] {
        for settings in [settings(), charging(), bursting()] {
            assert_eq!(said(&pod(annotations.clone()), &settings), words, "{annotations}");
        }
    }
}

#[test]
fn what_a_share_cannot_do_is_refused_in_words() {
    for (key, value, words) in [
        (
            MODE,
            "sm-sharing",
            format!("{MODE} sm-sharing needs NVIDIA's Multi-Process Service"),
        ),
        (
            "kai.scheduler/gpu-compute-sharing-mode",
            "sm-sharing",
            "kai.scheduler/gpu-compute-sharing-mode sm-sharing needs".to_owned(),
        ),
        (
            MODE,
            "warp-speed",
            "invalid NvFractions compute mode: warp-speed".to_owned(),
        ),
        (
            "nvidia.com/container.main.gpu-compute.request",
            "0.5",
            "nvidia.com/container.main.gpu-compute.request is not supported: a share limits GPU memory".to_owned(),
        ),
        (
            DEVICES,
            "GPU-0",
            format!("{DEVICES} may only be written by KAI's binder"),
        ),
        (
            "nvidia.com/container.main.gpu-compute.portion",
            "1",
            "nvidia.com/container.main.gpu-compute.portion may only be written by KAI's binder".to_owned(),
        ),
        (
            "nvidia.com/container.main.gpu-memory",
            "1Gi",
            "invalid NvFractions annotation key: nvidia.com/container.main.gpu-memory".to_owned(),
        ),
        (
            "nvidia.com/container..gpu-memory.limit",
            "1Gi",
            "invalid NvFractions annotation key: nvidia.com/container..gpu-memory.limit".to_owned(),
        ),
    ] {
        let refused = said(&pod(json!({"gpu-memory": "1024", (key): value})), &charging());
        assert!(refused.starts_with(&words), "{refused}");
    }
}

#[test]
fn a_running_pod_keeps_what_kais_binder_wrote() {
    let annotations = json!({"gpu-fraction": "0.5", (REQUEST): "8Gi", (LIMIT): "12Gi", (PORTION): "0.75", (DEVICES): "GPU-0"});
    let bound = |annotations: &Value| -> Pod {
        let mut pod = pod(annotations.clone());
        pod.spec.node_name = "node-7".to_owned();
        pod
    };
    assert_eq!(
        shares(annotations.clone()),
        [Share::Memory(Bytes::from_mib(12 << 10))]
    );
    let before = bound(&annotations);
    let mut labelled = before.clone();
    labelled
        .metadata
        .labels
        .insert("a".to_owned(), "b".to_owned());
    assert_eq!(validate_update(&before, &labelled, &settings()), Ok(()));
    for key in [DEVICES, PORTION, LIMIT] {
        let mut other = annotations.clone();
        other[key] = "0.9".into();
        let refused = validate_update(&before, &bound(&other), &settings());
        let words = refused.unwrap_err().to_string();
        assert!(
            words.starts_with(&format!("annotation {key} of pod")),
            "{words}"
        );
    }
    assert!(validate(&before, &settings()).is_err());
}
