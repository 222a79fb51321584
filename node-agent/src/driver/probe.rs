//! Measures what contexts cost. A child of the agent opens a context on the card and holds it while NVML reports the
//! child's memory. Then it is told to open another one.
//!
//! The child gets its card through `CUDA_VISIBLE_DEVICES`.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use apportion_abi::CardUuid;
use cudarc::driver::CudaContext;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout};
use tracing::debug;

use super::child;

/// How long a probe may take from its start to its measurement.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// What the child prints after each context that it opened.
const READY: &str = "ready";

/// A child that holds contexts. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct ContextProbe {
    pub(crate) card: CardUuid,
    pub(crate) pid: u32,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl ContextProbe {
    pub(crate) fn start(card: CardUuid, nvml: &Path) -> io::Result<Self> {
        let mut command = child::command("probe-context", nvml);
        command.env("CUDA_VISIBLE_DEVICES", card.to_string());
        let mut child = command.spawn()?;
        let found = child.id().zip(child.stdout.take());
        let (pid, output) = found.ok_or_else(|| io::Error::other("the child exited at once"))?;
        debug!(%card, pid, "Measuring context cost");
        Ok(Self {
            card,
            pid,
            child,
            output: BufReader::new(output),
        })
    }

    /// Tells the child to open one more context.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        let input = self.child.stdin.as_ref();
        let input = input.ok_or(io::ErrorKind::BrokenPipe)?;
        // Writing one byte into an empty pipe never blocks.
        rustix::io::write(input, b"\n")?;
        Ok(())
    }

    pub(crate) fn end(&mut self) {
        let _ = self.child.start_kill();
    }

    /// Waits until the child has ended and its memory is free. Returns false: it holds no context any more.
    pub(crate) async fn ended(&mut self) -> bool {
        let _ = self.child.wait().await;
        false
    }

    /// Whether the child is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the child has opened one more context. Returns false if it could not.
    pub(crate) async fn ready(&mut self) -> bool {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).await;
        read.is_ok() && line.trim_end() == READY
    }
}

/// The child's main function: opens a context, reports it, and waits for the next request or the end of its input.
pub(crate) fn hold_contexts() -> Result<(), Box<dyn std::error::Error>> {
    let mut held = vec![CudaContext::new(0)?];
    println!("{READY}");
    while io::stdin().read(&mut [0])? > 0 {
        held.push(CudaContext::new_non_primary(0, 0)?);
        println!("{READY}");
    }
    Ok(())
}
