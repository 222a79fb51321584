//! Faults outside the program: a driver that refuses, is slow or loses a card, and programs that die in the middle of a
//! call. The ledger and the account stay correct.

use std::time::{Duration, Instant};

use apportion_sim_machine::{
    CardUtilization, FaultEffect, FaultRule, MachineRequest, NvmlControl, NvmlRequest,
};
use apportion_tests::{CARD, CONTEXT, MIB, PATIENCE, TestHost, cards, eventually};

const LIMIT: u64 = 2000 * MIB;
const OPTIONS: &[&str] = &["--gpu-memory", "2000", "--name", "unlucky"];

/// A machine with one card, where calls of `function` have this effect.
fn host(function: &str, nth: Option<u64>, effect: FaultEffect) -> TestHost {
    let mut machine = cards(1);
    machine.rules.push(FaultRule {
        function: function.to_owned(),
        nth,
        effect,
    });
    TestHost::with(&machine)
}

#[test]
fn what_the_driver_refuses_is_not_charged() {
    for (function, step) in [
        ("cuMemAlloc_v2", "alloc 900M"),
        ("cuMemAllocManaged", "managed 900M"),
        ("cuMemAllocPitch_v2", "pitch 1048576 900"),
        ("cuMemAllocAsync", "async 900M"),
        ("cuMemCreate", "create 900M"),
    ] {
        for code in [2, 999] {
            let host = host(function, Some(1), FaultEffect::Error(code));
            let mut victim = host.victim(OPTIONS);
            let refused = victim.step(step);
            assert_eq!((refused.code, refused.numbers[0]), (code, 1), "{function}");
            assert_eq!(
                victim.step("info").numbers,
                [LIMIT - CONTEXT, LIMIT],
                "{function} {code}"
            );
            victim.step(step).ok();
            assert_eq!(victim.errors(), "", "{function}: a hook says nothing");
        }
    }
}

#[test]
fn what_the_driver_does_not_free_stays_charged() {
    let host = host("cuMemFree_v2", Some(1), FaultEffect::Error(999));
    let mut victim = host.victim(OPTIONS);
    victim.step("alloc 1600M").ok();
    assert_eq!(victim.step("free 0").code, 999);
    victim.step("alloc 200M").refused();
    assert!(host.used() <= LIMIT);
}

#[test]
fn a_context_that_the_driver_refuses_is_not_charged() {
    let host = host("cuDevicePrimaryCtxRetain", Some(2), FaultEffect::Error(2));
    let mut victim = host.victim(OPTIONS);
    // The agent's own first query of the card is the first call, unless it knew the card already.
    let codes = [victim.step("start").code, victim.step("start").code];
    assert!(codes.contains(&0), "{codes:?}");
    assert_eq!(victim.step("info").numbers, [LIMIT - CONTEXT, LIMIT]);
}

#[test]
fn a_program_killed_in_the_middle_of_a_call_leaves_no_debt() {
    let host = host("cuMemAlloc_v2", None, FaultEffect::Microseconds(2_000_000));
    let _agent = host.agent(&["--tick", "20"]);
    let mut parent = host.victim(OPTIONS);
    let claimed = || host.top()["allocations"][0]["grants"][0]["claimed_bytes"].clone();
    for _ in 0..3 {
        // The parent continues when its child is killed, which happens during the child's driver call.
        parent.begin("fork alloc 1600M");
        eventually(PATIENCE, "the call is charged", || {
            claimed() == 1600 * MIB + CONTEXT
        });
        assert_eq!(host.used(), CONTEXT, "and not yet made");
        let child = only_child(parent.pid());
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).expect("it runs");
        parent.finish().ok();
        parent.step("reap").ok();
        eventually(PATIENCE, "the account is empty", || claimed() == 0);
    }
    assert_eq!(host.used(), 0);
    parent.step("alloc 1600M").ok();
    assert_eq!(
        parent.step("info").numbers,
        [LIMIT - CONTEXT - 1600 * MIB, LIMIT]
    );
}

fn only_child(parent: u32) -> nix::unistd::Pid {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(file).expect("the parent runs");
    nix::unistd::Pid::from_raw(text.trim().parse().expect("one child"))
}

