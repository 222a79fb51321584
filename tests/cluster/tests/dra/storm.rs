//! Claims placed by kube-scheduler and shares placed by Apportion's scheduler, while agent, kubelet and both schedulers
//! are killed.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use apportion_cluster::LocalCluster;
use apportion_cluster::managed::{ManagedNode, ManagedPod};
use apportion_cluster::programs::{self, StagedProgram};
use serde_json::{Value, json};

use super::{ClaimNode, FULL};

/// The agent leaves shares by annotation to Apportion's scheduler.
const OPTIONS: &[&str] = &["--dra", "on", "--unplaced", "deny"];
/// The queue of the shares.
const QUEUE: &str = "test";
/// Where Apportion's scheduler finds the agent.
const AGENT_ADDRESS: &str = "apportion.dev/agent-address";

/// Apportion's scheduler for the shares of a node.
struct ShareScheduler {
    cluster: LocalCluster,
    program: StagedProgram,
}

impl ShareScheduler {
    fn start(node: &ManagedNode) -> Self {
        let cluster = LocalCluster::of_tests();
        programs::install_kinds(&cluster);
        let queues = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/queues.yaml");
        let socket = node.instance().join("agent.sock");
        let address = format!("{AGENT_ADDRESS}=unix:{}", socket.display());
        for command in [
            &["apply", "-f", &queues.display().to_string()][..],
            &["annotate", "node", &cluster.node(), &address, "--overwrite"],
        ] {
            cluster.kubectl(command).expect("the API server takes it");
        }
        let program = Self::spawn(&cluster);
        Self { cluster, program }
    }

    fn spawn(cluster: &LocalCluster) -> StagedProgram {
        let options = ["run", "--address", "127.0.0.1:0", "--lease-duration", "3"];
        StagedProgram::scheduler(cluster, &options)
    }

    fn restart(&mut self) {
        self.program.kill();
        self.program = Self::spawn(&self.cluster);
    }
}

impl Drop for ShareScheduler {
    fn drop(&mut self) {
        let forget = format!("{AGENT_ADDRESS}-");
        let node = self.cluster.node();
        for command in [
            &["annotate", "node", &node, &forget][..],
            &["delete", "queues", "--all"],
        ] {
            let _ = self.cluster.kubectl(command);
        }
    }
}

/// What was killed, and how often.
#[derive(Debug, Default)]
struct KillCounts {
    agent: u32,
    kubelet: u32,
    kube_scheduler: u32,
    share_scheduler: u32,
}

struct ClaimStorm {
    node: ClaimNode,
    scheduler: ShareScheduler,
    pods: BTreeMap<String, ManagedPod>,
    seed: u64,
    kills: KillCounts,
}

impl ClaimStorm {
    fn start(seed: u64) -> Self {
        let node = ClaimNode::with(OPTIONS);
        Self {
            scheduler: ShareScheduler::start(&node.node),
            node,
            pods: BTreeMap::new(),
            seed,
            kills: KillCounts::default(),
        }
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.seed >> 33).unwrap_or_default() % sides.max(1)
    }

    fn step(&mut self, step: usize) {
        let name = format!("storm-{step}");
        match self.roll(40) {
            0 | 1 => {
                self.node.node.kill_agent();
                self.node.node.start_agent(OPTIONS);
                self.kills.agent += 1;
            }
            2 => {
                self.node.node.restart("kubelet");
                self.node.node.offers_slots();
                self.kills.kubelet += 1;
            }
            3 => {
                self.node.node.restart("kube-scheduler");
                self.kills.kube_scheduler += 1;
            }
            4 | 5 => {
                self.scheduler.restart();
                self.kills.share_scheduler += 1;
            }
            6..=17 => {
                let card = ["first", "second"][self.roll(2)];
                let pod = self.node.pod(&name, FULL, card);
                self.pods.insert(name, pod);
            }
            18..=26 => {
                let pod = self.node.node.pod(&name, FULL, by_annotation);
                self.pods.insert(name, pod);
            }
            _ => {
                let chosen = self.roll(self.pods.len());
                let chosen = self.pods.keys().nth(chosen).cloned();
                if let Some(pod) = chosen.and_then(|name| self.pods.remove(&name)) {
                    pod.delete();
                    // Dropping it would wait for its end.
                    std::mem::forget(pod);
                }
            }
        }
    }

    fn holds(&self, step: usize) {
        for (given, all) in self.node.given() {
            assert!(given <= all, "step {step}: {given} of {all} are given");
        }
        for pod in self.pods.values() {
            let log = pod.logs("main");
            let is_held = log.lines().all(|line| line != "alloc 0");
            assert!(is_held, "step {step}: {} got a byte more: {log}", pod.name);
        }
    }

    /// A claim and a share still get their memory, and nothing is left of anybody in the end.
    fn ends(mut self) {
        self.pods.clear();
        self.node
            .node
            .pod("last-share", FULL, by_annotation)
            .says("alloc 2");
        self.node.pod("last-claim", FULL, "first").says("alloc 2");
        self.node.ends_clean();
    }
}

fn by_annotation(pod: &mut Value) {
    pod["metadata"]["labels"] = json!({"kai.scheduler/queue": QUEUE});
    pod["spec"]["schedulerName"] = json!("apportion-scheduler");
}

#[test]
fn claims_and_annotations_never_take_more_than_a_card_whatever_dies() {
    let steps = env::var("APPORTION_STORM_STEPS").ok();
    let steps: usize = steps.and_then(|steps| steps.parse().ok()).unwrap_or(60);
    let mut storm = ClaimStorm::start(20_261_126);
    for step in 0..steps {
        storm.step(step);
        storm.holds(step);
    }
    println!(
        "{steps} steps, {} pods are left, {:?} killed",
        storm.pods.len(),
        storm.kills
    );
    assert!(storm.kills.agent > 0, "the storm was none");
    storm.ends();
}
