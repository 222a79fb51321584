//! Guarantees that are called in: programs that burst sleep for a newcomer that was promised what they use, and wake with
//! all that they had.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use apportion_tests::{
    AgentProcess, CARD, CONTEXT, CommandOutput, MIB, MachineConfig, PATIENCE, TestHost,
    VictimProcess, cards, eventually,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The newcomer's guarantee. It fits beside the guarantee of the program that bursts, and not beside its use.
const GUARANTEED: u64 = 6000 * MIB;
/// What each program allocates, beside its context.
const HELD: &str = "5600M";
/// A newcomer gets an answer in this time. Nothing takes long on the simulated driver.
const SOON: Duration = Duration::from_secs(10);

fn agent_with(host: &TestHost, options: &[&str]) -> AgentProcess {
    let common = ["--tick", "50", "--context-reserve", "300"];
    host.agent(&[&common[..], options].concat())
}

fn agent(host: &TestHost) -> AgentProcess {
    agent_with(
        host,
        &["--burst-reclaim", "suspend", "--suspend-turn", "1s"],
    )
}

/// A program with a guarantee of 2000 MiB.
fn elastic(host: &TestHost, name: &str) -> VictimProcess {
    let options = ["--gpu-memory", "2000", "--gpu-memory-limit", "9000"];
    let mut program = host.victim(&[&options[..], &["--name", name]].concat());
    program.step("start").ok();
    program
}

/// One that uses 5900 MiB, and so 3900 MiB above its guarantee.
fn bursting(host: &TestHost, name: &str) -> VictimProcess {
    let mut program = elastic(host, name);
    program.fill(HELD);
    program
}

fn newcomer(host: &TestHost) -> VictimProcess {
    host.victim(&["--gpu-memory", "6000", "--name", "newcomer"])
}

fn named(host: &TestHost, name: &str) -> Value {
    let top = host.top();
    let all = top["allocations"].as_array().expect("it is there");
    let found = all.iter().find(|allocation| allocation["name"] == name);
    found.cloned().unwrap_or_default()
}

#[track_caller]
fn comes_to_be(host: &TestHost, name: &str, phase: &str) {
    eventually(PATIENCE, &format!("{name} is {phase}"), || {
        named(host, name)["suspension"] == phase
    });
}

fn calls(host: &TestHost, result: &str) -> Option<f64> {
    let label = format!("result=\"{result}\"");
    host.metric("apportion_guarantee_calls_total", &[&label])
}

fn refused(host: &TestHost, options: &[&str]) -> String {
    let refused = host.run(&[&["--gpu-memory", "6000"], options].concat(), &["true"]);
    let is_served = refused.status.success();
    assert!(
        !is_served,
        "it was served; the agent says:\n{}",
        host.agent_log()
    );
    refused.fails_in_one_line(1).to_owned()
}

#[test]
fn a_newcomer_gets_what_it_was_promised_and_the_sleeper_wakes_with_all_that_it_had() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut burster = bursting(&host, "burster");
    let begun = Instant::now();
    let mut newcomer = newcomer(&host);
    newcomer.fill(HELD);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let sleeper = named(&host, "burster");
    assert_eq!(
        (&sleeper["suspension"], &sleeper["called_in"]),
        (&"suspended".into(), &true.into())
    );
    assert_eq!(host.used(), 5600 * MIB + CONTEXT, "only the newcomer's");
    let card = &host.top()["cards"][0];
    assert_eq!(
        card["granted_bytes"],
        GUARANTEED + 2000 * MIB,
        "its guarantee stays"
    );
    assert_eq!(card["free_bytes"], 2000 * MIB);
    let table = CommandOutput::by(host.simulated("top").arg("--once")).well();
    assert!(table.out.contains("burster     called-in"), "{}", table.out);
    let of_sleepers = |name: &str| host.metric(name, &["cause=\"guarantee\""]);
    assert_eq!(of_sleepers("apportion_suspended_shares"), Some(1.0));
    let asleep = of_sleepers("apportion_suspended_bytes");
    assert_eq!(asleep, Some(5900.0 * 1024.0 * 1024.0));
    thread::sleep(Duration::from_millis(1500));
    newcomer.assert_intact(HELD);
    assert_eq!(
        named(&host, "burster")["suspension"],
        "suspended",
        "there is no room"
    );

    assert!(newcomer.end().success());
    comes_to_be(&host, "burster", "running");
    burster.assert_intact(HELD);
    burster.step("alloc 1000M").ok();
    assert!(host.high_water() <= CARD);
    assert_eq!(calls(&host, "suspended"), Some(1.0));
    assert_eq!(calls(&host, "refused"), Some(0.0));
    let took = host.metric(
        "apportion_guarantee_call_duration_seconds_count",
        &["result=\"suspended\""],
    );
    assert_eq!(took, Some(1.0));
    assert_eq!(of_sleepers("apportion_suspended_shares"), Some(0.0));
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}

