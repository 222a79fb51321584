//! Extended resources that device classes name.

use serde_json::{Value, json};

use crate::field;

/// Which pods get what on which node.
fn placements(report: &Value) -> Vec<String> {
    let decisions = report["decisions"].as_array().expect("a list");
    let said = decisions.iter().map(|one| {
        let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
        let (pod, node, devices) = (text("pod"), text("node"), &one["devices"]);
        format!("{pod} {node} {devices}")
    });
    said.collect()
}

#[test]
fn a_node_without_a_device_plugin_serves_a_resource_by_devices() {
    let report = crate::json(&["extended.yaml"], &[]);
    let device = |number: u8| format!("[\"gpu.example.com/claims/gpu-{number}\"]");
    assert_eq!(
        placements(&report),
        [
            "default/a-by-name plugin null".to_owned(),
            format!("default/b-by-class claims {}", device(0)),
            format!("default/c-by-name claims {}", device(1)),
        ]
    );
    let waiting = &report["waiting"];
    assert_eq!(
        field(waiting, "pod"),
        ["default/d-waits", "default/e-no-class"]
    );
    let why = field(waiting, "message");
    let shortage = "closest is claims: claim for nvidia.com/gpu of default/d-waits, request container-0-request-0: \
        wants 1 device of class accelerators, 0 free (2 in use)";
    assert!(why[0].contains(shortage), "{why:?}");
    let no_class =
        "asked for 1 of deviceclass.resource.kubernetes.io/nobody; there is no device class nobody";
    assert!(why[1].contains(no_class), "{why:?}");
    // Each pod is charged for one GPU, however its node has it, and the queues divide the GPUs of both nodes.
    let gpus = &report["queues"][0]["resources"][0];
    assert_eq!(
        (&gpus["allocated"], &gpus["fair_share"]),
        (&json!(3.0), &json!(3.0))
    );
}

/// The pods of the other queue have their GPUs by claims that somebody made for them.
#[test]
fn a_queue_below_its_quota_reclaims_a_card_that_came_with_a_claim() {
    let report = crate::json(&["extended-reclaim.yaml"], &[]);
    assert_eq!(
        placements(&report),
        [
            "default/two n1 null",
            "default/wants n1 [\"gpu.apportion.dev/n1/gpu-1\"]"
        ]
    );
    assert_eq!(
        field(&report["decisions"], "decision"),
        ["evict", "reserve"]
    );
    let allocated = |queue: usize| &report["queues"][queue]["resources"][0]["allocated"];
    assert_eq!(
        (allocated(0), allocated(1)),
        (&json!(1.0), &json!(1.0)),
        "{}",
        report["queues"]
    );
}
