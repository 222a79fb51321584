//! Two users of one machine: the second one's commands find root's agent, and each user's allocations are protected.
//!
//! Only root can act as several users. For an ordinary user these tests do nothing.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use apportion_abi::paths;
use apportion_proto::v1::ListRequest;
use apportion_proto::{connect, identity};
use apportion_tests::{CommandOutput, MIB, PATIENCE, TestHost, eventually};
use serde_json::Value;
use tokio::runtime::Builder;
use tonic::{Code, Request, Status};

const ALICE: u32 = 4711;
const BOB: u32 = 4712;

/// A machine whose folders other users can enter.
fn shared_host() -> Option<TestHost> {
    if fs::metadata("/proc/self").ok()?.uid() != 0 {
        return None;
    }
    let host = TestHost::new();
    fs::set_permissions(host.dir(), Permissions::from_mode(0o711)).expect("it is there");
    fs::set_permissions(host.instance(), Permissions::from_mode(0o711)).expect("it is there");
    Some(host)
}

fn of(user: u32, mut command: Command) -> Command {
    command.uid(user).gid(user);
    command
}

fn victim(host: &TestHost, user: u32, name: &str, mib: &str) -> Command {
    let options = ["--gpu-memory", mib, "--name", name];
    let mut command = host.limited(&options, apportion_tests::built("victim"));
    command.arg("-");
    of(user, command)
}

fn named(top: &Value, name: &str) -> Value {
    let all = top["allocations"].as_array().expect("it is there");
    let found = all.iter().find(|allocation| allocation["name"] == name);
    found.cloned().unwrap_or_default()
}

#[test]
fn a_second_users_command_gets_its_share_from_roots_agent() {
    let Some(host) = shared_host() else { return };
    let _agent = host.agent(&["--tick", "50", "--users", "all", "--user-quota", "6000"]);
    let mut roots = host.victim(&["--gpu-memory", "3000", "--name", "roots"]);
    roots.step("alloc 100M").ok();
    let mut alices = host.start(&mut victim(&host, ALICE, "alices", "4000"));
    alices.step("alloc 3000M").ok();
    alices.step("alloc 1000M").refused();
    let top = host.top();
    let folder = named(&top, "alices")["account_dir"]
        .as_str()
        .unwrap()
        .to_owned();
    let usage = fs::metadata(format!("{folder}/usage")).unwrap();
    assert_eq!((usage.uid(), usage.mode() & 0o777), (ALICE, 0o600));
    // There is one ledger: what Alice has is not free for Bob, and Alice has a quota.
    let mut run = victim(&host, BOB, "bobs", "4000");
    let said = CommandOutput::by(&mut run);
    assert!(said.err.contains("roots with 3000 MiB"), "{}", said.err);
    let mut run = victim(&host, ALICE, "more", "2500");
    let said = CommandOutput::by(&mut run);
    assert!(said.err.contains("the quota of a user is"), "{}", said.err);
    // Bob sees Alice's allocation, but can neither resize nor suspend nor open it.
    let mut resize = of(BOB, host.simulated("resize"));
    let said = CommandOutput::by(resize.args(["alices", "--gpu-memory", "100"]));
    assert!(
        said.err.contains("user 4712 has no allocation"),
        "{}",
        said.err
    );
    for command in ["suspend", "resume"] {
        let said = CommandOutput::by(of(BOB, host.simulated(command)).arg("alices"));
        let refused = "user 4712 has no allocation";
        assert!(said.err.contains(refused), "{}", said.err);
    }
    let seen = CommandOutput::by(of(BOB, host.simulated("top")).arg("--json"));
    assert_eq!(named(&seen.well().json(), "alices")["state"], "allocated");
    let open = format!("exec 3<>{folder}/usage");
    let mut shell = host.program("/bin/sh");
    shell.args(["-c", &open]);
    assert!(!of(BOB, shell).output().unwrap().status.success());
    alices.step("alloc 500M").ok();
    assert!(alices.end().success());
    eventually(PATIENCE, "her share is free again", || {
        let granted = host.top()["cards"][0]["granted_bytes"].as_u64();
        granted == Some(3000 * MIB)
    });
}

#[test]
fn a_user_resumes_only_within_the_quota() {
    let Some(host) = shared_host() else { return };
    let _agent = host.agent(&["--tick", "50", "--users", "all", "--user-quota", "6000"]);
    let mut first = host.start(&mut victim(&host, ALICE, "first", "4000"));
    first.step("alloc 3000M").ok();
    let mut suspend = of(ALICE, host.simulated("suspend"));
    let _ = CommandOutput::by(suspend.arg("first")).well();
    let mut second = host.start(&mut victim(&host, ALICE, "second", "4000"));
    second.step("alloc 3000M").ok();
    let resume = || CommandOutput::by(of(ALICE, host.simulated("resume")).arg("first"));
    let refused = resume();
    let line = refused.fails_in_one_line(1);
    assert!(line.contains("the quota of a user is 6000 MiB"), "{line}");
    assert!(second.end().success());
    eventually(PATIENCE, "the quota has room again", || {
        resume().code() == Some(0)
    });
    first.step("touch 0").ok();
}

