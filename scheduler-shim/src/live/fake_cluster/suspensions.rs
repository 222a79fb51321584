//! Queues whose pods are suspended before they are evicted.

use apportion_abi::names::ANNOTATION_QUEUE_SUSPENDS;
use proptest::prelude::*;
use serde_json::json;

use super::random::{self, RandomStep};
use super::{
    ASKS, CARD, CARDS, FakeCluster, FakePod, NODES, PodEventReason, SchedulerEvent,
    ShareSuspension, queue,
};

impl FakeCluster {
    /// Whether a pod was suspended by its scheduler.
    pub(super) fn is_asleep(&self, pod: &FakePod) -> bool {
        let uid = pod.object["metadata"]["uid"].as_str();
        let mut held = self.agents.values().flat_map(|agent| &agent.held);
        held.any(|(held, _)| {
            held.uid.as_deref() == uid && held.suspension == ShareSuspension::Asleep
        })
    }

    /// The kubelet has started all bound pods.
    fn start_pods(&mut self) {
        let bound = self.pods.values_mut().filter(|pod| Self::is_bound(pod));
        for pod in bound {
            if pod.object["status"]["phase"] == "Pending" {
                pod.object["status"]["phase"] = json!("Running");
                let shown = SchedulerEvent::Applied(pod.object.clone());
                self.events.push_back(shown);
            }
        }
    }

    /// Two queues with half of the cluster each, of which the first fills it with shares.
    fn lent(share: u64, suspends: bool) -> Self {
        let all = NODES.len() * CARDS;
        let quota = i64::try_from(all / 2).expect("it is small");
        let mut lender = queue("first", quota);
        if suspends {
            lender["metadata"]["annotations"] = json!({ANNOTATION_QUEUE_SUSPENDS: "true"});
        }
        let mut world = Self::with_queues(vec![lender, queue("second", quota)]);
        world.evicted = Some(Vec::new());
        let count = all * usize::try_from(100 / share).expect("it is small");
        (0..count).for_each(|_| world.create_in("first", "preemptible", share, false));
        world.rest();
        world
    }

    /// Until nothing is in flight, with all bound pods started.
    fn rest(&mut self) {
        self.settle();
        self.start_pods();
        self.settle();
    }

    /// The names of the pods of a queue that have a node.
    fn bound_in(&self, queue: &str) -> Vec<String> {
        let all = self.pods.values().filter(|pod| {
            pod.object["metadata"]["labels"]["kai.scheduler/queue"] == queue && Self::is_bound(pod)
        });
        all.map(|pod| {
            pod.object["metadata"]["name"]
                .as_str()
                .expect("it has one")
                .to_owned()
        })
        .collect()
    }

    fn asleep(&self) -> usize {
        self.pods.values().filter(|pod| self.is_asleep(pod)).count()
    }

    fn evictions(&self) -> usize {
        self.evicted.as_ref().map_or(0, Vec::len)
    }

    fn delete_named(&mut self, name: &str) {
        let which = self.pods.keys().position(|known| known == name);
        self.delete(which.expect("it is there"));
    }
}

#[test]
fn a_reclaim_suspends_as_many_as_it_needs_and_they_go_on_afterwards() {
    let mut world = FakeCluster::lent(50, true);
    assert_eq!(world.bound_in("first").len(), 8);
    (0..3).for_each(|_| world.create_in("second", "preemptible", 50, false));
    world.rest();
    assert_eq!(
        world.bound_in("second").len(),
        3,
        "the second queue has its quota"
    );
    assert_eq!((world.asleep(), world.evictions()), (3, 0));
    assert_eq!(world.bound_in("first").len(), 8, "nobody has ended");
    let suspended = |world: &FakeCluster, reason| {
        let events = world.suspension_events.iter();
        events.filter(|(_, of)| *of == reason).count()
    };
    assert_eq!(suspended(&world, PodEventReason::Suspended), 3);
    for name in world.bound_in("second") {
        world.delete_named(&name);
    }
    world.rest();
    assert_eq!((world.asleep(), world.evictions()), (0, 0));
    assert_eq!(suspended(&world, PodEventReason::Resumed), 3);
    world.check();
}

