//! Checks what must hold at every moment, with each message of the API server and of the agents.
//! The API server's events come in the order in which they happened, and an agent reports its whole ledger. So after
//! every message no card may have more than fits, and no pod may disappear that was not deleted.

use std::collections::{BTreeMap, BTreeSet};

use apportion_proto::v1;
use apportion_tests::CARD;
use k8s_openapi::api::core::v1::Pod;

use super::agent_ledgers::{SharesByCard, granted, name, place};

/// How long after its expiry a reservation may still be in a ledger.
const GRACE_MS: u64 = 10_000;

/// The state of the checks so far.
#[derive(Debug, Default)]
pub(crate) struct InvariantChecker {
    /// The pods of the API server, with their placements.
    pods: BTreeMap<String, Option<(String, SharesByCard)>>,
    /// Pods whose deletion was requested.
    leaving: BTreeSet<String>,
    pub(crate) tally: ObservationCounts,
    pub(crate) wrong: Vec<String>,
}

/// How much was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ObservationCounts {
    /// Pods that were placed.
    pub(crate) placed: u64,
    /// Events of the API server about pods.
    pub(crate) words: u64,
    /// Ledgers of agents.
    pub(crate) ledgers: u64,
}

impl InvariantChecker {
    /// A pod's deletion is requested from now on.
    pub(crate) fn leaves(&mut self, pod: &str) {
        self.leaving.insert(pod.to_owned());
    }

    /// The API server reports a pod.
    pub(crate) fn shown(&mut self, pod: &Pod) {
        if let Some(node) = self.enter(pod) {
            self.fits(&node);
        }
    }

    /// Records a pod. Returns the node if it is placed.
    fn enter(&mut self, pod: &Pod) -> Option<String> {
        self.tally.words += 1;
        if pod.metadata.deletion_timestamp.is_some() {
            self.must_leave(name(pod));
        }
        let place = place(pod);
        let node = place.as_ref().map(|(node, _)| node.clone());
        let before = self.pods.insert(name(pod).to_owned(), place);
        let is_new = node.is_some() && !matches!(before, Some(Some(_)));
        self.tally.placed += u64::from(is_new);
        node
    }

    /// The API server reports that a pod is gone.
    pub(crate) fn gone(&mut self, pod: &str) {
        self.tally.words += 1;
        self.must_leave(pod);
        self.pods.remove(pod);
        self.leaving.remove(pod);
    }

    /// The API server lists exactly these pods.
    pub(crate) fn listed(&mut self, pods: &[Pod]) {
        let there: BTreeSet<&str> = pods.iter().map(name).collect();
        let known = self.pods.keys();
        let gone: Vec<String> = known
            .filter(|pod| !there.contains(pod.as_str()))
            .cloned()
            .collect();
        gone.iter().for_each(|pod| self.gone(pod));
        // Record all pods first: only together they are the state of one moment.
        let nodes: BTreeSet<String> = pods.iter().filter_map(|pod| self.enter(pod)).collect();
        nodes.iter().for_each(|node| self.fits(node));
    }

    /// An agent reports its ledger.
    pub(crate) fn ledger(&mut self, node: &str, ledger: &v1::ListReply) {
        self.tally.ledgers += 1;
        for (card, sum) in granted(ledger) {
            if sum > CARD {
                let wrong = format!("the agent of {node} gives {sum} of {card}, which has {CARD}");
                self.wrong.push(wrong);
            }
        }
        for held in &ledger.allocations {
            let ended = held.expires_at_ms.map(|end| end + GRACE_MS);
            if ended.is_some_and(|ended| ended < ledger.sampled_at_ms) {
                let wrong = format!("{} is reserved on {node} for ever", held.name);
                self.wrong.push(wrong);
            }
        }
    }

    fn must_leave(&mut self, pod: &str) {
        if !self.leaving.contains(pod) {
            self.wrong.push(format!("somebody took {pod} away"));
        }
    }

    /// Checks that the pods on each card of a node fit.
    fn fits(&mut self, node: &str) {
        let mut sums = SharesByCard::new();
        let places = self.pods.values().flatten();
        for (card, bytes) in places
            .filter(|(on, _)| on == node)
            .flat_map(|(_, shares)| shares)
        {
            *sums.entry(card.clone()).or_default() += bytes;
        }
        for (card, sum) in sums.into_iter().filter(|(_, sum)| *sum > CARD) {
            let wrong = format!("pods on {node} have {sum} of {card}, which has {CARD}");
            self.wrong.push(wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn on(name: &str, bytes: u64) -> Pod {
        let pod = json!({"metadata": {"name": name,
                "annotations": {"apportion.dev/cards": format!("GPU-1={bytes}")}},
            "spec": {"nodeName": "node", "containers": []}});
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn two_pods_that_do_not_fit_a_card_are_seen_and_the_next_one_after_the_first() {
        let mut witness = InvariantChecker::default();
        witness.shown(&on("a", CARD / 2));
        witness.shown(&on("b", CARD / 2));
        assert!(witness.wrong.is_empty());
        witness.leaves("a");
        witness.gone("a");
        witness.shown(&on("c", CARD / 2));
        assert!(witness.wrong.is_empty());
        witness.shown(&on("d", 1));
        assert_eq!(witness.wrong.len(), 1);
        assert_eq!(witness.tally.placed, 4);
    }

    #[test]
    fn who_was_not_told_to_go_is_missed_also_when_it_went_unseen() {
        let mut witness = InvariantChecker::default();
        witness.listed(&[on("a", 1), on("b", 1)]);
        witness.leaves("a");
        witness.listed(&[on("b", 1)]);
        assert!(witness.wrong.is_empty());
        witness.listed(&[]);
        assert_eq!(witness.wrong, ["somebody took b away"]);
    }

    #[test]
    fn a_list_is_one_moment() {
        let mut over = on("z", CARD);
        let mut witness = InvariantChecker::default();
        witness.listed(std::slice::from_ref(&over));
        let status = json!({"phase": "Succeeded"});
        over.status = serde_json::from_value(status).expect("a status");
        witness.listed(&[on("a", CARD), over]);
        assert!(witness.wrong.is_empty(), "{:?}", witness.wrong);
    }

    #[test]
    fn a_reservation_that_outlives_its_end_is_wrong() {
        let mut ledger = v1::ListReply {
            sampled_at_ms: 20_000,
            allocations: vec![v1::Allocation {
                expires_at_ms: Some(15_000),
                ..v1::Allocation::default()
            }],
            ..v1::ListReply::default()
        };
        let mut witness = InvariantChecker::default();
        witness.ledger("node", &ledger);
        assert!(witness.wrong.is_empty());
        ledger.sampled_at_ms = 26_000;
        witness.ledger("node", &ledger);
        assert_eq!(witness.wrong.len(), 1);
    }

    #[test]
    fn a_book_with_more_than_the_card_has_is_wrong() {
        let grant = |bytes| v1::Grant {
            card: "GPU-1".to_owned(),
            limit_bytes: bytes,
            ..v1::Grant::default()
        };
        let ledger = |bytes| v1::ListReply {
            allocations: vec![v1::Allocation {
                grants: vec![grant(CARD), grant(bytes)],
                ..v1::Allocation::default()
            }],
            ..v1::ListReply::default()
        };
        let mut witness = InvariantChecker::default();
        witness.ledger("node", &ledger(0));
        assert!(witness.wrong.is_empty());
        witness.ledger("node", &ledger(1));
        assert_eq!(witness.wrong.len(), 1);
    }
}
