//! Running pods whose request is edited.

use apportion_groups::ObjectView;
use apportion_model::cards::CardShare;
use serde_json::json;

use super::*;

impl FakeCluster {
    /// The API server writes what a pod has now.
    pub(super) fn write_allocated(&mut self, effect: SchedulerEffect, fails: bool) {
        let SchedulerEffect::WriteAllocated {
            pod,
            cards,
            request,
        } = effect
        else {
            return;
        };
        let there = self.pods.get_mut(&pod.name);
        let there = there.filter(|there| there.object["metadata"]["uid"] == pod.uid.as_str());
        let is_done = !fails && there.is_some();
        if let Some(there) = there.filter(|_| is_done) {
            let annotations = &mut there.object["metadata"]["annotations"];
            annotations[cards::CARDS] = cards::annotation(&cards).into();
            annotations[ANNOTATION_ALLOCATED] = request.into();
            self.events
                .push_back(SchedulerEvent::Applied(there.object.clone()));
        }
        self.events
            .push_back(SchedulerEvent::AllocatedWritten(pod, is_done));
    }

    /// What a bound pod has, in per cent of its card: by the ledger of its agent, and as written on it.
    fn size(&self, name: &str) -> (u64, String) {
        let object = &self.pods[name].object;
        let uid = object["metadata"]["uid"].as_str().expect("it has one");
        let mut held = self.agents.values().flat_map(|agent| &agent.held);
        let held = held.find(|(held, _)| held.uid.as_deref() == Some(uid));
        let (held, _) = held.expect("it runs");
        let written = cards::written(ObjectView::new(object)).expect("it is written");
        let bytes = |share: &CardShare| (share.card.clone(), share.bytes);
        let held_bytes = held.shares.iter().map(bytes);
        assert!(written.iter().map(bytes).eq(held_bytes), "{name}");
        let allocated = object["metadata"]["annotations"][ANNOTATION_ALLOCATED].as_str();
        let percent = (held.shares[0].bytes.0 * 100).div_ceil(CARD);
        (percent, allocated.unwrap_or_default().to_owned())
    }

    /// Every pod has what it asks for, unless its card has no room for it.
    pub(super) fn check_resizes(&self) {
        for (name, pod) in &self.pods {
            let annotations = &pod.object["metadata"]["annotations"];
            let Some(asked) = annotations["gpu-fraction"].as_str() else {
                continue;
            };
            if !Self::is_bound(pod) || annotations[ANNOTATION_ALLOCATED].is_null() {
                continue;
            }
            let (has, allocated) = self.size(name);
            let asks: u64 = asked.trim_start_matches("0.").parse().expect("a number");
            let limit = limit(annotations);
            let most = limit.map_or(String::new(), |limit| {
                format!(",gpu-fraction.limit=0.{limit:02}")
            });
            if allocated == format!("gpu-fraction={asked}{most}") {
                assert_eq!(has, asks, "{name} has another size than is written on it");
                assert_eq!(self.burst_limit(name), limit, "{name}");
                continue;
            }
            let card = &cards::written(ObjectView::new(&pod.object)).expect("written")[0].card;
            let all = self.agents.values().flat_map(|agent| &agent.held);
            let shares = all.flat_map(|(held, _)| &held.shares);
            let taken: u64 = (shares.filter(|share| share.card == *card))
                .map(|share| share.bytes.0)
                .sum();
            assert!(
                asks > has && taken + CARD / 100 * (asks - has) > CARD - (2 << 20),
                "{name} has {has} and asks for {asks}, and {taken} bytes of its card are taken"
            );
        }
    }

    /// Edits the limit of a bound pod that may burst, or removes it.
    pub(super) fn edit_limit(&mut self, which: usize, percent: Option<u64>) {
        let Some(pod) = self.pods.values_mut().nth(which) else {
            return;
        };
        let annotations = &mut pod.object["metadata"]["annotations"];
        let asked = percent_of(&annotations["gpu-fraction"]);
        let is_above = percent.is_none_or(|percent| Some(percent) > asked && percent < 100);
        if annotations[ANNOTATION_BURST].is_null() || !is_above {
            return;
        }
        let all = annotations.as_object_mut().expect("they are a map");
        match percent {
            Some(percent) => all.insert(
                ANNOTATION_FRACTION_LIMIT.to_owned(),
                format!("0.{percent:02}").into(),
            ),
            None => all.remove(ANNOTATION_FRACTION_LIMIT),
        };
        self.events
            .push_back(SchedulerEvent::Applied(pod.object.clone()));
    }

