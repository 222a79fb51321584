//! `queues`: what each queue may have, what its pods have and request, and whether its groups wait.
//!
//! Amounts are GPUs, as KAI counts them: two halves are 1. A queue's amount includes the queues below it.

use std::collections::{BTreeMap, BTreeSet};

use apportion::output;
use apportion::table::{CellAlignment, TableColumn, lay_out};
use apportion_abi::names::{ANNOTATION_QUEUE_BURST_LIMIT, RESOURCE_QUEUE_LIMITS, RESOURCE_WHOLE};
use apportion_admission::queue::burst_limit;
use apportion_crds::{Amounts, PodGroup, Queue};
use apportion_exit::CommandFailure;
use apportion_kubernetes::Quantity;
use kube::ResourceExt;
use serde::Serialize;

use crate::api::ClusterConnection;

/// A queue and its place in the tree.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueListEntry {
    pub(crate) queue: String,
    parent: Option<String>,
    #[serde(skip)]
    depth: usize,
    /// -1 is unlimited.
    pub(crate) quota: f64,
    /// -1 is unlimited.
    pub(crate) limit: f64,
    pub(crate) allocated: f64,
    pub(crate) requested: f64,
    /// What the limits of its pods may add up to, if that is bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) burst_limit: Option<f64>,
    /// What they add up to, if that is bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocated_limits: Option<f64>,
    /// Pod groups that cannot be scheduled now.
    waiting: usize,
    /// Why none of its pods can run, whatever they request.
    pub(crate) trouble: Option<String>,
}

const OF_AMOUNTS: [TableColumn<QueueListEntry>; 5] = [
    TableColumn {
        title: "QUEUE",
        cell: |view| format!("{}{}", "  ".repeat(view.depth), view.queue),
        side: CellAlignment::Left,
    },
    TableColumn {
        title: "GPU QUOTA",
        cell: |view| amount(view.quota),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "LIMIT",
        cell: |view| amount(view.limit),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "ALLOCATED",
        cell: |view| amount(view.allocated),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "REQUESTED",
        cell: |view| amount(view.requested),
        side: CellAlignment::Right,
    },
];

/// Shown if any queue bounds the limits of its pods.
const OF_LIMITS: [TableColumn<QueueListEntry>; 2] = [
    TableColumn {
        title: "LIMITS OF PODS",
        cell: |view| amount_or_dash(view.allocated_limits),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "BURST LIMIT",
        cell: |view| amount_or_dash(view.burst_limit),
        side: CellAlignment::Right,
    },
];

const OF_STATE: [TableColumn<QueueListEntry>; 2] = [
    TableColumn {
        title: "WAITING GROUPS",
        cell: |view| view.waiting.to_string(),
        side: CellAlignment::Right,
    },
    TableColumn {
        title: "USABLE",
        cell: |view| match view.trouble {
            Some(_) => "no".to_owned(),
            None => "yes".to_owned(),
        },
        side: CellAlignment::Left,
    },
];

/// The columns of a table of queues.
fn columns(views: &[QueueListEntry]) -> Vec<TableColumn<QueueListEntry>> {
    let mut columns = Vec::from(OF_AMOUNTS);
    if views.iter().any(|view| view.burst_limit.is_some()) {
        columns.extend(OF_LIMITS);
    }
    columns.extend(OF_STATE);
    columns
}

pub(crate) async fn show(cluster: &ClusterConnection, as_json: bool) -> Result<(), CommandFailure> {
    let queues: Vec<Queue> = cluster.all("queues").await?;
    let groups: Vec<PodGroup> = cluster.all("podgroups").await?;
    let views = views(&queues, &groups);
    if as_json {
        return output::json(&views);
    }
    if views.is_empty() {
        return output::line("no queues: pods wait until there is one");
    }
    let rows = views.iter().filter_map(|view| {
        let trouble = view.trouble.as_ref()?;
        Some(format!("queue {} cannot be used: {trouble}\n", view.queue))
    });
    let table = lay_out(&columns(&views), &views);
    output::all(&rows.fold(table, |text, line| text + &line))
}

/// The queues as a tree, sorted by name. A queue whose parent is not in the cluster is a root.
fn views(queues: &[Queue], groups: &[PodGroup]) -> Vec<QueueListEntry> {
    let by_name: BTreeMap<String, &Queue> = queues
        .iter()
        .map(|queue| (queue.name_any(), queue))
        .collect();
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    for group in groups.iter().filter(|group| waits(group)) {
        *waiting.entry(&group.spec.queue).or_default() += 1;
    }
    let mut below: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut tops = Vec::new();
    for (name, queue) in &by_name {
        let parent = queue.spec.parent_queue.as_str();
        if by_name.contains_key(parent) && parent != name {
            below.entry(parent).or_default().push(name)
        } else {
            tops.push(name.as_str())
        }
    }
    let mut entries = Vec::new();
    let mut visited = BTreeSet::new();
    let mut enter = |top: &str, entries: &mut Vec<QueueListEntry>| {
        let mut open = vec![(top.to_owned(), 0)];
        while let Some((name, depth)) = open.pop() {
            if !visited.insert(name.clone()) {
                continue;
            }
            let count = waiting.get(name.as_str()).copied().unwrap_or_default();
            entries.push(view(by_name[&name], depth, count));
            let children = below.get(name.as_str()).into_iter().flatten().rev();
            open.extend(children.map(|child| ((*child).to_owned(), depth + 1)));
        }
    };
    for top in tops {
        enter(top, &mut entries);
    }
    // Queues in a parent cycle have no root.
    for name in by_name.keys() {
        enter(name, &mut entries);
    }
    entries
}

