//! The commands of `kubectl apportion` on the whole cluster: how long an operator waits, and how much memory that takes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apportion_abi::Bytes;
use apportion_tests::staged;
use nix::sys::resource::{UsageWho, getrusage};

/// The commands that list a whole cluster.
const COMMANDS: [&str; 3] = ["top", "gpus", "queues"];
/// The budgets of each.
const SECONDS: u32 = 2;
const MIB: u64 = 100;

/// Runs each command once, and prints what it cost.
pub(crate) fn measure(kubeconfig: &Path) -> Result<()> {
    for command in COMMANDS {
        let (took, lines) = run(kubeconfig, command)?;
        println!(
            "kubectl apportion {command}: {lines} lines in {:.2} s ({SECONDS} s)",
            took.as_secs_f64()
        );
    }
    // The kernel keeps the highest value of all children that have ended. The servers have not.
    let most = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    let most = Bytes(u64::try_from(most)? * 1024).as_mib();
    println!("kubectl apportion resident: at most {most} MiB ({MIB} MiB)");
    Ok(())
}

fn run(kubeconfig: &Path, command: &str) -> Result<(Duration, usize)> {
    let begun = Instant::now();
    let output = Command::new(staged().join("bin/kubectl-apportion"))
        .arg(command)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start kubectl-apportion")?;
    ensure!(
        output.status.success(),
        "kubectl-apportion {command}: {}",
        output.status
    );
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    Ok((begun.elapsed(), lines))
}
