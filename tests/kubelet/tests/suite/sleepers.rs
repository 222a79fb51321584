//! Pods that burst sleep for a guarantee that is called in, and wake with all that they had.

use apportion_proto::v1::{Event, EventKind, SuspensionState, WatchRequest, watch_reply};
use apportion_tests::{MIB, MachineConfig, VictimProcess, cards};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use crate::elastic::{start, started};
use crate::node::Node;

/// What programs can get of the card.
const CARD: u64 = 10_000;
/// What each program allocates, beside its context.
const HELD: &str = "5600M";
const OPTIONS: [&str; 4] = ["--burst-reclaim", "suspend", "--suspend-turn", "1s"];

fn machine() -> MachineConfig {
    let mut machine = cards(1);
    machine.cards[0].memory = CARD * MIB + machine.cards[0].reserved;
    machine
}

fn fill(program: &mut VictimProcess) {
    program.step(&format!("alloc {HELD}")).ok();
    program.step(&format!("mark 0 {HELD}")).ok();
}

#[track_caller]
fn is_intact(program: &mut VictimProcess) {
    assert_eq!(program.step(&format!("check 0 {HELD}")).value(), 0);
}

/// A pod with a guarantee of 2000 MiB that uses 5900 MiB.
async fn bursting(node: &Node, name: &str) -> VictimProcess {
    let placed = node.place_elastic(name, 0, 2000, 9000).await;
    placed.expect("its guarantee fits");
    let grant = started(node, name).await;
    let mut program = start(node, &grant, name);
    fill(&mut program);
    program
}

/// A program with a guarantee that fits beside the guarantee of the pod, and not beside its use.
fn newcomer(node: &Node) -> VictimProcess {
    let options = ["--gpu-memory", "6000", "--name", "newcomer"];
    let mut program = node.host.victim(&options);
    fill(&mut program);
    program
}

async fn comes_to_be(node: &Node, uid: &str, wanted: SuspensionState) {
    let what = format!("{uid} is {}", wanted.as_str_name());
    node.eventually(&what, async |list| {
        let mut all = list.allocations.iter();
        all.any(|of| of.idempotency_key == uid && of.suspension() == wanted)
    })
    .await;
}

/// The events from here on.
async fn events(node: &Node) -> mpsc::UnboundedReceiver<Event> {
    let watched = node.client().await.watch(WatchRequest {}).await;
    let mut stream = watched.expect("the agent serves").into_inner();
    let (sender, events) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(reply)) = stream.message().await {
            if let Some(watch_reply::Item::Event(event)) = reply.item {
                let _ = sender.send(event);
            }
        }
    });
    events
}

async fn message(events: &mut mpsc::UnboundedReceiver<Event>, kind: EventKind) -> String {
    loop {
        let event = events.recv().await.expect("the agent serves");
        if event.kind() == kind {
            return event.message;
        }
    }
}

fn is_suspended(node: &Node, pod: &str) -> Option<f64> {
    let labels = ["namespace=\"team\"", &format!("pod=\"{pod}\"")];
    node.host.metric("apportion_container_suspended", &labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_bursts_sleeps_for_a_guarantee_and_wakes_with_all_that_it_had() {
    let node = Node::of(&machine(), 4, &OPTIONS).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    let mut events = events(&node).await;
    let mut guest = newcomer(&node);
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    let said = message(&mut events, EventKind::Suspended).await;
    assert_eq!(
        said,
        "Allocation suspended: 5900 MiB moved to the host's memory, because what it used above its guarantee was promised to newcomer"
    );
    assert_eq!(is_suspended(&node, "sleeper"), Some(1.0));
    let free = node.list().await.cards[0].free_bytes;
    assert_eq!(free, 2000 * MIB, "the pod keeps its guarantee");
    let next = node.kubelet.before_start("sleeper").await;
    next.expect("a sleeper keeps its grant");

    assert!(guest.end().success());
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    let said = message(&mut events, EventKind::Resumed).await;
    assert_eq!(said, "Allocation resumed: 5900 MiB moved back to the GPU");
    assert_eq!(is_suspended(&node, "sleeper"), Some(0.0));
    is_intact(&mut sleeper);
    sleeper.step("alloc 1000M").ok();
    assert!(node.host.high_water() <= CARD * MIB);
    assert!(sleeper.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_again_wakes_a_pod_that_sleeps() {
    let mut node = Node::of(&machine(), 4, &OPTIONS).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    let mut guest = newcomer(&node);
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    node.kill_agent();
    // This one suspends nobody.
    node.start_agent().await;
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    is_intact(&mut guest);
    assert!(guest.end().success());
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    is_intact(&mut sleeper);
    assert!(sleeper.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_asleep_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let node = Node::of(&machine(), 4, &OPTIONS).await;
        let mut sleeper = bursting(&node, "sleeper").await;
        let mut guest = newcomer(&node);
        comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
        sleeper.signal(signal);
        assert!(!sleeper.wait().success());
        node.kubelet.remove("sleeper");
        node.eventually("the pod is gone", async |list| list.allocations.len() == 1)
            .await;
        is_intact(&mut guest);
        assert!(guest.end().success());
        node.eventually("all is free", async |list| {
            list.allocations.is_empty() && list.cards[0].free_bytes == CARD * MIB
        })
        .await;
        assert_eq!(node.host.used(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_asleep_starts_again_with_its_guarantee() {
    let node = Node::of(&machine(), 4, &OPTIONS).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    let mut guest = newcomer(&node);
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    sleeper.signal(Signal::SIGKILL);
    let _ = sleeper.wait();
    // It needs nothing back, so it does not wait for the newcomer's end.
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    let next = node.kubelet.before_start("sleeper").await;
    next.expect("its container may start again");
    is_intact(&mut guest);
    assert!(guest.end().success());
}
