//! The command line. The parser, the help texts and the shell completions are generated from it.
//!
//! Values that `apportion-abi` can parse stay text here and are parsed there. So an annotation and an option mean the
//! same, and all mistakes of one command line are reported together.

use std::ffi::OsString;

use apportion_abi::paths;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 failure or refusal (the message says who holds the memory); 64 bad usage.
`run` and `sim` exit with the status of the command that they run.";

/// Share NVIDIA GPUs between programs and enforce the memory limit of each.
#[derive(Debug, Parser)]
#[command(name = "apportion", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct ApportionOptions {
    #[command(flatten)]
    pub(crate) address: ConnectionOptions,
    #[command(subcommand)]
    pub(crate) command: ApportionCommand,
}

/// Which agent is asked, and how long it may take to answer.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ConnectionOptions {
    /// Use simulated GPUs (the default where APPORTION_SIM_SOCKET is set).
    #[arg(long, global = true)]
    pub(crate) sim: bool,
    /// How long each call to the agent may take.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum ApportionCommand {
    /// Run a command under a GPU memory limit that all its processes share.
    Run(RunOptions),
    /// Run a command on simulated GPUs, without a limit.
    Sim(SimOptions),
    /// Show GPUs and allocations live; press q to quit.
    Top(TopOptions),
    /// List the GPUs and the free memory of each.
    Gpus(ListFormat),
    /// Change the memory of a running allocation.
    Resize(ResizeOptions),
    /// Put a program to sleep: its GPU memory moves to the host's memory and is free for others.
    Suspend(SuspendOptions),
    /// Wake a suspended program, once its memory is free again.
    Resume(SuspendOptions),
    /// List the CUDA and NVML functions that Apportion intercepts.
    Hooks(HooksOptions),
    /// Check this machine: what was found, what is missing, what to do.
    Doctor(DoctorOptions),
    /// Let two programs share a GPU and show that each stays within its limit.
    Demo {
        /// Print each step as it is done, the allocations and the agent's metrics.
        #[arg(long, short)]
        verbose: bool,
    },
    /// Print a shell completion script.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Start a program in a new session and print its process id.
    #[command(hide = true)]
    Detach {
        /// File for its output.
        #[arg(long)]
        log: std::path::PathBuf,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
}

/// What to look at.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    pub(crate) format: ListFormat,
    /// Check this machine as a Kubernetes node and print the chart values to set.
    #[arg(long)]
    pub(crate) node: bool,
    /// Root of the node's file system (/proc/1/root in the agent's pod).
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node")]
    pub(crate) root: std::path::PathBuf,
}

/// The size of a share and what it is for.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --gpu-memory and --gpu-fraction the command gets whole GPUs. It sees only its own GPUs \
(CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are set). The limit is shown as the size of each GPU.")]
pub(crate) struct RunOptions {
    /// Memory on each GPU, in MiB or with a unit (2000, 2000Mi, 8Gi).
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub(crate) gpu_memory: Option<String>,
    /// Fraction of each GPU's memory, above 0 and below 1.
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) gpu_fraction: Option<String>,
    /// Limit on each GPU, in MiB or with a unit: the share above is then guaranteed, and up to the limit the command may
    /// use memory that nobody else has been guaranteed.
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub(crate) gpu_memory_limit: Option<String>,
    /// Weight of the command where several want to use more than their share: 2 gets twice as much as 1 [default: 1].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) burst_weight: Option<String>,
    /// What the command sees as the size of a GPU whose limit is above what is guaranteed: guaranteed, or reachable
    /// (what it could have now) [default: reachable].
    #[arg(long, value_name = "SIZE", value_parser = [paths::INFO_GUARANTEED, paths::INFO_REACHABLE])]
    pub(crate) gpu_memory_info: Option<String>,
    /// Put the command to sleep when it has made no CUDA call for this time (10m, 1h): others can have its GPU memory until
    /// its next call wakes it. At least 10s, unless the agent allows less.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub(crate) suspend_when_idle: Option<String>,
    /// Number of GPUs.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<String>,
    /// UUID of a GPU to use; can be repeated.
    #[arg(long = "gpu", value_name = "UUID")]
    pub(crate) cards: Vec<String>,
    /// Name of the allocation, for `top`, `resize`, `suspend` and `resume` [default: the command's name and process id].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Print the allocation as one line of JSON on standard error before the command starts.
    #[arg(long)]
    pub(crate) json: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What the simulated machine looks like; all commands of a user share one.
#[derive(Debug, Args)]
pub(crate) struct SimOptions {
    /// Number of GPUs.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) gpus: Option<String>,
    /// Memory of each GPU, in MiB or with a unit (24576, 24576Mi, 24Gi).
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) gpu_memory: Option<String>,
    /// Version of the simulated NVIDIA driver.
    #[arg(long, value_parser = ["580", "615"])]
    pub(crate) driver: Option<String>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What to show and how often.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Print once and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print once as JSON and exit.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How to print a list.
#[derive(Debug, Args)]
pub(crate) struct ListFormat {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which functions to list.
#[derive(Debug, Args)]
pub(crate) struct HooksOptions {
    /// Also list the functions that are not intercepted, with the reason.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The allocation.
#[derive(Debug, Args)]
pub(crate) struct SuspendOptions {
    /// The allocation, by name or id.
    pub(crate) name: String,
}

/// The allocation and its new sizes.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("size").required(true).multiple(true)
    .args(["gpu_memory", "gpu_fraction", "gpu_memory_limit"]))]
pub(crate) struct ResizeOptions {
    /// The allocation, by name or id.
    pub(crate) name: String,
    /// New memory on each of its GPUs, in MiB or with a unit (2000, 2000Mi, 8Gi).
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub(crate) gpu_memory: Option<String>,
    /// New fraction of the memory of each of its GPUs, above 0 and below 1.
    #[arg(
        long,
        value_name = "F",
        allow_negative_numbers = true,
        conflicts_with = "gpu_memory"
    )]
    pub(crate) gpu_fraction: Option<String>,
    /// New limit on each of its GPUs, if it was started with one above what is guaranteed, in MiB or with a unit (2000,
    /// 2000Mi, 8Gi). Without this option it keeps its limit.
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    pub(crate) gpu_memory_limit: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_reference::HeadingDepth;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        ApportionOptions::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_command_and_option() {
        let commands = apportion_reference::commands(ApportionOptions::command(), HeadingDepth(2));
        apportion_reference::hold("cli", "commands", &commands);
    }

    #[test]
    fn a_mistyped_option_is_not_taken_for_the_command() {
        let line = ["apportion", "run", "--gpu-memroy", "5", "--", "python"];
        assert!(ApportionOptions::try_parse_from(line).is_err());
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
        let options = ApportionOptions::try_parse_from(line).unwrap();
        assert!(!options.address.sim);
        let ApportionCommand::Run(run) = options.command else {
            panic!("not run")
        };
        assert_eq!(run.command, ["python", "--sim", "--", "-x"]);
    }
}
