//! A program that runs until the bench stops it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The program. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundProgram {
    child: Child,
    log: PathBuf,
}

impl BackgroundProgram {
    /// Starts it; its output is appended to this file.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let name = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("failed to start {}", name.display()))?;
        let log = log.to_owned();
        Ok(Self { child, log })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails if it has ended by itself.
    pub(crate) fn ensure_running(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        let log = self.log();
        let last = log.lines().last().unwrap_or_default();
        ensure!(ended.is_none(), "{} ended: {last}", self.log.display());
        Ok(())
    }
}

impl Drop for BackgroundProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
