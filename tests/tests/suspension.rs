//! `apportion suspend` and `apportion resume`: programs that do not fit on the card together take turns, and each has
//! its memory as it was when it wakes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use apportion_tests::{
    AgentProcess, CARD, CONTEXT, CommandOutput, MIB, PATIENCE, TestHost, VictimProcess, eventually,
};
use serde_json::{Value, json};

/// Both programs want 60 % of the card.
const SHARE: u64 = 6000 * MIB;
/// What each allocates of it, beside its context.
const HELD: &str = "5600M";

fn started(host: &TestHost, name: &str) -> VictimProcess {
    let mut program = host.victim(&["--gpu-memory", "6000", "--name", name]);
    program.fill(HELD);
    program
}

fn said(host: &TestHost, command: &str, name: &str) -> CommandOutput {
    CommandOutput::by(host.simulated(command).arg(name))
}

#[track_caller]
fn suspend(host: &TestHost, name: &str) -> String {
    said(host, "suspend", name).well().out
}

#[track_caller]
fn resume(host: &TestHost, name: &str) -> String {
    said(host, "resume", name).well().out
}

fn named(host: &TestHost, name: &str) -> Value {
    let top = host.top();
    let all = top["allocations"].as_array().expect("it is there");
    let found = all.iter().find(|allocation| allocation["name"] == name);
    found.cloned().unwrap_or_default()
}

fn agent(host: &TestHost) -> AgentProcess {
    host.agent(&["--tick", "50", "--context-reserve", "300"])
}

#[test]
fn two_programs_of_sixty_percent_take_turns_on_one_card() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut first = started(&host, "first");
    let out = suspend(&host, "first");
    assert_eq!(out, "first: suspended, 5900 MiB moved to the host\n");
    assert_eq!(host.used(), 0, "the driver has all back");
    let top = host.top();
    assert_eq!(top["cards"][0]["granted_bytes"], 0);
    assert_eq!(top["cards"][0]["free_bytes"], CARD);
    let slept = named(&host, "first");
    assert_eq!(slept["suspension"], "suspended");
    assert_eq!(slept["grants"][0]["limit_bytes"], SHARE);
    assert_eq!(
        slept["grants"][0]["claimed_bytes"],
        5600 * MIB + CONTEXT,
        "the charges stay"
    );
    let table = CommandOutput::by(host.simulated("top").arg("--once")).well();
    assert!(table.out.contains("first       suspended"), "{}", table.out);

    let mut second = started(&host, "second");
    let refused = said(&host, "resume", "first");
    let line = refused.fails_in_one_line(1);
    for words in [
        "asked for 6000 MiB on GPU-",
        "4000 MiB free (of 10000 MiB",
        "held by second with 6000 MiB",
        "it stays suspended",
    ] {
        assert!(line.contains(words), "{line}");
    }
    for _ in 0..2 {
        suspend(&host, "second");
        assert_eq!(resume(&host, "first"), "first: resumed\n");
        first.assert_intact(HELD);
        suspend(&host, "first");
        resume(&host, "second");
        second.assert_intact(HELD);
    }
    let count = |action: &str, result: &str| {
        let labels = [
            format!("action=\"{action}\""),
            format!("result=\"{result}\""),
        ];
        host.metric("apportion_suspensions_total", &[&labels[0], &labels[1]])
    };
    assert_eq!(count("suspend", "done"), Some(5.0));
    assert_eq!(count("resume", "done"), Some(4.0));
    assert_eq!(count("resume", "refused"), Some(1.0));
    let of = |name: &str| host.metric("apportion_container_suspended", &[name]);
    assert_eq!((of("first/"), of("second/")), (Some(1.0), Some(0.0)));
    let took = host.metric(
        "apportion_suspension_duration_seconds_count",
        &["action=\"suspend\""],
    );
    assert_eq!(took, Some(5.0));
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}

#[test]
fn what_is_done_already_is_no_failure_and_an_unknown_name_is() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = started(&host, "train");
    assert_eq!(resume(&host, "train"), "train: runs already\n");
    suspend(&host, "train");
    assert_eq!(suspend(&host, "train"), "train: was suspended already\n");
    let mut resize = host.simulated("resize");
    let refused = CommandOutput::by(resize.args(["train", "--gpu-memory", "7000"]));
    let line = refused.fails_in_one_line(1);
    assert!(line.contains("is suspended; resume it first"), "{line}");
    for command in ["suspend", "resume"] {
        let refused = said(&host, command, "nobody");
        let line = refused.fails_in_one_line(1);
        assert!(line.contains("there is no allocation \"nobody\""), "{line}");
    }
    resume(&host, "train");
    program.assert_intact(HELD);
}

