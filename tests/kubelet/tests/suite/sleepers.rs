//! Pods that burst sleep for a guarantee that is called in, and wake with all that they had.

use std::time::{Duration, Instant};

use apportion_kubelet_tests::{FakeNode, PodsApi, of_scheduler};
use apportion_proto::v1::{
    Allocation, Event, EventKind, SuspensionState, WatchRequest, allocate_reply, watch_reply,
};
use apportion_tests::{MIB, MachineConfig, PATIENCE, VictimProcess, cards};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

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

/// A pod with a guarantee of 2000 MiB that uses 5900 MiB.
async fn bursting(node: &FakeNode, name: &str) -> VictimProcess {
    let placed = node.place_elastic(name, 0, 2000, 9000).await;
    placed.expect("its guarantee fits");
    let grant = node.started(name).await;
    let mut program = node.program(&grant, name);
    program.fill(HELD);
    program
}

/// A program with a guarantee that fits beside the guarantee of the pod, and not beside its use.
fn newcomer(node: &FakeNode) -> VictimProcess {
    let options = ["--gpu-memory", "6000", "--name", "newcomer"];
    let mut program = node.host.victim(&options);
    program.fill(HELD);
    program
}

pub(crate) async fn comes_to_be(node: &FakeNode, uid: &str, wanted: SuspensionState) {
    let what = format!("{uid} is {}", wanted.as_str_name());
    node.eventually(&what, async |list| {
        let mut all = list.allocations.iter();
        all.any(|of| of.idempotency_key == uid && of.suspension() == wanted)
    })
    .await;
}

