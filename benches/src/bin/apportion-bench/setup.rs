//! The environment of a measured process: which driver, and with or without the library.

use std::env;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use apportion_abi::paths::{
    ENV_ACCOUNT, ENV_SIM_SOCKET, PRELOAD_LIBRARY, SIM_DAEMON, SIM_LIBRARIES, SIM_RUNTIMES,
    SIM_SOCKET,
};
use tempfile::TempDir;

use crate::account;
use crate::worker::{WorkerOutput, WorkerTask};

/// The driver below a measured process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BenchDriver {
    Null,
    /// The driver that does nothing, with an account of an elastic share.
    NullElastic,
    /// The same without stream capture modes, like drivers before CUDA 10.1.
    Modeless,
    /// The driver that does nothing, for a share that sleeps when it is idle.
    Watched,
    Simulated,
}

/// A temporary folder with everything that a worker needs.
#[derive(Debug)]
pub(crate) struct BenchSetup {
    folder: TempDir,
    libraries: PathBuf,
    daemon: Child,
}

/// The drivers that have an account each.
const DRIVERS: [BenchDriver; 4] = [
    BenchDriver::Null,
    BenchDriver::NullElastic,
    BenchDriver::Watched,
    BenchDriver::Simulated,
];
/// The function that a driver without modes lacks, and an unused name to replace it with. Both have the same length and
/// the same GNU hash (33 times the hash so far, plus the character), so the library's symbol table stays valid.
const EXCHANGE: (&[u8], &[u8]) = (
    b"cuThreadExchangeStreamCaptureMode",
    b"cuThreadExchangeStreamCaptureNNde",
);

impl BenchSetup {
    /// Finds the staged tree and starts a simulated machine.
    pub(crate) fn find() -> Result<Self> {
        let program = env::current_exe()?;
        let profile = program.parent().context("programs are in a folder")?;
        let target = profile.parent().context("a profile has a folder above")?;
        let staged =
            env::var_os("APPORTION_STAGED").map_or_else(|| target.join("apportion"), PathBuf::from);
        let libraries = staged.join("lib/apportion");
        if !libraries.join(PRELOAD_LIBRARY).exists() {
            bail!(
                "{} has no {PRELOAD_LIBRARY}; hint: run `cargo xtask build --release`",
                libraries.display()
            );
        }
        let folder = TempDir::new()?;
        // Cargo puts it here while it builds the package.
        let null = profile.join("deps/libapportion_null_driver.so");
        ensure!(null.exists(), "{} is not there", null.display());
        std::fs::create_dir(folder.path().join("null"))?;
        std::fs::create_dir(folder.path().join("modeless"))?;
        let modeless = without_modes(&std::fs::read(&null)?)?;
        std::fs::write(folder.path().join("modeless/libcuda.so.1"), modeless)?;
        symlink(null, folder.path().join("null/libcuda.so.1"))?;
        let daemon = Command::new(libraries.join(SIM_DAEMON))
            .arg("--socket")
            .arg(folder.path().join(SIM_SOCKET))
            .args(["--gpu-memory", "64Gi"])
            .stdin(Stdio::null())
            .spawn()
            .context("failed to start the simulated machine")?;
        let setting = Self {
            folder,
            libraries,
            daemon,
        };
        setting.wait()?;
        for driver in DRIVERS {
            let card = setting.card(driver)?;
            let account = setting.account(driver);
            std::fs::create_dir(&account)?;
            match driver {
                BenchDriver::NullElastic => account::create_elastic(&account, card)?,
                BenchDriver::Watched => account::create(&account, card, true)?,
                BenchDriver::Null | BenchDriver::Modeless | BenchDriver::Simulated => {
                    account::create(&account, card, false)?;
                }
            }
            setting.samples(WorkerTask::FirstUse, driver, true)?;
            account::was_charged(&account)?;
        }
        Ok(setting)
    }

    fn wait(&self) -> Result<()> {
        let (socket, end) = (
            self.folder.path().join(SIM_SOCKET),
            Instant::now() + Duration::from_secs(10),
        );
        while UnixStream::connect(&socket).is_err() {
            ensure!(Instant::now() < end, "the simulated machine does not serve");
            std::thread::yield_now();
        }
        Ok(())
    }

    fn card(&self, driver: BenchDriver) -> Result<[u8; 16]> {
        let mut worker = self.worker(WorkerTask::Card, driver, false)?;
        match answer(&mut worker)? {
            WorkerOutput::Card(card) => Ok(card),
            WorkerOutput::Samples(_)
            | WorkerOutput::Contended { .. }
            | WorkerOutput::Metrics(_) => {
                bail!("a worker named no card")
            }
        }
    }

    fn account(&self, driver: BenchDriver) -> PathBuf {
        self.folder.path().join(match driver {
            BenchDriver::Null | BenchDriver::Modeless => "account-null",
            BenchDriver::NullElastic => "account-elastic",
            BenchDriver::Watched => "account-watched",
            BenchDriver::Simulated => "account-simulated",
        })
    }