#[test]
fn a_sleeping_share_gets_no_memory_and_goes_on_when_it_wakes() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut parent = host.victim(&["--gpu-memory", "6000", "--name", "family"]);
    parent.step("alloc 1000M").ok();
    suspend(&host, "family");
    // A process that the driver does not know yet: nothing holds its calls but the library.
    parent.begin("spawn start alloc 1000M");
    let mut other = started(&host, "other");
    let _ = host.high_water();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(host.high_water(), 5600 * MIB + CONTEXT, "only the other's");
    let table = named(&host, "family");
    assert_eq!(table["suspension"], "suspended");
    other.step("free 0").ok();
    assert!(other.end().success());
    eventually(PATIENCE, "there is room again", || {
        said(&host, "resume", "family").code() == Some(0)
    });
    parent.finish().ok();
    assert_eq!(host.used(), 2 * (1000 * MIB + CONTEXT));
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}

#[test]
fn all_processes_of_a_share_sleep_and_wake_together() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut parent = host.victim(&["--gpu-memory", "6000", "--name", "family"]);
    // The child is forked first: CUDA does not survive a fork.
    parent.step("fork start alloc 1000M").ok();
    parent.fill("2000M");
    eventually(PATIENCE, "the agent knows both processes", || {
        named(&host, "family")["processes"].as_array().map(Vec::len) == Some(2)
    });
    let out = suspend(&host, "family");
    assert_eq!(out, "family: suspended, 3600 MiB moved to the host\n");
    assert_eq!(host.used(), 0);
    resume(&host, "family");
    assert_eq!(host.used(), 3000 * MIB + 2 * CONTEXT);
    parent.assert_intact("2000M");
}

#[test]
fn a_sleeper_that_is_killed_leaves_nothing_behind() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = started(&host, "train");
    suspend(&host, "train");
    program.signal(nix::sys::signal::Signal::SIGKILL);
    let _ = program.wait();
    eventually(PATIENCE, "its share is gone", || {
        named(&host, "train").is_null()
    });
    assert_eq!(host.top()["cards"][0]["free_bytes"], CARD);
    let _another = started(&host, "another");
}

#[test]
fn a_new_agent_finds_sleepers_asleep_and_gives_their_memory_to_one_only() {
    let host = TestHost::new();
    let first_agent = agent(&host);
    let mut sleeper = started(&host, "sleeper");
    suspend(&host, "sleeper");
    first_agent.kill();
    let second_agent = agent(&host);
    assert_eq!(named(&host, "sleeper")["suspension"], "suspended");
    assert_eq!(host.used(), 0, "nobody woke it");
    eventually(PATIENCE, "its memory is free", || {
        host.top()["cards"][0]["free_bytes"] == CARD
    });
    let mut other = started(&host, "other");
    second_agent.kill();
    let _agent = agent(&host);
    let refused = said(&host, "resume", "sleeper");
    assert!(
        refused.fails_in_one_line(1).contains("asked for 6000 MiB"),
        "{refused:?}"
    );
    other.assert_intact(HELD);
    assert!(other.end().success());
    eventually(PATIENCE, "there is room again", || {
        said(&host, "resume", "sleeper").code() == Some(0)
    });
    sleeper.assert_intact(HELD);
}

#[test]
fn an_elastic_share_sleeps_with_all_that_it_used_and_gets_it_back() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let elastic = ["--gpu-memory", "2000", "--gpu-memory-limit", "8000"];
    let mut program = host.victim(&[&elastic[..], &["--name", "elastic"]].concat());
    program.fill(HELD);
    suspend(&host, "elastic");
    assert_eq!(host.used(), 0);
    let top = host.top();
    assert_eq!(top["cards"][0]["granted_bytes"], 0);
    assert_eq!(top["cards"][0]["free_bytes"], CARD);
    assert_eq!(
        named(&host, "elastic")["grants"][0]["allowance_bytes"],
        5900 * MIB
    );

    let mut other = started(&host, "other");
    let refused = said(&host, "resume", "elastic");
    let line = refused.fails_in_one_line(1);
    assert!(line.contains("asked for 5900 MiB on GPU-"), "{line}");
    // A process that the driver does not know yet waits in the library, and asks for nothing.
    program.begin("spawn start alloc 1000M");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(host.used(), 5600 * MIB + CONTEXT, "only the other's");
    other.step("free 0").ok();
    assert!(other.end().success());
    eventually(PATIENCE, "there is room again", || {
        said(&host, "resume", "elastic").code() == Some(0)
    });
    program.finish().ok();
    program.assert_intact(HELD);
    program.step("alloc 500M").ok();
    assert_eq!(host.metric("apportion_offences_total", &[]), Some(0.0));
}

