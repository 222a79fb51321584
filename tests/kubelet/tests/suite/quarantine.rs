//! What must not change while a program lives that nothing sees any more, or that an older agent started: its slot, and
//! the library that it has mapped.

use std::fs;

use apportion_abi::names::RESOURCE_SLOT;
use apportion_kubelet_tests::{FakeNode, mounted};
use apportion_tests::{CONTEXT, MIB};

use crate::delivery::start;

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_nobodys_until_the_last_process_of_its_pod_has_ended() {
    let node = FakeNode::new(1, 1).await;
    node.place("u1", 0, 2000).await.expect("the card is empty");
    let slot = node.kubelet.admit("u1", "first", &["main"]).await;
    let slot = slot.expect("a slot is free");
    node.kubelet
        .before_start("u1")
        .await
        .expect("it was placed");
    let grant = node.grant(&slot).expect("the container may start");
    let mut victim = start(&node, &grant);
    victim.step(&format!("alloc {}", 1000 * MIB)).ok();

    node.kubelet.remove("u1");
    node.eventually("the slot is withdrawn", async |_| {
        node.kubelet.offered(RESOURCE_SLOT).is_empty()
    })
    .await;
    assert_eq!(node.grant(&slot), None, "nothing starts on it");
    // The kubelet has chosen the slot before it learned that.
    node.place("u2", 0, 500).await.expect("the card has room");
    let handed = node
        .kubelet
        .admit_to("u2", "second", &["main"], slot.clone());
    handed
        .await
        .expect("the pod before is gone for the kubelet");
    let refused = node.kubelet.before_start("u2").await;
    let refused = refused.expect_err("a process of the first pod lives");
    assert!(refused.message().contains("are still running"), "{refused}");
    victim.step(&format!("alloc {}", 1000 * MIB - CONTEXT)).ok();
    victim.step("alloc 1").refused();

    assert!(victim.end().success());
    node.eventually("the slot is offered again", async |_| {
        node.kubelet.offered(RESOURCE_SLOT) == [slot.as_str()]
    })
    .await;
    node.kubelet.before_start("u2").await.expect("it is alone");
    let grant = node.grant(&slot).expect("the container may start");
    assert_eq!(grant["annotations"]["apportion.dev/pod"], "u2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_goes_on_with_its_library_when_a_newer_agent_brings_another() {
    let mut node = FakeNode::new(1, 4).await;
    node.place("u1", 0, 1000).await.expect("the card is empty");
    node.place("u2", 0, 1000).await.expect("the card has room");
    let library = "/.apportion/libapportion_cuda.so";
    let old = node.started("u1").await;
    let before = fs::read(mounted(&old, library)).expect("it is there");
    let mut first = start(&node, &old);
    first.step(&format!("alloc {}", 300 * MIB)).ok();

    // The same library with extra bytes at its end has another checksum.
    let newer = node.host.dir().join("newer");
    copy(&node.host.libraries(), &newer);
    let file = newer.join("libapportion_cuda.so");
    fs::write(&file, [&before[..], b"newer"].concat()).expect("the folder is writable");
    node.kill_agent();
    node.start_agent_of(&newer).await;
    let new = node.started("u2").await;
    let (old, new_at) = (mounted(&old, library), mounted(&new, library));
    assert_ne!(old, new_at, "a file of that name is never another");
    // A container has mounted the file, whether or not it still has a name.
    let named = fs::read(&old);
    assert!(named.is_err() || named.is_ok_and(|now| now == before));
    let mut second = start(&node, &new);
    for victim in [&mut first, &mut second] {
        victim.step(&format!("alloc {}", 300 * MIB)).ok();
        victim.step(&format!("alloc {}", 1000 * MIB)).refused();
    }
    for mut victim in [first, second] {
        assert!(victim.end().success());
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).expect("the folder is writable");
    for entry in fs::read_dir(from).expect("it is staged").flatten() {
        let place = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).expect("it can be read");
        }
    }
}