    /// Up to how many per cent of its card a bound pod may burst, by the ledger of its agent.
    fn burst_limit(&self, name: &str) -> Option<u64> {
        let uid = format!("uid-{name}");
        let mut held = self.agents.values().flat_map(|agent| &agent.held);
        let (held, _) = held.find(|(held, _)| held.uid.as_deref() == Some(&uid))?;
        Some((held.shares[0].limit?.0 * 100).div_ceil(CARD))
    }

    fn said(&self) -> Vec<(&str, PodEventReason)> {
        let events = self.resize_events.iter();
        events
            .map(|(pod, reason, _)| (pod.as_str(), *reason))
            .collect()
    }

    /// Pods of these sizes on one card each node: the first ones share a card.
    fn running(asks: &[u64]) -> Self {
        let mut world = Self::new();
        for ask in asks {
            world.create(*ask, false);
            world.settle();
        }
        world
    }
}

/// The limit in the annotations of a pod, in per cent.
pub(super) fn limit(annotations: &Value) -> Option<u64> {
    percent_of(&annotations[ANNOTATION_FRACTION_LIMIT])
}

fn percent_of(fraction: &Value) -> Option<u64> {
    fraction.as_str()?.strip_prefix("0.")?.parse().ok()
}

#[test]
fn a_running_pod_gets_another_size_in_its_place() {
    let mut world = FakeCluster::running(&[30]);
    assert_eq!(world.size("p1"), (30, "gpu-fraction=0.30".to_owned()));
    for size in [60, 10] {
        world.edit(0, size);
        world.settle();
        assert_eq!(world.size("p1"), (size, format!("gpu-fraction=0.{size}")));
    }
    let resized = ("p1", PodEventReason::Resized);
    assert_eq!(world.said(), [resized, resized]);
    let message = &world.resize_events[0].2;
    assert_eq!(
        *message,
        format!(
            "300 MiB -> 600 MiB on {}",
            cards::written(ObjectView::new(&world.pods["p1"].object)).unwrap()[0].card
        )
    );
}

#[test]
fn a_pod_that_cannot_grow_now_is_told_once_and_grows_when_there_is_room() {
    let mut world = FakeCluster::running(&[60, 30]);
    world.edit(1, 50);
    (0..5).for_each(|_| world.settle());
    assert_eq!(world.size("p2").0, 30);
    assert_eq!(world.said(), [("p2", PodEventReason::ResizeDeferred)]);
    let why = &world.resize_events[0].2;
    assert!(
        why.starts_with("gpu-fraction=0.50: asked for 500 MiB on GPU-"),
        "{why}"
    );
    assert!(
        why.contains("400 MiB free (of 1000 MiB; held by default/p1 with 600 MiB)"),
        "{why}"
    );
    let explained = world.model.resizes.explain("uid-p2").unwrap();
    assert!(
        explained.starts_with(
            "resize from gpu-fraction=0.30 to gpu-fraction=0.50 is deferred: asked for"
        ),
        "{explained}"
    );
    world.delete(0);
    world.settle();
    assert_eq!(world.size("p2"), (50, "gpu-fraction=0.50".to_owned()));
    assert_eq!(world.said()[1..], [("p2", PodEventReason::Resized)]);
    assert_eq!(world.model.resizes.explain("uid-p2"), None);
}

#[test]
fn a_pod_that_may_burst_gets_another_guarantee_and_another_limit() {
    let mut world = FakeCluster::running(&[30]);
    assert_eq!((world.size("p1").0, world.burst_limit("p1")), (30, None));
    for (ask, limit, said) in [
        (30, Some(80), "300 MiB -> 300 MiB up to 800 MiB on GPU-"),
        (
            50,
            Some(80),
            "300 MiB up to 800 MiB -> 500 MiB up to 800 MiB on GPU-",
        ),
        (
            50,
            Some(60),
            "500 MiB up to 800 MiB -> 500 MiB up to 600 MiB on GPU-",
        ),
        (
            20,
            Some(60),
            "500 MiB up to 600 MiB -> 200 MiB up to 600 MiB on GPU-",
        ),
        (20, None, "200 MiB up to 600 MiB -> 200 MiB on GPU-"),
        (40, None, "200 MiB -> 400 MiB on GPU-"),
        (40, Some(60), "400 MiB -> 400 MiB up to 600 MiB on GPU-"),
    ] {
        world.edit(0, ask);
        world.edit_limit(0, limit);
        world.settle();
        let most = limit.map_or(String::new(), |limit| {
            format!(",gpu-fraction.limit=0.{limit}")
        });
        assert_eq!(
            world.size("p1"),
            (ask, format!("gpu-fraction=0.{ask}{most}"))
        );
        assert_eq!(world.burst_limit("p1"), limit);
        let (_, reason, message) = world.resize_events.last().expect("it is told");
        assert_eq!(*reason, PodEventReason::Resized);
        assert!(message.starts_with(said), "{message}");
    }
    assert_eq!(world.resize_events.len(), 7);
    world.start_scheduler();
    world.settle();
    assert_eq!(world.resize_events.len(), 7, "nothing is pending");
}