#[test]
fn what_is_not_used_is_withdrawn_and_nobody_sleeps() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut elastic = elastic(&host, "elastic");
    let held = elastic.step("alloc 6000M").value();
    elastic.step(&format!("free {held}")).ok();
    let mut newcomer = newcomer(&host);
    newcomer.fill(HELD);
    assert_eq!(named(&host, "elastic")["suspension"], "running");
    eventually(PATIENCE, "the call is counted", || {
        calls(&host, "withdrawn") == Some(1.0)
    });
    assert_eq!(calls(&host, "suspended"), Some(0.0));
}

#[test]
fn without_the_option_the_newcomer_is_refused() {
    let host = TestHost::new();
    let _agent = agent_with(&host, &[]);
    let mut burster = bursting(&host, "burster");
    let line = refused(&host, &[]);
    assert!(
        line.contains("used above guarantees, by burster with 3900 MiB"),
        "{line}"
    );
    assert_eq!(named(&host, "burster")["suspension"], "running");
    burster.assert_intact(HELD);
}

#[test]
fn a_program_that_cannot_sleep_is_named_with_the_reason_and_goes_on() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut burster = elastic(&host, "managed");
    burster.step("managed 5600M").ok();
    let line = refused(&host, &[]);
    for words in [
        "asked for 6000 MiB on GPU-",
        "by managed with 3900 MiB",
        "managed cannot be suspended: process ",
        "managed memory",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    eventually(PATIENCE, "it runs", || {
        named(&host, "managed")["suspension"] == "running"
    });
    burster.step("alloc 500M").ok();
    assert!(calls(&host, "refused") >= Some(1.0));
    // It is not tried again right away.
    let begun = Instant::now();
    assert!(refused(&host, &[]).contains("managed cannot be suspended"));
    assert!(begun.elapsed() < SOON);
    let failed = ["action=\"suspend\"", "result=\"failed\""];
    assert_eq!(
        host.metric("apportion_suspensions_total", &failed),
        Some(1.0)
    );
}

#[test]
fn a_host_without_room_refuses_the_newcomer_with_numbers() {
    let host = TestHost::new();
    let groups = host.dir().join("groups");
    fs::create_dir(&groups).unwrap();
    fs::write(groups.join("memory.max"), (6000 * MIB).to_string()).unwrap();
    fs::write(groups.join("memory.current"), (1000 * MIB).to_string()).unwrap();
    let root = groups.display().to_string();
    let _agent = agent_with(
        &host,
        &["--burst-reclaim", "suspend", "--cgroup-root", &root],
    );
    let mut burster = bursting(&host, "burster");
    let line = refused(&host, &[]);
    assert!(
        line.contains("burster cannot be suspended: control group"),
        "{line}"
    );
    burster.assert_intact(HELD);
}

#[test]
fn a_newcomer_that_is_not_served_by_the_deadline_is_refused_and_the_sleeper_wakes() {
    // A copy takes almost four times as long as the deadline. On a busy disk an agent may be late by seconds, and then
    // serves a newcomer that it would have refused.
    let host = TestHost::with(&MachineConfig {
        checkpoint_mib_per_second: 800,
        ..cards(1)
    });
    let options = ["--burst-reclaim", "suspend", "--guarantee-deadline", "2s"];
    let _agent = agent_with(&host, &options);
    let mut burster = bursting(&host, "burster");
    let line = refused(&host, &[]);
    assert!(line.contains("; it was not free after 2 s"), "{line}");
    assert_eq!(calls(&host, "refused"), Some(1.0));
    assert_eq!(named(&host, "burster")["suspension"], "suspending");
    burster.assert_intact(HELD);
    comes_to_be(&host, "burster", "running");
    assert!(burster.end().success());
}

#[test]
fn those_who_burst_take_turns_and_a_client_can_take_over() {
    let host = TestHost::new();
    let _agent = agent(&host);
    // Beside each other they need 10400 MiB of 10000.
    let of = |name: &'static str| {
        let options = ["--gpu-memory", "1000", "--gpu-memory-limit", "9000"];
        host.victim(&[&options[..], &["--name", name]].concat())
    };
    let (mut first, mut second) = (of("first"), of("second"));
    first.fill(HELD);
    let mut guest = host.victim(&["--gpu-memory", "4500", "--name", "guest"]);
    guest.step("start").ok();
    second.fill("4200M");
    let is_second_intact = |second: &mut VictimProcess| {
        second.assert_intact("4200M");
    };
    assert_eq!(named(&host, "first")["suspension"], "suspended");
    assert!(guest.end().success());
    for _ in 0..2 {
        comes_to_be(&host, "first", "running");
        assert_eq!(named(&host, "second")["suspension"], "suspended");
        first.assert_intact(HELD);
        comes_to_be(&host, "second", "running");
        assert_eq!(named(&host, "first")["suspension"], "suspended");
        is_second_intact(&mut second);
    }
    assert!(host.high_water() <= CARD);
    // What a client suspends stays asleep.
    let suspended = CommandOutput::by(host.simulated("suspend").arg("first")).well();
    assert!(suspended.out.starts_with("first: "), "{suspended:?}");
    assert!(second.end().success());
    eventually(PATIENCE, "all is free", || {
        host.top()["cards"][0]["free_bytes"] == CARD
    });
    assert_eq!(named(&host, "first")["suspension"], "suspended");
    let _ = CommandOutput::by(host.simulated("resume").arg("first")).well();
    first.assert_intact(HELD);
}

