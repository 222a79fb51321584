//! The model as the cluster that the policy decides on.
//!
//! Most of it comes from objects. This adds the cards as the agents count them, pending binds, pods in back-off, and
//! memory of cards that is held by nothing that Kubernetes knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::Bytes;
use apportion_abi::names::{LABEL_GPU_MEMORY, RESOURCE_WHOLE};
use apportion_groups::ObjectView;
use apportion_kubernetes::since_epoch;
use apportion_policy::cluster::{ListedCard, Node, Task, TaskGpuRequest, TaskStatus};
use serde_json::{Value, json};

use super::agents::{AgentAllocation, AgentAllocationState, AgentCard, AgentStatus, TrackedAgent};
use super::card_assignment;
use super::event::AgentRequest;
use super::model::ClusterModel;
use apportion_model::admission::{TAKES_CARDS, TAKES_SHARES};
use apportion_model::cards::{self, CardInventory, CardShare, ForeignHolding, add_strangers};
use apportion_model::claims;
use apportion_model::nodes;
use apportion_model::numa;
use apportion_model::object_kinds::GPU_NODE;
use apportion_model::object_warnings::ObjectWarnings;
use apportion_model::parsed_objects::ParsedPod;
use apportion_model::snapshot::{self, ClusterSnapshot};

const YES: &str = "yes";
/// Longer than any cluster lives.
const NEVER: Duration = Duration::from_secs(3_000_000_000);

