//! The command line, and the machine that it describes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use apportion_sim_machine::{DriverGeneration, MachineConfig};
use clap::{Parser, ValueEnum};

/// Simulate the GPUs and the NVIDIA driver of one machine for all processes of this host.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct DaemonArguments {
    /// Socket to serve [default: the socket that the simulated driver's libraries use]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Description of the machine, in JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpus", "gpu_memory", "driver"])]
    config: Option<PathBuf>,
    /// Number of GPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: usize,
    /// Memory of each GPU, in MiB or with a unit (24576, 24576Mi, 24Gi)
    #[arg(long, value_name = "SIZE", default_value = "16Gi", value_parser = bytes)]
    gpu_memory: u64,
    /// Version of the simulated driver
    #[arg(long, value_name = "VERSION", default_value = "580")]
    driver: GenerationArgument,
    /// Exit after this many seconds without a client
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,
    /// Send one JSON request to the running machine, print its answer and exit
    #[arg(long, value_name = "REQUEST")]
    pub(crate) ask: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum GenerationArgument {
    #[value(name = "580")]
    R580,
    #[value(name = "615")]
    R615,
}

impl DaemonArguments {
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(apportion_sim_client::socket)
    }

    pub(crate) fn idle_exit(&self) -> Option<Duration> {
        self.idle_exit.map(Duration::from_secs)
    }

    pub(crate) fn config(&self) -> anyhow::Result<MachineConfig> {
        let Some(path) = &self.config else {
            let driver = match self.driver {
                GenerationArgument::R580 => DriverGeneration::R580,
                GenerationArgument::R615 => DriverGeneration::R615,
            };
            return Ok(MachineConfig::uniform(self.gpus, self.gpu_memory, driver));
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} does not describe a machine", path.display()))
    }
}

/// Bytes from a number of MiB, or from a number with a binary unit.
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
                "`{other}` is not a unit; use Mi or Gi, or no unit for MiB"
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
        <DaemonArguments as clap::CommandFactory>::command().debug_assert();
    }
}
