//! A running pod whose request is no longer the one that its share was given for.
//!
//! The request on the pod is desired, `apportion.dev/allocated` is what was given, as `spec` and `status` are for CPU
//! and memory in Kubernetes. Until the scheduler has allocated the new size, the pod counts with the old one.

use apportion_abi::Share;
use apportion_abi::names::{ANNOTATION_ALLOCATED, ANNOTATION_BURST};
use apportion_admission::limits::MAY;
use apportion_admission::resize::{SizeSubject, read_text, request_text};
use apportion_groups::ObjectView;
use apportion_policy::cluster::TaskGpuRequest;
use serde_json::Value;

use super::{pods, requests};

/// A change of a running pod's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeRequest {
    /// The request that its share was given for.
    pub allocated: String,
    /// Its request now; `None` if it has none, or has two.
    pub desired: Option<String>,
}

/// The request of a pod for a share in one text.
pub fn request(pod: ObjectView<'_>) -> Option<String> {
    let annotations = pod.json().pointer("/metadata/annotations")?.as_object()?;
    let texts = annotations.iter();
    let texts = texts.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    request_text(texts.filter(|(_, value)| !value.is_empty()))
}

/// The request that the share of a pod was given for.
pub fn allocated(pod: ObjectView<'_>) -> Option<&str> {
    pod.annotation(ANNOTATION_ALLOCATED)
}

/// The resize that a bound pod asks for.
pub fn pending(pod: ObjectView<'_>) -> Option<ResizeRequest> {
    let allocated = pods::node(pod).and(allocated(pod))?;
    let desired = request(pod);
    (desired.as_deref() != Some(allocated)).then(|| ResizeRequest {
        allocated: allocated.to_owned(),
        desired,
    })
}

/// What a pod requests of cards, if `text` was its request.
pub fn cards_for(pod: ObjectView<'_>, text: &str) -> Result<TaskGpuRequest, String> {
    requests::cards(ObjectView::new(&with_request(pod, text)?))
}

/// How much of each card a pod may use, if that is more than its share, and if `text` was its request.
pub fn limit_for(pod: ObjectView<'_>, text: &str) -> Option<Share> {
    requests::limit(ObjectView::new(&with_request(pod, text).ok()?))
}

/// How much of each card a bound pod may use, if that is more than its share: by the request that its share was given
/// for.
pub fn limit_given(pod: ObjectView<'_>) -> Option<Share> {
    pod.annotation(ANNOTATION_BURST)?;
    match pending(pod) {
        Some(resize) => limit_for(pod, &resize.allocated),
        None => requests::limit(pod),
    }
}

