//! Reports why pods wait: the true reason with its numbers, when it changes, and not too often.

use std::time::Duration;

use serde_json::Value;

use super::event::{PodEventReason, SchedulerEffect, StatusUpdate};
use super::model::ClusterModel;
use super::{settings, statuses};
use apportion_explain::decided_cluster::{self, DecidedCluster};
use apportion_explain::waiting::{self, WaitingPod};

/// How many statuses are written at a time. The others wait.
const AT_ONCE: usize = 500;
/// The shortest time between two reports about one object.
const QUIET: Duration = Duration::from_secs(30);

impl ClusterModel {
    /// Reports why pods wait, as far as that is new. Calls `observe` with the decisions and the waiting pods.
    pub(crate) fn report_waiting_pods(
        &mut self,
        now: Duration,
        observe: impl FnOnce(&DecidedCluster<'_>, &[WaitingPod]),
    ) -> Vec<SchedulerEffect> {
        let (waiting, due, queues, total) = {
            let snapshot = self.cluster(now);
            let decided = decided_cluster::decide(now, &snapshot.cluster);
            let waiting = waiting::all(&snapshot, &decided);
            observe(&decided, &waiting);
            let tallies = statuses::tallies(&decided);
            let mut due = statuses::due(&snapshot, &tallies, &waiting, now);
            if self.choices.has_shards() {
                due.extend(settings::due(
                    &self.inventory,
                    self.programs.as_deref(),
                    now,
                ));
            }
            (waiting, due, tallies.0, decided.total())
        };
        self.inventory.drop_cache();
        // First, because the conditions of waiting pods come after their groups.
        let mut effects = self.write_groups(now);
        effects.extend(self.report(due, now));
        let usage = self.usage.as_mut();
        effects.extend(usage.and_then(|usage| usage.sample(now, &queues, total)));
        effects.extend(self.report_unready_groups(&waiting));
        for one in waiting {
            let Some(pod) = self.pod(&one.pod) else {
                continue;
            };
            // Its last failure was already reported, or it is on its way.
            if self.back_off.is_delayed(&pod.uid, now) || self.pending_binds.get(&pod.uid).is_some()
            {
                continue;
            }
            let known = self.last_events.get(&pod.uid);
            let is_repeated =
                known.is_some_and(|(last, at)| *last == one.message || now < *at + QUIET);
            if is_repeated || one.reason == waiting::WaitReason::Gated {
                continue;
            }
            self.last_events
                .insert(pod.uid.clone(), (one.message.clone(), now));
            effects.push(SchedulerEffect::PublishEvent {
                pod,
                reason: PodEventReason::Unschedulable,
                message: one.message,
            });
        }
        effects
    }

    /// The statuses that are new. Those that were written and do not show yet are not written again, nor those in
    /// which only messages changed.
    fn report(&mut self, due: Vec<StatusUpdate>, now: Duration) -> Vec<SchedulerEffect> {
        self.reported.retain(|_, (_, at)| now < *at + QUIET);
        let mut effects = Vec::new();
        for report in due {
            let object = (&report.kind, &report.namespace, &report.name);
            let (kind, namespace, name) = object;
            let key = (kind.clone(), namespace.clone(), name.clone());
            let stable = without_messages(report.status.clone());
            let is_repeated = self
                .reported
                .get(&key)
                .is_some_and(|(status_before, _)| *status_before == stable);
            if is_repeated || effects.len() == AT_ONCE {
                continue;
            }
            self.reported.insert(key, (stable, now));
            effects.push(SchedulerEffect::WriteStatus(report));
        }
        effects
    }
}

/// A status without messages and transition times.
fn without_messages(mut status: Value) -> Value {
    match &mut status {
        Value::Object(fields) => {
            for field in ["message", "lastTransitionTime"] {
                fields.remove(field);
            }
            for value in fields.values_mut() {
                *value = without_messages(value.take());
            }
        }
        Value::Array(all) => {
            for value in all {
                *value = without_messages(value.take());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    status
}
