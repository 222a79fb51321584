//! What agents are told about pods that may burst.

use super::{FakeCluster, NODES, SchedulerEffect, SchedulerEvent, queue};

/// The weights in thousandths and the priorities with which agents are asked for pods, by name of the pod.
fn terms<'a>(effects: impl IntoIterator<Item = &'a SchedulerEffect>) -> Vec<(String, u32, i32)> {
    let asked = effects.into_iter().filter_map(|effect| match effect {
        SchedulerEffect::Allocate { pod, terms, .. } => {
            let weight = terms.weight.thousandths();
            Some((pod.name.clone(), weight, terms.priority))
        }
        _ => None,
    });
    let mut asked: Vec<_> = asked.collect();
    asked.sort();
    asked
}

#[test]
fn a_pod_that_may_burst_is_proposed_with_the_weight_of_its_queue_and_its_priority() {
    let mut heavy = queue("default-queue", -1);
    heavy["spec"]["resources"]["gpu"]["overQuotaWeight"] = 2.5.into();
    let mut world = FakeCluster::with_queues(vec![heavy]);
    world.create_elastic(30, 90, false);
    world.create(30, false);
    world.deliver_all();
    let effects = world.model.decide(world.now);
    let train = 50;
    let bursts = ("p1".to_owned(), 2500, train);
    let usual = ("p2".to_owned(), 1000, 0);
    assert_eq!(terms(&effects), [bursts.clone(), usual.clone()]);
    world.queue(effects);
    world.settle();

    for node in NODES {
        world.deliver(SchedulerEvent::AgentLost(node.to_owned()));
        let agent = world.agents.get_mut(node).expect("it is there");
        agent.held.clear();
        world.show(node);
    }
    world.deliver_all();
    let asked = world.agents.values().flat_map(|agent| &agent.effects);
    assert_eq!(
        terms(asked),
        [bursts, usual],
        "an agent that lost its ledger is told again"
    );
}
