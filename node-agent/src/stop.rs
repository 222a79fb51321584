//! Signals that stop the agent.

use apportion_exit::CommandFailure;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves at the first SIGTERM or SIGINT.
pub(crate) fn stopped() -> Result<impl Future<Output = ()>, CommandFailure> {
    let listen = |kind| {
        signal(kind).map_err(|error| CommandFailure::from_error(&error).hint("see signal(7)"))
    };
    let mut terminated = listen(SignalKind::terminate())?;
    let mut interrupted = listen(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    })
}
