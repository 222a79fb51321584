//! The model in a simulated cluster: an API server, agents, and everything that may go wrong between them in any
//! order, with the scheduler killed at any moment.
//!
//! Events and effects wait in queues until the test delivers them, so every answer may be late. The fake cluster
//! stores what the real API server and agents store; the model is the real one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use super::agents::{
    AgentAllocation, AgentAllocationState, AgentCard, AgentStatus, ShareSuspension,
};
use super::event::{
    AgentRequest, PodEventReason, PodRef, SchedulerEffect, SchedulerEvent, StatusUpdate,
};
use super::model::ClusterModel;
use apportion_abi::names::{
    ANNOTATION_ALLOCATED, ANNOTATION_BURST, ANNOTATION_FRACTION_LIMIT, RESOURCE_SLOT,
};
use apportion_abi::{Bytes, OvercommitFactor};
use apportion_model::cards;

mod agent;
mod burst_limits;
mod calls;
mod ends;
mod idle_times;
mod invariants;
mod limits;
mod nominations;
mod pods;
mod random;
mod reclaim;
mod resizes;
mod stopped;
mod suspensions;
mod weights;

const CARD: u64 = 1000 << 20;
const NODES: [&str; 2] = ["a", "b"];
const CARDS: usize = 2;
/// How many pods there are at most.
const MOST: usize = 40;
/// What pods ask for, in per cent of a card; 100 is a whole card.
const ASKS: [u64; 6] = [10, 30, 50, 60, 90, 100];

#[derive(Clone, Debug)]
struct FakePod {
    object: Value,
    ask: u64,
}

#[derive(Clone, Debug, Default)]
struct FakeAgent {
    /// Whether its driver can put programs to sleep.
    can_suspend: bool,
    /// Whether suspensions fail and cannot be undone.
    is_stuck: bool,
    held: Vec<(AgentAllocation, Duration)>,
    /// What programs use of cards above their guarantees.
    lent: BTreeMap<String, u64>,
    /// The pods that it was asked for.
    asked: Vec<String>,
    requests: VecDeque<AgentRequest>,
}

struct FakeCluster {
    now: Duration,
    pods: BTreeMap<String, FakePod>,
    groups: Vec<Value>,
    /// Up to how many per cent of a card agents let limits add up.
    overcommit_percent: Option<u64>,
    /// Whether they say so.
    publishes_overcommit: bool,
    /// Whether they suspend who uses more than its guarantee.
    suspends_bursts: bool,
    /// How often an agent refused a pod because of its limit.
    refusals: usize,
    /// Why pods wait, by name of the pod, as far as that was published.
    waiting_events: Vec<(String, String)>,
    queues: Vec<Value>,
    agents: BTreeMap<String, FakeAgent>,
    model: ClusterModel,
    events: VecDeque<SchedulerEvent>,
    api: Vec<SchedulerEffect>,
    made: usize,
    /// The evicted pods; `None` if evictions are not allowed.
    evicted: Option<Vec<String>>,
    /// Evicted pods that still run.
    ending: Vec<String>,
    /// How many `Scheduled` events each pod got, by UID.
    published: BTreeMap<String, usize>,
    /// What was said about suspensions, by name of the pod.
    suspension_events: Vec<(String, PodEventReason)>,
    /// What was said about resizes, by name of the pod.
    resize_events: Vec<(String, PodEventReason, String)>,
}

fn uuid(node: &str, card: usize) -> String {
    format!(
        "GPU-0000000{}-0000-0000-0000-00000000000{card}",
        usize::from(node == "b")
    )
}

fn queue(name: &str, quota: i64) -> Value {
    let any = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let cards = json!({"quota": quota, "limit": -1, "overQuotaWeight": 1});
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": {"name": name, "uid": name},
        "spec": {"resources": {"gpu": cards, "cpu": any, "memory": any}}})
}

