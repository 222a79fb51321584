//! Every rule by its message.

use apportion_abi::{Bytes, Share};
use apportion_admission::strict::StrictBounds;
use apportion_admission::{AdmissionSettings, mutate, request};
use serde_json::{Value, json};

use crate::build::{limited, pod, said, settings};

#[test]
fn the_first_broken_rule_is_the_one_that_is_said() {
    let whole = || json!({"nvidia.com/gpu": "1"});
    let none = || json!({});
    let fraction = "gpu-fraction annotation value must be a positive number smaller than 1.0";
    let memory = "gpu-memory annotation value must be a positive integer greater than 0";
    let devices = "fraction count annotation value must be a positive integer greater than 0";
    let both = "cannot request both GPU and GPU memory";
    for (annotations, limits, words) in [
        (none(), none(), ""),
        (none(), whole(), ""),
        (
            json!({"mps": "true"}),
            whole(),
            "MPS is only supported with GPU fraction request",
        ),
        (json!({"mps": "false"}), none(), ""),
        (json!({"mps": "true", "gpu-memory": "1"}), none(), ""),
        (
            json!({"gpu-fraction": "2", "gpu-memory": "no"}),
            whole(),
            "cannot have both GPU fraction request and whole GPU resource request/limit",
        ),
        (
            json!({"gpu-fraction": "2", "gpu-memory": "no"}),
            none(),
            both,
        ),
        (json!({"gpu-memory": "no"}), whole(), both),
        (
            json!({"gpu-memory": "5"}),
            json!({"nvidia.com/gpu": "0"}),
            both,
        ),
        (
            json!({"gpu-fraction-num-devices": "no"}),
            none(),
            "cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
        ),
        (
            json!({"gpu-memory": "", "gpu-fraction-num-devices": "0"}),
            none(),
            memory,
        ),
        (
            json!({"gpu-fraction": "", "gpu-fraction-num-devices": "0"}),
            none(),
            fraction,
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}),
            none(),
            devices,
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2.0"}),
            none(),
            devices,
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "fetch"}),
            none(),
            "",
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "gone"}),
            none(),
            "container with name gone not found for fraction request",
        ),
    ] {
        assert_eq!(
            said(&limited(annotations.clone(), limits), &settings()),
            words,
            "{annotations}"
        );
    }
}

#[test]
fn numbers_are_judged_by_two_readers() {
    let no_number = "gpu-fraction annotation value must be a positive number smaller than 1.0";
    for (text, expected) in [
        ("0.5", None),
        (".5", None),
        ("5e-1", None),
        ("+0.5", None),
        ("0.999", None),
        ("1.2e-10", None),
        ("0", Some(no_number.to_owned())),
        ("-0.1", Some(no_number.to_owned())),
        ("1", Some(no_number.to_owned())),
        ("1.0", Some(no_number.to_owned())),
        ("Inf", Some(no_number.to_owned())),
        ("0.5 ", Some(no_number.to_owned())),
        ("500m", Some(no_number.to_owned())),
        ("half", Some(no_number.to_owned())),
        ("NaN", None),
        ("0x1p-1", None),
        ("0.2_5", None),
    ] {
        let unwritten = "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation .given value: ";
        let expected = match expected {
            Some(words) => words,
            None if ["NaN", "0x1p-1", "0.2_5"].contains(&text) => format!("{unwritten}{text}"),
            None => String::new(),
        };
        assert_eq!(
            said(&pod(json!({"gpu-fraction": text})), &settings()),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn a_container_may_be_named_in_the_key() {
    let two = pod(json!({
        "nvidia.com/container.main.gpu-memory.request": "2048Mi",
        "nvidia.com/container.main.gpu-memory.limit": "2Gi",
        "nvidia.com/container.fetch.gpu-memory.request": "500Mi",
    }));
    let asked = request::read(&two).unwrap();
    let shares: Vec<_> = asked
        .iter()
        .map(|one| {
            (
                one.container.of(&two).unwrap().name.as_str(),
                one.request.share,
            )
        })
        .collect();
    assert_eq!(
        shares,
        [
            ("fetch", Share::Memory(Bytes::from_mib(500))),
            ("main", Share::Memory(Bytes::from_mib(2048)))
        ]
    );
    for (annotations, words) in [
        (
            json!({"nvidia.com/container.gone.gpu-memory.limit": "1Gi"}),
            "container with name gone not found for fraction request",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "1Gi", "gpu-memory": "5"}),
            "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory annotation",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "1Gi", "nvidia.com/container.side.gpu-memory.limit": "1Gi", "gpu-memory": "5"}),
            "cannot have both nvidia.com/container.main.gpu-memory.limit and gpu-fraction or gpu-memory; a container's share is given in one way",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "1.5"}),
            "nvidia.com/container.main.gpu-memory.limit annotation value must be a positive amount of memory such as 2000Mi or 8Gi. given value: 1.5",
        ),
        (
            json!({"nvidia.com/container.main.gpu-memory.limit": "1Gi", "nvidia.com/container.main.gpu-memory.request": "2Gi"}),
            "nvidia.com/container.main.gpu-memory.request of 2Gi is more than the limit of 1Gi",
        ),
    ] {
        assert_eq!(
            said(&pod(annotations.clone()), &settings()),
            words,
            "{annotations}"
        );
    }
}

