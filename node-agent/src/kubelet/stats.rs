//! Counts what happens between the agent and the kubelet, for metrics.
//!
//! The plugins and the poller run beside the agent's loop and send it events; only the loop counts.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

use super::snapshot::{KubeletPollError, KubeletSnapshot, SlotDispute};

/// Histogram buckets for how long the kubelet waits, in seconds. It gives up after thirty.
const BOUNDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// An event to count.
#[derive(Clone, Debug)]
pub(crate) enum KubeletEvent {
    /// Whether the plugin of a resource is registered.
    Registered(&'static str, bool),
    /// A poll of the kubelet: its source and its result.
    Polled(&'static str, &'static str),
    /// A container asked to start, and how long it waited for the answer.
    Started { took: Duration, is_granted: bool },
}

/// The counts since the agent started. Empty without a kubelet.
#[derive(Clone, Debug, Default)]
pub(crate) struct KubeletStats {
    /// Whether the kubelet has accepted the plugin, by resource.
    pub(crate) registered: BTreeMap<&'static str, bool>,
    /// Polls by source and result.
    pub(crate) polls: BTreeMap<(&'static str, &'static str), u64>,
    /// How long `PreStartContainer` took, in seconds, by result.
    pub(crate) container_starts: BTreeMap<&'static str, Histogram>,
}

impl KubeletEvent {
    /// The result of a poll.
    pub(super) fn of(polled: &Result<KubeletSnapshot, KubeletPollError>) -> Self {
        match polled {
            Ok(seen) => {
                let source = if seen.is_listed { "both" } else { "checkpoint" };
                let result = match seen.disputed.values().next() {
                    Some(SlotDispute::TwoPods) => "two_pods",
                    Some(SlotDispute::Disagree) => "disagree",
                    None if !seen.whole.contested.is_empty() => "two_pods",
                    None => "ok",
                };
                Self::Polled(source, result)
            }
            Err(KubeletPollError::Checkpoint(_)) => Self::Polled("checkpoint", "unreadable"),
            Err(KubeletPollError::Leaving) => Self::Polled("both", "leaving"),
        }
    }
}

impl KubeletStats {
    pub(crate) fn enter(&mut self, event: KubeletEvent) {
        match event {
            KubeletEvent::Registered(resource, is_known) => {
                self.registered.insert(resource, is_known);
            }
            KubeletEvent::Polled(source, result) => {
                *self.polls.entry((source, result)).or_default() += 1;
            }
            KubeletEvent::Started { took, is_granted } => {
                let result = if is_granted { "granted" } else { "refused" };
                let container_starts = self.container_starts.entry(result);
                let container_starts = container_starts.or_insert_with(|| Histogram::new(BOUNDS));
                container_starts.observe(took.as_secs_f64());
            }
        }
    }
}
