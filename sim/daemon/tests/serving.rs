//! The server as clients see it: one per socket, memory that ends with its process, faults on request.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use apportion_sim_client::MachineClient;
use apportion_sim_machine::{CudaRefusal, FaultEffect, FaultRule, MachineReply, MachineRequest};

const SERVER: &str = env!("CARGO_BIN_EXE_apportion-simd");
const MIB: u64 = 1 << 20;
/// Passes the socket to a copy of this test that acts as a client.
const SOCKET: &str = "SERVING_SOCKET";

/// A server that ends with the test.
struct ServerProcess {
    _directory: tempfile::TempDir,
    socket: PathBuf,
    process: Child,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(socket: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(SERVER);
    command
        .arg("--socket")
        .arg(socket)
        .args(arguments)
        .stderr(Stdio::null());
    command.spawn().expect("the server can be started")
}

fn serve(arguments: &[&str]) -> (ServerProcess, MachineClient) {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let socket = directory.path().join("driver.sock");
    let process = start(&socket, arguments);
    let machine = MachineClient::at(socket.clone());
    eventually("the server answers", || {
        machine.ask(None, MachineRequest::Hello).is_ok()
    });
    (
        ServerProcess {
            _directory: directory,
            socket,
            process,
        },
        machine,
    )
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn ask(machine: &MachineClient, request: MachineRequest) -> MachineReply {
    machine
        .ask(None, request)
        .expect("the server answers")
        .reply
}

fn free_bytes(machine: &MachineClient) -> u64 {
    match ask(machine, MachineRequest::MemoryInfo(0)) {
        MachineReply::Memory { free, .. } => free,
        other => panic!("no memory info but {other:?}"),
    }
}

#[test]
fn many_that_start_at_once_are_one() {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let socket = directory.path().join("driver.sock");
    let mut all: Vec<Child> = (0..4).map(|_| start(&socket, &[])).collect();
    eventually("all but one leave", || {
        let left = all
            .iter_mut()
            .filter_map(|one| one.try_wait().expect("a child of ours"));
        left.inspect(|status| assert!(status.success())).count() == 3
    });
    assert!(
        MachineClient::at(socket)
            .ask(None, MachineRequest::Hello)
            .is_ok()
    );
    for mut one in all {
        let _ = one.kill();
        let _ = one.wait();
    }
}

#[test]
fn a_server_that_nobody_uses_leaves_and_takes_its_socket_along() {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let socket = directory.path().join("driver.sock");
    let mut server = start(&socket, &["--idle-exit", "0"]);
    eventually("the server leaves", || {
        server.try_wait().expect("a child of ours").is_some()
    });
    assert!(!socket.exists());
}

#[test]
fn a_signal_ends_a_server_and_a_new_one_starts_afresh() {
    let (mut server, machine) = serve(&[]);
    assert!(matches!(
        ask(&machine, MachineRequest::PrimaryRetain(0)),
        MachineReply::Created(_)
    ));
    let pid = i32::try_from(server.process.id()).expect("pids are small");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM)
        .expect("the server is ours");
    assert!(server.process.wait().expect("a child of ours").success());
    assert!(machine.ask(None, MachineRequest::Hello).is_err());
    server.process = start(&server.socket, &[]);
    let machine = MachineClient::at(server.socket.clone());
    eventually("the new server answers", || {
        machine.ask(None, MachineRequest::Hello).is_ok()
    });
    assert_eq!(free_bytes(&machine), (16384 - 256) * MIB);
}

#[test]
fn memory_of_a_killed_process_is_back() {
    let (server, machine) = serve(&["--gpu-memory", "8Gi"]);
    let before = free_bytes(&machine);
    let mut client = Command::new(std::env::current_exe().expect("a test knows itself"))
        .args(["--exact", "holds_memory_until_it_is_killed", "--ignored"])
        .env(SOCKET, &server.socket)
        .stdout(Stdio::null())
        .spawn()
        .expect("a test can start itself");
    eventually("the client allocates", || {
        free_bytes(&machine) <= before - 100 * MIB
    });
    client.kill().expect("the client is ours");
    client.wait().expect("the client is ours");
    eventually("its memory is back", || free_bytes(&machine) == before);
}

#[test]
#[ignore = "plays the client of another test"]
fn holds_memory_until_it_is_killed() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let machine = MachineClient::at(socket.into());
    let MachineReply::Created(context) = ask(&machine, MachineRequest::PrimaryRetain(0)) else {
        panic!("no context")
    };
    ask(
        &machine,
        MachineRequest::Allocate {
            context,
            bytes: 100 * MIB,
        },
    );
    loop {
        std::thread::park();
    }
}

#[test]
fn a_rule_makes_the_nth_call_of_a_function_fail_and_another_slow() {
    let (_server, machine) = serve(&[]);
    let rule = |function: &str, nth, effect| {
        MachineRequest::AddRule(FaultRule {
            function: function.to_owned(),
            nth,
            effect,
        })
    };
    ask(
        &machine,
        rule("cuMemAlloc_v2", Some(2), FaultEffect::Error(2)),
    );
    ask(
        &machine,
        rule("cuMemFree_v2", None, FaultEffect::Microseconds(20_000)),
    );
    let call = |function| {
        machine
            .ask(Some(function), MachineRequest::Touch)
            .expect("it answers")
            .reply
    };
    let replies = [(); 3].map(|()| call("cuMemAlloc_v2"));
    assert_eq!(
        replies,
        [
            MachineReply::Done,
            MachineReply::Refused(CudaRefusal::Code(2)),
            MachineReply::Done
        ]
    );
    let start = Instant::now();
    call("cuMemFree_v2");
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_machine_that_cannot_be_is_refused_as_bad_usage() {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let socket = directory.path().join("driver.sock");
    for arguments in [
        &["--gpus", "0"],
        &["--gpu-memory", "7Ti"],
        &["--config", "/nonexistent"],
    ] {
        let status = start(&socket, arguments).wait().expect("a child of ours");
        assert_eq!(status.code(), Some(64), "{arguments:?}");
    }
    assert!(!socket.exists());
}

#[test]
fn every_user_may_use_the_cards_as_the_real_ones() {
    use std::os::unix::fs::PermissionsExt;
    let (server, _) = serve(&[]);
    let found = std::fs::metadata(&server.socket).expect("it is there");
    assert_eq!(found.permissions().mode() & 0o777, 0o666);
}
