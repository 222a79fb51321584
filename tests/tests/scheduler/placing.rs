//! Which card a pod gets, and what is reported for pods that get none.

use std::collections::BTreeMap;

use apportion_sim_machine::{CardConfig, MachineConfig};
use apportion_tests::{CARD, MIB, cards};
use serde_json::{Value, json};

use crate::cluster::{Cluster, pod};

/// One card of this size, with this driver reserve.
fn one_card(total: u64, reserved: u64) -> MachineConfig {
    let card = CardConfig {
        memory: total * MIB,
        reserved: reserved * MIB,
        ..CardConfig::default()
    };
    MachineConfig {
        cards: vec![card],
        ..cards(1)
    }
}

fn count_by_card(bound: &BTreeMap<String, String>) -> Vec<usize> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for card in bound.values() {
        *counts.entry(card).or_default() += 1;
    }
    counts.into_values().collect()
}

fn condition(pod: &Value) -> Option<&str> {
    let mut all = pod["status"]["conditions"].as_array()?.iter();
    let scheduled = all.find(|one| one["type"] == "PodScheduled")?;
    scheduled["message"].as_str()
}

/// The number of bursts. A variable can increase it.
fn bursts() -> u32 {
    let bursts = std::env::var("APPORTION_BURSTS").ok();
    bursts.and_then(|text| text.parse().ok()).unwrap_or(3)
}

#[test]
fn a_burst_of_halves_fills_every_card_with_two() {
    let cluster = Cluster::with_cards(8);
    for burst in 0..bursts() {
        let pods: Vec<Value> = (0..16)
            .map(|number| {
                pod(
                    &format!("half-{burst}-{number}"),
                    json!({"gpu-fraction": "0.5"}),
                )
            })
            .collect();
        cluster.plane.apply(&pods);
        let bound = cluster.bound(16);
        assert_eq!(count_by_card(&bound), [2; 8], "burst {burst}: {bound:?}");
        let granted = cluster.granted("node-1");
        assert_eq!(granted.len(), 8);
        assert!(
            granted
                .values()
                .all(|held| held.iter().map(|(_, bytes)| bytes).sum::<u64>() == CARD)
        );
        let all = ["delete", "pods", "--all", "--force", "--grace-period=0"];
        let _ = cluster.plane.kubectl(&all);
        cluster.eventually("everything is given back", |_| {
            cluster.granted("node-1").is_empty().then_some(())
        });
    }
}

#[test]
fn as_many_as_fit_a_card_start_and_the_rest_wait_with_a_reason() {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &one_card(46068, 600));
    cluster.start_scheduler();
    let pods: Vec<Value> = (0..24)
        .map(|number| pod(&format!("share-{number}"), json!({"gpu-memory": "2000"})))
        .collect();
    cluster.plane.apply(&pods);
    let bound = cluster.bound(22);
    assert_eq!(bound.len(), (46068 - 600) / 2000);
    let reasons = cluster.eventually("those that wait say why", |pods| {
        let waiting = pods
            .iter()
            .filter(|pod| !pod["spec"]["nodeName"].is_string());
        let reasons: Vec<String> = waiting
            .filter_map(|pod| Some(condition(pod)?.to_owned()))
            .collect();
        (reasons.len() == 2).then_some(reasons)
    });
    for reason in reasons {
        assert!(
            reason.starts_with("no nodes with enough resources were found"),
            "{reason}"
        );
        assert!(
            reason.contains("1.43 GiB free") || reason.contains("MiB free"),
            "{reason}"
        );
    }
}

