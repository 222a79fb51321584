//! Who waits for the lease and follows the cluster meanwhile.
//!
//! It takes in all objects and does nothing: no agent is asked, nothing is written. What it knows when it comes to lead
//! is what its watches told, as with one that leads; agents are heard then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::agent_client::AgentConnector;
use super::agent_workers::AgentWorkers;
use super::api::{ApiWriter, LeadershipGuard};
use super::event::SchedulerEvent;
use super::grouper::PodGrouper;
use super::metrics::SchedulerMetrics;
use super::model::ClusterModel;
use super::programs::arrange;
use super::query_server::SchedulerQuery;
use super::usage_recorder::{UsageRecordStore, UsageRecorder};
use super::view::now;
use super::{Work, watch};
use crate::options::SchedulerRunOptions;

/// How long events are taken in before what was read of their objects is dropped.
const REST: Duration = Duration::from_secs(1);

/// The namespace of the programs that follow KAI's Config.
fn programs(asked: &SchedulerRunOptions) -> Option<&str> {
    asked.kai_programs.then_some(asked.lease_namespace.as_str())
}

/// Whoever waits.
pub(super) struct StandbyScheduler {
    client: Client,
    model: ClusterModel,
    events: UnboundedReceiver<SchedulerEvent>,
    sender: UnboundedSender<SchedulerEvent>,
    nodes: AgentWorkers,
    listed: BTreeSet<String>,
    others: oneshot::Receiver<BTreeSet<String>>,
}

impl StandbyScheduler {
    /// Begins to watch.
    pub(super) fn start(client: Client, asked: &SchedulerRunOptions) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let others = watch::start(client.clone(), sender.clone());
        Self {
            client,
            model: ClusterModel {
                choices: asked.choices.clone(),
                programs: programs(asked).map(str::to_owned),
                past: asked.over_time.terms().map(UsageRecorder::new),
                grouper: PodGrouper::new(asked.pod_groups),
                ..ClusterModel::new(asked.schedulers.clone())
            },
            events,
            nodes: AgentWorkers::new(sender.clone()),
            sender,
            listed: BTreeSet::new(),
            others,
        }
    }

    /// Takes in what happens, until nobody watches.
    pub(super) async fn follow(&mut self) {
        let mut rested = Instant::now();
        while let Some(event) = self.events.recv().await {
            self.take(event);
            if rested.elapsed() > REST {
                self.model.inventory.rest();
                rested = Instant::now();
            }
        }
    }

    fn take(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::Listed(kind, _) = &event {
            self.listed.insert(kind.clone());
        }
        self.nodes.take(&event);
        // Nobody is on the way and no agent is known, so nothing follows that somebody would have to do.
        let _ = self.model.apply(now(), event);
    }

    /// Goes on as the leader.
    pub(super) fn lead(
        mut self,
        asked: &SchedulerRunOptions,
        questions: mpsc::Receiver<SchedulerQuery>,
        metrics: SchedulerMetrics,
        reach: AgentConnector,
        leading: LeadershipGuard,
    ) -> Work {
        let store = UsageRecordStore::new(self.client.clone(), asked);
        if self.model.past.is_some() {
            tokio::spawn(store.clone().recall(self.sender.clone()));
        }
        self.nodes.begin(reach);
        if let Some(at) = programs(asked) {
            let (client, at) = (self.client.clone(), at.to_owned());
            tokio::spawn(arrange(client, at, leading.clone()));
        }
        Work {
            model: self.model,
            events: self.events,
            questions,
            api: ApiWriter::new(
                self.client,
                &asked.schedulers,
                store,
                leading.clone(),
                self.sender,
            ),
            nodes: self.nodes,
            listed: self.listed,
            others: self.others,
            metrics,
            decided: BTreeMap::new(),
            leading,
            hears: Instant::now(),
            was_busy: true,
        }
    }
}
