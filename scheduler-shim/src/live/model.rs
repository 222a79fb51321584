//! The cluster as the scheduler knows it, and what follows from each event.
//!
//! Pure: objects and agents come as [`SchedulerEvent`]s, work leaves as [`SchedulerEffect`]s, and time is an
//! argument. A new scheduler can learn all of it from the API server and the agents, except pending binds, back-offs
//! and the last minute of the queues' usage. So a crash at any point loses no pod and no card.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_claims::binding::BINDING_TIMEOUT;
use apportion_groups::ObjectView;
use serde_json::Value;

use super::agents::{AgentStatus, TrackedAgents};
use super::back_off::BackOff;
use super::burst_refusals::BurstRefusals;
use super::claims::{self, AssumedClaims};
use super::event::{AgentRequest, PodEventReason, PodRef, SchedulerEffect, SchedulerEvent};
use super::grouper::PodGrouper;
use super::heartbeats::{self, AgentHeartbeats};
use super::nominations::WrittenNominations;
use super::pending_binds::{BindOutcome, PendingBinds};
use super::resizes::PendingResizes;
use super::suspensions::PendingSuspensions;
use super::usage_recorder::UsageRecorder;
use super::view;
use crate::policy_options::PolicyOptions;
use apportion_model::inventory::ObjectInventory;
use apportion_model::object_warnings::ObjectWarnings;
use apportion_model::pods;

/// How long a granted eviction may take to show. The API server has stored it; only the watch is late. To doubt it
/// too soon would evict another pod for the same need.
const SHOWN_WITHIN: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingEviction {
    /// The API server has not answered yet. It will: every request ends in an answer.
    Asked,
    /// It was granted, and counts until then.
    Granted(Duration),
}

impl PendingEviction {
    /// Whether the pod counts as ending.
    pub(crate) fn is_believed(self, now: Duration) -> bool {
        match self {
            Self::Asked => true,
            Self::Granted(until) => now < until,
        }
    }
}

#[derive(Debug)]
pub(crate) struct ClusterModel {
    pub(crate) inventory: ObjectInventory,
    pub(crate) schedulers: Vec<String>,
    pub(crate) choices: PolicyOptions,
    pub(crate) agents: TrackedAgents,
    pub(crate) heartbeats: AgentHeartbeats,
    pub(crate) pending_binds: PendingBinds,
    /// Pods that are being suspended or resumed.
    pub(crate) suspensions: PendingSuspensions,
    /// Running pods whose request has changed.
    pub(crate) resizes: PendingResizes,
    /// Allocations of resource claims that the API server does not show yet.
    pub(crate) assumed_claims: AssumedClaims,
    /// When the API server was last asked to delete a claim that was left behind; by UID.
    pub(crate) deleted_claims: BTreeMap<String, Duration>,
    /// When the API server was last asked to take devices back that do not get ready; by UID and version of the claim.
    pub(crate) deallocated_claims: BTreeMap<(String, String), Duration>,
    /// The UIDs of waiting pods whose claims are being deallocated. None of them is bound meanwhile.
    pub(crate) deallocating: BTreeSet<String>,
    /// How long devices may take to get ready before a pod is bound.
    pub(crate) binding_timeout: Duration,
    /// Pods that wait before their next bind.
    pub(crate) back_off: BackOff,
    /// Nodes whose agents refused a pod while programs used more than they are guaranteed there.
    pub(crate) burst_refusals: BurstRefusals,
    /// Pods whose nominated nodes the API server does not show yet.
    pub(crate) nominations: WrittenNominations,
    /// Pods whose eviction was refused; they are not tried again for a while.
    pub(crate) eviction_backoff: BackOff,
    /// Whether there are no evictions now, because too little is known.
    pub(crate) spares_all: bool,
    /// Requested evictions, by UID.
    pub(crate) ending: BTreeMap<String, PendingEviction>,
    /// When the agent was last asked to adopt a running pod, or released its allocation; by UID.
    pub(crate) adopted: BTreeMap<String, Duration>,
    /// When all agents were last reconciled.
    pub(crate) reconciled: Duration,
    /// The last status written of each object, and when.
    pub(crate) reported: BTreeMap<(String, String, String), (Value, Duration)>,
    /// The last message about each waiting pod, and when.
    pub(crate) last_events: BTreeMap<String, (String, Duration)>,
    pub(crate) pods: BTreeMap<String, PodRef>,
    /// Pods that were seen on a node, by node, as namespace and name.
    pub(crate) placed: BTreeMap<String, BTreeSet<(String, String)>>,
    /// The writes of pod groups.
    pub(crate) grouper: PodGrouper,
    /// The queues' usage history, if it counts.
    pub(crate) usage: Option<UsageRecorder>,
    /// The namespace of the programs that follow KAI's Config, if any do.
    pub(crate) programs: Option<String>,
    pub(crate) warnings: ObjectWarnings,
}