#[test]
fn a_share_without_a_slot_waits_and_is_told_to_be_created_again() {
    let cluster = Cluster::with_cards(1);
    let mut early = pod("early", json!({"gpu-fraction": "0.5"}));
    early["spec"]["containers"][0]["resources"] = json!({});
    cluster.plane.apply(&[early]);
    let why = cluster.eventually("it is told", |pods| {
        pods.iter().find_map(|pod| Some(condition(pod)?.to_owned()))
    });
    assert!(
        why.starts_with("no container requests apportion.dev/gpu-slot"),
        "{why}"
    );
    assert!(why.ends_with("delete the pod and create it again"), "{why}");
    let waits = "apportion_scheduler_pods_without_slot 1.0";
    cluster.eventually("a metric says so", |_| {
        cluster.http("/metrics").contains(waits).then_some(())
    });
    let said = cluster.ask(&["explain", "early", "--address", &cluster.address()]);
    assert!(
        said.contains("waits because no container requests"),
        "{said}"
    );
    // Its card is free for others meanwhile.
    cluster
        .plane
        .apply(&[pod("whole-of-it", json!({"gpu-fraction": "0.9"}))]);
    assert_eq!(cluster.bound(1).len(), 1);
    let all = ["delete", "pods", "--all", "--force", "--grace-period=0"];
    let _ = cluster.plane.kubectl(&all);
    let again = pod("early", json!({"gpu-fraction": "0.5"}));
    cluster.plane.apply(&[again]);
    cluster.bound(1);
}

#[test]
fn the_running_scheduler_says_what_it_knows() {
    let cluster = Cluster::with_cards(1);
    cluster
        .plane
        .apply(&[pod("first", json!({"gpu-fraction": "0.75"}))]);
    cluster.bound(1);
    cluster
        .plane
        .apply(&[pod("second", json!({"gpu-fraction": "0.5"}))]);
    cluster.eventually("the second waits", |pods| {
        pods.iter()
            .any(|pod| condition(pod).is_some_and(|why| why.contains("found")))
            .then_some(())
    });
    let said = cluster.ask(&["explain", "second", "--address", &cluster.address()]);
    assert!(said.contains("held by default/first"), "{said}");
    assert!(said.contains("would start if default/first ends"), "{said}");
    let snapshot = cluster.plane.dir().join("snapshot.json");
    std::fs::write(&snapshot, cluster.http("/snapshot")).expect("the folder is writable");
    let simulated = cluster.ask(&["simulate", &snapshot.display().to_string()]);
    let waits = "default/second waits because no nodes with enough resources were found";
    assert!(simulated.contains(waits), "{simulated}");
    let metrics = cluster.http("/metrics");
    let queue = |name: &str, value: &str| {
        let of = "default-queue";
        format!(
            "{name}{{queue_name=\"{of}\",queue_metadata_name=\"{of}\",queue_display_name=\"{of}\"}} {value}"
        )
    };
    for line in [
        "kai_task_bind_latency_milliseconds_count 1".to_owned(),
        "apportion_scheduler_waiting_pods 1.0".to_owned(),
        queue("kai_queue_deserved_gpus", "-1.0"),
        queue("kai_queue_allocated_gpus", "0.75"),
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in {metrics}"
        );
    }
}

#[test]
fn a_share_becomes_a_limit_of_whole_blocks() {
    let cluster = Cluster::with_cards(1);
    let asks = [
        ("tiny", json!({"gpu-fraction": "0.004"}), CARD * 4 / 1000),
        ("eighth", json!({"gpu-fraction": "0.125"}), CARD / 8),
        ("third", json!({"gpu-fraction": "0.333"}), CARD / 1000 * 333),
        ("odd", json!({"gpu-memory": "301"}), 300 * MIB),
        ("least", json!({"gpu-memory": "2"}), 2 * MIB),
    ];
    let pods: Vec<Value> = asks
        .iter()
        .map(|(name, ask, _)| pod(name, ask.clone()))
        .collect();
    cluster.plane.apply(&pods);
    cluster.bound(asks.len());
    let granted = cluster.granted("node-1");
    let held: BTreeMap<String, u64> = granted.into_values().flatten().collect();
    for (name, _, wanted) in asks {
        let got = held[&format!("default/{name}")];
        assert_eq!(got, wanted / (2 * MIB) * (2 * MIB), "{name}");
    }
}

