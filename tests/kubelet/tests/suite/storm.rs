//! Hundreds of pods through fifty slots in random order, while the agent is killed at random.

use std::collections::{BTreeMap, BTreeSet};

use apportion_kubelet_tests::{FakeNode, mounted, pod_of};
use apportion_tests::MIB;

use crate::dice::SuiteRng;

const SLOTS: u16 = 50;
const CARDS: usize = 4;
/// The smallest request. Pods that may run at the same time ask for different amounts, so that a mix-up shows.
const SMALLEST: u64 = 100;

fn pods() -> usize {
    let asked = std::env::var("APPORTION_STORM_PODS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(250)
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_pods_find_their_own_grants_whatever_dies() {
    let (mut node, mut dice) = (FakeNode::new(CARDS, SLOTS).await, SuiteRng(20_261_121));
    let mut live: BTreeMap<String, (String, u64)> = BTreeMap::new();
    let (mut created, mut kills) = (0, 0);
    while created < pods() || !live.is_empty() {
        let chosen = live.keys().nth(dice.roll(live.len())).cloned();
        match (dice.roll(100), chosen) {
            (0, _) => {
                node.kill_agent();
                node.start_agent().await;
                kills += 1;
            }
            (1..=50, _) if created < pods() && live.len() < usize::from(SLOTS) => {
                if let Some((uid, slot, mib)) = create(&node, created, &mut dice).await {
                    live.insert(uid, (slot, mib));
                    created += 1;
                }
            }
            (51..=70, Some(uid)) => {
                node.kubelet
                    .before_start(&uid)
                    .await
                    .expect("it was placed");
                check(&node, &uid, &live[&uid]);
            }
            (_, Some(uid)) => {
                node.kubelet.remove(&uid);
                live.remove(&uid);
            }
            (_, None) => {}
        }
        if created == pods() && live.len() == 5 {
            agree(&node, &live).await;
        }
    }
    node.eventually("everything is given back", async |list| {
        list.allocations.is_empty()
    })
    .await;
    assert_eq!(node.grants(), 0, "no grant is left behind");
    assert!(kills > 0, "the storm was none");
}

/// Places, admits and starts a pod. `None` if the node is full now.
async fn create(
    node: &FakeNode,
    number: usize,
    dice: &mut SuiteRng,
) -> Option<(String, String, u64)> {
    let uid = format!("00000000-0000-4000-8000-{number:012}");
    // A share is a multiple of 2 MiB.
    let mib = SMALLEST + 2 * u64::try_from(number % 200).unwrap_or_default();
    node.place(&uid, dice.roll(CARDS), mib).await?;
    let name = format!("pod-{}", number % 7);
    // The slots of pods that have just ended are not offered until they are released.
    let mut slot = node.kubelet.admit(&uid, &name, &["init", "main"]).await;
    let deadline = tokio::time::Instant::now() + apportion_tests::PATIENCE;
    while slot.is_err() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        slot = node.kubelet.admit(&uid, &name, &["init", "main"]).await;
    }
    let slot = slot.expect("a slot becomes free");
    node.kubelet
        .before_start(&uid)
        .await
        .expect("it was placed");
    check(node, &uid, &(slot.clone(), mib));
    Some((uid, slot, mib))
}

/// The runtime finds the pod's own grant.
fn check(node: &FakeNode, uid: &str, (slot, mib): &(String, u64)) {
    let grant = node
        .grant(slot)
        .expect("the kubelet was told that the container may start");
    assert_eq!(grant["annotations"]["apportion.dev/pod"], uid);
    let limits =
        std::fs::read(mounted(&grant, "/.apportion/limits")).expect("the account is there");
    let limit = (mib * MIB).to_le_bytes();
    assert!(
        limits.windows(8).any(|word| word == limit),
        "{uid} is not held to {mib} MiB"
    );
}

/// The agent's ledger and the kubelet's state are the same.
async fn agree(node: &FakeNode, live: &BTreeMap<String, (String, u64)>) {
    let held: BTreeSet<String> = live.keys().cloned().collect();
    assert_eq!(
        node.kubelet.pods().into_iter().collect::<BTreeSet<_>>(),
        held
    );
    node.eventually("the ledger is what the kubelet has", async |list| {
        let allocated = list.allocations.iter().filter_map(pod_of);
        allocated.map(str::to_owned).collect::<BTreeSet<_>>() == held
    })
    .await;
}
