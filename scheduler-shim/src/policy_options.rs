//! The policy options of `run` and `simulate`: the same for both, so that both decide alike.

use std::collections::BTreeSet;
use std::time::Duration;

use apportion_kubernetes::{not_a_duration, parse_long_duration};
use apportion_policy::cluster::{PlacementStrategy, PolicySettings, SharedCardPreference};
use apportion_policy::{Action, Cluster};
use clap::{Args, ValueEnum};

use apportion_model::inventory::ObjectInventory;
use apportion_model::shards::action_name;
use apportion_model::{numa, shards};

/// What may be chosen of the policy.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PolicyOptions {
    /// Maximum number of waiting jobs that an action considers in each queue; can be given once for each action
    #[arg(long = "queue-depth", value_name = "ACTION=JOBS", value_parser = depth)]
    queue_depth: Vec<(Action, usize)>,

    /// How to choose among the GPUs that fit
    #[arg(long, value_name = "WAY", default_value = "best-fit")]
    placement: PlacementOption,

    /// For how long jobs run before they can be preempted, where no queue says so; 12h, 1d or 2w
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0")]
    default_preempt_min_runtime: Duration,

    /// For how long jobs run before they can be reclaimed, where no queue says so
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0")]
    default_reclaim_min_runtime: Duration,

    /// Only bind pods to nodes whose kubelet can align them with NUMA zones, as NodeResourceTopology objects say
    #[arg(long)]
    numa: bool,

    /// Go by KAI's SchedulingShard, too: what it says goes before the options
    #[arg(long)]
    kai_settings: bool,
}

/// How pods choose among the cards that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PlacementOption {
    /// The fullest node; for a share, the fullest GPU with room in the cluster
    #[default]
    BestFit,
    /// KAI's binpack: the fullest node; for a share, the fullest GPU of that node
    Binpack,
    /// KAI's spread: the emptiest node and GPU
    Spread,
    /// Where the least free memory becomes unusable for the present pods
    LeastFragments,
}

impl PolicyOptions {
    /// Whether KAI's SchedulingShard counts.
    pub(crate) fn has_shards(&self) -> bool {
        self.kai_settings
    }

    /// Applies the options, and the objects of the cluster that override them.
    pub(crate) fn enter(&self, inventory: &ObjectInventory, cluster: &mut Cluster) {
        self.enter_options(&mut cluster.settings);
        let mut numa = self.numa.then(BTreeSet::new);
        if self.kai_settings {
            shards::enter(inventory, cluster, &mut numa);
        }
        if let Some(ignored) = numa {
            numa::enter(inventory, cluster, &ignored);
        }
    }

    fn enter_options(&self, settings: &mut PolicySettings) {
        settings.queue_depth = self.queue_depth.iter().copied().collect();
        settings.preempt_min_runtime = self.default_preempt_min_runtime;
        settings.reclaim_min_runtime = self.default_reclaim_min_runtime;
        match self.placement {
            PlacementOption::BestFit => settings.shared_cards = SharedCardPreference::BestFit,
            PlacementOption::Binpack => settings.shared_cards = SharedCardPreference::Any,
            PlacementOption::Spread => {
                settings.gpu_nodes = PlacementStrategy::Spread;
                settings.cards = PlacementStrategy::Spread;
                settings.shared_cards = SharedCardPreference::NoMatter;
            }
            PlacementOption::LeastFragments => {
                settings.shared_cards = SharedCardPreference::LeastFragments
            }
        }
    }
}

/// A duration, as in the arguments of KAI's scheduler plugins.
fn duration(text: &str) -> Result<Duration, String> {
    parse_long_duration(text).ok_or_else(|| not_a_duration(text))
}

/// An action by KAI's name, and a number.
fn depth(text: &str) -> Result<(Action, usize), String> {
    let (name, jobs) = text.split_once('=').ok_or("expected ACTION=JOBS")?;
    let searching = Action::ALL
        .into_iter()
        .filter(|action| *action != Action::EvictStaleGangs);
    let Some(action) = searching
        .clone()
        .find(|action| action_name(*action) == name)
    else {
        let known: Vec<&str> = searching.map(action_name).collect();
        return Err(format!(
            "unknown action {name}; expected one of {}",
            known.join(", ")
        ));
    };
    let jobs = jobs
        .parse()
        .map_err(|_| format!("{jobs} is not a number of jobs"))?;
    Ok((action, jobs))
}
