//! A running pod whose annotation is changed: its agent's ledger follows, or an event says why not.

use apportion_tests::MIB;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod, queue};
use crate::objects::take_slot;

impl Cluster {
    /// Changes a pod's request.
    fn ask_for(&self, pod: &str, request: &str) {
        let _ = self
            .plane
            .kubectl(&["annotate", "pod", pod, request, "--overwrite"]);
    }

    /// Waits until a pod has so many MiB: in its agent's ledger, and as written on it.
    fn has(&self, name: &str, mib: u64, request: &str) {
        let full = format!("default/{name}");
        self.eventually(&format!("{name} has {mib} MiB"), |pods| {
            let granted = self.granted("node-1");
            let (card, held) = granted.iter().find_map(|(card, held)| {
                let (_, bytes) = held.iter().find(|(holder, _)| *holder == full)?;
                Some((card, *bytes))
            })?;
            let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name)?;
            let annotations = &pod["metadata"]["annotations"];
            let is_written = annotations["apportion.dev/cards"] == format!("{card}={}", mib * MIB)
                && annotations["apportion.dev/allocated"] == request;
            (held == mib * MIB && is_written).then_some(())
        });
    }

    /// Waits for an event about a pod, and returns its note.
    fn told(&self, pod: &str, reason: &str) -> String {
        self.eventually(&format!("{pod} is told {reason}"), |_| {
            let events = self.plane.all("events.events.k8s.io");
            let found = events
                .iter()
                .find(|event| event["regarding"]["name"] == pod && event["reason"] == reason);
            Some(found?["note"].as_str()?.to_owned())
        })
    }

    /// How many events of a reason there are, repeats included.
    fn times(&self, reason: &str) -> u64 {
        let events = self.plane.all("events.events.k8s.io");
        let found = events.iter().filter(|event| event["reason"] == reason);
        found
            .map(|event| event["series"]["count"].as_u64().unwrap_or(1))
            .sum()
    }
}

fn mib(name: &str, mib: u64) -> Value {
    pod(name, json!({"gpu-memory": mib.to_string()}))
}

#[test]
fn a_running_pod_is_resized_and_told_why_not() {
    let mut cluster = Cluster::with_cards(1);
    cluster.plane.apply(&[mib("one", 2000), mib("two", 5000)]);
    cluster.bound(2);
    cluster.has("one", 2000, "gpu-memory=2000");
    cluster.ask_for("one", "gpu-memory=3001");
    cluster.has("one", 3000, "gpu-memory=3001");
    let note = cluster.told("one", "Resized");
    assert!(note.starts_with("2000 MiB -> 3000 MiB on GPU-"), "{note}");
    cluster.ask_for("one", "gpu-memory=6000");
    let note = cluster.told("one", "ResizeDeferred");
    assert!(
        note.starts_with("gpu-memory=6000: asked for 6000 MiB on GPU-"),
        "{note}"
    );
    assert!(note.contains("5000 MiB free"), "{note}");
    assert!(note.contains("held by default/two with 5000 MiB"), "{note}");
    let said = cluster.ask(&["explain", "one", "--address", &cluster.address()]);
    let pending = "resize from gpu-memory=3001 to gpu-memory=6000 is deferred: asked for 6000 MiB";
    assert!(said.contains(pending), "{said}");
    // The other one shrinks. The next scheduler goes on where the first one was.
    cluster.kill_scheduler();
    cluster.ask_for("two", "gpu-memory=1000");
    cluster.start_scheduler();
    cluster.has("two", 1000, "gpu-memory=1000");
    cluster.has("one", 6000, "gpu-memory=6000");
    cluster.ask_for("one", "gpu-memory=20000");
    let note = cluster.told("one", "ResizeInfeasible");
    assert!(note.ends_with("waiting does not help"), "{note}");
    assert_eq!(cluster.times("ResizeInfeasible"), 1);
    cluster.has("one", 6000, "gpu-memory=6000");
    cluster.ask_for("one", "gpu-memory=2000");
    cluster.has("one", 2000, "gpu-memory=2000");
}

/// A pod that may burst, with the mark that the webhook writes.
fn elastic(name: &str, annotations: &Value) -> Value {
    let mut pod = pod(name, annotations.clone());
    pod["metadata"]["annotations"]["apportion.dev/gpu-memory-burst"] = "true".into();
    take_slot(&mut pod);
    pod
}

