//! Reconciles a node's agent with the API server: allocations and pods that only one of them knows.
//!
//! The running pod is right. If its reservation was not committed because of a crash, it is committed. If the agent
//! does not know the pod, the agent adopts it on the cards that the pod names, without a restart. An allocation for a
//! pod that is gone, or that nobody starts, is released.

use std::time::Duration;

use apportion_abi::{BurstTerms, Share};
use apportion_groups::ObjectView;
use apportion_policy::cluster::TaskGpuRequest;

use super::agents::{AgentAllocation, AgentAllocationState, AgentStatus};
use super::card_assignment;
use super::event::{AgentRequest, PodRef, SchedulerEffect};
use super::model::ClusterModel;
use apportion_model::burst_terms;
use apportion_model::cards::CardShare;
use apportion_model::parsed_objects::ParsedPod;
use apportion_model::{pods, requests, resize};

/// How long until an agent is asked again to adopt a pod.
const AGAIN: Duration = Duration::from_secs(30);
/// How often all agents are reconciled.
const ALL_AGAIN: Duration = Duration::from_secs(10);

impl ClusterModel {
    /// The effects that make a node's agent and the API server agree.
    pub(crate) fn reconcile(&mut self, now: Duration, node: &str) -> Vec<SchedulerEffect> {
        let mut effects = self.settle_all(node);
        effects.extend(self.adopt(now, Some(node)));
        effects
    }

    /// The same for all nodes, now and then: an answer may have been lost, or a reservation may have expired before
    /// its pod was seen on its node.
    pub(crate) fn reconcile_all(&mut self, now: Duration) -> Vec<SchedulerEffect> {
        if now < self.reconciled + ALL_AGAIN {
            return Vec::new();
        }
        self.reconciled = now;
        let nodes: Vec<String> = self.agents.all().map(|(node, _)| node.clone()).collect();
        let mut effects: Vec<SchedulerEffect> = (nodes.iter())
            .flat_map(|node| self.settle_all(node))
            .collect();
        effects.extend(self.adopt(now, None));
        effects
    }

    fn settle_all(&self, node: &str) -> Vec<SchedulerEffect> {
        let agent = self.agents.of(node).filter(|agent| agent.is_here);
        let held = agent.into_iter().flat_map(|agent| &agent.status.held);
        let requests = held.filter_map(|held| self.settle(node, held));
        requests
            .map(|request| request.to(node.to_owned()))
            .collect()
    }

    /// What the agent is to do about one of its allocations, if anything.
    pub(super) fn settle(&self, node: &str, held: &AgentAllocation) -> Option<AgentRequest> {
        let uid = held.uid.as_deref()?;
        let id = held.id.clone();
        let pod = self.pods.get(uid);
        let read = pod.and_then(|pod| self.inventory.pod(&pod.namespace, &pod.name));
        let Some((pod, read)) = pod.zip(read) else {
            // Only a committed allocation is certainly for a pod.
            let is_ours = held.stage == AgentAllocationState::Allocated;
            return is_ours.then_some(AgentRequest::Release { id });
        };
        let is_here = read.is_on(node);
        match held.stage {
            AgentAllocationState::Draining => None,
            AgentAllocationState::Reserved if is_here => {
                let pod = pod.clone();
                Some(AgentRequest::Commit { id, pod })
            }
            AgentAllocationState::Allocated if is_here => None,
            _ if self
                .pending_binds
                .get(uid)
                .is_some_and(|start| start.node == node) =>
            {
                None
            }
            AgentAllocationState::Reserved | AgentAllocationState::Allocated => {
                Some(AgentRequest::Release { id })
            }
        }
    }

    /// Adopts running pods that the agent of their node does not know; on one node, or on all.
    fn adopt(&mut self, now: Duration, only: Option<&str>) -> Vec<SchedulerEffect> {
        let mut effects = Vec::new();
        let there = only.and_then(|only| self.placed.get(only));
        let there = there.into_iter().flatten();
        let there = there.filter_map(|(space, name)| {
            let object = self.inventory.find("Pod", space, name)?;
            Some((object, self.inventory.pod(space, name)?))
        });
        let everywhere = self.inventory.pods().filter(|_| only.is_none());
        for (object, read) in there.chain(everywhere) {
            let node = read
                .node()
                .filter(|node| only.is_none_or(|only| only == *node));
            let Some(node) = node.filter(|_| !read.is_over()) else {
                continue;
            };
            let Some(agent) = self.agents.of(node).filter(|agent| agent.is_here) else {
                continue;
            };
            let pod = PodRef::of(object);
            let is_recent = (self.adopted.get(&pod.uid)).is_some_and(|at| now < *at + AGAIN);
            let is_known = agent.status.of_pod(&pod.uid).is_some();
            if is_recent || is_known || self.pending_binds.get(&pod.uid).is_some() {
                continue;
            }
            let Some(shares) = self.shares_of(object, read, &agent.status) else {
                continue;
            };
            self.adopted.insert(pod.uid.clone(), now);
            let node = node.to_owned();
            let terms = self.terms_of(object, read, &shares);
            let request = AgentRequest::Allocate {
                pod,
                shares,
                terms,
                idle_after: requests::idle_time(object),
            };
            effects.push(request.to(node));
        }
        effects
    }

    /// The cards of a running pod with bytes, from its annotation, else from its labels.
    fn shares_of(
        &self,
        object: ObjectView<'_>,
        read: &ParsedPod,
        status: &AgentStatus,
    ) -> Option<Vec<CardShare>> {
        if let Some(written) = &read.written {
            let limit = resize::limit_given(object);
            return Some(with_limits(written, limit, status));
        }
        let cards = read.cards.as_ref().ok()?;
        if !matches!(cards, TaskGpuRequest::Shared { .. }) {
            return None;
        }
        let named = pods::groups(object);
        let uuids: Option<Vec<String>> = (named.iter())
            .map(|group| self.card_of_group(group))
            .collect();
        let uuids = uuids.filter(|uuids| !uuids.is_empty())?;
        uuids
            .into_iter()
            .map(|card| {
                let bytes = card_assignment::bytes(cards, status.card(&card)?);
                let limit = None;
                Some(CardShare { card, bytes, limit })
            })
            .collect()
    }

    /// What a pod is worth beside others that burst, if it may burst.
    pub(crate) fn terms_of(
        &self,
        object: ObjectView<'_>,
        read: &ParsedPod,
        shares: &[CardShare],
    ) -> BurstTerms {
        if shares.iter().all(|share| share.limit.is_none()) {
            return BurstTerms::default();
        }
        burst_terms::of_pod(object, read, &self.inventory)
    }

    /// The card that a label names: its UUID, or KAI's name for a group of pods. The card of a group is named by the
    /// pod that reserves it.
    pub(crate) fn card_of_group(&self, group: &str) -> Option<String> {
        if group.starts_with("GPU-") || group.starts_with("MIG-") {
            return Some(group.to_owned());
        }
        self.inventory.pods().find_map(|(pod, read)| {
            let uuid = read.keeps.as_ref()?;
            let reserves_group = pods::groups(pod).iter().any(|kept| kept == group);
            reserves_group.then(|| uuid.to_string())
        })
    }
}

/// What is written on a running pod, with its limit on each card.
pub(super) fn with_limits(
    written: &[CardShare],
    limit: Option<Share>,
    status: &AgentStatus,
) -> Vec<CardShare> {
    let shares = written.iter().map(|share| {
        let card = status.card(&share.card);
        CardShare {
            limit: card.and_then(|card| card_assignment::limit(limit, share.bytes, card)),
            ..share.clone()
        }
    });
    shares.collect()
}
