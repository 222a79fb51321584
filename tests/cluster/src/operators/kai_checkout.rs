//! A checkout of KAI Scheduler, and the programs that are built from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::binaries;

/// The programs that place pods, and the webhook.
pub(super) const PROGRAMS: [&str; 6] = [
    "scheduler",
    "binder",
    "podgrouper",
    "podgroupcontroller",
    "queuecontroller",
    "admission",
];

/// A folder with KAI's sources.
#[derive(Clone, Debug)]
pub struct KaiCheckout(PathBuf);

impl KaiCheckout {
    /// The checkout at this path.
    ///
    /// # Errors
    /// If there is none.
    pub fn at(path: &Path) -> Result<Self> {
        ensure!(
            path.join("cmd/podgrouper").is_dir(),
            "{} is no checkout of KAI Scheduler; hint: git clone https://github.com/kai-scheduler/KAI-Scheduler",
            path.display()
        );
        Ok(Self(fs::canonicalize(path)?))
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of its CRDs.
    #[must_use]
    pub fn crds(&self) -> PathBuf {
        self.0.join("deployments/kai-scheduler/crds")
    }

    /// Builds KAI's programs. Returns their folder.
    ///
    /// # Errors
    /// If Go is missing or fails.
    pub fn build(&self) -> Result<PathBuf> {
        let folder = binaries::cache()?.join("kai");
        fs::create_dir_all(&folder)?;
        let mut go = Command::new("go");
        go.current_dir(&self.0)
            .env("CGO_ENABLED", "0")
            .args(["build", "-buildvcs=false", "-o"])
            .arg(&folder)
            .args(PROGRAMS.map(|program| format!("./cmd/{program}")));
        let status = go.status().context("failed to start go")?;
        ensure!(status.success(), "go build of KAI ended with {status}");
        Ok(folder)
    }
}
