//! A pod's annotations: each line is one annotation, and its first byte selects the key.
#![no_main]

use apportion_admission::strict::StrictBounds;
use apportion_admission::{
    AdmissionSettings, GpuDelivery, Pod, RequestBelowLimit, gpu_amounts, is_shared, mutate,
    request, validate, warnings,
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

const KEYS: [&str; 15] = [
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "mps",
    "nvidia.com/container.main.gpu-memory.limit",
    "nvidia.com/container.side.gpu-memory.request",
    "nvidia.com/container.fetch.gpu-memory.limit",
    "runai/shared-gpu-configmap",
    "received-resource-type",
    "nvidia.com/container.main.gpu-memory.request",
    "nvidia.com/container.main.gpu-compute.mode",
    "kai.scheduler/container.main.gpu-memory.portion.limit",
    "gpu-fraction.limit",
    "gpu-memory.limit",
];

fn pod(annotations: Value, limits: Value) -> Option<Pod> {
    let json = json!({
        "metadata": {"name": "train-0", "namespace": "lab", "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "initContainers": [{"name": "fetch"}],
            "containers": [{"name": "main", "resources": {"limits": limits}}, {"name": "side"}]},
    });
    Pod::read(&json).ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((flags, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    let mut annotations = Map::new();
    let mut limits = Map::new();
    for line in text.lines() {
        let mut letters = line.chars();
        let Some(first) = letters.next() else {
            continue;
        };
        match KEYS.get((u32::from(first) % 16) as usize) {
            Some(key) => annotations.insert((*key).to_owned(), letters.as_str().into()),
            None => limits.insert("nvidia.com/gpu".to_owned(), letters.as_str().into()),
        };
    }
    let Some(pod) = pod(annotations.into(), limits.into()) else {
        return;
    };
    let delivery = match flags & 1 {
        0 => GpuDelivery::Slot("apportion.dev/gpu-slot".to_owned()),
        _ => GpuDelivery::ConfigMaps {
            with_memory_limit: flags & 2 != 0,
        },
    };
    let settings = AdmissionSettings {
        sharing: flags & 4 == 0,
        delivery,
        block_visible_devices: flags & 8 != 0,
        runtime_class: Some("nvidia".to_owned()),
        strict: None,
        count_shares: flags & 32 != 0,
        request_below_limit: match flags & 16 {
            0 => RequestBelowLimit::Refuse,
            _ if flags & 32 == 0 => RequestBelowLimit::ChargeLimit,
            _ => RequestBelowLimit::Burst,
        },
    };
    let strict = AdmissionSettings {
        strict: Some(StrictBounds::default()),
        ..settings.clone()
    };
    let _ = warnings(&pod);
    let judged = validate(&pod, &settings);
    match &judged {
        Ok(()) => match request::read(&pod) {
            Ok(asked) => assert_eq!(asked.is_empty(), !is_shared(&pod)),
            Err(why) => assert!(validate(&pod, &strict).is_err(), "{why}"),
        },
        Err(why) => assert_eq!(validate(&pod, &strict).as_ref(), Err(why)),
    }
    let _ = (
        gpu_amounts::requested(&pod),
        gpu_amounts::received(&pod, None),
    );
    let mut once = pod;
    if mutate(&mut once, &settings, 7).is_ok() {
        let mut twice = once.clone();
        assert!(mutate(&mut twice, &settings, 8).is_ok());
        assert_eq!(once, twice, "completing twice changes nothing more");
    }
});
