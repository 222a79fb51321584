//! Pending binds: pods from the decision until the API server shows them on their node.
//!
//! Pods that start together are a unit. None of them is bound before all are accepted. If one is refused, the others
//! release what they got. A pod that is withdrawn while its agent or the API server has yet to answer stays here until
//! the answer comes, so that nothing is requested twice and nothing is left behind.
//!
//! Devices of claims may have to be attached to the node first. Then the claims are reserved before anything else, and
//! the agents are asked once all devices of the unit are ready: an agent keeps a reservation only for a while.

use std::collections::{BTreeMap, BTreeSet};

use super::claims::ReservedClaim;
use super::event::{AgentRequest, PodRef, SchedulerEffect};

mod pending_bind;

pub(crate) use pending_bind::{BindStage, DeviceWait, OpenAnswers, PendingBind};

/// What follows from a change of one bind.
#[derive(Debug, Default)]
pub(crate) struct BindOutcome {
    pub(crate) effects: Vec<SchedulerEffect>,
    /// Pods that are no longer on their way.
    pub(crate) withdrawn: Vec<PodRef>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PendingBinds {
    by_uid: BTreeMap<String, PendingBind>,
    by_unit: BTreeMap<u64, BTreeSet<String>>,
    units: u64,
}

impl PendingBinds {
    /// The pending bind of a pod.
    pub(crate) fn get(&self, uid: &str) -> Option<&PendingBind> {
        self.by_uid.get(uid)
    }

    /// All pending binds, withdrawn ones included.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PendingBind> {
        self.by_uid.values()
    }

    /// The pods for which the agent of this node has yet to answer.
    pub(crate) fn awaiting_agent(&self, node: &str) -> Vec<PodRef> {
        let waiting = self.all().filter(|start| {
            let is_asked = match start.stage {
                BindStage::Asked => true,
                BindStage::Withdrawn(open) => open.agent,
                BindStage::Attaching
                | BindStage::Attached
                | BindStage::Accepted(_)
                | BindStage::Binding(_)
                | BindStage::Bound => false,
            };
            start.node == node && is_asked
        });
        waiting.map(|start| start.pod.clone()).collect()
    }

    /// Begins the binds of a unit.
    pub(crate) fn begin(&mut self, unit: Vec<PendingBind>) -> Vec<SchedulerEffect> {
        self.units += 1;
        let number = self.units;
        let mut effects = Vec::new();
        for mut start in unit {
            start.unit = number;
            start.stage = if start.has_claims() {
                effects.push(start.reserve_claims());
                BindStage::Attaching
            } else {
                BindStage::Attached
            };
            let uid = start.pod.uid.clone();
            self.remove(&uid);
            self.by_unit.entry(number).or_default().insert(uid.clone());
            self.by_uid.insert(uid, start);
        }
        effects.extend(self.ask_if_all_attached(number));
        effects
    }

    /// The claims of a pod were reserved. Its devices may have to get ready. If it will not start, it gives them back.
    pub(crate) fn reserved(
        &mut self,
        uid: &str,
        claims: &[ReservedClaim],
    ) -> Option<SchedulerEffect> {
        let start = self.by_uid.get_mut(uid)?;
        let devices = start.devices.as_mut()?;
        let is_first = !devices.is_reserved;
        devices.is_reserved = true;
        devices.reserved = claims.to_vec();
        let is_withdrawn = matches!(start.stage, BindStage::Withdrawn(_));
        (is_first && is_withdrawn)
            .then(|| start.release_claims())
            .flatten()
    }

    /// The pods whose claims are reserved and whose devices are not ready yet, as far as is known.
    pub(crate) fn attaching(&self) -> impl Iterator<Item = (&PendingBind, &DeviceWait)> {
        self.all().filter_map(|start| {
            let devices = start.devices.as_ref()?;
            let is_waiting = start.stage == BindStage::Attaching && devices.is_reserved;
            is_waiting.then_some((start, devices))
        })
    }

    /// Notes what a pod was told that it waits for.
    pub(crate) fn told(&mut self, uid: &str, what: String) {
        let start = self.by_uid.get_mut(uid);
        if let Some(devices) = start.and_then(|start| start.devices.as_mut()) {
            devices.told = Some(what);
        }
    }

    /// The devices of a pod are ready.
    pub(crate) fn attached(&mut self, uid: &str) -> Vec<SchedulerEffect> {
        let start = self.by_uid.get_mut(uid);
        let Some(start) = start.filter(|start| start.stage == BindStage::Attaching) else {
            return Vec::new();
        };
        start.stage = BindStage::Attached;
        let unit = start.unit;
        self.ask_if_all_attached(unit)
    }

