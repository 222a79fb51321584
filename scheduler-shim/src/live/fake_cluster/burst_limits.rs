//! Queues with a burst limit: the limits of their pods add up to no more, whatever is late or fails.

use apportion_abi::names::ANNOTATION_QUEUE_BURST_LIMIT;
use proptest::prelude::*;

use super::*;

/// A queue whose pods' limits may add up to so many per cent of a card.
fn bounded_queue(name: &str, percent: u64) -> Value {
    let mut queue = queue(name, -1);
    let text = format!("{}.{:02}", percent / 100, percent % 100);
    queue["metadata"]["annotations"] = json!({(ANNOTATION_QUEUE_BURST_LIMIT): text});
    queue
}

fn bounded(percent: u64) -> FakeCluster {
    FakeCluster::with_queues(vec![bounded_queue("default-queue", percent)])
}

impl FakeCluster {
    /// What is written about pods that wait and about queues.
    fn report(&mut self) -> Vec<SchedulerEffect> {
        self.model.report_waiting_pods(self.now, |_, _| {})
    }

    /// What the limits of all pods add up to, as agents have them, in bytes.
    fn limits(&self) -> u64 {
        let is_there = |uid: &str| {
            let mut pods = self.pods.values();
            pods.any(|pod| pod.object["metadata"]["uid"] == uid)
        };
        let held = self.agents.values().flat_map(|agent| &agent.held);
        let held = held.filter(|(held, _)| held.uid.as_deref().is_some_and(is_there));
        let shares = held.flat_map(|(held, _)| &held.shares);
        shares
            .map(|share| share.limit.unwrap_or(share.bytes).0)
            .sum()
    }
}

#[test]
fn pods_and_gangs_start_until_their_limits_add_up_to_the_bound() {
    let mut world = bounded(250);
    (0..3).for_each(|_| world.create_elastic(10, 90, false));
    world.settle();
    assert_eq!(world.bound_pods().len(), 2, "2.7 are more than 2.5");
    world.delete(2);
    world.create_elastic(10, 90, true);
    world.create_elastic(10, 60, false);
    world.settle();
    // 0.9 + 0.9 + 0.6: the gang has room on the GPUs, and not in the queue.
    assert_eq!(world.bound_pods(), ["p1", "p2", "p6"]);
    assert_eq!(world.refusals, 0);
    let effects = world.report();
    world.queue(effects);
    let (pod, why) = world.waiting_events.last().expect("it is told");
    assert!(["p4", "p5"].contains(&pod.as_str()), "{pod}");
    assert_eq!(
        why,
        "default-queue queue has reached its burst limit of 2.5 GPUs. Currently the limits of its pods add up to 2.4 GPUs and workload requested 1.8 GPUs more. Lower the limits of pods, or raise apportion.dev/gpu-burst-limit of the queue"
    );
    // A higher bound lets the gang start.
    let queue = bounded_queue("default-queue", 420);
    world.queues = vec![queue.clone()];
    world.events.push_back(SchedulerEvent::Applied(queue));
    world.settle();
    assert_eq!(world.bound_pods().len(), 5);
}

#[test]
fn a_higher_limit_of_a_running_pod_is_deferred_until_the_queue_has_room() {
    let mut world = bounded(200);
    (0..3).for_each(|_| world.create_elastic(10, 60, false));
    world.settle();
    assert_eq!(world.bound_pods().len(), 3);
    // Each alone is within the bound, and both are not.
    world.edit_limit(0, Some(80));
    world.edit_limit(1, Some(70));
    world.settle();
    assert_eq!(world.limits(), 200 * (CARD / 100));
    let deferred = world.resize_events.iter().find(|(pod, ..)| pod == "p2");
    let (_, reason, why) = deferred.expect("it is told");
    assert_eq!(*reason, PodEventReason::ResizeDeferred);
    assert_eq!(
        why,
        "gpu-fraction=0.10,gpu-fraction.limit=0.70: default-queue queue has reached its burst limit of 2 GPUs. Currently the limits of its pods add up to 2 GPUs and workload requested 0.1 GPUs more. Lower the limits of pods, or raise apportion.dev/gpu-burst-limit of the queue"
    );
    // The next scheduler counts what was given, and not what is asked for.
    world.start_scheduler();
    world.create_elastic(10, 20, false);
    world.settle();
    assert_eq!(world.bound_pods().len(), 3);
    // What one gives back, others get: the resize first, then the pod that waits.
    world.edit_limit(0, Some(50));
    world.settle();
    assert_eq!(world.bound_pods().len(), 4);
    assert_eq!(world.limits(), 200 * (CARD / 100));
    // Within the limit, a request can grow in a queue that is at its bound.
    world.edit(1, 30);
    world.settle();
    let (pod, reason, _) = world.resize_events.last().expect("it is told");
    assert_eq!((pod.as_str(), *reason), ("p2", PodEventReason::Resized));
}

