//! Pods that their scheduler suspends: others get what was guaranteed to them, and they go on with all that they had.

use std::time::Duration;

use apportion_kubelet_tests::{FakeNode, of_scheduler};
use apportion_proto::v1::{
    EventKind, ResumeReply, ResumeRequest, Shortfall, SuspendReply, SuspendRequest,
    SuspensionState, resume_reply,
};
use apportion_tests::{MIB, MachineConfig, VictimProcess, cards};
use nix::sys::signal::Signal;
use serde_json::Value;
use tonic::{Code, Status};

use crate::sleepers::{comes_to_be, events, is_suspended, message};

/// What programs can get of the card.
const CARD: u64 = 10_000;
/// What the pod is guaranteed, in MiB.
const SHARE: u64 = 6000;
/// What its program allocates, beside its context.
const HELD: &str = "5600M";

fn machine() -> MachineConfig {
    let mut machine = cards(1);
    machine.cards[0].memory = CARD * MIB + machine.cards[0].reserved;
    machine
}

async fn suspend(node: &FakeNode, id: &str) -> Result<SuspendReply, Status> {
    let request = of_scheduler(SuspendRequest { id: id.to_owned() });
    let reply = node.client().await.suspend(request).await;
    reply.map(tonic::Response::into_inner)
}

async fn resume(node: &FakeNode, id: &str) -> Result<(), Shortfall> {
    let request = of_scheduler(ResumeRequest { id: id.to_owned() });
    let reply = node.client().await.resume(request).await;
    let ResumeReply { result, .. } = reply.expect("it may be resumed").into_inner();
    match result.expect("it is not empty") {
        resume_reply::Result::Allocation(_) => Ok(()),
        resume_reply::Result::Shortfall(shortfall) => Err(shortfall),
    }
}

/// A pod whose program has most of its share: the program, the allocation's id, and what its container gets.
async fn running(node: &FakeNode, name: &str) -> (VictimProcess, String, Value) {
    let placed = node.place(name, 0, SHARE).await.expect("it fits");
    let grant = node.started(name).await;
    let mut program = node.program(&grant, name);
    program.fill(HELD);
    (program, placed.id, grant)
}

async fn free(node: &FakeNode) -> u64 {
    node.list().await.cards[0].free_bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn another_pod_gets_the_guarantee_and_the_sleeper_goes_on_with_all_that_it_had() {
    let mut node = FakeNode::of(&machine(), 4, &[]).await;
    assert!(node.list().await.node.expect("it is said").can_suspend);
    let (mut lender, id, _) = running(&node, "lender").await;
    let mut events = events(&node).await;
    let by_client = node.client().await;
    let by_client = { by_client }
        .suspend(SuspendRequest { id: id.clone() })
        .await;
    let refused = by_client.expect_err("a client may not");
    assert!(refused.message().contains("pod"), "{refused}");

    let reply = suspend(&node, &id).await.expect("its scheduler may");
    assert!(
        reply.changed && reply.moved_bytes >= 5600 * MIB,
        "{reply:?}"
    );
    let said = message(&mut events, EventKind::Suspended).await;
    assert!(
        said.ends_with("because the pod's scheduler needs what was guaranteed to it"),
        "{said}"
    );
    assert_eq!(free(&node).await, CARD * MIB, "all of it is free");
    assert_eq!(is_suspended(&node, "lender"), Some(1.0));
    let cause = ["cause=\"scheduler\""];
    assert_eq!(
        node.host.metric("apportion_suspended_shares", &cause),
        Some(1.0)
    );

    let guest = node.place("guest", 0, 9000).await.expect("there is room");
    let grant = node.started("guest").await;
    let mut other = node.program(&grant, "guest");
    other.fill("8600M");
    let short = resume(&node, &id).await.expect_err("there is no room");
    assert!(short.sentence.contains("guest"), "{}", short.sentence);
    // Nobody but its scheduler wakes it.
    node.kill_agent();
    node.start_agent().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    comes_to_be(&node, "lender", SuspensionState::Suspended).await;

    other.assert_intact("8600M");
    assert!(other.end().success());
    node.release(&guest.id).await;
    node.eventually("the guest is gone", async |list| {
        list.allocations.len() == 1
    })
    .await;
    resume(&node, &id).await.expect("there is room");
    lender.assert_intact(HELD);
    assert_eq!(free(&node).await, (CARD - SHARE) * MIB);
    lender.step("alloc 50M").ok();
    assert!(node.host.high_water() <= CARD * MIB);
    assert!(lender.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_starts_while_its_pod_sleeps_waits_until_it_is_resumed() {
    let node = FakeNode::of(&machine(), 4, &[]).await;
    let (mut lender, id, grant) = running(&node, "lender").await;
    suspend(&node, &id).await.expect("its scheduler may");
    let guest = node.place("guest", 0, 9000).await.expect("there is room");
    lender.signal(Signal::SIGKILL);
    let _ = lender.wait();
    let next = node.kubelet.before_start("lender").await;
    next.expect("its container may start again");
    let handle = tokio::runtime::Handle::current();
    let mut program = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                let mut program = node.program(&grant, "again");
                program.fill(HELD);
                program
            });
            std::thread::sleep(Duration::from_millis(700));
            assert!(!starting.is_finished(), "it takes memory that is another's");
            handle.block_on(async {
                node.release(&guest.id).await;
                node.eventually("the guest is gone", async |list| {
                    list.allocations.len() == 1
                })
                .await;
                resume(&node, &id).await.expect("there is room");
            });
            starting.join().expect("it goes on")
        })
    });
    program.assert_intact(HELD);
    assert!(program.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_sleep_keeps_everything() {
    let node = FakeNode::of(&machine(), 4, &[]).await;
    let placed = node.place("stuck", 0, SHARE).await.expect("it fits");
    let grant = node.started("stuck").await;
    let mut stuck = node.program(&grant, "stuck");
    stuck.step("managed 5000M").ok();
    let refused = suspend(&node, &placed.id)
        .await
        .expect_err("it cannot sleep");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert_eq!(free(&node).await, (CARD - SHARE) * MIB);
    stuck.step("alloc 100M").ok();
    assert!(stuck.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_asleep_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let node = FakeNode::of(&machine(), 4, &[]).await;
        let (mut lender, id, _) = running(&node, "lender").await;
        suspend(&node, &id).await.expect("its scheduler may");
        lender.signal(signal);
        assert!(!lender.wait().success());
        node.kubelet.remove("lender");
        node.eventually("all is free", async |list| {
            list.allocations.is_empty() && list.cards[0].free_bytes == CARD * MIB
        })
        .await;
        assert_eq!(node.host.used(), 0);
    }
}
