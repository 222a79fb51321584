//! `simulate` as people call it: files in, decisions out.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

mod choices;
mod extended;
mod gangs;
mod hostile;
mod pod_affinity;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/files")
        .join(name)
}

fn run(files: &[PathBuf], options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_apportion-scheduler"))
        .args(["simulate", "--now", "2026-01-02T00:00:00Z"])
        .args(options)
        .args(files)
        .output()
        .unwrap()
}

fn simulate(names: &[&str], options: &[&str]) -> (String, String) {
    let files: Vec<PathBuf> = names.iter().map(|name| file(name)).collect();
    let output = run(&files, options);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

fn json(names: &[&str], options: &[&str]) -> Value {
    let (text, _) = simulate(names, &[&["--json"], options].concat());
    serde_json::from_str(&text).unwrap()
}

/// The texts of one field of all entries.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn field<'a>(list: &'a Value, name: &str) -> Vec<&'a str> {
    let entries = list.as_array().unwrap().iter();
    entries.map(|entry| entry[name].as_str().unwrap()).collect()
}

#[test]
fn two_services_share_the_only_card() {
    let (decisions, warnings) = simulate(&["one-card.yaml", "services.yaml"], &[]);
    assert_eq!(
        decisions,
        "bind ai-workloads/vllm-test-02-0 to gpu-node cards card-1: 0.2 of a GPU\n\
         bind ai-workloads/vllm-test-07-0 to gpu-node cards card-1: 0.7 of a GPU\n"
    );
    assert!(
        warnings.contains("ignored 1 objects of kinds that do not affect scheduling: 1 Service"),
        "{warnings}"
    );
}

#[test]
fn a_duration_that_cannot_be_read_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    let delay = "kai.scheduler/preemption-delay";
    let objects = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "lab"},
            "spec": {"preemptMinRuntime": "1d", "reclaimMinRuntime": "nonsense", "resources": {}}},
        {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "ns", "annotations": {delay: "soon"}},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}]}},
    ]});
    std::fs::write(&file, objects.to_string()).unwrap();
    let output = run(&[file], &[]);
    let warnings = String::from_utf8(output.stderr).unwrap();
    for part in [
        "Queue lab: its preemptMinRuntime \"1d\" is not a duration such as 90s, 30m or 12h (write 24h0m0s)",
        "its reclaimMinRuntime \"nonsense\" is not a duration",
        "Pod ns/a: its kai.scheduler/preemption-delay \"soon\" is not a duration",
    ] {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
}

#[test]
fn a_name_can_forge_no_decision_and_gives_the_terminal_no_orders() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pod.json");
    let name = "a\nbind b to c\u{1b}[31m";
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": {"gpu-fraction": "0.5"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}]},
    });
    std::fs::write(&file, pod.to_string()).unwrap();
    for options in [&[][..], &["--explain", name]] {
        let output = run(std::slice::from_ref(&file), options);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("a\\nbind b to c\\u{1b}[31m"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(
            text.lines().all(|line| !line.starts_with("bind ")),
            "{text}"
        );
    }
}

#[test]
fn as_many_pods_get_a_part_of_a_card_as_it_has_memory_for() {
    let report = json(&["packing.yaml"], &[]);
    assert_eq!(report["decisions"].as_array().unwrap().len(), 23);
    let waiting = &report["waiting"];
    assert_eq!(field(waiting, "reason"), ["Unschedulable"]);
    let why = field(waiting, "message")[0];
    assert!(
        why.contains("asked for 2000 MiB; card-1 has 68 MiB free of 44.9 GiB"),
        "{why}"
    );
}

#[test]
fn what_a_pod_prefers_goes_before_how_full_nodes_are() {
    let report = json(&["preferences.yaml"], &[]);
    let decisions = &report["decisions"];
    assert_eq!(
        field(decisions, "pod"),
        ["default/any", "default/fast", "default/quiet"]
    );
    assert_eq!(field(decisions, "node"), ["full", "empty", "empty"]);
}

