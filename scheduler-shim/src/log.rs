//! The log of the scheduler and the webhook on standard error: lines for people, or JSON for machines.
//!
//! It has the options and variables of the agent's log. A pod has no terminal, so its log has no colours. In JSON the
//! final error is a line of the log, too, so that machines can read everything.

use std::io::IsTerminal;

use apportion_exit::CommandFailure;
use clap::{Args, ValueEnum};
use tracing::error;
use tracing_subscriber::EnvFilter;

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogOptions {
    /// Log filter, such as info or apportion_scheduler=debug
    #[arg(
        long,
        env = "APPORTION_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    log: String,

    /// Format of log lines
    #[arg(
        long,
        env = "APPORTION_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log_format: LogFormat,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people; coloured on a terminal only
    Text,
    /// One JSON object a line
    Json,
}

impl LogOptions {
    /// Starts the log and does the work.
    ///
    /// # Errors
    /// Those of the work. A JSON log has the line already.
    pub(crate) fn around(
        &self,
        work: impl FnOnce() -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        self.start()?;
        let result = work();
        match (self.log_format, result) {
            (LogFormat::Json, Err(failure)) => {
                error!(problem = %failure, "Program failed");
                Err(failure.logged())
            }
            (LogFormat::Json | LogFormat::Text, result) => result,
        }
    }

    fn start(&self) -> Result<(), CommandFailure> {
        let filter = self
            .log
            .parse::<EnvFilter>()
            .map_err(|problem| CommandFailure::usage(format!("--log: {problem}")))?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Json => builder.json().init(),
            LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        }
        Ok(())
    }
}