impl ClusterModel {
    pub(crate) fn new(schedulers: Vec<String>) -> Self {
        let mut warnings = ObjectWarnings::default();
        let mut inventory = ObjectInventory::of(Vec::new(), &mut warnings);
        inventory.unreadable = Some(BTreeSet::new());
        Self {
            inventory,
            schedulers,
            choices: PolicyOptions::default(),
            agents: TrackedAgents::default(),
            heartbeats: AgentHeartbeats::default(),
            pending_binds: PendingBinds::default(),
            suspensions: PendingSuspensions::default(),
            resizes: PendingResizes::default(),
            assumed_claims: AssumedClaims::default(),
            deleted_claims: BTreeMap::new(),
            deallocated_claims: BTreeMap::new(),
            deallocating: BTreeSet::new(),
            binding_timeout: BINDING_TIMEOUT,
            back_off: BackOff::default(),
            burst_refusals: BurstRefusals::default(),
            nominations: WrittenNominations::default(),
            eviction_backoff: BackOff::default(),
            spares_all: false,
            ending: BTreeMap::new(),
            adopted: BTreeMap::new(),
            reconciled: Duration::ZERO,
            reported: BTreeMap::new(),
            last_events: BTreeMap::new(),
            pods: BTreeMap::new(),
            placed: BTreeMap::new(),
            grouper: PodGrouper::default(),
            usage: None,
            programs: None,
            warnings,
        }
    }

    pub(crate) fn apply(&mut self, now: Duration, event: SchedulerEvent) -> Vec<SchedulerEffect> {
        let effects = self.effects_of(now, event);
        self.assumed_claims.note_sent(&effects);
        effects
    }

