//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;

/// The scheduler of Apportion.
#[derive(Debug, Parser)]
#[command(name = "apportion-scheduler", version, about)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Says what would be decided for the objects in these files
    Simulate(Simulate),
}

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// Kubernetes objects as YAML or JSON (`kubectl get -o yaml` writes such); - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Print JSON; amounts of memory are bytes
    #[arg(long)]
    pub(crate) json: bool,

    /// Say why this pod (NAME or NAMESPACE/NAME) goes where it goes, or waits
    #[arg(long, value_name = "POD")]
    pub(crate) explain: Option<String>,

    /// The time of the decisions [default: now]
    #[arg(long, value_name = "RFC3339")]
    pub(crate) now: Option<Timestamp>,

    /// A scheduler whose pods are decided on; may be given more than once
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        default_values = ["apportion-scheduler", "kai-scheduler"]
    )]
    pub(crate) schedulers: Vec<String>,
}
