//! The options of the user who runs the scheduler, and past usage.

use std::process::Command;

use crate::{field, file, json, run, simulate};

#[test]
fn pods_are_spread_or_packed_as_somebody_chooses() {
    let nodes = |way: &str| {
        let report = json(&["spreading.yaml"], &["--placement", way]);
        let places = field(&report["decisions"], "node");
        let mut places: Vec<String> = places.into_iter().map(str::to_owned).collect();
        places.sort();
        places.dedup();
        places.len()
    };
    assert_eq!(nodes("best-fit"), 1);
    assert_eq!(nodes("binpack"), 1);
    assert_eq!(nodes("least-fragments"), 1);
    assert_eq!(nodes("spread"), 2);
    let wrong = run(&[file("spreading.yaml")], &["--placement", "anywhere"]);
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn only_the_first_jobs_of_a_queue_are_looked_at_if_so_asked() {
    let starts = |options: &[&str]| {
        let (decisions, _) = simulate(&["packing.yaml"], options);
        decisions
            .lines()
            .filter(|line| line.starts_with("bind"))
            .count()
    };
    assert_eq!(starts(&["--queue-depth", "allocate=5"]), 5);
    assert_eq!(starts(&["--queue-depth", "reclaim=5"]), 23);
    let wrong = run(&[file("packing.yaml")], &["--queue-depth", "allocate"]);
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn requests_are_placed_and_limits_are_not_where_pods_may_burst() {
    let (decisions, warnings) = simulate(&["elastic.yaml"], &["--request-below-limit", "burst"]);
    for pod in ["serve-0", "serve-1", "serve-2", "serve-3"] {
        let bound = format!("bind lab/{pod} to gpu-node cards card-1: 3072 MiB, up to 12.0 GiB\n");
        assert!(decisions.contains(&bound), "{decisions}");
    }
    let bound = "bind lab/train to gpu-node cards card-1: 4096 MiB, up to 12.0 GiB\n";
    assert!(decisions.contains(bound), "{decisions}");
    assert!(!warnings.contains("limit"), "{warnings}");
    let options = ["--request-below-limit", "burst", "--explain", "serve-0"];
    let (explained, _) = simulate(&["elastic.yaml"], &options);
    let asks = "asks for 3072 MiB, up to 12.0 GiB";
    assert!(explained.contains(asks), "{explained}");
    let left = "card-1: 0 MiB free of 16.0 GiB";
    assert!(explained.contains(left), "{explained}");

    let (decisions, warnings) = simulate(
        &["elastic.yaml"],
        &["--request-below-limit", "charge-limit"],
    );
    let bound = decisions.matches(": 12.0 GiB\n").count();
    assert_eq!(bound, 1, "a limit is charged: {decisions}");
    assert!(warnings.contains("is scheduled and charged"), "{warnings}");
}

#[test]
fn the_limits_of_a_queues_pods_add_up_to_its_burst_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bounded.yaml");
    let with = |limit: &str, options: &[&str]| {
        let name = "metadata: {name: test";
        let annotation = format!("apportion.dev/gpu-burst-limit: \"{limit}\"");
        let bounded = format!("{name}, annotations: {{{annotation}}}");
        let text = std::fs::read_to_string(file("elastic.yaml")).unwrap();
        std::fs::write(&path, text.replacen(name, &bounded, 1)).unwrap();
        let options = [&["--request-below-limit", "burst"], options].concat();
        let output = run(std::slice::from_ref(&path), &options);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    // Each limit is three quarters of the card.
    let (decisions, warnings) = with("2.5", &[]);
    assert_eq!(decisions.matches("bind ").count(), 3, "{decisions}");
    let why = "waits because test queue has reached its burst limit of 2.5 GPUs. Currently the limits of its pods add up to 2.25 GPUs and workload requested 0.75 GPUs more. Lower the limits of pods, or raise apportion.dev/gpu-burst-limit of the queue";
    assert_eq!(decisions.matches(why).count(), 2, "{decisions}");
    assert!(!warnings.contains("burst"), "{warnings}");
    let (report, _) = with("2.5", &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let queues = report["queues"].as_array().unwrap();
    let gpus = |name: &str| {
        let queue = queues.iter().find(|queue| queue["queue"] == name).unwrap();
        let gpus = &queue["resources"][0];
        (
            gpus["burst_limit"].as_f64(),
            gpus["allocated_limits"].as_f64(),
        )
    };
    assert_eq!(gpus("test"), (Some(2.5), Some(2.25)));
    assert_eq!(gpus("default"), (None, None));
    for (limit, bound) in [("3.75", 5), ("-1", 5), ("0", 0)] {
        let (decisions, _) = with(limit, &[]);
        assert_eq!(decisions.matches("bind ").count(), bound, "{decisions}");
    }
    let (decisions, warnings) = with("much", &[]);
    assert_eq!(decisions.matches("bind ").count(), 5, "{decisions}");
    let ignored = "Queue test: its apportion.dev/gpu-burst-limit \"much\" is not a number of GPUs: 0 or more, such as 4 or 2.5, or -1 for unlimited; it is ignored";
    assert!(warnings.contains(ignored), "{warnings}");
}

#[test]
fn a_queue_that_used_everything_goes_after_one_that_used_nothing() {
    let (decisions, warnings) = simulate(&["over-time.yaml"], &[]);
    let bound: Vec<&str> = (decisions.lines())
        .filter_map(|line| line.strip_prefix("bind default/")?.split_once(' '))
        .map(|(pod, _)| pod)
        .collect();
    assert_eq!(bound, ["late-1", "late-2"], "{decisions}");
    assert!(!warnings.contains("ConfigMap"), "{warnings}");
    let (explained, _) = simulate(&["over-time.yaml"], &["--explain", "early-1"]);
    let used = "fair share 0 GPUs, past usage 100.0 %";
    assert!(explained.contains(used), "{explained}");
    let queues = &json(&["over-time.yaml"], &[])["queues"];
    assert_eq!(queues[0]["resources"][0]["usage"], 1.0, "{queues}");
    // A week later the past usage is forgotten.
    let later = ["--now", "2026-01-09T01:00:00Z"];
    let output = Command::new(env!("CARGO_BIN_EXE_apportion-scheduler"))
        .arg("simulate")
        .args(later)
        .arg(file("over-time.yaml"))
        .output()
        .unwrap();
    let decisions = String::from_utf8(output.stdout).unwrap();
    assert!(decisions.contains("bind default/early-1"), "{decisions}");
}
