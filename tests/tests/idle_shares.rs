//! `apportion run --suspend-when-idle`: a program that does not call the driver for a while gives its GPU memory back, and
//! its next call, whichever it is, gets it again with its contents.

use std::thread;
use std::time::{Duration, Instant};

use apportion_tests::{
    AgentProcess, CARD, CONTEXT, CommandOutput, MIB, MachineConfig, PATIENCE, TestHost,
    VictimProcess, cards, eventually,
};
use serde_json::Value;

/// What each program allocates, beside its context.
const HELD: &str = "5600M";
/// Two of these do not fit on the card together.
const SHARE: [&str; 2] = ["--gpu-memory", "6000"];
/// After how long a program sleeps.
const IDLE: Duration = Duration::from_secs(1);

fn agent(host: &TestHost) -> AgentProcess {
    agent_with(host, &[])
}

fn agent_with(host: &TestHost, more: &[&str]) -> AgentProcess {
    let options = [
        "--tick",
        "50",
        "--context-reserve",
        "300",
        "--suspend-when-idle-min",
        "1s",
    ];
    host.agent(&[&options, more].concat())
}

fn options(name: &str) -> Vec<&str> {
    [&SHARE[..], &["--suspend-when-idle", "1s", "--name", name]].concat()
}

fn filled(mut program: VictimProcess) -> VictimProcess {
    program.fill(HELD);
    program
}

fn started(host: &TestHost, name: &str) -> VictimProcess {
    filled(host.victim(&options(name)))
}

fn named(host: &TestHost, name: &str) -> Value {
    let top = host.top();
    let all = top["allocations"].as_array().expect("it is there");
    let found = all.iter().find(|allocation| allocation["name"] == name);
    found.cloned().unwrap_or_default()
}

#[track_caller]
fn falls_asleep(host: &TestHost, name: &str) {
    eventually(PATIENCE, "it is idle and sleeps", || {
        let now = named(host, name);
        now["suspension"] == "suspended" && now["idle"] == true
    });
}

/// A call returns as soon as its process is unlocked. The agent notes the end of the wake a moment later.
#[track_caller]
fn runs(host: &TestHost, name: &str) {
    eventually(PATIENCE, "it runs", || {
        named(host, name)["suspension"] == "running"
    });
}

fn count(host: &TestHost, action: &str, result: &str) -> f64 {
    let labels = [
        format!("action=\"{action}\""),
        format!("result=\"{result}\""),
    ];
    let labels = [labels[0].as_str(), labels[1].as_str()];
    let count = host.metric("apportion_idle_suspensions_total", &labels);
    count.unwrap_or_default()
}

#[test]
fn an_idle_program_sleeps_and_another_one_gets_its_memory_until_it_is_called() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut server = started(&host, "server");
    falls_asleep(&host, "server");
    eventually(PATIENCE, "its memory is free", || {
        host.top()["cards"][0]["free_bytes"] == CARD
    });
    assert_eq!(host.used(), 0, "the driver has all back");
    let now = named(&host, "server");
    assert_eq!(now["suspend_when_idle_ms"], 1000);
    let table = CommandOutput::by(host.simulated("top").arg("--once")).well();
    assert!(table.out.contains("server      idle"), "{}", table.out);
    let idle = ["cause=\"idle\""];
    assert_eq!(host.metric("apportion_suspended_shares", &idle), Some(1.0));

    let mut train = filled(host.victim(&[&SHARE[..], &["--name", "train"]].concat()));
    server.begin(&format!("check 0 {HELD}"));
    eventually(PATIENCE, "the call waits for the memory", || {
        named(&host, "server")["waits_to_wake"] == true
    });
    let table = CommandOutput::by(host.simulated("top").arg("--once")).well();
    assert!(table.out.contains("server      waiting"), "{}", table.out);
    // What it waits for is kept for it: a newcomer does not overtake it.
    let newcomer = host.run(&["--gpu-memory", "4100"], &["true"]);
    let line = newcomer.fails_in_one_line(1);
    assert!(line.contains("held by"), "{line}");
    train.assert_intact(HELD);
    assert_eq!(host.used(), 5600 * MIB + CONTEXT, "only what train has");
    assert!(train.end().success());
    assert_eq!(server.finish().value(), 0, "all is as it was");
    runs(&host, "server");
    assert_eq!(count(&host, "suspend", "done"), 1.0);
    assert_eq!(count(&host, "resume", "done"), 1.0);
    let awaited = ["result=\"after_waiting\""];
    let wakes = "apportion_idle_wake_duration_seconds_count";
    assert_eq!(host.metric(wakes, &awaited), Some(1.0));
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}