/// The requests to agents among effects.
fn agent_requests(effects: &[SchedulerEffect]) -> impl Iterator<Item = &AgentRequest> {
    effects.iter().filter_map(|effect| match effect {
        SchedulerEffect::AskAgent { request, .. } => Some(request),
        _ => None,
    })
}

impl FakeCluster {
    fn new() -> Self {
        Self::with_queues(vec![queue("default-queue", -1)])
    }

    fn with_queues(queues: Vec<Value>) -> Self {
        let mut world = Self {
            now: Duration::from_secs(1_000_000),
            pods: BTreeMap::new(),
            groups: Vec::new(),
            overcommit_percent: None,
            publishes_overcommit: true,
            suspends_bursts: true,
            refusals: 0,
            waiting_events: Vec::new(),
            queues,
            agents: NODES
                .map(|node| {
                    let agent = FakeAgent {
                        can_suspend: true,
                        ..FakeAgent::default()
                    };
                    (node.to_owned(), agent)
                })
                .into(),
            model: ClusterModel::new(vec!["kai-scheduler".to_owned()]),
            events: VecDeque::new(),
            api: Vec::new(),
            made: 0,
            evicted: None,
            ending: Vec::new(),
            published: BTreeMap::new(),
            suspension_events: Vec::new(),
            resize_events: Vec::new(),
        };
        world.start_scheduler();
        world
    }

    /// Starts a new scheduler, which knows only what is stored.
    fn start_scheduler(&mut self) {
        self.model = ClusterModel::new(vec!["kai-scheduler".to_owned()]);
        self.events.clear();
        self.api.clear();
        self.agents
            .values_mut()
            .for_each(|agent| agent.requests.clear());
        let node = |name: &&str| {
            let allocatable =
                json!({"cpu": "64", "memory": "64Gi", "pods": "100", RESOURCE_SLOT: "100"});
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
                "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}})
        };
        self.deliver(SchedulerEvent::Listed(
            "Node".to_owned(),
            NODES.iter().map(node).collect(),
        ));
        self.deliver(SchedulerEvent::Listed(
            "Queue".to_owned(),
            self.queues.clone(),
        ));
        let groups = self.groups.clone();
        self.deliver(SchedulerEvent::Listed("PodGroup".to_owned(), groups));
        let pods = self.pods.values().map(|pod| pod.object.clone()).collect();
        self.deliver(SchedulerEvent::Listed("Pod".to_owned(), pods));
        for node in NODES {
            let status = self.agent_status(node);
            self.deliver(SchedulerEvent::AgentReported(node.to_owned(), status));
        }
    }

    fn agent_status(&self, node: &str) -> AgentStatus {
        let said = self
            .overcommit_percent
            .filter(|_| self.publishes_overcommit);
        let said = said.and_then(|percent| u32::try_from(percent).ok());
        let overcommit = said.and_then(OvercommitFactor::from_hundredths);
        let lent = |card| {
            let lent = self.agents[node].lent.get(&uuid(node, card));
            Bytes(lent.copied().unwrap_or_default())
        };
        AgentStatus {
            overcommit,
            can_suspend: self.agents[node].can_suspend,
            cards: (0..CARDS)
                .map(|card| AgentCard {
                    uuid: uuid(node, card),
                    allocatable: Bytes(CARD),
                    unmanaged: Bytes::ZERO,
                    burst: lent(card),
                    is_healthy: true,
                })
                .collect(),
            held: self.agents[node]
                .held
                .iter()
                .map(|(held, _)| held.clone())
                .collect(),
        }
    }

    fn deliver(&mut self, event: SchedulerEvent) {
        let effects = self.model.apply(self.now, event);
        self.queue(effects);
    }

    fn deliver_all(&mut self) {
        while let Some(event) = self.events.pop_front() {
            self.deliver(event);
        }
    }

    /// Delivers all events, and lets the scheduler decide.
    fn decide(&mut self) {
        self.deliver_all();
        let effects = self.model.decide(self.now);
        self.queue(effects);
    }

