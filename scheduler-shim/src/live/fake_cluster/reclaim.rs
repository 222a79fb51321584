//! A reclaim in which answers are late and overtake each other: nobody is evicted in vain.
//!
//! One queue holds all cards. Then pods of the other come, whose quota is half of them. Each needs the room of one
//! victim, so as many must be evicted as if every answer came at once. A victim that is terminating, a release in
//! flight and an unanswered binding are not one more need.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::{CARDS, FakeCluster, NODES, PodRef, SchedulerEvent, queue};

/// Shares of which several fit on a card, and a whole card.
const SHARES: [u64; 5] = [20, 25, 30, 50, 100];

impl FakeCluster {
    pub(super) fn evict(&mut self, pod: PodRef, fails: bool) {
        let there = self.pods.get_mut(&pod.name);
        let Some(there) = there.filter(|_| !fails) else {
            let why = "the disruption budget has no room".to_owned();
            return self.events.push_back(SchedulerEvent::NotEvicted(pod, why));
        };
        if there.object["metadata"]["deletionTimestamp"].is_null() {
            there.object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.events
                .push_back(SchedulerEvent::Applied(there.object.clone()));
            self.ending.push(pod.name.clone());
        }
        self.evicted
            .iter_mut()
            .for_each(|all| all.push(pod.name.clone()));
        self.events.push_back(SchedulerEvent::Evicted(pod));
    }

    /// The kubelet has ended an evicted pod.
    pub(super) fn end(&mut self, which: usize) {
        let name = self.ending.remove(which);
        // A user may have deleted it.
        let which = self.pods.keys().position(|known| *known == name);
        which.into_iter().for_each(|which| self.delete(which));
    }

    /// Delivers an event. Those of one watch and of one agent stay in order.
    fn deliver_nth(&mut self, which: usize) {
        let source = |event: &SchedulerEvent| match event {
            SchedulerEvent::Applied(_) | SchedulerEvent::Gone(_) | SchedulerEvent::Listed(..) => {
                "the API server".to_owned()
            }
            SchedulerEvent::AgentReported(node, _) => node.clone(),
            answer => format!("{answer:?}"),
        };
        let wanted = source(&self.events[which]);
        let first = self.events.iter().position(|event| source(event) == wanted);
        let event = self.events.remove(first.expect("it is one of them"));
        self.deliver(event.expect("it was found there"));
    }

    /// A cluster filled by the first queue, and how many of these shares it holds.
    fn full(share: u64) -> (Self, usize) {
        let all = NODES.len() * CARDS;
        let quota = i64::try_from(all / 2).expect("it is small");
        let mut world = Self::with_queues(vec![queue("first", quota), queue("second", quota)]);
        world.evicted = Some(Vec::new());
        let count = all * usize::try_from(100 / share).expect("it is small");
        (0..count).for_each(|_| world.create_in("first", "preemptible", share, false));
        world.settle();
        assert!(
            world.pods.values().all(Self::is_bound),
            "the cluster is full"
        );
        (world, count)
    }

    fn of(&self, queue: &str) -> usize {
        let all = self
            .pods
            .values()
            .filter(|pod| pod.object["metadata"]["labels"]["kai.scheduler/queue"] == queue);
        all.filter(|pod| Self::is_bound(pod)).count()
    }
}

#[derive(Clone, Debug)]
enum DelayedStep {
    Event(usize),
    Agent(bool),
    Lost(bool),
    Api(usize),
    Failed(usize),
    End(usize),
    Decide,
    Wait(u64),
    Create,
}

fn late() -> impl Strategy<Value = DelayedStep> {
    prop_oneof![
        12 => (0..64_usize).prop_map(DelayedStep::Event),
        6 => any::<bool>().prop_map(DelayedStep::Agent),
        1 => any::<bool>().prop_map(DelayedStep::Lost),
        6 => (0..32_usize).prop_map(DelayedStep::Api),
        1 => (0..32_usize).prop_map(DelayedStep::Failed),
        3 => (0..32_usize).prop_map(DelayedStep::End),
        8 => Just(DelayedStep::Decide),
        2 => (100..15_000_u64).prop_map(DelayedStep::Wait),
        3 => Just(DelayedStep::Create),
    ]
}

struct ReclaimCase {
    share: u64,
    wanted: usize,
    /// Whether a controller recreates evicted pods.
    is_replaced: bool,
}

