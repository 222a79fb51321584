//! Pending binds: pods from the decision until the API server shows them on their node.
//!
//! Pods that start together are a unit. None of them is bound before all are accepted. If one is refused, the others
//! release what they got. A pod that is withdrawn while its agent has yet to answer stays here until the answer
//! comes, so that nothing is requested twice and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::BurstTerms;

use super::claims::ClaimReservation;
use super::event::{PodEventReason, PodRef, SchedulerEffect};
use super::grouper::GroupMembership;
use apportion_model::cards::CardShare;
use apportion_model::pod_zones::ZonesOfPod;
use apportion_model::volumes::VolumeBinding;

/// The stage of a bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BindStage {
    /// Its agent was asked for a reservation.
    Asked,
    /// Its agent was asked, but the pod will not start.
    Withdrawn,
    /// It has a reservation, or needs none, and waits for the rest of its unit.
    Accepted(Option<String>),
    /// The API server was asked to bind it.
    Binding(Option<String>),
    /// The API server has bound it, and does not show it yet.
    Bound,
}

/// A pod on its way to a node.
#[derive(Clone, Debug)]
pub(crate) struct PendingBind {
    pub(crate) pod: PodRef,
    pub(crate) node: String,
    /// Cards with bytes; empty if no agent is asked.
    pub(crate) cards: Vec<CardShare>,
    /// What it is worth beside others that burst.
    pub(crate) terms: BurstTerms,
    pub(crate) received: Option<&'static str>,
    /// The request that its share is for.
    pub(crate) allocated: Option<String>,
    /// What it is expected to get from each NUMA zone.
    pub(crate) zones: ZonesOfPod,
    /// Volumes to bind before the pod.
    pub(crate) volumes: Vec<VolumeBinding>,
    /// Resource claims to reserve before the pod is bound.
    pub(crate) claims: Vec<ClaimReservation>,
    /// The group to write on the pod.
    pub(crate) joins: Option<GroupMembership>,
    pub(crate) stage: BindStage,
    unit: u64,
}

impl PendingBind {
    /// A bind that was decided.
    pub(crate) fn new(
        pod: PodRef,
        node: String,
        cards: Vec<CardShare>,
        received: Option<&'static str>,
    ) -> Self {
        let stage = if cards.is_empty() {
            BindStage::Accepted(None)
        } else {
            BindStage::Asked
        };
        Self {
            pod,
            node,
            cards,
            terms: BurstTerms::default(),
            received,
            allocated: None,
            zones: Vec::new(),
            volumes: Vec::new(),
            claims: Vec::new(),
            joins: None,
            stage,
            unit: 0,
        }
    }

    /// The event about a bound pod.
    fn bound_event(&self) -> SchedulerEffect {
        let cards: Vec<&str> = self.cards.iter().map(|share| share.card.as_str()).collect();
        let on = match cards.as_slice() {
            [] => String::new(),
            cards => format!(", on {}", cards.join(" and ")),
        };
        let message = format!(
            "Successfully assigned pod {} to node {} at node-pool default{on}",
            self.pod.full(),
            self.node
        );
        SchedulerEffect::PublishEvent {
            pod: self.pod.clone(),
            reason: PodEventReason::Scheduled,
            message,
        }
    }

    fn release(&self) -> Option<SchedulerEffect> {
        let (BindStage::Accepted(Some(id)) | BindStage::Binding(Some(id))) = &self.stage else {
            return None;
        };
        let (node, id) = (self.node.clone(), id.clone());
        Some(SchedulerEffect::Release { node, id })
    }
}

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
            start.node == node && matches!(start.stage, BindStage::Asked | BindStage::Withdrawn)
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
            if start.stage == BindStage::Asked {
                effects.push(SchedulerEffect::Allocate {
                    node: start.node.clone(),
                    pod: start.pod.clone(),
                    shares: start.cards.clone(),
                    terms: start.terms,
                });
            }
            let uid = start.pod.uid.clone();
            self.remove(&uid);
            self.by_unit.entry(number).or_default().insert(uid.clone());
            self.by_uid.insert(uid, start);
        }
        effects.extend(self.bind_if_all_accepted(number));
        effects
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
            BindStage::Withdrawn => {
                let node = start.node.clone();
                self.remove(uid);
                vec![SchedulerEffect::Release { node, id }]
            }
            BindStage::Accepted(_) | BindStage::Binding(_) | BindStage::Bound => Vec::new(),
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
                self.remove(uid);
                self.withdraw(unit)
            }
            BindStage::Withdrawn => {
                self.remove(uid);
                BindOutcome::default()
            }
            BindStage::Accepted(_) | BindStage::Binding(_) | BindStage::Bound => {
                BindOutcome::default()
            }
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
        let commit = id.map(|id| SchedulerEffect::Commit { node, id, pod });
        commit.into_iter().chain([start.bound_event()]).collect()
    }

    /// The API server did not bind a pod. Others of its unit may be bound already, and stay.
    pub(crate) fn not_bound(&mut self, uid: &str) -> Vec<SchedulerEffect> {
        let start = self.remove(uid);
        start
            .and_then(|start| start.release())
            .into_iter()
            .collect()
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
            // Somebody else bound it.
            _ => self.gone(uid),
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
                start.stage = BindStage::Withdrawn;
                self.withdraw(unit)
            }
            BindStage::Withdrawn => BindOutcome::default(),
            BindStage::Accepted(_) => self.withdraw(unit),
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
            match start.stage {
                BindStage::Asked => {
                    start.stage = BindStage::Withdrawn;
                    outcome.withdrawn.push(start.pod.clone());
                }
                BindStage::Accepted(_) => {
                    outcome.effects.extend(start.release());
                    outcome.withdrawn.push(start.pod.clone());
                    self.remove(&uid);
                }
                BindStage::Withdrawn | BindStage::Binding(_) | BindStage::Bound => {}
            }
        }
        outcome
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
        if !uids.iter().all(|uid| {
            let start = self.by_uid.get(uid);
            start.is_some_and(|start| matches!(start.stage, BindStage::Accepted(_)))
        }) {
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
                joins: start.joins.clone(),
            });
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(name: &str, node: &str) -> PendingBind {
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        };
        let cards = vec!["GPU-1=1".parse().unwrap()];
        PendingBind::new(pod, node.to_owned(), cards, Some("Fraction"))
    }

    #[test]
    fn one_refusal_ends_a_unit_and_gives_back_what_was_accepted() {
        let mut pending_binds = PendingBinds::default();
        let asked = pending_binds.begin(vec![start("a", "n"), start("b", "n"), start("c", "m")]);
        assert_eq!(asked.len(), 3);
        assert!(
            pending_binds.accepted("a", "1".to_owned()).is_empty(),
            "the others are awaited"
        );
        let outcome = pending_binds.refused("b");
        let (node, id) = ("n".to_owned(), "1".to_owned());
        assert_eq!(outcome.effects, [SchedulerEffect::Release { node, id }]);
        let asked: Vec<String> = pending_binds
            .awaiting_agent("m")
            .into_iter()
            .map(|pod| pod.uid)
            .collect();
        assert_eq!(asked, ["c"], "it stays until its agent has answered");
        let released = pending_binds.accepted("c", "2".to_owned());
        let (node, id) = ("m".to_owned(), "2".to_owned());
        assert_eq!(released, [SchedulerEffect::Release { node, id }]);
        assert!(pending_binds.all().next().is_none());
    }
}
