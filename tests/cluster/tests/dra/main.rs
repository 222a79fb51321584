//! Resource claims with the real kubelet and the default kube-scheduler: shares that it places by the agent's
//! ResourceSlice are held to their limits, beside shares by annotation and across restarts.

use std::path::Path;

use apportion_cluster::eventually;
use apportion_cluster::managed::{
    DEVICE_CLASS, MIB, ManagedNode, ManagedPod, by_claim, device_class, template,
};
use serde_json::{Value, json};

#[path = "../../../kubelet/tests/suite/dice.rs"]
mod dice;
mod refused;
mod storm;

/// The agent gives shares by annotation to pods that it places itself.
const OPTIONS: &[&str] = &["--dra", "on"];
const SHARE: u64 = 2000;
/// Takes all of a share in pieces, and then one byte more.
const FULL: &str = "victim total fill 1M alloc 1 hold";

/// The node, its class, and templates for shares of [`SHARE`] MiB on each card and for whole cards.
struct ClaimNode {
    node: ManagedNode,
    cards: Vec<String>,
}

impl ClaimNode {
    fn start() -> Self {
        Self::with(OPTIONS)
    }

    fn with(options: &[&str]) -> Self {
        Self::on(ManagedNode::with(options))
    }

    fn on(node: ManagedNode) -> Self {
        let slice = |node: &ManagedNode| slice(node).unwrap_or_default();
        eventually("the node's cards are offered", || {
            slice(&node)["spec"]["devices"]
                .as_array()
                .is_some_and(|all| all.len() == 2)
        });
        let devices = slice(&node)["spec"]["devices"].clone();
        let devices = devices.as_array().into_iter().flatten();
        let uuid = |device: &Value| {
            device["attributes"]["uuid"]["string"]
                .as_str()
                .map(str::to_owned)
        };
        let cards: Vec<String> = devices.filter_map(uuid).collect();
        let of = |name: &str, memory, card| template(name, memory, card);
        let memory = format!("{SHARE}Mi");
        for object in [
            device_class(None),
            of("first", Some(&memory), Some(&cards[0])),
            of("second", Some(&memory), Some(&cards[1])),
            of("whole", None, None),
        ] {
            node.cluster
                .apply(&object)
                .expect("the API server takes it");
        }
        Self { node, cards }
    }

    fn pod(&self, name: &str, script: &str, template: &str) -> ManagedPod {
        self.node.pod(name, script, |pod| by_claim(pod, template))
    }

    /// The memory that claims can have of a card, in MiB.
    fn offered(&self, card: &str) -> Option<u64> {
        let slice = slice(&self.node)?;
        let devices = slice["spec"]["devices"].as_array()?.iter();
        let device = devices
            .into_iter()
            .find(|device| device["attributes"]["uuid"]["string"] == card)?;
        mib(device["capacity"]["memory"]["value"].as_str()?)
    }

    /// What the ledger has given of each card, in MiB, beside what the card has.
    fn given(&self) -> Vec<(f64, f64)> {
        let of = |card: &String| {
            let label = format!("gpu_uuid=\"{card}\"");
            let value = |series: &str| self.node.metric(series, &[&label]).unwrap_or_default();
            (
                value("apportion_gpu_memory_granted_bytes"),
                value("apportion_gpu_memory_allocatable_bytes"),
            )
        };
        self.cards.iter().map(of).collect()
    }

    fn is_empty(&self) -> bool {
        self.given()
            .iter()
            .all(|(given, all)| *given == 0.0 && *all > 0.0)
    }

    /// Waits until nothing is left of any pod.
    fn ends_clean(&self) {
        eventually("every claim is gone", || {
            let claims = ["get", "resourceclaims", "-o", "name"];
            self.node.kubectl(&claims).is_empty()
        });
        eventually("the ledger is empty", || self.is_empty());
        eventually("no grant is left", || self.node.grants().is_empty());
    }
}