    fn effects_of(&mut self, now: Duration, event: SchedulerEvent) -> Vec<SchedulerEffect> {
        match event {
            SchedulerEvent::Applied(json) => self.applied(now, json),
            SchedulerEvent::Gone(json) => self.gone(&json),
            SchedulerEvent::Listed(kind, all) => self.listed(now, &kind, all),
            SchedulerEvent::Unreadable(kind) => {
                let unreadable = self.inventory.unreadable.get_or_insert_default();
                unreadable.insert(kind);
                Vec::new()
            }
            SchedulerEvent::AgentReported(node, status) => self.agent_reported(now, &node, status),
            SchedulerEvent::AgentLost(node) => {
                self.agents.lost(now, &node);
                Vec::new()
            }
            SchedulerEvent::AgentGone(node) => {
                self.agents.gone(&node);
                let waiting = self.pending_binds.awaiting_agent(&node);
                let why = || "the node no longer has an agent".to_owned();
                let refused = waiting.into_iter().map(|pod| self.refused(now, pod, why()));
                let mut effects: Vec<SchedulerEffect> = refused.flatten().collect();
                for pod in self.resizes.awaiting_agent(&node) {
                    effects.extend(self.resizes.refused(now, &pod.uid, why()));
                }
                effects
            }
            SchedulerEvent::Accepted(pod, id) => self.pending_binds.accepted(&pod.uid, id),
            SchedulerEvent::Refused(pod, why) => self.refused(now, pod, why),
            SchedulerEvent::CalledIn(pod, why) => self.called_in(now, pod, why),
            SchedulerEvent::Resized(pod) => self.resizes.accepted(&pod.uid).into_iter().collect(),
            SchedulerEvent::NotResized(pod, why) => {
                let refused = self.resizes.refused(now, &pod.uid, why);
                refused.into_iter().collect()
            }
            SchedulerEvent::Suspended(pod) => self.suspended(now, pod),
            SchedulerEvent::NotSuspended(pod, why) => self.not_suspended(now, pod, &why),
            SchedulerEvent::Resumed(pod) => self.resumed(now, pod),
            SchedulerEvent::NotResumed(pod, why) => {
                tracing::info!(pod = pod.full(), why, "Suspended pod not resumed");
                self.not_resumed(now, &pod);
                Vec::new()
            }
            SchedulerEvent::AllocatedWritten(pod, is_done) => {
                self.resizes.written(now, &pod.uid, is_done);
                Vec::new()
            }
            SchedulerEvent::ClaimsReserved(pod, versions) => {
                self.assumed_claims.written(&pod, &versions);
                let release = self.pending_binds.reserved(&pod.uid, &versions);
                for one in versions {
                    let shown = self
                        .inventory
                        .find(claims::KIND, &pod.namespace, &one.object);
                    let shown = shown.map(|shown| shown.read_apart().into_owned());
                    if let Some(shown) = shown {
                        self.assumed_claims.shown(ObjectView::new(&shown));
                    }
                }
                release.into_iter().collect()
            }
            SchedulerEvent::ClaimsReleased(pod) => {
                self.assumed_claims.failed(&pod.uid);
                self.pending_binds.released(&pod.uid);
                self.deallocating.remove(&pod.uid);
                Vec::new()
            }
            SchedulerEvent::Bound(pod) => self.bound(&pod),
            SchedulerEvent::NotBound(pod, why) => self.not_bound(now, pod, why),
            SchedulerEvent::Evicted(pod) => {
                self.eviction_backoff.forget(&pod.uid);
                if let Some(end) = self.ending.get_mut(&pod.uid) {
                    *end = PendingEviction::Granted(now + SHOWN_WITHIN);
                }
                let message = format!(
                    "Pod {} was preempted to make room for another workload",
                    pod.full()
                );
                let reason = PodEventReason::Evicted;
                vec![SchedulerEffect::PublishEvent {
                    pod,
                    reason,
                    message,
                }]
            }
            SchedulerEvent::NotEvicted(pod, why) => {
                self.ending.remove(&pod.uid);
                self.eviction_backoff.failed(&pod.uid, now);
                let reason = PodEventReason::NotEvicted;
                let message =
                    format!("failed to evict it to make room for another workload: {why}");
                vec![SchedulerEffect::PublishEvent {
                    pod,
                    reason,
                    message,
                }]
            }
            SchedulerEvent::Grouped(subject, is_done) => {
                self.grouper.answered(now, &subject, is_done);
                Vec::new()
            }
            SchedulerEvent::UsageHistoryRead(text) => {
                if let Some(usage) = &mut self.usage {
                    usage.recall(now, text.as_deref());
                }
                Vec::new()
            }
        }
    }

    fn applied(&mut self, now: Duration, json: Value) -> Vec<SchedulerEffect> {
        let object = ObjectView::new(&json);
        let mut effects = Vec::new();
        if object.kind() == "Pod" {
            let pod = PodRef::of(object);
            let known = self.inventory.find("Pod", &pod.namespace, &pod.name);
            let known = known.map(PodRef::of);
            // A new pod has the name. The end of the earlier one was not seen.
            if let Some(earlier) = known.filter(|known| known.uid != pod.uid) {
                effects.extend(self.pod_gone(&earlier.uid));
            }
            if let Some(node) = pods::node(object) {
                let name = (pod.namespace.clone(), pod.name.clone());
                self.placed.entry(node.to_owned()).or_default().insert(name);
            }
            effects.extend(self.pod_applied(&pod, object));
            self.pods.insert(pod.uid.clone(), pod);
        }
        if object.kind() == heartbeats::KIND {
            self.heartbeats.applied(now, object);
        }
        if object.kind() == claims::KIND {
            self.assumed_claims.shown(object);
        }
        if object.kind() == "Node" {
            self.put_node(json);
        } else {
            self.inventory.put(json, &mut self.warnings);
        }
        effects
    }

