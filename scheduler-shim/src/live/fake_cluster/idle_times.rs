//! What agents are told about pods that are suspended when they are idle.

use std::time::Duration;

use apportion_abi::names::ANNOTATION_IDLE;

use super::{FakeCluster, FakePod, NODES, SchedulerEffect, SchedulerEvent};

impl FakeCluster {
    /// Creates a pod with a share, or with a whole card, and this annotation.
    fn create_idle(&mut self, ask: u64, idle_time: &str) {
        let before: Vec<String> = self.pods.keys().cloned().collect();
        self.create(ask, false);
        let mut pods = self.pods.iter_mut();
        let new = pods.find(|(name, _)| !before.contains(name));
        let (name, FakePod { object, .. }) = new.expect("it was just created");
        object["metadata"]["annotations"][ANNOTATION_IDLE] = idle_time.into();
        for event in &mut self.events {
            if let SchedulerEvent::Applied(of) = event
                && of["metadata"]["name"] == name.as_str()
            {
                *of = object.clone();
            }
        }
    }

    fn hear(&mut self) {
        self.deliver_all();
    }
}

/// The times with which agents are asked for pods, by name of the pod.
fn times<'a>(
    effects: impl IntoIterator<Item = &'a SchedulerEffect>,
) -> Vec<(String, Option<Duration>)> {
    let asked = effects.into_iter().filter_map(|effect| match effect {
        SchedulerEffect::Allocate {
            pod, idle_after, ..
        } => Some((pod.name.clone(), *idle_after)),
        _ => None,
    });
    let mut asked: Vec<_> = asked.collect();
    asked.sort();
    asked
}

#[test]
fn a_pod_with_a_share_is_proposed_with_its_idle_time() {
    let mut world = FakeCluster::new();
    world.create_idle(30, "10m");
    world.create_idle(30, "soon");
    world.create(30, false);
    world.hear();
    let effects = world.model.decide(world.now);
    let idle = ("p1".to_owned(), Some(Duration::from_secs(600)));
    let [nonsense, usual] = ["p2", "p3"].map(|name| (name.to_owned(), None));
    assert_eq!(
        times(&effects),
        [idle.clone(), nonsense.clone(), usual.clone()]
    );
    world.queue(effects);
    world.settle();

    for node in NODES {
        world.deliver(SchedulerEvent::AgentLost(node.to_owned()));
        let agent = world.agents.get_mut(node).expect("it is there");
        agent.held.clear();
        world.show(node);
    }
    world.hear();
    let asked = world.agents.values().flat_map(|agent| &agent.effects);
    assert_eq!(
        times(asked),
        [idle, nonsense, usual],
        "an agent that lost its ledger is told again"
    );
}
