//! A job with a claim is served in the end, or the plan names what holds it back. No pod is evicted in vain.
//!
//! Half of the jobs settle first. Then the others arrive and claim what is taken.

use std::collections::BTreeSet;
use std::sync::Arc;

use apportion_policy::cluster::{Job, Task, TaskGpuRequest, TaskStatus};
use apportion_policy::{Action, Cluster, Decision, Session, plan};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::clusters::{NOW, cluster};
use super::rounds::{are_only_reservations, carry_on};

const ROUNDS: usize = 20;

/// Carries on until nothing starts or ends.
fn settle(cluster: &mut Cluster) -> Result<(), TestCaseError> {
    for _ in 0..ROUNDS {
        let decisions = plan(NOW, cluster).decisions();
        if are_only_reservations(&decisions) {
            return Ok(());
        }
        carry_on(cluster, &decisions);
    }
    Err(TestCaseError::fail("it has not settled"))
}

/// The cluster at rest after the second half of its jobs arrived, and the pods that ran before that.
fn after_arrivals(mut cluster: Cluster) -> Result<(Cluster, BTreeSet<String>), TestCaseError> {
    let late = cluster.jobs.split_off(cluster.jobs.len() / 2);
    settle(&mut cluster)?;
    let before = running(&cluster);
    cluster.jobs.extend(late);
    settle(&mut cluster)?;
    Ok((cluster, before))
}

fn tasks(cluster: &Cluster) -> impl Iterator<Item = &Task> {
    cluster.jobs.iter().flat_map(|job| &job.tasks)
}

fn running(cluster: &Cluster) -> BTreeSet<String> {
    let running = tasks(cluster).filter(|task| task.status == TaskStatus::Running);
    running.map(|task| task.name.clone()).collect()
}

/// What KAI's actions decide without lookahead. Consolidation is left out: it gives no claim to a place.
fn decided_at_once(cluster: &Cluster) -> Vec<Decision> {
    let mut session = Session::open(NOW, cluster);
    for action in Action::ALL
        .into_iter()
        .filter(|action| *action != Action::Consolidate)
    {
        session.run(action);
    }
    session.decisions()
}

/// The jobs that KAI's actions would evict others for.
fn claimants(cluster: &Cluster) -> BTreeSet<String> {
    let decisions = decided_at_once(cluster);
    let evicted: BTreeSet<&String> = (decisions.iter())
        .filter_map(|one| match one {
            Decision::Evict { job, .. } => Some(job),
            _ => None,
        })
        .collect();
    if evicted.is_empty() {
        return BTreeSet::new();
    }
    let reserved = decisions.iter().filter_map(|one| match one {
        Decision::Reserve { job, .. } => Some(job),
        _ => None,
    });
    // Victims that are only moved have a reserved place, too.
    let claimants = reserved.filter(|job| !evicted.contains(job));
    claimants.cloned().collect()
}

/// The same cluster, but these jobs may not evict.
fn kept_from_evicting(cluster: &Cluster, jobs: &BTreeSet<&str>) -> Cluster {
    let mut kept = cluster.clone();
    for job in &mut kept.jobs {
        if jobs.contains(job.name.as_str()) {
            Arc::make_mut(job).preemption_delay = 2 * NOW;
        }
    }
    kept
}

/// Where KAI's actions come to rest; `None` if they evict and start the same pods forever.
fn rest_without_looking_ahead(mut cluster: Cluster) -> Option<Cluster> {
    for _ in 0..ROUNDS {
        let decisions = decided_at_once(&cluster);
        if are_only_reservations(&decisions) {
            return Some(cluster);
        }
        carry_on(&mut cluster, &decisions);
    }
    None
}

/// Only whole cards and jobs of one pod, so that all ways to make room can be enumerated.
fn plain(mut cluster: Cluster) -> Cluster {
    for job in cluster.jobs.iter_mut().map(Arc::make_mut) {
        job.tasks.truncate(1);
        job.root.sets[0].min_available = 1;
        for task in &mut job.tasks {
            task.cards = TaskGpuRequest::Whole(1 + i64::from(job.priority / 25 % 3));
        }
    }
    for node in &mut cluster.nodes {
        let listed = std::mem::take(&mut node.listed).len();
        node.cards = node.cards.max(i64::try_from(listed).unwrap());
    }
    cluster
}

