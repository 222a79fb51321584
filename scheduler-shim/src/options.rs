//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use apportion_claims::binding::BINDING_TIMEOUT;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;

use crate::live::grouper::PodGroupMode;
use crate::log::LogOptions;
use crate::policy_options::PolicyOptions;
use crate::usage_options::UsageOptions;

/// Where the running scheduler answers.
const ADDRESS: &str = "127.0.0.1:9409";

/// Schedule pods onto shared and whole GPUs.
#[derive(Debug, Parser)]
#[command(name = "apportion-scheduler", version, about)]
pub(crate) struct SchedulerOptions {
    #[command(subcommand)]
    pub(crate) command: SchedulerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulerCommand {
    /// Schedule the pods of a cluster
    Run(Box<SchedulerRunOptions>),
    /// Ask the running scheduler why a pod has its node, or waits
    Explain(SchedulerExplainOptions),
    /// Show the scheduling decisions for Kubernetes objects in files
    Simulate(SimulateOptions),
    /// Serve the admission webhooks for pods, queues, pod groups and topologies
    Webhook(Box<SchedulerWebhookOptions>),
}

/// How to run.
#[derive(Debug, Args)]
pub(crate) struct SchedulerRunOptions {
    /// Schedule pods with this schedulerName; can be repeated
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        default_values = ["apportion-scheduler", "kai-scheduler"]
    )]
    pub(crate) schedulers: Vec<String>,

    /// Kubeconfig file [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Address of health, metrics, explanations and snapshots
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESS)]
    pub(crate) address: SocketAddr,

    /// Namespace of the leader election lease
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(crate) lease_namespace: String,

    /// Name of the leader election lease
    #[arg(long, value_name = "NAME", default_value = "apportion-scheduler")]
    pub(crate) lease_name: String,

    /// Whether the lease is renewed, so that a second replica can wait for it; with false, the scheduler that starts last
    /// takes it at once, and the one before ends
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) leader_elect: bool,

    /// Seconds that the lease is valid without being renewed; up to 15 while the API server is slow
    #[arg(long, value_name = "SECONDS", default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub(crate) lease_duration: u64,

    /// Namespace of the CA that signs the certificates of agents
    /// [default: the namespace of the cluster's configuration]
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) authority_namespace: Option<String>,

    /// User that may request agent certificates
    /// [default: the service account apportion-agent in the CA's namespace]
    #[arg(long, value_name = "USER")]
    pub(crate) agent_user: Option<String>,

    /// Lifetime of agent certificates in seconds; they are renewed automatically
    #[arg(long, value_name = "SECONDS", default_value_t = 30 * 24 * 60 * 60,
        value_parser = clap::value_parser!(u64).range(12..=31_536_000))]
    pub(crate) certificate_life: u64,

    /// Seconds that devices with binding conditions may take to get ready before others are tried
    #[arg(long, value_name = "SECONDS", default_value_t = BINDING_TIMEOUT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) device_binding_timeout: u64,

    #[command(flatten)]
    pub(crate) choices: PolicyOptions,

    #[command(flatten)]
    pub(crate) over_time: UsageOptions,

    /// For whose pods PodGroup objects are written, as KAI's pod grouper does
    #[arg(long, value_name = "WHOSE", default_value = "auto")]
    pub(crate) pod_groups: PodGroupMode,

    /// Change the Deployments kai-scheduler-default, binder and admission in the lease's namespace as KAI's Config says
    #[arg(long)]
    pub(crate) kai_programs: bool,

    #[command(flatten)]
    pub(crate) log: LogOptions,
}

/// What to ask.
#[derive(Debug, Args)]
pub(crate) struct SchedulerExplainOptions {
    /// Pod, as NAME or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pub(crate) pod: String,

    /// Print JSON; memory is in bytes
    #[arg(long)]
    pub(crate) json: bool,

    /// Address of the running scheduler
    #[arg(long, value_name = "IP:PORT", default_value = ADDRESS)]
    pub(crate) address: SocketAddr,
}

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct SimulateOptions {
    /// Kubernetes objects in YAML or JSON, as `kubectl get -o yaml` prints them; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Print JSON; memory is in bytes
    #[arg(long)]
    pub(crate) json: bool,

    /// Explain why this pod (NAME or NAMESPACE/NAME) gets its node, or waits
    #[arg(long, value_name = "POD")]
    pub(crate) explain: Option<String>,

    /// What the webhook does with a pod whose GPU memory limit is above its request; with refuse, the limit counts
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    pub(crate) request_below_limit: LimitAboveRequest,

    #[command(flatten)]
    pub(crate) choices: PolicyOptions,

    /// Time of the decisions [default: now]
    #[arg(long, value_name = "RFC3339")]
    pub(crate) now: Option<Timestamp>,

    /// Schedule pods with this schedulerName; can be repeated
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        default_values = ["apportion-scheduler", "kai-scheduler"]
    )]
    pub(crate) schedulers: Vec<String>,
}

