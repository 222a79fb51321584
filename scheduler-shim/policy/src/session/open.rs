//! Opens a session: sorts, numbers and counts everything.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share as CardShare};

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::changed_nodes::ChangedNodes;
use crate::cluster::{Cluster, Job, Node, ResourceClaim, Task, TaskGpuRequest};
use crate::gang::{JobView, PodSetTree};
use crate::inter_pod_affinity::InterPodAffinity;
use crate::node_resources::{CardKey, CardSizes, NodeResources, NodeState};
use crate::numa::NumaZones;
use crate::session::evictions::EvictionCaution;
use crate::session::facts::{ClaimFacts, JobFacts, TaskFacts, TaskState, find};
use crate::session::{Session, initial_placement};
use crate::tree::QueueTree;

/// Card memory up to this does not count as a card size.
const UNKNOWN_SIZE: Bytes = Bytes::from_mib(100);

impl<'a> Session<'a> {
    /// Opens a session on a cluster.
    #[must_use]
    pub fn open(now: Duration, cluster: &'a Cluster) -> Self {
        open(now, cluster)
    }
}

fn open(now: Duration, cluster: &Cluster) -> Session<'_> {
    let mut nodes: Vec<&Node> = cluster.nodes.iter().collect();
    nodes.sort_by(|left, right| left.name.cmp(&right.name));
    nodes.dedup_by(|later, first| later.name == first.name);
    let mut profiles: Vec<String> = nodes
        .iter()
        .flat_map(|node| node.partitions.keys().cloned())
        .chain(asked_profiles(cluster))
        .collect();
    profiles.sort();
    profiles.dedup();
    let parts = Rc::new(profiles.iter().map(|profile| parts_of(profile)).collect());
    let node_states: Vec<NodeState> = nodes
        .iter()
        .map(|node| node_state(node, &profiles, &parts))
        .collect();
    let sizes = card_sizes(&nodes);
    let touched = ChangedNodes::none_of(nodes.len());
    let count = cluster.jobs.iter().map(|job| job.tasks.len()).sum();
    let mut session = Session {
        now,
        settings: &cluster.settings,
        topologies: cluster.topologies.iter().collect(),
        total: nodes.iter().map(|node| capacity(node)).sum(),
        card_sizes: (
            sizes.first().copied().unwrap_or(UNKNOWN_SIZE),
            sizes.last().copied().unwrap_or(UNKNOWN_SIZE),
        ),
        moves_shrink: sizes.len() > 1 && asks_bytes(cluster),
        sizes,
        most_zones: nodes.iter().map(|node| node.zones.len()).max().unwrap_or(0),
        nodes,
        node_states,
        queues: QueueTree::of(&cluster.queues),
        queue_facts: (cluster.queues.iter())
            .map(|queue| (queue.name.as_str(), queue))
            .collect(),
        jobs: Vec::with_capacity(cluster.jobs.len()),
        tasks: Vec::with_capacity(count),
        task_states: Vec::with_capacity(count),
        initial_states: Vec::new(),
        card_names: BTreeMap::new(),
        claims: Vec::new(),
        caution: EvictionCaution::default(),
        sparing: BTreeMap::new(),
        inter_pod_affinity: InterPodAffinity::default(),
        commitments: Vec::new(),
        profiles,
        next_card: 0,
        log: Vec::new(),
        effort: Cell::new(0),
        kinds: RefCell::default(),
        touched,
        free_capacity: RefCell::default(),
        places: RefCell::default(),
        rankings: RefCell::default(),
        mix: OnceCell::new(),
        names: OnceCell::new(),
    };
    add_claims(&mut session, cluster);
    let mut jobs: Vec<&Job> = cluster.jobs.iter().map(Arc::as_ref).collect();
    jobs.sort_by(|left, right| left.name.cmp(&right.name));
    for job in jobs {
        add_job(&mut session, job);
    }
    session.inter_pod_affinity =
        InterPodAffinity::of(&session.nodes, &session.tasks, &cluster.bystanders);
    initial_placement::place_all(&mut session);
    session.initial_states = session.task_states.clone();
    session
        .queues
        .divide(cluster.settings.division, session.total);
    session
}

