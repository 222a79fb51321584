//! A running pod whose request is no longer the one that its share was given for.
//!
//! The request on the pod is desired, `apportion.dev/allocated` is what was given, as `spec` and `status` are for CPU
//! and memory in Kubernetes. Until the scheduler has allocated the new size, the pod counts with the old one.

use apportion_abi::names::ANNOTATION_ALLOCATED;
use apportion_admission::resize::{read_text, request_text};
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
    request_text(|key| pod.annotation(key))
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
    let wrong = || format!("{text:?} is no request for a share");
    let (key, value) = read_text(text).ok_or_else(wrong)?;
    let mut changed = pod.read_apart().into_owned();
    if let Some(Value::String(now)) = request(pod).map(Value::from) {
        let annotations = changed["metadata"]["annotations"].as_object_mut();
        let now = now.split('=').next().unwrap_or_default();
        annotations.and_then(|annotations| annotations.remove(now));
    }
    changed["metadata"]["annotations"][key] = value.into();
    requests::cards(ObjectView::new(&changed))
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
