//! Which agents are alive, for people: a node's `GpuNode` says that its agent fell silent.
//!
//! An agent that is connected to the scheduler needs no other sign of life, so agents seldom write without a reason.
//! The heartbeats in the objects are for nodes whose agent the scheduler cannot reach.
//!
//! The scheduler's own: what counts is when a heartbeat was seen to change, not its timestamp. Only the first one
//! seen is taken at its word, so that a new scheduler knows which agents are long gone. After a list every known
//! agent gets its full time again: none could be heard while the API server was away.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::names::{LOST_AFTER, SILENT_AFTER};
use apportion_groups::ObjectView;

use super::agents::{TrackedAgent, TrackedAgents};
use super::event::{AgentReadiness, SchedulerEffect};
use apportion_model::clock;

/// The kind that carries heartbeats.
pub(crate) const KIND: &str = "GpuNode";
/// The reason of the condition while an agent is silent.
pub(crate) const SILENT: &str = "AgentSilent";
/// JSON pointer to the heartbeat.
pub(crate) const FIELD: &str = "/status/lastHeartbeatTime";
/// How long until a condition is written again that the watch has not shown.
const AGAIN: Duration = Duration::from_secs(30);

/// The heartbeats by node.
#[derive(Debug, Default)]
pub(crate) struct AgentHeartbeats(BTreeMap<String, AgentHeartbeat>);

#[derive(Debug)]
struct AgentHeartbeat {
    /// The timestamp in the object.
    at: Duration,
    /// When it was first seen.
    observed: Duration,
    version: String,
    /// Whether the object says that its agent is silent.
    is_reported: bool,
    /// No write before this time.
    quiet: Duration,
}

impl AgentHeartbeats {
    /// Reads a node's object.
    pub(crate) fn applied(&mut self, now: Duration, object: ObjectView<'_>) {
        let Some(at) = clock::field(object, FIELD) else {
            return;
        };
        let known = self.0.remove(object.name());
        let observed = match &known {
            Some(known) if known.at == at => known.observed,
            Some(_) => now,
            None => at.min(now),
        };
        let version = object.json()["metadata"]["resourceVersion"].as_str();
        let heartbeat = AgentHeartbeat {
            at,
            observed,
            version: version.unwrap_or_default().to_owned(),
            is_reported: reason(object) == Some(SILENT),
            quiet: known.map_or(Duration::ZERO, |known| known.quiet),
        };
        self.0.insert(object.name().to_owned(), heartbeat);
    }

    /// Gives every known agent its full time again.
    pub(crate) fn listed(&mut self, now: Duration) {
        self.0
            .values_mut()
            .for_each(|heartbeat| heartbeat.observed = now);
    }