#[test]
fn a_queue_that_does_not_say_so_has_its_pods_evicted() {
    let mut world = FakeCluster::lent(50, false);
    (0..3).for_each(|_| world.create_in("second", "preemptible", 50, false));
    world.rest();
    assert_eq!((world.asleep(), world.evictions()), (0, 3));
}

#[test]
fn a_pod_that_cannot_be_suspended_is_evicted() {
    let mut world = FakeCluster::lent(50, true);
    for node in NODES {
        world.agents.get_mut(node).expect("it is there").can_suspend = false;
        // The scheduler does not know yet.
    }
    (0..2).for_each(|_| world.create_in("second", "preemptible", 50, false));
    world.rest();
    assert_eq!(world.bound_in("second").len(), 2);
    assert_eq!((world.asleep(), world.evictions()), (0, 2));
}

#[test]
fn a_pod_whose_suspension_is_stuck_is_evicted_in_the_end() {
    let mut world = FakeCluster::lent(50, true);
    for agent in world.agents.values_mut() {
        agent.is_stuck = true;
    }
    (0..2).for_each(|_| world.create_in("second", "preemptible", 50, false));
    world.rest();
    assert_eq!(world.bound_in("second").len(), 2);
    assert_eq!((world.asleep(), world.evictions()), (0, 2));
}

#[test]
fn a_new_scheduler_knows_who_sleeps() {
    let mut world = FakeCluster::lent(50, true);
    (0..3).for_each(|_| world.create_in("second", "preemptible", 50, false));
    world.rest();
    world.start_scheduler();
    world.rest();
    assert_eq!((world.asleep(), world.evictions()), (3, 0));
    let name = world.bound_in("second").remove(0);
    world.delete_named(&name);
    world.rest();
    assert_eq!((world.asleep(), world.evictions()), (2, 0));
}

#[test]
fn a_sleeper_waits_for_its_own_gpu() {
    let mut world = FakeCluster::lent(50, true);
    (0..4).for_each(|_| world.create_in("second", "non-preemptible", 50, false));
    world.rest();
    assert_eq!((world.asleep(), world.evictions()), (4, 0));
    let is_asleep = |world: &FakeCluster, name: &String| world.is_asleep(&world.pods[name]);
    let awake = world.bound_in("first");
    for name in awake
        .iter()
        .filter(|name| !is_asleep(&world, name))
        .cloned()
        .collect::<Vec<_>>()
    {
        world.delete_named(&name);
    }
    world.rest();
    // Half of the cluster is idle, and the first queue has none of its quota. Its GPUs are not among the idle ones.
    assert_eq!((world.asleep(), world.evictions()), (4, 0));
    let name = world.bound_in("second").remove(0);
    world.delete_named(&name);
    world.rest();
    assert_eq!((world.asleep(), world.evictions()), (3, 0));
}

#[test]
fn others_are_moved_for_a_sleeper_while_its_queue_has_less_than_theirs() {
    let mut world = FakeCluster::lent(50, true);
    (0..4).for_each(|_| world.create_in("second", "preemptible", 50, false));
    world.rest();
    let first = world.bound_in("first");
    for name in first
        .into_iter()
        .filter(|name| !world.is_asleep(&world.pods[name]))
        .collect::<Vec<_>>()
    {
        world.delete_named(&name);
    }
    world.rest();
    // KAI's consolidation: those who can run on idle GPUs are evicted, and come again. Of two queues that have as much, the
    // one whose pods run goes first, and its pods keep their places.
    assert_eq!((world.asleep(), world.evictions()), (2, 2));
}