/// Sleeps, and wakes by each of the calls as the first one.
fn wakes_by_each_call(door: &str) {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = filled(host.victim_through(door, &options("server")));
    for call in ["sync", "check 0 2M", "info", "alloc 10M", "free 1"] {
        falls_asleep(&host, "server");
        // So that it does not count as one that is woken too soon.
        thread::sleep(IDLE);
        let begun = Instant::now();
        program.step(call).ok();
        assert!(
            begun.elapsed() < PATIENCE / 2,
            "{call}: {:?}",
            begun.elapsed()
        );
        runs(&host, "server");
    }
    program.assert_intact(HELD);
    assert_eq!(count(&host, "resume", "done"), 5.0);
}

#[test]
fn a_call_that_was_found_by_name_wakes_it() {
    wakes_by_each_call("dlsym");
}

#[test]
fn a_call_that_the_driver_found_wakes_it() {
    wakes_by_each_call("getproc");
}

#[test]
fn a_call_of_the_per_thread_streams_wakes_it() {
    wakes_by_each_call("perthread");
}

#[test]
fn a_program_that_calls_now_and_then_never_sleeps() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = started(&host, "busy");
    let begun = Instant::now();
    let mut called = Instant::now();
    // A busy machine may hold the program up for so long that it is idle. That is no mistake of the agent.
    let mut was_held_up = false;
    while begun.elapsed() < IDLE * 4 {
        program.step("sync").ok();
        thread::sleep(IDLE / 5);
        let suspension = named(&host, "busy")["suspension"].clone();
        was_held_up |= called.elapsed() > IDLE / 2;
        called = Instant::now();
        assert!(was_held_up || suspension == "running", "{suspension}");
    }
    assert!(was_held_up || count(&host, "suspend", "done") == 0.0);
    assert_eq!(count(&host, "suspend", "failed"), 0.0);
}

#[test]
fn a_program_that_is_linked_with_the_driver_stays_awake_and_the_log_says_why() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = filled(host.victim_through("linked", &options("linked")));
    thread::sleep(IDLE * 2);
    assert_eq!(named(&host, "linked")["suspension"], "running");
    let log = host.agent_log();
    assert!(
        log.contains("a library of it is linked with the driver"),
        "{log}"
    );
    program.assert_intact(HELD);
}

#[test]
fn a_process_without_the_library_keeps_its_share_awake() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = host.victim(&options("mixed"));
    program.step("alloc 100M").ok();
    program.step("bare start alloc 10M").ok();
    thread::sleep(IDLE * 3);
    assert_eq!(named(&host, "mixed")["suspension"], "running");
    assert_eq!(count(&host, "suspend", "failed"), 0.0);
}

#[test]
fn sixty_four_processes_sleep_and_wake_together() {
    const CHILDREN: usize = 63;
    let mut config = cards(1);
    config.cards[0].context_bytes = 20 * MIB;
    let host = TestHost::with(&config);
    let _agent = host.agent(&[
        "--tick",
        "50",
        "--context-reserve",
        "20",
        "--suspend-when-idle-min",
        "1s",
    ]);
    let idle = [
        "--gpu-memory",
        "6000",
        "--suspend-when-idle",
        "5s",
        "--name",
        "family",
    ];
    let mut parent = host.victim(&idle);
    for _ in 0..CHILDREN {
        parent.step("spawn start alloc 10M").ok();
    }
    parent.fill("1000M");
    falls_asleep(&host, "family");
    assert_eq!(host.used(), 0);
    // One that starts now is not known to the driver, and its first call wakes all.
    parent.begin("spawn start alloc 10M");
    parent.finish().ok();
    let all = u64::try_from(CHILDREN).expect("small") + 1;
    assert_eq!(
        host.used(),
        1000 * MIB + all * 10 * MIB + (all + 1) * 20 * MIB
    );
    parent.assert_intact("1000M");
}

#[test]
fn a_new_agent_lets_it_sleep_until_it_is_called() {
    let host = TestHost::new();
    let first = agent(&host);
    let mut program = started(&host, "server");
    falls_asleep(&host, "server");
    first.kill();
    let second = agent(&host);
    thread::sleep(Duration::from_millis(300));
    let now = named(&host, "server");
    assert_eq!(now["suspension"], "suspended");
    assert_eq!(now["idle"], true);
    assert_eq!(host.used(), 0, "nobody woke it");
    // Nobody hears this call but the next agent.
    second.kill();
    program.begin(&format!("check 0 {HELD}"));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(host.used(), 0);
    let _agent = agent(&host);
    assert_eq!(program.finish().value(), 0);
}

