//! Another device plugin that gives out the same cards.

use apportion_abi::names::RESOURCE_WHOLE;
use apportion_kubelet_tests::{FakeNode, PodOf, pod_of};
use apportion_proto::v1::{AllocateRequest, Share};
use apportion_tests::MIB;

use crate::whole::offers;

/// Requests the smallest share of a card.
async fn ask(node: &FakeNode, card: &str, key: &str) -> Result<(), tonic::Status> {
    let share = Share {
        card: card.to_owned(),
        bytes: 2 * MIB,
        limit_bytes: 0,
    };
    let request = AllocateRequest {
        idempotency_key: key.to_owned(),
        name: key.to_owned(),
        shares: vec![share],
        ttl_ms: 60_000,
        ..AllocateRequest::default()
    };
    node.client().await.allocate(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_another_plugin_serves_cards_none_is_shared_also_without_whole_cards_of_ours() {
    let mut node = FakeNode::without_wholes(2, 4).await;
    let card = node.list().await.cards.swap_remove(0).uuid;
    ask(&node, &card, "before")
        .await
        .expect("nobody else gives cards");
    let socket = node
        .host
        .dir()
        .join("kubelet/device-plugins/nvidia-gpu.sock");
    let other = std::os::unix::net::UnixListener::bind(&socket).expect("the folder is ours");
    let number = std::cell::Cell::new(0);
    node.eventually("no share is given", async |_| {
        number.set(number.get() + 1);
        let refused = ask(&node, &card, &format!("a{}", number.get())).await.err();
        refused.is_some_and(|refused| refused.message().contains("another device plugin"))
    })
    .await;
    // An agent that starts beside the plugin grants nothing from the start.
    node.kill_agent();
    node.start_agent_without_wholes().await;
    let refused = ask(&node, &card, "later").await;
    refused.expect_err("the other plugin is still there");
    drop(other);
    std::fs::remove_file(&socket).expect("it was ours");
    node.eventually("shares are given again", async |_| {
        number.set(number.get() + 1);
        ask(&node, &card, &format!("b{}", number.get()))
            .await
            .is_ok()
    })
    .await;
}

/// The devices of NVIDIA's DRA driver are known only by their device numbers if nothing else names them.
#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_a_claim_got_is_nobody_elses_until_its_pod_is_gone() {
    let node = FakeNode::without_wholes(2, 4).await;
    let cards = node.list().await.cards;
    node.kubelet.enter(PodOf {
        uid: "theirs".to_owned(),
        name: "theirs".to_owned(),
        claimed: vec!["gpu-1".to_owned()],
        ..PodOf::default()
    });
    node.eventually("the pod has the card", async |list| {
        let mut its = list.allocations.iter();
        its.any(|of| of.name == "team/theirs" && of.grants[0].card == cards[1].uuid)
    })
    .await;
    ask(&node, &cards[0].uuid, "first")
        .await
        .expect("the other card is free");
    assert!(
        node.place("u1", 1, 2).await.is_none(),
        "the card is the claim's"
    );
    node.kubelet.remove("theirs");
    node.eventually("the card is back", async |list| {
        list.cards[1].free_bytes == list.cards[1].allocatable_bytes
    })
    .await;
    ask(&node, &cards[1].uuid, "second")
        .await
        .expect("the card is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_another_plugin_serves_cards_none_is_given_and_it_is_said_how_to_turn_it_off() {
    let mut node = FakeNode::new(1, 4).await;
    offers(&node, 1).await;
    let before = node.kubelet.registrations_of(RESOURCE_WHOLE);
    let socket = node
        .host
        .dir()
        .join("kubelet/device-plugins/nvidia-gpu.sock");
    let other = std::os::unix::net::UnixListener::bind(&socket).expect("the folder is ours");
    let card = node.list().await.cards.swap_remove(0).uuid;
    let number = std::cell::Cell::new(0);
    node.eventually("no share is given", async |_| {
        number.set(number.get() + 1);
        let refused = ask(&node, &card, &format!("a{}", number.get())).await.err();
        refused.is_some_and(|refused| {
            refused
                .message()
                .contains("nvidia.com/gpu.deploy.device-plugin=false")
        })
    })
    .await;
    node.eventually("no whole card is offered", async |_| {
        node.kubelet.offered(RESOURCE_WHOLE).is_empty()
    })
    .await;
    drop(other);
    std::fs::remove_file(&socket).expect("it was ours");
    node.kubelet.await_plugin_of(RESOURCE_WHOLE, before).await;
    node.eventually("shares are given again", async |_| {
        number.set(number.get() + 1);
        ask(&node, &card, &format!("b{}", number.get()))
            .await
            .is_ok()
    })
    .await;
}

/// NVIDIA's plugin may use any socket and any resource name. What it gave out belongs to its pods even after it has
/// stopped.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_plugin_gave_a_pod_is_nobody_elses_as_long_as_the_pod_is_there() {
    const SHARED: &str = "nvidia.com/gpu.shared";
    let node = FakeNode::new(2, 4).await;
    offers(&node, 2).await;
    let list = node.list().await;
    let [first, second] = [0, 1].map(|card| list.cards[card].uuid.clone());
    let replica = format!("{first}::0");
    node.kubelet.offer_of_another(SHARED, &[&replica]);
    node.kubelet.enter(PodOf {
        uid: "theirs".to_owned(),
        name: "theirs".to_owned(),
        whole: vec![("main".to_owned(), vec![replica])],
        ..PodOf::default()
    });
    node.eventually("the pod has the card", async |list| {
        let mut all = list.allocations.iter();
        let its = all.find(|of| pod_of(of) == Some("theirs"));
        its.is_some_and(|of| of.name == "team/theirs" && of.grants[0].card == first)
    })
    .await;
    let asked = async |card: &str, key: &str| {
        let request = AllocateRequest {
            idempotency_key: key.to_owned(),
            name: format!("team/{key}"),
            shares: vec![Share {
                card: card.to_owned(),
                bytes: 2 * MIB,
                limit_bytes: 0,
            }],
            ttl_ms: 60_000,
            ..AllocateRequest::default()
        };
        node.client().await.allocate(request).await
    };
    let refused = async |key: &str| asked(&second, key).await.err();
    node.eventually("nothing of any card is given", async |_| {
        let said = refused("early").await.map(|said| said.message().to_owned());
        said.is_some_and(|said| {
            said.contains("another device plugin (the one of nvidia.com/gpu.shared)")
        })
    })
    .await;

    node.kubelet.offer_of_another(SHARED, &[]);
    node.eventually("the other card is given again", async |_| {
        asked(&second, "late").await.is_ok()
    })
    .await;
    assert!(node.place("u1", 0, 2).await.is_none(), "the card is theirs");
    let one = [("main", 1, false)];
    let whole = node.kubelet.admit_whole("u2", "whole", &one).await;
    whole.expect_err("the one card is theirs, the other is shared");

    node.kubelet.remove("theirs");
    node.eventually("the card is back", async |list| {
        list.cards[0].free_bytes == list.cards[0].allocatable_bytes
    })
    .await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
}