    /// The devices of a pod will not be ready: its unit ends.
    pub(crate) fn not_attached(&mut self, uid: &str) -> BindOutcome {
        let Some(unit) = self.by_uid.get(uid).map(|start| start.unit) else {
            return BindOutcome::default();
        };
        self.withdraw(unit)
    }

    /// Whether a pod will not start, and some answer about it is open.
    pub(crate) fn is_withdrawn(&self, uid: &str) -> bool {
        let start = self.by_uid.get(uid);
        start.is_some_and(|start| matches!(start.stage, BindStage::Withdrawn(_)))
    }

    /// The claims of a pod were released, or were not reserved.
    pub(crate) fn released(&mut self, uid: &str) {
        self.answered(uid, |open| open.claims = false);
    }

    /// Notes an answer about a withdrawn pod, and forgets the pod after the last one.
    fn answered(&mut self, uid: &str, note: impl FnOnce(&mut OpenAnswers)) {
        let Some(start) = self.by_uid.get_mut(uid) else {
            return;
        };
        let BindStage::Withdrawn(open) = &mut start.stage else {
            return;
        };
        note(open);
        if !open.agent && !open.claims {
            self.remove(uid);
        }
    }

    /// The agent made a reservation for a pod.
    pub(crate) fn accepted(&mut self, uid: &str, id: String) -> Vec<SchedulerEffect> {
        let Some(start) = self.by_uid.get_mut(uid) else {
            // A forgotten bind, or an adopted pod. Reconciling looks at the agent's allocations anyway.
            return Vec::new();
        };
        match start.stage {
            BindStage::Asked => {
                start.stage = BindStage::Accepted(Some(id));
                let unit = start.unit;
                self.bind_if_all_accepted(unit)
            }
            BindStage::Withdrawn(_) => {
                let node = start.node.clone();
                self.answered(uid, |open| open.agent = false);
                vec![AgentRequest::Release { id }.to(node)]
            }
            BindStage::Attaching
            | BindStage::Attached
            | BindStage::Accepted(_)
            | BindStage::Binding(_)
            | BindStage::Bound => Vec::new(),
        }
    }

    /// The agent refused a pod: its unit ends.
    pub(crate) fn refused(&mut self, uid: &str) -> BindOutcome {
        let Some(start) = self.by_uid.get(uid) else {
            return BindOutcome::default();
        };
        let (stage, unit) = (start.stage.clone(), start.unit);
        match stage {
            BindStage::Asked => {
                let mut outcome = self.withdraw(unit);
                outcome.withdrawn.retain(|pod| pod.uid != uid);
                self.answered(uid, |open| open.agent = false);
                outcome
            }
            BindStage::Withdrawn(_) => {
                self.answered(uid, |open| open.agent = false);
                BindOutcome::default()
            }
            BindStage::Attaching
            | BindStage::Attached
            | BindStage::Accepted(_)
            | BindStage::Binding(_)
            | BindStage::Bound => BindOutcome::default(),
        }
    }

    /// The API server bound a pod: its answer or the watch says so, whichever comes first.
    pub(crate) fn bound(&mut self, uid: &str) -> Vec<SchedulerEffect> {
        let Some(start) = self.by_uid.get_mut(uid) else {
            return Vec::new();
        };
        let BindStage::Binding(id) = &mut start.stage else {
            return Vec::new();
        };
        let id = id.take();
        start.stage = BindStage::Bound;
        let (node, pod) = (start.node.clone(), start.pod.clone());
        let commit = id.map(|id| AgentRequest::Commit { id, pod }.to(node));
        commit.into_iter().chain([start.bound_event()]).collect()
    }

    /// The API server did not bind a pod. Others of its unit may be bound already, and stay. If only its claims could
    /// not be reserved, nobody is bound, and its unit ends.
    pub(crate) fn not_bound(&mut self, uid: &str) -> Vec<SchedulerEffect> {
        if self.is_withdrawn(uid) {
            self.released(uid);
            return Vec::new();
        }
        let Some(start) = self.remove(uid) else {
            return Vec::new();
        };
        let mut effects: Vec<SchedulerEffect> = start.release().into_iter().collect();
        if start.stage == BindStage::Attaching {
            effects.extend(self.withdraw(start.unit).effects);
        }
        effects
    }

    /// The event still due for a pod that the API server shows on the node where it was to be bound.
    pub(crate) fn bound_event(&self, uid: &str, node: Option<&str>) -> Option<SchedulerEffect> {
        let start = self.by_uid.get(uid)?;
        let is_due = matches!(start.stage, BindStage::Binding(_)) && Some(&*start.node) == node;
        is_due.then(|| start.bound_event())
    }

