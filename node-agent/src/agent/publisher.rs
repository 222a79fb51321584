//! What the agent shows others: its view, its events, and its counts.

use std::sync::Arc;

use apportion_ledger::LedgerNotice;
use apportion_proto::v1;
use tokio::sync::{broadcast, watch};

use super::clock::now;
use crate::driver::group_limits::DriverLimitSupport;
use crate::telemetry::notice;
use crate::telemetry::view::{AgentHandle, AgentStats, AgentView};

/// How many events a slow watcher may lag behind before it misses some.
const EVENTS: usize = 256;

/// Where the agent publishes its state.
pub(super) struct StatusPublisher {
    views: watch::Sender<Arc<AgentView>>,
    events: broadcast::Sender<v1::Event>,
    stats: AgentStats,
    /// The node as it is published, but for the ledger's generation.
    node: v1::Node,
}

impl StatusPublisher {
    pub(super) fn new(node: v1::Node) -> Self {
        Self {
            views: watch::channel(Arc::new(AgentView::empty(None))).0,
            events: broadcast::channel(EVENTS).0,
            stats: AgentStats::default(),
            node,
        }
    }

    pub(super) fn handle(&self) -> AgentHandle {
        AgentHandle {
            views: self.views.subscribe(),
            events: self.events.clone(),
        }
    }

    pub(super) fn set_metrics_address(&mut self, address: String) {
        self.node.metrics_address = address;
    }

    /// The counts, to be changed.
    pub(super) fn stats(&mut self) -> &mut AgentStats {
        &mut self.stats
    }

    /// A copy of the counts, for a view.
    pub(super) fn stats_now(&self) -> AgentStats {
        self.stats.clone()
    }

    pub(super) fn node(&self, generation: u64, limits: &DriverLimitSupport) -> v1::Node {
        let (driver_limits, driver_limits_absence) = limits.words();
        v1::Node {
            generation,
            driver_limits: driver_limits.to_owned(),
            driver_limits_absence: driver_limits_absence.to_owned(),
            ..self.node.clone()
        }
    }

    /// Counts, logs and sends a notice of the ledger. It is no failure if nobody watches.
    pub(super) fn publish_notice(&mut self, notice: &LedgerNotice) {
        *self.stats.notices.entry(notice.kind).or_default() += 1;
        let _ = self.events.send(notice::event_of(notice, now().0));
    }

    pub(super) fn publish(&self, view: AgentView) {
        self.views.send_replace(Arc::new(view));
    }
}
