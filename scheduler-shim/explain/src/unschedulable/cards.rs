//! What a node lacks of cards for a pod.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use apportion_abi::{Bytes, CardCapacity, CardRequest, CardUuid, Holder, fits};
use apportion_policy::cluster::{Node, Task, TaskGpuRequest};

use crate::decided_cluster::{DecidedCluster, share_of};
use crate::formatting;
use crate::unmet_requirement::UnmetRequirement;

/// What the node lacks of cards, in words.
pub(crate) fn unmet(
    decided: &DecidedCluster<'_>,
    task: &Task,
    node: &Node,
    idle: i64,
) -> Option<(UnmetRequirement, String)> {
    match task.cards_on(&node.name) {
        TaskGpuRequest::None => None,
        TaskGpuRequest::Whole(count) if *count <= idle => None,
        TaskGpuRequest::Whole(_) => Some((UnmetRequirement::Gpus, too_few(task, node, idle))),
        TaskGpuRequest::Partitions(_) => {
            let offered: Vec<String> = (node.partitions.iter())
                .map(|(name, count)| format!("{count} x {name}"))
                .collect();
            let message = format!(
                "asked for {}; it has {}",
                formatting::cards(task),
                offered.join(", ")
            );
            Some((UnmetRequirement::Gpus, message)).filter(|_| !has_partitions(decided, task, node))
        }
        TaskGpuRequest::Shared { devices, .. } => {
            unmet_memory(decided, task, node, idle, i64::from(*devices))
        }
    }
}

/// Whether the remaining partitions suffice, given what the pods of the node hold.
fn has_partitions(decided: &DecidedCluster<'_>, task: &Task, node: &Node) -> bool {
    let TaskGpuRequest::Partitions(asked) = task.cards_on(&node.name) else {
        return true;
    };
    let mut left: BTreeMap<&String, i64> = node
        .partitions
        .iter()
        .map(|(name, count)| (name, *count))
        .collect();
    for other in decided.cluster.jobs.iter().flat_map(|job| &job.tasks) {
        let outcome = decided.outcomes.get(other.name.as_str());
        let placement = outcome
            .filter(|one| one.status.is_active())
            .and_then(|one| one.placement.as_ref());
        if let (TaskGpuRequest::Partitions(held), true) = (
            other.cards_on(&node.name),
            placement.is_some_and(|placement| placement.node == node.name),
        ) {
            for (name, count) in held {
                *left.entry(name).or_default() -= count;
            }
        }
    }
    asked
        .iter()
        .all(|(name, count)| left.get(name).is_some_and(|left| left >= count))
}

fn unmet_memory(
    decided: &DecidedCluster<'_>,
    task: &Task,
    node: &Node,
    idle: i64,
    devices: i64,
) -> Option<(UnmetRequirement, String)> {
    let sizes = node.card_sizes();
    let Some(largest) = sizes.last() else {
        let message = match node.listed.len() {
            0 => "has no GPU".to_owned(),
            _ => too_few(task, node, 0),
        };
        return Some((UnmetRequirement::Gpus, message));
    };
    if share_of(task, *largest) > *largest {
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        let asked = share_of(task, *largest);
        let message = format!("asked for {asked}; its GPUs have {}", sizes.join(" or "));
        return Some((UnmetRequirement::Kind, message));
    }
    if share_of(task, *largest) == Bytes::ZERO {
        let message = "asked for less than 2 MiB of a GPU, the smallest share".to_owned();
        return Some((UnmetRequirement::Kind, message));
    }
    // Counted cards have room if they are idle. Listed ones are checked one by one.
    let mut roomy = if node.listed.is_empty() {
        idle.max(0)
    } else {
        0
    };
    let (mut shortfalls, mut over) = (Vec::new(), Vec::new());
    let is_possible = |card: &str| {
        let mut pinned = task.pinned.iter();
        pinned.all(|pinned| pinned.card == card)
    };
    let possible = cards(decided, node).into_iter();
    for (card, size, holders) in possible.filter(|(card, ..)| is_possible(card)) {
        let capacity = CardCapacity {
            total: size,
            reserved: Bytes::ZERO,
        };
        // Cards have names and no UUIDs here. The message uses the name.
        let ask = CardRequest {
            card: CardUuid([0; 16]),
            bytes: share_of(task, size),
        };
        match fits(capacity, &holders, Bytes::ZERO, ask) {
            Ok(()) => match over_limits(decided, task, node, (&card, size)) {
                None => roomy += 1,
                Some(message) => over.push(message),
            },
            Err(shortfall) => shortfalls.push((card, shortfall)),
        }
    }
    if roomy >= devices {
        return None;
    }
    // A card with room is closer than one without.
    if let Some(message) = over.into_iter().next() {
        return Some((UnmetRequirement::GpuLimits, message));
    }
    // One that others will release is closer than one that is too small.
    let closest = shortfalls.into_iter().max_by_key(|(card, shortfall)| {
        let helps = shortfall.waiting_helps();
        (helps, shortfall.free, Reverse(card.clone()))
    });
    let Some((card, shortfall)) = closest else {
        return Some((UnmetRequirement::Gpus, too_few(task, node, idle)));
    };
    let holders: Vec<String> = (shortfall.holders.iter().take(4))
        .map(|holder| format!("{} with {}", holder.name, holder.bytes))
        .collect();
    let more = match shortfall.holders.len().saturating_sub(4) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let on = match devices {
        1 => String::new(),
        devices => format!(" on each of {devices} GPUs ({roomy} have room)"),
    };
    let message = format!(
        "asked for {}{on}; {card} has {} free of {}, held by {}{more}",
        shortfall.ask.bytes,
        shortfall.free,
        shortfall.allocatable,
        holders.join(", ")
    );
    Some((UnmetRequirement::GpuMemory, message))
}

