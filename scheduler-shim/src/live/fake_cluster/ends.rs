//! The start and the end of a pod, in whatever order the API server and an agent report them.

use super::*;

impl FakeCluster {
    /// Starts all pods. The API server's answer to a binding comes before or after the watch shows it.
    fn start_all(&mut self, is_answer_first: bool, phase: &str) {
        self.decide();
        while !self.is_still() {
            for node in NODES {
                while !self.agents[node].requests.is_empty() {
                    self.agent_effect(node, false);
                }
            }
            while let Some(effect) = self.api.pop() {
                self.answer(effect, false);
                let Some(answer) = self.events.pop_back() else {
                    continue;
                };
                if let Some(SchedulerEvent::Applied(shown)) = self.events.back_mut() {
                    shown["status"]["phase"] = phase.into();
                }
                let place = self.events.len() - usize::from(is_answer_first);
                self.events.insert(place, answer);
            }
            self.deliver_all();
        }
    }

    /// How many allocations agents are asked for.
    fn allocations(&self) -> usize {
        let asked = self.agents.values().flat_map(|agent| &agent.requests);
        asked
            .filter(|request| matches!(request, AgentRequest::Allocate { .. }))
            .count()
    }

    /// An agent releases all allocations, and reports that.
    fn give_back(&mut self, node: &str) {
        let agent = self.agents.get_mut(node).expect("it is there");
        agent.held.clear();
        self.show(node);
        self.deliver_all();
    }
}

#[test]
fn every_pod_that_is_bound_is_told_so_once_whichever_word_comes_first() {
    for phase in ["Pending", "Running", "Succeeded", "Failed"] {
        for is_answer_first in [false, true] {
            let mut world = FakeCluster::new();
            (0..12).for_each(|number| world.create(10, number % 3 == 0));
            world.start_all(is_answer_first, phase);
            let published: Vec<usize> = world.published.values().copied().collect();
            let expected = vec![1; world.pods.len()];
            assert_eq!(
                published, expected,
                "{phase}, answer first: {is_answer_first}"
            );
        }
    }
}

#[test]
fn what_an_agent_gave_back_is_not_taken_again_while_the_end_of_its_pod_is_on_its_way() {
    let mut world = FakeCluster::new();
    (0..4).for_each(|_| world.create(60, false));
    world.settle();
    for node in NODES {
        world.give_back(node);
    }
    assert_eq!(world.allocations(), 0);
    world.now += Duration::from_secs(15);
    let effects = world.model.decide(world.now);
    world.queue(effects);
    assert_eq!(world.allocations(), 0, "nor is it at the next look");
    // A pod that still runs after this time did not end: its allocation was lost.
    world.now += Duration::from_secs(30);
    let effects = world.model.decide(world.now);
    world.queue(effects);
    assert_eq!(world.allocations(), 4);
}

#[test]
fn what_an_agent_lost_with_its_ledger_is_taken_again_at_once() {
    let mut world = FakeCluster::new();
    (0..4).for_each(|_| world.create(60, false));
    world.settle();
    for node in NODES {
        world.deliver(SchedulerEvent::AgentLost(node.to_owned()));
        world.give_back(node);
    }
    assert_eq!(world.allocations(), 4);
}
