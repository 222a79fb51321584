//! A program that bypasses the library is noticed, reported and, if the policy says so, ended. Memory that was taken
//! without a call is counted too.

use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, eventually};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

const OPTIONS: &[&str] = &["--gpu-memory", "2000", "--name", "sly"];

fn enforcement(host: &TestHost) -> Value {
    host.top()["allocations"][0]["enforcement"].clone()
}

fn is_gone(pid: u64) -> bool {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    kill(pid, None) == Err(Errno::ESRCH) || stat.contains(") Z ")
}

/// Memory that is taken past the library is treated like that of a video encoder, which no call announces: it is
/// counted, and is no offence while the allocation as a whole keeps its limit.
#[test]
fn a_child_without_the_library_counts_and_is_reported_above_the_limit() {
    for way in ["bare", "stripped"] {
        let host = TestHost::new();
        let _agent = host.agent(&["--tick", "50", "--policy", "kill"]);
        let offences = || host.metric("apportion_offences_total", &[]);
        let grant = || host.top()["allocations"][0]["grants"][0].clone();
        let mut victim = host.victim(OPTIONS);
        victim.step("alloc 100M").ok();
        let child = victim.step(&format!("{way} alloc 1000M")).value();
        let hidden = 1000 * MIB + CONTEXT;
        eventually(PATIENCE, "it counts", || {
            grant()["overhead_bytes"] == hidden
        });
        victim.step("alloc 700M").refused();
        victim.step("alloc 200M").ok();
        let mut looks = 0;
        eventually(PATIENCE, "it has been seen often", || {
            looks += 1;
            looks > 20
        });
        assert_eq!(
            (enforcement(&host), offences()),
            ("attached".into(), Some(0.0))
        );
        assert!(!is_gone(child), "{way}: it keeps to the limit");
        victim.step("reap").ok();
        eventually(PATIENCE, "it is forgotten", || {
            grant()["overhead_bytes"] == 0
        });
        victim.step("alloc 900M").ok();
        assert_eq!(offences(), Some(0.0), "{way}");
    }
}

#[test]
fn a_child_without_the_library_that_exceeds_the_limit_is_reported_and_forgotten_with_its_end() {
    for way in ["bare", "stripped"] {
        let host = TestHost::new();
        let _agent = host.agent(&["--tick", "50"]);
        let mut victim = host.victim(OPTIONS);
        victim.step("alloc 100M").ok();
        let child = victim.step(&format!("{way} alloc 1400M")).value();
        eventually(PATIENCE, "it is seen", || enforcement(&host) == "bypassed");
        let offences = || host.metric("apportion_offences_total", &["kind=\"bypassed\""]);
        assert_eq!(offences(), Some(1.0), "{way}");
        assert!(
            host.agent_log().contains("WARN"),
            "{way}: {}",
            host.agent_log()
        );
        victim.step("alloc 1").refused();
        assert!(!is_gone(child), "{way}: it is observed, not killed");

        victim.step("reap").ok();
        eventually(PATIENCE, "it is forgotten", || {
            enforcement(&host) == "attached"
        });
        victim.step("alloc 1500M").ok();
        assert_eq!(offences(), Some(1.0), "{way}: one offence, counted once");
    }
}

#[test]
fn a_process_that_takes_more_than_the_limit_is_reported() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let mut victim = host.victim(OPTIONS);
    victim.step("alloc 100M").ok();
    victim.step("bare alloc 3000M").ok();
    eventually(PATIENCE, "it is seen", || {
        host.metric("apportion_offences_total", &["kind=\"overlimit\""]) == Some(1.0)
    });
    victim.step("alloc 1").refused();
    victim.step("alloc 1M").refused();
    assert_eq!(victim.step("info").numbers, [0, 2000 * MIB]);
}

#[test]
fn under_the_policy_that_kills_the_offender_is_killed_and_nobody_else() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50", "--policy", "kill"]);
    let mut victim = host.victim(OPTIONS);
    let mut neighbour = host.victim(&["--gpu-memory", "2000", "--name", "neighbour"]);
    victim.step("alloc 500M").ok();
    neighbour.step("alloc 1700M").ok();
    let child = victim.step("bare alloc 3000M").value();
    eventually(PATIENCE, "the offender is gone", || is_gone(child));
    eventually(PATIENCE, "it is counted", || {
        host.metric("apportion_offences_total", &["kind=\"killed\""]) == Some(1.0)
    });
    eventually(PATIENCE, "its memory is back", || {
        host.used() == 500 * MIB + 1700 * MIB + 2 * CONTEXT
    });
    eventually(PATIENCE, "all is well", || enforcement(&host) == "attached");
    victim.step("touch 0").ok();
    neighbour.step("touch 0").ok();
    victim.step("alloc 1200M").ok();
}

