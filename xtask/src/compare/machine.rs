//! A machine for one library: a simulated driver with one card, and Apportion's agent if it is Apportion's turn.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::CompareSetup;
use super::build::ComparePrograms;
use super::memory_limiter::MemoryLimiter;
use super::timeout::{self, TimedOutcome};

pub(crate) const MIB: u64 = 1 << 20;
/// How long the machine may take for something short.
const PATIENCE: Duration = Duration::from_secs(10);
/// Variables that a program must not inherit from the shell that runs the comparison.
const FOREIGN: [&str; 9] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "XDG_RUNTIME_DIR",
    "APPORTION_ACCOUNT",
    "APPORTION_DIR",
    "APPORTION_LIB_DIR",
    "APPORTION_SIM_SOCKET",
];
/// The number of machines that this process has started.
static MACHINES: AtomicU32 = AtomicU32::new(0);

/// The machine. Dropping it removes everything.
#[derive(Debug)]
pub(crate) struct CompareMachine<'a> {
    contender: &'a MemoryLimiter,
    programs: &'a ComparePrograms,
    staged: &'a Path,
    folder: PathBuf,
    uuid: String,
    running: Vec<Child>,
}

impl<'a> CompareMachine<'a> {
    /// Starts a machine whose card has this many GiB.
    pub(crate) fn start(
        setting: &'a CompareSetup,
        contender: &'a MemoryLimiter,
        gib: u64,
    ) -> Result<Self> {
        // Not below the target folder: a socket's path has at most 107 bytes.
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("apportion-compare-{}-{number}", process::id()));
        fs::create_dir_all(folder.join("sim"))
            .with_context(|| format!("failed to make {}", folder.display()))?;
        let mut machine = Self {
            contender,
            programs: &setting.programs,
            staged: &setting.staged,
            folder,
            uuid: String::new(),
            running: Vec::new(),
        };
        let mut driver = Command::new(machine.library("apportion-simd"));
        driver
            .arg("--socket")
            .arg(machine.driver_socket())
            .args(["--gpu-memory", &format!("{gib}Gi")]);
        machine.begin(driver, &machine.driver_socket())?;
        let snapshot = machine.ask(r#"{"Nvml":"Snapshot"}"#)?;
        let uuid = snapshot.pointer("/Nvml/Snapshot/cards/0/uuid");
        uuid.and_then(Value::as_str)
            .context("the simulated card has no UUID")?
            .clone_into(&mut machine.uuid);
        if contender.is_ours() {
            let mut agent = machine.program(&setting.staged.join("bin/apportion-agent"));
            agent
                .arg("--dir")
                .arg(machine.folder.join("sim"))
                .args(["--metrics-address", "127.0.0.1:0"]);
            machine.begin(agent, &machine.folder.join("sim/agent.sock"))?;
        }
        Ok(machine)
    }

    /// Starts the program that serves `socket`, and waits until it does.
    fn begin(&mut self, mut command: Command, socket: &Path) -> Result<()> {
        let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
        self.running
            .push(quiet.spawn().context("failed to start a staged program")?);
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(socket).is_err() {
            ensure!(Instant::now() < end, "{} is not served", socket.display());
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn library(&self, name: &str) -> PathBuf {
        self.staged.join("lib/apportion").join(name)
    }

    fn driver_socket(&self) -> PathBuf {
        self.folder.join("sim/driver.sock")
    }

    fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for name in FOREIGN {
            command.env_remove(name);
        }
        command
            .current_dir(&self.folder)
            .env("APPORTION_DIR", &self.folder)
            .env("APPORTION_SIM_SOCKET", self.driver_socket())
            .env("LD_LIBRARY_PATH", self.library("sim"));
        command
    }

    /// Sends a request to the simulated driver itself.
    fn ask(&self, request: &str) -> Result<Value> {
        let output = Command::new(self.library("apportion-simd"))
            .arg("--socket")
            .arg(self.driver_socket())
            .args(["--ask", request])
            .output()?;
        serde_json::from_slice(&output.stdout).context("the simulated driver does not answer")
    }

    /// The card's peak memory since the last call, in MiB, as the driver counts it.
    pub(crate) fn high_water(&self) -> Result<u64> {
        let answer = self.ask(r#"{"HighWater":0}"#)?;
        let bytes = answer.pointer("/Value").and_then(Value::as_u64);
        Ok(bytes
            .context("the simulated driver gave no number")?
            .div_ceil(MIB))
    }

    /// Prepares the machine for programs under this limit in MiB, and waits until earlier ones have left nothing
    /// behind.
    pub(crate) fn settle(&self, limit: u64) -> Result<()> {
        self.await_empty()?;
        self.contender.forget(&self.folder);
        if self.contender.is_set_up_by_first_program() {
            let program = self.programs.named("ways").into_os_string();
            let words = [program, "cuMemAlloc".into(), "1".into(), "1".into()];
            self.run(limit, PATIENCE, &words)?;
            self.await_empty()?;
        }
        self.high_water().map(drop)
    }

    fn await_empty(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.ask(r#"{"Nvml":"Snapshot"}"#)?;
            let used = snapshot.pointer("/Nvml/Snapshot/cards/0/used");
            if used.and_then(Value::as_u64) == Some(0) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the card does not become empty");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a program under this limit in MiB, with a timeout. In `words`, variables (`NAME=value`) come before the
    /// program.
    pub(crate) fn run(
        &self,
        limit: u64,
        time: Duration,
        words: &[OsString],
    ) -> Result<TimedOutcome> {
        let mut all = self
            .contender
            .words(self.staged, &self.folder, &self.uuid, limit);
        all.extend_from_slice(words);
        timeout::run(self.program(Path::new("timeout")), time, &all)
    }
}

impl Drop for CompareMachine<'_> {
    fn drop(&mut self) {
        for child in self.running.iter_mut().rev() {
            // A process that has ended already needs no kill.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