#[test]
fn a_slow_driver_holds_up_only_the_program_that_called_it() {
    let host = host(
        "cuMemAllocManaged",
        Some(1),
        FaultEffect::Microseconds(3_000_000),
    );
    let mut slow = host.victim(OPTIONS);
    let mut neighbour = host.victim(&["--gpu-memory", "2000"]);
    slow.say("spawn start").last().expect("an answer").ok();
    neighbour.step("start").ok();
    let started = Instant::now();
    slow.begin("managed 100M");
    neighbour.step("alloc 1700M").ok();
    neighbour.step("alloc 1").refused();
    neighbour.step("free 0").ok();
    assert!(
        host.top()["allocations"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    );
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    slow.finish().ok();
}

#[test]
fn a_lost_card_is_not_given_out_until_it_is_back() {
    let host = TestHost::with(&cards(2));
    let _agent = host.agent(&["--tick", "50"]);
    let uuid = host.card(0).uuid;
    let control = |lost| NvmlRequest::Control(NvmlControl::Lost { card: 0, lost });
    host.ask(MachineRequest::Nvml(control(true)));
    let healthy = || host.metric("apportion_gpu_healthy", &[&uuid]);
    eventually(PATIENCE, "the loss is seen", || healthy() == Some(0.0));
    let refused = host.run(&["--gpu-memory", "100", "--gpu", &uuid], &["true"]);
    refused.fails_in_one_line(1);
    let mut other = host.victim(&["--gpu-memory", "100"]);
    assert_eq!(other.step("total").value(), 100 * MIB);
    host.ask(MachineRequest::Nvml(control(false)));
    eventually(PATIENCE, "it is back", || healthy() == Some(1.0));
    assert!(
        host.run(&["--gpu-memory", "100", "--gpu", &uuid], &["true"])
            .status
            .success()
    );
}

#[test]
fn a_driver_that_goes_away_takes_nobody_with_it_and_its_successor_is_found() {
    let mut host = TestHost::new();
    let agent = host.agent(&["--tick", "50"]);
    let mut victim = host.victim(OPTIONS);
    victim.step("alloc 500M").ok();
    host.kill_driver();
    assert_ne!(victim.step("alloc 100M").code, 0, "an error and not a hang");
    assert_eq!(
        host.top()["allocations"][0]["name"],
        "unlucky",
        "the agent still answers"
    );
    assert!(victim.end().success());
    host.start_driver();
    let mut next = None;
    eventually(
        PATIENCE,
        "the agent gives out the new driver's card",
        || {
            let said = host.run_victim(&["--gpu-memory", "1000"], "total alloc 600M alloc 600M");
            let is_given = said.status.success();
            next = Some(said);
            is_given
        },
    );
    let out = next.expect("it was run").out;
    assert_eq!(
        out,
        format!("total 0 {}\nalloc 0 0\nalloc 2 1\n", 1000 * MIB)
    );
    assert_eq!(host.top()["node"]["pid"], agent.pid());
}

#[test]
fn how_busy_a_card_is_shows() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let utilisation = CardUtilization {
        gpu: 75,
        ..CardUtilization::default()
    };
    let control = NvmlControl::Utilisation {
        card: 0,
        utilisation,
    };
    host.ask(MachineRequest::Nvml(NvmlRequest::Control(control)));
    eventually(PATIENCE, "it shows", || {
        host.metric("apportion_gpu_utilisation_ratio", &[]) == Some(0.75)
    });
    assert_eq!(host.top()["cards"][0]["utilisation_percent"], 75);
}

#[test]
fn what_slows_a_card_shows() {
    const THERMAL: u64 = 0x20;
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let shown = |reason: &str| host.metric("apportion_gpu_throttled", &[reason]);
    let reasons = ["reason=\"thermal\"", "reason=\"power_cap\""];
    eventually(PATIENCE, "nothing does", || {
        reasons.map(shown) == [Some(0.0), Some(0.0)]
    });
    let control = NvmlControl::Throttled {
        card: 0,
        reasons: THERMAL,
    };
    host.ask(MachineRequest::Nvml(NvmlRequest::Control(control)));
    eventually(PATIENCE, "heat does", || {
        reasons.map(shown) == [Some(1.0), Some(0.0)]
    });
}

#[test]
fn programs_of_no_allocation_show_as_unmanaged() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let mut outside = host.free_victim();
    outside.step("alloc 700M").ok();
    let unmanaged = || host.metric("apportion_gpu_memory_unmanaged_bytes", &[]);
    let held = (700 * MIB + CONTEXT) as f64;
    eventually(PATIENCE, "they show", || unmanaged() == Some(held));
    // Their memory is not given out, and becomes free when they end.
    let free = || host.metric("apportion_gpu_memory_free_bytes", &[]);
    assert_eq!(free(), Some(CARD as f64 - held));
    let most = ["--gpu-memory", "9500"];
    let refused = host.run(&most, &["true"]);
    assert!(
        !refused.status.success() && refused.err.contains("free"),
        "{}",
        refused.err
    );
    assert!(outside.end().success());
    eventually(PATIENCE, "they are gone", || unmanaged() == Some(0.0));
    assert_eq!(free(), Some(CARD as f64));
    assert!(host.run(&most, &["true"]).status.success());
}