/// Why the limits on a card leave no room for that of the pod, if the agent bounds it.
fn over_limits(
    decided: &DecidedCluster<'_>,
    task: &Task,
    node: &Node,
    (card, size): (&str, Bytes),
) -> Option<String> {
    let factor = node.overcommit?;
    let limit = task.limit_above(size, share_of(task, size))?;
    let (sum, bound) = (
        decided.limits_on(&node.name, card).plus(limit),
        factor.of(size),
    );
    (sum > bound).then(|| {
        format!(
            "asked for a limit of {limit}; with it the limits on {card} would add up to {sum}, and its agent allows \
             {bound}, {factor} times its {size} (--gpu-memory-overcommit)"
        )
    })
}

/// The shared cards of a node, and all healthy ones that are listed, with memory and holders.
fn cards(decided: &DecidedCluster<'_>, node: &Node) -> Vec<(String, Bytes, Vec<Holder>)> {
    let shared = decided.shared(&node.name).into_iter();
    let alive = shared.filter(|(name, _)| {
        let mut listed = node.listed.iter();
        !listed.any(|card| card.name == *name && !card.is_healthy)
    });
    let mut cards: BTreeMap<String, (Bytes, Vec<Holder>)> = (node.listed.iter())
        .filter(|card| card.is_healthy)
        .map(|card| (card.name.clone(), (card.memory, Vec::new())))
        .collect();
    for (name, holders) in alive {
        let size = node.size_of(&name);
        cards.insert(name, (size, holders.to_vec()));
    }
    let cards = cards.into_iter();
    cards
        .map(|(name, (size, holders))| (name, size, holders))
        .collect()
}

/// The message that a node has too few idle cards.
fn too_few(task: &Task, node: &Node, idle: i64) -> String {
    let asked = formatting::cards(task);
    let dead = node.listed.iter().filter(|card| !card.is_healthy).count();
    let dead = match dead {
        0 => String::new(),
        dead => format!(", {dead} unhealthy"),
    };
    format!(
        "asked for {asked}; {} idle of {}{dead}",
        idle.max(0),
        node.card_count()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use apportion_abi::Share;
    use apportion_policy::cluster::{Cluster, Job, ListedCard, PodSet, SubGroupSet, TaskStatus};

    use super::*;
    use crate::decided_cluster::decide;

    fn task(name: &str, mib: u64, limit: u64) -> Task {
        Task {
            name: format!("team/{name}"),
            set: "default".to_owned(),
            cards: TaskGpuRequest::Shared {
                share: Share::Memory(Bytes::from_mib(mib)),
                devices: 1,
            },
            limit: Some(Share::Memory(Bytes::from_mib(limit))),
            ..Task::default()
        }
    }

    fn cluster(factor: &str, tasks: Vec<Task>) -> Cluster {
        let node = Node {
            name: "n".to_owned(),
            cpu_millis: 1000,
            memory: 1 << 40,
            pods: 100,
            listed: vec![ListedCard {
                name: "GPU-1".to_owned(),
                memory: Bytes::from_mib(16_384),
                is_healthy: true,
            }],
            overcommit: factor.parse().ok(),
            ..Node::default()
        };
        let job = Job {
            name: "team/all".to_owned(),
            root: SubGroupSet {
                sets: vec![PodSet {
                    name: "default".to_owned(),
                    ..PodSet::default()
                }],
                ..SubGroupSet::default()
            },
            tasks,
            ..Job::default()
        };
        Cluster {
            nodes: vec![node],
            jobs: vec![Arc::new(job)],
            ..Cluster::default()
        }
    }

    fn why(factor: &str, limit: u64) -> Option<(UnmetRequirement, String)> {
        let running = Task {
            status: TaskStatus::Running,
            node: Some("n".to_owned()),
            on: vec!["GPU-1".to_owned()],
            ..task("runs", 4096, 16_384)
        };
        let cluster = cluster(factor, vec![running, task("waits", 4096, limit)]);
        let decided = decide(Duration::ZERO, &cluster);
        let (_, waiting) = decided.task("team/waits").expect("it is there");
        unmet(&decided, waiting, &cluster.nodes[0], 0)
    }

    #[test]
    fn limits_that_would_add_up_to_too_much_are_said_with_their_numbers() {
        let (requirement, message) = why("1.5", 12_288).expect("8 GiB are left for limits");
        assert_eq!(requirement, UnmetRequirement::GpuLimits);
        assert_eq!(
            message,
            "asked for a limit of 12.0 GiB; with it the limits on GPU-1 would add up to 28.0 GiB, and its agent \
             allows 24.0 GiB, 1.5 times its 16.0 GiB (--gpu-memory-overcommit)"
        );
        assert_eq!(why("1.5", 8192), None);
        assert_eq!(
            why("no factor", 16_384),
            None,
            "an older agent says nothing"
        );
    }
}