#[test]
fn the_fullest_card_of_the_cluster_with_room_takes_a_share() {
    let mut cluster = Cluster::bare();
    cluster.add_node("node-1", &cards(1));
    cluster.add_node("node-2", &cards(1));
    cluster.start_scheduler();
    let on = |mut pod: Value, node: &str| {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod
    };
    for node in ["node-1", "node-2"] {
        let _ = cluster.plane.kubectl(&[
            "label",
            "node",
            node,
            &format!("kubernetes.io/hostname={node}"),
        ]);
    }
    cluster.plane.apply(&[
        on(pod("small", json!({"gpu-fraction": "0.1"})), "node-1"),
        on(pod("large", json!({"gpu-fraction": "0.7"})), "node-2"),
    ]);
    let first = cluster.bound(2);
    cluster
        .plane
        .apply(&[pod("next", json!({"gpu-fraction": "0.3"}))]);
    let all = cluster.bound(3);
    assert_eq!(all["next"], first["large"], "the hole of 0.3 fits exactly");
}

#[test]
fn a_pod_without_cards_starts_beside_pods_of_other_schedulers() {
    let cluster = Cluster::with_cards(1);
    let mut foreign = pod("foreign", json!({}));
    foreign["spec"]["schedulerName"] = "default-scheduler".into();
    cluster.plane.apply(&[foreign, pod("plain", json!({}))]);
    let bound = cluster.bound(1);
    assert_eq!(bound.keys().collect::<Vec<_>>(), ["plain"]);
    assert!(cluster.granted("node-1").is_empty());
}

#[test]
fn a_pod_whose_resource_claim_does_not_exist_waits_and_says_so() {
    let cluster = Cluster::with_cards(1);
    let mut claims = pod("claims", json!({}));
    claims["spec"]["resourceClaims"] = json!([{"name": "card", "resourceClaimName": "mine"}]);
    cluster.plane.apply(&[claims, pod("plain", json!({}))]);
    assert_eq!(cluster.bound(1).keys().collect::<Vec<_>>(), ["plain"]);
    let reason = cluster.eventually("it says why it waits", |pods| {
        let pod = (pods.iter()).find(|pod| pod["metadata"]["name"] == "claims");
        condition(pod?).map(str::to_owned)
    });
    assert!(
        reason.contains("claim default/mine does not exist"),
        "{reason}"
    );
}

#[test]
fn whole_cards_and_shares_do_not_meet() {
    let cluster = Cluster::with_cards(2);
    let mut whole = pod("whole", json!({}));
    whole["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    cluster
        .plane
        .apply(&[pod("share", json!({"gpu-fraction": "0.1"})), whole]);
    cluster.bound(2);
    cluster
        .plane
        .apply(&[pod("next", json!({"gpu-fraction": "0.9"}))]);
    cluster.bound(3);
    let granted = cluster.granted("node-1");
    let mut names: Vec<Vec<&str>> = granted
        .values()
        .map(|held| held.iter().map(|(name, _)| name.as_str()).collect())
        .collect();
    names.iter_mut().for_each(|names| names.sort_unstable());
    names.sort();
    assert_eq!(
        names,
        [vec!["default/next", "default/share"], vec!["default/whole"]]
    );
}

#[test]
fn an_ended_pod_gives_its_share_to_who_waits() {
    let cluster = Cluster::with_cards(1);
    cluster
        .plane
        .apply(&[pod("first", json!({"gpu-fraction": "0.8"}))]);
    cluster.bound(1);
    cluster
        .plane
        .apply(&[pod("second", json!({"gpu-fraction": "0.8"}))]);
    let _ = cluster
        .plane
        .kubectl(&["delete", "pod", "first", "--force", "--grace-period=0"]);
    cluster.eventually("the second starts", |pods| {
        let placed = crate::cluster::placed(pods);
        placed.contains_key("second").then_some(())
    });
}
