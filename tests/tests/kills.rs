//! Eight processes allocate and free memory of one account, and are killed at random points again and again. The limit
//! is never exceeded, and at the end nothing is left.
//!
//! `APPORTION_KILLS` is the number of kills (default 4000), `APPORTION_SEED` the random seed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use apportion_tests::{MIB, PATIENCE, TestHost, eventually, number_from_env};

const LIMIT: u64 = 4000 * MIB;

/// Sets the flag when dropped, even by a panic.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The largest use of the card until the flag is set, and the number of samples.
fn watch(host: &TestHost, is_over: &AtomicBool) -> (u64, u64) {
    let (mut most, mut looks) = (0, 0);
    while !is_over.load(Ordering::Acquire) {
        most = most.max(host.used());
        looks += 1;
    }
    (most, looks)
}

#[test]
fn nothing_is_ever_above_the_limit_and_nothing_is_left_after_thousands_of_kills() {
    let (kills, seed) = (
        number_from_env("APPORTION_KILLS", 4000),
        number_from_env("APPORTION_SEED", 1),
    );
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let mut victim = host.victim(&["--gpu-memory", "4000", "--name", "killed"]);
    victim.step("pid").ok();
    let is_over = AtomicBool::new(false);
    let (killed, (most, looks)) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&host, &is_over));
        let ending = EndOnDrop(&is_over);
        victim.begin(&format!("kills {kills} {seed}"));
        let killed = victim.finish();
        drop(ending);
        (killed, watcher.join().expect("the watcher only looks"))
    });
    assert!(killed.value() >= kills);
    assert!(looks > 100, "the card was watched");
    assert!(
        most <= LIMIT,
        "{most} bytes were in use under a limit of {LIMIT} (seed {seed})"
    );
    assert!(most > LIMIT / 2, "the limit was worked against: {most}");

    let grant = || host.top()["allocations"][0]["grants"][0].clone();
    eventually(PATIENCE, "the driver has all back", || host.used() == 0);
    eventually(PATIENCE, "the ledger sees it", || {
        grant()["nvml_bytes"] == 0
    });
    eventually(PATIENCE, "the account is empty", || {
        let grant = grant();
        grant["used_bytes"] == 0 && grant["claimed_bytes"] == 0 && grant["overhead_bytes"] == 0
    });
    let grant = grant();
    assert!(grant["peak_bytes"].as_u64() <= Some(LIMIT), "{grant}");
    assert!(grant["denied_count"].as_u64() > Some(0), "{grant}");
    let offences = host.metric("apportion_offences_total", &[]);
    assert_eq!(offences, Some(0.0), "{}", host.agent_log());

    let filled = victim.step("fill 100M");
    assert_eq!(filled.code, 2);
    assert!(
        host.used() > LIMIT - 100 * MIB,
        "all of the limit can be had again"
    );
    assert!(victim.end().success());
    eventually(PATIENCE, "the allocation is released", || {
        host.top()["allocations"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    assert_eq!(host.used(), 0);
}

#[test]
fn kills_of_programs_and_of_the_agent_lose_nothing() {
    let (kills, seed) = (
        number_from_env("APPORTION_KILLS", 4000) / 4,
        number_from_env("APPORTION_SEED", 1) + 1,
    );
    let host = TestHost::new();
    let mut agent = host.agent(&["--tick", "20"]);
    let mut victim = host.victim(&["--gpu-memory", "4000", "--name", "killed"]);
    victim.step("pid").ok();
    let is_over = AtomicBool::new(false);
    let (most, _agent) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&host, &is_over));
        let ending = EndOnDrop(&is_over);
        victim.begin(&format!("kills {kills} {seed}"));
        for _ in 0..8 {
            agent.kill();
            agent = host.agent(&["--tick", "20"]);
            let top = host.top();
            assert_eq!(
                top["allocations"][0]["name"],
                "killed",
                "{top} {}",
                host.agent_log()
            );
        }
        victim.finish().ok();
        drop(ending);
        watcher.join().expect("the watcher only looks")
    });
    assert!(
        most <= LIMIT,
        "{most} bytes were in use under a limit of {LIMIT} (seed {seed})"
    );
    eventually(PATIENCE, "driver, ledger and account agree", || {
        let top = host.top();
        let grant = &top["allocations"][0]["grants"][0];
        host.used() == 0 && grant["used_bytes"] == 0 && grant["nvml_bytes"] == 0
    });
}