#[test]
fn a_bound_that_cannot_be_read_is_ignored_and_said() {
    let mut queue = queue("default-queue", -1);
    queue["metadata"]["annotations"] = json!({(ANNOTATION_QUEUE_BURST_LIMIT): "much"});
    let mut world = FakeCluster::with_queues(vec![queue]);
    (0..4).for_each(|_| world.create_elastic(10, 90, false));
    let effects = world.report();
    let status = effects.iter().find_map(|effect| match effect {
        SchedulerEffect::WriteStatus(update) if update.kind == "Queue" => Some(update),
        _ => None,
    });
    let status = status.expect("the queue's status");
    let conditions = status.status["conditions"].as_array().expect("a list");
    let mut conditions = conditions.iter();
    let invalid = conditions.find(|one| one["type"] == "InvalidSpec");
    let invalid = invalid.expect("the condition");
    assert_eq!(invalid["status"], "True");
    assert_eq!(invalid["reason"], "InvalidBurstLimit");
    assert_eq!(
        invalid["message"],
        "its apportion.dev/gpu-burst-limit \"much\" is not a number of GPUs: 0 or more, such as 4 or 2.5, or -1 for unlimited; it is ignored, and only queues above bound the limits of its pods"
    );
    assert_eq!(status.warning.as_deref(), invalid["message"].as_str());
    world.queue(effects);
    world.settle();
    assert_eq!(world.bound_pods().len(), 4);
}

/// What happens next.
#[derive(Clone, Debug)]
enum Change {
    Create { ask: u64, more: u64, is_gang: bool },
    EditLimit(usize, Option<u64>),
    Edit(usize, u64),
    Delete(usize),
    Restart,
    Round,
}

fn change() -> impl Strategy<Value = Change> {
    let create = (1..50_u64, 0..60_u64, any::<bool>())
        .prop_map(|(ask, more, is_gang)| Change::Create { ask, more, is_gang });
    prop_oneof![
        5 => create,
        4 => (0..12_usize, prop::option::weighted(0.8, 1..100_u64))
            .prop_map(|(pod, limit)| Change::EditLimit(pod, limit)),
        2 => (0..12_usize, 1..90_u64).prop_map(|(pod, ask)| Change::Edit(pod, ask)),
        1 => (0..12_usize).prop_map(Change::Delete),
        1 => Just(Change::Restart),
        4 => Just(Change::Round),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::random::cases(), ..ProptestConfig::default() })]

    #[test]
    fn limits_never_add_up_to_more_than_the_bound_and_nobody_waits_who_fits(
        percent in 50..400_u64,
        changes in prop::collection::vec(change(), 1..25),
    ) {
        let mut world = bounded(percent);
        let bound = CARD / 100 * percent;
        // Shares are whole units: each may be a little less than its part.
        let unit = 2 << 20;
        for change in changes {
            match change {
                Change::Create { ask, more, is_gang } => {
                    let limit = (ask + more).min(99);
                    if limit > ask {
                        world.create_elastic(ask, limit, is_gang);
                    } else {
                        world.create(ask, is_gang);
                    }
                }
                Change::EditLimit(pod, limit) => world.edit_limit(pod, limit),
                Change::Edit(pod, ask) => world.edit(pod, ask),
                Change::Delete(pod) => world.delete(pod),
                Change::Restart => world.start_scheduler(),
                Change::Round => { world.round(); }
            }
            prop_assert!(world.limits() <= bound, "{} of {bound}", world.limits());
        }
        world.settle();
        prop_assert!(world.limits() <= bound, "{} of {bound}", world.limits());
        prop_assert!(world.is_within_cards());
        let mut free = Vec::new();
        for node in NODES {
            let agent = &world.agents[node];
            let shares = agent.held.iter().flat_map(|(held, _)| &held.shares);
            for card in 0..CARDS {
                let here = shares.clone().filter(|share| share.card == uuid(node, card));
                free.push(CARD - here.map(|share| share.bytes.0).sum::<u64>());
            }
        }
        let left = bound - world.limits();
        for pod in world.pods.values().filter(|pod| !FakeCluster::is_bound(pod)) {
            let annotations = &pod.object["metadata"]["annotations"];
            if !annotations["pod-group-name"].is_null() {
                continue;
            }
            let limit = resizes::limit(annotations).unwrap_or(pod.ask).max(pod.ask);
            let held: usize = world.agents.values().map(|agent| agent.held.len()).sum();
            let slack = unit * (held as u64 + 1);
            let has_room = CARD / 100 * limit + slack < left;
            let fits = has_room && free.iter().any(|free| CARD / 100 * pod.ask <= *free);
            prop_assert!(!fits, "{:?} waits beside {free:?}, {left} left", pod.object["metadata"]);
        }
    }
}
