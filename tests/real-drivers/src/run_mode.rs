//! The three ways to run a program, and what they need.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use apportion_abi::account::{LimitsMap, NewCard, UsageMap};
use apportion_abi::{Bytes, paths};
use tempfile::TempDir;

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// Without the preloaded library.
    Plain,
    /// With it, and no limit.
    Unlimited,
    /// With it, and an account.
    Limited,
}

impl RunMode {
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Unlimited, Self::Limited];
    /// The modes with the preloaded library.
    pub(crate) const OURS: [Self; 2] = [Self::Unlimited, Self::Limited];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "without the library",
            Self::Unlimited => "without a limit",
            Self::Limited => "with a limit",
        }
    }
}

/// A driver's unpacked libraries and programs.
pub(crate) struct UnpackedDriver {
    pub(crate) folder: PathBuf,
    pub(crate) version: String,
}

impl UnpackedDriver {
    pub(crate) fn at(folder: &Path) -> Result<Self> {
        let folder = fs::canonicalize(folder)
            .with_context(|| format!("failed to find {}", folder.display()))?;
        let version = folder.file_name().unwrap_or_default();
        let version = version.to_string_lossy().into_owned();
        for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            ensure!(
                folder.join(library).exists(),
                "{} has no {library}",
                folder.display()
            );
        }
        Ok(Self { folder, version })
    }
}

/// What all runs share.
pub(crate) struct RunSetup {
    pub(crate) conformance: PathBuf,
    pub(crate) runtimes: Option<PathBuf>,
    /// The folder of the simulated driver's libraries.
    pub(crate) simulated: PathBuf,
    pub(crate) seed: u64,
    preload: PathBuf,
    program: PathBuf,
    /// The working directory of the programs, with the account.
    folder: TempDir,
}

impl RunSetup {
    pub(crate) fn new(
        staged: &Path,
        conformance: &Path,
        runtimes: Option<&Path>,
        seed: u64,
    ) -> Result<Self> {
        let libraries = staged.join("lib/apportion");
        let preload = libraries.join(paths::PRELOAD_LIBRARY);
        let full = |path: &Path| {
            fs::canonicalize(path).with_context(|| format!("failed to find {}", path.display()))
        };
        let folder = TempDir::new().context("failed to make a folder")?;
        create_account(&folder.path().join("account"))?;
        Ok(Self {
            conformance: full(conformance)?,
            runtimes: runtimes.map(full).transpose()?,
            simulated: libraries.join(paths::SIM_LIBRARIES),
            seed,
            preload: full(&preload)?,
            program: std::env::current_exe().context("failed to find this program")?,
            folder,
        })
    }

    /// A command that runs a program with a driver.
    pub(crate) fn command(&self, driver: &UnpackedDriver, way: RunMode, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LD_LIBRARY_PATH", &driver.folder);
        if way != RunMode::Plain {
            command.env("LD_PRELOAD", &self.preload);
        }
        if way == RunMode::Limited {
            command.env(paths::ENV_ACCOUNT, self.folder.path().join("account"));
        }
        command
    }

    /// The output of this program for an inner task.
    pub(crate) fn inside(
        &self,
        driver: &UnpackedDriver,
        way: RunMode,
        task: &[&str],
    ) -> Result<String> {
        let mut command = self.command(driver, way, &self.program);
        let output = command.arg(crate::inside::WORD).args(task).output();
        let output = output.context("failed to start this program again")?;
        ensure!(
            output.status.success(),
            "{} on driver {}, {}: {}\n{}",
            task.join(" "),
            driver.version,
            way.as_str(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).context("failed to read what this program printed")
    }
}

/// An account like the agent's, for a card that does not exist.
fn create_account(folder: &Path) -> Result<()> {
    fs::create_dir(folder).context("failed to make the account")?;
    let at = |name| CString::new(folder.join(name).as_os_str().as_bytes());
    let card = NewCard {
        uuid: "GPU-00000000-0000-0000-0000-0000000000c0".parse()?,
        total: Bytes(16 << 30),
        limit: Bytes(2000 << 20),
        context_reserve: Bytes(384 << 20),
    };
    LimitsMap::create(&at(paths::LIMITS_FILE)?, &[card]).context("failed to write the limit")?;
    UsageMap::create(&at(paths::USAGE_FILE)?, 1).context("failed to make the account's usage")?;
    Ok(())
}
