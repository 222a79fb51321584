//! What a session answers from outside: its decisions, the pods and nodes after them, and why a pod waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::actions;
use crate::affinity_filter::{AffinityRefusal, affinity_refusal};
use crate::card_naming::CardNaming;
use crate::charges::CardCharge;
use crate::claims::{ClaimRefusal, claim_refusal};
use crate::cluster::{TaskStatus, ZoneAmounts};
use crate::entitlement::{Entitlement, entitlement};
use crate::fit::{aligns, has_pod_slot};
use crate::lookahead::held_back::held_back;
use crate::node_resources::NodeResources;

use crate::plan_record::HeldBackJob;
use crate::requests::request_on;
use crate::session::Session;
use crate::snapshot::ClusterSnapshot;
use crate::step::action::Action;
use crate::step::{Decision, TaskOutcome};
use crate::task_placement::placement_of;
use crate::victim_rules;

impl Session<'_> {
    /// Runs one action for all jobs.
    pub fn run(&mut self, action: Action) {
        actions::run(self, action);
    }

    /// What has been decided so far.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let nominated = self.nominated();
        let mut names = CardNaming::default();
        for (number, (before, after)) in self.state().before_and_after().enumerate() {
            if before == after {
                continue;
            }
            let facts = self.facts().task(number);
            let job = self.facts().job(facts.job).job.name.clone();
            let task = facts.task.name.clone();
            if before.status.is_allocated() && !after.status.is_allocated() {
                decisions.push(Decision::Evict {
                    job: job.clone(),
                    task: task.clone(),
                });
            }
            let Some(placement) = placement_of(self, number, after, &mut names) else {
                continue;
            };
            match after.status {
                TaskStatus::Binding if before.status != TaskStatus::Binding => {
                    decisions.push(Decision::Bind {
                        job,
                        task,
                        placement,
                    });
                }
                TaskStatus::Pipelined if before.status != TaskStatus::Pipelined => {
                    decisions.push(Decision::Reserve {
                        job,
                        task,
                        placement,
                        is_nominated: nominated.contains(&number),
                    });
                }
                _ => {}
            }
        }
        decisions.sort();
        decisions
    }

    /// A pod as it is now.
    #[must_use]
    pub fn outcome(&self, task: &str) -> Option<TaskOutcome> {
        let found = self
            .facts()
            .tasks()
            .iter()
            .position(|facts| facts.task.name == task)?;
        let state = self.state().task(found);
        Some(TaskOutcome {
            status: state.status,
            placement: placement_of(self, found, state, &mut CardNaming::default()),
        })
    }

    /// All pods as they are now, by name, with the cards that each has where it is.
    #[must_use]
    pub fn outcomes(&self) -> BTreeMap<&str, (TaskOutcome, CardCharge)> {
        let mut names = CardNaming::default();
        let all = self
            .facts()
            .tasks()
            .iter()
            .enumerate()
            .map(|(number, facts)| {
                let state = self.state().task(number);
                let outcome = TaskOutcome {
                    status: state.status,
                    placement: placement_of(self, number, state, &mut names),
                };
                let charge = CardCharge {
                    cards: self.state().gpus_of(self.facts(), number),
                    burst: self.state().burst_of(self.facts(), number),
                };
                (facts.task.name.as_str(), (outcome, charge))
            });
        all.collect()
    }

    /// How many cards a pod is charged for where it is.
    #[must_use]
    pub fn cards_of(&self, task: &str) -> Option<f64> {
        let found = self
            .facts()
            .tasks()
            .iter()
            .position(|facts| facts.task.name == task)?;
        Some(self.state().gpus_of(self.facts(), found))
    }

    /// When the pods of a job last started, this session included.
    #[must_use]
    pub fn last_start(&self, job: &str) -> Option<Duration> {
        let found = self.facts().find_job(job)?;
        victim_rules::last_start(self, found)
    }

    /// The NUMA zones of its node that a pod has or will have, by index.
    #[must_use]
    pub fn zones_of(&self, task: &str) -> Vec<usize> {
        let found = self
            .facts()
            .tasks()
            .iter()
            .position(|facts| facts.task.name == task);
        let zones = found.map(|task| &self.state().task(task).zones);
        zones.into_iter().flatten().map(|(zone, _)| *zone).collect()
    }

    /// What is available in the NUMA zones of a node.
    #[must_use]
    pub fn available_in_zones(&self, node: &str) -> Vec<ZoneAmounts> {
        let found = self
            .facts()
            .nodes()
            .iter()
            .position(|known| known.name == node);
        found
            .map(|node| self.state().node(node).zones.available())
            .unwrap_or_default()
    }

    /// What a node has idle, and what is being released there less what is reserved.
    #[must_use]
    pub fn node_state(&self, node: &str) -> Option<(NodeResources, NodeResources)> {
        let found = self
            .facts()
            .nodes()
            .iter()
            .position(|known| known.name == node)?;
        let node_state = self.state().node(found);
        Some((node_state.idle.clone(), node_state.releasing.clone()))
    }

    /// Why the pods around that node keep the pod off it, if they do.
    #[must_use]
    pub fn affinity_refusal(&self, task: &str, node: &str) -> Option<AffinityRefusal> {
        let (task, node) = named(self.facts(), task, node)?;
        affinity_refusal(self, task, node)
    }

    /// Why the pod can't use its claims on that node, if so.
    #[must_use]
    pub fn claim_refusal(&self, task: &str, node: &str) -> Option<ClaimRefusal> {
        let (task, node) = named(self.facts(), task, node)?;
        claim_refusal(self, task, node)
    }

    /// Whether the node may run too few pods for the pod itself and the card that its share would open.
    #[must_use]
    pub fn lacks_pod_slot(&self, task: &str, node: &str) -> bool {
        let named = named(self.facts(), task, node);
        named.is_some_and(|(task, node)| {
            !has_pod_slot(self, node, &request_on(self.facts(), task, node))
        })
    }

    /// Whether the kubelet of a node could align a pod with what is free in its NUMA zones, or does not have to.
    #[must_use]
    pub fn fits_zones(&self, task: &str, node: &str) -> bool {
        let named = named(self.facts(), task, node);
        named.is_none_or(|(task, node)| aligns(self, task, node))
    }

    /// Why a waiting job should be served, if it should.
    #[must_use]
    pub fn entitlement(&self, job: &str) -> Option<Entitlement> {
        entitlement(self, job)
    }

    /// The pods whose reserved places are kept for them, by name.
    #[must_use]
    pub fn nominated_pods(&self) -> BTreeSet<&str> {
        let tasks = self.nominated().into_iter();
        tasks
            .map(|task| self.facts().task(task).task.name.as_str())
            .collect()
    }

    /// The waiting jobs that may not evict in this step, by name.
    #[must_use]
    pub fn held_back(&self) -> Vec<HeldBackJob> {
        held_back(self)
    }
}

/// A task and a node by their names.
fn named(facts: &ClusterSnapshot<'_>, task: &str, node: &str) -> Option<(usize, usize)> {
    Some((facts.find_task(task)?, facts.find_node(node)?))
}
