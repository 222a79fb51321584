//! Signals that stop the agent.

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::AgentFailure;

/// Resolves at the first SIGTERM or SIGINT.
pub(crate) fn stopped() -> Result<impl Future<Output = ()>, AgentFailure> {
    let listen =
        |kind| signal(kind).map_err(|error| AgentFailure::running(&error, "see signal(7)"));
    let mut terminated = listen(SignalKind::terminate())?;
    let mut interrupted = listen(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    })
}
