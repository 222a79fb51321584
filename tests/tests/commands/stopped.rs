//! Commands while the agent does not answer, and names that others chose.

use std::time::{Duration, Instant};

use apportion_tests::{CommandOutput, PATIENCE, TestHost, built, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn no_command_waits_for_an_agent_that_is_stopped() {
    let host = TestHost::new();
    let agent = host.agent(&[]);
    let mut victim = host.victim(&["--gpu-memory", "1000", "--name", "train"]);
    victim.step("start").ok();
    let pid = agent.pid();
    let process = Pid::from_raw(pid.cast_signed());
    kill(process, Signal::SIGSTOP).expect("the agent is our child");
    let stopped = format!("its process {pid} is stopped");
    for words in [
        &["run", "--gpu-memory", "100", "--", "true"][..],
        &["top", "--once"],
        &["top", "--json"],
        &["gpus"],
        &["doctor"],
        &["resize", "train", "--gpu-memory", "200"],
        &["suspend", "train"],
        &["resume", "train"],
        &["demo"],
    ] {
        let began = Instant::now();
        let said = CommandOutput::by(
            host.staged("apportion")
                .args(["--sim", "--timeout", "1"])
                .args(words),
        );
        assert_eq!(said.code(), Some(1), "{said:?}");
        let text = format!("{}{}", said.out, said.err);
        assert!(text.contains(&stopped), "{words:?}: {text}");
        assert!(text.contains(&format!("kill -CONT {pid}")), "{text}");
        assert!(began.elapsed() < Duration::from_secs(30), "{words:?}");
    }
    let said = CommandOutput::by(&mut host.simulated("gpus"));
    let line = said.fails_in_one_line(1);
    assert!(line.contains("within 5 s"), "{line}");

    kill(process, Signal::SIGCONT).expect("the agent is our child");
    assert_eq!(host.top()["allocations"][0]["name"], "train");
}

#[test]
fn a_timeout_is_a_number_of_seconds() {
    let host = TestHost::bare();
    for wrong in ["0", "-1", "x", "3601", ""] {
        let mut command = host.simulated("gpus");
        let said = CommandOutput::by(command.arg(format!("--timeout={wrong}")));
        let line = said.fails_in_one_line(64);
        assert!(line.contains("--timeout"), "{line}");
    }
}

#[test]
fn a_process_name_gives_the_terminal_no_orders() {
    let host = TestHost::new();
    let program = host.dir().join("\x1b]0;pwn\x07");
    std::os::unix::fs::symlink(built("victim"), &program).expect("the folder is ours");
    let mut command = host.limited(&["--gpu-memory", "1000", "--name", "named"], &program);
    let mut victim = host.start(command.arg("-"));
    victim.step("alloc 100M").ok();
    let name = "\\u{1b}]0;pwn\\u{7}";
    eventually(PATIENCE, "the process is shown", || {
        let shown = CommandOutput::by(host.simulated("top").arg("--once"))
            .well()
            .out;
        assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");
        shown.lines().any(|line| line.ends_with(name))
    });
}
