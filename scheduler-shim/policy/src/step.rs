//! The whole policy as one function, and its outcome.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::card_naming::CardNaming;
use crate::cluster::{Cluster, Queue, TaskStatus, ZoneAmounts};
use crate::lookahead::plan;
use crate::node_resources::NodeResources;
use crate::session::Session;
use crate::session::facts::TaskState;
use action::Action;

pub(crate) mod action;

/// Where a pod goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskPlacement {
    /// The node.
    pub node: String,
    /// Its cards, where they are known one by one. Where cards are counted, only those that it shares: names in use
    /// or new names, equal for the same card.
    pub cards: Vec<String>,
    /// What it gets of the node's NUMA zones, by zone name.
    pub zones: Vec<(String, ZoneAmounts)>,
}

/// A decision of the policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// Evict a pod.
    Evict {
        /// Its job.
        job: String,
        /// The pod.
        task: String,
    },
    /// Bind a pod.
    Bind {
        /// Its job.
        job: String,
        /// The pod.
        task: String,
        /// Its place.
        place: TaskPlacement,
    },
    /// Reserve a place for a pod until others have left.
    Reserve {
        /// Its job.
        job: String,
        /// The pod.
        task: String,
        /// Its place.
        place: TaskPlacement,
    },
}

/// What to do now: evictions, then bindings, then reservations, each by name.
#[must_use]
pub fn step(now: Duration, cluster: &Cluster) -> Vec<Decision> {
    plan(now, cluster).decisions()
}

/// A pod after the decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// Its status.
    pub status: TaskStatus,
    /// Where it is or will be.
    pub place: Option<TaskPlacement>,
}

impl Session<'_> {
    /// Runs one action for all jobs.
    pub fn run(&mut self, action: Action) {
        match action {
            Action::Allocate => self.allocate(),
            Action::Consolidate => self.consolidate(),
            Action::Reclaim => self.reclaim(),
            Action::Preempt => self.preempt(),
            Action::EvictStaleGangs => self.evict_stale_gangs(),
        }
    }

    /// What has been decided so far.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let mut names = CardNaming::default();
        for (number, (before, after)) in self
            .initial_states
            .iter()
            .zip(&self.task_states)
            .enumerate()
        {
            if before == after {
                continue;
            }
            let facts = &self.tasks[number];
            let name = || {
                (
                    self.jobs[facts.job].job.name.clone(),
                    facts.task.name.clone(),
                )
            };
            if before.status.is_allocated() && !after.status.is_allocated() {
                let (job, task) = name();
                decisions.push(Decision::Evict { job, task });
            }
            let (job, task) = name();
            let Some(place) = self.place_of(number, after, &mut names) else {
                continue;
            };
            match after.status {
                TaskStatus::Binding if before.status != TaskStatus::Binding => {
                    decisions.push(Decision::Bind { job, task, place });
                }
                TaskStatus::Pipelined if before.status != TaskStatus::Pipelined => {
                    decisions.push(Decision::Reserve { job, task, place });
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
            .tasks
            .iter()
            .position(|facts| facts.task.name == task)?;
        let state = &self.task_states[found];
        Some(TaskOutcome {
            status: state.status,
            place: self.place_of(found, state, &mut CardNaming::default()),
        })
    }

    /// All pods as they are now, by name, with how many cards each is charged for where it is.
    #[must_use]
    pub fn outcomes(&self) -> BTreeMap<&str, (TaskOutcome, f64)> {
        let mut names = CardNaming::default();
        let all = self.tasks.iter().enumerate().map(|(number, facts)| {
            let state = &self.task_states[number];
            let outcome = TaskOutcome {
                status: state.status,
                place: self.place_of(number, state, &mut names),
            };
            (facts.task.name.as_str(), (outcome, self.gpus_of(number)))
        });
        all.collect()
    }

    /// How many cards a pod is charged for where it is.
    #[must_use]
    pub fn cards_of(&self, task: &str) -> Option<f64> {
        let found = self
            .tasks
            .iter()
            .position(|facts| facts.task.name == task)?;
        Some(self.gpus_of(found))
    }

    /// When the pods of a job last started, this session included.
    #[must_use]
    pub fn last_start(&self, job: &str) -> Option<Duration> {
        let found = self.jobs.iter().find(|facts| facts.job.name == job)?;
        found.last_start
    }

    /// The NUMA zones of its node that a pod has or will have, by index.
    #[must_use]
    pub fn zones_of(&self, task: &str) -> Vec<usize> {
        let found = self.tasks.iter().position(|facts| facts.task.name == task);
        let zones = found.map(|task| &self.task_states[task].zones);
        zones.into_iter().flatten().map(|(zone, _)| *zone).collect()
    }

    /// What is available in the NUMA zones of a node.
    #[must_use]
    pub fn available_in_zones(&self, node: &str) -> Vec<ZoneAmounts> {
        let found = self.nodes.iter().position(|known| known.name == node);
        found
            .map(|node| self.node_states[node].zones.available())
            .unwrap_or_default()
    }

    /// What a node has idle, and what is being released there less what is reserved.
    #[must_use]
    pub fn node_state(&self, node: &str) -> Option<(NodeResources, NodeResources)> {
        let found = self.nodes.iter().position(|known| known.name == node)?;
        let node_state = &self.node_states[found];
        Some((node_state.idle.clone(), node_state.releasing.clone()))
    }

    /// Where a task is or will be.
    pub(crate) fn place_of(
        &self,
        task: usize,
        state: &TaskState,
        names: &mut CardNaming,
    ) -> Option<TaskPlacement> {
        let node = state.node?;
        Some(TaskPlacement {
            node: self.nodes[node].name.clone(),
            cards: self.cards_by_name(task, state, names),
            zones: state
                .zones
                .iter()
                .filter_map(|(zone, amounts)| {
                    let name = self.node_states[node].zones.name(*zone)?;
                    Some((name.to_owned(), *amounts))
                })
                .collect(),
        })
    }

    pub(crate) fn queue_facts(&self, queue: usize) -> Option<&Queue> {
        let name = &self.queues.get(queue).uid;
        self.queue_facts.get(name.as_str()).copied()
    }
}