    /// Stores a node with the cards that its agent reports.
    fn put_node(&mut self, mut json: Value) {
        let name = ObjectView::new(&json).name().to_owned();
        if let Some(agent) = self.agents.of(&name) {
            view::write_cards(&mut json, &agent.status);
        }
        self.inventory.put(json, &mut self.warnings);
    }

    fn pod_applied(&mut self, pod: &PodRef, object: ObjectView<'_>) -> Vec<SchedulerEffect> {
        if pods::is_over(object) {
            // A short pod may have ended before it was seen on its node.
            let bound_event = self.pending_binds.bound_event(&pod.uid, pods::node(object));
            return bound_event
                .into_iter()
                .chain(self.pod_gone(&pod.uid))
                .collect();
        }
        match pods::node(object) {
            Some(node) => {
                self.back_off.forget(&pod.uid);
                self.last_events.remove(&pod.uid);
                self.resizes.applied(pod, object);
                self.pending_binds.observed_on(&pod.uid, node).effects
            }
            None if pods::is_deleted(object) => self.pending_binds.gone(&pod.uid).effects,
            None => Vec::new(),
        }
    }

    fn gone(&mut self, json: &Value) -> Vec<SchedulerEffect> {
        let object = ObjectView::new(json);
        if object.kind() == heartbeats::KIND {
            self.heartbeats.gone(object.name());
        }
        if object.kind() == claims::KIND {
            self.assumed_claims.gone(object);
        }
        if object.kind() != "Pod" {
            self.inventory.remove(json);
            return Vec::new();
        }
        let uid = object.uid();
        let known = self
            .inventory
            .find("Pod", object.namespace(), object.name());
        if let Some(known) = known.filter(|known| known.uid() == uid) {
            let node = pods::node(known).unwrap_or_default();
            if let Some(there) = self.placed.get_mut(node) {
                there.remove(&(object.namespace().to_owned(), object.name().to_owned()));
            }
            self.inventory.remove(json);
        }
        self.pods.remove(uid);
        self.pod_gone(uid)
    }

    /// Releases all that an ended pod has.
    fn pod_gone(&mut self, uid: &str) -> Vec<SchedulerEffect> {
        self.back_off.forget(uid);
        self.eviction_backoff.forget(uid);
        self.ending.remove(uid);
        self.adopted.remove(uid);
        self.last_events.remove(uid);
        self.resizes.gone(uid);
        self.suspensions.gone(uid);
        let BindOutcome { mut effects, .. } = self.pending_binds.gone(uid);
        for (node, held) in self.agents.of_pod(uid) {
            let release = AgentRequest::Release { id: held.id }.to(node);
            if held.stage != super::agents::AgentAllocationState::Draining
                && !effects.contains(&release)
            {
                effects.push(release);
            }
        }
        effects
    }

    fn listed(&mut self, now: Duration, kind: &str, all: Vec<Value>) -> Vec<SchedulerEffect> {
        if kind == heartbeats::KIND {
            self.heartbeats.listed(now);
        }
        if kind == claims::KIND {
            let (pods, binds) = (&self.pods, &self.pending_binds);
            self.assumed_claims
                .forget_gone_pods(|uid| pods.contains_key(uid) || binds.get(uid).is_some());
        }
        if let Some(unreadable) = &mut self.inventory.unreadable {
            unreadable.remove(kind);
        }
        let key =
            |object: ObjectView<'_>| (object.namespace().to_owned(), object.name().to_owned());
        let listed: BTreeSet<_> = all.iter().map(|json| key(ObjectView::new(json))).collect();
        let known = self.inventory.all(kind);
        let is_gone = |object: &ObjectView<'_>| !listed.contains(&key(*object));
        let gone: Vec<Value> = known
            .filter(is_gone)
            .map(|object| object.json().clone())
            .collect();
        let mut effects: Vec<SchedulerEffect> =
            gone.iter().flat_map(|json| self.gone(json)).collect();
        for json in all {
            effects.extend(self.applied(now, json));
        }
        effects
    }

