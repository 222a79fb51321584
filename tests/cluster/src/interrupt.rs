//! Ctrl-C while a cluster starts: the current wait ends, and everything that was started is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How often a condition is checked.
const GLANCE: Duration = Duration::from_millis(50);

/// Whether a signal asked the program to stop.
///
/// Written by: the signal handler. Read by: every wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterruptFlag(Arc<AtomicBool>);

impl InterruptFlag {
    /// Handles the signals that end a program.
    pub(crate) fn listen() -> Result<Self> {
        let heard = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&heard.0))
                .context("failed to listen to signals")?;
        }
        Ok(heard)
    }

    /// Fails after a signal.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits until `seen` is true. Fails after `patience`, with `what` it waited for.
    pub(crate) fn wait(
        &self,
        patience: Duration,
        what: &str,
        mut seen: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let answer = seen();
            // If the same Ctrl-C ended a program that `seen` uses, report the interrupt rather than that failure.
            self.check()?;
            if answer? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("{what}: not within {} s", patience.as_secs());
            }
            thread::sleep(GLANCE);
        }
    }
}