/// Makes this thread a user's.
fn become_user(user: u32) {
    // SAFETY: the call changes numbers of this thread only; libc's function would change all threads.
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
    assert_eq!(changed, 0, "root may be anybody");
}

/// Asks the agent something as a user, with a scheduler's term.
fn ask_with_term(host: &TestHost, user: u32, term: u64) -> Result<(), Status> {
    let socket = host.instance().join(paths::AGENT_SOCKET);
    let asked = std::thread::spawn(move || {
        become_user(user);
        // The agent sees the user of the thread that connects, so all is done in this one.
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("it starts").block_on(async {
            let mut client = connect(&socket).await.expect("the agent serves");
            let mut request = Request::new(ListRequest {});
            request.metadata_mut().insert(identity::TERM, term.into());
            client.list(request).await.map(drop)
        })
    });
    asked.join().expect("it does not panic")
}

#[test]
fn a_users_term_locks_no_scheduler_out() {
    let Some(host) = shared_host() else { return };
    let _agent = host.agent(&["--tick", "50", "--users", "all"]);
    ask_with_term(&host, 0, 5).expect("it is the first scheduler");
    ask_with_term(&host, ALICE, 1000).expect("a user may ask");
    ask_with_term(&host, 0, 6).expect("the next scheduler has a later term");
    let over = ask_with_term(&host, 0, 5).expect_err("the first one's term is over");
    assert_eq!(over.code(), Code::FailedPrecondition, "{over}");
}

/// Connections to the agent that a user opens and keeps.
fn connections(host: &TestHost, user: u32, count: usize) -> Vec<UnixStream> {
    let socket = host.instance().join(paths::AGENT_SOCKET);
    let connected = std::thread::spawn(move || {
        become_user(user);
        let connected = (0..count).map(|_| UnixStream::connect(&socket));
        connected.collect::<Result<Vec<_>, _>>()
    })
    .join()
    .expect("it does not panic");
    connected.expect("the socket is for all users")
}

/// Whether the agent has not closed its end of a connection.
fn is_open(stream: &mut UnixStream) -> bool {
    stream.set_nonblocking(true).expect("it is a socket");
    let mut greeting = [0; 1024];
    loop {
        match stream.read(&mut greeting) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_user_with_many_connections_loses_the_oldest_and_others_are_answered() {
    const PART: usize = 64;
    let Some(host) = shared_host() else { return };
    let _agent = host.agent(&["--tick", "50", "--users", "all"]);
    let mut alices = connections(&host, ALICE, 3 * PART);
    let mut bobs = connections(&host, BOB, 1);
    eventually(PATIENCE, "what is too much is closed", || {
        let open = alices.iter_mut().map(is_open);
        open.filter(|open| *open).count() <= PART
    });
    assert!(
        is_open(alices.last_mut().expect("she has some")),
        "the newest stays"
    );
    assert!(is_open(&mut bobs[0]), "another user's stays");
    let _ = CommandOutput::by(of(BOB, host.simulated("top")).arg("--json")).well();
    let _ = host.top();
}

#[test]
fn a_program_that_becomes_another_user_keeps_its_limit() {
    let Some(host) = shared_host() else { return };
    let _agent = host.agent(&["--tick", "50"]);
    let mut command = host.limited(&["--gpu-memory", "2000"], "setpriv");
    let user = ALICE.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.arg(apportion_tests::built("victim")).arg("-");
    let mut victim = host.start(&mut command);
    victim.step("alloc 1000M").ok();
    victim.step("alloc 1000M").refused();
    assert!(host.high_water() <= 2000 * MIB);
}

#[test]
fn a_user_beside_an_agent_that_is_not_for_all_is_told_what_to_do() {
    let Some(host) = shared_host() else { return };
    let _agent = host.agent(&["--tick", "50"]);
    let own = host.dir().join("alices");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(ALICE), Some(ALICE)).unwrap();
    let driver = host.instance().join("driver.sock");
    let mut run = victim(&host, ALICE, "alices", "1000");
    run.env("APPORTION_DIR", &own)
        .env("APPORTION_SIM_SOCKET", driver);
    let said = CommandOutput::by(&mut run);
    assert_ne!(said.code(), Some(0));
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    let told = [
        "the agent of user 0 manages these GPUs",
        "ask root to start its agent with --users all",
    ];
    assert!(
        told.iter().all(|told| said.err.contains(told)),
        "{}",
        said.err
    );
}