    /// The API server shows a pod on a node.
    pub(crate) fn observed_on(&mut self, uid: &str, node: &str) -> BindOutcome {
        let Some(start) = self.by_uid.get(uid) else {
            return BindOutcome::default();
        };
        match &start.stage {
            BindStage::Binding(_) | BindStage::Bound if start.node == node => {
                let effects = self.bound(uid);
                self.remove(uid);
                BindOutcome {
                    effects,
                    withdrawn: Vec::new(),
                }
            }
            // Somebody else bound it, and it keeps its claims.
            _ => {
                if let Some(start) = self.by_uid.get_mut(uid)
                    && !matches!(start.stage, BindStage::Withdrawn(_))
                {
                    start.devices = None;
                }
                self.gone(uid)
            }
        }
    }

    /// A pod is gone, or was bound by somebody else: its unit is decided again.
    pub(crate) fn gone(&mut self, uid: &str) -> BindOutcome {
        let Some(start) = self.by_uid.get_mut(uid) else {
            return BindOutcome::default();
        };
        let unit = start.unit;
        match start.stage {
            BindStage::Asked => {
                let mut outcome = self.withdraw(unit);
                outcome.withdrawn.retain(|pod| pod.uid != uid);
                outcome
            }
            BindStage::Withdrawn(_) => BindOutcome::default(),
            BindStage::Attaching | BindStage::Attached | BindStage::Accepted(_) => {
                self.withdraw(unit)
            }
            BindStage::Binding(_) | BindStage::Bound => BindOutcome {
                effects: self.not_bound(uid),
                withdrawn: Vec::new(),
            },
        }
    }

    /// Withdraws the pods of a unit that are not being bound yet.
    fn withdraw(&mut self, unit: u64) -> BindOutcome {
        let mut outcome = BindOutcome::default();
        for uid in self.by_unit.get(&unit).cloned().unwrap_or_default() {
            let Some(start) = self.by_uid.get_mut(&uid) else {
                continue;
            };
            let is_asked = match start.stage {
                BindStage::Asked => true,
                BindStage::Attaching | BindStage::Attached | BindStage::Accepted(_) => false,
                BindStage::Withdrawn(_) | BindStage::Binding(_) | BindStage::Bound => continue,
            };
            outcome.effects.extend(start.release());
            outcome.effects.extend(start.release_claims());
            outcome.withdrawn.push(start.pod.clone());
            start.stage = BindStage::Withdrawn(OpenAnswers {
                agent: is_asked,
                claims: start.has_claims(),
            });
            self.answered(&uid, |_| {});
        }
        outcome
    }

    /// Asks the agents once all devices of a unit are ready.
    fn ask_if_all_attached(&mut self, unit: u64) -> Vec<SchedulerEffect> {
        let uids = self.by_unit.get(&unit).cloned().unwrap_or_default();
        if !self.are_all(&uids, |stage| *stage == BindStage::Attached) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        for uid in &uids {
            let Some(start) = self.by_uid.get_mut(uid) else {
                continue;
            };
            if start.cards.is_empty() {
                start.stage = BindStage::Accepted(None);
                continue;
            }
            start.stage = BindStage::Asked;
            let request = AgentRequest::Allocate {
                pod: start.pod.clone(),
                shares: start.cards.clone(),
                terms: start.terms,
                idle_after: start.idle_after,
            };
            effects.push(request.to(start.node.clone()));
        }
        effects.extend(self.bind_if_all_accepted(unit));
        effects
    }

    fn are_all(&self, uids: &BTreeSet<String>, is: impl Fn(&BindStage) -> bool) -> bool {
        uids.iter()
            .all(|uid| self.by_uid.get(uid).is_some_and(|start| is(&start.stage)))
    }

    fn remove(&mut self, uid: &str) -> Option<PendingBind> {
        let start = self.by_uid.remove(uid)?;
        if let Some(others) = self.by_unit.get_mut(&start.unit) {
            others.remove(uid);
            if others.is_empty() {
                self.by_unit.remove(&start.unit);
            }
        }
        Some(start)
    }

    fn bind_if_all_accepted(&mut self, unit: u64) -> Vec<SchedulerEffect> {
        let uids = self.by_unit.get(&unit).cloned().unwrap_or_default();
        if !self.are_all(&uids, |stage| matches!(stage, BindStage::Accepted(_))) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        for uid in &uids {
            let Some(start) = self.by_uid.get_mut(uid) else {
                continue;
            };
            if let BindStage::Accepted(id) = &start.stage {
                start.stage = BindStage::Binding(id.clone());
            }
            effects.push(SchedulerEffect::Bind {
                node: start.node.clone(),
                pod: start.pod.clone(),
                cards: start.cards.clone(),
                received: start.received,
                allocated: start.allocated.clone(),
                zones: start.zones.clone(),
                volumes: start.volumes.clone(),
                claims: start.claims.clone(),
                are_claims_reserved: start.devices.is_some(),
                joins: start.joins.clone(),
            });
        }
        effects
    }
}

#[cfg(test)]
mod tests;
