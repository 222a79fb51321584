//! Properties of every pod.

use apportion_abi::Share;
use apportion_admission::limits::growing;
use apportion_admission::strict::StrictBounds;
use apportion_admission::{
    AdmissionSettings, GpuDelivery, Pod, PodRefusal, RequestBelowLimit, is_shared, mutate, request,
    validate, validate_update,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::build::{limited, pod, settings};

fn annotations() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "mps",
        "nvidia.com/container.main.gpu-memory.limit",
        "nvidia.com/container.side.gpu-memory.request",
        "nvidia.com/container.main.gpu-memory.request",
        "nvidia.com/container.main.gpu-compute.mode",
        "nvidia.com/container.main.gpus.devices",
        "kai.scheduler/container.main.gpu-memory.portion.limit",
        "kai.scheduler/gpu-compute-sharing-mode",
        "gpu-fraction.limit",
        "gpu-memory.limit",
        "other",
    ]);
    let values = prop_oneof![
        prop::sample::select(vec![
            "0.5",
            "0.7",
            "1",
            "2",
            "2000",
            "2000Mi",
            "1Gi",
            "2Gi",
            "sm-sharing",
            "true",
            "main",
            "fetch",
            "NaN",
            "0x1p-1",
            ""
        ])
        .prop_map(str::to_owned),
        "[0-9.eE+_-]{0,8}",
        ".{0,12}",
    ];
    prop::collection::btree_map(keys.prop_map(str::to_owned), values, 0..4)
        .prop_map(|map| json!(map))
}

fn pods() -> impl Strategy<Value = Pod> {
    let limits = prop_oneof![
        Just(json!({})),
        Just(json!({"nvidia.com/gpu": "1"})),
        Just(json!({"apportion.dev/gpu-share-mib": "2000"})),
        Just(json!({"apportion.dev/gpu-share-micro": 499875})),
        Just(json!({"cpu": "1"}))
    ];
    (annotations(), limits).prop_map(|(annotations, limits)| limited(annotations, limits))
}

fn deliveries() -> impl Strategy<Value = AdmissionSettings> {
    let delivery = prop_oneof![
        Just(GpuDelivery::Slot("example.com/slot".to_owned())),
        any::<bool>().prop_map(|with_memory_limit| GpuDelivery::ConfigMaps { with_memory_limit }),
    ];
    let below = prop::sample::select(vec![
        RequestBelowLimit::Refuse,
        RequestBelowLimit::ChargeLimit,
        RequestBelowLimit::Burst,
    ]);
    (delivery, any::<[bool; 2]>(), below).prop_map(
        |(delivery, [block_visible_devices, count_shares], request_below_limit)| {
            AdmissionSettings {
                delivery,
                block_visible_devices,
                count_shares,
                runtime_class: Some("nvidia".to_owned()),
                request_below_limit,
                ..settings()
            }
        },
    )
}

