//! A pod whose freed place another would get gets it in the end, whichever scheduler decides.
//!
//! Two queues are at or above their fair shares. One is further above, so the other is always next. A pod of higher
//! priority may take the place of a lesser one in its own queue, and must not free it for the other queue.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{FakeCluster, SchedulerEvent, StatusUpdate, queue};

const FULL: usize = 4;

impl FakeCluster {
    /// The API server stores what the scheduler writes about a pod.
    pub(super) fn write_pod_status(&mut self, update: &StatusUpdate) {
        let pod = self.pods.get_mut(&update.name);
        let Some(pod) = pod.filter(|pod| pod.object["metadata"]["uid"] == update.uid.as_str())
        else {
            return;
        };
        pod.object["status"]["nominatedNodeName"] = update.status["nominatedNodeName"].clone();
        self.events
            .push_back(SchedulerEvent::Applied(pod.object.clone()));
    }

    /// A pod for a whole card, and its name.
    fn create_whole(&mut self, queue: &str, priority_class: &str) -> String {
        self.create_in(queue, "preemptible", 100, false);
        let name = format!("p{}", self.made);
        self.change(&name, |pod| {
            pod["metadata"]["labels"]["priorityClassName"] = json!(priority_class);
        });
        name
    }

    fn change(&mut self, pod: &str, change: impl FnOnce(&mut Value)) {
        let pod = self.pods.get_mut(pod).expect("it was created");
        change(&mut pod.object);
        self.events
            .push_back(SchedulerEvent::Applied(pod.object.clone()));
    }

    fn nominated(&self, pod: &str) -> Option<&str> {
        self.pods[pod].object["status"]["nominatedNodeName"].as_str()
    }

    /// Three pods of one queue and one of the other fill the cluster. Two more of the other wait, a pod of the first that
    /// is larger than any node, and a smaller one, whose name is returned. The queues are compared by their first jobs,
    /// and the large one would put its queue further above its share.
    fn full_above_shares() -> (Self, String) {
        let below = |name: &str, parent: Option<&str>, quota: f64| {
            let mut queue = queue(name, 0);
            queue["spec"]["resources"]["gpu"] =
                json!({"quota": quota, "limit": -1, "overQuotaWeight": 0});
            queue["spec"]["parentQueue"] = json!(parent);
            queue
        };
        let mut world = Self::with_queues(vec![
            below("top", None, 1.0),
            below("first", Some("top"), 0.5),
            below("second", Some("top"), 0.5),
        ]);
        world.evicted = Some(Vec::new());
        (1..FULL).for_each(|_| drop(world.create_whole("first", "train")));
        world.create_whole("second", "train");
        world.settle();
        assert!(world.pods.values().all(Self::is_bound), "it is full");
        world.create_whole("second", "train");
        world.create_whole("second", "train");
        let large = world.create_whole("first", "inference");
        world.change(&large, |pod| {
            pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!(FULL);
        });
        let preemptor = world.create_whole("first", "inference");
        (world, preemptor)
    }
}

#[test]
fn a_nomination_is_written_and_a_new_scheduler_reads_it() {
    let (mut world, preemptor) = FakeCluster::full_above_shares();
    world.decide();
    assert!(world.nominated(&preemptor).is_some(), "{:?}", world.api);
    while let Some(effect) = world.api.pop() {
        world.answer(effect, false);
    }
    assert_eq!(world.ending.len(), 1);
    world.start_scheduler();
    world.end(0);
    world.settle();
    assert!(FakeCluster::is_bound(&world.pods[&preemptor]));
    assert_eq!(world.evicted.as_ref().map(Vec::len), Some(1));
}

#[test]
fn a_nomination_is_taken_back_if_its_victim_stays() {
    let (mut world, preemptor) = FakeCluster::full_above_shares();
    // All evictions are refused, so there is nothing to wait for.
    for _ in 0..=FULL {
        world.decide();
        while let Some(effect) = world.api.pop() {
            world.answer(effect, true);
        }
    }
    world.deliver_all();
    assert_eq!(world.nominated(&preemptor), None);
}

#[test]
fn a_scheduler_that_may_not_evict_leaves_nominations_alone() {
    let (mut world, preemptor) = FakeCluster::full_above_shares();
    world.model.spares_all = true;
    world.decide();
    assert_eq!(world.nominated(&preemptor), None);
    world.model.spares_all = false;
    world.decide();
    assert!(world.nominated(&preemptor).is_some());
    world.model.spares_all = true;
    world.decide();
    assert!(world.nominated(&preemptor).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn the_preemptor_gets_the_place_that_it_freed(
        restarts in prop::collection::vec(any::<bool>(), 8),
    ) {
        let (mut world, preemptor) = FakeCluster::full_above_shares();
        for restart in restarts {
            world.deliver_all();
            if restart {
                world.start_scheduler();
            }
            world.decide();
            while let Some(effect) = world.api.pop() {
                world.answer(effect, false);
            }
            if restart && !world.ending.is_empty() {
                world.end(0);
            }
        }
        while !world.ending.is_empty() {
            world.end(0);
        }
        world.settle();
        prop_assert!(FakeCluster::is_bound(&world.pods[&preemptor]));
        prop_assert_eq!(world.evicted.as_ref().map(Vec::len), Some(1));
    }
}
