//! The model as the cluster that the policy decides on.
//!
//! Objects say most of it. What they do not say is added here: the cards as the agents count them, pods on
//! their way, pods that have to wait, and memory of cards that is held by nobody whom Kubernetes knows.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::{Bytes, Share};
use apportion_groups::Object;
use apportion_policy::cluster::{Cards, Group, Job, Node, PodSet, Status, Task};
use serde_json::{Value, json};

use super::agents::{Agent, Said, Stage};
use super::model::Model;
use super::seats;
use crate::objects::admission::{TAKES_CARDS, TAKES_SHARES};
use crate::objects::remark::Remarks;
use crate::objects::snapshot::{self, Snapshot};
use crate::objects::{clock, pods};

const YES: &str = "yes";
/// Longer than any cluster lives.
const NEVER: Duration = Duration::from_secs(3_000_000_000);

impl Model {
    /// The cluster now.
    pub(crate) fn cluster(&self, now: Duration) -> Snapshot<'_> {
        let mut remarks = Remarks::default();
        let mut snapshot = snapshot::snapshot(
            &self.inventory,
            &self.schedulers,
            &self.assumed(),
            now,
            &mut remarks,
        );
        for node in &mut snapshot.cluster.nodes {
            self.mark(now, node);
        }
        for job in &mut snapshot.cluster.jobs {
            for task in &mut job.tasks {
                self.correct(now, task);
            }
            if job.tasks.iter().any(|task| self.is_modest(task)) {
                job.preemption_delay = NEVER;
            }
            if job.tasks.iter().any(|task| self.is_spared(now, task)) {
                job.is_preemptible = false;
            }
        }
        for (node, agent) in self.agents.all() {
            let strangers = self.strangers(node, &agent.said);
            let known = snapshot.cluster.nodes.iter_mut();
            if let Some(known) = known.into_iter().find(|known| known.name == *node) {
                known.pods += i64::try_from(strangers.tasks.len()).unwrap_or(0);
                snapshot.cluster.jobs.push(strangers);
            }
        }
        snapshot
    }

    /// Pods on their way, by name, with their nodes.
    fn assumed(&self) -> BTreeMap<String, String> {
        let all = self.starts.all();
        all.map(|start| (start.pod.full(), start.node.clone()))
            .collect()
    }

    fn mark(&self, now: Duration, node: &mut Node) {
        let agent = self.agents.of(&node.name);
        let mut mark = |label: &str| node.labels.insert(label.to_owned(), YES.to_owned());
        match agent {
            Some(Agent { is_here: true, .. }) => {
                mark(TAKES_SHARES);
                mark(TAKES_CARDS);
            }
            Some(Agent { is_here: false, .. }) => {}
            None if self.beats.is_silent(now, &node.name) => {}
            None => {
                mark(TAKES_CARDS);
            }
        }
        if let Some(agent) = agent {
            let given = i64::try_from(agent.said.healthy().count()).unwrap_or(0);
            node.cards = node.cards.min(given);
            node.card_memory = agent.said.card_memory().unwrap_or(node.card_memory);
        }
    }

    fn correct(&self, now: Duration, task: &mut Task) {
        let yes = || vec![YES.to_owned()];
        match task.cards {
            Cards::Shared { .. } => task.node_affinity.push((TAKES_SHARES.to_owned(), yes())),
            Cards::Whole(_) => task.node_affinity.push((TAKES_CARDS.to_owned(), yes())),
            Cards::None | Cards::Partitions(_) => {}
        }
        let Some(uid) = self.uid(task) else {
            return;
        };
        if task.status.is_active() {
            self.seat(task, &uid);
        }
        if let Some(start) = self
            .starts
            .get(&uid)
            .filter(|_| task.status == Status::Pending)
        {
            task.status = Status::Binding;
            task.node = Some(start.node.clone());
            task.on = match task.cards {
                Cards::Shared { .. } => start.cards.iter().map(|(card, _)| card.clone()).collect(),
                Cards::None | Cards::Whole(_) | Cards::Partitions(_) => Vec::new(),
            };
        } else if task.status == Status::Pending && self.back_off.holds(&uid, now) {
            task.status = Status::Gated;
        } else if task.status.is_allocated()
            && self.ending.get(&uid).is_some_and(|till| now < *till)
        {
            task.status = Status::Releasing;
        }
    }

    /// The cards of a pod that has a node: as its agent says, else as its labels do.
    fn seat(&self, task: &mut Task, uid: &str) {
        let agent = task.node.as_deref().and_then(|node| self.agents.of(node));
        let held = agent.and_then(|agent| agent.said.of_pod(uid));
        let held = held.map(|held| held.shares.clone());
        let written = || seats::written(self.object(task)?);
        match held.or_else(written) {
            Some(shares) => task.on = shares.into_iter().map(|(card, _)| card).collect(),
            None => {
                for card in &mut task.on {
                    if let Some(uuid) = self.card_of_group(card) {
                        *card = uuid;
                    }
                }
            }
        }
    }

    fn object(&self, task: &Task) -> Option<Object<'_>> {
        let (namespace, name) = task.name.split_once('/')?;
        self.inventory.find("Pod", namespace, name)
    }

    fn uid(&self, task: &Task) -> Option<String> {
        Some(self.object(task)?.uid().to_owned())
    }

    /// Whether a pod says that nobody may be evicted for it.
    fn is_modest(&self, task: &Task) -> bool {
        let object = self.object(task);
        object.is_some_and(|object| object.json()["spec"]["preemptionPolicy"] == "Never")
    }

    fn is_spared(&self, now: Duration, task: &Task) -> bool {
        let uid = self.uid(task);
        task.status.is_allocated() && uid.is_some_and(|uid| self.spared.holds(&uid, now))
    }

    /// What the cards of a node hold that no pod accounts for, as tasks that nobody may move.
    fn strangers(&self, node: &str, said: &Said) -> Job {
        let mut held: BTreeMap<(&str, bool), u64> = BTreeMap::new();
        for card in said.healthy().filter(|card| card.unmanaged > Bytes::ZERO) {
            held.insert((&card.uuid, false), card.unmanaged.0);
        }
        for one in &said.held {
            let is_known = one.uid.as_ref().is_some_and(|uid| {
                let is_bound = self.is_on(uid, node);
                let is_starting = self.starts.get(uid).is_some_and(|start| start.node == node);
                is_bound || is_starting
            });
            for (card, bytes) in one.shares.iter().filter(|_| !is_known) {
                let key = (card.as_str(), one.stage == Stage::Draining);
                *held.entry(key).or_default() += bytes;
            }
        }
        let task = |((card, is_leaving), bytes): ((&str, bool), u64)| {
            let kind = if is_leaving {
                "leaving"
            } else {
                "without a pod"
            };
            stranger(node, card, kind, is_leaving, bytes)
        };
        Job {
            name: format!("{node} holders without a pod"),
            root: Group {
                sets: vec![PodSet {
                    name: "default".to_owned(),
                    ..PodSet::default()
                }],
                ..Group::default()
            },
            tasks: held.into_iter().map(task).collect(),
            ..Job::default()
        }
    }

    /// Whether a pod is on a node, as far as the API server knows.
    fn is_on(&self, uid: &str, node: &str) -> bool {
        let pod = self.pods.get(uid);
        let object = pod.and_then(|pod| self.inventory.find("Pod", &pod.namespace, &pod.name));
        object.is_some_and(|object| pods::node(object) == Some(node) && !pods::is_over(object))
    }
}

fn stranger(node: &str, card: &str, kind: &str, is_leaving: bool, bytes: u64) -> Task {
    Task {
        name: format!("{node}/{card} {kind}"),
        set: "default".to_owned(),
        status: if is_leaving {
            Status::Releasing
        } else {
            Status::Running
        },
        node: Some(node.to_owned()),
        on: vec![card.to_owned()],
        cards: Cards::Shared {
            share: Share::Memory(Bytes(bytes)),
            devices: 1,
        },
        ..Task::default()
    }
}

/// Writes on a node what its agent says, in the fields of NVIDIA's own programs.
pub(crate) fn write_cards(node: &mut Value, said: &Said) {
    let count = said.healthy().count().to_string();
    for list in ["capacity", "allocatable"] {
        node["status"][list]["nvidia.com/gpu"] = json!(count);
    }
    if let Some(memory) = said.card_memory() {
        node["metadata"]["labels"]["nvidia.com/gpu.memory"] = json!(memory.as_mib().to_string());
    }
}

/// Now, on the policy's clock.
pub(crate) fn now() -> Duration {
    clock::since_epoch(jiff::Timestamp::now())
}
