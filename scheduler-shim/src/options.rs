//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;

/// Where the running scheduler answers.
const ADDRESS: &str = "127.0.0.1:9409";

/// The scheduler of Apportion.
#[derive(Debug, Parser)]
#[command(name = "apportion-scheduler", version, about)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Schedules the pods of a cluster
    Run(Run),
    /// Asks the running scheduler why a pod is where it is, or waits
    Explain(Explain),
    /// Says what would be decided for the objects in these files
    Simulate(Simulate),
}

/// How to run.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// A scheduler whose pods are decided on; may be given more than once
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        default_values = ["apportion-scheduler", "kai-scheduler"]
    )]
    pub(crate) schedulers: Vec<String>,

    /// The cluster [default: KUBECONFIG, ~/.kube/config, or that of the pod this runs in]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Where health, explanations and snapshots are served
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESS)]
    pub(crate) address: SocketAddr,

    /// The namespace of the lease by which one scheduler leads
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(crate) lease_namespace: String,

    /// The name of the lease
    #[arg(long, value_name = "NAME", default_value = "apportion-scheduler")]
    pub(crate) lease_name: String,

    /// How long the lease holds without being renewed, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15,
        value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub(crate) lease_duration: u64,

    /// What is logged, as tracing's filters say it
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub(crate) log: String,
}

/// What to ask.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// NAME or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pub(crate) pod: String,

    /// Print JSON; amounts of memory are bytes
    #[arg(long)]
    pub(crate) json: bool,

    /// Where the scheduler answers
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESS)]
    pub(crate) address: SocketAddr,
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
