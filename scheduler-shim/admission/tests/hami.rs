//! HAMi's resources become KAI's annotations, or the pod is refused and left unchanged.

use std::collections::BTreeMap;

use apportion_abi::{Bytes, Share};
use apportion_admission::hami::{self, CORES, MEMORY, PERCENTAGE, RESOURCES};
use apportion_admission::{
    AdmissionSettings, ContainerIndex, ContainerList, GpuDelivery, Pod, RequestBelowLimit, mutate,
    request, validate,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const WHOLE: &str = "nvidia.com/gpu";

/// A pod with an init container and two others, with these limits in this order.
fn pod(annotations: Value, limits: [Value; 3]) -> Pod {
    let [fetch, main, side] = limits.map(|limits| json!({"limits": limits, "requests": limits}));
    let json = json!({"metadata": {"name": "train-0", "namespace": "lab", "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler",
            "initContainers": [{"name": "fetch", "resources": fetch}],
            "containers": [{"name": "main", "resources": main}, {"name": "side", "resources": side}]}});
    Pod::read(&json).expect("it is a pod")
}

fn main_asks(limits: Value) -> Pod {
    pod(json!({}), [json!({}), limits, json!({})])
}

fn annotations(pod: &Pod) -> Value {
    json!(pod.metadata.annotations)
}

fn refused(mut pod: Pod) -> String {
    let before = pod.clone();
    let why = hami::translate(&mut pod).expect_err("it is refused");
    assert_eq!(pod, before, "{why}");
    why.to_string()
}

#[track_caller]
fn becomes(mut pod: Pod, expected: &Value) -> Pod {
    assert_eq!(hami::translate(&mut pod), Ok(Vec::new()));
    assert_eq!(annotations(&pod), *expected);
    pod
}

#[test]
fn memory_and_percentage_become_annotations_and_leave_the_container() {
    let pod = becomes(
        main_asks(json!({WHOLE: 1, MEMORY: 3000, "cpu": "1"})),
        &json!({"gpu-memory": "3000"}),
    );
    let resources = &pod.spec.containers[0].resources;
    assert_eq!(json!(resources.limits), json!({"cpu": "1"}));
    assert_eq!(json!(resources.requests), json!({"cpu": "1"}));
    // The number of GPUs defaults to 1, and kubectl may write amounts in any form.
    becomes(
        main_asks(json!({MEMORY: "3k"})),
        &json!({"gpu-memory": "3000"}),
    );
    becomes(
        main_asks(json!({WHOLE: "2", PERCENTAGE: "5"})),
        &json!({"gpu-fraction": "0.05", "gpu-fraction-num-devices": "2"}),
    );
    becomes(
        main_asks(json!({PERCENTAGE: 50, CORES: 0})),
        &json!({"gpu-fraction": "0.50"}),
    );
}

#[test]
fn another_container_than_the_first_is_named_and_several_have_a_key_each() {
    let nothing = || json!({});
    becomes(
        pod(nothing(), [nothing(), nothing(), json!({MEMORY: 2000})]),
        &json!({"gpu-memory": "2000", "gpu-fraction-container-name": "side"}),
    );
    becomes(
        pod(nothing(), [json!({PERCENTAGE: 10}), nothing(), nothing()]),
        &json!({"gpu-fraction": "0.10", "gpu-fraction-container-name": "fetch"}),
    );
    becomes(
        pod(
            nothing(),
            [
                nothing(),
                json!({MEMORY: 2000}),
                json!({MEMORY: 500, WHOLE: 1}),
            ],
        ),
        &json!({"nvidia.com/container.main.gpu-memory.limit": "2000Mi",
            "nvidia.com/container.side.gpu-memory.limit": "500Mi"}),
    );
}

#[test]
fn all_of_a_gpu_is_a_whole_one() {
    for limits in [
        json!({WHOLE: "1", PERCENTAGE: 100}),
        json!({PERCENTAGE: "100"}),
        json!({WHOLE: "1", PERCENTAGE: 100, CORES: 100}),
        json!({WHOLE: "1", CORES: 100}),
    ] {
        let pod = becomes(main_asks(limits), &json!({}));
        assert_eq!(
            json!(pod.spec.containers[0].resources.limits),
            json!({WHOLE: "1"})
        );
    }
}

#[test]
fn what_apportion_does_not_hold_is_refused_in_words() {
    let cores = "container main asks for nvidia.com/gpucores: 30, and Apportion does not limit compute; leave \
                 nvidia.com/gpucores out";
    assert_eq!(
        refused(main_asks(json!({WHOLE: 1, MEMORY: 3000, CORES: 30}))),
        cores
    );
    assert_eq!(refused(main_asks(json!({WHOLE: 1, CORES: "30"}))), cores);
    let all = main_asks(json!({MEMORY: 3000, CORES: 100}));
    assert_eq!(refused(all), cores.replace("30,", "100,"));
    assert_eq!(
        refused(main_asks(json!({MEMORY: 1, PERCENTAGE: 1}))),
        "container main asks for both nvidia.com/gpumem and nvidia.com/gpumem-percentage; keep one"
    );
    for (resource, value) in [
        (MEMORY, "1500m"),
        (MEMORY, "-1"),
        (PERCENTAGE, "101"),
        (PERCENTAGE, "x"),
    ] {
        let said = refused(main_asks(json!({resource: value})));
        let begin = format!("container main asks for {resource}: {value}, which is not a number ");
        assert!(said.starts_with(&begin), "{said}");
    }
    let nothing = || json!({});
    let both = pod(
        json!({"gpu-fraction": "0.5"}),
        [nothing(), json!({MEMORY: 5}), nothing()],
    );
    assert_eq!(
        refused(both),
        "container main asks for nvidia.com/gpumem, and the pod has KAI's annotations for a share; keep one"
    );
    let several = pod(
        nothing(),
        [nothing(), json!({MEMORY: 5}), json!({PERCENTAGE: 5})],
    );
    assert_eq!(
        refused(several),
        "2 containers ask for shares, so each can only ask for nvidia.com/gpumem of one GPU; container side asks \
         for nvidia.com/gpumem-percentage"
    );
}

#[test]
fn ways_to_choose_a_gpu_are_ignored_with_a_warning() {
    let annotations = json!({"nvidia.com/use-gputype": "A100", "mine": "1"});
    let mut pod = pod(annotations, [json!({}), json!({MEMORY: 5}), json!({})]);
    let said = hami::translate(&mut pod).expect("it is taken");
    assert_eq!(
        said,
        ["annotation nvidia.com/use-gputype is ignored: Apportion does not choose GPUs by it"]
    );
}

#[test]
fn a_pod_without_hamis_words_is_left_alone() {
    for limits in [
        json!({}),
        json!({WHOLE: 2, "cpu": 1}),
        json!({"memory": "1Gi"}),
    ] {
        let mut asked = main_asks(limits);
        asked.metadata.annotations =
            BTreeMap::from([("nvidia.com/use-gputype".into(), "A".into())]);
        let before = asked.clone();
        assert_eq!(hami::translate(&mut asked), Ok(Vec::new()));
        assert_eq!(asked, before);
    }
}

/// Amounts as people write them, good and bad.
fn limits() -> impl Strategy<Value = Value> {
    let amount = || prop_oneof![1_i64..200, Just(0), Just(-3), Just(100), Just(100_000)];
    let entry = prop_oneof![
        Just(MEMORY),
        Just(PERCENTAGE),
        Just(CORES),
        Just(WHOLE),
        Just("cpu")
    ];
    proptest::collection::vec((entry, amount(), any::<bool>()), 0..4).prop_map(|entries| {
        let entries = entries.into_iter().map(|(name, amount, is_text)| {
            if is_text {
                (name.to_owned(), json!(amount.to_string()))
            } else {
                (name.to_owned(), json!(amount))
            }
        });
        Value::Object(entries.collect())
    })
}

proptest! {
    /// An admitted pod has no HAMi resource left, passes KAI's rules, and gives each container what it asked for. A
    /// refused pod is unchanged.
    #[test]
    fn what_is_taken_is_a_request_of_kai_for_the_same(limits in [limits(), limits(), limits()]) {
        let mut pod = pod(json!({}), limits);
        let before = pod.clone();
        if hami::translate(&mut pod).is_err() {
            prop_assert_eq!(pod, before);
            return Ok(());
        }
        let positions = [(ContainerList::Init, 0), (ContainerList::Regular, 0), (ContainerList::Regular, 1)]
            .map(|(list, index)| ContainerIndex { list, index });
        for position in positions {
            let resources = &position.of(&pod).expect("it is there").resources;
            for name in RESOURCES {
                prop_assert!(!resources.limits.contains_key(name) && !resources.requests.contains_key(name));
            }
        }
        let again = pod.clone();
        prop_assert_eq!(hami::translate(&mut pod), Ok(Vec::new()));
        prop_assert_eq!(&pod, &again);

        let amount = |position: ContainerIndex, name: &str| {
            let limits = &position.of(&before).expect("it is there").resources.limits;
            let text = limits.get(name).map(|value| value.to_string().replace('"', ""));
            text.and_then(|text| text.parse::<u64>().ok()).filter(|amount| *amount > 0)
        };
        let wants = |position: ContainerIndex| {
            let percent = amount(position, PERCENTAGE).filter(|percent| *percent < 100);
            amount(position, MEMORY).or(percent).is_some()
        };
        let shares: Vec<ContainerIndex> = positions.into_iter().filter(|position| wants(*position)).collect();
        if !shares.is_empty() && !positions.into_iter().any(|position| {
            let whole = position.of(&pod).expect("it is there").resources.limits.contains_key(WHOLE);
            whole && !wants(position)
        }) {
            let settings = AdmissionSettings {
                sharing: true,
                delivery: GpuDelivery::Slot("example.com/slot".to_owned()),
                block_visible_devices: false,
                runtime_class: None,
                strict: None,
                count_shares: false,
                request_below_limit: RequestBelowLimit::Refuse,
            };
            mutate(&mut pod, &settings, 0).expect("KAI's rules complete it");
            validate(&pod, &settings).expect("KAI's rules admit it");
            let asked = request::read(&pod).expect("it asks for a share");
            prop_assert_eq!(asked.len(), shares.len());
            for one in asked {
                match one.request.share {
                    Share::Whole => prop_assert!(false, "a share is not a whole GPU"),
                    Share::Memory(bytes) => {
                        let mib = amount(one.container, MEMORY).expect("it asked for memory");
                        prop_assert_eq!(bytes, Bytes(mib << 20));
                    }
                    Share::Fraction(fraction) => {
                        let percent = amount(one.container, PERCENTAGE).expect("it asked for a part");
                        let expected = format!("0.{percent:02}").parse();
                        prop_assert_eq!(Ok(fraction), expected);
                    }
                }
                let devices = amount(one.container, WHOLE).unwrap_or(1);
                prop_assert_eq!(u64::from(one.request.devices), devices);
            }
        }
    }
}
