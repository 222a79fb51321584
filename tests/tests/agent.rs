//! The agent's life: it starts when needed, can be killed without harm, keeps its ledger, and exits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use apportion_reference::ProcessPrivileges;
use apportion_tests::{CONTEXT, CommandOutput, MIB, PATIENCE, TestHost, built, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

const OPTIONS: &[&str] = &["--gpu-memory", "2000", "--name", "kept"];

fn allocations(top: &Value) -> usize {
    top["allocations"].as_array().map_or(0, Vec::len)
}

/// What a ledger stores: everything of each allocation that does not come from samples.
fn ledger(top: &Value) -> Vec<Value> {
    let fields = [
        "id",
        "name",
        "state",
        "holder",
        "created_at_ms",
        "account_dir",
    ];
    top["allocations"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|allocation| {
            let mut kept: Vec<Value> = fields
                .iter()
                .map(|name| allocation[*name].clone())
                .collect();
            for grant in allocation["grants"].as_array().into_iter().flatten() {
                kept.extend(
                    ["card", "limit_bytes", "claimed_bytes"].map(|name| grant[name].clone()),
                );
            }
            Value::Array(kept)
        })
        .collect()
}

/// The bytes that the processes of this allocation have claimed.
fn claimed(host: &TestHost, name: &str) -> u64 {
    let top = host.top();
    let mut all = top["allocations"].as_array().into_iter().flatten();
    let named = all.find(|allocation| allocation["name"] == name);
    named
        .and_then(|it| it["grants"][0]["claimed_bytes"].as_u64())
        .unwrap_or(0)
}

#[test]
fn limits_hold_while_the_agent_is_dead_and_the_next_one_has_the_same_ledger() {
    let host = TestHost::new();
    let agent = host.agent(&[]);
    let mut kept = host.victim(OPTIONS);
    kept.step("start").ok();
    let mut other = host.victim(&["--gpu-fraction", "0.3", "--name", "other"]);
    kept.step("alloc 1000M").ok();
    other.step("alloc 500M").ok();
    eventually(PATIENCE, "the sample is taken", || {
        claimed(&host, "other") == 500 * MIB + CONTEXT
    });
    let before = ledger(&host.top());
    let mut load = host.victim(&["--gpu-memory", "1000", "--name", "load"]);
    load.step("start").ok();
    load.begin("churn 7 30000");
    agent.kill();

    kept.step("alloc 1000M").refused();
    kept.step("alloc 700M").ok();
    kept.step("alloc 1").refused();
    kept.step("free 1").ok();
    assert_eq!(kept.step("info").numbers, [700 * MIB, 2000 * MIB]);
    let child = kept.say("spawn alloc 400M");
    assert_eq!(
        child[0].code, 0,
        "a process that starts without an agent is limited, too"
    );
    kept.step("alloc 100M").refused();
    kept.step("reap").ok();

    let _agent = host.agent(&[]);
    let churned = load.finish();
    assert_eq!(churned.code, 0, "{churned:?}");
    assert!(
        churned.numbers.iter().all(|count| *count > 0),
        "{churned:?}"
    );
    assert!(load.end().success());
    eventually(PATIENCE, "the load's allocation is released", || {
        allocations(&host.top()) == 2
    });
    eventually(PATIENCE, "the sample is taken", || {
        claimed(&host, "other") == 500 * MIB + CONTEXT
    });
    assert_eq!(ledger(&host.top()), before);
    kept.step("alloc 1000M").refused();
    kept.step("alloc 700M").ok();
}

#[test]
fn an_allocation_whose_program_ended_without_an_agent_is_released_by_the_next() {
    let host = TestHost::new();
    let agent = host.agent(&[]);
    let mut gone = host.victim(OPTIONS);
    gone.step("alloc 1000M").ok();
    let mut stays = host.victim(&["--gpu-memory", "1000", "--name", "stays"]);
    stays.step("start").ok();
    agent.kill();
    gone.signal(Signal::SIGKILL);
    gone.wait();
    let _agent = host.agent(&[]);
    eventually(PATIENCE, "one is released", || {
        allocations(&host.top()) == 1
    });
    assert_eq!(host.top()["allocations"][0]["name"], "stays");
    let accounts = std::fs::read_dir(host.instance().join("accounts")).expect("a folder");
    assert_eq!(accounts.count(), 1);
}

#[test]
fn an_agent_that_is_asked_to_leave_goes_at_once_and_limits_stay() {
    let host = TestHost::new();
    let agent = host.agent(&[]);
    let mut victim = host.victim(OPTIONS);
    victim.step("alloc 1700M").ok();
    assert!(agent.stop().success());
    victim.step("alloc 1").refused();
    victim.step("free 0").ok();
    victim.step("alloc 1700M").ok();
    let _agent = host.agent(&[]);
    assert_eq!(host.top()["allocations"][0]["name"], "kept");
}

#[test]
fn an_allocation_ends_with_its_program_however_that_ends() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    for end in ["exit 0", "exit 3", "kill9"] {
        let mut victim = host.victim(OPTIONS);
        victim.step("alloc 1000M").ok();
        assert_eq!(allocations(&host.top()), 1, "{end}");
        victim.begin(end);
        victim.wait();
        eventually(PATIENCE, end, || allocations(&host.top()) == 0);
        assert_eq!(host.used(), 0, "{end}");
    }
    let accounts = std::fs::read_dir(host.instance().join("accounts")).expect("a folder");
    assert_eq!(accounts.count(), 0);
}

