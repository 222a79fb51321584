//! Claims and shares by annotation in random order, while the agent is killed, the kubelet restarts, and a scheduler asks
//! again for what the one before it had reserved. `APPORTION_STORM_STEPS` and `APPORTION_STORM_SEED` ask for more steps and for
//! others.

use std::collections::BTreeMap;

use super::*;
use crate::dice::SuiteRng;

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_annotations_never_take_more_than_the_card_whatever_dies() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let steps = number("APPORTION_STORM_STEPS").unwrap_or(600);
    let seed = number("APPORTION_STORM_SEED").unwrap_or(20_261_126);
    let (mut node, mut dice) = (ClaimNode::new(2).await, SuiteRng(seed));
    let devices = [node.device(0).await, node.device(1).await];
    let mut claims: BTreeMap<String, u64> = BTreeMap::new();
    let mut shares: BTreeMap<String, String> = BTreeMap::new();
    let [mut granted, mut refused] = [0; 2];
    let [mut agents, mut kubelets, mut reservations] = [0; 3];
    for step in 0..steps {
        let mib = 2 * (1 + u64::try_from(dice.roll(1500)).expect("it is small"));
        let card = dice.roll(2);
        match dice.roll(100) {
            0..=1 => {
                node.restart_agent().await;
                agents += 1;
            }
            2 => {
                node.node.kubelet.restart().await;
                kubelets += 1;
            }
            3 => {
                let uid = format!("u{step}");
                let reserved = node.node.reserve(&uid, card, mib).await;
                // As if the scheduler was killed here. The next one asks for the same again.
                if let Some(reserved) = reserved {
                    let placed = node.node.place(&uid, card, mib).await;
                    let placed = placed.expect("it is reserved");
                    assert_eq!(placed.id, reserved.id, "it is given once");
                    shares.insert(uid, placed.id);
                }
                reservations += 1;
            }
            4..=39 => {
                let uid = format!("c{step}");
                match node
                    .claim(&uid, &[(&devices[card], &format!("{mib}Mi"))])
                    .await
                {
                    Ok(grant) => {
                        assert!(is_held_to(&grant, mib), "{uid} is not held to {mib} MiB");
                        claims.insert(uid, mib);
                        granted += 1;
                    }
                    Err(reason) => {
                        assert!(reason.contains("asked for"), "{reason}");
                        refused += 1;
                    }
                }
            }
            40..=59 => {
                let uid = format!("u{step}");
                if let Some(placed) = node.node.place(&uid, card, mib).await {
                    shares.insert(uid, placed.id);
                }
            }
            60..=84 => {
                if let Some(uid) = claims.keys().nth(dice.roll(claims.len())).cloned() {
                    node.node
                        .kubelet
                        .unprepare(&uid, &uid)
                        .await
                        .expect("it was prepared");
                    claims.remove(&uid);
                }
            }
            _ => {
                if let Some(uid) = shares.keys().nth(dice.roll(shares.len())).cloned() {
                    node.node.release(&shares[&uid]).await;
                    shares.remove(&uid);
                }
            }
        }
        for card in node.node.list().await.cards {
            assert!(card.granted_bytes <= card.allocatable_bytes, "{card:?}");
        }
    }
    let held = node.node.list().await.allocations.len();
    assert_eq!(
        held,
        claims.len() + shares.len(),
        "nothing is lost and nothing is left"
    );
    for uid in claims.keys() {
        node.node
            .kubelet
            .unprepare(uid, uid)
            .await
            .expect("it was prepared");
    }
    for id in shares.values() {
        node.node.release(id).await;
    }
    node.node
        .eventually("everything is given back", async |list| {
            list.allocations.is_empty()
        })
        .await;
    assert_eq!(node.node.grants(), 0, "no grant is left behind");
    println!(
        "{steps} steps: {granted} claims granted, {refused} refused; {agents} agents killed, {kubelets} kubelets restarted, {reservations} reservations repeated"
    );
    let kills = [agents, kubelets, reservations];
    assert!(
        granted > 50 && refused > 10 && kills.iter().all(|kills| *kills > 2),
        "the storm was none"
    );
}
