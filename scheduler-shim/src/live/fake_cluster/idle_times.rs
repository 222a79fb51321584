//! What agents are told about pods that are suspended when they are idle.

use std::time::Duration;

use apportion_abi::names::ANNOTATION_IDLE;

use super::{AgentRequest, FakeCluster, FakePod, SchedulerEvent, agent_requests};

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
}

/// The times with which agents are asked for pods, by name of the pod.
fn times<'a>(
    requests: impl IntoIterator<Item = &'a AgentRequest>,
) -> Vec<(String, Option<Duration>)> {
    let asked = requests.into_iter().filter_map(|request| match request {
        AgentRequest::Allocate {
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
    world.deliver_all();
    let effects = world.model.decide(world.now);
    let idle = ("p1".to_owned(), Some(Duration::from_secs(600)));
    let [nonsense, usual] = ["p2", "p3"].map(|name| (name.to_owned(), None));
    assert_eq!(
        times(agent_requests(&effects)),
        [idle.clone(), nonsense.clone(), usual.clone()]
    );
    world.queue(effects);
    world.settle();

    let asked = world.lose_ledgers();
    assert_eq!(
        times(&asked),
        [idle, nonsense, usual],
        "an agent that lost its ledger is told again"
    );
}
