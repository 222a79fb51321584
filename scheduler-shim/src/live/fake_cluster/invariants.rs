//! What must always hold, and what must hold once nothing is in flight.

use std::collections::BTreeMap;

use apportion_groups::ObjectView;

use super::{AgentAllocationState, CARD, CARDS, FakeCluster, ShareSuspension, uuid};
use apportion_model::cards;

impl FakeCluster {
    /// No card is overcommitted, neither by what bound pods say nor in the agents' ledgers.
    pub(super) fn is_within_cards(&self) -> bool {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| Self::is_bound(pod)) {
            if self.is_asleep(pod) {
                continue;
            }
            let written = cards::written(ObjectView::new(&pod.object));
            for share in written.into_iter().flatten() {
                *sums.entry(share.card).or_default() += share.bytes.0;
            }
        }
        let mut decided: BTreeMap<&str, u64> = BTreeMap::new();
        let agents = self.agents.values();
        let held = agents.flat_map(|agent| &agent.held);
        let awake = held.filter(|(held, _)| held.suspension != ShareSuspension::Asleep);
        for share in awake.flat_map(|(held, _)| &held.shares) {
            *decided.entry(&share.card).or_default() += share.bytes.0;
        }
        sums.values()
            .chain(decided.values())
            .all(|sum| *sum <= CARD)
    }

    /// API server and agents agree, and no single pod waits that would fit.
    pub(super) fn check(&self) {
        let mut free: Vec<u64> = Vec::new();
        for (node, agent) in &self.agents {
            let mut left = [CARD; CARDS];
            for (held, _) in &agent.held {
                let uid = held.uid.as_deref().unwrap_or_default();
                let pod = self
                    .pods
                    .values()
                    .find(|pod| pod.object["metadata"]["uid"] == uid);
                let pod = pod.unwrap_or_else(|| panic!("{uid} is gone and holds {held:?}"));
                assert!(Self::is_bound(pod), "{uid} holds {held:?} and is not bound");
                assert_eq!(
                    held.stage,
                    AgentAllocationState::Allocated,
                    "{uid} is bound and not committed"
                );
                if held.suspension == ShareSuspension::Asleep {
                    continue;
                }
                for share in &held.shares {
                    let card = (0..CARDS).find(|card| uuid(node, *card) == share.card);
                    left[card.expect("a card of the node")] -= share.bytes.0;
                }
            }
            free.extend(left);
        }
        let held = self
            .agents
            .values()
            .map(|agent| agent.held.len())
            .sum::<usize>();
        let bound = self.pods.values().filter(|pod| Self::is_bound(pod)).count();
        assert_eq!(held, bound, "a pod runs without its agent's knowledge");
        for pod in self.pods.values().filter(|pod| !Self::is_bound(pod)) {
            let is_alone = pod.object["metadata"]["annotations"]["pod-group-name"].is_null();
            let fits = free.iter().any(|free| CARD / 100 * pod.ask <= *free);
            assert!(
                !(is_alone && fits),
                "{} waits, and {free:?} is free",
                pod.object["metadata"]["name"]
            );
        }
    }
}