fn wants(job: &Job) -> i64 {
    match job.tasks[0].cards {
        TaskGpuRequest::Whole(count) => count,
        _ => 0,
    }
}

proptest! {
    #[test]
    fn a_claim_is_served_or_said_to_be_held_back(cluster in cluster()) {
        let (cluster, _) = after_arrivals(cluster)?;
        let held_back = plan(NOW, &cluster).held_back();
        let held_back: BTreeSet<&str> = held_back.iter().map(|one| one.job.as_str()).collect();
        // Others may find room only because the held-back jobs evict.
        for job in claimants(&kept_from_evicting(&cluster, &held_back)) {
            prop_assert!(held_back.contains(job.as_str()), "{} waits, unsaid: {:?}", job, held_back);
        }
    }

    #[test]
    fn nobody_leaves_for_nobody(cluster in cluster()) {
        let (cluster, before) = after_arrivals(cluster)?;
        let after = running(&cluster);
        let left: Vec<&String> = before.difference(&after).collect();
        let mut came = after.difference(&before);
        prop_assert!(left.is_empty() || came.next().is_some(), "left in vain: {:?}", left);
    }

    #[test]
    fn a_priority_in_its_queue_is_served_where_there_is_any_way(cluster in cluster()) {
        let (cluster, _) = after_arrivals(plain(cluster))?;
        let held_back = plan(NOW, &cluster).held_back();
        for job in cluster.jobs.iter().filter(|job| job.tasks[0].status == TaskStatus::Pending) {
            // Its queue holds no more with it than with the other job, so no queue rule forbids it.
            let victims = cluster.jobs.iter().filter(|other| {
                job.is_preemptible
                    && other.queue == job.queue
                    && other.tasks[0].status == TaskStatus::Running
                    && other.is_preemptible
                    && other.priority < job.priority
                    && wants(other) >= wants(job)
            });
            for victim in victims {
                prop_assert!(
                    held_back.iter().any(|one| one.job == job.name),
                    "{} waits, unsaid: {:?}", job.name, held_back
                );
                // The claim is true: whichever victim leaves, this job would not get the place.
                let mut tried = cluster.clone();
                let evict = Decision::Evict {
                    job: victim.name.clone(),
                    task: victim.tasks[0].name.clone(),
                };
                carry_on(&mut tried, &[evict]);
                settle(&mut tried)?;
                prop_assert!(!running(&tried).contains(&job.tasks[0].name), "{} was held back", job.name);
            }
        }
    }
}

/// The jobs that wait at rest although KAI's actions, without lookahead, serve them in the end.
fn passed_over(cluster: Cluster) -> Result<Vec<String>, TestCaseError> {
    let (cluster, _) = after_arrivals(cluster)?;
    let Some(end) = rest_without_looking_ahead(cluster.clone()) else {
        return Ok(Vec::new());
    };
    let (runs, claimants) = (running(&end), claimants(&cluster));
    let jobs = cluster
        .jobs
        .iter()
        .filter(|job| claimants.contains(&job.name))
        .filter(|job| {
            let mut tasks = job.tasks.iter();
            tasks.any(|task| task.status == TaskStatus::Pending && runs.contains(&task.name))
        });
    Ok(jobs.map(|job| job.name.clone()).collect())
}

/// The same clusters each time. Of twenty thousand others, one had such a job, because nothing else came to rest.
#[test]
fn who_would_be_served_without_looking_ahead_is_served() {
    let mut runner = TestRunner::deterministic();
    for number in 0..1000 {
        let cluster = cluster().new_tree(&mut runner).unwrap().current();
        let passed_over = passed_over(cluster).unwrap();
        assert_eq!(passed_over, [""; 0], "in cluster {number}");
    }
}
