//! The command line, and the machine that it describes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use apportion_sim_machine::{Config, Driver};
use clap::{Parser, ValueEnum};

/// Simulates the cards and the driver of one machine for all processes on this host.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Arguments {
    /// The socket to serve [default: the one that the simulated driver's libraries look for]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Describes the machine in JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpus", "gpu_memory", "driver"])]
    config: Option<PathBuf>,
    /// How many cards there are
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: usize,
    /// The memory of each card: MiB, or a number with Mi or Gi
    #[arg(long, value_name = "SIZE", default_value = "16Gi", value_parser = bytes)]
    gpu_memory: u64,
    /// The driver generation to play
    #[arg(long, value_name = "VERSION", default_value = "580")]
    driver: Generation,
    /// Leave after so many seconds without a client
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    /// Put one request, in JSON, to the machine that serves, print its answer and leave
    #[arg(long, value_name = "REQUEST")]
    pub(crate) ask: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Generation {
    #[value(name = "580")]
    R580,
    #[value(name = "615")]
    R615,
}

impl Arguments {
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(apportion_sim_client::socket)
    }

    pub(crate) fn idle_exit(&self) -> Option<Duration> {
        self.idle_exit.map(Duration::from_secs)
    }

    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let Some(path) = &self.config else {
            let driver = match self.driver {
                Generation::R580 => Driver::R580,
                Generation::R615 => Driver::R615,
            };
            return Ok(Config::uniform(self.gpus, self.gpu_memory, driver));
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no machine", path.display()))
    }
}

/// MiB as they stand, or a number with a binary unit.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.find(|letter: char| !letter.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "Mi"),
    };
    let shift = match unit {
        "Mi" => 20,
        "Gi" => 30,
        other => {
            return Err(format!(
                "`{other}` is not a unit; write MiB, or Mi or Gi behind"
            ));
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a size"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mib_or_have_a_unit() {
        assert_eq!(bytes("2000"), Ok(2000 << 20));
        assert_eq!(bytes("2000Mi"), Ok(2000 << 20));
        assert_eq!(bytes("8Gi"), Ok(8 << 30));
        for bad in ["", "8G", "Gi", "-1", "99999999999Gi"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