#[test]
fn a_program_that_the_driver_cannot_move_goes_on() {
    let host = TestHost::new();
    let _agent = agent(&host);
    let mut program = host.victim(&["--gpu-memory", "6000", "--name", "managed"]);
    program.step("fork start alloc 1000M").ok();
    program.step("managed 1000M").ok();
    let refused = said(&host, "suspend", "managed");
    let line = refused.fails_in_one_line(1);
    for words in [
        "could not be copied to the host",
        "managed memory",
        "nothing has changed",
    ] {
        assert!(line.contains(words), "{line}");
    }
    assert!(line.contains(&program.pid().to_string()), "{line}");
    program.step("alloc 1000M").ok();
    let now = named(&host, "managed");
    assert_eq!(now["suspension"], "running");
    assert_eq!(host.top()["cards"][0]["granted_bytes"], SHARE);
    let failed = ["action=\"suspend\"", "result=\"failed\""];
    assert_eq!(
        host.metric("apportion_suspensions_total", &failed),
        Some(1.0)
    );
}

/// Hands an order to the agent's child that moves processes, and returns its report line by line.
fn report_of_mover(host: &TestHost, order: &Value) -> Vec<Value> {
    let mut mover = host.staged("apportion-agent");
    mover
        .arg("move-processes")
        .env("LD_LIBRARY_PATH", host.libraries().join("sim"))
        .env("APPORTION_SIM_SOCKET", host.instance().join("driver.sock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut mover = mover.spawn().expect("the agent is staged");
    // It ends with its input, so the pipe stays open until it has reported.
    let mut input = mover.stdin.take().expect("it is piped");
    writeln!(input, "{order}").expect("it reads its order");
    let output = BufReader::new(mover.stdout.take().expect("it is piped"));
    let lines = output.lines().map(|line| line.expect("it writes lines"));
    let report = lines.map(|line| serde_json::from_str(&line).expect("it writes JSON"));
    let report = report.collect();
    mover.wait().expect("it ends");
    report
}

/// When a process was started, in the kernel's ticks.
fn start_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("its name is in parentheses");
    let start = fields.split_whitespace().nth(19);
    start
        .and_then(|start| start.parse().ok())
        .expect("field 22")
}

#[test]
fn a_process_that_the_driver_does_not_know_is_where_it_was() {
    let host = TestHost::new();
    let mut program = host.free_victim();
    program.step("alloc 1000M").ok();
    // It lives, and makes no CUDA call.
    let mut stranger = Command::new("sleep").arg("60").spawn().expect("it starts");
    let (program_pid, stranger_pid) = (program.pid(), stranger.id());
    let process = |pid: u32, has_memory: bool| json!({"pid": pid, "start": start_of(pid), "has_memory": has_memory});
    let order = |goal: &str, stranger_has_memory: bool| {
        json!({
            "goal": goal,
            "processes": [process(program_pid, true), process(stranger_pid, stranger_has_memory)],
            "lock_timeout_ms": 1000,
            "is_undone": true,
        })
    };
    let outcome_of_stranger = |report: &[Value]| {
        let mut lines = report.iter().map(|line| &line["process"]);
        let found = lines.find(|line| line["pid"] == stranger_pid);
        found
            .map(|line| line["outcome"].clone())
            .unwrap_or_default()
    };
    let end = |report: &[Value]| report.last().map(|line| line["end"].clone());

    let failed = report_of_mover(&host, &order("asleep", true));
    let invalid_value = json!({"failed": ["look", 1]});
    assert_eq!(outcome_of_stranger(&failed), invalid_value);
    let undone = json!({"is_done": false, "is_undone": true});
    assert_eq!(end(&failed), Some(undone), "{failed:?}");
    program.step("alloc 100M").ok();

    let done = report_of_mover(&host, &order("asleep", false));
    assert_eq!(outcome_of_stranger(&done), "absent");
    let done_end = json!({"is_done": true, "is_undone": false});
    assert_eq!(end(&done), Some(done_end.clone()), "{done:?}");
    assert_eq!(host.used(), 0, "the program sleeps");

    let awake = report_of_mover(&host, &order("awake", false));
    assert_eq!(end(&awake), Some(done_end), "{awake:?}");
    program.step("alloc 100M").ok();
    let _ = stranger.kill();
    let _ = stranger.wait();
}

#[test]
fn a_host_without_room_refuses_with_numbers_and_moves_nothing() {
    let host = TestHost::new();
    let groups = host.dir().join("groups");
    fs::create_dir(&groups).unwrap();
    fs::write(groups.join("memory.max"), (6000 * MIB).to_string()).unwrap();
    fs::write(groups.join("memory.current"), (1000 * MIB).to_string()).unwrap();
    let root = groups.display().to_string();
    let options = [
        "--tick",
        "50",
        "--context-reserve",
        "300",
        "--cgroup-root",
        &root,
    ];
    let _agent = host.agent(&options);
    let mut program = started(&host, "train");
    let refused = said(&host, "suspend", "train");
    let line = refused.fails_in_one_line(1);
    assert!(
        line.contains(
            "has no room for 5900 MiB: 5000 MiB are left of its memory limit of 6000 MiB"
        ),
        "{line}"
    );
    program.assert_intact(HELD);
    fs::write(groups.join("memory.current"), (50 * MIB).to_string()).unwrap();
    suspend(&host, "train");
}
