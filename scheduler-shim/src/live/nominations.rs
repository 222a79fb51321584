//! Nominated nodes: others were evicted there for a pod, and the pod is to get their place before all others.
//!
//! `status.nominatedNodeName` says so, as in Kubernetes. A scheduler that takes over reads it from there, and
//! `kubectl get pods -o wide` shows it. The name is taken back if the pod has neither a place nor a reservation after a
//! round.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_groups::ObjectView;
use serde_json::json;

use super::event::{PodRef, SchedulerEffect, StatusUpdate};
use apportion_model::pods;

/// How long a write counts that the watch does not show. After that it is written again.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// The nominated nodes that were written a moment ago, by pod UID; `None` for those taken back.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenNominations(BTreeMap<String, (Option<String>, Duration)>);

impl WrittenNominations {
    /// Whether a pod is nominated by the last write; `None` if there was none a moment ago.
    pub(crate) fn is_nominated(&self, now: Duration, uid: &str) -> Option<bool> {
        self.recent(now, uid).map(|node| node.is_some())
    }

    fn recent(&self, now: Duration, uid: &str) -> Option<Option<&str>> {
        let (node, until) = self.0.get(uid)?;
        (now < *until).then_some(node.as_deref())
    }

    /// The write of a pod's nominated node; `None` if it says so already.
    pub(crate) fn write(
        &mut self,
        now: Duration,
        pod: ObjectView<'_>,
        node: Option<String>,
    ) -> Option<SchedulerEffect> {
        self.0.retain(|_, (_, until)| now < *until);
        let shown = pods::nominated_node(pod);
        if self.recent(now, pod.uid()).unwrap_or(shown) == node.as_deref() {
            return None;
        }
        let status = json!({"nominatedNodeName": node});
        self.0
            .insert(pod.uid().to_owned(), (node, now + SHOWN_WITHIN));
        let PodRef {
            namespace,
            name,
            uid,
        } = PodRef::of(pod);
        Some(SchedulerEffect::WriteStatus(StatusUpdate {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace,
            name,
            uid,
            status,
            warning: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn written(effect: Option<SchedulerEffect>) -> Option<Value> {
        match effect {
            Some(SchedulerEffect::WriteStatus(update)) => Some(update.status),
            _ => None,
        }
    }

    #[test]
    fn a_nomination_is_written_once_and_taken_back_once() {
        let mut nominations = WrittenNominations::default();
        let at = Duration::from_secs;
        let mut pod =
            json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "t", "uid": "1"}});
        let node = || Some("n".to_owned());
        let first = nominations.write(at(0), ObjectView::new(&pod), node());
        assert_eq!(written(first), Some(json!({"nominatedNodeName": "n"})));
        assert_eq!(nominations.is_nominated(at(1), "1"), Some(true));
        // The watch is late.
        assert_eq!(
            nominations.write(at(1), ObjectView::new(&pod), node()),
            None
        );
        pod["status"] = json!({"nominatedNodeName": "n"});
        assert_eq!(
            nominations.write(at(40), ObjectView::new(&pod), node()),
            None
        );
        let back = nominations.write(at(41), ObjectView::new(&pod), None);
        assert_eq!(written(back), Some(json!({"nominatedNodeName": null})));
        assert_eq!(nominations.is_nominated(at(42), "1"), Some(false));
        assert_eq!(nominations.write(at(42), ObjectView::new(&pod), None), None);
        // The write was lost.
        let again = nominations.write(at(80), ObjectView::new(&pod), None);
        assert_eq!(written(again), Some(json!({"nominatedNodeName": null})));
    }
}
