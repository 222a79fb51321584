//! What agents are told about pods that may burst.

use super::{AgentRequest, FakeCluster, agent_requests, queue};

/// The weights in thousandths and the priorities with which agents are asked for pods, by name of the pod.
fn terms<'a>(requests: impl IntoIterator<Item = &'a AgentRequest>) -> Vec<(String, u32, i32)> {
    let asked = requests.into_iter().filter_map(|request| match request {
        AgentRequest::Allocate { pod, terms, .. } => {
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
    assert_eq!(
        terms(agent_requests(&effects)),
        [bursts.clone(), usual.clone()]
    );
    world.queue(effects);
    world.settle();

    let asked = world.lose_ledgers();
    assert_eq!(
        terms(&asked),
        [bursts, usual],
        "an agent that lost its ledger is told again"
    );
}
