//! The single changes that would let a pod start, each tried with the policy itself.
//!
//! Nothing is guessed: a change is named only if the pod gets a place in the cluster with that change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apportion_policy::amounts::UNLIMITED;
use apportion_policy::cluster::{Cluster, Job, Node, Quota, Task, TaskGpuRequest, TaskStatus};

use super::decided_cluster::DecidedCluster;
use super::formatting;
use apportion_model::snapshot::ClusterSnapshot;

/// How many pods are tried as the one that has to end.
const TRIED: usize = 48;
/// More pods than this are a large cluster.
const LARGE: usize = 500;
/// How many of those that help are listed.
const NAMED: usize = 4;

/// The changes that help, the smallest first.
pub(crate) fn changes(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    job: &Job,
    task: &Task,
) -> Vec<String> {
    let now = snapshot.now;
    let tried = tried(decided, job);
    let helps = |change: &dyn Fn(&mut Cluster)| {
        let mut cluster = tried.clone();
        change(&mut cluster);
        starts(now, &cluster, &task.name)
    };
    let mut changes: Vec<String> = (victims(decided, task).into_iter())
        .filter(|victim| helps(&|cluster| end(cluster, victim)))
        .take(NAMED)
        .map(|victim| format!("{victim} ends"))
        .collect();
    // With unlimited quotas everybody's pods are victims, and thousands of them take minutes.
    let path = if is_large(decided) {
        Vec::new()
    } else {
        path(decided, &job.queue)
    };
    for queue in &path {
        if helps(&|cluster| each_quota(cluster, queue, |quota| quota.limit = UNLIMITED)) {
            changes.push(format!("the limit of queue {queue} is raised"));
        }
        if helps(&|cluster| each_quota(cluster, queue, |quota| quota.deserved = UNLIMITED)) {
            changes.push(format!("the quota of queue {queue} is raised"));
        }
        if has_burst_limit(&tried, queue) && helps(&|cluster| lift_burst_limit(cluster, queue)) {
            changes.push(format!("the burst limit of queue {queue} is raised"));
        }
    }
    if changes.is_empty()
        && !path.is_empty()
        && helps(&|cluster| {
            for queue in &path {
                each_quota(cluster, queue, |quota| {
                    quota.limit = UNLIMITED;
                    quota.deserved = UNLIMITED;
                });
                lift_burst_limit(cluster, queue);
            }
        })
    {
        changes.push(format!(
            "the limits and quotas of the queues {} are raised",
            path.join(", ")
        ));
    }
    if !job.is_preemptible && helps(&|cluster| set_preemptible(cluster, &job.name)) {
        changes.push(
            "it becomes preemptible (label kai.scheduler/preemptibility: preemptible)".to_owned(),
        );
    }
    changes.extend(shapes(decided).into_iter().filter_map(|node| {
        let name = node.name.clone();
        let spare = Node {
            name: format!("{name} again"),
            ..node.clone()
        };
        helps(&move |cluster: &mut Cluster| cluster.nodes.push(spare.clone()))
            .then(|| format!("there is another node like {name}"))
    }));
    changes
}

/// The cluster that changes are tried on. In a large one only this job waits: hundreds of trials with thousands of
/// waiting pods take minutes.
fn tried(decided: &DecidedCluster<'_>, job: &Job) -> Cluster {
    let mut cluster = decided.cluster.clone();
    if is_large(decided) {
        cluster.jobs.retain(|other| {
            let mut tasks = other.tasks.iter();
            other.name == job.name || tasks.any(|task| decided.status(task).is_active_allocated())
        });
    }
    cluster
}

/// Whether changes are tried as if only this job waited.
pub(crate) fn is_large(decided: &DecidedCluster<'_>) -> bool {
    decided.outcomes.len() > LARGE
}

