//! Fair share over time with a real API server: a queue that had the cluster alone comes after one that had not, and a
//! restarted scheduler remembers that.

use serde_json::{Value, json};

use crate::cluster::{Cluster, pod, queue};

/// A cluster of two cards where past use counts, and two queues without a quota that may use both.
fn cluster() -> Cluster {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &apportion_tests::cards(2));
    let options = ["--usage-window-size", "10m"];
    cluster.options = options.map(str::to_owned).into();
    let mut queues = [queue("early", 0), queue("late", 0)];
    for queue in &mut queues {
        queue["spec"]["resources"]["gpu"]["limit"] = json!(-1);
    }
    cluster.plane.apply(&queues);
    cluster
}

fn of(queue: &str, number: u32) -> Value {
    let mut pod = pod(&format!("{queue}-{number}"), json!({}));
    pod["metadata"]["labels"]["kai.scheduler/queue"] = queue.into();
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    pod
}

/// A queue's part of all cards so far, as the scheduler reports it.
fn used(cluster: &Cluster, queue: &str) -> f64 {
    let metrics = cluster.http("/metrics");
    let row = format!("kai_queue_gpu_usage{{queue_name=\"{queue}\"");
    let line = metrics.lines().find(|line| line.starts_with(&row));
    let value = line.and_then(|line| line.rsplit_once(' '));
    value
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0.0)
}

/// Lets one queue use the cluster until it has most of the past use, and that is recorded.
fn let_early_have_it(cluster: &mut Cluster) {
    cluster.plane.apply(&[of("early", 1), of("early", 2)]);
    cluster.start_scheduler();
    cluster.bound(2);
    cluster.eventually("most was used by who came early", |_| {
        let note = cluster.plane.all("configmaps");
        let notes = note
            .iter()
            .filter_map(|map| map["data"]["apportion-usage.json"].as_str());
        let is_noted = notes.into_iter().any(|note| note.contains("\"early\""));
        (is_noted && used(cluster, "early") > 0.9).then_some(())
    });
}

fn ended(pods: &[Value]) -> Vec<&str> {
    let ended = pods
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_string());
    ended
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .collect()
}

#[test]
fn who_had_the_cluster_alone_gives_back_more_than_half() {
    let mut cluster = cluster();
    let_early_have_it(&mut cluster);
    cluster.plane.apply(&[of("late", 1), of("late", 2)]);
    // Without a past, each queue would have one card.
    cluster.eventually("both pods of who came early are ended", |pods| {
        (ended(pods) == ["early-1", "early-2"]).then_some(())
    });
    let explained = cluster.ask(&["explain", "early-1", "--address", &cluster.address()]);
    assert!(explained.contains("past usage"), "{explained}");
    let snapshot = cluster.plane.dir().join("snapshot.json");
    std::fs::write(&snapshot, cluster.http("/snapshot")).expect("the folder is writable");
    let simulated = cluster.ask(&[
        "simulate",
        "--explain",
        "early-1",
        &snapshot.display().to_string(),
    ]);
    assert!(simulated.contains("past usage"), "{simulated}");
}

#[test]
fn a_scheduler_that_starts_anew_knows_who_had_the_cluster() {
    let mut cluster = cluster();
    let_early_have_it(&mut cluster);
    cluster.kill_scheduler();
    let _ = cluster
        .plane
        .kubectl(&["delete", "pods", "--all", "--force", "--grace-period=0"]);
    let wanting = [of("early", 3), of("early", 4), of("late", 1), of("late", 2)];
    cluster.plane.apply(&wanting);
    cluster.start_scheduler();
    let bound = cluster.bound(2);
    let bound: Vec<&str> = bound.keys().map(String::as_str).collect();
    assert_eq!(bound, ["late-1", "late-2"]);
    let damaged = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"apportion-usage.json": "{"},
        "metadata": {"name": "apportion-scheduler-usage", "namespace": "kube-system"}});
    cluster.kill_scheduler();
    cluster.plane.apply(&[damaged]);
    cluster.start_scheduler();
    cluster.eventually("a damaged note is said and written over", |_| {
        let log = cluster.whole_log();
        let note = cluster.plane.all("configmaps");
        (log.contains("Usage history unreadable")
            && !note
                .iter()
                .any(|map| map["data"]["apportion-usage.json"] == "{"))
        .then_some(())
    });
}
