//! Pods that are suspended when they are idle: a call of their programs wakes them, they keep what they were promised, and
//! they run where they cannot be suspended.

use std::time::Duration;

use apportion_kubelet_tests::{FakeNode, PodsApi};
use apportion_proto::v1::{EventKind, SuspensionState};
use apportion_tests::{MIB, MachineConfig, VictimProcess, cards};
use nix::sys::signal::Signal;

use crate::sleepers::{comes_to_be, events, is_suspended, message};

/// What programs can get of the card.
const CARD: u64 = 10_000;
/// What the idle pod is guaranteed, in MiB.
const SHARE: u64 = 6000;
/// What its program allocates, beside its context.
const HELD: &str = "5600M";
const OPTIONS: [&str; 2] = ["--suspend-when-idle-min", "1s"];
const LENDS: [&str; 2] = ["--burst-reclaim", "suspend"];

fn machine() -> MachineConfig {
    let mut machine = cards(1);
    machine.cards[0].memory = CARD * MIB + machine.cards[0].reserved;
    machine
}

async fn node(more: &[&str]) -> FakeNode {
    FakeNode::of(&machine(), 4, &[&OPTIONS, more].concat()).await
}

async fn filled(node: &FakeNode, uid: &str) -> VictimProcess {
    let grant = node.started(uid).await;
    let mut program = node.program(&grant, uid);
    program.fill(HELD);
    program
}

/// A pod that is guaranteed 2000 MiB and may use 9000.
async fn bursting(node: &FakeNode, uid: &str) -> VictimProcess {
    let placed = node.place_elastic(uid, 0, 2000, 9000).await;
    placed.expect("its guarantee fits");
    let grant = node.started(uid).await;
    node.program(&grant, uid)
}

async fn falls_asleep(node: &FakeNode, uid: &str) {
    comes_to_be(node, uid, SuspensionState::Suspended).await;
    // A sample shows that the driver has the memory back.
    let what = "its memory is free";
    node.eventually(what, async |list| {
        let mut all = list.allocations.iter();
        let found = all.find(|of| of.idempotency_key == uid);
        found.is_some_and(|of| of.idle && of.grants[0].nvml_bytes == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_pod_sleeps_keeps_its_guarantee_and_wakes_by_a_call() {
    let node = node(&[]).await;
    let mut events = events(&node).await;
    node.place_idle("server", 0, SHARE, Duration::from_secs(1))
        .await;
    let mut server = filled(&node, "server").await;
    falls_asleep(&node, "server").await;
    assert_eq!(node.host.used(), 0, "the driver has all back");
    assert_eq!(is_suspended(&node, "server"), Some(1.0));
    let said = message(&mut events, EventKind::Idle).await;
    assert!(said.contains("did not use the GPU"), "{said}");
    let free = node.list().await.cards[0].free_bytes;
    assert_eq!(free, (CARD - SHARE) * MIB, "it keeps its guarantee");
    assert!(node.place("next", 0, CARD - SHARE + 2).await.is_none());
    let next = node.kubelet.before_start("server").await;
    next.expect("a sleeper keeps its grant");

    // This agent suspends nobody for a guarantee, so it lends nothing.
    let mut bursts = bursting(&node, "bursts").await;
    bursts.step(&format!("alloc {}M", CARD - SHARE - 300)).ok();
    bursts.step("alloc 2M").refused();
    server.assert_intact(HELD);
    comes_to_be(&node, "server", SuspensionState::Running).await;
    message(&mut events, EventKind::Called).await;
    assert!(node.host.high_water() <= CARD * MIB);
    assert!(server.end().success() && bursts.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_idle_pod_is_guaranteed_is_lent_to_another_until_it_is_called() {
    let node = node(&LENDS).await;
    node.place_idle("server", 0, SHARE, Duration::from_secs(1))
        .await;
    let mut server = filled(&node, "server").await;
    falls_asleep(&node, "server").await;
    let mut bursts = bursting(&node, "bursts").await;
    bursts.fill("8000M");
    assert!(node.place("next", 0, CARD - SHARE).await.is_none());

    server.assert_intact(HELD);
    comes_to_be(&node, "bursts", SuspensionState::Suspended).await;
    falls_asleep(&node, "server").await;
    // Now the other one borrows it again.
    comes_to_be(&node, "bursts", SuspensionState::Running).await;
    bursts.assert_intact("8000M");
    server.assert_intact(HELD);
    assert!(node.host.high_water() <= CARD * MIB);
    assert!(server.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_again_wakes_an_idle_pod_that_is_called() {
    let mut node = node(&[]).await;
    node.place_idle("server", 0, SHARE, Duration::from_secs(1))
        .await;
    let mut server = filled(&node, "server").await;
    falls_asleep(&node, "server").await;
    node.kill_agent();
    server.begin(&format!("check 0 {HELD}"));
    node.start_agent_with(&OPTIONS).await;
    assert_eq!(server.finish().value(), 0);
    comes_to_be(&node, "server", SuspensionState::Running).await;
    falls_asleep(&node, "server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_while_it_is_idle_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let node = node(&LENDS).await;
        node.place_idle("server", 0, SHARE, Duration::from_secs(1))
            .await;
        let mut server = filled(&node, "server").await;
        falls_asleep(&node, "server").await;
        server.signal(signal);
        assert!(!server.wait().success());
        node.kubelet.remove("server");
        node.eventually("all is free", async |list| {
            list.allocations.is_empty() && list.cards[0].free_bytes == CARD * MIB
        })
        .await;
        assert_eq!(node.host.used(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_be_suspended_runs_and_is_told_why_once() {
    let node = node(&[]).await;
    let mut events = events(&node).await;
    // Less than the agent's minimum, which it takes instead.
    node.place_idle("stuck", 0, SHARE, Duration::from_millis(1))
        .await;
    let grant = node.started("stuck").await;
    let mut stuck = node.program(&grant, "stuck");
    stuck.step("managed 1000M").ok();
    let said = message(&mut events, EventKind::StaysAwake).await;
    assert!(
        said.starts_with("Share is not suspended when idle: process ")
            && said.contains("managed memory"),
        "{said}"
    );
    stuck.step("alloc 100M").ok();
    let failed = || {
        let labels = ["action=\"suspend\"", "result=\"failed\""];
        node.host
            .metric("apportion_idle_suspensions_total", &labels)
    };
    node.eventually("it is tried again", async |_| failed() >= Some(2.0))
        .await;
    assert!(events.try_recv().is_err(), "once is enough");
    assert!(stuck.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_agent_places_itself_sleeps_when_it_is_idle() {
    let options = [&OPTIONS[..], &["--unplaced", "local-fit"]].concat();
    let mut node = FakeNode::of(&machine(), 4, &options).await;
    let pods = PodsApi::listen(&node.host.dir().join("kubelet"));
    // The agent reads the pods when it starts, and again after a while.
    node.kill_agent();
    node.start_agent_with(&options).await;
    let asked = [
        ("gpu-memory", "6000"),
        ("apportion.dev/suspend-when-idle", "1s"),
    ];
    pods.has("server", "server", &asked);
    let mut server = filled(&node, "server").await;
    falls_asleep(&node, "server").await;
    server.assert_intact(HELD);
    assert!(server.end().success());
}