/// Whether anybody asks for bytes of a card.
fn asks_bytes(cluster: &Cluster) -> bool {
    let mut tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    tasks.any(|task| {
        let TaskGpuRequest::Shared { share, .. } = &task.cards else {
            return false;
        };
        matches!(share, CardShare::Memory(_))
    })
}

fn asked_profiles(cluster: &Cluster) -> impl Iterator<Item = String> {
    let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    tasks.flat_map(|task| match &task.cards {
        TaskGpuRequest::Partitions(partitions) => partitions.keys().cloned().collect(),
        TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Shared { .. } => {
            Vec::new()
        }
    })
}

fn node_state(node: &Node, profiles: &[String], parts: &Rc<Vec<f64>>) -> NodeState {
    let count = |profile| node.partitions.get(profile).copied().unwrap_or(0);
    let total = NodeResources {
        cpu: node.cpu_millis,
        memory: node.memory,
        pods: node.pods,
        cards: node.card_count(),
        partitions: profiles.iter().map(count).collect(),
    };
    NodeState {
        idle: total.clone(),
        releasing: NodeResources {
            partitions: vec![0; profiles.len()],
            ..NodeResources::default()
        },
        total,
        card_memory: node.card_memory,
        mig: node.mig,
        parts: Rc::clone(parts),
        shared: BTreeMap::new(),
        sizes: CardSizes::of(&node.listed),
        legacy: 0,
        zones: NumaZones::new(node.numa, node.numa_scope, node.zones.clone()),
    }
}

/// What a node adds to the resources that queues divide.
fn capacity(node: &Node) -> ResourceAmounts {
    let partitions: f64 = node
        .partitions
        .iter()
        .map(|(profile, count)| parts_of(profile) * *count as f64)
        .sum();
    let cards = node.card_count() as f64 + partitions;
    ResourceAmounts::new(node.cpu_millis as f64, node.memory as f64, cards)
}

/// How many cards a partition counts for: the number before the `g` of its profile.
fn parts_of(profile: &str) -> f64 {
    let name = profile.rsplit('-').next().unwrap_or(profile);
    let parts = name.split_once('g').map(|(parts, _)| parts.parse());
    parts.and_then(Result::ok).unwrap_or(0.0)
}

impl TaskGpuRequest {
    /// How many cards it counts for, if a card has this memory.
    #[must_use]
    pub fn count(&self, card: Bytes) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Whole(count) => *count as f64,
            Self::Shared { share, devices } => {
                let part = match share {
                    CardShare::Whole => 1.0,
                    CardShare::Fraction(fraction) => f64::from(fraction.parts_per_billion()) / 1e9,
                    CardShare::Memory(bytes) => bytes.0 as f64 / card.0.max(1) as f64,
                };
                part * f64::from(*devices)
            }
            Self::Partitions(partitions) => (partitions.iter())
                .map(|(profile, count)| parts_of(profile) * *count as f64)
                .sum(),
        }
    }
}

/// The memory of all cards, each size once, the smallest first.
fn card_sizes(nodes: &[&Node]) -> Vec<Bytes> {
    let sizes = nodes.iter().flat_map(|node| node.card_sizes());
    let sizes: BTreeSet<Bytes> = sizes.filter(|size| *size > UNKNOWN_SIZE).collect();
    sizes.into_iter().collect()
}

/// Numbers the claims. Devices that were given to a claim become cards of their own.
fn add_claims<'a>(session: &mut Session<'a>, cluster: &'a Cluster) {
    let mut claims: Vec<&ResourceClaim> = cluster.claims.iter().collect();
    claims.sort_by(|left, right| left.name.cmp(&right.name));
    for claim in claims {
        let node = claim.node.as_ref();
        let node = node.and_then(|name| find(&session.nodes, name));
        let devices = if claim.is_of_cards { claim.devices } else { 0 };
        let given = node.map(|node| (node, claimed_cards(session, node, devices)));
        session.claims.push(ClaimFacts {
            claim,
            given,
            users: Vec::new(),
        });
    }
}

