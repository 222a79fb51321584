//! The scheduler's own process, from the staged tree.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use apportion_tests::control_plane::ControlPlane;
use apportion_tests::{eventually, staged};

use crate::background::BackgroundProgram;

/// How long the scheduler may take to load the cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// What it logs when it leads, and when another scheduler does.
pub(crate) const LEADS: &str = "Cluster state loaded";
pub(crate) const WAITS: &str = "Another scheduler holds the lease";

/// The process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct SchedulerProcess(BackgroundProgram);

impl SchedulerProcess {
    /// Starts the scheduler and waits until it logs `until`.
    pub(crate) fn start(
        plane: &ControlPlane,
        kubeconfig: &Path,
        filter: &str,
        until: &str,
    ) -> Result<Self> {
        Self::start_with(&[], plane, kubeconfig, filter, until)
    }

    /// The same, with more options.
    pub(crate) fn start_with(
        options: &[&str],
        plane: &ControlPlane,
        kubeconfig: &Path,
        filter: &str,
        until: &str,
    ) -> Result<Self> {
        let number = std::fs::read_dir(plane.dir())?.count();
        let log = plane.dir().join(format!("scheduler-{number}.log"));
        // The child ends with this process, however this process ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(staged().join("bin/apportion-scheduler"))
            .args(["run", "--address", "127.0.0.1:0", "--log", filter])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(options);
        let program = BackgroundProgram::start(command, &log)?;
        eventually(PATIENCE, until, || program.log().contains(until));
        Ok(Self(program))
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.process()
    }

    /// Kills it. The control plane's folder is temporary, so the log is copied elsewhere.
    pub(crate) fn stop(self) -> Result<()> {
        let name = format!("apportion-bench-api-{}.log", self.process());
        let kept = std::env::temp_dir().join(name);
        std::fs::write(&kept, self.0.log())?;
        println!("log: {}", kept.display());
        Ok(())
    }

    /// The process, for those who only start and end it.
    pub(crate) fn into_program(self) -> BackgroundProgram {
        self.0
    }
}
