//! The choices of whoever runs the scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::StalenessGracePeriod;
use crate::divide::DivisionSettings;
use crate::min_runtime::MinRuntimeResolution;
use crate::step::Action;

/// How nodes or cards are chosen among those that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementStrategy {
    /// The fullest first.
    #[default]
    Binpack,
    /// The emptiest first.
    Spread,
    /// The first by name.
    ByName,
}

/// Which of the nodes with a shared card that has room a share prefers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedCardPreference {
    /// The one where the fullest card with room is, so that large holes stay for those who need them.
    #[default]
    BestFit,
    /// All of them alike, as KAI does.
    Any,
    /// None of them: a card may as well be opened.
    NoMatter,
    /// The one, with or without such a card, where the least of what is free becomes useless to the pods that there
    /// are, by how many there are of each kind; pods with whole cards go by that, too.
    LeastFragments,
}

/// What KAI does and the policy does otherwise. Nobody wants these ways: they tell which difference from KAI comes of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KaiBehavior {
    /// A job that got its place in a step may lose it again in the same step.
    TakesBack,
    /// A part of a job finds no room in a domain that is wider than the one that all its nodes are in.
    NarrowsDomains,
    /// A pod that is about to leave counts for the affinity of others and for its own.
    CountsLeaving,
    /// A gang lacks pods where any of its sets does, also where it needs only some of them.
    NeedsAllSets,
    /// An elastic job of which pods were evicted has one turn to be placed again: it gets its minimum or one pod, and
    /// loses the rest although there is room.
    ReturnsOnce,
}

/// The choices of whoever runs the scheduler.
#[derive(Clone, Debug)]
pub struct PolicySettings {
    /// How a pod with cards chooses its node.
    pub gpu_nodes: PlacementStrategy,
    /// How a pod without cards chooses its node.
    pub cpu_nodes: PlacementStrategy,
    /// How a share chooses its card.
    pub cards: PlacementStrategy,
    /// Whether a pod without cards prefers a node without cards.
    pub keeps_kinds_apart: bool,
    /// Whether a node where the pod fits now beats one where it has to wait.
    pub prefers_free: bool,
    /// Which of the nodes with a shared card that has room a share prefers.
    pub shared_cards: SharedCardPreference,
    /// Whether queues have quotas, limits and fair shares.
    pub has_quotas: bool,
    /// Whether jobs go by priority.
    pub by_priority: bool,
    /// Whether jobs below their minimum go before those above.
    pub minimum_first: bool,
    /// Whether pods are checked against their nodes beyond free resources.
    pub has_predicates: bool,
    /// Whether pods may name claims on devices.
    pub allows_claims: bool,
    /// How the surplus is divided.
    pub division: DivisionSettings,
    /// How much fuller than its sibling's, in parts, a reclaiming queue may make its fair share.
    pub saturation_multiplier: f64,
    /// Whether victims of a reclaim may be moved instead of ended.
    pub consolidating_reclaim: bool,
    /// How many jobs consolidation may look at; no bound where not given.
    pub max_consolidated: Option<usize>,
    /// How often, in one action, pods are held against nodes or counted as victims. Once it is spent some more jobs get
    /// a hundredth of it each. Where KAI looks at the clock this is counted, so that a plan does not depend on it.
    pub search_effort: u64,
    /// In what the policy decides as KAI although its own way is better.
    pub as_kai: BTreeSet<KaiBehavior>,
    /// How many of the jobs that wait in each queue an action looks at; all where not given.
    pub queue_depth: BTreeMap<Action, usize>,
    /// How long a gang may go on with too few pods.
    pub grace: StalenessGracePeriod,
    /// Where the minimum run time against reclaim is found.
    pub resolution: MinRuntimeResolution,
    /// The minimum run time where no queue has one: against preemption.
    pub preempt_min_runtime: Duration,
    /// The minimum run time where no queue has one: against reclaim.
    pub reclaim_min_runtime: Duration,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            gpu_nodes: PlacementStrategy::Binpack,
            cpu_nodes: PlacementStrategy::Binpack,
            cards: PlacementStrategy::Binpack,
            keeps_kinds_apart: true,
            prefers_free: true,
            shared_cards: SharedCardPreference::BestFit,
            has_quotas: true,
            by_priority: true,
            minimum_first: true,
            has_predicates: true,
            allows_claims: true,
            division: DivisionSettings {
                k_value: 1.0,
                ..DivisionSettings::default()
            },
            saturation_multiplier: 1.0,
            consolidating_reclaim: true,
            max_consolidated: None,
            search_effort: 2_000_000,
            as_kai: BTreeSet::new(),
            queue_depth: BTreeMap::new(),
            grace: StalenessGracePeriod::For(Duration::from_secs(60)),
            resolution: MinRuntimeResolution::LowestCommonAncestor,
            preempt_min_runtime: Duration::ZERO,
            reclaim_min_runtime: Duration::ZERO,
        }
    }
}

impl PolicySettings {
    /// Whether the policy goes a way of KAI's that is not its own.
    pub(crate) fn goes(&self, way: KaiBehavior) -> bool {
        self.as_kai.contains(&way)
    }
}
