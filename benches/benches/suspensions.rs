//! How long it takes to suspend and to resume a share of 1 and of 64 processes, with as much memory in each case.
//!
//! The time is that of the command `apportion suspend` or `apportion resume`: the way to the agent, the locks, the
//! copies and the answer. The simulated driver copies memory within each process, so what a copy takes is this
//! machine's. The second number is the time for a share with next to no memory: what is not copying.

use std::time::{Duration, Instant};

use apportion_tests::{CommandOutput, MIB, PATIENCE, TestHost, VictimProcess, cards, eventually};

/// The budgets without copying: one process, and 64 of them.
const BUDGETS: [(usize, Duration); 2] = [
    (1, Duration::from_millis(100)),
    (64, Duration::from_millis(1000)),
];
/// The memory of a process's context.
const CONTEXT: u64 = 20 * MIB;
/// What all processes of a share hold together, in MiB.
const HELD: usize = 1024;
/// How often each share sleeps and wakes.
const TURNS: usize = 7;
/// The budgets for a call that wakes an idle share, without copying: one process, and 64 of them.
const WAKES: [(usize, Duration); 2] = [
    (1, Duration::from_millis(100)),
    (64, Duration::from_millis(1000)),
];
/// How often a call wakes a share.
const CALLS: usize = 5;
/// After how long a share is idle.
const IDLE: Duration = Duration::from_secs(1);

fn host() -> TestHost {
    let mut config = cards(1);
    for card in &mut config.cards {
        // So that 64 of them fit.
        card.context_bytes = CONTEXT;
    }
    TestHost::with(&config)
}

/// A share of so many processes, each with its part of `mib`.
fn share(
    host: &TestHost,
    name: &str,
    processes: usize,
    mib: usize,
    more: &[&str],
) -> VictimProcess {
    let share = ["--gpu-memory", "6000", "--name", name];
    let mut parent = host.victim(&[&share, more].concat());
    let each = (mib / processes).max(2);
    for _ in 1..processes {
        parent.step(&format!("spawn start alloc {each}M")).ok();
    }
    parent.step(&format!("alloc {each}M")).ok();
    eventually(PATIENCE, "the agent knows all processes", || {
        let top = host.top();
        let mut all = top["allocations"].as_array().into_iter().flatten();
        let own = all.find(|allocation| allocation["name"] == name);
        own.and_then(|own| own["processes"].as_array())
            .is_some_and(|all| all.len() == processes)
    });
    parent
}

fn timed(host: &TestHost, command: &str, name: &str) -> Duration {
    let begun = Instant::now();
    let output = CommandOutput::by(host.simulated(command).arg(name));
    let took = begun.elapsed();
    let _ = output.well();
    took
}

/// The medians of suspending and resuming.
fn medians(host: &TestHost, name: &str) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        times[0].push(timed(host, "suspend", name));
        times[1].push(timed(host, "resume", name));
    }
    times.map(|mut times| {
        times.sort();
        times[TURNS / 2]
    })
}

/// The median time of a call that wakes an idle share.
fn wake(host: &TestHost, name: &str, program: &mut VictimProcess) -> Duration {
    let mut times: Vec<_> = (0..CALLS)
        .map(|_| {
            eventually(PATIENCE, "the share is idle and sleeps", || {
                let top = host.top();
                let mut all = top["allocations"].as_array().into_iter().flatten();
                let own = all.find(|allocation| allocation["name"] == name);
                own.is_some_and(|own| own["suspension"] == "suspended")
            });
            // One that is woken sooner waits longer the next time.
            std::thread::sleep(IDLE);
            let begun = Instant::now();
            program.step("sync").ok();
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[CALLS / 2]
}

/// Measures calls that wake an idle share.
fn wakes(host: &TestHost) {
    for (processes, budget) in WAKES {
        let [full, bare] = [HELD, 0].map(|mib| {
            let name = format!("idle-{processes}-{mib}");
            let idle = ["--suspend-when-idle", "1s"];
            let mut program = share(host, &name, processes, mib, &idle);
            let median = wake(host, &name, &mut program);
            program.step("reap").ok();
            assert!(program.end().success());
            median
        });
        let verdict = if bare <= budget { "kept" } else { "missed" };
        println!(
            "wake by a call, {processes} processes with {HELD} MiB: {full:?}; without: {bare:?}, budget {budget:?}: {verdict}"
        );
    }
}

fn main() {
    let host = host();
    let _agent = host.agent(&[
        "--tick",
        "50",
        "--context-reserve",
        "20",
        "--suspend-when-idle-min",
        "1s",
    ]);
    wakes(&host);
    for (processes, budget) in BUDGETS {
        let [full, bare] = [HELD, 0].map(|mib| {
            let name = format!("share-{processes}-{mib}");
            let mut program = share(&host, &name, processes, mib, &[]);
            let medians = medians(&host, &name);
            program.step("reap").ok();
            assert!(program.end().success());
            medians
        });
        for (at, action) in ["suspend", "resume"].into_iter().enumerate() {
            let verdict = if bare[at] <= budget { "kept" } else { "missed" };
            println!(
                "{action} {processes} processes with {HELD} MiB: {:?}; without: {:?}, budget {budget:?}: {verdict}",
                full[at], bare[at]
            );
        }
    }
}