impl ClusterModel {
    pub(crate) fn cluster(&self, now: Duration) -> ClusterSnapshot<'_> {
        let mut snapshot = self.undivided_cluster(now);
        self.divide_shares(now, &mut snapshot);
        snapshot
    }

    /// The cluster before pods that can be suspended are divided.
    pub(crate) fn undivided_cluster(&self, now: Duration) -> ClusterSnapshot<'_> {
        let mut warnings = ObjectWarnings::default();
        let mut snapshot = snapshot::snapshot(
            &self.inventory,
            &self.schedulers,
            &self.assumed(),
            &self.cards(),
            now,
            &mut warnings,
        );
        self.choices.enter(&self.inventory, &mut snapshot.cluster);
        if let Some(usage) = &self.usage {
            usage.enter(&mut snapshot.cluster);
        }
        for node in &mut snapshot.cluster.nodes {
            self.mark(now, node);
        }
        for job in snapshot.cluster.jobs.iter_mut().map(Arc::make_mut) {
            for task in &mut job.tasks {
                let waited = task.status == TaskStatus::Pending;
                self.correct(now, task);
                // Until its binding shows, it starts now.
                if waited && task.status == TaskStatus::Binding {
                    job.last_start = job.last_start.max(Some(now));
                }
            }
            if job.tasks.iter().any(|task| self.is_modest(task)) {
                job.preemption_delay = NEVER;
            }
            if job
                .tasks
                .iter()
                .any(|task| self.is_eviction_backed_off(now, task))
            {
                job.is_preemptible = false;
            }
        }
        // Who uses which claim follows from the pods, pending binds included.
        let assumed = self.assumed_claims.allocations();
        let clock = self.binding_clock(now);
        claims::enter(&self.inventory, &mut snapshot.cluster, &assumed, clock);
        numa::charge(&self.inventory, &mut snapshot.cluster);
        for (node, agent) in self.agents.all() {
            let strangers = self.strangers(now, node, &agent.status);
            if strangers.is_empty() {
                continue;
            }
            add_strangers(&mut snapshot.cluster, node, strangers);
        }
        snapshot
    }

    /// The nodes of pending binds, by pod name.
    fn assumed(&self) -> BTreeMap<String, String> {
        let all = self.pending_binds.all();
        all.map(|start| (start.pod.full(), start.node.clone()))
            .collect()
    }

    /// The cards of all nodes and of the pods on them, as the agents report them.
    fn cards(&self) -> CardInventory {
        let mut known = CardInventory {
            takes_slots: true,
            has_agents: true,
            ..CardInventory::default()
        };
        for (node, agent) in self.agents.all() {
            let card = |card: &AgentCard| ListedCard {
                name: card.uuid.clone(),
                memory: card.allocatable,
                is_healthy: card.is_healthy,
            };
            let listed = agent.status.cards.iter().map(card).collect();
            known.listed.insert(node.clone(), listed);
            if let Some(factor) = agent.status.overcommit {
                known.overcommit.insert(node.clone(), factor);
            }
            for held in &agent.status.held {
                let pod = held.uid.as_ref().and_then(|uid| self.pods.get(uid));
                let on = held.shares.iter().map(|share| share.card.clone());
                if let Some(pod) = pod {
                    known.on.entry(pod.full()).or_insert_with(|| on.collect());
                }
            }
        }
        known
    }

    fn mark(&self, now: Duration, node: &mut Node) {
        let agent = self.agents.of(&node.name);
        match agent {
            Some(TrackedAgent { is_here: true, .. }) => {
                node.set_label(TAKES_SHARES, YES);
                node.set_label(TAKES_CARDS, YES);
            }
            Some(TrackedAgent { is_here: false, .. }) => {}
            None if self.heartbeats.is_silent(now, &node.name) => {}
            None => node.set_label(TAKES_CARDS, YES),
        }
        if let Some(agent) = agent {
            let given = i64::try_from(agent.status.healthy().count()).unwrap_or(0);
            node.cards = node.cards.min(given);
            node.card_memory = agent.status.card_memory().unwrap_or(node.card_memory);
        }
    }

    fn correct(&self, now: Duration, task: &mut Task) {
        let Some(uid) = self.uid(task) else {
            return;
        };
        if let Some(is_nominated) = self.nominations.is_nominated(now, &uid) {
            task.is_nominated = is_nominated;
        }
        if task.status.is_active() {
            self.assign_cards(task, &uid);
        }
        if let Some(start) = self
            .pending_binds
            .get(&uid)
            .filter(|_| task.status == TaskStatus::Pending)
        {
            task.status = TaskStatus::Binding;
            task.node = Some(start.node.clone());
            task.zones.clone_from(&start.zones);
            self.put(task, &start.cards);
        } else if task.status == TaskStatus::Pending && self.back_off.lets_others_pass(&uid, now) {
            task.status = TaskStatus::Gated;
        } else if task.status.is_allocated()
            && self
                .ending
                .get(&uid)
                .is_some_and(|end| end.is_believed(now))
        {
            task.status = TaskStatus::Releasing;
        }
    }

    /// The cards of a pod that has a node: as its agent says, else as written on the pod, else by its labels.
    fn assign_cards(&self, task: &mut Task, uid: &str) {
        let agent = task.node.as_deref().and_then(|node| self.agents.of(node));
        let held = agent.and_then(|agent| agent.status.of_pod(uid));
        let held = held.map(|held| held.shares.clone());
        let written = || self.read(task)?.written.clone();
        match held.or_else(written) {
            Some(shares) => self.put(task, &self.counted(uid, shares)),
            None => {
                for card in &mut task.on {
                    if let Some(uuid) = self.card_of_group(card) {
                        *card = uuid;
                    }
                }
            }
        }
    }

    /// Puts a pod on the cards that it has, with the amounts that it has: its request may have been edited since.
    fn put(&self, task: &mut Task, shares: &[CardShare]) {
        task.on = shares.iter().map(|share| share.card.clone()).collect();
        let agent = task.node.as_deref().and_then(|node| self.agents.of(node));
        let Some(agent) = agent.filter(|_| matches!(task.cards, TaskGpuRequest::Shared { .. }))
        else {
            return;
        };
        let known = shares.iter().filter_map(|share| {
            let card = agent.status.card(&share.card)?;
            Some((share, card))
        });
        let asked = |card| card_assignment::bytes(&task.cards, card);
        let is_other = known.clone().any(|(has, card)| asked(card) != has.bytes);
        // A new limit counts before it is written on the pod, and a lower one only afterwards.
        let limit = task.limit;
        let limit_on = |has: &CardShare, card| card_assignment::limit(limit, has.bytes, card);
        if known
            .clone()
            .any(|(has, card)| has.limit > limit_on(has, card))
        {
            task.limit = cards::largest_limit(shares);
        }
        if is_other {
            task.cards = cards::request_of(shares);
        }
    }

    fn object(&self, task: &Task) -> Option<ObjectView<'_>> {
        let (namespace, name) = task.name.split_once('/')?;
        self.inventory.find("Pod", namespace, name)
    }

    fn read(&self, task: &Task) -> Option<&ParsedPod> {
        let (namespace, name) = task.name.split_once('/')?;
        self.inventory.pod(namespace, name)
    }

    pub(crate) fn uid(&self, task: &Task) -> Option<String> {
        Some(self.object(task)?.uid().to_owned())
    }

    /// Whether a pod's preemption policy forbids to evict others for it.
    fn is_modest(&self, task: &Task) -> bool {
        self.read(task).is_some_and(|read| read.is_modest)
    }

    fn is_eviction_backed_off(&self, now: Duration, task: &Task) -> bool {
        let uid = self.uid(task);
        task.status.is_allocated()
            && uid.is_some_and(|uid| self.eviction_backoff.is_delayed(&uid, now))
    }

    /// What is held of a node's cards without a pod.
    fn strangers<'s>(
        &self,
        now: Duration,
        node: &str,
        status: &'s AgentStatus,
    ) -> cards::ForeignHoldings<'s> {
        let mut held = cards::ForeignHoldings::new();
        let counts_bursts = self.burst_refusals.counts(now, node);
        for card in status.healthy() {
            let burst = if counts_bursts {
                card.burst
            } else {
                Bytes::ZERO
            };
            let foreign = card.unmanaged.plus(burst);
            if foreign > Bytes::ZERO {
                let holding = ForeignHolding {
                    bytes: foreign,
                    limits: Bytes::ZERO,
                };
                held.insert((&card.uuid, false), holding);
            }
        }
        for one in &status.held {
            let is_known = one.uid.as_ref().is_some_and(|uid| {
                let is_bound = self.is_on(uid, node);
                let is_starting = self
                    .pending_binds
                    .get(uid)
                    .is_some_and(|start| start.node == node);
                is_bound || is_starting
            });
            if is_known {
                continue;
            }
            for share in &one.shares {
                let key = (share.card.as_str(), self.is_leaving(node, one));
                let limit = share.limit.unwrap_or(share.bytes);
                held.entry(key).or_default().add(share.bytes, limit);
            }
        }
        held
    }

    /// Whether an allocation ends by itself. Its memory is not free yet, but nobody has to be evicted for it. Every
    /// allocation is like that between the end of its pod and the agent's report that its cards are free.
    fn is_leaving(&self, node: &str, held: &AgentAllocation) -> bool {
        let is_released = || matches!(self.settle(node, held), Some(AgentRequest::Release { .. }));
        held.stage == AgentAllocationState::Draining || is_released()
    }

    /// Whether a pod is on a node, as far as the API server knows.
    fn is_on(&self, uid: &str, node: &str) -> bool {
        let pod = self.pods.get(uid);
        let read = pod.and_then(|pod| self.inventory.pod(&pod.namespace, &pod.name));
        read.is_some_and(|read| read.is_on(node))
    }
}

