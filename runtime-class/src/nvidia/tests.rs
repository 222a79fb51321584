//! CDI specs as the toolkit writes them, and what a grant copies of each.

use serde_json::{Value, json};

use super::*;

const UUIDS: [&str; 2] = [
    "GPU-0f9a6c1e-6d0b-3c5e-8a61-5a7d2f1b9c01",
    "GPU-7b2e4d5f-1c3a-4e6b-9d8f-2a1c3e5b7d02",
];

fn card(minor: u32) -> GrantedCard {
    GrantedCard {
        uuid: UUIDS[minor as usize].into(),
        minor: Some(minor),
        cuda_ordinal: None,
        limit: apportion_abi::Bytes::from_mib(1000),
        allocatable: apportion_abi::Bytes::from_mib(4000),
    }
}

fn device(name: &str, minors: &[u32]) -> Value {
    let nodes = minors.iter().flat_map(|minor| {
        let own = format!("/dev/nvidia{minor}");
        [
            json!({"path": own}),
            json!({"path": format!("/dev/dri/card{minor}")}),
        ]
    });
    json!({"name": name, "containerEdits": {
        "deviceNodes": nodes.collect::<Vec<_>>(),
        "hooks": [{
            "hookName": "createContainer",
            "path": "/usr/bin/nvidia-cdi-hook",
            "args": ["nvidia-cdi-hook", "chmod", "--mode", "755", "--path", "/dev/dri"],
        }],
    }})
}

/// The output of `nvidia-ctk cdi generate` with these devices.
fn generated(devices: Vec<Value>) -> Value {
    json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidia-uvm"}, {"path": "/dev/nvidiactl"}],
            "hooks": [{
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
            }],
            "mounts": [{
                "hostPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15",
                "containerPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }],
        },
    })
}

fn by_uuid() -> Value {
    generated(vec![
        device("0", &[0]),
        device(UUIDS[0], &[0]),
        device("1", &[1]),
        device(UUIDS[1], &[1]),
        device("all", &[0, 1]),
    ])
}

fn by_number() -> Value {
    generated(vec![
        device("all", &[0, 1]),
        device("0", &[0]),
        device("1", &[1]),
    ])
}

fn described(content: Value) -> NvidiaCdiSpec {
    NvidiaCdiSpec::new("/var/run/cdi/nvidia.yaml", content)
        .unwrap()
        .unwrap()
}

fn nodes(described: &PassthroughEdits) -> Vec<&str> {
    let nodes = described.device_nodes.iter();
    nodes.filter_map(|node| node["path"].as_str()).collect()
}

#[test]
fn a_grant_takes_over_what_its_cards_need_and_nothing_of_another() {
    for content in [by_uuid(), by_number()] {
        let all = described(content).of(&[card(1)]).unwrap();
        let expected = [
            "/dev/nvidia-uvm",
            "/dev/nvidiactl",
            "/dev/nvidia1",
            "/dev/dri/card1",
        ];
        assert_eq!(nodes(&all), expected);
        assert_eq!((all.mounts.len(), all.hooks.len()), (1, 2));
        assert_eq!(all.env, ["NVIDIA_VISIBLE_DEVICES=void"]);
    }
}

#[test]
fn what_two_cards_need_alike_is_taken_over_once() {
    let all = described(by_uuid()).of(&[card(0), card(1)]).unwrap();
    assert_eq!(nodes(&all).len(), 6);
    assert_eq!(all.hooks.len(), 2, "{:?}", all.hooks);
}

#[test]
fn a_card_that_is_not_described_is_no_other_card() {
    let only_first = described(generated(vec![device("0", &[0]), device("all", &[0, 1])]));
    let missing = only_first.of(&[card(1)]).unwrap_err().to_string();
    assert!(
        missing.contains("nvidia.yaml describes 2 devices"),
        "{missing}"
    );
    assert!(missing.contains(UUIDS[1]), "{missing}");
}

#[test]
fn each_file_is_what_it_is() {
    let with = |change: fn(&mut Value)| {
        let mut content = by_uuid();
        change(&mut content);
        NvidiaCdiSpec::new("/etc/cdi/x.yaml", content).map(|found| found.map(|found| found.rank()))
    };
    for (change, expected) in [
        ((|_| {}) as fn(&mut Value), Some(0)),
        (
            |of| of["kind"] = json!("k8s.device-plugin.nvidia.com/gpu"),
            Some(1),
        ),
        (|of| of["kind"] = json!("management.nvidia.com/gpu"), None),
        (|of| of["kind"] = json!("apportion.dev/grant"), None),
        (|of| *of = json!("text"), None),
    ] {
        assert_eq!(with(change).unwrap(), expected);
    }
    for change in [
        (|of| of["devices"] = json!({"0": 1})) as fn(&mut Value),
        |of| of["devices"] = json!(null),
        |of| of["containerEdits"]["netDevices"] = json!([{"hostInterfaceName": "eth0"}]),
    ] {
        let problem = with(change).unwrap_err().to_string();
        assert!(
            problem.starts_with("/etc/cdi/x.yaml is not a CDI spec"),
            "{problem}"
        );
    }
}

#[test]
fn nvidias_hook_for_the_drivers_limits_is_left_out_where_the_grant_has_none() {
    let hook =
        |args: &[&str]| json!({"hookName": "createRuntime", "path": "/usr/bin/x", "args": args});
    let mut edits = PassthroughEdits {
        hooks: vec![
            hook(&["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib"]),
            hook(&[
                "nvidia-cdi-hook",
                "apply-cuda-memory-limits",
                "--gpu-id",
                "GPU-0",
            ]),
            hook(&[
                "nvidia-ctk",
                "hook",
                "apply-cuda-memory-limits",
                "--gpu-id",
                "GPU-0",
            ]),
        ],
        ..PassthroughEdits::default()
    };
    edits.without_limit_hook();
    assert_eq!(edits.hooks.len(), 1);
    assert_eq!(edits.hooks[0]["args"][1], "update-ldcache");
}