impl Drop for ClaimNode {
    fn drop(&mut self) {
        for template in ["first", "second", "whole"] {
            let delete = [
                "delete",
                "resourceclaimtemplate",
                template,
                "--ignore-not-found",
            ];
            let _ = self.node.kubectl(&delete);
        }
    }
}

fn slice(node: &ManagedNode) -> Option<Value> {
    let name = format!("{}-{DEVICE_CLASS}", node.cluster.node());
    serde_json::from_str(&node.kubectl(&["get", "resourceslice", &name, "-o", "json"])).ok()
}

/// A quantity in MiB.
fn mib(text: &str) -> Option<u64> {
    let at = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..at].parse().ok()?;
    match &text[at..] {
        "Ki" => Some(number / 1024),
        "Mi" => Some(number),
        "Gi" => Some(number * 1024),
        "" => Some(number / MIB),
        _ => None,
    }
}

#[test]
fn as_many_claims_run_as_fit_and_each_end_starts_the_next() {
    let node = ClaimNode::start();
    let all = node.offered(&node.cards[0]).expect("the slice is there");
    let fit = usize::try_from(all / SHARE).expect("it is small");
    // On a GPU of 46,068 MiB these are 24 claims, of which 22 fit.
    let pods: Vec<ManagedPod> = (0..fit + 2)
        .map(|number| node.pod(&format!("claim-{number}"), FULL, "first"))
        .collect();
    let running = || pods.iter().filter(|pod| pod.phase() == "Running").count();
    eventually("as many run as fit", || running() == fit);
    let (running_pods, waiting): (Vec<_>, Vec<_>) =
        pods.iter().partition(|pod| pod.phase() == "Running");
    for pod in &waiting {
        eventually("kube-scheduler says why the others wait", || {
            pod.events().contains("cannot allocate all claims")
        });
    }
    for pod in &running_pods {
        let log = pod.says("alloc 2");
        assert!(
            log.contains(&format!("total 0 {}", SHARE * MIB)),
            "{}: {log}",
            pod.name
        );
        let name = format!("pod=\"{}\"", pod.name);
        let used = node.node.metric(
            "apportion_container_memory_used_bytes",
            &["source=\"nvml\"", &name],
        );
        assert!(
            used.is_some_and(|used| used <= (SHARE * MIB) as f64),
            "{}: {used:?}",
            pod.name
        );
    }
    println!(
        "{fit} claims of {SHARE} MiB run on a GPU that offers {all} MiB, and {} wait",
        waiting.len()
    );
    assert_eq!(running(), fit, "the others still wait");
    running_pods[0].delete();
    eventually("one of the others starts", || {
        waiting
            .iter()
            .any(|pod| pod.logs("main").contains("alloc 2"))
    });
    drop(pods);
    node.ends_clean();
}

#[test]
fn a_claim_outlives_the_agent_and_the_kubelet_and_is_unprepared_in_the_end() {
    let mut node = ClaimNode::start();
    // The first program lives through everything; the second starts when the pod is told to.
    let script = "victim alloc 500M hold & until test -e /go; do sleep 0.2; done; victim fill 1M alloc 1 hold";
    let pod = node.pod("outlives", script, "first");
    pod.says("alloc 0");
    node.node.kill_agent();
    node.node.start_agent(OPTIONS);
    node.node.restart("kubelet");
    node.node.offers_slots();
    eventually("the second program may start", || {
        pod.exec("echo > /go; ls /go").contains("/go")
    });
    let log = pod.says("alloc 2");
    let filled = log.lines().find_map(|line| line.strip_prefix("fill 2 "));
    let filled: u64 = filled
        .and_then(|of| of.split(' ').next()?.parse().ok())
        .expect("it filled");
    assert!(
        filled <= (SHARE - 500) * MIB,
        "both programs share one limit: {log}"
    );
    let next = node.pod("next", FULL, "first");
    next.says("alloc 2");
    drop((pod, next));
    node.ends_clean();
}