    fn queue(&mut self, effects: Vec<SchedulerEffect>) {
        for effect in effects {
            match &effect {
                SchedulerEffect::AskAgent { node, request } => {
                    let agent = self.agents.get_mut(node).expect("the node is there");
                    agent.requests.push_back(request.clone());
                }
                SchedulerEffect::Bind { .. } | SchedulerEffect::WriteAllocated { .. } => {
                    self.api.push(effect);
                }
                SchedulerEffect::Evict(pod) => {
                    assert!(self.evicted.is_some(), "{} may not be evicted", pod.full());
                    self.api.push(effect);
                }
                SchedulerEffect::PublishEvent {
                    pod,
                    reason: PodEventReason::Scheduled,
                    ..
                } => *self.published.entry(pod.uid.clone()).or_default() += 1,
                SchedulerEffect::PublishEvent {
                    pod,
                    reason:
                        reason @ (PodEventReason::Resized
                        | PodEventReason::ResizeDeferred
                        | PodEventReason::ResizeInfeasible),
                    message,
                } => self
                    .resize_events
                    .push((pod.name.clone(), *reason, message.clone())),
                SchedulerEffect::PublishEvent {
                    pod,
                    reason:
                        reason @ (PodEventReason::Suspended
                        | PodEventReason::NotSuspended
                        | PodEventReason::Resumed),
                    ..
                } => self.suspension_events.push((pod.name.clone(), *reason)),
                SchedulerEffect::PublishEvent {
                    pod,
                    reason: PodEventReason::Unschedulable,
                    message,
                } => self
                    .waiting_events
                    .push((pod.name.clone(), message.clone())),
                SchedulerEffect::WriteStatus(update) if update.kind == "Pod" => {
                    self.write_pod_status(update);
                }
                SchedulerEffect::PublishEvent { .. }
                | SchedulerEffect::WriteReadiness { .. }
                | SchedulerEffect::WriteStatus(_)
                | SchedulerEffect::Group(_)
                | SchedulerEffect::DeleteClaim { .. }
                | SchedulerEffect::ReserveClaims { .. }
                | SchedulerEffect::ReleaseClaims { .. }
                | SchedulerEffect::StoreUsageHistory(_) => {}
            }
        }
    }

    /// The API server crashes: undelivered changes are lost, and all objects are listed again.
    fn crash_api(&mut self) {
        self.events
            .retain(|event| !matches!(event, SchedulerEvent::Applied(_) | SchedulerEvent::Gone(_)));
        self.list_all("PodGroup", self.groups.clone());
        let pods = self.pods.values().map(|pod| pod.object.clone());
        self.list_all("Pod", pods.collect());
    }

    fn list_all(&mut self, kind: &str, all: Vec<Value>) {
        self.events
            .push_back(SchedulerEvent::Listed(kind.to_owned(), all));
    }

    /// All agents lose their ledgers. Returns what they are asked for after that.
    fn lose_ledgers(&mut self) -> Vec<AgentRequest> {
        for node in NODES {
            self.deliver(SchedulerEvent::AgentLost(node.to_owned()));
            let agent = self.agents.get_mut(node).expect("it is there");
            agent.held.clear();
            self.show(node);
        }
        self.deliver_all();
        let requests = self.agents.values().flat_map(|agent| &agent.requests);
        requests.cloned().collect()
    }

    /// The agent of a node crashes: pending requests are lost, its ledger stays.
    fn crash_agent(&mut self, node: &str) {
        let agent = self.agents.get_mut(node).expect("it is there");
        for request in std::mem::take(&mut agent.requests) {
            let why = "the agent is away".to_owned();
            match request {
                AgentRequest::Allocate { pod, .. } => {
                    self.events.push_back(SchedulerEvent::Refused(pod, why));
                }
                AgentRequest::Resize { pod, .. } => {
                    self.events.push_back(SchedulerEvent::NotResized(pod, why));
                }
                AgentRequest::Suspend { pod, .. } => {
                    self.events
                        .push_back(SchedulerEvent::NotSuspended(pod, why));
                }
                AgentRequest::Resume { pod, .. } => {
                    self.events.push_back(SchedulerEvent::NotResumed(pod, why));
                }
                AgentRequest::Commit { .. } | AgentRequest::Release { .. } => {}
            }
        }
        self.events
            .push_back(SchedulerEvent::AgentLost(node.to_owned()));
        self.show(node);
    }

