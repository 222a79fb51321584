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

use super::api::{Leading, Writer};
use super::event::Event;
use super::grouper::Grouper;
use super::metrics::Metrics;
use super::model::Model;
use super::nodes::Nodes;
use super::past::{Keeper, Store};
use super::programs::arrange;
use super::reach::Reach;
use super::serve::Question;
use super::view::now;
use super::{Work, watch};
use crate::options::Run;

/// How long events are taken in before what was read of their objects is dropped.
const REST: Duration = Duration::from_secs(1);

/// The namespace of the programs that follow KAI's Config.
fn programs(asked: &Run) -> Option<&str> {
    asked.kai_programs.then_some(asked.lease_namespace.as_str())
}

/// Whoever waits.
pub(super) struct Standby {
    client: Client,
    model: Model,
    events: UnboundedReceiver<Event>,
    sender: UnboundedSender<Event>,
    nodes: Nodes,
    listed: BTreeSet<String>,
    others: oneshot::Receiver<BTreeSet<String>>,
}

impl Standby {
    /// Begins to watch.
    pub(super) fn start(client: Client, asked: &Run) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let others = watch::start(client.clone(), sender.clone());
        Self {
            client,
            model: Model {
                choices: asked.choices.clone(),
                programs: programs(asked).map(str::to_owned),
                past: asked.over_time.terms().map(Keeper::new),
                grouper: Grouper::new(asked.pod_groups),
                ..Model::new(asked.schedulers.clone())
            },
            events,
            nodes: Nodes::new(sender.clone()),
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

    fn take(&mut self, event: Event) {
        if let Event::Listed(kind, _) = &event {
            self.listed.insert(kind.clone());
        }
        self.nodes.take(&event);
        // Nobody is on the way and no agent is known, so nothing follows that somebody would have to do.
        let _ = self.model.apply(now(), event);
    }

    /// Goes on as the leader.
    pub(super) fn lead(
        mut self,
        asked: &Run,
        questions: mpsc::Receiver<Question>,
        metrics: Metrics,
        reach: Reach,
        leading: Leading,
    ) -> Work {
        let store = Store::new(self.client.clone(), asked);
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
            api: Writer::new(
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
