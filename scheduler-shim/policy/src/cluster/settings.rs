//! The settings of the policy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::StalenessGracePeriod;
use crate::divide::DivisionSettings;
use crate::min_runtime::MinRuntimeResolution;
use crate::step::action::Action;

/// How nodes or cards are chosen among those that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementStrategy {
    /// The fullest node or card first.
    #[default]
    Binpack,
    /// The emptiest node or card first.
    Spread,
    /// The first by name.
    ByName,
}

/// Which node a share prefers, among those with a shared card that has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedCardPreference {
    /// The node with the fullest card that has room, so that large holes stay for those who need them.
    #[default]
    BestFit,
    /// All of them alike, as KAI does.
    Any,
    /// No preference: opening a card is as good.
    NoMatter,
    /// The node, with or without such a card, where the least free capacity becomes useless to the pods of the
    /// cluster, weighted by how much each kind of pod requests. Pods with whole cards go by that, too.
    LeastFragments,
}

/// Where KAI differs from the policy. Nobody needs these settings to run: with them, a comparison finds the cause
/// of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KaiBehavior {
    /// A job that got its place in a step may lose it again in the same step.
    TakesBack,
    /// A part of a job finds no room in a required domain that is wider than the one that holds all nodes.
    NarrowsDomains,
    /// A pod that is about to leave counts for the affinity of others and for its own.
    CountsLeaving,
    /// A gang is stale if any of its sets lacks pods, even if it needs only some of its sets.
    NeedsAllSets,
    /// After an eviction, an elastic job gets one turn to be placed again: it gets its minimum or one pod, and
    /// loses the rest although there is room.
    ReturnsOnce,
    /// A pod that was moved, and is moved back in the same step, goes to the node of the first move.
    KeepsMove,
}

/// The settings of the policy.
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
    /// Which node a share prefers, among those with a shared card that has room.
    pub shared_cards: SharedCardPreference,
    /// Whether queues have quotas, limits and fair shares.
    pub has_quotas: bool,
    /// Whether jobs are ordered by priority.
    pub by_priority: bool,
    /// Whether jobs below their minimum go before those above.
    pub minimum_first: bool,
    /// Whether pods are checked against their nodes beyond free resources.
    pub has_predicates: bool,
    /// Whether pods may name claims on devices.
    pub allows_claims: bool,
    /// How the surplus is divided.
    pub division: DivisionSettings,
    /// A queue above its fair share may reclaim only while its saturation times this is below its sibling's.
    pub saturation_multiplier: f64,
    /// Whether victims of a reclaim may be moved instead of evicted.
    pub consolidating_reclaim: bool,
    /// How many victims consolidation may consider for one job; no bound if not given.
    pub max_consolidated: Option<usize>,
    /// How often one action may check a pod against a node or count it as a victim. After that, some more jobs get
    /// a hundredth of it each. KAI looks at the clock here; counting makes a plan independent of time.
    pub search_effort: u64,
    /// Where the policy decides as KAI does although its own way is better.
    pub as_kai: BTreeSet<KaiBehavior>,
    /// How many waiting jobs of each queue an action looks at; all if not given.
    pub queue_depth: BTreeMap<Action, usize>,
    /// How long a gang may go on with too few pods.
    pub grace: StalenessGracePeriod,
    /// How the minimum run time against reclaim is resolved.
    pub resolution: MinRuntimeResolution,
    /// The minimum run time against preemption, if no queue has one.
    pub preempt_min_runtime: Duration,
    /// The minimum run time against reclaim, if no queue has one.
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
    /// Whether the policy behaves like KAI in this respect.
    pub(crate) fn goes(&self, way: KaiBehavior) -> bool {
        self.as_kai.contains(&way)
    }
}