#[test]
fn a_share_by_annotation_takes_its_memory_from_claims_and_a_whole_card_waits_for_it() {
    let node = ClaimNode::start();
    let all = node.offered(&node.cards[0]).expect("the slice is there");
    let share = node.node.pod("share", "victim total hold", |_| {});
    share.says("total 0");
    let both = || [0, 1].map(|card| node.offered(&node.cards[card]).unwrap_or_default());
    eventually("one card has less for claims", || {
        let mut both = both();
        both.sort_unstable();
        both == [all - SHARE, all]
    });
    let first = node.pod("whole-1", "victim total alloc 3000M hold", "whole");
    let log = first.says("alloc 0");
    assert!(
        !first.exec("cat /proc/1/maps").contains("libapportion_cuda"),
        "{log}"
    );
    let second = node.pod("whole-2", "victim total alloc 3000M hold", "whole");
    eventually("kube-scheduler says why it waits", || {
        second.events().contains("cannot allocate all claims")
    });
    drop(share);
    second.says("alloc 0");
    drop((first, second));
    eventually("all of both is back", || both() == [all, all]);
    node.ends_clean();
}

#[test]
fn a_container_with_two_claims_does_not_start_and_its_event_says_why() {
    let node = ClaimNode::start();
    let pod = node.node.pod("doubled", "victim total hold", |pod| {
        by_claim(pod, "first");
        pod["spec"]["resourceClaims"] = json!([
            {"name": "gpu", "resourceClaimTemplateName": "first"},
            {"name": "more", "resourceClaimTemplateName": "second"}]);
        pod["spec"]["containers"][0]["resources"] =
            json!({"claims": [{"name": "gpu"}, {"name": "more"}]});
    });
    eventually("its event says why", || {
        pod.events()
            .contains("a container can have one claim of gpu.apportion.dev")
    });
    assert_eq!(pod.phase(), "Pending");
    drop(pod);
    node.ends_clean();
}

#[test]
fn a_pod_that_asks_for_the_extended_resource_gets_a_whole_card_by_a_claim() {
    let node = ClaimNode::start();
    let class = device_class(Some("nvidia.com/gpu"));
    node.node
        .cluster
        .apply(&class)
        .expect("the API server takes it");
    let pod = node
        .node
        .pod("extended", "victim total alloc 3000M hold", |pod| {
            pod["metadata"]["annotations"] = json!({});
            pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": 1}});
        });
    pod.says("alloc 0");
    let claim = pod.at(".status.extendedResourceClaimStatus.resourceClaimName");
    assert!(!claim.is_empty(), "kube-scheduler made no claim");
    let is_whole = ["pod=\"extended\"", "state=\"whole\""];
    let state = "apportion_container_enforcement_state";
    eventually("metrics say so", || {
        node.node.metric(state, &is_whole) == Some(1.0)
    });
    drop(pod);
    node.node
        .cluster
        .apply(&device_class(None))
        .expect("the API server takes it");
    node.ends_clean();
}

#[test]
fn the_examples_of_claims_do_what_they_say() {
    let node = ClaimNode::start();
    let path = |file: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        folder.join(file).display().to_string()
    };
    let gpus = |pod: &str| {
        let said = node.node.kubectl(&["exec", pod, "--", "victim", "count"]);
        let count = said.lines().find_map(|line| line.strip_prefix("count 0 "));
        count.and_then(|count| count.trim().parse::<usize>().ok())
    };
    for (file, pods, count) in [
        ("dra-share.yaml", &["dra-share"][..], 1),
        ("dra-two-gpus.yaml", &["dra-two-gpus"], 2),
        ("dra-shared.yaml", &["dra-shared-1", "dra-shared-2"], 1),
        ("dra-whole.yaml", &["dra-whole"], 1),
    ] {
        node.node
            .cluster
            .kubectl(&["apply", "-f", &path(file)])
            .expect("it is a manifest");
        for pod in pods {
            eventually(&format!("{pod} runs"), || {
                node.node
                    .kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"])
                    == "Running"
            });
            eventually(&format!("{pod} sees its GPUs"), || gpus(pod) == Some(count));
        }
        let _ = node
            .node
            .kubectl(&["delete", "-f", &path(file), "--wait", "--now"]);
    }
    node.ends_clean();
}
