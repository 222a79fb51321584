//! Takes the snapshot: sorts and numbers everything.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::cluster::{
    Cluster, Job, Node, PinnedCard, ResourceClaim, Task, TaskGpuRequest, parts_of,
};
use crate::gang::PodSetTree;
use crate::inter_pod_affinity::AffinityTerms;
use crate::node_resources::{CardKey, CardSizes};
use crate::snapshot::{
    ClaimFacts, ClusterCardSizes, ClusterSnapshot, GivenDevices, JobFacts, TaskFacts, find_node,
};
use crate::tree::QueueTree;

impl<'a> ClusterSnapshot<'a> {
    /// The snapshot of a cluster, whose queues make this tree.
    pub(crate) fn of(now: Duration, cluster: &'a Cluster, queues: &QueueTree) -> Self {
        let mut nodes: Vec<&Node> = cluster.nodes.iter().collect();
        nodes.sort_by(|left, right| left.name.cmp(&right.name));
        nodes.dedup_by(|later, first| later.name == first.name);
        let card_sizes = ClusterCardSizes {
            sizes: card_sizes(&nodes),
            asks_bytes: asks_bytes(cluster),
        };
        let mut jobs: Vec<&Job> = cluster.jobs.iter().map(Arc::as_ref).collect();
        jobs.sort_by(|left, right| left.name.cmp(&right.name));
        let mut lists = NumberedLists::with_claims(cluster, &nodes, jobs.len());
        for job in jobs {
            lists.add_job(job, queues, &card_sizes);
        }
        let tasks: Vec<&Task> = lists.tasks.iter().map(|facts| facts.task).collect();
        let pinned = pinned_cards(cluster);
        Self {
            now,
            cluster,
            affinity_terms: AffinityTerms::of(&nodes, &tasks, &cluster.bystanders),
            queues: (cluster.queues.iter())
                .map(|queue| (queue.name.as_str(), queue))
                .collect(),
            jobs: lists.jobs,
            tasks: lists.tasks,
            claims: lists.claims,
            card_sizes,
            profiles: profiles(cluster, &nodes),
            total: nodes.iter().map(|node| capacity(node)).sum(),
            most_zones: nodes.iter().map(|node| node.zones.len()).max().unwrap_or(0),
            pinned_classes: pinned_classes(&tasks, &nodes, &pinned),
            pinned,
            nodes,
            task_numbers: OnceCell::new(),
        }
    }
}

/// The cards to which tasks are pinned, by node.
fn pinned_cards(cluster: &Cluster) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut pinned: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    for PinnedCard { node, card } in tasks.filter_map(|task| task.pinned.as_ref()) {
        pinned.entry(node).or_default().insert(card);
    }
    pinned
}

/// The nodes and the size classes of the cards to which tasks are pinned, by task. A card that cannot be allocated has no
/// class.
fn pinned_classes(
    tasks: &[&Task],
    nodes: &[&Node],
    pinned: &BTreeMap<&str, BTreeSet<&str>>,
) -> BTreeMap<usize, (usize, usize)> {
    let mut sizes: BTreeMap<usize, CardSizes> = BTreeMap::new();
    let pins = tasks.iter().enumerate();
    let pins = pins.filter_map(|(task, of)| Some((task, of.pinned.as_ref()?)));
    let classes = pins.filter_map(|(task, pin)| {
        let node = find_node(nodes, &pin.node)?;
        let sizes = sizes.entry(node).or_insert_with(|| {
            let on_node = pinned.get(pin.node.as_str());
            CardSizes::of(&nodes[node].listed, on_node.unwrap_or(&BTreeSet::new()))
        });
        Some((task, (node, sizes.pinned_class(&pin.card)?)))
    });
    classes.collect()
}

/// What is numbered: jobs, tasks and claims name each other by their index.
struct NumberedLists<'a> {
    jobs: Vec<JobFacts<'a>>,
    tasks: Vec<TaskFacts<'a>>,
    claims: Vec<ClaimFacts<'a>>,
    /// Whether devices are allocated, and not only counted.
    allocates: bool,
}