impl FakeCluster {
    fn take_late(&mut self, reclaim: &mut ReclaimCase, late: &DelayedStep) {
        let within = |which: usize, all: usize| (all > 0).then(|| which % all);
        match late {
            DelayedStep::Event(which) => {
                let which = within(*which, self.events.len());
                which.into_iter().for_each(|which| self.deliver_nth(which));
            }
            DelayedStep::Agent(first) => self.agent_effect(NODES[usize::from(*first)], false),
            DelayedStep::Lost(first) => self.agent_effect(NODES[usize::from(*first)], true),
            DelayedStep::Api(which) => {
                if let Some(which) = within(*which, self.api.len()) {
                    let effect = self.api.remove(which);
                    self.answer(effect, false);
                }
            }
            DelayedStep::Failed(which) => {
                // Only bindings fail here. A refused eviction would rightly lead to another victim.
                let which = within(*which, self.api.len());
                if let Some(which) = which
                    .filter(|which| matches!(self.api[*which], super::SchedulerEffect::Bind { .. }))
                {
                    let effect = self.api.remove(which);
                    self.answer(effect, true);
                }
            }
            DelayedStep::End(which) => {
                if let Some(which) = within(*which, self.ending.len()) {
                    self.end(which);
                    if reclaim.is_replaced {
                        self.create_in("first", "preemptible", reclaim.share, false);
                    }
                }
            }
            DelayedStep::Decide => {
                let effects = self.model.decide(self.now);
                self.queue(effects);
            }
            DelayedStep::Wait(millis) => self.wait(Duration::from_millis(*millis)),
            DelayedStep::Create => {
                if reclaim.wanted > 0 {
                    reclaim.wanted -= 1;
                    self.create_in("second", "preemptible", reclaim.share, false);
                }
            }
        }
    }
}

#[test]
fn a_minimum_run_time_also_protects_a_pod_that_is_being_started() {
    let mut lender = queue("first", 2);
    lender["spec"]["reclaimMinRuntime"] = json!("300s");
    let mut world = FakeCluster::with_queues(vec![lender, queue("second", 2)]);
    world.evicted = Some(Vec::new());
    (0..NODES.len() * CARDS).for_each(|_| world.create_in("first", "preemptible", 100, false));
    world.decide();
    // The bindings are on their way.
    world.create_in("second", "preemptible", 100, false);
    world.deliver_all();
    let effects = world.model.decide(world.now);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, super::SchedulerEffect::Evict(_))),
        "{effects:?}"
    );
    // They are bound, and the kubelet has not started them.
    world.settle();
    assert_eq!(world.of("first"), NODES.len() * CARDS);
    let seconds = i64::try_from(world.now.as_secs()).expect("it is small");
    let started = jiff::Timestamp::from_second(seconds).expect("it is a time");
    let bound = world
        .pods
        .values_mut()
        .filter(|pod| FakeCluster::is_bound(pod));
    for pod in bound {
        pod.object["status"]["startTime"] = json!(started.to_string());
        let shown = SchedulerEvent::Applied(pod.object.clone());
        world.events.push_back(shown);
    }
    world.settle();
    assert_eq!(world.evicted.as_ref().map(Vec::len), Some(0));
    world.wait(Duration::from_secs(300));
    world.settle();
    assert_eq!(world.evicted.as_ref().map(Vec::len), Some(1));
    assert_eq!(world.of("second"), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::random::cases(), ..ProptestConfig::default() })]

    #[test]
    fn a_reclaim_evicts_as_many_as_it_needs_however_late_the_answers(
        share in prop::sample::select(&SHARES),
        part in 1..=100_usize,
        is_replaced in any::<bool>(),
        lates in prop::collection::vec(late(), 100..400),
    ) {
        let (mut world, count) = FakeCluster::full(share);
        let wanted = (count / 2 * part).div_ceil(100);
        let mut reclaim = ReclaimCase { share, wanted, is_replaced };
        lates.iter().for_each(|late| world.take_late(&mut reclaim, late));
        while reclaim.wanted > 0 {
            world.take_late(&mut reclaim, &DelayedStep::Create);
        }
        world.settle();
        let evicted = world.evicted.clone().unwrap_or_default();
        prop_assert_eq!(world.of("second"), wanted, "all of them run");
        prop_assert_eq!(evicted.len(), wanted, "{:?} were evicted", evicted);
        prop_assert_eq!(world.of("first"), count - wanted, "nobody ended for nothing");
    }
}
