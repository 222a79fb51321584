//! Whole cards and shares from one ledger, so that no card is given out twice.

use std::collections::{BTreeMap, BTreeSet};

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_kubelet_tests::{FakeNode, pod_of};
use apportion_tests::{MIB, PATIENCE};
use serde_json::Value;

use crate::dice::SuiteRng;

/// The cards of a grant.
fn cards(grant: &Value) -> BTreeSet<String> {
    let mounts = grant["containerEdits"]["mounts"].as_array();
    let places = mounts.into_iter().flatten();
    let cards = places.filter_map(|mount| {
        let place = mount["containerPath"].as_str()?;
        place.strip_prefix("/.apportion/sim/").map(str::to_owned)
    });
    cards.collect()
}

/// The cards that a container of a pod gets when it starts.
async fn started(node: &FakeNode, uid: &str, container: &str) -> BTreeSet<String> {
    let pod = node.kubelet.pod(uid).expect("it is admitted");
    let asked = node.kubelet.before_whole_start(uid, container).await;
    asked.expect("it has its cards");
    let (_, ids) = pod
        .whole
        .iter()
        .find(|(name, _)| name == container)
        .expect("it is there");
    let grants: Vec<Value> = ids
        .iter()
        .map(|id| node.grant(id).expect("described"))
        .collect();
    assert!(
        grants
            .iter()
            .all(|grant| grant["annotations"]["apportion.dev/pod"] == uid)
    );
    let found: BTreeSet<String> = grants.iter().flat_map(cards).collect();
    assert_eq!(found.len(), ids.len(), "{grants:?}");
    found
}