#[test]
fn sharing_that_is_off_is_said_before_anything_else() {
    let off = AdmissionSettings {
        sharing: false,
        ..settings()
    };
    let words = "attempting to create a pod lab/train-0 with gpu sharing request, while GPU sharing is disabled";
    assert_eq!(
        said(&pod(json!({"gpu-fraction": "2", "gpu-memory": "x"})), &off),
        words
    );
    assert_eq!(
        said(
            &pod(json!({"nvidia.com/container.main.gpu-memory.limit": "1Gi"})),
            &off
        ),
        words
    );
    assert_eq!(
        said(&limited(json!({}), json!({"nvidia.com/gpu": "1"})), &off),
        ""
    );
}

#[test]
fn every_container_with_a_share_gets_a_slot_and_the_pod_its_runtime_class() {
    let settings = AdmissionSettings {
        runtime_class: Some("nvidia".to_owned()),
        ..settings()
    };
    let mut shared = pod(json!({
        "nvidia.com/container.main.gpu-memory.limit": "1Gi",
        "nvidia.com/container.fetch.gpu-memory.limit": "1Gi",
    }));
    mutate(&mut shared, &settings, 1).unwrap();
    let json = serde_json::to_value(&shared).unwrap();
    for (container, has_slot) in [
        ("/spec/containers/0", true),
        ("/spec/containers/1", false),
        ("/spec/initContainers/0", true),
    ] {
        for kind in ["limits", "requests"] {
            let slot = &json.pointer(container).unwrap()["resources"][kind]["example.com/slot"];
            assert_eq!(
                slot,
                &if has_slot { json!("1") } else { Value::Null },
                "{container} {kind}"
            );
        }
    }
    assert_eq!(json["spec"]["runtimeClassName"], "nvidia");
    let mut plain = pod(json!({}));
    mutate(&mut plain, &settings, 1).unwrap();
    assert_eq!(plain, pod(json!({})));
}

#[test]
fn the_strict_mode_says_its_bounds() {
    let strict = AdmissionSettings {
        strict: Some(StrictBounds::default()),
        ..settings()
    };
    for (annotations, limits, words) in [
        (json!({"gpu-fraction": "0.5"}), json!({}), ""),
        (json!({}), json!({"amd.com/gpu": "1"}), ""),
        (
            json!({"gpu-fraction": "1.2e-10"}),
            json!({}),
            "gpu-fraction 1.2e-10 is below 0.001, the minimum that is accepted here",
        ),
        (
            json!({"gpu-memory": "1"}),
            json!({}),
            "a share of 1 MiB is below 64 MiB, the minimum that is accepted here",
        ),
        (
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "1000"}),
            json!({}),
            "gpu-fraction-num-devices 1000 is above 16, the maximum that is accepted here",
        ),
        (
            json!({"gpu-fraction": "0.5"}),
            json!({"amd.com/gpu": "1"}),
            "cannot request a share of a GPU and amd.com/gpu in one pod",
        ),
        (
            json!({"gpu-memory": "500"}),
            json!({"nvidia.com/mig-1g.5gb": "1"}),
            "cannot request a share of a GPU and nvidia.com/mig-1g.5gb in one pod",
        ),
    ] {
        assert_eq!(
            said(&limited(annotations.clone(), limits), &strict),
            words,
            "{annotations}"
        );
        assert_eq!(said(&limited(annotations, json!({})), &settings()), "");
    }
}

#[test]
fn a_container_without_a_card_sees_none() {
    let blocking = AdmissionSettings {
        block_visible_devices: true,
        ..settings()
    };
    let mut pod = pod(json!({"gpu-fraction": "0.5"}));
    mutate(&mut pod, &blocking, 1).unwrap();
    let json = serde_json::to_value(&pod).unwrap();
    let void = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]);
    assert_eq!(json["spec"]["containers"][0].get("env"), None);
    assert_eq!(json["spec"]["containers"][1]["env"], void);
    assert_eq!(json["spec"]["initContainers"][0]["env"], void);
}
