//! The standby: it waits for the lease and follows the cluster meanwhile.
//!
//! It reads all objects and does nothing: it asks no agent and writes nothing. When it becomes the leader, it knows
//! what its watches reported. It connects to the agents only then.

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

/// How long events are applied before the cached parts of their objects are dropped.
const REST: Duration = Duration::from_secs(1);

/// The namespace of the programs that follow KAI's Config.
fn programs(asked: &SchedulerRunOptions) -> Option<&str> {
    asked.kai_programs.then_some(asked.lease_namespace.as_str())
}

/// A scheduler that waits for the lease.
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
    pub(super) fn start(client: Client, asked: &SchedulerRunOptions) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let others = watch::start(client.clone(), sender.clone());
        Self {
            client,
            model: ClusterModel {
                choices: asked.choices.clone(),
                binding_timeout: Duration::from_secs(asked.device_binding_timeout),
                programs: programs(asked).map(str::to_owned),
                usage: asked.over_time.params().map(UsageRecorder::new),
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

    /// Applies events until the watches end.
    pub(super) async fn follow(&mut self) {
        let mut rested = Instant::now();
        while let Some(event) = self.events.recv().await {
            self.take(event);
            if rested.elapsed() > REST {
                self.model.inventory.drop_cache();
                rested = Instant::now();
            }
        }
    }

    fn take(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::Listed(kind, _) = &event {
            self.listed.insert(kind.clone());
        }
        self.nodes.take(&event);
        // Without pending binds and agents there are no effects that somebody must perform.
        let _ = self.model.apply(now(), event);
    }

    pub(super) fn lead(
        mut self,
        asked: &SchedulerRunOptions,
        questions: mpsc::Receiver<SchedulerQuery>,
        metrics: SchedulerMetrics,
        connector: AgentConnector,
        leading: LeadershipGuard,
    ) -> Work {
        let store = UsageRecordStore::new(self.client.clone(), asked);
        if self.model.usage.is_some() {
            tokio::spawn(store.clone().recall(self.sender.clone()));
        }
        // Room for the connections comes from free memory. They leave much of it untouched, which the lists did not.
        apportion_heap::release_free_pages();
        self.nodes.connect_all(connector);
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
            eviction_hold_until: Instant::now(),
            was_busy: true,
        }
    }
}