impl<'a> NumberedLists<'a> {
    /// Numbers the claims. Devices that were given to a claim become cards of their own.
    fn with_claims(cluster: &'a Cluster, nodes: &[&'a Node], jobs: usize) -> Self {
        let tasks = cluster.jobs.iter().map(|job| job.tasks.len()).sum();
        let mut lists = Self {
            jobs: Vec::with_capacity(jobs),
            tasks: Vec::with_capacity(tasks),
            claims: Vec::with_capacity(cluster.claims.len()),
            allocates: cluster.allocator.is_some(),
        };
        let mut claims: Vec<&ResourceClaim> = cluster.claims.iter().collect();
        claims.sort_by(|left, right| left.name.cmp(&right.name));
        let mut last_key = 0;
        for claim in claims {
            let node = claim.node.as_ref().filter(|_| !lists.allocates);
            let node = node.and_then(|name| find_node(nodes, name));
            let given = node.map(|node| lists.given_devices(claim, nodes, node, &mut last_key));
            lists.claims.push(ClaimFacts {
                claim,
                given,
                users: Vec::new(),
            });
        }
        lists
    }

    /// The devices of a claim on its node: cards are the smallest that no earlier claim has.
    fn given_devices(
        &self,
        claim: &ResourceClaim,
        nodes: &[&Node],
        node: usize,
        last_key: &mut CardKey,
    ) -> GivenDevices {
        // A claim may state more devices than any node has cards.
        let count = if claim.is_of_cards {
            claim.devices.min(nodes[node].card_count())
        } else {
            0
        };
        let earlier = self
            .claims
            .iter()
            .filter_map(|facts| facts.given.as_ref())
            .filter(|given| given.node == node);
        let allocated: usize = earlier.map(|given| given.cards.len()).sum();
        let healthy = nodes[node].listed.iter().filter(|card| card.is_healthy);
        let mut sizes: Vec<Bytes> = healthy.map(|card| card.memory).collect();
        sizes.sort_unstable();
        let mut given = GivenDevices {
            node,
            cards: Vec::new(),
            sizes: Vec::new(),
        };
        for number in 0..usize::try_from(count).unwrap_or(0) {
            *last_key += 1;
            given.cards.push(*last_key);
            let size = sizes.get(allocated + number).or(sizes.last());
            given.sizes.push(size.copied());
        }
        given
    }

    fn add_job(&mut self, job: &'a Job, queues: &QueueTree, card_sizes: &ClusterCardSizes) {
        let index = self.jobs.len();
        // Most jobs have the tree of the job before: one set of pods.
        let before = self.jobs.last();
        let tree = match before.filter(|before| before.job.root == job.root) {
            Some(before) => Rc::clone(&before.tree),
            None => Rc::new(PodSetTree::of(job)),
        };
        let mut by_set = vec![Vec::new(); tree.sets.len()];
        for task in in_order(&job.tasks) {
            // A task of an unknown set can't be placed, as in KAI.
            let Some(set) = tree.set(&task.set) else {
                continue;
            };
            by_set[set].push(self.tasks.len());
            self.add_task(task, index, set, card_sizes);
        }
        let payer = queues.find(&job.queue);
        let view = tree.view(index, by_set);
        self.jobs.push(JobFacts {
            job,
            queue: payer.filter(|&queue| queues.children(queue).is_empty()),
            payer,
            tree,
            view,
        });
    }

    fn add_task(&mut self, task: &'a Task, job: usize, set: usize, card_sizes: &ClusterCardSizes) {
        let claims = task.claims.iter().map(|name| self.find_claim(name));
        let claims: Option<Vec<usize>> = claims.collect();
        let extended = task.extended.iter().map(|one| self.find_claim(&one.claim));
        let extended: Vec<Option<usize>> = extended.collect();
        let named = claims.iter().flatten();
        let named: f64 = named.map(|&claim| self.cards_of(claim)).sum();
        // It gets one of these at most. Which one depends on the node.
        let most = extended.iter().flatten();
        let most = most.fold(0.0, |most, &claim| self.cards_of(claim).max(most));
        let claimed_cards = named + most;
        let mut wants = task.amounts(card_sizes.smallest_for(task));
        wants[ResourceKind::Gpu] += claimed_cards;
        for &claim in claims.iter().flatten().chain(extended.iter().flatten()) {
            self.claims[claim].users.push(self.tasks.len());
        }
        self.tasks.push(TaskFacts {
            task,
            job,
            set,
            wants,
            claims,
            extended,
            claimed_cards,
        });
    }

    /// How many cards a claim is charged for.
    fn cards_of(&self, claim: usize) -> f64 {
        let claim = self.claims[claim].claim;
        match (claim.is_of_cards, self.allocates) {
            (false, _) => 0.0,
            (true, true) => claim.charge,
            (true, false) => claim.devices as f64,
        }
    }

    fn find_claim(&self, name: &str) -> Option<usize> {
        self.claims
            .binary_search_by(|facts| facts.claim.name.as_str().cmp(name))
            .ok()
    }
}

/// The tasks of a job in the order in which they are placed: leaders, then by their order, then by name.
fn in_order(tasks: &[Task]) -> Vec<&Task> {
    let mut tasks: Vec<&Task> = tasks.iter().collect();
    tasks.sort_by(|left, right| {
        let labelled = |task: &Task| {
            let order = task.order.map(std::cmp::Reverse);
            (!task.leads, order.is_none(), order)
        };
        labelled(left)
            .cmp(&labelled(right))
            .then_with(|| left.name.cmp(&right.name))
    });
    tasks
}

/// Whether anybody asks for bytes of a card.
fn asks_bytes(cluster: &Cluster) -> bool {
    let mut tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    tasks.any(|task| {
        let TaskGpuRequest::Shared { share, .. } = &task.cards else {
            return false;
        };
        matches!(share, Share::Memory(_))
    })
}

/// The profiles of the partitions that nodes have or tasks ask for.
fn profiles(cluster: &Cluster, nodes: &[&Node]) -> Vec<String> {
    let tasks = cluster.jobs.iter().flat_map(|job| &job.tasks);
    let asked = tasks.flat_map(|task| match &task.cards {
        TaskGpuRequest::Partitions(partitions) => partitions.keys().cloned().collect(),
        TaskGpuRequest::None | TaskGpuRequest::Whole(_) | TaskGpuRequest::Shared { .. } => {
            Vec::new()
        }
    });
    let given = nodes
        .iter()
        .flat_map(|node| node.partitions.keys().cloned());
    let profiles: BTreeSet<String> = given.chain(asked).collect();
    profiles.into_iter().collect()
}

/// What a node adds to the resources that queues divide.
fn capacity(node: &Node) -> ResourceAmounts {
    let partitions: f64 = node
        .partitions
        .iter()
        .map(|(profile, count)| parts_of(profile) * *count as f64)
        .sum();
    let cards = node.card_count().saturating_add(node.claimable_cards) as f64 + partitions;
    ResourceAmounts::new(node.cpu_millis as f64, node.memory as f64, cards)
}

/// The memory of all cards, each size once, the smallest first.
fn card_sizes(nodes: &[&Node]) -> Vec<Bytes> {
    let sizes = nodes.iter().flat_map(|node| node.card_sizes());
    let sizes: BTreeSet<Bytes> = sizes
        .filter(|size| *size > ClusterCardSizes::UNKNOWN)
        .collect();
    sizes.into_iter().collect()
}
