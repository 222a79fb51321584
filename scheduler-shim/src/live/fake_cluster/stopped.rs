//! A scheduler that KAI's Config stops, and starts again.

use serde_json::{Value, json};

use super::FakeCluster;
use crate::live::event::SchedulerEvent;

fn config(is_enabled: bool) -> Value {
    json!({"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config", "uid": "c"},
        "spec": {"scheduler": {"service": {"enabled": is_enabled}}}})
}

fn bound(world: &FakeCluster) -> usize {
    world
        .pods
        .values()
        .filter(|pod| FakeCluster::is_bound(pod))
        .count()
}

#[test]
fn nobody_gets_a_place_while_the_scheduler_is_stopped() {
    for follows in [true, false] {
        let mut world = FakeCluster::new();
        world.model.programs = follows.then(|| "kai-scheduler".to_owned());
        world.deliver(SchedulerEvent::Applied(config(false)));
        world.create(50, false);
        world.settle();
        // Programs without KAI's names follow no Config.
        assert_eq!(bound(&world), usize::from(!follows));
        world.deliver(SchedulerEvent::Applied(config(true)));
        world.settle();
        assert_eq!(bound(&world), 1);
    }
}
