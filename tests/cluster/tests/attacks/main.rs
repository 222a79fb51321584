//! The attacks of a tenant on a real node: none raises a limit, what goes around the library is told of
//! within two seconds, and nobody else suffers.
//!
//! That a limit holds is the driver's word. How soon is counted from before the offender starts to the
//! agent's own time on the event, both by the node's clock.

mod rows;

use std::process::Command;
use std::time::Duration;

use apportion_cluster::managed::{
    LIMIT, MIB, ManagedNode, ManagedPod, by_claim, device_class, template,
};
use apportion_cluster::{eventually, image};
use serde_json::json;

use crate::rows::{AttackCase, AttackOutcome, ROWS};

/// How soon an offence must be told.
const SOON: Duration = Duration::from_secs(2);
/// How often an offence may be told late before the agent is.
const TRIES: usize = 3;
const OPTIONS: &[&str] = &[
    "--nri-socket",
    "/run/nri/nri.sock",
    "--nri-policy",
    "enforce",
    // A pod that is evicted tells nothing more.
    "--policy",
    "observe",
];

/// A pod that keeps to its limit while others do not.
fn neighbour(node: &ManagedNode) -> ManagedPod {
    let pod = node.pod("neighbour", "victim total alloc 1234M hold", |_| {});
    pod.says("alloc 0");
    pod
}

/// What the driver says that the pod uses, in bytes.
fn used(node: &ManagedNode, pod: &ManagedPod) -> f64 {
    let name = format!("pod=\"{}\"", pod.name);
    let labels = ["source=\"nvml\"", name.as_str()];
    let used = node.metric("apportion_container_memory_used_bytes", &labels);
    used.unwrap_or_default()
}

fn is(node: &ManagedNode, pod: &ManagedPod, state: &str) -> bool {
    let labels = [
        format!("pod=\"{}\"", pod.name),
        format!("state=\"{state}\""),
    ];
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    node.metric("apportion_container_enforcement_state", &labels) == Some(1.0)
}

/// How the attackers get their shares.
#[derive(Clone, Copy)]
enum ShareSource {
    Annotation,
    /// By claims of a template of this name.
    Claim(&'static str),
}

fn attack(node: &ManagedNode, row: &AttackCase, source: ShareSource) {
    let mut took = Vec::new();
    // What the agent does late, it does late each time; a machine that does much else delays it now and then.
    while took.len() < TRIES {
        let name = format!("{}-{}", row.name, took.len());
        let pod = node.pod(&name, row.script, |pod| {
            (row.change)(pod);
            if let ShareSource::Claim(template) = source {
                by_claim(pod, template);
            }
        });
        match row.outcome {
            AttackOutcome::Held => held(node, &pod),
            AttackOutcome::Within => within(node, &pod),
            AttackOutcome::Told(reasons) => took.push(told(&pod, reasons)),
            AttackOutcome::HeldOrTold(reasons) => took.extend(held_or_told(node, &pod, reasons)),
        }
        let log = pod.logs("main");
        assert!(!log.contains("BROKE"), "{name}: {log}");
        pod.delete();
        std::mem::forget(pod);
        if took.last().is_none_or(|took| *took <= SOON) {
            return;
        }
    }
    panic!("{} is told of too late: {took:?}", row.name);
}

fn held(node: &ManagedNode, pod: &ManagedPod) {
    let name = format!("pod=\"{}\"", pod.name);
    let said = || format!("{}\n{}\n{}", pod.name, pod.logs("main"), pod.events());
    eventually(&format!("{} is refused more", pod.name), || {
        let denied = node.metric(
            "apportion_container_memory_denied_total",
            &[&name, "api=\"alloc\""],
        );
        denied.is_some_and(|denied| denied > 0.0)
    });
    eventually(&format!("{} is attached", pod.name), || {
        is(node, pod, "attached")
    });
    assert!(used(node, pod) <= LIMIT as f64, "{}", said());
    pod.says(&format!("total 0 {LIMIT}"));
    assert!(!pod.events_by("{.reason}").contains("Gpu"), "{}", said());
}

fn within(node: &ManagedNode, pod: &ManagedPod) {
    eventually(&format!("{} has tried", pod.name), || {
        pod.logs("main").contains("tried")
    });
    let log = pod.logs("main");
    let said = || format!("{}\n{log}\n{}", pod.name, pod.events());
    let got = log.lines().filter(|line| line.starts_with("alloc 0"));
    assert!(got.count() <= 1, "{}", said());
    assert!(used(node, pod) <= LIMIT as f64, "{}", said());
    assert!(!pod.events_by("{.reason}").contains("Gpu"), "{}", said());
}

/// How long it took to tell; nothing where the second allocation was refused.
fn held_or_told(node: &ManagedNode, pod: &ManagedPod, reasons: &[&str]) -> Option<Duration> {
    let mut is_refused = false;
    let is_told = || {
        let events = pod.events_by("{.reason}");
        events.lines().any(|reason| reasons.contains(&reason))
    };
    eventually(&format!("{} is refused or told of", pod.name), || {
        is_refused = pod.logs("main").contains("alloc 2");
        is_refused || is_told()
    });
    // The allocation may be refused after the driver has made the second program's context above the limit.
    if is_refused && used(node, pod) <= LIMIT as f64 {
        return None;
    }
    Some(told(pod, reasons))
}

/// How long it took.
fn told(pod: &ManagedPod, reasons: &[&str]) -> Duration {
    let mut found = None;
    eventually(
        &format!("one of {reasons:?} is told of {}", pod.name),
        || {
            let events = pod.events_by("{.reason} {.eventTime}");
            let mut lines = events.lines().filter_map(|line| line.split_once(' '));
            found = lines
                .find(|(reason, _)| reasons.contains(reason))
                .map(|(_, at)| nanos(at));
            found.is_some()
        },
    );
    let mut log = String::new();
    eventually(&format!("{} says when it begins", pod.name), || {
        log = pod.all_logs();
        log.contains("begun ")
    });
    let begun = log.lines().find_map(|line| line.strip_prefix("begun "));
    let begun: u64 = begun.and_then(|at| at.parse().ok()).expect("it says when");
    let took = Duration::from_nanos(found.unwrap_or_default().saturating_sub(begun));
    println!("{:<24} told after {took:.2?}", pod.name);
    took
}

/// A time of Kubernetes in nanoseconds since 1970.
fn nanos(time: &str) -> u64 {
    let date = Command::new("date").args(["+%s%N", "-d", time]).output();
    let date = date.expect("coreutils are there").stdout;
    let text = String::from_utf8_lossy(&date);
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("{time:?} is no time"))
}

