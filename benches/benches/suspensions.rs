//! How long it takes to suspend and to resume a share of 1 and of 64 processes, with as much memory in each case.
//!
//! The time is that of the command `apportion suspend` or `apportion resume`: the way to the agent, the locks, the
//! copies and the answer. The simulated driver copies memory within each process, so what a copy takes is this
//! machine's. The second number is the time for a share with next to no memory: what is not copying.

use std::time::{Duration, Instant};

use apportion_tests::{CommandOutput, PATIENCE, TestHost, VictimProcess, eventually};

mod shares;

use shares::{host, share};

/// The budgets without copying: one process, and 64 of them.
const BUDGETS: [(usize, Duration); 2] = [
    (1, Duration::from_millis(100)),
    (64, Duration::from_millis(1000)),
];
const SIZES: [&str; 2] = ["--gpu-memory", "6000"];
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
            let options = [&SIZES[..], &["--suspend-when-idle", "1s"]].concat();
            let each = (mib / processes).max(2);
            let mut program = share(host, &name, &options, processes, each);
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
            let each = (mib / processes).max(2);
            let mut program = share(&host, &name, &SIZES, processes, each);
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
