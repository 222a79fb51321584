//! Settings of metrics and of the log.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};

#[derive(Args, Clone, Debug)]
pub(crate) struct TelemetryOptions {
    /// Address of /metrics, /healthz and /readyz, or none
    /// [default: 127.0.0.1:9408, or another port if that one is taken]
    #[arg(long, env = "APPORTION_METRICS_ADDRESS", value_name = "IP:PORT", value_parser = metrics_address)]
    metrics_address: Option<MetricsAddress>,

    /// Log level on standard error: error, warn, info, debug or trace
    #[arg(
        long,
        env = "APPORTION_LOG",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub(crate) log: tracing::Level,

    /// Format of log lines
    #[arg(
        long,
        env = "APPORTION_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub(crate) log_format: LogFormat,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// The default address, or another port if that is taken.
    Usual,
    At(SocketAddr),
    Off,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

impl TelemetryOptions {
    pub(crate) fn metrics(&self) -> MetricsAddress {
        self.metrics_address.unwrap_or(MetricsAddress::Usual)
    }
}

fn metrics_address(text: &str) -> Result<MetricsAddress, String> {
    match text.parse() {
        _ if text == "none" => Ok(MetricsAddress::Off),
        Ok(address) => Ok(MetricsAddress::At(address)),
        Err(_) => Err("expected IP:PORT or none".to_owned()),
    }
}
