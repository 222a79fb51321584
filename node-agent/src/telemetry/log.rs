//! Sets up the log: standard error, as lines for people or JSON for machines.

use crate::options::{LogFormat, TelemetryOptions};

pub(crate) fn start(options: &TelemetryOptions) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(options.log)
        .with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(false).with_target(false).init(),
    }
}
