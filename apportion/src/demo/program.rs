//! One of the demonstration's programs: a limited process that fills its card and waits.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use apportion_abi::Bytes;
use apportion_exit::CommandFailure;
use serde::Deserialize;

use crate::instance::TargetInstance;
use crate::probe;

/// What the program saw; see `apportion-probe fill`.
#[derive(Debug, Deserialize)]
pub(super) struct FillReport {
    pub(super) cuda_total_bytes: u64,
    pub(super) cuda_info_total_bytes: u64,
    pub(super) nvml_total_bytes: u64,
    pub(super) taken_bytes: u64,
    pub(super) refused_with: String,
}

/// A running program. It holds its memory until its standard input ends.
#[derive(Debug)]
pub(super) struct DemoProgram {
    pub(super) name: &'static str,
    pub(super) limit: Bytes,
    pub(super) report: Option<FillReport>,
    child: Child,
}

impl DemoProgram {
    /// Starts it with `limit` on `card`.
    pub(super) fn start(
        instance: &TargetInstance,
        name: &'static str,
        limit: Bytes,
        card: &str,
    ) -> Result<Self, CommandFailure> {
        let mut command = run(instance, limit.as_mib(), card)?;
        command
            .args(["--name", name, "--"])
            .arg(probe::program(instance)?)
            .arg("fill");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child =
            child.map_err(|e| CommandFailure::new(format!("failed to start {name}")).because(e))?;
        Ok(Self {
            name,
            limit,
            report: None,
            child,
        })
    }

    /// Waits until it was refused. Returns its output line.
    pub(super) fn read_report(&mut self) -> Result<String, CommandFailure> {
        let failed = || CommandFailure::new(format!("{} ended before it was refused", self.name));
        let output = self.child.stdout.take().ok_or_else(failed)?;
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(|e| failed().because(e))?;
        let report: FillReport = serde_json::from_str(&line).map_err(|_| failed())?;
        let message = format!(
            "{}: sees {} (cuDeviceTotalMem), {} (cuMemGetInfo), {} (NVML); took {} beside its context, then {}",
            self.name,
            Bytes(report.cuda_total_bytes),
            Bytes(report.cuda_info_total_bytes),
            Bytes(report.nvml_total_bytes),
            Bytes(report.taken_bytes),
            report.refused_with,
        );
        self.report = Some(report);
        Ok(message)
    }

    /// Lets it free its memory and waits until it exits.
    pub(super) fn end(mut self) -> Result<(), CommandFailure> {
        drop(self.child.stdin.take());
        let failed = || CommandFailure::new(format!("{} did not end well", self.name));
        let status = self.child.wait().map_err(|e| failed().because(e))?;
        if status.success() {
            Ok(())
        } else {
            Err(failed().because(status.to_string()))
        }
    }

    /// Starts a program that must be refused. Returns the refusal.
    pub(super) fn refused(
        instance: &TargetInstance,
        mib: u64,
        card: &str,
    ) -> Result<String, CommandFailure> {
        let mut command = run(instance, mib, card)?;
        let output = command
            .args(["--", "true"])
            .output()
            .map_err(|e| CommandFailure::new("failed to start a third program").because(e))?;
        if output.status.success() {
            return Err(CommandFailure::new(format!(
                "{mib} MiB were given although they were not free"
            )));
        }
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// A program that is left running would hold its memory as long as this process lives.
impl Drop for DemoProgram {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn run(instance: &TargetInstance, mib: u64, card: &str) -> Result<Command, CommandFailure> {
    let own = std::env::current_exe()
        .map_err(|e| CommandFailure::new("cannot tell where Apportion is installed").because(e))?;
    let mut command = Command::new(own);
    command
        .arg("run")
        .args(instance.is_simulated.then_some("--sim"));
    command.args(["--gpu", card, "--gpu-memory", &mib.to_string()]);
    Ok(command)
}
