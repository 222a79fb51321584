//! A simulated machine for one test, and the conformance program on it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_apportion-conformance");

/// The only card of every machine.
pub(crate) const CARD: &str = "GPU-5a000000-0000-4000-8000-0000000000c0";

/// The staged tree: the one that the environment names, else beside the profile's folder.
pub(crate) fn staged() -> PathBuf {
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

/// A simulated machine that ends with the test.
pub(crate) struct ConformanceMachine {
    folder: TempDir,
    daemon: Child,
    staged: PathBuf,
}

impl ConformanceMachine {
    pub(crate) fn start() -> Self {
        let (folder, staged) = (TempDir::new().unwrap(), staged());
        let config = folder.path().join("machine.json");
        let text = format!(
            r#"{{"cards":[{{"uuid":"{CARD}","memory":{}}}]}}"#,
            16_u64 << 30
        );
        std::fs::write(&config, text).unwrap();
        let daemon = Command::new(staged.join("lib/apportion/apportion-simd"))
            .arg("--socket")
            .arg(folder.path().join("driver.sock"))
            .arg("--config")
            .arg(&config)
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

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("driver.sock")
    }

    /// A temporary folder that is removed with the machine.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file of the staged tree.
    pub(crate) fn library(&self, name: &str) -> PathBuf {
        self.staged.join("lib/apportion").join(name)
    }

    /// The conformance program on this machine's driver.
    pub(crate) fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.library("sim"))
            .env("APPORTION_SIM_SOCKET", self.socket());
        command
    }

    /// Runs the program. Returns whether all held, its output and its error output.
    pub(crate) fn ask(&self, arguments: &[&str]) -> (bool, String, String) {
        end_of(&mut self.program(arguments))
    }
}

/// Runs a command to its end. Returns whether it succeeded, its output and its error output.
pub(crate) fn end_of(command: &mut Command) -> (bool, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

impl Drop for ConformanceMachine {
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
