//! Claims that pods name, in orders of events that once went wrong or could.

use serde_json::json;

use super::ClaimCluster;
use crate::live::event::SchedulerEffect;

#[test]
fn a_claim_of_another_scheduler_counts_as_soon_as_it_is_seen() {
    let mut cluster = ClaimCluster::new();
    cluster.create(None, None);
    cluster.create(None, None);
    cluster.create(None, None);
    while let Some(event) = cluster.claim_events.pop_front() {
        cluster.deliver(event);
    }
    // Somebody else gives the first claim the device of n1.
    let other = json!({"devices": {"results": [{"request": "r", "driver": "gpu.example.com",
        "pool": "n1", "device": "whole-0"}]}});
    let claim = cluster.claims.get_mut("c1").unwrap();
    claim["status"] = json!({"allocation": other,
        "reservedFor": [{"resource": "pods", "name": "theirs", "uid": "theirs"}]});
    cluster.changed("c1");
    let event = cluster.claim_events.pop_front().unwrap();
    cluster.deliver(event);
    while let Some(event) = cluster.pod_events.pop_front() {
        cluster.deliver(event);
    }
    cluster.decide();
    let mut places: Vec<(String, String, bool)> = Vec::new();
    for bind in &cluster.binds {
        let SchedulerEffect::Bind {
            node, pod, claims, ..
        } = bind
        else {
            continue;
        };
        places.push((pod.name.clone(), node.clone(), claims[0].is_new));
    }
    places.sort();
    // The pod that shares the claim follows it. Of the two others one gets the device of n2, and one waits.
    assert_eq!(places.len(), 2, "{places:?}");
    assert_eq!(places[0], ("p1".to_owned(), "n1".to_owned(), false));
    assert_eq!((places[1].1.as_str(), places[1].2), ("n2", true));
}

/// Of two pods that share a claim, the first one ends before it is bound, and the claim loses its devices. The second
/// one writes them again. Nobody else gets them, although the watch shows the loss first.
#[test]
fn devices_that_one_pod_gave_up_and_another_took_again_are_not_given_twice() {
    let mut cluster = ClaimCluster::new();
    cluster.create(Some(6), None);
    cluster.create(None, Some(0));
    let deliver_all = |cluster: &mut ClaimCluster| {
        while let Some(event) = cluster.claim_events.pop_front() {
            cluster.deliver(event);
        }
        while let Some(event) = cluster.pod_events.pop_front() {
            cluster.deliver(event);
        }
    };
    deliver_all(&mut cluster);
    cluster.decide();
    assert_eq!(cluster.binds.len(), 2);
    let first = |bind: &SchedulerEffect| matches!(bind, SchedulerEffect::Bind { pod, .. } if pod.name == "p1");
    let place = cluster.binds.iter().position(first).unwrap();
    cluster.answer(place, Some(1));
    cluster.answer(0, None);
    // Of what was written, only the first allocation and its end are shown.
    let last = cluster.claim_events.pop_back().unwrap();
    while let Some(event) = cluster.claim_events.pop_front() {
        cluster.deliver(event);
    }
    for _ in 0..4 {
        cluster.create(Some(6), None);
    }
    cluster.claim_events.push_back(last);
    while let Some(event) = cluster.pod_events.pop_front() {
        cluster.deliver(event);
    }
    let news = cluster
        .claim_events
        .iter()
        .take(4)
        .cloned()
        .collect::<Vec<_>>();
    news.into_iter().for_each(|event| cluster.deliver(event));
    cluster.decide();
    while !cluster.binds.is_empty() {
        cluster.answer(0, None);
        cluster.check();
    }
}
