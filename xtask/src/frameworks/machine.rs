//! A simulated machine with one card, in its own folder, and Apportion's commands on it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apportion_abi::paths;
use serde_json::Value;

use super::cases::ShareSize;

/// The driver's reserve, in bytes.
const RESERVED: u64 = 256 << 20;

/// A share is a multiple of this many bytes.
const UNIT: u64 = 2 << 20;

/// How long the simulated driver may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Variables that a program must not inherit from the shell that runs the command.
const FOREIGN: [&str; 9] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    paths::ENV_ACCOUNT,
    paths::ENV_LIB_DIR,
    paths::ENV_SIM_SOCKET,
];

/// Distinguishes the folders of one run.
static MACHINES: AtomicU32 = AtomicU32::new(0);

/// The machine. Dropping it ends everything that runs on it.
pub(crate) struct FrameworkMachine {
    staged: PathBuf,
    folder: PathBuf,
    driver: Child,
    memory: u64,
}

impl FrameworkMachine {
    /// Starts the simulated driver of a new machine, whose card has this much memory in bytes.
    pub(crate) fn start(staged: &Path, memory: u64) -> Result<Self> {
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let folder = format!("apportion-frameworks-{}-{number}", process::id());
        // A socket's path must be short, so the folder is not below the target folder.
        let folder = std::env::temp_dir().join(folder);
        DirBuilder::new().mode(0o700).create(&folder)?;
        let config = folder.join("machine.json");
        let card = serde_json::json!({ "memory": memory, "reserved": RESERVED });
        fs::write(&config, serde_json::json!({ "cards": [card] }).to_string())?;
        let mut driver = simd(staged, &folder);
        let driver = driver
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .spawn();
        let driver = driver.context("failed to start the simulated driver")?;
        let machine = Self {
            staged: staged.to_owned(),
            folder,
            driver,
            memory,
        };
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(socket(&machine.folder)).is_err() {
            if Instant::now() > deadline {
                bail!("the simulated driver does not serve");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(machine)
    }

    /// The folder of this machine.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The card's allocatable memory, which CUDA shows without a limit.
    pub(crate) const fn card(&self) -> u64 {
        self.memory - RESERVED
    }

    /// The card's memory as NVML shows it without a limit.
    pub(crate) const fn card_by_nvml(&self) -> u64 {
        self.memory
    }

    /// The limit of a share, in bytes.
    pub(crate) fn limit(&self, share: ShareSize) -> Result<u64> {
        Ok(match share {
            ShareSize::Mib(size) => size << 20,
            ShareSize::Fraction(text) => {
                let fraction: apportion_abi::GpuFraction = text.parse()?;
                let parts = u128::from(self.card()) * u128::from(fraction.parts_per_billion());
                let part = u64::try_from(parts / 1_000_000_000)?;
                part - part % UNIT
            }
        })
    }

    /// The start of a command with this share, or without a limit. The program follows.
    pub(crate) fn apportion(&self, share: Option<ShareSize>) -> Command {
        let mut command = Command::new(self.staged.join("bin/apportion"));
        for name in FOREIGN {
            command.env_remove(name);
        }
        command.env(paths::ENV_DIR, &self.folder);
        match share {
            None => command.arg("sim"),
            Some(ShareSize::Mib(size)) => command
                .args(["run", "--sim", "--gpu-memory"])
                .arg(size.to_string()),
            Some(ShareSize::Fraction(text)) => {
                command.args(["run", "--sim", "--gpu-fraction", text])
            }
        };
        command.arg("--");
        command
    }

    /// The card's peak memory since the last call, as the driver counts it.
    pub(crate) fn high_water(&self) -> Result<u64> {
        let mut ask = simd(&self.staged, &self.folder);
        let answer = ask.args(["--ask", r#"{"HighWater":0}"#]).output()?;
        let value: Value =
            serde_json::from_slice(&answer.stdout).context("the driver says nothing")?;
        value
            .get("Value")
            .and_then(Value::as_u64)
            .with_context(|| format!("no number: {value}"))
    }

    /// Ends every process of this machine except the driver. Their environment or arguments name its folder.
    fn end_what_is_left(&self) {
        let own = process::id();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let left =
            pids.filter(|pid| *pid != own && *pid != self.driver.id() && self.is_named_by(*pid));
        for pid in left.collect::<Vec<_>>() {
            let _ = Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .status();
        }
    }

    fn is_named_by(&self, pid: u32) -> bool {
        let name = self.folder.as_os_str().as_encoded_bytes();
        ["cmdline", "environ"].iter().any(|file| {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text.windows(name.len()).any(|part| part == name)
        })
    }
}

impl Drop for FrameworkMachine {
    fn drop(&mut self) {
        self.end_what_is_left();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join(paths::DIR_SIM).join(paths::SIM_SOCKET)
}

fn simd(staged: &Path, folder: &Path) -> Command {
    let mut simd = Command::new(staged.join("lib/apportion").join(paths::SIM_DAEMON));
    simd.arg("--socket").arg(socket(folder));
    simd
}