    fn agent_reported(
        &mut self,
        now: Duration,
        node: &str,
        status: AgentStatus,
    ) -> Vec<SchedulerEffect> {
        let released_pods = self.agents.released_pods(node, &status);
        if !self.agents.update(now, node, status) {
            return Vec::new();
        }
        self.adopted
            .extend(released_pods.into_iter().map(|uid| (uid, now)));
        let known = self.inventory.find("Node", "", node);
        let known = known.map(|known| known.read_apart().into_owned());
        let status = self.agents.of(node).map(|agent| &agent.status);
        let is_new = |known: &Value| {
            status.is_some_and(|status| !view::shows(ObjectView::new(known), status))
        };
        if let Some(json) = known.filter(is_new) {
            self.put_node(json);
        }
        self.reconcile(now, node)
    }

    fn refused(&mut self, now: Duration, pod: PodRef, why: String) -> Vec<SchedulerEffect> {
        if self.pending_binds.get(&pod.uid).is_none() {
            let reason = PodEventReason::NotAdopted;
            let is_there = self.pods.contains_key(&pod.uid);
            let message = format!("the agent of its node refused it: {why}");
            return is_there
                .then_some(SchedulerEffect::PublishEvent {
                    pod,
                    reason,
                    message,
                })
                .into_iter()
                .collect();
        }
        self.back_off.failed(&pod.uid, now);
        if let Some(start) = self.pending_binds.get(&pod.uid) {
            self.burst_refusals.add(now, &start.node, &self.agents);
        }
        let mut effects = self.pending_binds.refused(&pod.uid).effects;
        let message = format!("the agent of the chosen node refused it: {why}");
        effects.push(self.unschedulable(now, pod, message));
        effects
    }

    /// The event that a pod does not start, which is also its last one.
    fn unschedulable(&mut self, now: Duration, pod: PodRef, message: String) -> SchedulerEffect {
        self.last_events
            .insert(pod.uid.clone(), (message.clone(), now));
        SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::Unschedulable,
            message,
        }
    }

    /// The agent needs a while to make room for the pod, and keeps what it frees for it. The pod keeps its turn, and is
    /// proposed again soon. Its event is not repeated.
    fn called_in(&mut self, now: Duration, pod: PodRef, why: String) -> Vec<SchedulerEffect> {
        let Some(start) = self.pending_binds.get(&pod.uid) else {
            return self.refused(now, pod, why);
        };
        let node = start.node.clone();
        self.back_off.tries_again(&pod.uid, now);
        self.burst_refusals.forget(&node);
        let mut effects = self.pending_binds.refused(&pod.uid).effects;
        let message = format!(
            "the agent of node {node} calls in memory for it that others use above their guarantees"
        );
        let known = self.last_events.get(&pod.uid);
        if known.is_some_and(|(last, _)| *last == message) {
            return effects;
        }
        effects.push(self.unschedulable(now, pod, message));
        effects
    }

    fn bound(&mut self, pod: &PodRef) -> Vec<SchedulerEffect> {
        self.back_off.forget(&pod.uid);
        self.pending_binds.bound(&pod.uid)
    }

    fn not_bound(&mut self, now: Duration, pod: PodRef, why: String) -> Vec<SchedulerEffect> {
        self.assumed_claims.failed(&pod.uid);
        let is_withdrawn = self.pending_binds.is_withdrawn(&pod.uid);
        if is_withdrawn || self.pending_binds.get(&pod.uid).is_none() {
            return self.pending_binds.not_bound(&pod.uid);
        }
        self.back_off.failed(&pod.uid, now);
        let mut effects = self.pending_binds.not_bound(&pod.uid);
        effects.push(SchedulerEffect::PublishEvent {
            pod,
            reason: PodEventReason::NotBound,
            message: why,
        });
        effects
    }
}
