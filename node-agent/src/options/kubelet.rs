//! Settings of an agent that serves a kubelet.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The kubelet")]
pub(crate) struct KubeletOptions {
    /// The kubelet's folder, usually /var/lib/kubelet; the agent offers GPU slots there as a device plugin
    /// [default: none, no device plugin]
    #[arg(long, env = "APPORTION_KUBELET_DIR", value_name = "PATH")]
    pub(crate) kubelet_dir: Option<PathBuf>,

    /// Folder for the agent's CDI specs; the container runtime must read it
    #[arg(
        long,
        env = "APPORTION_CDI_DIR",
        value_name = "PATH",
        default_value = "/var/run/cdi"
    )]
    pub(crate) cdi_dir: PathBuf,

    /// Maximum number of containers of this node that have a share at the same time, 1 to 4096
    #[arg(long, env = "APPORTION_SLOTS", value_name = "NUMBER", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) slots: u16,

    /// What to do with a pod that has a slot but no allocation from a scheduler
    #[arg(
        long,
        env = "APPORTION_UNPLACED",
        value_name = "WHAT",
        default_value = "deny"
    )]
    pub(crate) unplaced: UnplacedPolicy,

    /// Whether to offer whole GPUs to the kubelet as nvidia.com/gpu, from the same ledger as the shares
    #[arg(long = "whole-cards", env = "APPORTION_WHOLE_CARDS", value_name = "SWITCH", default_value = "off",
        action = ArgAction::Set, value_parser = on_or_off())]
    pub(crate) has_whole_cards: bool,

    /// Whether to serve resource claims as the DRA driver gpu.apportion.dev, from the same ledger; needs --kubelet-dir
    /// and --node-name
    #[arg(long = "dra", env = "APPORTION_DRA", value_name = "SWITCH", default_value = "off",
        action = ArgAction::Set, value_parser = on_or_off())]
    pub(crate) has_claims: bool,

    /// What to do with a pod whose resource claim is refused for half a minute because others have the memory: wait, or
    /// evict the pod if a controller replaces it
    #[arg(
        long = "dra-refused",
        env = "APPORTION_DRA_REFUSED",
        value_name = "WHAT",
        default_value = "evict"
    )]
    pub(crate) refused_claims: RefusedClaimPolicy,

    /// Whether containers also get /etc/ld.so.preload; set it off on nodes with pods that mount a read-only volume at
    /// /etc
    #[arg(long = "preload-file", env = "APPORTION_PRELOAD_FILE", value_name = "SWITCH", default_value = "on",
        action = ArgAction::Set, value_parser = on_or_off())]
    pub(crate) has_preload_list: bool,
}

impl KubeletOptions {
    /// Why these options do not fit together.
    pub(super) fn mistake(&self, node: Option<&str>) -> Option<String> {
        let lacks = |what| format!("--dra on needs {what}");
        if !self.has_claims {
            return None;
        }
        match (&self.kubelet_dir, node) {
            (None, _) => Some(lacks("--kubelet-dir")),
            (_, None) => Some(lacks("--node-name")),
            (Some(_), Some(_)) => None,
        }
    }
}

/// What happens to a pod that holds a slot but was placed by no scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnplacedPolicy {
    /// It does not start
    Deny,
    /// It gets its request on this node
    LocalFit,
}

/// What happens to a pod whose resource claim is refused for long, because others have the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RefusedClaimPolicy {
    /// It waits on its node
    Wait,
    /// It is evicted if a controller replaces it
    Evict,
}

/// A switch that is written as on or off.
fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|text| text == "on")
}
