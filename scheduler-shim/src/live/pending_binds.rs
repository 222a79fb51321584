//! Pending binds: pods from the decision until the API server shows them on their node.
//!
//! Pods that start together are a unit. None of them is bound before all are accepted. If one is refused, the others
//! release what they got. A pod that is withdrawn while its agent or the API server has yet to answer stays here until
//! the answer comes, so that nothing is requested twice and nothing is left behind.
//!
//! Devices of claims may have to be attached to the node first. Then the claims are reserved before anything else, and
//! the agents are asked once all devices of the unit are ready: an agent keeps a reservation only for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_abi::BurstTerms;

use super::claims::{ClaimReservation, ReservedClaim};
use super::event::{PodEventReason, PodRef, SchedulerEffect};
use super::grouper::GroupMembership;
use apportion_model::cards::CardShare;
use apportion_model::pod_zones::ZonesOfPod;
use apportion_model::volumes::VolumeBinding;

/// The stage of a bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BindStage {
    /// Its claims are being reserved, or its devices are not ready yet.
    Attaching,
    /// It waits for the devices of the rest of its unit.
    Attached,
    /// Its agent was asked for a reservation.
    Asked,
    /// It will not start, and stays until these have answered.
    Withdrawn(OpenAnswers),
    /// It has a reservation, or needs none, and waits for the rest of its unit.
    Accepted(Option<String>),
    /// The API server was asked to bind it.
    Binding(Option<String>),
    /// The API server has bound it, and does not show it yet.
    Bound,
}

/// Who has yet to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenAnswers {
    /// The agent, about a reservation.
    pub(crate) agent: bool,
    /// The API server, about claims: first that they are reserved, then that they are released.
    claims: bool,
}

