//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;

use crate::choices::Choices;
use crate::over_time::OverTime;

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
    /// Answers the API server: which pods, queues, pod groups and topologies may be
    Webhook(Box<Webhook>),
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

    /// The namespace of the authority that signs the certificates of agents served over TCP
    /// [default: that of the cluster's configuration]
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) authority_namespace: Option<String>,

    /// The user who may ask for an agent's certificate
    /// [default: the service account apportion-agent of the authority's namespace]
    #[arg(long, value_name = "USER")]
    pub(crate) agent_user: Option<String>,

    /// How long certificates for agents are good for, in seconds; they are renewed by themselves
    #[arg(long, value_name = "SECONDS", default_value_t = 30 * 24 * 60 * 60,
        value_parser = clap::value_parser!(u64).range(12..=31_536_000))]
    pub(crate) certificate_life: u64,

    #[command(flatten)]
    pub(crate) choices: Choices,

    #[command(flatten)]
    pub(crate) over_time: OverTime,

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

    #[command(flatten)]
    pub(crate) choices: Choices,

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

/// How the webhook listens and which rules are on.
#[derive(Debug, Args)]
pub(crate) struct Webhook {
    /// Where questions are answered, over TLS
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub(crate) listen: SocketAddr,

    /// Where /healthz, /readyz and /metrics are shown
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9444")]
    pub(crate) health: SocketAddr,

    /// Show the certificate in this folder (tls.crt, tls.key), which somebody else renews, in place of our own
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tls_dir: Option<PathBuf>,

    /// Answer only clients whose certificate an authority in this file (PEM) signed, as the API server's where it has
    /// one; everybody without it
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,

    /// The namespace of our service and of the secret with our certificate
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "apportion-system"
    )]
    pub(crate) namespace: String,

    /// Our service
    #[arg(long, value_name = "NAME", default_value = "apportion-webhook")]
    pub(crate) service: String,

    /// The secret with our certificate
    #[arg(long, value_name = "NAME", default_value = "apportion-webhook-tls")]
    pub(crate) secret: String,

    /// Another name or address under which the API server calls; may be given more than once
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// The webhook configurations, of both kinds, that are made to trust our certificate
    #[arg(long, value_name = "NAME", default_value = "apportion-admission")]
    pub(crate) configurations: String,

    /// A scheduler whose pods are judged; may be given more than once
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        default_values = ["apportion-scheduler", "kai-scheduler"]
    )]
    pub(crate) schedulers: Vec<String>,

    /// Refuse pods that share a card
    #[arg(long)]
    pub(crate) no_sharing: bool,

    /// How a container gets its card
    #[arg(long, value_name = "WAY", default_value = "slot")]
    pub(crate) delivery: Delivery,

    /// The resource of which a container that shares a card gets one
    #[arg(long, value_name = "RESOURCE", default_value = apportion_abi::names::RESOURCE_SLOT)]
    pub(crate) slot: String,

    /// The runtime class of pods that share a card and choose none
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime_class: Option<String>,

    /// Containers that ask for no card see none, and none may choose its cards by itself
    #[arg(long)]
    pub(crate) block_visible_devices: bool,

    /// Refuse shares that KAI takes and nobody can use: too small, on too many cards, beside other makers' cards
    #[arg(long)]
    pub(crate) strict: bool,

    /// Warn when the quotas of a queue and its parent don't fit, and refuse queues without their parent
    #[arg(long)]
    pub(crate) compare_quotas: bool,
}

/// How a container gets its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Delivery {
    /// By the agent of its node
    Slot,
    /// By KAI's binder
    ConfigMaps,
    /// By KAI's binder, with a limit for HAMi's library
    ConfigMapsWithLimit,
}

#[cfg(test)]
mod tests {
    use apportion_reference::{Depth, commands, hold};
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_reference_has_every_command_and_option() {
        hold(
            "scheduler",
            "commands",
            &commands(Options::command(), Depth(2)),
        );
    }
}
