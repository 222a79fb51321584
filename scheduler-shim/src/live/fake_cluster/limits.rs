//! Elastic pods: no agent is asked for more limits on a card than it allows.

use std::collections::BTreeMap;

use apportion_abi::names::ANNOTATION_BURST;
use proptest::prelude::*;

use super::{
    AgentRequest, CARD, CARDS, FakeAgent, FakeCluster, FakePod, NODES, PodRef, agent_requests, uuid,
};
use apportion_model::cards::CardShare;

impl FakeAgent {
    /// Why the limits on a card would add up to more than this agent allows, as the real one computes it.
    pub(super) fn over_limits(
        &self,
        pod: &PodRef,
        shares: &[CardShare],
        percent: u64,
    ) -> Option<String> {
        let ceiling = |share: &CardShare| share.limit.unwrap_or(share.bytes).0;
        let elastic = shares.iter().filter(|share| share.limit.is_some());
        for share in elastic {
            let others = self.others(pod, share);
            let sum = others.map(&ceiling).sum::<u64>() + ceiling(share);
            if sum > CARD * percent / 100 {
                return Some(format!("the limits would add up to {sum}"));
            }
        }
        None
    }

    /// The shares of other pods on the card of a share.
    pub(super) fn others<'a>(
        &'a self,
        pod: &'a PodRef,
        share: &'a CardShare,
    ) -> impl Iterator<Item = &'a CardShare> {
        let held = self.held.iter().map(|(held, _)| held);
        let held = held.filter(|held| held.uid.as_deref() != Some(&pod.uid));
        held.flat_map(|held| &held.shares)
            .filter(|other| other.card == share.card)
    }
}

impl FakeCluster {
    /// Creates one pod, or a gang of two, that may use up to `limit` per cent of a card.
    pub(super) fn create_elastic(&mut self, ask: u64, limit: u64, is_gang: bool) {
        let before: Vec<String> = self.pods.keys().cloned().collect();
        self.create(ask, is_gang);
        let new = self
            .pods
            .iter_mut()
            .filter(|(name, _)| !before.contains(name));
        let mut marked = BTreeMap::new();
        for (name, FakePod { object, .. }) in new {
            let annotations = &mut object["metadata"]["annotations"];
            annotations[ANNOTATION_BURST] = "true".into();
            annotations["gpu-fraction.limit"] =
                format!("{}.{:02}", limit / 100, limit % 100).into();
            marked.insert(name.clone(), object.clone());
        }
        for event in &mut self.events {
            if let super::SchedulerEvent::Applied(object) = event
                && let Some(now) = object["metadata"]["name"]
                    .as_str()
                    .and_then(|name| marked.get(name))
            {
                *object = now.clone();
            }
        }
    }

    pub(super) fn bound_pods(&self) -> Vec<&str> {
        let pods = self.pods.iter().filter(|(_, pod)| Self::is_bound(pod));
        pods.map(|(name, _)| name.as_str()).collect()
    }

    /// One round of the scheduler, and everything that follows from it at once.
    pub(super) fn round(&mut self) -> usize {
        self.deliver_all();
        let effects = self.model.decide(self.now);
        let asked = agent_requests(&effects);
        let asked = asked.filter(|request| matches!(request, AgentRequest::Allocate { .. }));
        let asked = asked.count();
        self.queue(effects);
        self.finish();
        asked
    }
}

/// A cluster whose agents allow so many per cent of a card in limits, and say so.
fn bounded(percent: u64) -> FakeCluster {
    let mut world = FakeCluster::new();
    world.overcommit_percent = Some(percent);
    world.start_scheduler();
    world
}

#[test]
fn pods_and_gangs_of_one_cycle_go_where_their_limits_fit() {
    let mut world = bounded(150);
    // Four cards allow 1.5 cards of limits each. So each takes one pod with 0.9, and none a second one.
    (0..3).for_each(|_| world.create_elastic(10, 90, false));
    assert_eq!(world.round(), 3);
    world.settle();
    assert_eq!(world.refusals, 0, "no agent was asked in vain");
    world.create_elastic(10, 90, true);
    world.settle();
    assert_eq!(
        world.bound_pods().len(),
        3,
        "the gang has one place too few"
    );
    // A pod without a limit is not bounded by those of others.
    world.create(50, false);
    world.create_elastic(10, 60, false);
    world.settle();
    assert_eq!(world.refusals, 0);
    assert_eq!(world.bound_pods().len(), 5);
}

#[test]
fn a_gang_and_single_pods_share_out_in_one_cycle_what_agents_allow() {
    let mut world = bounded(150);
    (0..4).for_each(|number| world.create_elastic(10, 90, number % 2 == 0));
    world.round();
    assert_eq!(world.bound_pods().len(), 4, "as many as there are cards");
    world.settle();
    assert_eq!((world.bound_pods().len(), world.refusals), (4, 0));
}

#[test]
fn an_agent_that_says_nothing_about_limits_is_asked_as_before() {
    let mut world = bounded(150);
    world.publishes_overcommit = false;
    world.start_scheduler();
    (0..5).for_each(|_| world.create_elastic(10, 90, false));
    world.round();
    assert!(world.refusals > 0, "the scheduler cannot know");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::random::cases(), ..ProptestConfig::default() })]

    #[test]
    fn no_agent_is_asked_for_more_limits_than_it_allows_and_nobody_waits_who_fits(
        percent in 100..300_u64,
        pods in prop::collection::vec((1..60_u64, 0..100_u64, any::<bool>(), 0..4_usize), 1..14),
    ) {
        let mut world = bounded(percent);
        for (ask, more, is_gang, rounds) in pods {
            let limit = (ask + more).min(99);
            if limit > ask {
                world.create_elastic(ask, limit, is_gang);
            } else {
                world.create(ask, is_gang);
            }
            (0..rounds).for_each(|_| { world.round(); });
        }
        world.settle();
        prop_assert_eq!(world.refusals, 0);
        prop_assert!(world.is_within_cards());
        let mut room = Vec::new();
        for node in NODES {
            for card in 0..CARDS {
                let agent = &world.agents[node];
                let shares = agent.held.iter().flat_map(|(held, _)| &held.shares);
                let shares: Vec<_> = shares.filter(|of| of.card == uuid(node, card)).collect();
                let sums = shares.iter().fold((0, 0), |(held, limits), of| {
                    (held + of.bytes.0, limits + of.limit.unwrap_or(of.bytes).0)
                });
                room.push((CARD - sums.0, (CARD * percent / 100).saturating_sub(sums.1)));
            }
        }
        for pod in world.pods.values().filter(|pod| !FakeCluster::is_bound(pod)) {
            let annotations = &pod.object["metadata"]["annotations"];
            if !annotations["pod-group-name"].is_null() {
                continue;
            }
            let limit = annotations["gpu-fraction.limit"].as_str();
            let limit = limit.map(|text| text.parse::<f64>().expect("a number"));
            let fits = room.iter().any(|(free, limits)| {
                let limit = limit.map_or(0, |limit| (CARD as f64 * limit) as u64);
                CARD / 100 * pod.ask <= *free && limit <= *limits
            });
            prop_assert!(!fits, "{:?} waits beside {room:?}", pod.object["metadata"]);
        }
    }
}