proptest! {
    #[test]
    fn completing_a_pod_twice_changes_nothing_more(pod in pods(), settings in deliveries(), chance: [u64; 2]) {
        let mut once = pod;
        if mutate(&mut once, &settings, chance[0]).is_ok() {
            let mut twice = once.clone();
            mutate(&mut twice, &settings, chance[1]).unwrap();
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn completing_a_pod_does_not_change_the_judgement(pod in pods(), settings in deliveries(), chance: u64) {
        let relaxed = AdmissionSettings { block_visible_devices: false, ..settings.clone() };
        let before = validate(&pod, &relaxed);
        let mut after = pod;
        if mutate(&mut after, &settings, chance).is_ok() {
            prop_assert_eq!(validate(&after, &relaxed), before);
        }
    }

    #[test]
    fn a_pod_without_our_words_is_taken_as_it_is(pod in pods(), settings in deliveries()) {
        let settings = AdmissionSettings { block_visible_devices: false, ..settings };
        if !is_shared(&pod) {
            let mut after = pod.clone();
            mutate(&mut after, &settings, 3).unwrap();
            prop_assert_eq!(after, pod);
        }
    }

    #[test]
    fn what_is_taken_can_be_placed_or_is_too_small(pod in pods()) {
        if validate(&pod, &settings()).is_ok() {
            match request::read(&pod) {
                Ok(asked) => prop_assert_eq!(asked.is_empty(), !is_shared(&pod)),
                Err(why) => prop_assert!(validate(&pod, &AdmissionSettings { strict: Some(StrictBounds::default()), ..settings() }).is_err(), "{}", why),
            }
        }
    }

    #[test]
    fn the_strict_mode_only_refuses_more(pod in pods()) {
        let strict = AdmissionSettings { strict: Some(StrictBounds::default()), ..settings() };
        if let Err(why) = validate(&pod, &settings()) {
            prop_assert_eq!(validate(&pod, &strict), Err(why));
        }
    }

    #[test]
    fn charging_limits_only_lets_in_pods_whose_limit_is_above_the_request(pod in pods()) {
        let charging = AdmissionSettings { request_below_limit: RequestBelowLimit::ChargeLimit, ..settings() };
        let (refusing, charged) = (validate(&pod, &settings()), validate(&pod, &charging));
        match growing(&pod) {
            Some(growing) if charged.is_ok() => prop_assert_eq!(refusing, Err(PodRefusal::Growing(Box::new(growing)))),
            _ => prop_assert_eq!(refusing, charged),
        }
    }

    #[test]
    fn a_pod_that_may_burst_is_guaranteed_its_request_and_no_other_pod_changes(pod in pods(), chance: u64) {
        let bursting = AdmissionSettings { request_below_limit: RequestBelowLimit::Burst, ..settings() };
        let mut marked = pod.clone();
        if mutate(&mut marked, &bursting, chance).is_err() || validate(&marked, &bursting).is_err() {
            return Ok(());
        }
        let (Ok(fixed), Ok(elastic)) = (request::read(&pod), request::read(&marked)) else {
            return Ok(());
        };
        prop_assert_eq!(growing(&pod).is_some(), elastic.iter().any(|one| one.limit.is_some()));
        for (fixed, elastic) in fixed.iter().zip(&elastic) {
            // What a cluster without bursts charges is the most that it may use here.
            prop_assert_eq!(elastic.limit.unwrap_or(elastic.request.share), fixed.request.share);
            match (elastic.request.share, elastic.limit) {
                (Share::Memory(request), Some(Share::Memory(limit))) => prop_assert!(request < limit),
                (Share::Fraction(request), Some(Share::Fraction(limit))) => prop_assert!(request < limit),
                _ => {}
            }
        }
    }

    #[test]
    fn what_kai_has_written_beside_a_request_does_not_change_it(mib in 1_u32..100_000, more in 0_u32..1000, bound: bool) {
        let asked = |annotations: Value| {
            let asked = request::read(&pod(annotations)).unwrap();
            asked.iter().map(|one| (one.container, one.request)).collect::<Vec<_>>()
        };
        let limit = mib + more;
        let own = json!({"gpu-memory": mib.to_string(), "gpu-memory.limit": format!("{limit}Mi")});
        let mut written = own.clone();
        written["nvidia.com/container.main.gpu-memory.request"] = format!("{mib}Mi").into();
        written["nvidia.com/container.main.gpu-memory.limit"] = format!("{limit}Mi").into();
        if bound {
            written["nvidia.com/container.main.gpus.devices"] = "GPU-0".into();
            written["nvidia.com/container.main.gpu-compute.portion"] = "0.5".into();
        }
        prop_assert_eq!(asked(written), asked(own));
    }

    #[test]
    fn a_bound_pod_may_change_anything_but_its_request(old in pods(), new in pods()) {
        let mut old = old;
        old.spec.node_name = "node-7".to_owned();
        let asked = |pod: &Pod| {
            let all = pod.metadata.annotations.clone();
            all.into_iter().filter(|(key, _)| key != "other").collect::<Vec<_>>()
        };
        let is_frozen = validate_update(&old, &new, &settings()).is_err();
        if asked(&old) != asked(&new) {
            prop_assert!(is_frozen);
        } else if old.spec.containers == new.spec.containers {
            prop_assert!(!is_frozen);
        }
    }
}
