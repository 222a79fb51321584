//! Agents that call in memory for a pod, which others use above their guarantees: the pod is proposed again until it is
//! there.

use std::time::Duration;

use super::{CARD, FakeAgent, FakeCluster, NODES, PodRef};
use apportion_model::cards::CardShare;

impl FakeAgent {
    /// Whether a share fits beside what is guaranteed, and not beside what others use above that.
    pub(super) fn calls_in(&self, pod: &PodRef, shares: &[CardShare]) -> bool {
        shares.iter().any(|share| {
            let others = self.others(pod, share);
            let held = others.map(|other| other.bytes.0).sum::<u64>() + share.bytes.0;
            let lent = self.lent.get(&share.card).copied().unwrap_or_default();
            held <= CARD && held + lent > CARD
        })
    }
}

impl FakeCluster {
    /// The waiting reasons that the scheduler published for a pod.
    fn reasons(&self, pod: &str) -> Vec<&str> {
        let all = self.waiting_events.iter();
        let own = all.filter(|(name, _)| name == pod);
        own.map(|(_, message)| message.as_str()).collect()
    }

    /// Nobody on a node uses memory above a guarantee any more, and a second passes.
    fn end_bursts(&mut self, node: &str) {
        let agent = self.agents.get_mut(node).expect("the node has an agent");
        agent.lent.clear();
        self.show(node);
        self.wait(Duration::from_secs(1));
    }
}

/// Three cards are full. On the fourth a program uses 600 MiB above its guarantee of 300 MiB.
fn crowded() -> (FakeCluster, String) {
    let mut world = FakeCluster::new();
    (0..3).for_each(|_| world.create(90, false));
    world.settle();
    world.create_elastic(30, 95, false);
    world.settle();
    let shares = |node: &str| {
        let held = world.agents[node].held.iter();
        held.flat_map(|(held, _)| held.shares.clone())
            .collect::<Vec<_>>()
    };
    let mut all = NODES
        .into_iter()
        .flat_map(|node| shares(node).into_iter().map(move |of| (node, of)));
    let found = all.find(|(_, share)| share.limit.is_some());
    let (node, share) = found.expect("it may burst");
    let (node, card) = (node.to_owned(), share.card);
    let agent = world.agents.get_mut(&node).expect("it is there");
    agent.lent.insert(card, 600 << 20);
    world.show(&node);
    (world, node)
}

#[test]
fn a_pod_whose_memory_is_called_in_is_proposed_again_until_the_sleeper_has_given_it_back() {
    let (mut world, node) = crowded();
    world.create(50, false);
    let pod = "p5";
    assert_eq!(world.round(), 1);
    let called_in = format!("the agent of node {node} calls in memory for it");
    assert_eq!(world.reasons(pod).len(), 1);
    assert!(
        world.reasons(pod)[0].starts_with(&called_in),
        "{:?}",
        world.reasons(pod)
    );
    assert_eq!(world.round(), 0, "the agent needs a moment");
    // The copy takes a while. The pod is proposed every second, to the same node, and nothing is said twice.
    for _ in 0..20 {
        world.wait(Duration::from_secs(1));
        assert_eq!(world.round(), 1);
        assert_eq!(
            world.agents[&node].asked.last().map(String::as_str),
            Some(pod)
        );
    }
    assert_eq!(world.reasons(pod).len(), 1);
    assert!(!world.bound_pods().contains(&pod));
    world.end_bursts(&node);
    assert_eq!(world.round(), 1);
    assert!(
        world.bound_pods().contains(&pod),
        "the sleeper's memory is free"
    );
    assert_eq!(world.published["uid-p5"], 1);
    world.check();
}

#[test]
fn a_gang_waits_as_a_whole_while_memory_is_called_in_for_one_of_it() {
    let (mut world, node) = crowded();
    // One of the full cards gets room for one of the two. The other one needs what is lent.
    let name = world.pods.keys().position(|name| name == "p1");
    world.delete(name.expect("it runs"));
    world.settle();
    world.create(60, true);
    world.round();
    for _ in 0..3 {
        world.wait(Duration::from_secs(1));
        world.round();
        let held = world
            .agents
            .values()
            .map(|agent| agent.held.len())
            .sum::<usize>();
        assert_eq!(
            (world.bound_pods().len(), held),
            (3, 3),
            "what one got is given back"
        );
    }
    world.end_bursts(&node);
    world.round();
    assert_eq!(world.bound_pods().len(), 5);
    let refused = |message: &&str| message.contains("refused");
    for pod in ["p5", "p6"] {
        assert_eq!(world.reasons(pod).into_iter().find(refused), None);
    }
    world.check();
}

#[test]
fn an_agent_that_does_not_call_in_sends_the_pod_elsewhere() {
    let (mut world, node) = crowded();
    world.suspends_bursts = false;
    world.create(50, false);
    assert_eq!(world.round(), 1);
    assert!(
        world.reasons("p5")[0].contains("refused it"),
        "{:?}",
        world.reasons("p5")
    );
    let other = NODES
        .into_iter()
        .find(|other| **other != node)
        .expect("there are two");
    let place = world.pods.iter().position(|(name, pod)| {
        let here = pod.object["spec"]["nodeName"] == other;
        here && name != "p5"
    });
    world.delete(place.expect("the other node is full"));
    for _ in 0..5 {
        world.wait(Duration::from_secs(2));
        world.round();
    }
    assert!(world.bound_pods().contains(&"p5"));
}