/// The pod with another request.
fn with_request(pod: ObjectView<'_>, text: &str) -> Result<Value, String> {
    let wrong = || format!("{text:?} is no request for a share");
    let amounts = read_text(text).ok_or_else(wrong)?;
    let mut changed = pod.read_apart().into_owned();
    let annotations = changed["metadata"]["annotations"].as_object_mut();
    let annotations = annotations.ok_or_else(wrong)?;
    // The text of a pod that may burst has all its amounts, that of another pod one.
    let bursts = pod.annotation(ANNOTATION_BURST) == Some(MAY);
    let now = request(pod);
    let now = now.as_deref().and_then(|now| now.split('=').next());
    annotations.retain(|key, _| {
        if bursts {
            SizeSubject::of(key).is_none()
        } else {
            Some(key.as_str()) != now
        }
    });
    for (key, value) in amounts {
        annotations.insert(key.to_owned(), value.into());
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cards;
    use apportion_abi::{Bytes, Share};

    fn bound(annotations: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "a", "annotations": annotations},
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]}});
        let annotations = &mut pod["metadata"]["annotations"];
        annotations["apportion.dev/cards"] = "GPU-1=2097152000".into();
        annotations["received-resource-type"] = "Fraction".into();
        pod
    }

    fn mib(mib: u64) -> TaskGpuRequest {
        TaskGpuRequest::Shared {
            share: Share::Memory(Bytes::from_mib(mib)),
            devices: 1,
        }
    }

    #[test]
    fn a_changed_request_is_desired_and_the_old_one_counts() {
        let pod =
            bound(json!({"gpu-memory": "3000", "apportion.dev/allocated": "gpu-memory=2000"}));
        let pod = ObjectView::new(&pod);
        let resize = pending(pod).unwrap();
        assert_eq!(resize.allocated, "gpu-memory=2000");
        assert_eq!(resize.desired.as_deref(), Some("gpu-memory=3000"));
        assert_eq!(cards::reserved(pod, requests::cards(pod)), Ok(mib(2000)));
        assert_eq!(cards_for(pod, "gpu-memory=3000"), Ok(mib(3000)));
        let half = cards_for(pod, "gpu-fraction=0.5").unwrap();
        assert!(
            matches!(
                half,
                TaskGpuRequest::Shared {
                    share: Share::Fraction(_),
                    ..
                }
            ),
            "{half:?}"
        );
        assert!(
            cards_for(pod, "gpu-memory=1")
                .unwrap_err()
                .contains("less than 2 MiB")
        );
        assert!(cards_for(pod, "note=1").is_err());
    }

    #[test]
    fn a_pod_that_may_burst_has_two_numbers_before_and_after() {
        let share = |gib: u64| Share::Memory(Bytes::from_mib(gib << 10));
        let (request, limit) = (
            "nvidia.com/container.main.gpu-memory.request",
            "nvidia.com/container.main.gpu-memory.limit",
        );
        for (annotations, allocated) in [
            (
                json!({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"}),
                "gpu-memory=3072,gpu-memory.limit=12Gi".to_owned(),
            ),
            (
                json!({(request): "4Gi", (limit): "8Gi"}),
                format!("{limit}=12Gi,{request}=3Gi"),
            ),
        ] {
            let mut pod = bound(annotations);
            let annotations = &mut pod["metadata"]["annotations"];
            annotations[ANNOTATION_BURST] = "true".into();
            annotations[ANNOTATION_ALLOCATED] = allocated.clone().into();
            let pod = ObjectView::new(&pod);
            let resize = pending(pod).unwrap();
            let desired = resize.desired.unwrap();
            assert_eq!(cards::reserved(pod, requests::cards(pod)), Ok(mib(3072)));
            assert_eq!(cards_for(pod, &desired), Ok(mib(4096)));
            assert_eq!(limit_given(pod), Some(share(12)));
            assert_eq!(limit_for(pod, &desired), Some(share(8)));
        }
        // Without a limit it is fixed, and can get one again.
        let mut fixed = bound(
            json!({"gpu-memory": "4096", "apportion.dev/allocated": "gpu-memory=4096,gpu-memory.limit=8Gi"}),
        );
        fixed["metadata"]["annotations"][ANNOTATION_BURST] = "true".into();
        let pod = ObjectView::new(&fixed);
        assert_eq!(
            pending(pod).unwrap().desired.as_deref(),
            Some("gpu-memory=4096")
        );
        assert_eq!(limit_for(pod, "gpu-memory=4096"), None);
        assert_eq!(limit_given(pod), Some(share(8)));
    }

    #[test]
    fn no_resize_is_pending_where_nothing_changed_or_nobody_wrote_what_was_given() {
        for annotations in [
            json!({"gpu-memory": "2000", "apportion.dev/allocated": "gpu-memory=2000"}),
            json!({"gpu-memory": "3000"}),
        ] {
            assert_eq!(pending(ObjectView::new(&bound(annotations))), None);
        }
        let mut waits =
            bound(json!({"gpu-memory": "3000", "apportion.dev/allocated": "gpu-memory=2000"}));
        waits["spec"]["nodeName"] = Value::Null;
        assert_eq!(pending(ObjectView::new(&waits)), None);
    }

    #[test]
    fn a_pod_counts_with_what_it_has_whatever_became_of_its_request() {
        let wrong =
            bound(json!({"gpu-memory": "lots", "apportion.dev/allocated": "gpu-memory=2000"}));
        let none = bound(json!({"apportion.dev/allocated": "gpu-memory=2000"}));
        let odd = bound(json!({"gpu-memory": "3000", "apportion.dev/allocated": "much"}));
        for pod in [wrong, none, odd] {
            let pod = ObjectView::new(&pod);
            assert!(pending(pod).is_some());
            assert_eq!(
                cards::reserved(pod, requests::cards(pod)),
                Ok(mib(2000)),
                "{pod:?}"
            );
        }
    }
}
