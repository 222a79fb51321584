//! A machine for one test: simulated cards, a folder for everything, and commands that see only these.
//!
//! The cards have round numbers, so that tests are readable: [`CARD`] is allocatable on each, and a process's first
//! context takes [`CONTEXT`].

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use apportion_sim_client::MachineClient;
use apportion_sim_machine::{
    CardConfig, CardSnapshot, DriverGeneration, MachineConfig, MachineReply, MachineRequest,
    MachineSnapshot, NvmlReply, NvmlRequest,
};
use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::Value;
use tempfile::TempDir;

use crate::command_output::CommandOutput;
use crate::leftover::{LeftoverProcess, kill_leftovers, leftovers};
use crate::staged::{built, staged};
use crate::victim::VictimProcess;
use crate::wait::{PATIENCE, eventually};

/// A binary megabyte.
pub const MIB: u64 = 1 << 20;
/// The allocatable memory of each card.
pub const CARD: u64 = 10_000 * MIB;
/// The memory of a process's first context.
pub const CONTEXT: u64 = 300 * MIB;
/// A file system in memory, as `/run` is on a node. The agent syncs its checkpoint there; on a disk that builds keep
/// busy each sync can take seconds.
const TMPFS: &str = "/dev/shm";
/// The least free space that is enough for tests. Containers may have little there.
const LEAST_FREE: u64 = 1 << 30;
/// The driver's reserve on each card.
const RESERVED: u64 = 256 * MIB;
/// Variables that commands must not inherit from the environment of the test run.
const FOREIGN: [&str; 11] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "XDG_RUNTIME_DIR",
    "APPORTION_ACCOUNT",
    "APPORTION_DIR",
    "APPORTION_LIB_DIR",
    "APPORTION_SIM_SOCKET",
    "VICTIM_DOOR",
];

/// `count` equal cards.
#[must_use]
pub fn cards(count: usize) -> MachineConfig {
    let card = CardConfig {
        memory: CARD + RESERVED,
        reserved: RESERVED,
        context_bytes: CONTEXT,
        further_context_bytes: CONTEXT / 3,
        ..CardConfig::default()
    };
    MachineConfig {
        driver: DriverGeneration::R580,
        cards: vec![card; count],
        ..MachineConfig::default()
    }
}

/// The machine. Dropping this ends everything that it runs.
#[derive(Debug)]
pub struct TestHost {
    dir: TempDir,
    staged: PathBuf,
    driver: Option<Child>,
    machine: MachineClient,
    victims: AtomicU32,
}

impl Default for TestHost {
    fn default() -> Self {
        Self::new()
    }
}

impl TestHost {
    /// A machine with one card.
    #[must_use]
    pub fn new() -> Self {
        Self::with(&cards(1))
    }

    /// A machine with these cards.
    ///
    /// # Panics
    /// If the simulated driver does not start.
    #[must_use]
    pub fn with(config: &MachineConfig) -> Self {
        let mut host = Self::bare();
        let machine = serde_json::to_vec(config).expect("a machine is JSON");
        fs::write(host.machine_file(), machine).expect("the folder is writable");
        host.start_driver();
        host
    }