    pub(crate) fn gone(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Whether a node's agent was heard once, and is silent now.
    pub(crate) fn is_silent(&self, now: Duration, node: &str) -> bool {
        let heartbeat = self.0.get(node);
        heartbeat.is_some_and(|heartbeat| heartbeat.is_over(now))
    }

    /// The conditions to write: of agents that fell silent, and of those that are back.
    pub(crate) fn readiness_changes(
        &mut self,
        now: Duration,
        agents: &TrackedAgents,
    ) -> Vec<SchedulerEffect> {
        let mut effects = Vec::new();
        for (node, heartbeat) in &mut self.0 {
            let is = match agents.of(node) {
                Some(agent) if agent.is_here => readiness(agent),
                Some(agent) if now <= agent.since + LOST_AFTER => continue,
                Some(_) => AgentReadiness::Silent,
                None if heartbeat.is_over(now) => AgentReadiness::Silent,
                None => continue,
            };
            if (is == AgentReadiness::Silent) == heartbeat.is_reported || now < heartbeat.quiet {
                continue;
            }
            heartbeat.quiet = now + AGAIN;
            effects.push(SchedulerEffect::WriteReadiness {
                node: node.clone(),
                version: heartbeat.version.clone(),
                is,
            });
        }
        effects
    }
}

fn readiness(agent: &TrackedAgent) -> AgentReadiness {
    match agent.status.healthy().next() {
        Some(_) => AgentReadiness::Serving,
        None => AgentReadiness::NoHealthyCard,
    }
}

impl AgentHeartbeat {
    fn is_over(&self, now: Duration) -> bool {
        now > self.observed + SILENT_AFTER
    }
}

fn reason(object: ObjectView<'_>) -> Option<&str> {
    let conditions = object.json().pointer("/status/conditions")?.as_array()?;
    let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
    ready["reason"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::agents::AgentStatus;
    use serde_json::{Value, json};

    const START: Duration = Duration::from_secs(1_800_000_000);

    fn object(heartbeat: &str, ready: &str) -> Value {
        json!({"kind": KIND, "metadata": {"name": "a", "resourceVersion": "7"},
            "status": {"lastHeartbeatTime": heartbeat,
                "conditions": [{"type": "Ready", "status": "", "reason": ready}]}})
    }

    fn heartbeats(now: Duration, objects: &[Value]) -> AgentHeartbeats {
        let mut heartbeats = AgentHeartbeats::default();
        let objects = objects.iter().map(ObjectView::new);
        objects.for_each(|object| heartbeats.applied(now, object));
        heartbeats
    }

    #[test]
    fn who_is_long_gone_is_known_at_once() {
        let old = object("2026-01-01T00:00:00Z", "Serving");
        let mut heartbeats = heartbeats(START, &[old]);
        assert!(heartbeats.is_silent(START, "a"));
        assert!(!heartbeats.is_silent(START, "somebody else"));
        let nobody = TrackedAgents::default();
        assert_eq!(
            heartbeats.readiness_changes(START, &nobody),
            [reported(AgentReadiness::Silent)]
        );
        assert_eq!(heartbeats.readiness_changes(START, &nobody), []);
        assert_eq!(
            heartbeats.readiness_changes(START + AGAIN, &nobody).len(),
            1
        );
    }

    #[test]
    fn a_heartbeat_that_changes_counts_from_when_it_was_seen() {
        // The node's clock is far behind ours.
        let first = object("2026-01-01T00:00:00Z", "Serving");
        let next = object("2026-01-01T00:00:30Z", "Serving");
        let heartbeats = heartbeats(START, &[first, next]);
        assert!(!heartbeats.is_silent(START + SILENT_AFTER, "a"));
        let late = START + SILENT_AFTER + Duration::from_secs(1);
        assert!(heartbeats.is_silent(late, "a"));
    }

    #[test]
    fn after_a_list_everyone_known_has_time_anew() {
        let old = object("2026-01-01T00:00:00Z", "Serving");
        let mut heartbeats = heartbeats(START, std::slice::from_ref(&old));
        heartbeats.listed(START);
        heartbeats.applied(START, ObjectView::new(&old));
        assert!(!heartbeats.is_silent(START, "a"));
    }

    #[test]
    fn what_the_object_says_already_is_not_said_again() {
        let reported = object("2026-01-01T00:00:00Z", SILENT);
        let mut heartbeats = heartbeats(START, &[reported]);
        assert!(heartbeats.is_silent(START, "a"));
        assert_eq!(
            heartbeats.readiness_changes(START, &TrackedAgents::default()),
            []
        );
    }

    fn reported(is: AgentReadiness) -> SchedulerEffect {
        SchedulerEffect::WriteReadiness {
            node: "a".to_owned(),
            version: "7".to_owned(),
            is,
        }
    }

    #[test]
    fn an_agent_that_is_asked_is_silent_soon_and_heard_at_once() {
        let old = object("2026-01-01T00:00:00Z", "Serving");
        let mut heartbeats = heartbeats(START, &[old]);
        let mut agents = TrackedAgents::default();
        agents.update(START, "a", AgentStatus::default());
        let late = START + SILENT_AFTER * 2;
        assert_eq!(
            heartbeats.readiness_changes(late, &agents),
            [],
            "it answers and does not write"
        );
        agents.lost(late, "a");
        agents.lost(late + LOST_AFTER / 2, "a");
        assert_eq!(heartbeats.readiness_changes(late + LOST_AFTER, &agents), []);
        let silent = late + LOST_AFTER + Duration::from_secs(1);
        assert_eq!(
            heartbeats.readiness_changes(silent, &agents),
            [reported(AgentReadiness::Silent)]
        );
        let shown = object("2026-01-01T00:00:00Z", SILENT);
        heartbeats.applied(silent, ObjectView::new(&shown));
        agents.update(silent + AGAIN, "a", AgentStatus::default());
        assert_eq!(
            heartbeats.readiness_changes(silent + AGAIN, &agents),
            [reported(AgentReadiness::NoHealthyCard)]
        );
    }
}