#[test]
fn an_allocation_lasts_until_its_last_process_is_gone() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut victim = host.victim(OPTIONS);
    let child = victim.step("spawn alloc 1000M").value();
    victim.begin("exit 0");
    victim.wait();
    eventually(PATIENCE, "it drains", || {
        host.top()["allocations"][0]["state"] == "draining"
    });
    assert_eq!(host.used(), 1000 * MIB + CONTEXT);
    let child = nix::unistd::Pid::from_raw(i32::try_from(child).expect("a pid"));
    nix::sys::signal::kill(child, Signal::SIGKILL).expect("it runs");
    eventually(PATIENCE, "it is released", || allocations(&host.top()) == 0);
}

#[test]
fn a_limit_within_a_limit_leaves_neither_behind() {
    let host = TestHost::new();
    let _agent = host.agent(&["--tick", "50"]);
    let inner = host.limited(
        &["--gpu-memory", "1000", "--name", "inner"],
        built("victim"),
    );
    let mut outer = host.limited(
        &["--gpu-memory", "3000", "--name", "outer"],
        inner.get_program(),
    );
    let mut victim = host.start(outer.args(inner.get_args()).arg("-"));
    victim.step("alloc 700M").ok();
    victim.step("alloc 1").refused();
    assert_eq!(allocations(&host.top()), 2);
    assert_eq!(claimed(&host, "outer"), 0);
    assert!(victim.end().success());
    eventually(PATIENCE, "both are released", || {
        allocations(&host.top()) == 0
    });
    let offences = host.metric("apportion_offences_total", &[]);
    assert_eq!(offences, Some(0.0), "{}", host.agent_log());

    // The inner allocation is released before its process ends, because the process cannot execute this command.
    let mut failing = host.limited(&["--gpu-memory", "3000"], inner.get_program());
    failing
        .args(["run", "--sim", "--gpu-memory", "1000", "--"])
        .arg(not_a_program(&host));
    assert_eq!(CommandOutput::by(&mut failing).code(), Some(1));
    eventually(PATIENCE, "both are released", || {
        allocations(&host.top()) == 0
    });
}

/// A file that is executable by its mode but cannot be executed.
fn not_a_program(host: &TestHost) -> PathBuf {
    let file = host.dir().join("not-a-program");
    std::fs::write(&file, "#!/no/such/interpreter\n").expect("the folder is writable");
    let may_run = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&file, may_run).expect("it is ours");
    file
}