/// How the webhook listens and which rules are on.
#[derive(Debug, Args)]
pub(crate) struct SchedulerWebhookOptions {
    /// HTTPS address for the API server's admission reviews
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9443")]
    pub(crate) listen: SocketAddr,

    /// HTTP address of /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9444")]
    pub(crate) health: SocketAddr,

    /// Folder of a certificate (tls.crt, tls.key) that is renewed elsewhere [default: the webhook makes and renews one]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tls_dir: Option<PathBuf>,

    /// File with the CA certificates (PEM) of clients that are answered, such as the API server; any client if not
    /// given
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Namespace of the webhook's service and of its certificate secret
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "apportion-system"
    )]
    pub(crate) namespace: String,

    /// Service of the webhook
    #[arg(long, value_name = "NAME", default_value = "apportion-webhook")]
    pub(crate) service: String,

    /// Secret of the webhook's certificate
    #[arg(long, value_name = "NAME", default_value = "apportion-webhook-tls")]
    pub(crate) secret: String,

    /// Another DNS name or address at which the API server calls the webhook; can be repeated
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Name of the mutating and validating webhook configurations that get the CA certificate
    #[arg(long, value_name = "NAME", default_value = "apportion-admission")]
    pub(crate) configurations: String,

    /// Check pods with this schedulerName; can be repeated
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        default_values = ["apportion-scheduler", "kai-scheduler"]
    )]
    pub(crate) schedulers: Vec<String>,

    /// Refuse pods that share a GPU
    #[arg(long)]
    pub(crate) no_sharing: bool,

    /// How a container gets its GPU
    #[arg(long, value_name = "WAY", default_value = "slot")]
    pub(crate) delivery: DeliveryOption,

    /// Resource of which each container with a share gets one
    #[arg(long, value_name = "RESOURCE", default_value = apportion_abi::names::RESOURCE_SLOT)]
    pub(crate) slot: String,

    /// Runtime class for pods that share a GPU and set no runtime class
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime_class: Option<String>,

    /// Hide GPUs from containers that request none, and refuse containers that choose their GPUs themselves
    #[arg(long, alias = "block-nvidia-visible-devices", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) block_visible_devices: bool,

    /// Refuse shares that KAI accepts but that cannot work: too small, on too many GPUs, or beside GPUs of other vendors
    #[arg(long)]
    pub(crate) strict: bool,

    /// Let containers with a share request apportion.dev/gpu-share-mib or apportion.dev/gpu-share-micro, for Kueue,
    /// autoscalers and quotas of namespaces
    #[arg(long)]
    pub(crate) count_shares: bool,

    /// What to do with a pod whose GPU memory limit is above its request
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    pub(crate) request_below_limit: LimitAboveRequest,

    /// Warn if a queue's quotas do not fit its parent's, and refuse queues whose parent does not exist
    #[arg(long)]
    pub(crate) compare_quotas: bool,

    /// Read HAMi's resources nvidia.com/gpumem and nvidia.com/gpumem-percentage as requests for shares, and refuse
    /// nvidia.com/gpucores
    #[arg(long)]
    pub(crate) hami_resources: bool,

    #[command(flatten)]
    pub(crate) log: LogOptions,
}

/// How a container gets its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeliveryOption {
    /// By the agent of the node
    Slot,
    /// By KAI's binder
    ConfigMaps,
    /// By KAI's binder, with a limit for the HAMi library
    ConfigMapsWithLimit,
}

/// What is done with a limit above the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LimitAboveRequest {
    /// Refuse the pod
    Refuse,
    /// Schedule and charge the limit, and warn the user who creates the pod
    ChargeLimit,
    /// Guarantee and charge the request, and let the pod burst up to the limit
    Burst,
}

#[cfg(test)]
mod tests {
    use apportion_reference::{HeadingDepth, commands, hold};
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_reference_has_every_command_and_option() {
        hold(
            "scheduler",
            "commands",
            &commands(SchedulerOptions::command(), HeadingDepth(2)),
        );
    }
}
