//! Requests of the API server to the admission webhook. The first byte selects the kind of review.
#![no_main]

use apportion_admission::queue::ReviewedQueue;
use apportion_admission::strict::StrictBounds;
use apportion_admission::{AdmissionSettings, GpuDelivery, RequestBelowLimit};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

// The crate `apportion-webhook`, with its listeners and its client, would take minutes to compile.
#[path = "../../../scheduler-shim/webhook/src/judge.rs"]
#[allow(dead_code, reason = "the webhook knows paths, too")]
mod judge;
#[path = "../../../scheduler-shim/webhook/src/object.rs"]
mod object;
#[path = "../../../scheduler-shim/webhook/src/review.rs"]
mod review;

use judge::{AdmissionRules, PATHS, answer};
use review::AdmissionReview;

fn rules(flags: u8) -> AdmissionRules {
    let delivery = match flags & 1 {
        0 => GpuDelivery::Slot("apportion.dev/gpu-slot".to_owned()),
        _ => GpuDelivery::ConfigMaps {
            with_memory_limit: flags & 2 != 0,
        },
    };
    let settings = AdmissionSettings {
        sharing: true,
        delivery,
        block_visible_devices: flags & 4 != 0,
        runtime_class: Some("nvidia".to_owned()),
        strict: (flags & 8 != 0).then(StrictBounds::default),
        count_shares: false,
        request_below_limit: RequestBelowLimit::default(),
    };
    AdmissionRules {
        schedulers: vec!["kai-scheduler".to_owned()],
        settings,
        compare_quotas: true,
        hami: true,
    }
}

fn parent(name: &str) -> Option<ReviewedQueue> {
    let queue = serde_json::json!({"metadata": {"name": name}, "spec": {"parentQueue": "root", "resources": {}}});
    (name.len() < 8).then(|| serde_json::from_value::<ReviewedQueue>(queue).ok())?
}

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let (_, question) = PATHS[usize::from(first >> 4) % PATHS.len()];
    let Ok(review) = AdmissionReview::read(body, question) else {
        return;
    };
    if review.refusal.is_some() {
        return;
    }
    let answer = answer(question, &review.request, &rules(*first), &parent, 7);
    let said = answer.review(&review.request.uid);
    assert_eq!(said["response"]["allowed"], answer.refusal.is_none());
    if let Some(patch) = answer.patch {
        applies(body, patch);
    }
});

/// The patch is made from the fields that the rules read, and must apply to the whole object.
fn applies(body: &[u8], patch: Value) {
    let Ok(whole) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    let mut object = whole["request"]["object"].clone();
    let patch: json_patch::Patch = serde_json::from_value(patch).expect("it is a patch");
    json_patch::patch(&mut object, &patch).expect("it fits the object");
}