    fn wait(&mut self, long: Duration) {
        self.now += long;
        for node in NODES {
            let now = self.now;
            let agent = self.agents.get_mut(node).expect("it is there");
            let before = agent.held.len();
            agent.held.retain(|(held, until)| {
                held.stage != AgentAllocationState::Reserved || now < *until
            });
            if agent.held.len() != before {
                self.show(node);
            }
        }
    }

    fn show(&mut self, node: &str) {
        let status = self.agent_status(node);
        self.events
            .push_back(SchedulerEvent::AgentReported(node.to_owned(), status));
    }

    fn answer(&mut self, effect: SchedulerEffect, fails: bool) {
        let (node, pod, cards, received, allocated) = match effect {
            SchedulerEffect::Evict(pod) => return self.evict(pod, fails),
            SchedulerEffect::WriteAllocated { .. } => return self.write_allocated(effect, fails),
            SchedulerEffect::Bind {
                node,
                pod,
                cards,
                received,
                allocated,
                ..
            } => (node, pod, cards, received, allocated),
            _ => return,
        };
        let there = self.pods.get_mut(&pod.name);
        let there = there.filter(|there| there.object["metadata"]["uid"] == pod.uid.as_str());
        let Some(there) =
            there.filter(|there| !fails && there.object["spec"]["nodeName"].is_null())
        else {
            self.events
                .push_back(SchedulerEvent::NotBound(pod, "no".to_owned()));
            return;
        };
        there.object["spec"]["nodeName"] = node.into();
        let annotations = &mut there.object["metadata"]["annotations"];
        annotations[cards::CARDS] = cards::annotation(&cards).into();
        annotations[cards::RECEIVED] = received.into();
        if let Some(allocated) = allocated {
            annotations[ANNOTATION_ALLOCATED] = allocated.into();
        }
        if there.ask < 100 {
            there.object["metadata"]["labels"]["runai-gpu-group"] = cards[0].card.as_str().into();
        }
        self.events
            .push_back(SchedulerEvent::Applied(there.object.clone()));
        self.events.push_back(SchedulerEvent::Bound(pod));
    }

    /// Delivers everything that is in flight, and what follows. Every wait ends in each of these rounds, so after two
    /// quiet ones nothing is left.
    fn settle(&mut self) {
        let mut still = 0;
        for _ in 0..40 {
            self.finish();
            self.wait(Duration::from_secs(61));
            for node in NODES {
                self.show(node);
            }
            self.decide();
            still = if self.is_still() { still + 1 } else { 0 };
            if still == 2 {
                break;
            }
        }
        assert_eq!(still, 2, "it does not come to rest");
        assert!(
            self.model.pending_binds.all().next().is_none(),
            "somebody is on the way for ever"
        );
    }

    /// Delivers everything that is in flight, without new decisions.
    fn finish(&mut self) {
        while !self.is_still() {
            self.deliver_all();
            for node in NODES {
                while !self.agents[node].requests.is_empty() {
                    self.agent_effect(node, false);
                }
            }
            while let Some(effect) = self.api.pop() {
                self.answer(effect, false);
            }
            while !self.ending.is_empty() {
                self.end(0);
            }
        }
    }

    /// Whether nothing is in flight.
    fn is_still(&self) -> bool {
        self.events.is_empty()
            && self.api.is_empty()
            && self.ending.is_empty()
            && !self.agents.values().any(|agent| !agent.requests.is_empty())
    }

    fn is_bound(pod: &FakePod) -> bool {
        pod.object["spec"]["nodeName"].is_string()
    }
}
