//! A slot that the kubelet gives to two pods, as it does when it makes a list for somebody while it waits for
//! the plugin's answer: the second is refused, and whatever the books say, no other slot suffers.

use apportion_kubelet_tests::PodOf;

use crate::node::Node;

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_a_running_pod_holds_is_refused_to_another() {
    let node = Node::new(1, 4).await;
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
    let sentence = format!("slot {slot} is held by pod team/first already");
    assert_eq!(refused.message(), sentence);
    node.kubelet
        .before_start("u1")
        .await
        .expect("its container starts again");

    // Once it has left, the slot is any pod's.
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
    let node = Node::new(1, 4).await;
    for uid in ["u1", "u2", "u3"] {
        node.place(uid, 0, 2000).await.expect("the card has room");
    }
    let slot = node.kubelet.admit("u1", "first", &["main"]).await;
    let slot = slot.expect("a slot is free");
    node.kubelet.enter(PodOf {
        uid: "u2".to_owned(),
        name: "second".to_owned(),
        devices: vec![("main".to_owned(), slot.clone())],
        whole: Vec::new(),
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

    // The next pod that the kubelet admits takes what has ended off its record.
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
