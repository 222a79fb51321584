//! The scheduler is killed at any moment: nothing is allocated twice, and nothing is left behind.

use apportion_tests::CARD;
use serde_json::{Value, json};

use crate::cluster::{Cluster, placed, pod};

#[test]
fn an_agent_that_is_killed_keeps_its_pods_and_takes_new_ones() {
    let mut cluster = Cluster::with_cards(1);
    cluster
        .plane
        .apply(&[pod("first", json!({"gpu-fraction": "0.5"}))]);
    cluster.bound(1);
    let node = cluster.nodes.get_mut("node-1").expect("it is there");
    node.replace_agent();
    cluster
        .plane
        .apply(&[pod("second", json!({"gpu-fraction": "0.5"}))]);
    let bound = cluster.bound(2);
    assert_eq!(bound["first"], bound["second"]);
    assert_eq!(cluster.granted("node-1").values().flatten().count(), 2);
}

#[test]
fn a_scheduler_that_is_killed_again_and_again_gives_nothing_twice() {
    let mut cluster = Cluster::with_cards(4);
    let mut made = 0;
    for round in 0..6 {
        let pods: Vec<Value> = (0..4)
            .map(|number| {
                pod(
                    &format!("r{round}-{number}"),
                    json!({"gpu-fraction": "0.3"}),
                )
            })
            .collect();
        cluster.plane.apply(&pods);
        made += pods.len();
        // Kill at another moment of the round each time.
        std::thread::sleep(std::time::Duration::from_millis(40 * round));
        cluster.kill_scheduler();
        cluster.start_scheduler();
    }
    // Three shares of 0.3 fit on a card.
    let bound = cluster.bound(12);
    assert!(made > 12);
    assert_eq!(bound.len(), 12);
    for held in cluster.granted("node-1").values() {
        assert!(
            held.iter().map(|(_, bytes)| bytes).sum::<u64>() <= CARD,
            "{held:?}"
        );
    }
    let _ = cluster
        .plane
        .kubectl(&["delete", "pods", "--all", "--force", "--grace-period=0"]);
    cluster.eventually("everything is given back", |pods| {
        let is_clean = cluster.granted("node-1").is_empty();
        (placed(pods).is_empty() && is_clean).then_some(())
    });
}

#[test]
fn a_leader_that_was_stopped_changes_nothing_once_another_leads() {
    let mut cluster = Cluster::with_cards(2);
    let third = |name: &str| pod(name, json!({"gpu-fraction": "0.3"}));
    cluster.plane.apply(&[third("first")]);
    cluster.bound(1);
    let stopped = cluster.stop_scheduler();
    // The stopped scheduler would place these too.
    cluster.plane.apply(&[third("second"), third("third")]);
    cluster.start_scheduler();
    cluster.bound(3);
    stopped.go_on();
    assert!(
        cluster
            .whole_log()
            .contains("another scheduler took the lease")
    );
    let granted = cluster.granted("node-1");
    let mut names: Vec<&String> = granted.values().flatten().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, ["default/first", "default/second", "default/third"]);
}
