//! Third-party Python clients on the simulated driver. Without a limit each sees the whole card; with one, a card of
//! that size.
//!
//! `APPORTION_PYTHON` names a Python that has the packages of `clients/requirements.txt`. `cargo xtask test` creates
//! one, or says that it could not and skips this suite.

use std::path::{Path, PathBuf};
use std::process::Command;

use apportion_sim_machine::DriverGeneration;
use apportion_tests::{CARD, CommandOutput, MIB, TestHost, cards};

/// A client, and the card's total memory as it reports it. NVML includes the driver's reserve.
struct PythonClient {
    script: &'static str,
    counts_reserve: bool,
}

/// The clients that take `--expect-total`.
const ROWS: &[PythonClient] = &[
    PythonClient {
        script: "cuda_bindings.py",
        counts_reserve: false,
    },
    PythonClient {
        script: "cuda_core.py",
        counts_reserve: false,
    },
    PythonClient {
        script: "cuda_numba.py",
        counts_reserve: false,
    },
    PythonClient {
        script: "nvml_cuda_core.py",
        counts_reserve: true,
    },
    PythonClient {
        script: "nvml_nvitop.py",
        counts_reserve: true,
    },
    PythonClient {
        script: "nvml_pynvml.py",
        counts_reserve: true,
    },
];
/// The clients that have a test of their own.
const ALONE: &[&str] = &["agent_grpc.py", "nvml_hardware.py", "nvml_processes.py"];

fn python() -> PathBuf {
    let named = std::env::var_os("APPORTION_PYTHON");
    PathBuf::from(named.expect("`cargo xtask test` makes the clients' Python and names it"))
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Runs a client to its end. It prints `OK` or the reason why not.
#[track_caller]
fn client(command: &mut Command, script: &str) {
    let said = CommandOutput::by(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    assert!(
        said.status.success() && said.out.contains("OK"),
        "{script}: {said:?}"
    );
}

fn without_a_limit(row: &PythonClient, driver: DriverGeneration) {
    let mut machine = cards(2);
    machine.driver = driver;
    let host = TestHost::with(&machine);
    let total = if row.counts_reserve {
        host.card(0).total
    } else {
        CARD
    };
    let mut command = host.unlimited(python());
    command
        .arg(scripts().join(row.script))
        .args(["--expect-total", &(total / MIB).to_string()]);
    client(&mut command, row.script);
}

fn with_a_limit(row: &PythonClient) {
    let host = TestHost::with(&cards(2));
    // NVML shows all cards of the machine, so both get a limit of this size.
    let options = ["--gpus", "2", "--gpu-memory", "3000"];
    let mut command = host.limited(&options, python());
    command
        .arg(scripts().join(row.script))
        .args(["--expect-total", "3000"]);
    client(&mut command, row.script);
}

fn row(script: &str) -> &'static PythonClient {
    ROWS.iter().find(|row| row.script == script).expect("a row")
}

macro_rules! clients {
    ($($name:ident: $script:literal;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn sees_the_whole_card() {
                without_a_limit(row($script), DriverGeneration::R580);
                without_a_limit(row($script), DriverGeneration::R615);
            }

            #[test]
            fn sees_a_card_as_large_as_its_limit() {
                with_a_limit(row($script));
            }
        }
    )*};
}

clients! {
    cuda_bindings: "cuda_bindings.py";
    cuda_core: "cuda_core.py";
    numba_cuda: "cuda_numba.py";
    nvml_of_cuda_core: "nvml_cuda_core.py";
    nvitop: "nvml_nvitop.py";
    nvidia_ml_py: "nvml_pynvml.py";
}

#[test]
fn nvml_shows_what_a_cuda_program_takes() {
    let host = TestHost::new();
    client(
        host.unlimited(python())
            .arg(scripts().join("nvml_processes.py")),
        "nvml_processes.py",
    );
}

#[test]
fn nvml_shows_what_happens_to_the_hardware() {
    for driver in [DriverGeneration::R580, DriverGeneration::R615] {
        let mut machine = cards(2);
        machine.driver = driver;
        let host = TestHost::with(&machine);
        let mut command = host.unlimited(python());
        command
            .arg(scripts().join("nvml_hardware.py"))
            .arg("--simd");
        client(
            command.arg(host.libraries().join("apportion-simd")),
            "nvml_hardware.py",
        );
    }
}

#[test]
fn grpc_of_python_reaches_the_agent() {
    let host = TestHost::new();
    let _agent = host.agent(&[]);
    let mut command = host.program(python());
    command.arg(scripts().join("agent_grpc.py"));
    client(
        command.arg(host.instance().join("agent.sock")),
        "agent_grpc.py",
    );
}

#[test]
fn grpc_of_go_reaches_the_agent() {
    let host = TestHost::new();
    let program = host.dir().join("client");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".");
    let built = build.current_dir(scripts().join("go")).output();
    if !built.as_ref().is_ok_and(|built| built.status.success()) {
        let why = built.map(|built| String::from_utf8_lossy(&built.stderr).into_owned());
        eprintln!("left out: no client in Go, which takes Go 1.25 and its modules: {why:?}");
        return;
    }
    let _agent = host.agent(&[]);
    let mut command = host.program(&program);
    client(command.arg(host.instance().join("agent.sock")), "go");
}

#[test]
fn every_client_is_run() {
    let entries = std::fs::read_dir(scripts()).expect("the clients are there");
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let left: Vec<_> = names
        .filter(|name| {
            name.ends_with(".py")
                && !(ROWS.iter().any(|row| row.script == name) || ALONE.contains(&name.as_str()))
        })
        .collect();
    assert_eq!(left, [""; 0]);
}