    /// Kills the simulated driver, with all memory of its programs.
    pub fn kill_driver(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill();
            let _ = driver.wait();
        }
    }

    /// Starts the simulated driver.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_driver(&mut self) {
        let mut daemon = Command::new(self.libraries().join("apportion-simd"));
        daemon.arg("--socket").arg(self.driver_socket());
        daemon
            .arg("--config")
            .arg(self.machine_file())
            .stdin(Stdio::null());
        self.driver = Some(daemon.spawn().expect("the simulated driver is staged"));
        // The old client's connections are gone with the driver.
        self.machine = MachineClient::at(self.driver_socket());
        eventually(PATIENCE, "the simulated driver answers", || {
            UnixStream::connect(self.driver_socket()).is_ok()
        });
    }

    fn machine_file(&self) -> PathBuf {
        self.dir.path().join("machine.json")
    }

    /// A machine whose simulated driver does not run yet.
    ///
    /// # Panics
    /// If no temporary folder can be created, or nothing is staged.
    #[must_use]
    pub fn bare() -> Self {
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("apportion-");
        let dir = if is_usable(TMPFS) {
            dir.tempdir_in(TMPFS)
        } else {
            dir.tempdir()
        };
        let dir = dir.expect("a folder for the test");
        let machine = MachineClient::at(dir.path().join("sim/driver.sock"));
        let victims = AtomicU32::new(0);
        Self {
            dir,
            staged: staged(),
            driver: None,
            machine,
            victims,
        }
    }

    /// The machine's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of the simulated instance.
    #[must_use]
    pub fn instance(&self) -> PathBuf {
        self.dir.path().join("sim")
    }

    /// The staged library folder.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.staged.join("lib/apportion")
    }

    fn driver_socket(&self) -> PathBuf {
        self.instance().join("driver.sock")
    }

    /// A command for any program, with the machine's environment.
    #[must_use]
    pub fn program(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        for name in FOREIGN {
            command.env_remove(name);
        }
        command.env("APPORTION_DIR", self.dir.path());
        command
    }

    /// A command for a program of the staged tree.
    #[must_use]
    pub fn staged(&self, name: &str) -> Command {
        self.program(self.staged.join("bin").join(name))
    }

    /// `apportion SUBCOMMAND`, for the machine's real cards.
    #[must_use]
    pub fn apportion(&self, subcommand: &str) -> Command {
        let mut command = self.staged("apportion");
        command.arg(subcommand);
        command
    }

    /// `apportion SUBCOMMAND --sim`.
    #[must_use]
    pub fn simulated(&self, subcommand: &str) -> Command {
        let mut command = self.apportion(subcommand);
        command.arg("--sim");
        command
    }

    /// Runs `apportion run --sim OPTIONS -- COMMAND` to its end.
    #[track_caller]
    #[must_use]
    pub fn run(&self, options: &[&str], command: &[&str]) -> CommandOutput {
        CommandOutput::by(self.simulated("run").args(options).arg("--").args(command))
    }

    /// Runs `apportion run --sim OPTIONS -- victim STEPS` to its end.
    #[track_caller]
    #[must_use]
    pub fn run_victim(&self, options: &[&str], steps: &str) -> CommandOutput {
        let mut command = self.simulated("run");
        command
            .args(options)
            .arg("--")
            .arg(built("victim"))
            .args(steps.split_whitespace());
        CommandOutput::by(&mut command)
    }

    /// A victim under a limit. It waits for its steps.
    #[must_use]
    pub fn victim(&self, options: &[&str]) -> VictimProcess {
        self.victim_through("dlsym", options)
    }

    /// The same, with another way to reach the driver: `linked`, or one of those in `victims/doors.rs`.
    #[must_use]
    pub fn victim_through(&self, door: &str, options: &[&str]) -> VictimProcess {
        let program = if door == "linked" {
            "victim-linked"
        } else {
            "victim"
        };
        let mut command = self.simulated("run");
        command
            .args(options)
            .arg("--")
            .arg(built(program))
            .arg("-")
            .env("VICTIM_DOOR", door);
        self.start(&mut command)
    }

    /// A victim on the simulated cards without a limit.
    #[must_use]
    pub fn free_victim(&self) -> VictimProcess {
        let mut command = self.program(built("victim"));
        command.env("LD_LIBRARY_PATH", self.libraries().join("sim"));
        command
            .env("APPORTION_SIM_SOCKET", self.driver_socket())
            .arg("-");
        self.start(&mut command)
    }

    /// Starts a command that becomes a victim. The victim waits for its steps.
    #[must_use]
    pub fn start(&self, command: &mut Command) -> VictimProcess {
        let number = self.victims.fetch_add(1, Ordering::Relaxed);
        VictimProcess::start(
            command,
            &self.dir.path().join(format!("victim-{number}.err")),
        )
    }

    /// A program on the simulated cards without a limit: `apportion sim -- PROGRAM`.
    #[must_use]
    pub fn unlimited(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.apportion("sim");
        command.arg("--").arg(program.as_ref());
        command
    }

    /// A program under a limit: `apportion run --sim OPTIONS -- PROGRAM`.
    #[must_use]
    pub fn limited(&self, options: &[&str], program: impl AsRef<Path>) -> Command {
        let mut command = self.simulated("run");
        command.args(options).arg("--").arg(program.as_ref());
        command
    }

    /// The output of `apportion top --json`.
    #[track_caller]
    #[must_use]
    pub fn top(&self) -> Value {
        CommandOutput::by(self.simulated("top").arg("--json"))
            .well()
            .json()
    }

    /// Sends a request to the machine behind the simulated driver.
    ///
    /// # Panics
    /// If the driver does not answer.
    pub fn ask(&self, request: MachineRequest) -> MachineReply {
        self.machine
            .ask(None, request)
            .expect("the driver answers")
            .reply
    }

    /// The driver's own view of the machine.
    ///
    /// # Panics
    /// If the driver does not answer.
    #[must_use]
    pub fn snapshot(&self) -> MachineSnapshot {
        match self.ask(MachineRequest::Nvml(NvmlRequest::Snapshot)) {
            MachineReply::Nvml(NvmlReply::Snapshot(snapshot)) => snapshot,
            other => panic!("not a snapshot: {other:?}"),
        }
    }

    /// The driver's own view of one card.
    ///
    /// # Panics
    /// If there is no such card.
    #[must_use]
    pub fn card(&self, index: usize) -> CardSnapshot {
        self.snapshot().cards.swap_remove(index)
    }

    /// The bytes in use on the first card, as the driver counts them.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.card(0).used
    }

    /// The most bytes in use on the first card since the last call, as the driver counts them. Unlike a sample, it
    /// misses nothing.
    ///
    /// # Panics
    /// If the driver does not answer.
    #[must_use]
    pub fn high_water(&self) -> u64 {
        match self.ask(MachineRequest::HighWater(0)) {
            MachineReply::Value(bytes) => bytes,
            other => panic!("not a number: {other:?}"),
        }
    }

    /// All processes of this machine, except its driver.
    #[must_use]
    pub fn leftovers(&self) -> Vec<LeftoverProcess> {
        let driver = self.driver.as_ref().map(|child| child.id().cast_signed());
        let mut found = leftovers(self.dir.path());
        found.retain(|leftover| Some(leftover.pid) != driver);
        found
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        self.kill_driver();
        kill_leftovers(self.dir.path());
    }
}

/// Whether programs can be run from a file system, and there is room for a test's files.
fn is_usable(path: &str) -> bool {
    statvfs(path).is_ok_and(|found| {
        let free = found.blocks_available() * found.fragment_size();
        free >= LEAST_FREE && !found.flags().contains(FsFlags::ST_NOEXEC)
    })
}