pub(crate) async fn offers(node: &FakeNode, count: usize) {
    let what = format!("{count} whole cards are offered");
    node.eventually(&what, async |_| {
        node.kubelet.offered(RESOURCE_WHOLE).len() == count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_beside_a_share_gets_the_other_card_and_nothing_that_limits_it() {
    let node = FakeNode::new(2, 4).await;
    offers(&node, 2).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    offers(&node, 1).await;
    let one = [("main", 1, false)];
    node.kubelet
        .admit_whole("u2", "train", &one)
        .await
        .expect("one is idle");
    let its = started(&node, "u2", "main").await;
    let list = node.list().await;
    assert_eq!(its, [list.cards[1].uuid.clone()].into());
    let given = list
        .allocations
        .iter()
        .find(|of| pod_of(of) == Some("u2"))
        .expect("it is there");
    assert_eq!(given.name, "team/train");
    assert_eq!(list.cards[1].free_bytes, 0);
    let id = &node.kubelet.pod("u2").expect("it is there").whole[0].1[0];
    let text = node.grant(id).expect("it is there").to_string();
    assert!(
        !text.contains("LD_PRELOAD") && !text.contains("libapportion_cuda"),
        "{text}"
    );

    assert!(
        node.place("u3", 1, 2).await.is_none(),
        "the card is not shared"
    );
    node.kubelet
        .admit_whole("u4", "late", &one)
        .await
        .expect_err("no card is idle");
    node.kubelet.remove("u2");
    node.eventually("the card is back", async |list| {
        list.cards[1].free_bytes > 0
    })
    .await;
    offers(&node, 1).await;
    assert_eq!(node.grant(id), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_whose_card_was_shared_meanwhile_gets_another_card() {
    let node = FakeNode::new(2, 4).await;
    offers(&node, 2).await;
    // The kubelet has not learned it when it takes the device.
    let card = node.list().await.cards[0].uuid.clone();
    let (placed, admitted) = tokio::join!(
        node.place("u1", 0, 2000),
        node.kubelet
            .admit_whole("u2", "train", &[("main", 1, false)]),
    );
    admitted.expect("one card is idle in any case");
    let its = started(&node, "u2", "main").await;
    assert_eq!(placed.is_some(), !its.contains(&card));
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_two_cards_get_those_that_nvlink_joins() {
    let mut machine = apportion_tests::cards(4);
    // Two pairs of cards. No pair has adjacent numbers.
    for (card, other) in [(0, 2), (2, 0), (1, 3), (3, 1)] {
        machine.cards[card].links = vec![other; 4];
    }
    let node = FakeNode::of(&machine, 4, &[]).await;
    offers(&node, 4).await;
    let all: Vec<String> = node
        .list()
        .await
        .cards
        .into_iter()
        .map(|of| of.uuid)
        .collect();
    let pairs: [BTreeSet<String>; 2] =
        [[0, 2], [1, 3]].map(|pair| pair.map(|card| all[card].clone()).into());
    let mut given = Vec::new();
    for uid in ["u1", "u2"] {
        let two = [("main", 2, false)];
        let admitted = node.kubelet.admit_whole(uid, uid, &two).await;
        admitted.expect("two are idle");
        given.push(started(&node, uid, "main").await);
    }
    given.sort_by_key(|pair| *pair != pairs[0]);
    assert_eq!(given, pairs);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_the_cards_that_its_scheduler_reserved() {
    let node = FakeNode::new(4, 4).await;
    let all = node.list().await.cards;
    let whole = all[0].allocatable_bytes / MIB;
    assert_eq!(all[0].allocatable_bytes, whole * MIB);
    node.reserve("u1", 3, whole)
        .await
        .expect("the card is empty");
    offers(&node, 4).await;
    node.kubelet
        .admit_whole("u1", "train", &[("main", 1, false)])
        .await
        .expect("a card is reserved for it");
    assert_eq!(
        started(&node, "u1", "main").await,
        [all[3].uuid.clone()].into()
    );
    node.eventually("nothing is held for it beside its card", async |list| {
        list.allocations.len() == 1 && pod_of(&list.allocations[0]) == Some("u1")
    })
    .await;
    offers(&node, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_a_pod_have_cards_of_their_own_and_take_over_those_of_the_init_container() {
    let mut node = FakeNode::new(4, 4).await;
    offers(&node, 4).await;
    let containers = [("init", 2, true), ("a", 1, false), ("b", 2, false)];
    node.kubelet
        .admit_whole("u1", "train", &containers)
        .await
        .expect("there are three");
    let init = started(&node, "u1", "init").await;
    let (a, b) = (
        started(&node, "u1", "a").await,
        started(&node, "u1", "b").await,
    );
    assert!(a.is_disjoint(&b), "{a:?} {b:?}");
    assert!(init.is_subset(&a.union(&b).cloned().collect()));
    node.kill_agent();
    node.start_agent().await;
    assert_eq!(started(&node, "u1", "b").await, b);
    assert_eq!(started(&node, "u1", "a").await, a);
    offers(&node, 4).await;
    assert_eq!(node.kubelet.free(RESOURCE_WHOLE).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_the_card_of_one_that_is_leaving() {
    let node = FakeNode::new(1, 4).await;
    offers(&node, 1).await;
    let one = [("main", 1, false)];
    for number in 0..5 {
        let uid = format!("u{number}");
        let admitted = node.kubelet.admit_whole(&uid, "train", &one).await;
        admitted.expect("the pod before has left it");
        assert_eq!(started(&node, &uid, "main").await.len(), 1);
        node.kubelet.remove(&uid);
    }
}

/// Two hundred pods of both kinds, while the agent is killed now and then: no card is ever given out twice, and at the
/// end the ledger matches the kubelet's state.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_both_kinds_never_meet_on_a_card_whatever_dies() {
    const CARDS: usize = 4;
    let (mut node, mut dice) = (FakeNode::new(CARDS, 50).await, SuiteRng(20_261_121));
    let mut whole: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut shared: BTreeSet<String> = BTreeSet::new();
    let (mut kills, mut started_whole) = (0, 0);
    for number in 0..200 {
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        match dice.roll(20) {
            0 => {
                node.kill_agent();
                node.start_agent().await;
                kills += 1;
            }
            1..=7 => {
                let count = 1 + dice.roll(2);
                let asked = [("main", count, false)];
                if node.kubelet.admit_whole(&uid, &uid, &asked).await.is_ok() {
                    if node.kubelet.before_whole_start(&uid, "main").await.is_err() {
                        // A share was faster. On a real node the pod would keep waiting.
                        node.kubelet.remove(&uid);
                        continue;
                    }
                    whole.insert(uid.clone(), started(&node, &uid, "main").await);
                    started_whole += 1;
                }
            }
            8..=13 => {
                let card = dice.roll(CARDS);
                if node.place(&uid, card, 500).await.is_some()
                    && node.kubelet.admit(&uid, &uid, &["main"]).await.is_ok()
                {
                    node.kubelet
                        .before_start(&uid)
                        .await
                        .expect("it was placed");
                    shared.insert(uid);
                }
            }
            14..=16 => {
                if let Some(uid) = whole.keys().nth(dice.roll(whole.len())).cloned() {
                    whole.remove(&uid);
                    node.kubelet.remove(&uid);
                }
            }
            _ => {
                if let Some(uid) = shared.iter().nth(dice.roll(shared.len())).cloned() {
                    shared.remove(&uid);
                    node.kubelet.remove(&uid);
                }
            }
        }
        apart(&node, &whole).await;
    }
    assert!(
        kills > 0 && started_whole > 10,
        "{kills} kills, {started_whole} whole"
    );
    let held: BTreeSet<String> = whole.keys().chain(&shared).cloned().collect();
    assert_eq!(
        node.kubelet.pods().into_iter().collect::<BTreeSet<_>>(),
        held
    );
    node.eventually("the ledger is what the kubelet has", async |list| {
        let allocated = list.allocations.iter().filter_map(pod_of);
        let allocated: BTreeSet<_> = allocated.map(str::to_owned).collect();
        allocated == held && list.allocations.len() == held.len()
    })
    .await;
    for uid in held {
        node.kubelet.remove(&uid);
    }
    node.eventually("everything is given back", async |list| {
        list.allocations.is_empty()
    })
    .await;
    offers(&node, CARDS).await;
    assert_eq!(node.grants(), 0, "within {PATIENCE:?}");
}

/// No other pod has anything of a card that a pod has whole.
async fn apart(node: &FakeNode, whole: &BTreeMap<String, BTreeSet<String>>) {
    let list = node.list().await;
    for (uid, cards) in whole {
        for card in cards {
            let on_it = list.allocations.iter();
            let on_it = on_it.filter(|of| of.grants.iter().any(|grant| grant.card == *card));
            let pods: Vec<_> = on_it.map(|of| (of.name.clone(), pod_of(of))).collect();
            assert!(
                pods.iter().all(|(_, pod)| *pod == Some(uid)) && !pods.is_empty(),
                "{card} of {uid} is that of {pods:?}"
            );
        }
    }
}
