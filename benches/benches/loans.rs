//! How long it takes until a guarantee is another share's.
//!
//! - A call of an idle share, while another share has borrowed its guarantee: the borrower is suspended first, then the
//!   idle share wakes and the call goes on.
//! - A pod that its scheduler suspends instead of evicting it, and resumes: the agent's answer to each.
//!
//! The agent, its ledger and the programs are real; the kubelet, the scheduler and the driver are stand-ins. The
//! simulated driver copies memory within each process, so what a copy takes is this machine's. The shares hold
//! as much in each row.

use std::time::{Duration, Instant};

use apportion_kubelet_tests::{FakeNode, of_scheduler};
use apportion_proto::v1::{ResumeRequest, SuspendRequest, SuspensionState, resume_reply};
use apportion_tests::{MIB, MachineConfig, VictimProcess, cards};

/// The budgets for a call: a borrower of one process, and of 64.
const BUDGETS: [(usize, Duration); 2] = [
    (1, Duration::from_millis(250)),
    (64, Duration::from_millis(1500)),
];
/// The budgets for suspending and for resuming a pod.
const RECLAIM_BUDGETS: [(usize, Duration); 2] = [
    (1, Duration::from_millis(150)),
    (64, Duration::from_millis(1000)),
];
/// What programs can get of the GPU, in MiB, and what each context takes of it.
const CARD: u64 = 1000;
const CONTEXT: u64 = 4;
/// What the idle share is guaranteed.
const GUARANTEE: u64 = 600;
/// What the borrower is guaranteed, and its limit.
const BORROWER: [u64; 2] = [300, 900];
/// What the programs of a pod hold with their contexts.
const BORROWED: u64 = 640;
/// How often each figure is taken.
const CALLS: usize = 5;
/// After how long a share is idle.
const IDLE: Duration = Duration::from_secs(1);

fn machine() -> MachineConfig {
    let mut machine = cards(1);
    let card = &mut machine.cards[0];
    card.memory = CARD * MIB + card.reserved;
    (card.context_bytes, card.further_context_bytes) = (CONTEXT * MIB, CONTEXT * MIB);
    machine
}

async fn node() -> FakeNode {
    let options = [
        "--suspend-when-idle-min",
        "1s",
        "--burst-reclaim",
        "suspend",
        "--suspend-turn",
        "1s",
        "--context-reserve",
        "4",
    ];
    FakeNode::of(&machine(), 4, &options).await
}

/// Starts the programs of a pod that was placed. They hold [`BORROWED`] with their contexts.
async fn programs(node: &FakeNode, uid: &str, processes: usize) -> VictimProcess {
    let mut first = node.program(&node.started(uid).await, uid);
    let each = BORROWED / processes as u64 - CONTEXT;
    first.step(&format!("alloc {each}M")).ok();
    for _ in 1..processes {
        first.step(&format!("spawn start alloc {each}M")).ok();
    }
    first
}

/// Waits until the share sleeps, and nobody else does.
async fn is_suspended(node: &FakeNode, uid: &str) {
    let what = format!("only {uid} is suspended");
    node.eventually(&what, async |list| {
        list.allocations.iter().all(|of| {
            let expected = if of.idempotency_key == uid {
                SuspensionState::Suspended
            } else {
                SuspensionState::Running
            };
            of.suspension() == expected
        })
    })
    .await;
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A call that needs its guarantee back from so many processes.
async fn call(processes: usize) -> Duration {
    let node = node().await;
    node.place_idle("idle", 0, GUARANTEE, IDLE).await;
    let mut idle = node.program(&node.started("idle").await, "idle");
    idle.step("alloc 2M").ok();
    is_suspended(&node, "idle").await;
    let [guarantee, limit] = BORROWER;
    let placed = node.place_elastic("borrower", 0, guarantee, limit).await;
    placed.expect("its guarantee fits");
    let _borrower = programs(&node, "borrower", processes).await;
    let mut times = Vec::new();
    for _ in 0..CALLS {
        is_suspended(&node, "idle").await;
        // One that is woken sooner waits longer the next time.
        tokio::time::sleep(IDLE).await;
        is_suspended(&node, "idle").await;
        let begun = Instant::now();
        idle.step("sync").ok();
        times.push(begun.elapsed());
        is_suspended(&node, "borrower").await;
    }
    assert!(node.host.high_water() <= CARD * MIB, "more than the GPU");
    median(times)
}

/// The agent's answers to a scheduler that suspends a pod with so many processes, and resumes it.
async fn reclaim(processes: usize) -> [Duration; 2] {
    let node = node().await;
    let placed = node.place("pod", 0, BORROWED + 60).await;
    let id = placed.expect("it fits").id;
    let _pod = programs(&node, "pod", processes).await;
    let mut client = node.client().await;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..CALLS {
        let begun = Instant::now();
        let suspended = client.suspend(of_scheduler(SuspendRequest { id: id.clone() }));
        let suspended = suspended.await.expect("its scheduler may");
        times[0].push(begun.elapsed());
        assert!(suspended.into_inner().changed, "it was not asleep");
        let begun = Instant::now();
        let resumed = client.resume(of_scheduler(ResumeRequest { id: id.clone() }));
        let resumed = resumed.await.expect("its scheduler may").into_inner();
        times[1].push(begun.elapsed());
        let is_awake = matches!(resumed.result, Some(resume_reply::Result::Allocation(_)));
        assert!(is_awake, "there is room: {resumed:?}");
    }
    times.map(median)
}

fn report(what: &str, processes: usize, median: Duration, budget: Duration) {
    let verdict = if median <= budget { "kept" } else { "missed" };
    println!(
        "{what}, {processes} processes with {BORROWED} MiB: {median:?}, budget {budget:?}: {verdict}"
    );
}

#[tokio::main]
async fn main() {
    for (processes, budget) in BUDGETS {
        let what = "a call that needs its guarantee back";
        report(what, processes, call(processes).await, budget);
    }
    for (processes, budget) in RECLAIM_BUDGETS {
        let [suspend, resume] = reclaim(processes).await;
        report("a scheduler suspends a pod", processes, suspend, budget);
        report("a scheduler resumes a pod", processes, resume, budget);
    }
}
