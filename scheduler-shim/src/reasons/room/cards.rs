//! What a node lacks of cards for a pod.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use apportion_abi::{Ask, Bytes, Capacity, CardUuid, fits};
use apportion_policy::cluster::{Cards, Node, Task};

use super::Lack;
use crate::reasons::books::{Books, share_of};
use crate::reasons::words;

/// What the node lacks of cards, in words.
pub(crate) fn lack(
    books: &Books<'_>,
    task: &Task,
    node: &Node,
    idle: i64,
) -> Option<(Lack, String)> {
    match &task.cards {
        Cards::None => None,
        Cards::Whole(count) if *count <= idle => None,
        Cards::Whole(_) => {
            let message = format!(
                "asked {}; {} idle of {}",
                words::cards(task),
                idle.max(0),
                node.cards
            );
            Some((Lack::Gpus, message))
        }
        Cards::Partitions(_) => {
            let offered: Vec<String> = (node.partitions.iter())
                .map(|(name, count)| format!("{count} x {name}"))
                .collect();
            let message = format!(
                "asked {}; it has {}",
                words::cards(task),
                offered.join(", ")
            );
            Some((Lack::Gpus, message)).filter(|_| !has_partitions(books, task, node))
        }
        Cards::Shared { devices, .. } => {
            lack_of_memory(books, task, node, idle, i64::from(*devices))
        }
    }
}

/// Whether partitions that are left suffice, by what the pods of the node hold.
fn has_partitions(books: &Books<'_>, task: &Task, node: &Node) -> bool {
    let Cards::Partitions(asked) = &task.cards else {
        return true;
    };
    let mut left: BTreeMap<&String, i64> = node
        .partitions
        .iter()
        .map(|(name, count)| (name, *count))
        .collect();
    for other in books.cluster.jobs.iter().flat_map(|job| &job.tasks) {
        let outcome = books.outcomes.get(other.name.as_str());
        let place = outcome
            .filter(|one| one.status.is_active())
            .and_then(|one| one.place.as_ref());
        if let (Cards::Partitions(held), true) = (
            &other.cards,
            place.is_some_and(|place| place.node == node.name),
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

fn lack_of_memory(
    books: &Books<'_>,
    task: &Task,
    node: &Node,
    idle: i64,
    devices: i64,
) -> Option<(Lack, String)> {
    if node.cards == 0 {
        return Some((Lack::Gpus, "has no GPU".to_owned()));
    }
    let capacity = Capacity {
        total: node.card_memory,
        reserved: Bytes::ZERO,
    };
    // The cards have names and no identities here; a shortfall is told with the name.
    let ask = Ask {
        card: CardUuid([0; 16]),
        bytes: share_of(task, node),
    };
    if ask.bytes > capacity.allocatable() {
        let message = format!("asked {}; its cards have {}", ask.bytes, node.card_memory);
        return Some((Lack::Kind, message));
    }
    let mut roomy = idle.max(0);
    let mut shortfalls = Vec::new();
    for (card, holders) in books.shared(&node.name) {
        match fits(capacity, holders, Bytes::ZERO, ask) {
            Ok(()) => roomy += 1,
            Err(shortfall) => shortfalls.push((card, shortfall)),
        }
    }
    if roomy >= devices {
        return None;
    }
    let closest = shortfalls
        .into_iter()
        .max_by_key(|(card, shortfall)| (shortfall.free, Reverse(card.clone())));
    let Some((card, shortfall)) = closest else {
        let message = format!(
            "asked {}; {idle} idle of {}",
            words::cards(task),
            node.cards
        );
        return Some((Lack::Gpus, message));
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
        devices => format!(" on each of {devices} cards ({roomy} have room)"),
    };
    let message = format!(
        "asked {}{on}; {card} has {} free of {}, held by {}{more}",
        ask.bytes,
        shortfall.free,
        shortfall.allocatable,
        holders.join(", ")
    );
    Some((Lack::GpuMemory, message))
}