#[test]
fn an_interrupt_from_the_terminal_leaves_nothing_behind() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut victim = host.victim(OPTIONS);
    victim.step("fork alloc 200M").ok();
    victim.step("spawn alloc 200M").ok();
    victim.step("alloc 200M").ok();
    victim.signal_group(Signal::SIGINT);
    assert!(!victim.wait().success());
    eventually(PATIENCE, "the allocation is released", || {
        allocations(&host.top()) == 0
    });
    assert_eq!(host.used(), 0);
    eventually(PATIENCE, "only the agent is left", || {
        host.leftovers().len() == 1
    });
}

#[test]
fn commands_that_race_start_one_agent() {
    let host = TestHost::new();
    let mut victims: Vec<_> = (0..6)
        .map(|_| host.victim(&["--gpu-memory", "100"]))
        .collect();
    for victim in &mut victims {
        victim.step("total").ok();
    }
    let agents = host.leftovers().into_iter().filter(|process| {
        process.command.contains("apportion-agent") && !process.command.contains("probe")
    });
    assert_eq!(agents.count(), 1);
    assert_eq!(allocations(&host.top()), 6);
}

#[test]
fn two_agents_cannot_serve_one_folder() {
    let host = TestHost::new();
    let agent = host.agent(&[]);
    let mut second = host.staged("apportion-agent");
    second
        .arg("--dir")
        .arg(host.instance())
        .env("LD_LIBRARY_PATH", host.libraries().join("sim"));
    second.env("APPORTION_SIM_SOCKET", host.instance().join("driver.sock"));
    let said = CommandOutput::by(&mut second);
    assert!(!said.status.success(), "{said:?}");
    assert_eq!(host.top()["node"]["pid"], agent.pid());
}

#[test]
fn an_idle_agent_leaves_and_one_with_an_allocation_stays() {
    let host = TestHost::new();
    let mut agent = host.agent(&["--idle-exit", "1"]);
    let mut victim = host.victim(&["--gpu-memory", "100"]);
    victim.step("total").ok();
    let since = Instant::now();
    eventually(PATIENCE, "it could have left twice", || {
        since.elapsed() > Duration::from_secs(2)
    });
    assert_eq!(allocations(&host.top()), 1);
    assert!(victim.end().success());
    assert!(agent.wait().success());
    assert_eq!(host.leftovers(), []);
}

#[test]
fn programs_of_nobody_take_from_what_can_be_given() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut outside = host.free_victim();
    outside.step("alloc 4700M").ok();
    eventually(PATIENCE, "it is seen", || {
        host.top()["cards"][0]["unmanaged_bytes"] == 4700 * MIB + CONTEXT
    });
    let refused = host.run(&["--gpu-memory", "6000"], &["true"]);
    let line = refused.fails_in_one_line(1);
    assert!(
        line.contains("5000 MiB used by processes without an allocation"),
        "{line}"
    );
    assert!(
        host.run(&["--gpu-memory", "5000"], &["true"])
            .status
            .success()
    );
}

/// The agent's privileges on a machine: a subset of those of the process that started it.
#[test]
fn the_agent_keeps_no_right_that_its_table_does_not_name() {
    let host = TestHost::new();
    let agent = host.agent(&[]);
    let ours = ProcessPrivileges::of(Path::new("/proc/self"));
    let documented = ProcessPrivileges::documented("agent on a machine, started by root");
    let wanted: Vec<&str> = documented
        .capabilities
        .split(' ')
        .filter(|name| ours.capabilities.split(' ').any(|one| one == *name))
        .collect();
    let wanted = if wanted.is_empty() {
        ProcessPrivileges::documented("agent on a machine, started by a user").capabilities
    } else {
        wanted.join(" ")
    };
    let threads = format!("/proc/{}/task", agent.pid());
    let threads = fs::read_dir(threads).expect("the agent runs");
    for thread in threads {
        let rights = ProcessPrivileges::of(&thread.expect("the folder is readable").path());
        assert_eq!(rights.capabilities, wanted);
        // The table documents these as inherited.
        assert_eq!(rights.bounding, ours.bounding);
        assert_eq!(rights.no_new_privileges, ours.no_new_privileges);
        assert_eq!(rights.seccomp, ours.seccomp);
    }
}
