//! The command line, from which the parser, the help texts and the shell completions are made.
//!
//! Values that `apportion-abi` can read are taken as text here and read there, so that an annotation and
//! an option mean the same and all mistakes of one line can be named together.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed (or refused: the sentence says who holds what), 64 bad usage.
`run` and `sim` end as the command that they became.";

/// Shares NVIDIA GPUs between programs, and makes the shares hold.
#[derive(Debug, Parser)]
#[command(name = "apportion", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) address: Address,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which agent is asked, and how long it may take to answer.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Address {
    /// Use simulated cards instead of the machine's (also where APPORTION_SIM_SOCKET is set).
    #[arg(long, global = true)]
    pub(crate) sim: bool,
    /// How long each call to the agent may take.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command with a limit on the GPU memory of all its processes together.
    Run(Run),
    /// Run a command on simulated cards, without a limit.
    Sim(Sim),
    /// Show cards and allocations as they change; q ends it.
    Top(Top),
    /// List the cards and what they can still give.
    Gpus(Format),
    /// Change the limit of a running allocation.
    Resize(Resize),
    /// List the driver functions that a limited program reaches through Apportion.
    Hooks(Hooks),
    /// Say what is found on this machine, what is missing and what to do.
    Doctor(Doctor),
    /// Let two programs share a GPU and show that each stays within its limit.
    Demo {
        /// Print each step as it is done, the allocations and the agent's metrics.
        #[arg(long, short)]
        verbose: bool,
    },
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Start a program in a session of its own and print its process id.
    #[command(hide = true)]
    Detach {
        /// The file that gets its output.
        #[arg(long)]
        log: std::path::PathBuf,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
}

/// What to look at.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) format: Format,
    /// Look at this machine as a node of a cluster, and say which values of the chart to set.
    #[arg(long)]
    pub(crate) node: bool,
    /// The node's file system, where it is not this one (/proc/1/root in the agent's pod).
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node")]
    pub(crate) root: std::path::PathBuf,
}

/// The size of a share and what it is for.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --gpu-memory and --gpu-fraction the command gets whole cards. It sees its cards only \
(CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are set), each as large as the limit.")]
pub(crate) struct Run {
    /// MiB of each card (2000Mi and 8Gi are read too).
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub(crate) gpu_memory: Option<String>,
    /// Share of each card, above 0 and below 1.
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) gpu_fraction: Option<String>,
    /// Number of cards.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<String>,
    /// Take only this card, by UUID; may be repeated.
    #[arg(long = "gpu", value_name = "UUID")]
    pub(crate) cards: Vec<String>,
    /// What `top` and `resize` call it; the command's name and process id by default.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Print the grant as one line of JSON on standard error before the command starts.
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What the simulated machine looks like; all commands of a user share one.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// Number of cards.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<String>,
    /// Memory of each card (24576, 24576Mi, 24Gi).
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) gpu_memory: Option<String>,
    /// The driver to resemble.
    #[arg(long, value_parser = ["580", "615"])]
    pub(crate) driver: Option<String>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What to show and how often.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print it once.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print it once, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How to print a list.
#[derive(Debug, Args)]
pub(crate) struct Format {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which functions to list.
#[derive(Debug, Args)]
pub(crate) struct Hooks {
    /// List those that are left alone too, with the reason.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The allocation and its new limit.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("size").required(true).args(["gpu_memory", "gpu_fraction"]))]
pub(crate) struct Resize {
    /// The allocation, by name or id.
    pub(crate) name: String,
    /// New MiB of each of its cards (2000Mi and 8Gi are read too).
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub(crate) gpu_memory: Option<String>,
    /// New share of each of its cards, above 0 and below 1.
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) gpu_fraction: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_reference::Depth;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_command_and_option() {
        let commands = apportion_reference::commands(Options::command(), Depth(2));
        apportion_reference::hold("cli", "commands", &commands);
    }

    #[test]
    fn a_mistyped_option_is_not_taken_for_the_command() {
        let line = ["apportion", "run", "--gpu-memroy", "5", "--", "python"];
        assert!(Options::try_parse_from(line).is_err());
    }

    #[test]
    fn everything_after_the_command_is_the_commands() {
        let line = [
            "apportion",
            "run",
            "--gpu-memory",
            "5",
            "python",
            "--sim",
            "--",
            "-x",
        ];
        let options = Options::try_parse_from(line).unwrap();
        assert!(!options.address.sim);
        let Command::Run(run) = options.command else {
            panic!("not run")
        };
        assert_eq!(run.command, ["python", "--sim", "--", "-x"]);
    }
}