#[test]
fn only_what_is_guaranteed_counts_on_the_card_and_in_the_queue() {
    let mut world = FakeCluster::with_queues(vec![bounded(-1.0, 0.75)]);
    for ask in [30, 40] {
        world.create(ask, false);
        world.settle();
    }
    world.edit_limit(0, Some(90));
    world.settle();
    assert_eq!(world.burst_limit("p1"), Some(90));
    world.edit(0, 40);
    world.settle();
    let (_, reason, why) = world.resize_events.last().expect("it is told");
    assert_eq!(*reason, PodEventReason::ResizeDeferred);
    let words = "gpu-fraction=0.40,gpu-fraction.limit=0.90: default-queue quota has reached";
    assert!(why.starts_with(words), "{why}");
    world.edit(1, 30);
    world.settle();
    assert_eq!(
        (world.size("p1").0, world.burst_limit("p1")),
        (40, Some(90))
    );
}

#[test]
fn a_pod_that_an_agent_forgot_gets_the_limit_that_it_had() {
    let mut world = FakeCluster::running(&[30]);
    world.edit_limit(0, Some(60));
    world.settle();
    // The edit cannot be followed: the limit is not above the guarantee that the card has room for.
    world.create(60, false);
    world.settle();
    world.edit(0, 55);
    world.edit_limit(0, Some(90));
    world.settle();
    assert_eq!(
        (world.size("p1").0, world.burst_limit("p1")),
        (30, Some(60))
    );
    for agent in world.agents.values_mut() {
        agent.held.retain(|(held, _)| held.name != "default/p1");
    }
    world.settle();
    assert_eq!(
        (world.size("p1").0, world.burst_limit("p1")),
        (30, Some(60))
    );
}

#[test]
fn a_resize_that_is_taken_back_leaves_nothing_behind() {
    let mut world = FakeCluster::running(&[60, 30]);
    world.edit(1, 50);
    world.settle();
    world.edit(1, 30);
    world.settle();
    world.delete(0);
    world.settle();
    assert_eq!(world.size("p2"), (30, "gpu-fraction=0.30".to_owned()));
    assert_eq!(world.said(), [("p2", PodEventReason::ResizeDeferred)]);
}

#[test]
fn what_no_agent_could_do_is_infeasible() {
    let mut world = FakeCluster::running(&[30]);
    let mut asks = |annotations: Value| {
        let pod = world.pods.get_mut("p1").expect("it is there");
        let all = pod.object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap();
        all.retain(|key, _| !key.starts_with("gpu-"));
        all.extend(annotations.as_object().unwrap().clone());
        let event = SchedulerEvent::Applied(pod.object.clone());
        world.events.push_back(event);
        world.settle();
        let (_, reason, why) = world.resize_events.pop().expect("it is told");
        assert!(world.resize_events.is_empty() && reason == PodEventReason::ResizeInfeasible);
        assert_eq!(world.size("p1").0, 30, "{why}");
        why
    };
    assert_eq!(
        asks(json!({"gpu-memory": "400"})),
        "gpu-memory=400: the share was given for gpu-fraction=0.30, and its kind stays"
    );
    assert_eq!(
        asks(json!({"gpu-fraction": "0.4", "gpu-fraction-num-devices": "2"})),
        "gpu-fraction=0.4: it asks for 2 GPUs and runs on 1; their number stays"
    );
    assert_eq!(
        asks(json!({"gpu-fraction": "lots"})),
        "gpu-fraction=lots: gpu-fraction annotation value must be a positive number smaller than 1.0"
    );
    let why = asks(json!({"gpu-fraction": "0.001"}));
    assert!(
        why.starts_with("gpu-fraction=0.001: it asks for less than 2 MiB of GPU-"),
        "{why}"
    );
    assert_eq!(
        asks(json!({})),
        "no request: a running pod keeps one of gpu-memory and gpu-fraction"
    );
}