#[test]
fn a_pod_that_bursts_gets_another_request_and_another_limit() {
    let cluster = Cluster::with_cards(1);
    let (request, limit) = (
        "nvidia.com/container.main.gpu-memory.request",
        "nvidia.com/container.main.gpu-memory.limit",
    );
    cluster.plane.apply(&[
        elastic(
            "one",
            &json!({"gpu-memory": "2000", "gpu-memory.limit": "8000Mi"}),
        ),
        elastic("two", &json!({(request): "2000Mi", (limit): "4000Mi"})),
    ]);
    cluster.bound(2);
    cluster.has("one", 2000, "gpu-memory=2000,gpu-memory.limit=8000Mi");
    cluster.has("two", 2000, &format!("{limit}=4000Mi,{request}=2000Mi"));
    cluster.ask_for("one", "gpu-memory=3000");
    cluster.has("one", 3000, "gpu-memory=3000,gpu-memory.limit=8000Mi");
    let note = cluster.told("one", "Resized");
    let change = "2000 MiB up to 8000 MiB -> 3000 MiB up to 8000 MiB on GPU-";
    assert!(note.starts_with(change), "{note}");
    cluster.ask_for("two", &format!("{limit}=6000Mi"));
    cluster.has("two", 2000, &format!("{limit}=6000Mi,{request}=2000Mi"));
    let note = cluster.told("two", "Resized");
    assert!(
        note.starts_with("2000 MiB up to 4000 MiB -> 2000 MiB up to 6000 MiB"),
        "{note}"
    );
    cluster.ask_for("two", &format!("{request}=9000Mi"));
    let note = cluster.told("two", "ResizeInfeasible");
    assert!(note.contains("9000"), "{note}");
    cluster.ask_for("two", &format!("{request}=5000Mi"));
    cluster.has("two", 5000, &format!("{limit}=6000Mi,{request}=5000Mi"));
    // Without its limit it is fixed.
    cluster.ask_for("one", "gpu-memory.limit-");
    cluster.has("one", 3000, "gpu-memory=3000");
    cluster.ask_for("one", "gpu-memory=4000");
    cluster.has("one", 4000, "gpu-memory=4000");
}

#[test]
fn no_resize_goes_beyond_the_limit_of_a_queue() {
    let cluster = Cluster::with_cards(1);
    cluster.plane.apply(&[queue("small", 0)]);
    let mut bounded = queue("small", 0);
    bounded["spec"]["resources"]["gpu"] = json!({"quota": 0.5, "limit": 0.5, "overQuotaWeight": 1});
    cluster.plane.apply(&[bounded]);
    let in_small = |name, part| {
        let mut pod = pod(name, json!({"gpu-fraction": part}));
        pod["metadata"]["labels"]["kai.scheduler/queue"] = "small".into();
        pod
    };
    cluster
        .plane
        .apply(&[in_small("one", "0.25"), in_small("two", "0.125")]);
    cluster.bound(2);
    cluster.ask_for("one", "gpu-fraction=0.5");
    assert_eq!(
        cluster.told("one", "ResizeDeferred"),
        "gpu-fraction=0.5: small quota has reached the allowable limit of GPU. Limit is 0.5 GPUs, currently 0.375 GPUs allocated and workload requested 0.25 GPUs"
    );
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", "two", "--force", "--grace-period=0"]);
    cluster.has("one", 5000, "gpu-fraction=0.5");
}

#[test]
fn limits_add_up_to_the_burst_limit_of_a_queue_and_no_more() {
    let cluster = Cluster::with_cards(2);
    let bounded = |limit: &str| {
        let mut queue = queue("team", -1);
        queue["metadata"]["annotations"] = json!({"apportion.dev/gpu-burst-limit": limit});
        cluster.plane.apply(&[queue]);
    };
    let in_team = |name| {
        let shares = json!({"gpu-memory": "2000", "gpu-memory.limit": "7500Mi"});
        let mut pod = elastic(name, &shares);
        pod["metadata"]["labels"]["kai.scheduler/queue"] = "team".into();
        pod
    };
    let limits = |sum: &str| {
        cluster.eventually(&format!("the limits of the queue are {sum}"), |_| {
            let queues = cluster.plane.all("queues.scheduling.run.ai");
            let team = queues.iter().find(|it| it["metadata"]["name"] == "team")?;
            (team["status"]["allocated"]["limits.nvidia.com/gpu"] == sum).then_some(())
        });
    };
    bounded("1.5");
    cluster.plane.apply(&[in_team("one"), in_team("two")]);
    cluster.bound(2);
    limits("1500m");
    // The third would fit on both GPUs.
    cluster.plane.apply(&[in_team("three")]);
    let reached = "team queue has reached its burst limit of 1.5 GPUs. Currently the limits of its pods add up to 1.5 GPUs and workload requested";
    let said = cluster.eventually("it is explained", |_| {
        let said = cluster.ask(&["explain", "three", "--address", &cluster.address()]);
        said.contains("waits because").then_some(said)
    });
    assert!(
        said.contains(&format!("waits because {reached} 0.75 GPUs more")),
        "{said}"
    );
    let numbers = "burst limit 1.5 GPUs, limits of pods 1.5 GPUs";
    assert!(said.contains(numbers), "{said}");
    assert!(
        said.contains("would start if the burst limit of queue team is raised"),
        "{said}"
    );
    cluster.ask_for("one", "gpu-memory.limit=8500Mi");
    let note = cluster.told("one", "ResizeDeferred");
    let size = "gpu-memory=2000,gpu-memory.limit=8500Mi";
    assert!(
        note.starts_with(&format!("{size}: {reached} 0.1 GPUs more")),
        "{note}"
    );
    cluster.has("one", 2000, "gpu-memory=2000,gpu-memory.limit=7500Mi");
    // With room for the resize only, the resize goes first, and the pod goes on waiting.
    bounded("1.6");
    cluster.has("one", 2000, size);
    limits("1600m");
    bounded("-1");
    cluster.bound(3);
}
