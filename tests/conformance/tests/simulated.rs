//! The conformance cases on the simulated driver: what CUDA documents holds there too.

#![expect(
    clippy::unwrap_used,
    reason = "what surrounds a test may panic as the test itself may"
)]

use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_apportion-conformance");

/// The staged tree: beside the profile's folder, or where the environment says.
fn staged() -> PathBuf {
    let beside = Path::new(PROGRAM).ancestors().nth(2);
    let beside = beside.expect("programs are in a profile's folder");
    let staged =
        std::env::var_os("APPORTION_STAGED").map_or_else(|| beside.join("apportion"), Into::into);
    let library = staged.join("lib/apportion/sim/libcuda.so.1");
    assert!(
        library.exists(),
        "{} is not there; run `cargo xtask build` first",
        library.display()
    );
    staged
}

/// A simulated machine of its own, ended with the test.
struct Machine {
    folder: TempDir,
    daemon: Child,
    staged: PathBuf,
}

impl Machine {
    fn start() -> Self {
        let (folder, staged) = (TempDir::new().unwrap(), staged());
        let daemon = Command::new(staged.join("lib/apportion/apportion-simd"))
            .arg("--socket")
            .arg(folder.path().join("driver.sock"))
            .args(["--gpu-memory", "16Gi"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let machine = Self {
            folder,
            daemon,
            staged,
        };
        eventually("the simulated machine serves", || {
            UnixStream::connect(machine.socket()).is_ok()
        });
        machine
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("driver.sock")
    }

    /// Runs the cases; whether all held, and what was printed.
    fn ask(&self, arguments: &[&str]) -> (bool, String, String) {
        // Files take any amount of output, so nobody has to read while the program runs.
        let name = |stream| self.folder.path().join(stream);
        let status = Command::new(PROGRAM)
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.staged.join("lib/apportion/sim"))
            .env("APPORTION_SIM_SOCKET", self.socket())
            .stdin(Stdio::null())
            .stdout(File::create(name("out")).unwrap())
            .stderr(File::create(name("err")).unwrap())
            .status()
            .unwrap();
        let text = |stream| {
            let mut text = String::new();
            let mut file = File::open(name(stream)).unwrap();
            file.read_to_string(&mut text).unwrap();
            text
        };
        (status.success(), text("out"), text("err"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "not within ten seconds: {what}");
        std::thread::yield_now();
    }
}

fn cases() -> Vec<String> {
    let list = Command::new(PROGRAM).arg("--list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let names = list.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_simulated_driver_does_what_cuda_documents() {
    let machine = Machine::start();
    let (held, out, err) = machine.ask(&[]);
    assert!(held, "{err}");
    let cases = cases();
    assert!(cases.len() > 10);
    for case in cases {
        let record = format!("\"case\":\"{case}\"");
        assert!(out.contains(&record), "{case} found nothing out");
    }
}

#[test]
fn a_machine_is_like_itself() {
    let machine = Machine::start();
    let (_, first, _) = machine.ask(&["rounding", "pools"]);
    let record = machine.folder.path().join("first");
    std::fs::write(&record, first).unwrap();
    let record = record.to_str().unwrap();
    let (_, _, err) = machine.ask(&["rounding", "pools", "--compare", record]);
    assert!(!err.contains("differs:"), "{err}");
}

#[test]
fn a_case_that_cannot_run_is_a_failure_and_not_a_pass() {
    let machine = Machine::start();
    let broken = r#"{"AddRule":{"function":"cuMemAlloc_v2","nth":3,"effect":{"error":999}}}"#;
    let rule = Command::new(machine.staged.join("lib/apportion/apportion-simd"))
        .arg("--socket")
        .arg(machine.socket())
        .args(["--ask", broken])
        .output()
        .unwrap();
    assert!(rule.status.success(), "{rule:?}");
    let (held, _, err) = machine.ask(&["rounding"]);
    assert!(!held);
    assert!(err.contains("cuMemAlloc_v2 returned 999"), "{err}");
}

#[test]
fn an_unknown_case_is_bad_usage() {
    let output = Command::new(PROGRAM).arg("nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
}
