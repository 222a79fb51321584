//! The pod that the other files vary.

use apportion_admission::{AdmissionSettings, GpuDelivery, Pod, RequestBelowLimit, validate};
use serde_json::{Value, json};

pub(crate) fn settings() -> AdmissionSettings {
    AdmissionSettings {
        sharing: true,
        delivery: GpuDelivery::Slot("example.com/slot".to_owned()),
        block_visible_devices: false,
        runtime_class: None,
        strict: None,
        count_shares: false,
        request_below_limit: RequestBelowLimit::default(),
    }
}

pub(crate) fn pod(annotations: Value) -> Pod {
    limited(annotations, json!({}))
}

pub(crate) fn limited(annotations: Value, limits: Value) -> Pod {
    let json = json!({"metadata": {"name": "train-0", "namespace": "lab", "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "initContainers": [{"name": "fetch"}],
            "containers": [{"name": "main", "resources": {"limits": limits}}, {"name": "side"}]}});
    Pod::read(&json).expect("it is a pod")
}

pub(crate) fn said(pod: &Pod, settings: &AdmissionSettings) -> String {
    validate(pod, settings).map_or_else(|refusal| refusal.to_string(), |()| String::new())
}