#[test]
fn a_sleeper_that_is_killed_leaves_nothing_behind() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = started(&host, "server");
    falls_asleep(&host, "server");
    let mut train = filled(host.victim(&[&SHARE[..], &["--name", "train"]].concat()));
    program.begin("sync");
    eventually(PATIENCE, "it waits for its memory", || {
        named(&host, "server")["waits_to_wake"] == true
    });
    program.signal(nix::sys::signal::Signal::SIGKILL);
    let _ = program.wait();
    eventually(PATIENCE, "its share is gone", || {
        named(&host, "server").is_null()
    });
    // What was kept for it is free.
    assert_eq!(
        host.run(&["--gpu-memory", "4000"], &["true"]).code(),
        Some(0)
    );
    train.assert_intact(HELD);
}

#[test]
fn a_client_takes_an_idle_sleeper_over_and_wakes_it() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = started(&host, "server");
    falls_asleep(&host, "server");
    let suspended = CommandOutput::by(host.simulated("suspend").arg("server"));
    assert_eq!(suspended.well().out, "server: was suspended already\n");
    assert_eq!(named(&host, "server")["idle"], false);
    program.begin(&format!("check 0 {HELD}"));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(host.used(), 0, "its call wakes it no more");
    let resumed = CommandOutput::by(host.simulated("resume").arg("server"));
    assert_eq!(resumed.well().out, "server: resumed\n");
    assert_eq!(program.finish().value(), 0);
    falls_asleep(&host, "server");
    let resumed = CommandOutput::by(host.simulated("resume").arg("server"));
    assert_eq!(resumed.well().out, "server: resumed\n");
    program.assert_intact(HELD);
}

#[test]
fn an_elastic_share_wakes_with_all_that_it_used_and_others_that_burst_sleep_for_it() {
    let host = TestHost::new();
    let reclaim = ["--burst-reclaim", "suspend", "--suspend-turn", "1s"];
    let _agent = agent_with(&host, &reclaim);
    let elastic = ["--gpu-memory", "2000", "--gpu-memory-limit", "8000"];
    let idle = ["--suspend-when-idle", "1s", "--name", "server"];
    let mut server = filled(host.victim(&[&elastic[..], &idle].concat()));
    falls_asleep(&host, "server");
    let mut other = filled(host.victim(&[&elastic[..], &["--name", "other"]].concat()));
    server.assert_intact(HELD);
    assert_eq!(named(&host, "other")["called_in"], true);
    // It is idle again soon, and the other one has its turn.
    other.assert_intact(HELD);
}

#[test]
fn a_program_that_the_driver_cannot_move_goes_on_and_is_left_alone() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = host.victim(&options("managed"));
    program.step("managed 1000M").ok();
    eventually(PATIENCE, "it is tried", || {
        count(&host, "suspend", "failed") > 0.0
    });
    program.step("alloc 1000M").ok();
    let log = host.agent_log();
    assert!(log.contains("Idle share stays awake"), "{log}");
    assert!(log.contains("managed memory"), "{log}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50", "--context-reserve", "300"]);
    let refused = host.run(
        &["--gpu-memory", "2000", "--suspend-when-idle", "5s"],
        &["true"],
    );
    let line = refused.fails_in_one_line(1);
    assert!(
        line.contains("10s at least") && line.contains("not for 5s"),
        "{line}"
    );
    let taken = host.run(
        &["--gpu-memory", "2000", "--suspend-when-idle", "10s"],
        &["true"],
    );
    assert_eq!(taken.code(), Some(0));
    for wrong in ["soon", "0s", "10", "25h", "1.5m"] {
        let refused = host.run(
            &["--gpu-memory", "2000", "--suspend-when-idle", wrong],
            &["true"],
        );
        let line = refused.fails_in_one_line(64);
        assert!(line.contains("such as 30s, 10m or 1h"), "{line}");
    }
}

/// Calls come at random moments of suspensions and wakes, and agents are killed. Every call returns.
#[test]
fn a_call_that_crosses_a_suspension_returns() {
    let rounds = std::env::var("APPORTION_IDLE_ROUNDS").ok();
    let rounds = rounds.and_then(|text| text.parse().ok()).unwrap_or(6_u64);
    let config = MachineConfig {
        // A copy takes a quarter of a second.
        checkpoint_mib_per_second: 24_000,
        ..cards(1)
    };
    let host = TestHost::with(&config);
    let mut serving = agent(&host);
    let mut program = started(&host, "server");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..rounds {
        eventually(PATIENCE, "it begins to fall asleep", || {
            named(&host, "server")["suspension"] != "running"
        });
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        thread::sleep(Duration::from_millis((state >> 33) % 400));
        program.begin("sync");
        if round % 3 == 1 {
            thread::sleep(Duration::from_millis((state >> 20) % 200));
            serving.kill();
            serving = agent(&host);
        }
        program.finish().ok();
        runs(&host, "server");
        // A long sleep, so that the next one comes as soon.
        falls_asleep(&host, "server");
        thread::sleep(IDLE);
        program.assert_intact(HELD);
    }
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}
