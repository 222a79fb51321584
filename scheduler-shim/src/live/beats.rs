//! Which agents still write their nodes' `GpuNode`s.
//!
//! An agent that answers needs no other sign of life. This is for the rest: a node whose agent cannot be
//! asked, and the cluster's people, who see in the object that its agent fell silent.
//!
//! # Whose clock
//! The scheduler's own: what counts is when a heartbeat was seen to change, not what it says. Only the first
//! one seen is believed, so that a scheduler which starts knows who is long gone. After a list every known
//! agent is given its time anew: nobody could be heard while the API server was away.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_abi::names::SILENT_AFTER;
use apportion_groups::Object;

use super::event::Effect;
use crate::objects::clock;

/// The kind of object in which agents are heard.
pub(crate) const KIND: &str = "GpuNode";
/// Where in it the heartbeat is.
pub(crate) const FIELD: &str = "/status/lastHeartbeatTime";
/// How long until it is said again that an agent is silent, where that did not show.
const AGAIN: Duration = Duration::from_secs(30);

/// The heartbeats by node.
#[derive(Debug, Default)]
pub(crate) struct Beats(BTreeMap<String, Beat>);

#[derive(Debug)]
struct Beat {
    /// As it is written.
    at: Duration,
    /// When it was first seen.
    seen: Duration,
    /// The object's version.
    version: String,
    /// Whether the object says already that its agent is silent.
    is_said: bool,
    /// Until when it is not said again.
    quiet: Duration,
}

impl Beats {
    /// Takes in a node's object.
    pub(crate) fn applied(&mut self, now: Duration, object: Object<'_>) {
        let Some(at) = clock::field(object, FIELD) else {
            return;
        };
        let known = self.0.remove(object.name());
        let seen = match &known {
            Some(known) if known.at == at => known.seen,
            Some(_) => now,
            None => at.min(now),
        };
        let version = object.json()["metadata"]["resourceVersion"].as_str();
        let beat = Beat {
            at,
            seen,
            version: version.unwrap_or_default().to_owned(),
            is_said: readiness(object) == Some("Unknown"),
            quiet: known.map_or(Duration::ZERO, |known| known.quiet),
        };
        self.0.insert(object.name().to_owned(), beat);
    }

    /// Everyone known is given time anew.
    pub(crate) fn listed(&mut self, now: Duration) {
        self.0.values_mut().for_each(|beat| beat.seen = now);
    }

    /// Forgets a node.
    pub(crate) fn gone(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Whether a node's agent was heard once and is not any more.
    pub(crate) fn is_silent(&self, now: Duration, node: &str) -> bool {
        let beat = self.0.get(node);
        beat.is_some_and(|beat| beat.is_over(now))
    }

    /// What has to be said of agents that are silent.
    pub(crate) fn tell(&mut self, now: Duration) -> Vec<Effect> {
        let untold = self.0.iter_mut();
        let untold =
            untold.filter(|(_, beat)| beat.is_over(now) && !beat.is_said && now >= beat.quiet);
        let tell = |(node, beat): (&String, &mut Beat)| {
            beat.quiet = now + AGAIN;
            Effect::Silent {
                node: node.clone(),
                version: beat.version.clone(),
            }
        };
        untold.map(tell).collect()
    }
}

impl Beat {
    fn is_over(&self, now: Duration) -> bool {
        now > self.seen + SILENT_AFTER
    }
}

fn readiness(object: Object<'_>) -> Option<&str> {
    let conditions = object.json().pointer("/status/conditions")?.as_array()?;
    let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
    ready["status"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const START: Duration = Duration::from_secs(1_800_000_000);

    fn object(beat: &str, ready: &str) -> Value {
        json!({"kind": KIND, "metadata": {"name": "a", "resourceVersion": "7"},
            "status": {"lastHeartbeatTime": beat,
                "conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn beats(now: Duration, objects: &[Value]) -> Beats {
        let mut beats = Beats::default();
        let objects = objects.iter().map(Object::new);
        objects.for_each(|object| beats.applied(now, object));
        beats
    }

    #[test]
    fn who_is_long_gone_is_known_at_once() {
        let old = object("2026-01-01T00:00:00Z", "True");
        let mut beats = beats(START, &[old]);
        assert!(beats.is_silent(START, "a"));
        assert!(!beats.is_silent(START, "somebody else"));
        let told = beats.tell(START);
        assert!(matches!(&told[..], [Effect::Silent { node, version }]
            if node == "a" && version == "7"));
        assert_eq!(beats.tell(START), []);
        assert_eq!(beats.tell(START + AGAIN).len(), 1);
    }

    #[test]
    fn a_heartbeat_that_changes_counts_from_when_it_was_seen() {
        // The node's clock is far behind ours.
        let first = object("2026-01-01T00:00:00Z", "True");
        let next = object("2026-01-01T00:00:30Z", "True");
        let beats = beats(START, &[first, next]);
        assert!(!beats.is_silent(START + SILENT_AFTER, "a"));
        let late = START + SILENT_AFTER + Duration::from_secs(1);
        assert!(beats.is_silent(late, "a"));
    }

    #[test]
    fn after_a_list_everyone_known_has_time_anew() {
        let old = object("2026-01-01T00:00:00Z", "True");
        let mut beats = beats(START, std::slice::from_ref(&old));
        beats.listed(START);
        beats.applied(START, Object::new(&old));
        assert!(!beats.is_silent(START, "a"));
    }

    #[test]
    fn what_the_object_says_already_is_not_said_again() {
        let told = object("2026-01-01T00:00:00Z", "Unknown");
        let mut beats = beats(START, &[told]);
        assert!(beats.is_silent(START, "a"));
        assert_eq!(beats.tell(START), []);
    }
}