fn starts(now: Duration, cluster: &Cluster, task: &str) -> bool {
    let decisions = apportion_policy::step(now, cluster);
    decisions.iter().any(|decision| match decision {
        apportion_policy::Decision::Bind { task: bound, .. }
        | apportion_policy::Decision::Reserve { task: bound, .. } => bound == task,
        apportion_policy::Decision::Evict { .. } => false,
    })
}

/// Running pods that hold what this one requests, the smallest first.
fn victims(decided: &DecidedCluster<'_>, task: &Task) -> Vec<String> {
    let jobs = decided.cluster.jobs.iter();
    let others = jobs.flat_map(|job| &job.tasks).filter(|other| {
        let holds = !task.wants_cards() || other.wants_cards();
        other.name != task.name && holds && decided.status(other).is_active_allocated()
    });
    let (_, largest) = decided.card_sizes();
    let mut others: Vec<(f64, &String)> = others
        .map(|other| (other.cards.count(largest), &other.name))
        .collect();
    others.sort_by(|left, right| left.0.total_cmp(&right.0).then_with(|| left.1.cmp(right.1)));
    others
        .into_iter()
        .take(TRIED)
        .map(|(_, name)| name.clone())
        .collect()
}

/// Ends a pod; its gang goes on without it.
fn end(cluster: &mut Cluster, victim: &str) {
    let is_victim = |task: &Task| task.name == victim;
    let jobs = cluster.jobs.iter_mut();
    for job in jobs.filter(|job| job.tasks.iter().any(is_victim)) {
        let tasks = Arc::make_mut(job).tasks.iter_mut();
        for task in tasks.filter(|task| is_victim(task)) {
            task.status = TaskStatus::Succeeded;
            task.node = None;
        }
    }
}

/// A queue and those above it.
fn path(decided: &DecidedCluster<'_>, queue: &str) -> Vec<String> {
    let found = decided.queues.find(queue).into_iter();
    let path = found.flat_map(|queue| decided.queues.upward(queue));
    path.map(|queue| decided.queues.get(queue).uid.clone())
        .collect()
}

fn each_quota(cluster: &mut Cluster, name: &str, change: impl Fn(&mut Quota)) {
    for queue in cluster.queues.iter_mut().filter(|queue| queue.name == name) {
        for quota in [&mut queue.cpu, &mut queue.memory, &mut queue.gpu] {
            change(quota);
        }
    }
}

fn has_burst_limit(cluster: &Cluster, name: &str) -> bool {
    let mut queues = cluster.queues.iter();
    queues.any(|queue| queue.name == name && queue.burst_limit.is_some())
}

fn lift_burst_limit(cluster: &mut Cluster, name: &str) {
    for queue in cluster.queues.iter_mut().filter(|queue| queue.name == name) {
        queue.burst_limit = None;
    }
}

fn set_preemptible(cluster: &mut Cluster, name: &str) {
    for job in cluster.jobs.iter_mut().filter(|job| job.name == name) {
        Arc::make_mut(job).is_preemptible = true;
    }
}

/// One node of each different shape.
fn shapes<'a>(decided: &DecidedCluster<'a>) -> Vec<&'a Node> {
    let mut known = BTreeSet::new();
    let mut nodes: Vec<&Node> = decided.cluster.nodes.iter().collect();
    nodes.sort_by(|left, right| left.name.cmp(&right.name));
    nodes.retain(|node| {
        let cards = TaskGpuRequest::Partitions(node.partitions.clone());
        known.insert((
            node.card_count(),
            node.card_sizes(),
            node.cpu_millis,
            node.memory,
            format!("{cards:?}"),
        ))
    });
    nodes
}

/// What a pod requests, in one line.
pub(crate) fn ask(task: &Task) -> String {
    use apportion_policy::amounts::ResourceKind;
    format!(
        "{}, {}, {} of memory",
        formatting::cards(task),
        formatting::amount(ResourceKind::Cpu, task.cpu_millis as f64),
        formatting::amount(ResourceKind::Memory, task.memory as f64)
    )
}