/// How far the devices of a pod are.
#[derive(Clone, Debug)]
pub(crate) struct DeviceWait {
    /// When they were decided.
    pub(crate) since: Duration,
    /// Whether the claims are reserved.
    pub(crate) is_reserved: bool,
    /// The claims that are reserved.
    pub(crate) reserved: Vec<ReservedClaim>,
    /// What the pod waits for, as its last event says it.
    pub(crate) told: Option<String>,
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
    /// After how long without a CUDA call its programs are suspended, if ever.
    pub(crate) idle_after: Option<Duration>,
    pub(crate) received: Option<&'static str>,
    /// The request that its share is for.
    pub(crate) allocated: Option<String>,
    /// What it is expected to get from each NUMA zone.
    pub(crate) zones: ZonesOfPod,
    /// Volumes to bind before the pod.
    pub(crate) volumes: Vec<VolumeBinding>,
    /// Resource claims to reserve before the pod is bound.
    pub(crate) claims: Vec<ClaimReservation>,
    /// Set if devices of its claims must get ready before it is bound.
    pub(crate) devices: Option<DeviceWait>,
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
        Self {
            pod,
            node,
            cards,
            terms: BurstTerms::default(),
            idle_after: None,
            received,
            allocated: None,
            zones: Vec::new(),
            volumes: Vec::new(),
            claims: Vec::new(),
            devices: None,
            joins: None,
            stage: BindStage::Attached,
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

    /// Whether its claims are reserved, or being reserved, although it is not being bound yet.
    fn has_claims(&self) -> bool {
        self.devices.is_some()
    }

    fn reserve_claims(&self) -> SchedulerEffect {
        let (pod, claims) = (self.pod.clone(), self.claims.clone());
        SchedulerEffect::ReserveClaims { pod, claims }
    }

    /// Releases its claims. Before they are reserved, there is an answer to wait for: the writes would cross.
    fn release_claims(&self) -> Option<SchedulerEffect> {
        let (pod, claims) = (self.pod.clone(), self.claims.clone());
        let is_reserved = self.devices.as_ref()?.is_reserved;
        is_reserved.then_some(SchedulerEffect::ReleaseClaims { pod, claims })
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
                vec![SchedulerEffect::Release { node, id }]
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
        let commit = id.map(|id| SchedulerEffect::Commit { node, id, pod });
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
            effects.push(SchedulerEffect::Allocate {
                node: start.node.clone(),
                pod: start.pod.clone(),
                shares: start.cards.clone(),
                terms: start.terms,
                idle_after: start.idle_after,
            });
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
mod tests {
    use super::*;

    fn start(name: &str, node: &str) -> PendingBind {
        let cards = vec!["GPU-1=1".parse().unwrap()];
        PendingBind::new(pod(name), node.to_owned(), cards, Some("Fraction"))
    }

    fn pod(name: &str) -> PodRef {
        PodRef {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }

    /// A pod with devices that must get ready, and without a share.
    fn with_devices(name: &str) -> PendingBind {
        let mut start = PendingBind::new(pod(name), "n".to_owned(), Vec::new(), None);
        start.devices = Some(DeviceWait {
            since: Duration::ZERO,
            is_reserved: false,
            reserved: Vec::new(),
            told: None,
        });
        start
    }

    fn kinds(effects: &[SchedulerEffect]) -> Vec<String> {
        let kind = |effect: &SchedulerEffect| match effect {
            SchedulerEffect::ReserveClaims { pod, .. } => format!("reserve {}", pod.name),
            SchedulerEffect::ReleaseClaims { pod, .. } => format!("release {}", pod.name),
            SchedulerEffect::Allocate { pod, .. } => format!("ask {}", pod.name),
            SchedulerEffect::Bind { pod, .. } => format!("bind {}", pod.name),
            SchedulerEffect::Release { id, .. } => format!("give back {id}"),
            other => format!("{other:?}"),
        };
        effects.iter().map(kind).collect()
    }

    #[test]
    fn agents_are_asked_once_all_devices_of_a_unit_are_ready() {
        let mut binds = PendingBinds::default();
        let unit = vec![with_devices("a"), with_devices("b"), start("c", "n")];
        assert_eq!(kinds(&binds.begin(unit)), ["reserve a", "reserve b"]);
        for pod in ["a", "b"] {
            assert_eq!(binds.reserved(pod, &[]), None);
        }
        assert_eq!(binds.attaching().count(), 2);
        assert_eq!(kinds(&binds.attached("a")), [""; 0]);
        assert_eq!(kinds(&binds.attached("b")), ["ask c"]);
        let bound = binds.accepted("c", "1".to_owned());
        assert_eq!(kinds(&bound), ["bind a", "bind b", "bind c"]);
    }

    #[test]
    fn a_device_that_fails_ends_a_unit_and_frees_all_claims() {
        let mut binds = PendingBinds::default();
        let _ = binds.begin(vec![with_devices("a"), with_devices("b"), start("c", "n")]);
        let _ = binds.reserved("a", &[]);
        let ended = binds.not_attached("a");
        // The claims of the other are still being reserved.
        assert_eq!(kinds(&ended.effects), ["release a"]);
        assert!(binds.get("c").is_none(), "nobody has to answer about it");
        binds.released("a");
        assert!(binds.get("a").is_none());
        let late = binds.reserved("b", &[]);
        assert_eq!(kinds(late.as_slice()), ["release b"]);
        assert!(binds.is_withdrawn("b"), "it is not decided again yet");
        binds.released("b");
        assert!(binds.all().next().is_none());
    }

    #[test]
    fn claims_that_cannot_be_reserved_end_a_unit() {
        let mut binds = PendingBinds::default();
        let _ = binds.begin(vec![with_devices("a"), with_devices("b")]);
        let _ = binds.reserved("a", &[]);
        assert_eq!(kinds(&binds.not_bound("b")), ["release a"]);
        assert!(binds.get("b").is_none());
        assert!(binds.is_withdrawn("a"));
    }

    #[test]
    fn an_agent_that_refuses_frees_the_claims_of_its_unit() {
        let mut binds = PendingBinds::default();
        let mut both = start("a", "n");
        both.devices = with_devices("a").devices;
        let _ = binds.begin(vec![both, with_devices("b")]);
        for pod in ["a", "b"] {
            let _ = binds.reserved(pod, &[]);
            let _ = binds.attached(pod);
        }
        let refused = binds.refused("a");
        assert_eq!(kinds(&refused.effects), ["release a", "release b"]);
        for pod in ["a", "b"] {
            assert!(binds.is_withdrawn(pod));
            binds.released(pod);
        }
        assert!(binds.all().next().is_none());
    }

    #[test]
    fn a_pod_that_goes_waits_for_both_answers() {
        let mut binds = PendingBinds::default();
        let mut both = start("a", "n");
        both.devices = with_devices("a").devices;
        let _ = binds.begin(vec![both]);
        let _ = binds.reserved("a", &[]);
        assert_eq!(kinds(&binds.attached("a")), ["ask a"]);
        assert_eq!(kinds(&binds.gone("a").effects), ["release a"]);
        binds.released("a");
        assert!(binds.is_withdrawn("a"), "its agent has yet to answer");
        let answered = binds.accepted("a", "1".to_owned());
        assert_eq!(kinds(&answered), ["give back 1"]);
        assert!(binds.all().next().is_none());
    }

    #[test]
    fn a_pod_that_somebody_else_bound_keeps_its_claims() {
        let mut binds = PendingBinds::default();
        let _ = binds.begin(vec![with_devices("a")]);
        let _ = binds.reserved("a", &[]);
        assert_eq!(kinds(&binds.observed_on("a", "m").effects), [""; 0]);
        assert!(binds.all().next().is_none());
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