    fn driver_folder(&self, driver: BenchDriver) -> PathBuf {
        match driver {
            BenchDriver::Null | BenchDriver::NullElastic | BenchDriver::Watched => {
                self.folder.path().join("null")
            }
            BenchDriver::Modeless => self.folder.path().join("modeless"),
            BenchDriver::Simulated => self.libraries.join(SIM_LIBRARIES),
        }
    }

    /// `program` on a driver, with or without the library.
    pub(crate) fn command(&self, program: &Path, driver: BenchDriver, hooked: bool) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.driver_folder(driver))
            .env(ENV_SIM_SOCKET, self.folder.path().join(SIM_SOCKET))
            .env_remove("LD_PRELOAD")
            .env_remove(ENV_ACCOUNT);
        if hooked {
            command
                .env("LD_PRELOAD", self.libraries.join(PRELOAD_LIBRARY))
                .env(ENV_ACCOUNT, self.account(driver));
        }
        command
    }

    /// `program` as `apportion run --sim` starts it: with the simulated runtimes, and with or without the library.
    pub(crate) fn command_with_runtimes(
        &self,
        program: &Path,
        has_runtimes: bool,
    ) -> Result<Command> {
        let mut command = self.command(program, BenchDriver::Simulated, true);
        let folder = self.driver_folder(BenchDriver::Simulated);
        let runtimes = SIM_RUNTIMES.map(|name| folder.join(name));
        for runtime in &runtimes {
            ensure!(runtime.exists(), "{} is not there", runtime.display());
        }
        let library = self.libraries.join(PRELOAD_LIBRARY);
        if has_runtimes {
            let all = [library].into_iter().chain(runtimes);
            command.env("LD_PRELOAD", env::join_paths(all)?);
        }
        Ok(command)
    }

    /// A worker that starts to measure as soon as its input ends.
    pub(crate) fn worker(
        &self,
        work: WorkerTask,
        driver: BenchDriver,
        hooked: bool,
    ) -> Result<Child> {
        let name = clap::ValueEnum::to_possible_value(&work).context("work has a name")?;
        self.command(&env::current_exe()?, driver, hooked)
            .args(["--worker", name.get_name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start a worker")
    }

    /// This many processes that hold memory in a driver's account until the result is dropped.
    pub(crate) fn others(&self, count: usize, driver: BenchDriver) -> Result<ChildProcesses> {
        let mut others = ChildProcesses(Vec::new());
        for _ in 0..count {
            others.0.push(self.worker(WorkerTask::Stay, driver, true)?);
        }
        for other in &mut others.0 {
            let output = other.stdout.as_mut().context("its output is piped")?;
            let mut first = [0];
            output
                .read_exact(&mut first)
                .context("a process that was to stay in the account has ended")?;
        }
        Ok(others)
    }

    /// Runs a worker to its end and returns its samples.
    pub(crate) fn samples(
        &self,
        work: WorkerTask,
        driver: BenchDriver,
        hooked: bool,
    ) -> Result<Vec<f64>> {
        match answer(&mut self.worker(work, driver, hooked)?)? {
            WorkerOutput::Samples(samples) => Ok(samples),
            WorkerOutput::Card(_) | WorkerOutput::Contended { .. } | WorkerOutput::Metrics(_) => {
                bail!("a worker gave no samples")
            }
        }
    }
}

/// The driver that does nothing, with the function that changes modes renamed.
fn without_modes(driver: &[u8]) -> Result<Vec<u8>> {
    let (name, other) = EXCHANGE;
    let mut driver = driver.to_vec();
    let mut offsets = Vec::new();
    for (offset, bytes) in driver.windows(name.len()).enumerate() {
        if bytes == name {
            offsets.push(offset);
        }
    }
    ensure!(
        !offsets.is_empty(),
        "the driver that does nothing has no capture modes"
    );
    for offset in offsets {
        let end = offset + name.len();
        let at = driver.get_mut(offset..end).context("it was found there")?;
        at.copy_from_slice(other);
    }
    Ok(driver)
}

/// Processes that are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct ChildProcesses(Vec<Child>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        for mut other in self.0.drain(..) {
            drop(other.stdin.take());
            // A process that has ended already needs no kill.
            let _ = other.wait();
        }
    }
}

/// Ends a worker's input and returns what it prints.
pub(crate) fn answer(worker: &mut Child) -> Result<WorkerOutput> {
    drop(worker.stdin.take());
    let output = worker.stdout.take().context("a worker's output is piped")?;
    let text = std::io::read_to_string(output)?;
    let status = worker.wait()?;
    ensure!(status.success(), "a worker ended with {status}");
    serde_json::from_str(&text).context("a worker said something else")
}

impl Drop for BenchSetup {
    fn drop(&mut self) {
        // A process that has ended already needs no kill.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
