//! Compares the pods' annotations with the agents' ledgers.
//!
//! Pure functions: lists in, error messages out.

use std::collections::BTreeMap;

use apportion_proto::v1;
use apportion_tests::{CARD, MIB};
use k8s_openapi::api::core::v1::Pod;

/// The ledger of each node's agent. The simulated cards of all nodes have the same UUIDs.
pub(crate) type AgentLedgers = BTreeMap<&'static str, v1::ListReply>;

/// Bytes by card.
pub(crate) type SharesByCard = BTreeMap<String, u64>;

/// The bytes granted on each card.
pub(crate) fn granted(ledger: &v1::ListReply) -> SharesByCard {
    let mut sums = SharesByCard::new();
    for grant in ledger.allocations.iter().flat_map(|held| &held.grants) {
        *sums.entry(grant.card.clone()).or_default() += grant.limit_bytes;
    }
    sums
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn annotation<'pod>(pod: &'pod Pod, key: &str) -> Option<&'pod str> {
    let all = pod.metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}

/// Whether the pod has ended.
fn is_over(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The placement of a pod: its node, and the cards in its annotation.
pub(crate) fn place(pod: &Pod) -> Option<(String, SharesByCard)> {
    let node = node_of(pod).filter(|_| !is_over(pod))?;
    let text = annotation(pod, "apportion.dev/cards").unwrap_or_default();
    Some((
        node.to_owned(),
        text.split(',')
            .filter_map(|text| {
                let (card, bytes) = text.split_once('=')?;
                Some((card.to_owned(), bytes.parse().ok()?))
            })
            .collect(),
    ))
}

/// Whether the reservation will expire: its scheduler died, and the pod was deleted before the next one started.
pub(crate) fn is_lapsing(held: &v1::Allocation) -> bool {
    held.state() == v1::AllocationState::Reserved && held.expires_at_ms.is_some()
}

/// The differences between the agents' ledgers and the API server, and the pods that wait although they fit.
pub(crate) fn differences(pods: &[Pod], ledgers: &AgentLedgers) -> Vec<String> {
    let on_cards = pods.iter().filter_map(|pod| {
        let (_, shares) = place(pod).filter(|(_, shares)| !shares.is_empty())?;
        Some((pod.metadata.uid.clone().unwrap_or_default(), shares))
    });
    let mut wanted: BTreeMap<String, SharesByCard> = on_cards.collect();
    let mut wrong = Vec::new();
    for held in ledgers.values().flat_map(|ledger| &ledger.allocations) {
        let grants = held.grants.iter();
        let shares: SharesByCard = grants
            .map(|grant| (grant.card.clone(), grant.limit_bytes))
            .collect();
        let is_committed = held.state() == v1::AllocationState::Allocated;
        match wanted.remove(&held.idempotency_key) {
            Some(asked) if asked == shares && is_committed => {}
            None if is_lapsing(held) => {}
            other => wrong.push(format!(
                "{} has {shares:?}, and should {other:?}",
                held.name
            )),
        }
    }
    wrong.extend(wanted.keys().map(|uid| format!("no agent knows {uid}")));
    let widest = ledgers.values().flat_map(holes).max().unwrap_or_default();
    let waits = pods.iter().filter(|pod| node_of(pod).is_none());
    wrong.extend(waits.filter_map(|pod| {
        let asked = asks_alone(pod)?;
        let fits = asked + MIB <= widest;
        fits.then(|| format!("{} waits for {asked}, and {widest} is free", name(pod)))
    }));
    wrong
}

/// The free bytes of each card.
fn holes(ledger: &v1::ListReply) -> Vec<u64> {
    let granted = granted(ledger);
    let holes = ledger
        .cards
        .iter()
        .map(|card| CARD.saturating_sub(granted.get(&card.uuid).copied().unwrap_or_default()));
    holes.collect()
}

/// What a pod without a gang asks of one card. None if its edits made it ask in two ways.
fn asks_alone(pod: &Pod) -> Option<u64> {
    let is_plain = annotation(pod, "gpu-memory").is_none()
        && annotation(pod, "pod-group-name").is_none()
        && !is_over(pod);
    let limits = pod.spec.as_ref()?.containers.first()?.resources.as_ref();
    let limits = limits.and_then(|resources| resources.limits.as_ref());
    let is_whole = limits.is_some_and(|limits| limits.contains_key("nvidia.com/gpu"));
    let percent = annotation(pod, "gpu-fraction")?.strip_prefix("0.")?;
    let asked = CARD / 100 * percent.parse::<u64>().ok()?;
    (is_plain && !is_whole).then_some(asked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn waiting(share: &str) -> Pod {
        let pod = json!({"metadata": {"name": "one", "uid": "1",
            "annotations": {"gpu-fraction": share}}, "spec": {"containers": [{"name": "main"}]}});
        serde_json::from_value(pod).expect("a pod")
    }

    fn held(bytes: u64, key: &str) -> v1::ListReply {
        let card = "GPU-1".to_owned();
        v1::ListReply {
            cards: vec![v1::Card {
                uuid: card.clone(),
                ..v1::Card::default()
            }],
            allocations: vec![v1::Allocation {
                idempotency_key: key.to_owned(),
                state: v1::AllocationState::Allocated.into(),
                grants: vec![v1::Grant {
                    card,
                    limit_bytes: bytes,
                    ..v1::Grant::default()
                }],
                ..v1::Allocation::default()
            }],
            ..v1::ListReply::default()
        }
    }

    #[test]
    fn what_nobody_has_is_found_and_who_waits_beside_a_hole() {
        let ledgers = AgentLedgers::from([("node", held(CARD / 2, "gone"))]);
        let wrong = differences(&[waiting("0.40")], &ledgers);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(differences(&[waiting("0.51")], &ledgers)[0].contains("None"));
    }

    #[test]
    fn a_reservation_may_lapse_and_a_pod_with_a_place_has_more_than_one() {
        let mut ledger = held(CARD, "gone");
        let reserved = &mut ledger.allocations[0];
        reserved.state = v1::AllocationState::Reserved.into();
        reserved.expires_at_ms = Some(1);
        let ledgers = AgentLedgers::from([("node", ledger)]);
        assert_eq!(differences(&[], &ledgers), [""; 0]);
        let mut pod = waiting("0.50");
        pod.metadata.uid = Some("gone".to_owned());
        put(&mut pod, CARD);
        assert_eq!(differences(&[pod], &ledgers).len(), 1);
    }

    fn put(pod: &mut Pod, bytes: u64) {
        let all = pod.metadata.annotations.as_mut().expect("it has some");
        all.insert("apportion.dev/cards".to_owned(), format!("GPU-1={bytes}"));
        pod.spec.as_mut().expect("it has one").node_name = Some("node".to_owned());
    }

    #[test]
    fn a_pod_with_a_place_is_what_its_agent_knows() {
        let mut pod = waiting("0.50");
        put(&mut pod, CARD / 2);
        let same = AgentLedgers::from([("node", held(CARD / 2, "1"))]);
        assert_eq!(differences(std::slice::from_ref(&pod), &same), [""; 0]);
        let less = AgentLedgers::from([("node", held(CARD / 4, "1"))]);
        assert_eq!(differences(std::slice::from_ref(&pod), &less).len(), 1);
        let nobody = AgentLedgers::from([("node", v1::ListReply::default())]);
        assert_eq!(differences(&[pod], &nobody).len(), 1);
    }
}
