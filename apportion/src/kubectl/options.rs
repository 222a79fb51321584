//! The command line. Options of kubectl keep their names.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Show how the GPUs of a cluster are shared, and why pods wait.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-apportion",
    bin_name = "kubectl apportion",
    version,
    disable_help_subcommand = true
)]
pub(crate) struct KubectlOptions {
    #[command(flatten)]
    pub(crate) access: KubeconfigOptions,
    #[command(subcommand)]
    pub(crate) command: KubectlCommand,
}

/// Which cluster is asked, and as whom.
#[derive(Clone, Debug, Args)]
pub(crate) struct KubeconfigOptions {
    /// Kubeconfig file [default: KUBECONFIG, or ~/.kube/config].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context].
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// How long each request to the API server may take.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
}

/// What to show.
#[derive(Debug, Subcommand)]
pub(crate) enum KubectlCommand {
    /// List the GPUs of all nodes, and who has which share of them.
    Top(KubectlFormat),
    /// List the GPUs of all nodes and the free memory of each.
    Gpus(KubectlFormat),
    /// List the queues with their quotas and what their pods have.
    Queues(KubectlFormat),
    /// Show a pod's share, or why the pod waits.
    Explain(ExplainOptions),
}

/// How to print.
#[derive(Debug, Args)]
pub(crate) struct KubectlFormat {
    /// Print JSON; memory is in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to explain.
#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// Pod, as NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub(crate) pod: String,
    /// Namespace of the pod [default: that of the context].
    #[arg(long, short, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Ask the running scheduler, which also tries what would help. Needs kubectl and the right to exec into its pod.
    #[arg(long)]
    pub(crate) scheduler: bool,
    #[command(flatten)]
    pub(crate) format: KubectlFormat,
}

#[cfg(test)]
mod tests {
    use apportion_reference::{HeadingDepth, commands, hold};
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        KubectlOptions::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_command_and_option() {
        hold(
            "kubectl",
            "commands",
            &commands(KubectlOptions::command(), HeadingDepth(2)),
        );
    }
}