#[test]
fn a_gang_starts_whole_or_not_at_all() {
    let (decisions, _) = simulate(&["gang.yaml"], &[]);
    assert_eq!(decisions.lines().count(), 4, "{decisions}");
    assert!(
        decisions
            .lines()
            .all(|line| line.contains("the 4 pods that must start together")),
        "{decisions}"
    );

    let text = std::fs::read_to_string(file("gang.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let larger = folder.path().join("larger.yaml");
    std::fs::write(
        &larger,
        text.replace("nvidia.com/gpu: \"3\"", "nvidia.com/gpu: \"4\""),
    )
    .unwrap();
    let output = run(&[larger], &[]);
    let decisions = String::from_utf8(output.stdout).unwrap();
    let binds = decisions
        .lines()
        .filter(|line| line.starts_with("bind ml/mnist-"));
    assert_eq!(binds.count(), 4, "{decisions}");
}

#[test]
fn a_dump_keeps_running_pods_on_their_cards_and_knows_their_queue() {
    let report = json(&["dump.yaml"], &[]);
    let bound = &report["decisions"][0];
    assert_eq!(bound["pod"], "ai/two");
    assert_eq!(bound["cards"][0], "407623a2-216d-4c06-b5b8-f8345bf28b5a");
    assert_eq!(field(&report["waiting"], "reason"), ["OverLimit"]);
    let queue = &report["queues"][0]["resources"][0];
    assert_eq!(
        (&queue["resource"], &queue["allocated"]),
        (&"GPU".into(), &0.9.into())
    );
}

#[test]
fn a_queue_that_has_less_than_its_quota_takes_a_card_back() {
    let (decisions, _) = simulate(&["reclaim.yaml"], &[]);
    assert_eq!(
        decisions,
        "evict default/second from node (reclaim)\n\
         reserve node for default/claimant 1 whole GPU (reclaim)\n"
    );
}

#[test]
fn who_waits_for_a_card_does_not_hold_it() {
    let report = json(&["reclaim.yaml"], &["--explain", "claimant"]);
    let node = &report["explanation"]["nodes"][0];
    let holders = node["cards"].as_array().unwrap().iter();
    let holders: Vec<&str> = holders
        .map(|card| card["holders"][0]["pod"].as_str().unwrap())
        .collect();
    assert_eq!(holders, ["default/first", "default/second"]);
}

#[test]
fn nodes_are_for_those_whom_they_admit() {
    let (decisions, _) = simulate(&["fences.yaml"], &[]);
    assert!(
        decisions.starts_with("bind default/red to tainted cards card-1"),
        "{decisions}"
    );
    let (why, _) = simulate(&["fences.yaml"], &["--explain", "blue"]);
    assert!(why.contains("node cordoned: is cordoned"), "{why}");
    assert!(
        why.contains("node tainted: has the taint team, which the pod does not tolerate"),
        "{why}"
    );
}

#[test]
fn an_explanation_has_cards_holders_queues_and_what_would_help() {
    let (text, _) = simulate(&["dump.yaml"], &["--explain", "ai/late"]);
    for part in [
        "waits because test quota has reached the allowable limit of GPU. Limit is 1 GPUs, currently 0.9 GPUs allocated",
        "1536 MiB free of 15.0 GiB, held by ai/seven with 10.5 GiB, ai/two with 3072 MiB",
        "GPU: quota 1 GPUs, limit 1 GPUs, allocated 0.9 GPUs",
        "would start if ai/seven ends",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let report = json(&["dump.yaml"], &["--explain", "late"]);
    let explanation = &report["explanation"];
    assert_eq!(explanation["unblocked_if"][0], "ai/seven ends");
    assert_eq!(
        explanation["nodes"][0]["cards"][0]["free_bytes"],
        1_610_612_736
    );
}

#[test]
fn what_is_said_to_help_helps() {
    let report = json(&["dump.yaml"], &["--explain", "late"]);
    assert_eq!(
        report["explanation"]["unblocked_if"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let text = std::fs::read_to_string(file("dump.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let after = folder.path().join("after.yaml");
    std::fs::write(
        &after,
        text.replacen(
            "phase: Running, startTime",
            "phase: Succeeded, startTime",
            1,
        ),
    )
    .unwrap();
    let output = run(&[after], &[]);
    let decisions = String::from_utf8(output.stdout).unwrap();
    assert!(decisions.contains("bind ai/late"), "{decisions}");
}

#[test]
fn each_bad_object_gets_a_sentence_and_the_rest_goes_on() {
    let (decisions, warnings) = simulate(&["bad.yaml"], &[]);
    assert_eq!(
        warnings,
        std::fs::read_to_string(file("bad.warnings.txt")).unwrap()
    );
    assert_eq!(
        decisions,
        std::fs::read_to_string(file("bad.decisions.txt")).unwrap()
    );
}

#[test]
fn the_order_of_objects_changes_nothing() {
    for name in [
        "bad.yaml",
        "packing.yaml",
        "gang.yaml",
        "over-time.yaml",
        "reclaim.yaml",
        "services.yaml",
    ] {
        let text = std::fs::read_to_string(file(name)).unwrap();
        let documents: Vec<&str> = text.split("\n---\n").collect();
        let folder = tempfile::tempdir().unwrap();
        let as_given = run(&[file(name)], &["--json"]);
        for turn in 0..documents.len() {
            let mut turned = documents.clone();
            turned.rotate_left(turn);
            if turn % 2 == 1 {
                turned.reverse();
            }
            let path = folder.path().join("turned.yaml");
            std::fs::write(&path, turned.join("\n---\n")).unwrap();
            let output = run(&[path], &["--json"]);
            assert_eq!(output.stdout, as_given.stdout, "{name} turned by {turn}");
            assert_eq!(output.stderr, as_given.stderr, "{name} turned by {turn}");
        }
    }
}

#[test]
fn json_goes_in_as_well_as_yaml() {
    let list = r#"{"apiVersion": "v1", "kind": "PodList", "items": [
        {"metadata": {"name": "lonely"}, "spec": {"schedulerName": "kai-scheduler", "containers": []}}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pods.json");
    std::fs::write(&path, list).unwrap();
    let output = run(&[path], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "default/lonely waits because Queue 'default-queue' does not exist\n"
    );
}

#[test]
fn a_mistake_is_one_line_with_a_hint_and_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.yaml");
    std::fs::write(&broken, "kind: [Pod\n").unwrap();
    let scalar = folder.path().join("scalar.yaml");
    std::fs::write(&scalar, "just words\n").unwrap();
    let dump = || vec![file("dump.yaml")];
    for (files, options, code) in [
        (vec![], &[][..], 64),
        (dump(), &["--explain", "nobody"], 64),
        (dump(), &["--colour"], 64),
        (vec![file("absent.yaml")], &[], 1),
        (vec![broken], &[], 1),
        (vec![scalar], &[], 1),
    ] {
        let output = run(&files, options);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{files:?} {options:?}: {said}"
        );
        let line = said.lines().last().unwrap();
        assert!(
            line.starts_with("apportion-scheduler: ") && line.contains("; hint: "),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn cards_of_one_node_differ_in_size_and_health_and_each_is_known() {
    let report = json(&["mixed.yaml"], &["--explain", "too-late"]);
    let decisions = report["decisions"].as_array().unwrap().iter();
    let on: Vec<(&str, &str)> = decisions
        .map(|one| {
            (
                one["pod"].as_str().unwrap(),
                one["cards"][0].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(on, [("default/alone", "GPU-1"), ("default/large", "GPU-2")]);
    let why = field(&report["waiting"], "message")[0];
    let expected = "asked for 12.0 GiB; GPU-2 has 10.0 GiB free of 80.0 GiB, held by default/large with 60.0 GiB, \
                    mixed/GPU-2 without a pod with 10.0 GiB";
    assert!(why.contains(expected), "{why}");
    // The unhealthy card is shown with the pods on it, and they are charged.
    let cards = report["explanation"]["nodes"][0]["cards"]
        .as_array()
        .unwrap();
    let names: Vec<&str> = cards
        .iter()
        .map(|card| card["card"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["GPU-1", "GPU-2", "GPU-3"]);
    assert_eq!(report["queues"][0]["resources"][0]["allocated"], 2.25);
}

#[test]
fn workloads_without_pods_get_those_that_they_would_have_at_first() {
    let (_, warnings) = simulate(&["workloads.yaml"], &[]);
    for (workload, count) in [
        ("JobSet default/js", "5 are"),
        ("LeaderWorkerSet default/lws", "4 are"),
        ("RayCluster default/rj-raycluster", "5 are"),
        ("PyTorchJob default/torch", "2 are"),
    ] {
        let expected = format!("{workload}: its pods are not given; {count} simulated");
        assert!(warnings.contains(&expected), "{expected} in {warnings}");
    }
    let report = json(&["workloads.yaml"], &[]);
    // Fifteen cards for sixteen pods: the last job waits as a whole.
    let waiting = field(&report["waiting"], "pod");
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    assert!(
        waiting.iter().all(|pod| pod.starts_with("default/torch-")),
        "{waiting:?}"
    );
    assert_eq!(field(&report["decisions"], "decision").len(), 14);
}

#[test]
fn claims_get_the_devices_of_a_node_and_are_charged() {
    let report = json(&["claims.yaml"], &[]);
    assert_eq!(
        field(&report["decisions"], "pod"),
        ["default/a", "default/b"]
    );
    // The third pod finds no device, and the shared claim belongs to another queue.
    let waiting = &report["waiting"];
    assert_eq!(field(waiting, "pod"), ["default/c", "default/stranger"]);
    let why = field(waiting, "message");
    assert!(
        why[0].contains(
            "claim default/c:gpu, request gpu: wants 1 device of class gpu.nvidia.com, 0 free (2 in use)"
        ),
        "{why:?}"
    );
    assert!(
        why[1].contains("default/shared is for another queue"),
        "{why:?}"
    );
    let gpus = &report["queues"][0]["resources"][0];
    assert_eq!(
        (&gpus["allocated"], &gpus["fair_share"]),
        (&json!(2.0), &json!(2.0))
    );
    let devices = &report["decisions"][1]["devices"];
    assert_eq!(*devices, json!(["gpu.nvidia.com/dra/gpu-1"]));
}

/// What claims get of two cards whose memory they share, and why the others wait.
#[test]
fn claims_share_devices_by_capacity_and_each_reason_is_true() {
    let report = json(&["claim-shares.yaml"], &[]);
    let decisions: Vec<(String, String)> = report["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (text(&one["pod"]), text(&one["devices"][0])))
        .collect();
    let expected = [
        ("default/a-20", "gpu.apportion.dev/n1/gpu-0"),
        ("default/b-20", "gpu.apportion.dev/n1/gpu-0"),
        ("default/c-30", "gpu.apportion.dev/n1/gpu-1"),
        ("default/two-cards", "gpu.apportion.dev/n1/gpu-0"),
    ];
    let expected = expected.map(|(pod, device)| (pod.to_owned(), device.to_owned()));
    assert_eq!(decisions, expected);
    let waiting = report["waiting"].as_array().unwrap().iter();
    let waiting: Vec<(String, String)> = waiting
        .map(|one| (text(&one["pod"]), text(&one["message"])))
        .collect();
    let reasons = [
        (
            "default/d-30",
            "wants 1 device of class gpu.apportion.dev, 0 free (2 with too little capacity left)",
        ),
        (
            "default/large",
            "wants 1 device of class gpu.apportion.dev, 0 free (2 with too little capacity left)",
        ),
        (
            "default/no-class",
            "there is no device class nobody.example.com",
        ),
        (
            "default/other-model",
            "wants 1 device of class gpu.apportion.dev, 0 free (2 not selected)",
        ),
        (
            "default/same-card",
            "no free devices serve all requests together under its constraints",
        ),
        (
            "default/unmade",
            "the claim for gpu of pod default/unmade is yet to be created from its template",
        ),
    ];
    assert_eq!(waiting.len(), reasons.len(), "{waiting:?}");
    for ((pod, message), (expected, reason)) in waiting.iter().zip(reasons) {
        assert_eq!(pod, expected);
        assert!(message.contains(reason), "{message}");
    }
    // Shares count as parts of cards: two of 20 GiB, one of 30 GiB and two of 1 GiB, of 45 GiB each.
    let gpus = report["queues"][0]["resources"][0]["allocated"]
        .as_f64()
        .unwrap();
    assert!((gpus - 72.0 / 45.0).abs() < 1e-4, "{gpus}");
}

/// GPUs through claims count in the quotas: a queue below its quota gets them back, with the devices.
#[test]
fn a_queue_below_its_quota_reclaims_a_claimed_card() {
    let report = json(&["claim-reclaim.yaml"], &[]);
    let decisions = report["decisions"].as_array().unwrap();
    let said: Vec<(String, String)> = (decisions.iter())
        .map(|one| (text(&one["decision"]), text(&one["pod"])))
        .collect();
    let expected = [("evict", "default/two"), ("reserve", "default/wants")];
    let expected = expected.map(|(deed, pod)| (deed.to_owned(), pod.to_owned()));
    assert_eq!(said, expected);
    assert_eq!(
        decisions[1]["devices"],
        json!(["gpu.apportion.dev/n1/gpu-1"])
    );
}
