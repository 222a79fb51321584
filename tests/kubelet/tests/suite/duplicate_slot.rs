//! A slot that the kubelet gives to two pods. That happens when it answers a list request while it waits for the
//! plugin. The second pod is refused, and no other slot is affected.

use apportion_kubelet_tests::{FakeNode, PodOf, pod_of};

const ONE: [(&str, usize, bool); 1] = [("main", 1, false)];

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_a_running_pod_holds_is_refused_to_another() {
    let node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node.kubelet.admit("u1", "first", &["main"]).await;
    let slot = slot.expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("it was placed");

    let again = node
        .kubelet
        .admit_to("u2", "second", &["main"], slot.clone());
    let refused = again.await.expect_err("the first pod holds it");
    let sentence = format!("slot {slot} is already held by pod team/first");
    assert_eq!(refused.message(), sentence);
    node.kubelet
        .before_start("u1")
        .await
        .expect("its container starts again");

    // Once the pod has ended, any pod can get the slot.
    node.kubelet.remove("u1");
    node.eventually("the first pod's share is given back", async |list| {
        list.allocations.is_empty()
    })
    .await;
    node.place("u3", 0, 2000).await.expect("the card is empty");
    let third = node.kubelet.admit_to("u3", "third", &["main"], slot).await;
    third.expect("the slot is free");
    node.kubelet
        .before_start("u3")
        .await
        .expect("it was placed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_two_pods_starts_neither_and_the_others_start_as_ever() {
    let node = FakeNode::new(1, 4).await;
    for uid in ["u1", "u2", "u3"] {
        node.place(uid, 0, 2000).await.expect("the card has room");
    }
    let slot = node.kubelet.admit("u1", "first", &["main"]).await;
    let slot = slot.expect("a slot is free");
    node.kubelet.enter(PodOf {
        uid: "u2".to_owned(),
        name: "second".to_owned(),
        devices: vec![("main".to_owned(), slot.clone())],
        ..PodOf::default()
    });
    for uid in ["u1", "u2"] {
        let refused = node.kubelet.before_start(uid).await;
        let refused = refused.expect_err("nobody knows whose container it is");
        assert!(refused.message().contains("two pods"), "{refused}");
    }
    assert_eq!(node.grant(&slot), None);
    let other = node.kubelet.admit("u3", "third", &["main"]).await;
    let other = other.expect("a slot is free");
    node.kubelet
        .before_start("u3")
        .await
        .expect("it was placed");
    assert!(node.grant(&other).is_some());

    // When the kubelet admits the next pod, it removes ended pods from its checkpoint.
    node.kubelet.remove("u1");
    let next = node.kubelet.admit("u4", "fourth", &["main"]).await;
    next.expect("a slot is free");
    node.kubelet
        .before_start("u2")
        .await
        .expect("it is alone now");
    let grant = node.grant(&slot).expect("its container may start");
    assert_eq!(grant["annotations"]["apportion.dev/pod"], "u2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_card_of_two_pods_starts_neither_and_the_other_cards_are_given_as_ever() {
    let node = FakeNode::new(3, 4).await;
    let first = node.kubelet.admit_whole("u1", "first", &ONE).await;
    let device = first.expect("three are idle").whole[0].1[0].clone();
    let started = node.kubelet.before_whole_start("u1", "main").await;
    started.expect("it has its card");
    node.kubelet.enter(PodOf {
        uid: "u2".to_owned(),
        name: "second".to_owned(),
        whole: vec![("main".to_owned(), vec![device.clone()])],
        ..PodOf::default()
    });
    let sentence = format!(
        "the kubelet allocated whole GPU {device} to pod team/first and to team/second; delete one of them"
    );
    for uid in ["u1", "u2"] {
        let refused = node.kubelet.before_whole_start(uid, "main").await;
        let refused = refused.expect_err("nobody knows whose container it is");
        assert_eq!(refused.message(), sentence);
    }
    // Cards and shares of all others are allocated and released.
    node.kubelet
        .admit_whole("u3", "third", &ONE)
        .await
        .expect("one is idle");
    let started = node.kubelet.before_whole_start("u3", "main").await;
    started.expect("it has its card");
    node.place("u4", 2, 2000).await.expect("the card is empty");
    let slot = node.kubelet.admit("u4", "fourth", &["main"]).await;
    slot.expect("a slot is free");
    node.kubelet
        .before_start("u4")
        .await
        .expect("it was placed");
    node.kubelet.remove("u3");
    node.eventually("the third pod's card is given back", async |list| {
        let mut pods = list.allocations.iter().filter_map(pod_of);
        pods.all(|pod| pod != "u3")
    })
    .await;
    let list = node.list().await;
    let its = list.allocations.iter().find(|of| pod_of(of) == Some("u1"));
    assert!(its.is_some(), "what runs keeps its card");

    node.kubelet.remove("u2");
    node.kubelet
        .admit_whole("u5", "fifth", &ONE)
        .await
        .expect("one is idle");
    let again = node.kubelet.before_whole_start("u1", "main").await;
    again.expect("it is alone now");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_card_that_a_running_pod_holds_is_refused_to_another() {
    let node = FakeNode::new(2, 4).await;
    let first = node.kubelet.admit_whole("u1", "first", &ONE).await;
    let device = first.expect("both are idle").whole[0].1[0].clone();
    let again = node.kubelet.hand_whole(std::slice::from_ref(&device)).await;
    let refused = again.expect_err("the first pod holds it");
    let sentence = format!("whole GPU {device} is already held by pod team/first");
    assert_eq!(refused.message(), sentence);
}
