//! A queue has its pods suspended where the scheduler would evict them: with the chart, a real kubelet, and the simulated
//! driver.

use apportion_cluster::release::ChartRelease;
use apportion_cluster::{LocalCluster, eventually, image};
use serde_json::{Value, json};

const STATE: &str = "/run/apportion/suspended";
/// The pod that is suspended, and the one for which it is.
const LENDER: &str = "suspended-lender";
const OWNER: &str = "suspended-owner";
/// What the lender's program keeps on the GPU.
const HELD: &str = "3G";
/// Does what is written into a pipe, step by step.
const STEPS: &str = "mkfifo /steps; victim - 0<>/steps";

fn queue(name: &str, gpus: i64, annotations: Value) -> Value {
    let any = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"resources": {"cpu": any, "memory": any,
            "gpu": {"quota": gpus, "limit": -1, "overQuotaWeight": 1}}}})
}

fn pod(name: &str, queue: &str, fraction: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"gpu-fraction": fraction},
            "labels": {"kai.scheduler/queue": queue}},
        "spec": {"schedulerName": "kai-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image::VICTIM, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script]}]}})
}

fn runs(release: &ChartRelease, pod: &str) {
    eventually(&format!("{pod} runs"), || {
        release.at(pod, ".status.phase") == "Running"
    });
}

fn steps(release: &ChartRelease, steps: &str) {
    let write = format!("echo {steps} > /steps");
    release.kubectl(&["exec", LENDER, "--", "/bin/sh", "-c", &write]);
}

fn says(release: &ChartRelease, what: &str) {
    eventually(&format!("its program says {what}"), || {
        release.kubectl(&["logs", LENDER]).contains(what)
    });
}

/// How often an event of the lender with this reason was published.
fn events(release: &ChartRelease, reason: &str) -> usize {
    let selector = format!("involvedObject.name={LENDER},reason={reason}");
    let path = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
    let said = release.kubectl(&["get", "events", "--field-selector", &selector, "-o", path]);
    said.lines().count()
}

fn asleep(release: &ChartRelease) -> f64 {
    release.metric("apportion_suspended_shares", &["cause=\"scheduler\""])
}

#[test]
fn a_reclaim_suspends_a_pod_that_goes_on_with_all_its_memory_afterwards() {
    let suspends = json!({"apportion.dev/suspend-before-evict": "true"});
    let release = ChartRelease::prepare(STATE, "simulatedGpus=1", &[LENDER, OWNER]);
    release.install();
    release.rolled_out();
    release.shares_are_taken("the webhook is trusted");
    let cluster = LocalCluster::of_tests();
    for queue in [
        queue("suspended-lends", 0, suspends),
        queue("suspended-owns", 1, json!({})),
    ] {
        eventually("the queue is taken", || cluster.apply(&queue).is_ok());
    }
    let wrong = json!({"apportion.dev/suspend-before-evict": "yes"});
    let refused = cluster
        .apply(&queue("suspended-wrong", 0, wrong))
        .unwrap_err();
    let refused = format!("{refused:#}");
    assert!(
        refused.contains("neither \"true\" nor \"false\""),
        "{refused}"
    );

    cluster
        .apply(&pod(LENDER, "suspended-lends", "0.6", STEPS))
        .unwrap();
    runs(&release, LENDER);
    steps(&release, &format!("alloc {HELD} mark 0 {HELD}"));
    says(&release, "mark 0");
    cluster
        .apply(&pod(OWNER, "suspended-owns", "0.8", "victim total hold"))
        .unwrap();
    runs(&release, OWNER);
    eventually("the owner sees its GPU", || {
        release.kubectl(&["logs", OWNER]).starts_with("total 0 ")
    });
    assert_eq!(asleep(&release), 1.0);
    eventually("events say so", || {
        events(&release, "Suspended") == 1 && events(&release, "GpuMemorySuspended") == 1
    });
    assert_eq!(release.at(LENDER, ".status.phase"), "Running");
    eventually("its GpuNode says so", || {
        let cards = release.gpu_node()["status"]["cards"].clone();
        let holders = cards[0]["holders"].as_array().cloned().unwrap_or_default();
        holders.len() == 2
            && holders.iter().any(|of| {
                of["pod"] == LENDER && of["suspended"] == true && of["guaranteedBytes"] == 0
            })
    });

    // The next scheduler knows who sleeps, and resumes it in its turn.
    let scheduler = ["delete", "pod", "-n", "apportion-system", "-l"];
    release.kubectl(
        &[
            &scheduler[..],
            &["app.kubernetes.io/name=apportion-scheduler"],
        ]
        .concat(),
    );
    release.rolled_out();
    assert_eq!(asleep(&release), 1.0);
    release.kubectl(&["delete", "pod", OWNER, "--now"]);
    eventually("it goes on", || asleep(&release) == 0.0);
    steps(&release, &format!("check 0 {HELD}"));
    says(&release, "check 0 0");
    eventually("an event says so", || events(&release, "Resumed") == 1);
    assert_eq!(release.at(LENDER, ".status.phase"), "Running");
    assert_eq!(
        release.at(LENDER, ".status.containerStatuses[0].restartCount"),
        "0"
    );
    assert_eq!(events(&release, "Evict"), 0);
}