/// An agent's status as a `GpuNode`, by which a cluster in files knows cards.
pub(crate) fn gpu_node(model: &ClusterModel, node: &str, status: &AgentStatus) -> Value {
    let holder = |held: &AgentAllocation, share: &CardShare| {
        let pod = held.uid.as_ref().and_then(|uid| model.pods.get(uid));
        let mut holder = match pod {
            Some(pod) => json!({"namespace": pod.namespace, "pod": pod.name}),
            None => json!({"container": held.name}),
        };
        holder["limitBytes"] = share.limit.unwrap_or(share.bytes).0.into();
        if share.limit.is_some() {
            holder["guaranteedBytes"] = share.bytes.0.into();
        }
        holder
    };
    let card = |card: &AgentCard| {
        let shares = status.held.iter().flat_map(|held| {
            let own = held.shares.iter().filter(|share| share.card == card.uuid);
            own.map(|share| holder(held, share))
        });
        json!({
            "uuid": card.uuid,
            "allocatableBytes": card.allocatable.0,
            "unmanagedBytes": card.unmanaged.0,
            "health": if card.is_healthy { "Healthy" } else { "Unhealthy" },
            "holders": shares.collect::<Vec<Value>>(),
        })
    };
    let cards: Vec<Value> = status.cards.iter().map(card).collect();
    let (group, kind) = GPU_NODE;
    let mut object = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind,
        "metadata": {"name": node}, "status": {"cards": cards}});
    if let Some(factor) = status.overcommit {
        object["status"]["overcommitPercent"] = factor.hundredths().into();
    }
    object
}

/// Writes an agent's status on a node, in the fields of NVIDIA's own programs.
pub(crate) fn write_cards(node: &mut Value, status: &AgentStatus) {
    let count = status.healthy().count().to_string();
    nodes::keep_own_cards(node);
    for list in ["capacity", "allocatable"] {
        node["status"][list][RESOURCE_WHOLE] = json!(count);
    }
    if let Some(memory) = status.card_memory() {
        node["metadata"]["labels"][LABEL_GPU_MEMORY] = json!(memory.as_mib().to_string());
    }
}

/// Whether a node already has that.
pub(crate) fn shows(node: ObjectView<'_>, status: &AgentStatus) -> bool {
    let count = status.healthy().count().to_string();
    let node_status = &node.json()["status"];
    let memory = status
        .card_memory()
        .map(|memory| memory.as_mib().to_string());
    ["capacity", "allocatable"]
        .iter()
        .all(|list| node_status[list][RESOURCE_WHOLE] == count.as_str())
        && memory.is_none_or(|memory| node.label(LABEL_GPU_MEMORY) == Some(&memory))
}

/// Now, on the policy's clock.
pub(crate) fn now() -> Duration {
    since_epoch(jiff::Timestamp::now())
}
