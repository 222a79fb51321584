//! The choices of whoever runs the scheduler, or asks what it would do: the same for both, so that both decide alike.

use apportion_policy::Action;
use apportion_policy::cluster::{Settings, SharedCards, Strategy};
use clap::{Args, ValueEnum};

use crate::reasons::words;

/// What may be chosen of the policy.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choices {
    /// How many of the jobs that wait in each queue an action looks at; may be given once for each
    #[arg(long = "queue-depth", value_name = "ACTION=JOBS", value_parser = depth)]
    queue_depth: Vec<(Action, usize)>,

    /// How pods choose among the cards that fit
    #[arg(long, value_name = "WAY", default_value = "best-fit")]
    placement: Placement,
}

/// How pods choose among the cards that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Placement {
    /// The fullest node, and for a share the fullest card with room in the cluster
    #[default]
    BestFit,
    /// KAI's binpack: for a share the fullest card of the fullest node
    Binpack,
    /// KAI's spread: the emptiest node and card
    Spread,
    /// Where the least of what is free becomes useless to the pods that there are
    LeastFragments,
}

impl Choices {
    /// Enters them.
    pub(crate) fn enter(&self, settings: &mut Settings) {
        settings.queue_depth = self.queue_depth.iter().copied().collect();
        match self.placement {
            Placement::BestFit => settings.shared_cards = SharedCards::BestFit,
            Placement::Binpack => settings.shared_cards = SharedCards::Any,
            Placement::Spread => {
                settings.gpu_nodes = Strategy::Spread;
                settings.cards = Strategy::Spread;
                settings.shared_cards = SharedCards::NoMatter;
            }
            Placement::LeastFragments => settings.shared_cards = SharedCards::LeastFragments,
        }
    }
}

/// An action by the name that KAI gives it, and a number.
fn depth(text: &str) -> Result<(Action, usize), String> {
    let (name, jobs) = text.split_once('=').ok_or("it must be ACTION=JOBS")?;
    let named = |action: &Action| words::action(*action) == name;
    let searching = Action::ALL
        .into_iter()
        .filter(|action| *action != Action::EvictStaleGangs);
    let Some(action) = searching.clone().find(named) else {
        let known: Vec<&str> = searching.map(words::action).collect();
        return Err(format!("{name} is none of {}", known.join(", ")));
    };
    let jobs = jobs
        .parse()
        .map_err(|_| format!("{jobs} is no number of jobs"))?;
    Ok((action, jobs))
}