/// The events from here on.
pub(crate) async fn events(node: &FakeNode) -> mpsc::UnboundedReceiver<Event> {
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

pub(crate) async fn message(
    events: &mut mpsc::UnboundedReceiver<Event>,
    kind: EventKind,
) -> String {
    loop {
        let event = events.recv().await.expect("the agent serves");
        if event.kind() == kind {
            return event.message;
        }
    }
}

pub(crate) fn is_suspended(node: &FakeNode, pod: &str) -> Option<f64> {
    let labels = ["namespace=\"team\"", &format!("pod=\"{pod}\"")];
    node.host.metric("apportion_container_suspended", &labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_bursts_sleeps_for_a_guarantee_and_wakes_with_all_that_it_had() {
    let node = FakeNode::of(&machine(), 4, &OPTIONS).await;
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
    sleeper.assert_intact(HELD);
    sleeper.step("alloc 1000M").ok();
    assert!(node.host.high_water() <= CARD * MIB);
    assert!(sleeper.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_again_wakes_a_pod_that_sleeps() {
    let mut node = FakeNode::of(&machine(), 4, &OPTIONS).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    let mut guest = newcomer(&node);
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    node.kill_agent();
    // This one suspends nobody.
    node.start_agent().await;
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    guest.assert_intact(HELD);
    assert!(guest.end().success());
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    sleeper.assert_intact(HELD);
    assert!(sleeper.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_asleep_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let node = FakeNode::of(&machine(), 4, &OPTIONS).await;
        let mut sleeper = bursting(&node, "sleeper").await;
        let mut guest = newcomer(&node);
        comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
        sleeper.signal(signal);
        assert!(!sleeper.wait().success());
        node.kubelet.remove("sleeper");
        node.eventually("the pod is gone", async |list| list.allocations.len() == 1)
            .await;
        guest.assert_intact(HELD);
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
    let node = FakeNode::of(&machine(), 4, &OPTIONS).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    let mut guest = newcomer(&node);
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    sleeper.signal(Signal::SIGKILL);
    let _ = sleeper.wait();
    // It needs nothing back, so it does not wait for the newcomer's end.
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    let next = node.kubelet.before_start("sleeper").await;
    next.expect("its container may start again");
    guest.assert_intact(HELD);
    assert!(guest.end().success());
}

/// Proposes a pod as a scheduler does: it sends its term, and asks again.
async fn proposed(node: &FakeNode, uid: &str, mib: u64) -> allocate_reply::Result {
    let request = of_scheduler(node.request(uid, 0, mib).await);
    let reply = node.client().await.allocate(request).await;
    let result = reply.expect("it is well formed").into_inner().result;
    result.expect("it is not empty")
}

/// Proposes a pod until it has its reservation.
async fn placed_in_the_end(node: &FakeNode, uid: &str, mib: u64) -> Allocation {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match proposed(node, uid, mib).await {
            allocate_reply::Result::Allocation(allocation) => return allocation,
            allocate_reply::Result::Shortfall(shortfall) => {
                assert!(shortfall.called_in, "{}", shortfall.sentence);
                assert!(Instant::now() < deadline, "{}", shortfall.sentence);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_guarantee_is_told_to_ask_again_and_gets_what_another_pod_lent() {
    let node = FakeNode::of(&machine(), 4, &OPTIONS).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    let begun = Instant::now();
    let allocate_reply::Result::Shortfall(first) = proposed(&node, "guest", 6000).await else {
        panic!("the memory is in use");
    };
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "a scheduler waits for 5 seconds"
    );
    assert!(first.called_in, "{}", first.sentence);
    assert!(first.sentence.contains("called in"), "{}", first.sentence);
    let reserved = placed_in_the_end(&node, "guest", 6000).await;
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    let calls = |result: &str| {
        let label = format!("result=\"{result}\"");
        node.host
            .metric("apportion_guarantee_calls_total", &[&label])
    };
    node.eventually("the call is counted", async |_| {
        calls("suspended") == Some(1.0)
    })
    .await;
    let grant = node.started("guest").await;
    let mut guest = node.program(&grant, "guest");
    guest.fill(HELD);
    assert!(guest.end().success());
    node.release(&reserved.id).await;
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    sleeper.assert_intact(HELD);
    assert!(node.host.high_water() <= CARD * MIB);
    assert!(sleeper.end().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_call_fails_is_refused_with_the_reason_and_calls_no_more() {
    let node = FakeNode::of(&machine(), 4, &OPTIONS).await;
    let placed = node.place_elastic("stuck", 0, 2000, 9000).await;
    placed.expect("its guarantee fits");
    let grant = node.started("stuck").await;
    let mut stuck = node.program(&grant, "stuck");
    stuck.step("managed 5600M").ok();
    let deadline = Instant::now() + PATIENCE;
    let refused = loop {
        let allocate_reply::Result::Shortfall(shortfall) = proposed(&node, "guest", 6000).await
        else {
            panic!("managed memory cannot be moved");
        };
        if !shortfall.called_in {
            break shortfall.sentence;
        }
        assert!(Instant::now() < deadline, "{}", shortfall.sentence);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(
        refused.contains("team/stuck cannot be suspended"),
        "{refused}"
    );
    let allocate_reply::Result::Shortfall(again) = proposed(&node, "guest", 6000).await else {
        panic!("nothing has changed");
    };
    assert!(!again.called_in, "its scheduler looks elsewhere");
    stuck.step("alloc 500M").ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_agent_places_itself_waits_until_another_sleeps() {
    let options = [&OPTIONS[..], &["--unplaced", "local-fit"]].concat();
    let mut node = FakeNode::of(&machine(), 4, &options).await;
    let pods = PodsApi::listen(&node.host.dir().join("kubelet"));
    // The agent reads the pods when it starts, and again after a while.
    node.kill_agent();
    node.start_agent_with(&options).await;
    let mut sleeper = bursting(&node, "sleeper").await;
    pods.has("guest", "guest", &[("gpu-memory", "6000")]);
    let grant = node.started("guest").await;
    let mut guest = node.program(&grant, "guest");
    guest.fill(HELD);
    comes_to_be(&node, "sleeper", SuspensionState::Suspended).await;
    assert!(guest.end().success());
    pods.is_finished("guest");
    node.kubelet.remove("guest");
    comes_to_be(&node, "sleeper", SuspensionState::Running).await;
    sleeper.assert_intact(HELD);
    assert!(sleeper.end().success());
}
