//! Stores the usage history in a `ConfigMap` beside the lease, named after it.
//!
//! It is read until that succeeds, so that a slow API server costs no history. A missing permission is logged once,
//! and only what is seen from now on counts.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_exit::error_chain;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::live::event::SchedulerEvent;
use crate::options::SchedulerRunOptions;
use apportion_model::usage_history::KEY;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long until the next try.
const AGAIN: Duration = Duration::from_secs(1);

/// Reads and writes the history.
#[derive(Clone)]
pub(crate) struct UsageRecordStore {
    objects: Api<ConfigMap>,
    name: String,
}

impl UsageRecordStore {
    /// The history of the schedulers that share a lease.
    pub(crate) fn new(client: Client, options: &SchedulerRunOptions) -> Self {
        Self {
            objects: Api::namespaced(client, &options.lease_namespace),
            name: format!("{}-usage", options.lease_name),
        }
    }

    /// Reads the stored history and sends it as an event.
    pub(crate) async fn recall(self, answers: UnboundedSender<SchedulerEvent>) {
        let mut last_problem = String::new();
        let found = loop {
            let why = match timeout(PATIENCE, self.objects.get_opt(&self.name)).await {
                Ok(Ok(found)) => break found,
                Ok(Err(problem)) => error_chain(&problem),
                Err(late) => late.to_string(),
            };
            if why != last_problem {
                let name = &self.name;
                warn!(name, why, "Failed to read the usage history, retrying");
                last_problem = why;
            }
            sleep(AGAIN).await;
        };
        let text = found.and_then(|found| found.data?.remove(KEY));
        info!(is_there = text.is_some(), "Usage history loaded");
        let _ = answers.send(SchedulerEvent::UsageHistoryRead(text));
    }

    /// Replaces the stored history.
    pub(crate) async fn write(&self, text: String) {
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(KEY.to_owned(), text)])),
            ..ConfigMap::default()
        };
        let why = match timeout(PATIENCE, self.put(&object)).await {
            Ok(Ok(())) => return,
            Ok(Err(problem)) => error_chain(&problem),
            Err(late) => late.to_string(),
        };
        warn!(name = self.name, why, "Failed to save the usage history");
    }

    async fn put(&self, object: &ConfigMap) -> kube::Result<()> {
        let params = PostParams::default();
        match self.objects.replace(&self.name, &params, object).await {
            Err(Error::Api(status)) if status.code == 404 => {
                self.objects.create(&params, object).await.map(|_| ())
            }
            done => done.map(|_| ()),
        }
    }
}