#[test]
fn no_attack_raises_a_limit_and_who_goes_around_the_library_is_told_of_at_once() {
    let node = ManagedNode::with(OPTIONS);
    let neighbour = neighbour(&node);
    for row in ROWS {
        attack(&node, row, ShareSource::Annotation);
    }
    assert!(is(&node, &neighbour, "attached"));
    assert!(used(&node, &neighbour) >= (1234 * MIB) as f64);
    assert_eq!(
        neighbour.at(".status.containerStatuses[0].restartCount"),
        "0"
    );
    // Nothing that a tenant could edit has been left in its namespace.
    let kept = node.kubectl(&["get", "configmaps,secrets", "-o", "name"]);
    assert_eq!(kept.trim(), "configmap/kube-root-ca.crt");
}

/// The same attacks by pods whose shares come from resource claims, placed by kube-scheduler.
#[test]
fn no_attack_raises_the_limit_of_a_claim() {
    const TEMPLATE: &str = "attacker";
    let options = [OPTIONS, &["--dra", "on"]].concat();
    let node = ManagedNode::with(&options);
    let memory = format!("{}Mi", LIMIT / MIB);
    for object in [device_class(None), template(TEMPLATE, Some(&memory), None)] {
        node.cluster
            .apply(&object)
            .expect("the API server takes it");
    }
    let neighbour = neighbour(&node);
    for row in ROWS {
        attack(&node, row, ShareSource::Claim(TEMPLATE));
    }
    assert!(is(&node, &neighbour, "attached"));
    assert!(used(&node, &neighbour) >= (1234 * MIB) as f64);
    let _ = node.kubectl(&["delete", "resourceclaimtemplate", TEMPLATE]);
}

/// A pod without a slot that would reach a card all the same.
#[test]
fn a_pod_without_a_grant_that_would_reach_a_card_does_not_start() {
    let node = ManagedNode::with(OPTIONS);
    let ways = [
        (
            "visible-devices",
            json!({}),
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (
            "cdi-annotation",
            json!({"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}),
            json!([]),
            "annotation nvidia.cdi.k8s.io/container.main",
        ),
    ];
    for (name, annotations, env, way) in ways {
        let pod = node.pod(name, "echo started", |pod| {
            pod["metadata"]["annotations"] = annotations;
            pod["spec"]["containers"] = json!([{
                "name": "main",
                "image": image::VICTIM,
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", "echo started"],
                "env": env,
            }]);
        });
        let sentence = format!("container main would reach a GPU through {way}");
        eventually(&sentence, || pod.events().contains(&sentence));
        assert!(!pod.logs("main").contains("started"), "{name}");
    }
}

#[test]
fn a_pod_whose_ask_is_hostile_does_not_start_and_its_events_say_why() {
    let node = ManagedNode::with(OPTIONS);
    let asks = [
        ("gpu-memory", "-1"),
        ("gpu-memory", "0"),
        ("gpu-memory", "0x7d0"),
        ("gpu-memory", "99999999999999999999"),
        ("gpu-memory", "2000; rm -rf /"),
        ("gpu-fraction", "NaN"),
        ("gpu-fraction", "inf"),
        ("gpu-fraction", "1.5"),
    ];
    let pods: Vec<_> = asks
        .iter()
        .enumerate()
        .map(|(index, (annotation, value))| {
            let name = format!("hostile-{index}");
            let pod = node.pod(&name, "echo started", |pod| {
                pod["metadata"]["annotations"] = json!({*annotation: value});
            });
            (pod, value)
        })
        .collect();
    for (pod, value) in pods {
        let sentence = format!("\"{value}\" is not a ");
        eventually(&sentence, || pod.events().contains(&sentence));
        assert!(!pod.logs("main").contains("started"), "{value}");
    }
}
