//! Anything at all, in any order, against a real API server: pods come, go, end and are edited; the scheduler,
//! the agents and the API server are killed; the scheduler that leads is stopped until another leads, and goes on.
//!
//! What must hold at every moment: no card has more granted than it has, in the agent's book or as pods
//! have it written on them, and nobody's pod is gone but those that this test took away. When all is quiet the two
//! books are one, and at the end both are empty. `APPORTION_STEPS` and `APPORTION_SEED` make it longer
//! or another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use apportion_proto::v1;
use apportion_tests::{CARD, cards};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::cluster::{Cluster, PATIENCE, pod};
use crate::requests::Requests;

/// The nodes, with two cards each.
const NODES: [&str; 2] = ["node-1", "node-2"];
/// How many pods there are at most.
const PODS: usize = 24;
/// How often it is looked at what must hold.
const GLANCE: u64 = 20;
/// How often everything is left alone until it is quiet.
const QUIET: u64 = 500;

/// A small generator: a run is the same each time, as far as the machine lets it.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % sides.max(1)
    }
}

struct World {
    cluster: Cluster,
    requests: Requests,
    dice: Dice,
    made: usize,
    /// Pods that are there for sure, as far as they were not evicted.
    alive: BTreeSet<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::bare();
        for node in NODES {
            cluster.add_node(node, &cards(2));
        }
        cluster.start_scheduler();
        Self {
            requests: Requests::new(&cluster.plane.kubeconfig()),
            cluster,
            dice: Dice(seed),
            made: 0,
            alive: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        self.cluster.revive_scheduler();
        match self.dice.roll(1000) {
            0..330 => self.create(),
            330..600 => self.delete(),
            600..700 => self.end(),
            700..860 => self.edit(),
            860..965 => std::thread::sleep(Duration::from_millis(self.dice.roll(60) as u64)),
            965..980 => {
                self.cluster.kill_scheduler();
                self.cluster.start_scheduler();
            }
            980..992 => {
                let node = NODES[self.dice.roll(NODES.len())];
                let node = self.cluster.nodes.get_mut(node).expect("it is there");
                node.replace_agent();
            }
            992..997 => self.depose(),
            _ => {
                self.cluster.plane.kill_apiserver();
                self.cluster.plane.start_apiserver();
            }
        }
    }

