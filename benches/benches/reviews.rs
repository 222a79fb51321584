//! The cost of one admission review, from the API server's bytes to the answer's, without TLS.
//!
//! The API server waits for it while it creates the pod. Some set-ups send all pods here, so a pod of others must cost
//! little more than its parsing.

use std::hint::black_box;

use apportion_abi::names::RESOURCE_SLOT;
use apportion_admission::{AdmissionSettings, GpuDelivery, RequestBelowLimit};
use apportion_webhook::AdmissionRules;
use apportion_webhook::judge::{ReviewKind, answer};
use apportion_webhook::review::AdmissionReview;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};

const OUR_SCHEDULER: &str = "kai-scheduler";
/// What the API server adds to a pod: managed fields, a projected token, defaults.
const USUAL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 1 << 20;

fn rules() -> AdmissionRules {
    AdmissionRules {
        schedulers: vec![OUR_SCHEDULER.to_owned()],
        settings: AdmissionSettings {
            sharing: true,
            delivery: GpuDelivery::Slot(RESOURCE_SLOT.to_owned()),
            block_visible_devices: true,
            runtime_class: None,
            strict: None,
            count_shares: true,
            request_below_limit: RequestBelowLimit::default(),
        },
        compare_quotas: true,
        hami: false,
    }
}

fn review(scheduler: &str, annotations: &Value, bytes: usize) -> Vec<u8> {
    let filler = "x".repeat(bytes);
    let pod = json!({
        "metadata": {
            "name": "train-0",
            "namespace": "team",
            "annotations": annotations,
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": filler}}],
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [{
                "name": "main",
                "image": "pytorch/pytorch:2.9.0",
                "resources": {"requests": {"cpu": "2", "memory": "8Gi"}},
            }],
        },
    });
    let request = json!({"uid": "1", "operation": "CREATE", "namespace": "team", "object": pod});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        .to_string()
        .into_bytes()
}

fn reviews(criterion: &mut Criterion) {
    let rules = rules();
    let share = json!({"gpu-memory": "2000"});
    let none = json!({});
    let pods = [
        (
            "of-another-scheduler",
            review("default-scheduler", &none, USUAL_BYTES),
        ),
        ("with-a-share", review(OUR_SCHEDULER, &share, USUAL_BYTES)),
        ("of-1-mib", review("default-scheduler", &none, LARGE_BYTES)),
    ];
    for (question, group) in [
        (ReviewKind::CompletePod, "review/mutate"),
        (ReviewKind::JudgePod, "review/validate"),
    ] {
        let mut group = criterion.benchmark_group(group);
        for (name, body) in &pods {
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::from_parameter(name), body, |bencher, body| {
                bencher.iter(|| {
                    let review = AdmissionReview::read(black_box(body), question);
                    let review = review.expect("the review is valid");
                    let none = |_: &str| None;
                    let answer = answer(question, &review.request, &rules, &none, 7);
                    assert_eq!(answer.refusal, None);
                    answer.review(&review.request.uid).to_string()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, reviews);
criterion_main!(benches);