#[test]
fn a_resize_goes_on_with_the_next_scheduler() {
    for steps in 0..6 {
        let mut world = FakeCluster::running(&[30]);
        world.edit(0, 60);
        // As far as that: the edit is seen, it is decided, the agent changes it, its word comes, it is written.
        let event = world.events.pop_front().expect("the edit");
        world.deliver(event);
        let effects = world.model.decide(world.now);
        world.queue(effects);
        for step in 0..steps {
            match step {
                0 => NODES
                    .iter()
                    .for_each(|node| world.agent_effect(node, false)),
                1 | 4 => {
                    world.deliver_all();
                }
                2 => {
                    let effects = world.model.decide(world.now);
                    world.queue(effects);
                }
                _ => {
                    if let Some(effect) = world.api.pop() {
                        world.answer(effect, false);
                    }
                }
            }
        }
        world.start_scheduler();
        world.settle();
        assert_eq!(
            world.size("p1"),
            (60, "gpu-fraction=0.60".to_owned()),
            "{steps}"
        );
        // The new scheduler says it again if it does not find it written.
        let mut said = world.resize_events.clone();
        said.dedup();
        assert_eq!(said.len(), 1, "{steps}: {said:?}");
        assert_eq!(said[0].1, PodEventReason::Resized);
    }
}

/// A queue with these bounds in GPUs.
fn bounded(quota: f64, limit: f64) -> Value {
    let mut queue = queue("default-queue", -1);
    queue["spec"]["resources"]["gpu"] =
        json!({"quota": quota, "limit": limit, "overQuotaWeight": 1});
    queue
}

#[test]
fn no_resize_lifts_a_queue_above_its_limit_or_its_quota() {
    let limit = "default-queue quota has reached the allowable limit of GPU. Limit is 1.22 GPUs, currently 1.2 GPUs allocated and workload requested 0.1 GPUs";
    let quota = "Non-preemptible workload is over quota. Workload requested 0.1 GPUs, but default-queue quota is 1.22 GPUs, while 1.2 GPUs are already allocated for non-preemptible pods. Use a preemptible workload to go over quota";
    for (preemptibility, queue, why) in [
        ("preemptible", bounded(-1.0, 1.22), limit),
        ("non-preemptible", bounded(1.22, -1.0), quota),
    ] {
        let mut world = FakeCluster::with_queues(vec![queue]);
        for ask in [60, 50] {
            world.create_in("default-queue", preemptibility, ask, false);
            world.settle();
        }
        // Each alone is within it, and both are not.
        world.edit(0, 70);
        world.edit(1, 60);
        world.settle();
        assert_eq!(
            (world.size("p1").0, world.size("p2").0),
            (70, 50),
            "{:?}",
            world.resize_events
        );
        let deferred = format!("gpu-fraction=0.60: {why}");
        let deferred = ("p2".to_owned(), PodEventReason::ResizeDeferred, deferred);
        assert!(
            world.resize_events.contains(&deferred),
            "{:?}",
            world.resize_events
        );
        // One shrinks, and the other grows into what it left.
        world.edit(0, 60);
        world.settle();
        assert_eq!((world.size("p1").0, world.size("p2").0), (60, 60));
    }
}

#[test]
fn pods_that_keep_their_request_cost_no_write() {
    let mut world = FakeCluster::running(&[60, 30, 50, 10]);
    world.start_scheduler();
    for _ in 0..5 {
        world.wait(Duration::from_secs(61));
        let effects = world.model.decide(world.now);
        assert!(effects.is_empty(), "{effects:?}");
    }
}

#[test]
fn a_pod_keeps_what_it_got_until_its_agent_has_changed_it() {
    for (ask, rest) in [(60, 50), (100, 10)] {
        let mut world = FakeCluster::new();
        (0..NODES.len() * CARDS).for_each(|_| world.create(ask, false));
        world.settle();
        (0..NODES.len() * CARDS).for_each(|pod| world.edit(pod, 10));
        world.create(rest, false);
        world.deliver_all();
        let effects = world.model.decide(world.now);
        assert!(
            !agent_requests(&effects)
                .any(|request| matches!(request, AgentRequest::Allocate { .. })),
            "{effects:?}"
        );
        world.queue(effects);
        world.settle();
        world.check();
    }
}