#[test]
fn a_sleeper_that_needs_what_other_sleepers_are_guaranteed_gets_its_turn() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut large = elastic(&host, "large");
    large.fill("7500M");
    let mut small = ["one", "two"].map(|name| elastic(&host, name));
    comes_to_be(&host, "large", "suspended");
    for program in &mut small {
        program.fill("3000M");
    }
    // Beside the guarantees of the two there are 6000 MiB, and it needs 7800.
    for _ in 0..2 {
        comes_to_be(&host, "large", "running");
        large.assert_intact("7500M");
        for (name, program) in ["one", "two"].iter().zip(&mut small) {
            comes_to_be(&host, name, "running");
            program.assert_intact("3000M");
        }
    }
    assert!(host.high_water() <= CARD);
    // Whoever comes with a guarantee gets it in between, too.
    let mut guest = host.victim(&["--gpu-memory", "4000", "--name", "guest"]);
    guest.step("alloc 3700M").ok();
    for (name, program) in ["one", "two"].iter().zip(&mut small) {
        comes_to_be(&host, name, "running");
        program.assert_intact("3000M");
    }
    assert!(guest.end().success());
    comes_to_be(&host, "large", "running");
    assert!(host.high_water() <= CARD);
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}

#[test]
fn kills_of_the_newcomer_of_the_sleeper_and_of_the_agent_leave_nobody_asleep() {
    // A copy takes a quarter of a second, so kills come before, in and after the copies.
    let host = TestHost::with(&MachineConfig {
        checkpoint_mib_per_second: 24_000,
        ..cards(1)
    });
    let mut agent_process = agent(&host);
    let mut burster = bursting(&host, "burster");
    for round in 0..12_u64 {
        let mut guest = newcomer(&host);
        // At any point of the call.
        thread::sleep(Duration::from_millis(40 * round));
        match round % 3 {
            0 => {
                agent_process.kill();
                agent_process = agent(&host);
            }
            2 => agent_process.kill_mover(),
            _ => {}
        }
        thread::sleep(Duration::from_millis(20 * round));
        guest.signal(Signal::SIGKILL);
        let _ = guest.wait();
        eventually(PATIENCE, "the newcomer is gone", || {
            named(&host, "newcomer").is_null()
        });
        comes_to_be(&host, "burster", "running");
        burster.assert_intact(HELD);
    }
    // A new agent knows nothing of moves that failed.
    agent_process.kill();
    agent_process = agent(&host);
    let mut guest = newcomer(&host);
    guest.fill(HELD);
    comes_to_be(&host, "burster", "suspended");
    agent_process.kill();
    let _agent = agent(&host);
    assert_eq!(named(&host, "burster")["called_in"], true);
    burster.signal(Signal::SIGKILL);
    let _ = burster.wait();
    eventually(PATIENCE, "the sleeper is gone", || {
        named(&host, "burster").is_null()
    });
    guest.assert_intact(HELD);
    assert!(guest.end().success());
    eventually(PATIENCE, "nothing is left", || {
        let top = host.top();
        let is_empty = top["allocations"].as_array().is_some_and(Vec::is_empty);
        is_empty && top["cards"][0]["free_bytes"] == CARD && host.used() == 0
    });
    assert!(host.high_water() <= CARD);
}

/// Kills the child of the agent that moves processes, if there is one now.
#[test]
fn an_agent_that_starts_again_wakes_who_sleeps() {
    let host = TestHost::new();
    let agent_process = agent(&host);
    let mut burster = bursting(&host, "burster");
    let mut guest = newcomer(&host);
    guest.fill(HELD);
    comes_to_be(&host, "burster", "suspended");
    agent_process.kill();
    assert!(guest.end().success());
    // Another agent suspends nobody, but wakes who sleeps.
    let _agent = agent_with(&host, &[]);
    comes_to_be(&host, "burster", "running");
    burster.assert_intact(HELD);
    assert!(host.high_water() <= CARD);
}