#[derive(Clone, Debug)]
enum SuspendingStep {
    Usual(RandomStep),
    Create(bool, usize, bool),
    Start,
    End(usize),
    Driver(bool, bool),
}

fn usual_step() -> impl Strategy<Value = RandomStep> {
    prop_oneof![
        2 => (0..20_usize).prop_map(RandomStep::Delete),
        6 => Just(RandomStep::Decide),
        16 => Just(RandomStep::Event),
        10 => (any::<bool>(), prop::bool::weighted(0.05))
            .prop_map(|(node, fails)| RandomStep::AgentEffect(node, fails)),
        10 => (0..8_usize, prop::bool::weighted(0.1))
            .prop_map(|(which, fails)| RandomStep::ApiEffect(which, fails)),
        2 => (0..90_u64).prop_map(RandomStep::Wait),
        1 => Just(RandomStep::CrashScheduler),
        1 => any::<bool>().prop_map(RandomStep::CrashAgent),
        1 => Just(RandomStep::CrashApi),
    ]
}

fn step() -> impl Strategy<Value = SuspendingStep> {
    prop_oneof![
        49 => usual_step().prop_map(SuspendingStep::Usual),
        5 => (any::<bool>(), 0..ASKS.len(), prop::bool::weighted(0.1))
            .prop_map(|(first, ask, is_gang)| SuspendingStep::Create(first, ask, is_gang)),
        4 => Just(SuspendingStep::Start),
        3 => (0..8_usize).prop_map(SuspendingStep::End),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(node, can_suspend)| SuspendingStep::Driver(node, can_suspend)),
    ]
}

impl FakeCluster {
    fn take_suspending(&mut self, step: &SuspendingStep) {
        let node = |first: bool| NODES[usize::from(first)];
        match *step {
            SuspendingStep::Usual(ref step) => self.take(step),
            SuspendingStep::Create(first, ask, is_gang) => {
                let queue = if first { "first" } else { "second" };
                self.create_in(queue, "preemptible", ASKS[ask], is_gang);
            }
            SuspendingStep::Start => self.start_pods(),
            SuspendingStep::End(which) => {
                if !self.ending.is_empty() {
                    self.end(which % self.ending.len());
                }
            }
            SuspendingStep::Driver(first, can_suspend) => {
                let agent = self.agents.get_mut(node(first)).expect("it is there");
                agent.can_suspend = can_suspend;
                self.show(node(first));
            }
        }
    }

    /// Nobody sleeps whose GPU has room.
    fn wakes_all_that_fit(&self) {
        for agent in self.agents.values() {
            let held: Vec<_> = agent.held.iter().map(|(held, _)| held).collect();
            let awake = held
                .iter()
                .filter(|held| held.suspension != ShareSuspension::Asleep);
            let taken: Vec<_> = awake.flat_map(|held| &held.shares).collect();
            for sleeper in held
                .iter()
                .filter(|held| held.suspension == ShareSuspension::Asleep)
            {
                for share in &sleeper.shares {
                    let others = taken.iter().filter(|other| other.card == share.card);
                    let others: u64 = others.map(|other| other.bytes.0).sum();
                    assert!(
                        others + share.bytes.0 > CARD,
                        "{} sleeps, and has room",
                        sleeper.name
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: random::cases(), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_sleepers_hold_nothing_and_wake_when_there_is_room(
        steps in prop::collection::vec(step(), 60..240),
    ) {
        let mut lender = queue("first", 2);
        lender["metadata"]["annotations"] = json!({ANNOTATION_QUEUE_SUSPENDS: "true"});
        let mut world = FakeCluster::with_queues(vec![lender, queue("second", 2)]);
        world.evicted = Some(Vec::new());
        for step in &steps {
            world.take_suspending(step);
            prop_assert!(world.is_within_cards());
        }
        world.rest();
        prop_assert!(world.is_within_cards());
        world.check();
        world.wakes_all_that_fit();
    }
}
