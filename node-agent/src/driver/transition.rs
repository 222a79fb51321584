//! Puts processes to sleep and wakes them, in a child of the agent. A call of the driver takes as long as a copy of all
//! memory of a process, and may hang.
//!
//! The child gets its order as the first line of its input, and prints one line for each process. A child that takes too
//! long is killed. What it had done by then is in the states of the processes.

use std::ffi::OsStr;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use apportion_abi::Bytes;
use apportion_exit::error_chain;
use apportion_ledger::ProcessId;
use apportion_process_checkpoints::ProcessCheckpoints;
use apportion_process_checkpoints::transition::{self, TransitionLine, TransitionOrder};
use rustix::process::{Signal, getpid, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::child;
use crate::processes::procfs;

/// How long all locks of a transition may take together.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a share that is idle. If something of it runs, it is not, and its other calls wait for so long in vain.
pub(crate) const IDLE_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// What a transition may take beside its copies.
const BESIDE: Duration = Duration::from_secs(20);
/// How fast the copies must be at least, in bytes per second. Pageable memory over PCIe is ten times faster.
const SLOWEST: u64 = 256 << 20;
/// The longest deadline.
const LONGEST: Duration = Duration::from_secs(300);
/// How long a killed child may take to end. One that hangs in the kernel does not.
const AFTER_KILL: Duration = Duration::from_secs(1);
/// The CUDA library of the driver.
const CUDA: &str = "libcuda.so.1";

/// What a child reported, line by line.
#[derive(Debug, Default)]
pub(crate) struct TransitionReport {
    pub(crate) lines: Vec<TransitionLine>,
    /// Whether it was killed because it took too long.
    pub(crate) is_overdue: bool,
}

/// How long a transition of so much memory may take.
pub(crate) fn deadline(bytes: Bytes) -> Duration {
    (BESIDE + Duration::from_secs(bytes.0 / SLOWEST)).min(LONGEST)
}

/// Starts a child that carries out the order. Its report comes when it has ended.
pub(crate) fn start(
    order: &TransitionOrder,
    deadline: Duration,
    nvml: &Path,
) -> io::Result<oneshot::Receiver<TransitionReport>> {
    let mut order = serde_json::to_vec(order)?;
    order.push(b'\n');
    let mut command = child::command("move-processes", nvml);
    // It acts on processes that may be on any card.
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stderr(Stdio::inherit());
    let child = command.spawn()?;
    let (report, reported) = oneshot::channel();
    tokio::spawn(async move {
        let _ = report.send(watch(child, order, deadline).await);
    });
    Ok(reported)
}

async fn watch(mut child: Child, order: Vec<u8>, deadline: Duration) -> TransitionReport {
    // The pipe must stay open: the child ends with it.
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return TransitionReport::default();
    };
    let mut text = Vec::new();
    let answered = async {
        input.write_all(&order).await?;
        output.read_to_end(&mut text).await
    };
    let is_overdue = timeout(deadline, answered).await.is_err();
    if is_overdue {
        let _ = child.start_kill();
    }
    let _ = timeout(AFTER_KILL, child.wait()).await;
    let lines = text.split(|byte| *byte == b'\n');
    TransitionReport {
        lines: lines.flat_map(serde_json::from_slice).collect(),
        is_overdue,
    }
}

/// The child's main function.
pub(crate) fn carry_out_order() -> io::Result<()> {
    let mut order = String::new();
    io::stdin().lock().read_line(&mut order)?;
    let order: TransitionOrder = serde_json::from_str(&order)?;
    std::thread::spawn(|| {
        // The agent writes nothing more. So this ends with the agent. A normal exit would run the driver's own code while
        // a call of it is going on.
        let _ = io::stdin().lock().read(&mut [0]);
        let _ = kill_process(getpid(), Signal::KILL);
    });
    let driver = match ProcessCheckpoints::open(OsStr::new(CUDA)) {
        Ok(driver) => driver,
        Err(problem) => return print(&TransitionLine::Unusable(error_chain(&problem))),
    };
    transition::carry_out(&driver, &order, is_live, |line| {
        // An agent that does not listen any more has ended, and so does this process.
        let _ = print(&line);
    });
    Ok(())
}

fn is_live(pid: u32, start: u64) -> bool {
    procfs::is_live(ProcessId { pid, start })
}

fn print(line: &TransitionLine) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    io::stdout().lock().write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_grows_with_the_memory_and_has_an_end() {
        assert_eq!(deadline(Bytes::ZERO), BESIDE);
        assert_eq!(
            deadline(Bytes(SLOWEST * 10)),
            BESIDE + Duration::from_secs(10)
        );
        assert_eq!(deadline(Bytes(u64::MAX)), LONGEST);
    }
}