impl Session<'_> {
    /// The smallest cards of the cluster that could hold a task; the smallest of all if none could.
    fn smallest_for(&self, task: &Task) -> Bytes {
        let (smallest, _) = self.card_sizes;
        let asked = match &task.cards {
            TaskGpuRequest::Shared {
                share: CardShare::Memory(bytes),
                ..
            } if *bytes > smallest => *bytes,
            _ => return smallest,
        };
        let mut sizes = self.sizes.iter().copied();
        sizes.find(|size| *size >= asked).unwrap_or(smallest)
    }
}

/// Cards of a node for a claim, the smallest that no other claim has.
fn claimed_cards(session: &mut Session<'_>, node: usize, devices: i64) -> Vec<CardKey> {
    // A claim may state more devices than any node has cards.
    let devices = devices.min(session.node_states[node].total.cards);
    let before = session
        .claims
        .iter()
        .filter_map(|facts| facts.given.as_ref());
    let before: usize = (before.filter(|(place, _)| *place == node))
        .map(|(_, cards)| cards.len())
        .sum();
    let mut sizes: Vec<Bytes> = (session.nodes[node].listed.iter())
        .filter(|card| card.is_healthy)
        .map(|card| card.memory)
        .collect();
    sizes.sort_unstable();
    let card = |number: i64| {
        let place = before + usize::try_from(number).unwrap_or(0);
        let size = sizes.get(place).or(sizes.last());
        let class = size.and_then(|size| session.node_states[node].sizes.class(*size));
        session.new_card(node, class.unwrap_or(0))
    };
    (0..devices).map(card).collect()
}

fn add_job<'a>(session: &mut Session<'a>, job: &'a Job) {
    let place = session.jobs.len();
    // Most jobs have the tree of the job before: one set of pods.
    let before = session.jobs.last();
    let tree = match before.filter(|before| before.job.root == job.root) {
        Some(before) => Rc::clone(&before.tree),
        None => Rc::new(PodSetTree::of(job)),
    };
    let mut by_set = vec![Vec::new(); tree.sets.len()];
    let mut tasks: Vec<&Task> = job.tasks.iter().collect();
    tasks.sort_by(|left, right| {
        let labelled = |task: &Task| {
            let order = task.order.map(std::cmp::Reverse);
            (!task.leads, order.is_none(), order)
        };
        labelled(left)
            .cmp(&labelled(right))
            .then_with(|| left.name.cmp(&right.name))
    });
    for task in tasks {
        // A task of an unknown set can't be placed, as in KAI.
        let Some(set) = tree.set(&task.set) else {
            continue;
        };
        let claims = task.claims.iter().map(|name| find_claim(session, name));
        let claims: Option<Vec<usize>> = claims.collect();
        let claimed_cards = (claims.iter().flatten())
            .map(|&claim| session.claims[claim].claim)
            .filter(|claim| claim.is_of_cards)
            .fold(0, |sum: i64, claim| sum.saturating_add(claim.devices));
        let mut wants = task.amounts(session.smallest_for(task));
        wants[ResourceKind::Gpu] += claimed_cards as f64;
        for &claim in claims.iter().flatten() {
            session.claims[claim].users.push(session.tasks.len());
        }
        by_set[set].push(session.tasks.len());
        session.tasks.push(TaskFacts {
            task,
            job: place,
            set,
            wants,
            claims,
            claimed_cards,
        });
        session.task_states.push(TaskState::default());
    }
    let payer = session.queues.find(&job.queue);
    let queue = payer.filter(|&queue| session.queues.children(queue).is_empty());
    let view: JobView = tree.view(place, by_set);
    session.jobs.push(JobFacts {
        job,
        queue,
        payer,
        tree,
        view,
        last_start: job.last_start,
    });
}

fn find_claim(session: &Session<'_>, name: &str) -> Option<usize> {
    session
        .claims
        .binary_search_by(|facts| facts.claim.name.as_str().cmp(name))
        .ok()
}