    fn create(&mut self) {
        if self.alive.len() >= PODS {
            return;
        }
        self.made += 1;
        let gang = (self.dice.roll(6) == 0).then(|| format!("gang-{}", self.made));
        if let Some(gang) = &gang {
            self.requests.create(
                json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": {"name": gang, "namespace": "default"},
                "spec": {"minMember": 2, "queue": "default-queue",
                    "preemptibility": "non-preemptible"}}),
            );
        }
        let ask = self.dice.roll(8);
        let share = self.share();
        for member in 0..if gang.is_some() { 2 } else { 1 } {
            let name = format!("pod-{}-{member}", self.made);
            let mut pod = pod(&name, json!({}));
            pod["metadata"]["labels"]["kai.scheduler/preemptibility"] = "non-preemptible".into();
            match ask {
                0 => {
                    pod["spec"]["containers"][0]["resources"]["limits"] =
                        json!({"nvidia.com/gpu": "1"})
                }
                1 => pod["metadata"]["annotations"]["gpu-memory"] = "1234".into(),
                _ => pod["metadata"]["annotations"]["gpu-fraction"] = share.as_str().into(),
            }
            if let Some(gang) = &gang {
                pod["metadata"]["annotations"]["pod-group-name"] = gang.as_str().into();
            }
            if self.requests.create(pod) {
                self.alive.insert(name);
            }
        }
    }

    fn share(&mut self) -> String {
        format!("0.{:02}", 1 + self.dice.roll(99))
    }

    fn any(&mut self) -> Option<String> {
        let which = self.dice.roll(self.alive.len());
        self.alive.iter().nth(which).cloned()
    }

    fn delete(&mut self) {
        if let Some(name) = self.any() {
            // It may be gone also where nobody said so.
            self.alive.remove(&name);
            self.requests.delete(&name);
        }
    }

    fn end(&mut self) {
        if let Some(name) = self.any() {
            let phase = ["Succeeded", "Failed"][self.dice.roll(2)];
            self.requests
                .edit_status(&name, &json!({"status": {"phase": phase}}));
        }
    }

    /// Asks for another share, of a pod that waits or of one that has a place and keeps what it has.
    fn edit(&mut self) {
        if let Some(name) = self.any() {
            let share = self.share();
            let patch = json!({"metadata": {"annotations": {"gpu-fraction": share}}});
            self.requests.edit(&name, &patch);
        }
    }

    /// Stops the scheduler that leads until another does; then it goes on.
    fn depose(&mut self) {
        self.cluster.await_leader();
        let stopped = self.cluster.stop_scheduler();
        self.cluster.start_scheduler();
        for _ in 0..self.dice.roll(4) {
            self.create();
        }
        self.cluster.await_leader();
        self.delete();
        stopped.go_on();
    }

    /// What must hold at every moment.
    fn glance(&self) {
        for node in NODES {
            if let Some(book) = self.book(node) {
                for (card, granted) in granted(&book) {
                    assert!(
                        granted <= CARD,
                        "{card} of {node} gives {granted}\n{}",
                        self.cluster.said()
                    );
                }
            }
        }
        let Some(pods) = self.requests.all() else {
            return;
        };
        // The simulated cards of two nodes have the same names.
        let mut written: BTreeMap<(&str, String), u64> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| is_on_node(pod)) {
            for (card, bytes) in cards_of(pod) {
                *written.entry((node_of(pod), card)).or_default() += bytes;
            }
        }
        for ((node, card), sum) in written {
            assert!(
                sum <= CARD,
                "{card} of {node} is given to pods for {sum}\n{}",
                self.cluster.said()
            );
        }
        let there: BTreeSet<&str> = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .map(name)
            .collect();
        for name in &self.alive {
            assert!(
                there.contains(name.as_str()),
                "{name} was taken away\n{}",
                self.cluster.said()
            );
        }
    }

    fn book(&self, node: &str) -> Option<v1::ListReply> {
        let socket = self.cluster.nodes[node].host.instance().join("agent.sock");
        self.requests.book(&socket)
    }

    /// Waits until agents hold what bound pods have and nothing else.
    fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE * 3;
        loop {
            let differences = self.differences();
            if differences.as_ref().is_some_and(Vec::is_empty) {
                return;
            }
            self.cluster.revive_scheduler();
            assert!(
                Instant::now() < deadline,
                "{differences:?}\n{}",
                self.cluster.said()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Where the books of the agents and of the API server are not one.
    fn differences(&self) -> Option<Vec<String>> {
        let pods = self.requests.all()?;
        let on_cards = pods
            .iter()
            .filter(|pod| is_on_node(pod) && !cards_of(pod).is_empty());
        let mut wanted: BTreeMap<String, BTreeMap<String, u64>> = on_cards
            .map(|pod| (uid(pod), cards_of(pod).into_iter().collect()))
            .collect();
        let mut wrong = Vec::new();
        for node in NODES {
            for held in self.book(node)?.allocations {
                let grants = held.grants.iter();
                let shares = grants
                    .map(|grant| (grant.card.clone(), grant.limit_bytes))
                    .collect();
                let is_committed = held.state() == v1::AllocationState::Allocated;
                match wanted.remove(&held.idempotency_key) {
                    Some(asked) if asked == shares && is_committed => {}
                    other => wrong.push(format!(
                        "{} has {shares:?}, and should {other:?}",
                        held.name
                    )),
                }
            }
        }
        wrong.extend(wanted.keys().map(|uid| format!("no agent knows {uid}")));
        Some(wrong)
    }
}

fn granted(book: &v1::ListReply) -> BTreeMap<&str, u64> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for grant in book.allocations.iter().flat_map(|held| &held.grants) {
        *sums.entry(&grant.card).or_default() += grant.limit_bytes;
    }
    sums
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Whether a pod holds a place.
fn is_on_node(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    !is_over
        && pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some())
}

/// The cards that are written on a pod.
fn node_of(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

fn cards_of(pod: &Pod) -> Vec<(String, u64)> {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get("apportion.dev/cards"));
    let one = |text: &str| {
        let (card, bytes) = text.split_once('=')?;
        Some((card.to_owned(), bytes.parse().ok()?))
    };
    text.iter()
        .flat_map(|text| text.split(','))
        .filter_map(one)
        .collect()
}

/// A number of the environment.
fn number(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn whatever_happens_no_card_is_given_twice_and_nothing_is_left_behind() {
    let (steps, seed) = (number("APPORTION_STEPS", 200), number("APPORTION_SEED", 1));
    let mut world = World::new(seed);
    for step in 1..=steps {
        world.step();
        if step % GLANCE == 0 {
            world.glance();
        }
        if step % QUIET == 0 || step == steps {
            world.settle();
            println!("{step} steps, {} pods made", world.made);
        }
    }
    while let Some(name) = world.any() {
        world.alive.remove(&name);
        world.requests.delete(&name);
    }
    world.settle();
    for node in NODES {
        let book = world.book(node).expect("it answers");
        assert!(book.allocations.is_empty(), "{:?}", book.allocations);
    }
}
