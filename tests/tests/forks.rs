//! Forked children that outlive the process whose contexts they have inherited.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use apportion_tests::{CONTEXT, MIB, PATIENCE, TestHost, eventually};

/// The child has inherited the parent's descriptors, so the driver keeps the parent's memory.
#[test]
fn memory_that_a_forked_child_keeps_of_its_dead_parent_counts_until_it_ends() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let mut owner = host.victim(&["--gpu-memory", "2000", "--name", "loader"]);
    let parent = owner.step("spawn alloc 1000M fork").value();
    let parent = Pid::from_raw(i32::try_from(parent).expect("a pid"));
    let child = only_child(parent);
    let held = 1000 * MIB + CONTEXT;
    assert_eq!(host.used(), held);
    let grant = || host.top()["allocations"][0]["grants"][0].clone();
    eventually(PATIENCE, "both are known", || {
        let processes = host.top()["allocations"][0]["processes"].clone();
        processes.as_array().is_some_and(|all| all.len() >= 3)
    });

    kill(parent, Signal::SIGKILL).expect("it runs");
    eventually(PATIENCE, "what is left counts", || {
        let grant = grant();
        grant["claimed_bytes"] == 0 && grant["overhead_bytes"] == held
    });
    assert_eq!(host.used(), held, "the child has the descriptors");
    owner.step("alloc 700M").refused();
    owner.step("alloc 200M").ok();

    kill(child, Signal::SIGKILL).expect("it runs");
    eventually(PATIENCE, "it is back", || {
        host.used() == 200 * MIB + CONTEXT && grant()["overhead_bytes"] == 0
    });
    owner.step("alloc 1400M").ok();
    assert!(owner.end().success());
    let offences = host.metric("apportion_offences_total", &[]);
    assert_eq!(offences, Some(0.0), "{}", host.agent_log());
}

fn only_child(parent: Pid) -> Pid {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(file).expect("the parent runs");
    Pid::from_raw(text.trim().parse().expect("one child"))
}