/// Lazily loaded code, queues and page tables: no call says how much memory they need.
#[test]
fn what_the_driver_takes_by_itself_for_a_program_at_its_limit_ends_nobody() {
    for policy in ["kill", "evict"] {
        let host = TestHost::new();
        let _agent = host.agent(&["--tick", "50", "--policy", policy]);
        let mut victim = host.victim(OPTIONS);
        victim.step("alloc 1700M").ok();
        victim.step("alloc 2M").refused();
        victim.step("unasked 40M").ok();
        eventually(PATIENCE, "it is seen", || enforcement(&host) == "overlimit");
        victim.step("unasked 200M").ok();
        victim.step("alloc 1").refused();
        eventually(PATIENCE, "it counts", || {
            host.top()["allocations"][0]["grants"][0]["overhead_bytes"].clone() == 240 * MIB
        });
        let mut looks = 0;
        eventually(PATIENCE, "it has been seen often", || {
            looks += 1;
            looks > 20
        });
        assert!(!is_gone(victim.pid().into()), "{policy}");
        assert_eq!(enforcement(&host), "overlimit");
        let offences = host.metric("apportion_offences_total", &[]);
        assert_eq!(offences, Some(0.0), "{policy}: {}", host.agent_log());
        // The program is within its limit again, and continues.
        victim.step("free 0").ok();
        victim.step("alloc 1000M").ok();
    }
}

#[test]
fn a_program_that_takes_much_past_the_library_is_ended_though_it_charges() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50", "--policy", "kill"]);
    let mut victim = host.victim(OPTIONS);
    let mut neighbour = host.victim(&["--gpu-memory", "2000", "--name", "neighbour"]);
    neighbour.step("alloc 1700M").ok();
    victim.step("alloc 1700M").ok();
    let more = CONTEXT / MIB + 2;
    victim.step(&format!("unasked {more}M")).ok();
    let pid = victim.pid().into();
    eventually(PATIENCE, "the offender is gone", || is_gone(pid));
    eventually(PATIENCE, "it is counted", || {
        host.metric("apportion_offences_total", &["kind=\"killed\""]) == Some(1.0)
    });
    neighbour.step("touch 0").ok();
}

#[test]
fn programs_at_their_limits_are_never_taken_for_offenders() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "10", "--policy", "kill"]);
    let mut killing = host.victim(&["--gpu-memory", "3000"]);
    let mut churning = host.victim(&["--gpu-memory", "700"]);
    killing.begin("kills 300 5");
    churning.begin("churn 6 5000");
    let churned = churning.finish();
    assert!(churned.code == 0 && churned.numbers[1] > 0, "{churned:?}");
    killing.finish().ok();
    let offences = host.metric("apportion_offences_total", &[]);
    assert_eq!(offences, Some(0.0), "{}", host.agent_log());
}

#[test]
fn memory_that_comes_and_goes_is_never_taken_for_overhead() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "10"]);
    let mut churning: Vec<_> = (0..2)
        .map(|_| host.victim(&["--gpu-memory", "1500"]))
        .collect();
    for (seed, victim) in churning.iter_mut().enumerate() {
        victim.step("start").ok();
        victim.begin(&format!("churn {seed} 20000"));
    }
    let (mut most, mut looks) = (0.0, 0);
    eventually(PATIENCE * 4, "the load ends", || {
        most = host
            .metric("apportion_container_memory_overhead_bytes", &[])
            .unwrap_or_default()
            .max(most);
        looks += 1;
        looks > 300
    });
    for victim in &mut churning {
        victim.finish().ok();
    }
    assert_eq!(most, 0.0, "{}", host.agent_log());
}

#[test]
fn further_contexts_count_no_less_than_they_take() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut victim = host.victim(OPTIONS);
    for _ in 0..3 {
        victim.step("context").ok();
        assert!(victim.step("info").numbers[0] + host.used() <= 2000 * MIB);
    }
    for _ in 0..3 {
        victim.step("uncontext").ok();
    }
    victim.step("release").ok();
    assert_eq!(host.used(), 0);
    eventually(PATIENCE, "all of it is given back", || {
        host.top()["allocations"][0]["grants"][0]["used_bytes"] == 0
    });
}