/// One queue in numbers.
pub(crate) fn view(queue: &Queue, depth: usize, waiting: usize) -> QueueListEntry {
    let status = queue.status.clone().unwrap_or_default();
    let gpu = queue.spec.resources.clone().unwrap_or_default().gpu;
    let parent = queue.spec.parent_queue.clone();
    let annotations = queue.annotations();
    let burst_limit = annotations
        .get(ANNOTATION_QUEUE_BURST_LIMIT)
        .and_then(|text| burst_limit(text)?);
    QueueListEntry {
        queue: queue.name_any(),
        parent: Some(parent).filter(|parent| !parent.is_empty()),
        depth,
        quota: gpu.quota,
        limit: gpu.limit,
        allocated: gpus(&status.allocated),
        requested: gpus(&status.requested),
        burst_limit,
        allocated_limits: burst_limit.map(|_| gpus_of(&status.allocated, RESOURCE_QUEUE_LIMITS)),
        waiting,
        trouble: trouble(queue),
    }
}

/// Why a queue cannot be used, in the scheduler's words.
fn trouble(queue: &Queue) -> Option<String> {
    let status = queue.status.as_ref()?;
    let mut conditions = status.conditions.iter();
    let usable = conditions.find(|condition| condition.kind == "Usable")?;
    let is_usable = usable.status == apportion_crds::ConditionStatus::True;
    (!is_usable).then(|| usable.message.clone())
}

/// Whether a group is marked as unschedulable.
fn waits(group: &PodGroup) -> bool {
    let status = group.status.as_ref();
    status.is_some_and(|status| !status.scheduling_conditions.is_empty())
}

/// The GPUs among these amounts: `1500m` is 1.5.
fn gpus(amounts: &Amounts) -> f64 {
    gpus_of(amounts, RESOURCE_WHOLE)
}

fn gpus_of(amounts: &Amounts, resource: &str) -> f64 {
    let amount = amounts.get(resource).and_then(|text| text.0.parse().ok());
    amount.map_or(0.0, |amount: Quantity| amount.millis() as f64 / 1000.0)
}

/// An amount of GPUs, with three decimals.
pub(crate) fn amount(gpus: f64) -> String {
    if gpus < 0.0 {
        "unlimited".to_owned()
    } else {
        format!("{}", (gpus * 1000.0).round() / 1000.0)
    }
}

fn amount_or_dash(gpus: Option<f64>) -> String {
    gpus.map_or_else(|| "-".to_owned(), amount)
}

#[cfg(test)]
mod tests {
    use apportion_crds::QueueSpec;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    fn queue(name: &str, parent: &str) -> Queue {
        let spec = QueueSpec {
            parent_queue: parent.to_owned(),
            ..QueueSpec::default()
        };
        Queue::new(name, spec)
    }

    fn entries(queues: &[Queue]) -> Vec<(String, usize)> {
        let views = views(queues, &[]);
        views
            .into_iter()
            .map(|view| (view.queue, view.depth))
            .collect()
    }

    #[test]
    fn queues_stand_below_their_parents() {
        let queues = [
            ("b", "top"),
            ("top", ""),
            ("a", "top"),
            ("c", "b"),
            ("lost", "gone"),
        ];
        let found = entries(&queues.map(|(name, parent)| queue(name, parent)));
        let expected = [("lost", 0), ("top", 0), ("a", 1), ("b", 1), ("c", 2)];
        assert_eq!(
            found,
            expected.map(|(name, depth)| (name.to_owned(), depth))
        );
    }

    #[test]
    fn queues_that_are_each_others_parents_are_shown_all_the_same() {
        let mut found = entries(&[queue("a", "b"), queue("b", "a"), queue("own", "own")]);
        found.sort();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "own"]);
    }

    #[test]
    fn burst_limits_are_shown_where_a_queue_has_one() {
        let mut bounded = queue("bounded", "");
        let none = columns(&views(&[bounded.clone()], &[]));
        bounded
            .annotations_mut()
            .insert(ANNOTATION_QUEUE_BURST_LIMIT.to_owned(), "2.5".to_owned());
        let mut allocated = BTreeMap::new();
        allocated.insert(
            RESOURCE_QUEUE_LIMITS.to_owned(),
            Quantity("1750m".to_owned()),
        );
        bounded.status = Some(apportion_crds::QueueStatus {
            allocated,
            ..apportion_crds::QueueStatus::default()
        });
        let mut unreadable = queue("unreadable", "");
        unreadable
            .annotations_mut()
            .insert(ANNOTATION_QUEUE_BURST_LIMIT.to_owned(), "many".to_owned());
        let views = views(&[bounded, unreadable], &[]);
        let all = columns(&views);
        assert_eq!(all.len(), none.len() + 2);
        let table = lay_out(&all, &views);
        let mut lines = table.lines().map(|line| line.split_whitespace());
        let title = lines.next().expect("a title").collect::<Vec<_>>().join(" ");
        assert!(
            title.contains("REQUESTED LIMITS OF PODS BURST LIMIT WAITING"),
            "{title}"
        );
        let cells: Vec<Vec<&str>> = lines.map(Iterator::collect).collect();
        assert_eq!(cells[0][5..7], ["1.75", "2.5"]);
        assert_eq!(cells[1][5..7], ["-", "-"]);
    }

    #[test]
    fn amounts_are_gpus() {
        assert_eq!(
            ["1500m", "2", "0", "what"].map(|text| {
                gpus(&BTreeMap::from([(
                    RESOURCE_WHOLE.to_owned(),
                    Quantity(text.to_owned()),
                )]))
            }),
            [1.5, 2.0, 0.0, 0.0]
        );
        assert_eq!(
            [-1.0, 0.3, 2.0 / 3.0, 4.0].map(amount),
            ["unlimited", "0.3", "0.667", "4"]
        );
    }
}
