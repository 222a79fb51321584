//! The scheduler's own process, as it is staged.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use apportion_tests::control_plane::ControlPlane;
use apportion_tests::{eventually, staged};

/// How long it may take until it knows the cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Scheduler {
    child: Child,
    log: PathBuf,
}

impl Scheduler {
    /// Starts it and waits until it knows the cluster.
    pub(crate) fn start(plane: &ControlPlane, filter: &str) -> Result<Self> {
        let log = plane.dir().join("scheduler.log");
        // It ends with this process, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(staged().join("bin/apportion-scheduler"))
            .args(["run", "--address", "127.0.0.1:0", "--log", filter])
            // As in the chart.
            .env("MALLOC_ARENA_MAX", "1")
            .arg("--kubeconfig")
            .arg(plane.kubeconfig())
            .stdin(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("failed to start the scheduler")?;
        let scheduler = Self { child, log };
        eventually(PATIENCE, "the scheduler knows the cluster", || {
            let text = std::fs::read_to_string(&scheduler.log).unwrap_or_default();
            text.contains("Cluster state loaded")
        });
        Ok(scheduler)
    }

    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ends it; its log is kept where the folder of the control plane is not.
    pub(crate) fn stop(&mut self, _: &ControlPlane) -> Result<()> {
        self.child.kill()?;
        let text = std::fs::read_to_string(&self.log)?;
        let kept =
            std::env::temp_dir().join(format!("apportion-bench-api-{}.log", self.child.id()));
        std::fs::write(&kept, text)?;
        println!("log: {}", kept.display());
        Ok(())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
