//! Compares the result of a scenario with the expected one.
//!
//! The node of a pod that neither has nor waits for a place means nothing and is not compared. Neither are the labels
//! of shared cards, which are arbitrary.

use apportion_policy::cluster::{TaskStatus, ZoneAmounts};
use apportion_policy::{Decision, Session};

use super::build::{NOW, status, zone_amounts};
use super::format::{
    ExpectedNode, ExpectedPods, Scenario, ScenarioExpectation, ScenarioJob, ScenarioTask,
};

/// What is wrong, in words; empty if all is right.
pub(crate) fn differences(
    scenario: &Scenario,
    session: &Session<'_>,
    decisions: &[Decision],
) -> Vec<String> {
    let mut wrong = limits(&scenario.expected, decisions);
    for (name, expected) in &scenario.expected.jobs {
        let Some(job) = scenario.jobs.iter().find(|job| job.name == *name) else {
            continue;
        };
        let tasks: Vec<&ScenarioTask> = job.tasks.iter().collect();
        wrong.extend(pods(session, job, &tasks, expected));
    }
    for (name, expected) in &scenario.expected.tasks {
        let jobs = scenario.jobs.iter();
        let found = jobs
            .filter_map(|job| Some((job, job.tasks.iter().find(|task| task.id == *name)?)))
            .next();
        if let Some((job, task)) = found {
            wrong.extend(pods(session, job, &[task], expected));
        }
    }
    for (name, expected) in &scenario.expected.nodes {
        let Some((idle, releasing)) = session.node_state(name) else {
            wrong.push(format!("there is no node {name}"));
            continue;
        };
        let (has_idle, has_releasing) = (idle.cards as f64, releasing.cards as f64);
        if has_idle != expected.idle_gpus || has_releasing != expected.releasing_gpus {
            wrong.push(format!(
                "{name} has {has_idle} idle and {has_releasing} releasing GPUs, not {} and {}",
                expected.idle_gpus, expected.releasing_gpus
            ));
        }
        wrong.extend(zones(session, name, expected));
    }
    wrong
}

/// The first wrong amount of the named resources in NUMA zones.
fn zones(session: &Session<'_>, node: &str, expected: &ExpectedNode) -> Option<String> {
    let has = session.available_in_zones(node);
    let wanted = expected.numa_zones_available.iter().flatten();
    let mut wrong = wanted.filter_map(|(placement, amounts)| {
        let available = has.get(placement.parse::<usize>().ok()?)?;
        let wanted = zone_amounts(*amounts);
        let named = |all: ZoneAmounts| all.only(true, wanted.memory > 0, wanted.cards > 0);
        let is_right = named(wanted) == named(*available);
        (!is_right).then(|| format!("zone {placement} of {node} has {available:?}, not {wanted:?}"))
    });
    wrong.next()
}

fn limits(expected: &ScenarioExpectation, decisions: &[Decision]) -> Vec<String> {
    let count = |is: fn(&Decision) -> bool| decisions.iter().filter(|one| is(one)).count();
    let counts = [
        (
            "binds",
            count(|one| matches!(one, Decision::Bind { .. })),
            expected.max_cache_binds,
        ),
        (
            "evictions",
            count(|one| matches!(one, Decision::Evict { .. })),
            expected.max_cache_evictions,
        ),
        (
            "reservations",
            count(|one| matches!(one, Decision::Reserve { .. })),
            expected.max_pipelined,
        ),
    ];
    counts
        .into_iter()
        .filter(|(_, has, most)| has > most)
        .map(|(what, has, most)| format!("{has} {what}, at most {most} expected"))
        .collect()
}

fn pods(
    session: &Session<'_>,
    job: &ScenarioJob,
    tasks: &[&ScenarioTask],
    expected: &ExpectedPods,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let Ok(wanted) = status(&expected.status) else {
        return vec![format!("unknown status {}", expected.status)];
    };
    for task in tasks {
        let Some(outcome) = session.outcome(&task.id) else {
            wrong.push(format!("{} is unknown", task.id));
            continue;
        };
        if outcome.status != wanted {
            wrong.push(format!(
                "{} is {:?}, not {wanted:?}",
                task.id, outcome.status
            ));
        } else if let (Some(node), true) = (&expected.node, wanted.is_active()) {
            let placement = outcome.placement.as_ref().map(|placement| &placement.node);
            if placement != Some(node) {
                wrong.push(format!("{} is on {placement:?}, not {node}", task.id));
            }
        }
    }
    for task in tasks.iter().filter(|_| wanted.is_active()) {
        let mut has = session.zones_of(&task.id);
        has.sort_unstable();
        let mut zones = expected.numa_zones.clone().unwrap_or_else(|| has.clone());
        zones.sort_unstable();
        if zones != has {
            wrong.push(format!("{} is in zones {has:?}, not {zones:?}", task.id));
        }
    }
    wrong.extend(started(session, job, wanted, expected));
    wrong.extend(sums(session, tasks, expected));
    wrong
}

fn started(
    session: &Session<'_>,
    job: &ScenarioJob,
    wanted: TaskStatus,
    expected: &ExpectedPods,
) -> Option<String> {
    if !wanted.is_allocated() {
        return None;
    }
    let Some(started) = session.last_start(&job.name) else {
        return Some(format!("{} has no start", job.name));
    };
    let age = NOW.saturating_sub(started).as_secs_f64();
    let least = expected.last_start_older_than_s?;
    (age < least).then(|| format!("{} started {age} s ago, not {least}", job.name))
}

/// The totals that the tasks request and get.
fn sums(session: &Session<'_>, tasks: &[&ScenarioTask], expected: &ExpectedPods) -> Vec<String> {
    let sum = |of: &dyn Fn(&ScenarioTask) -> f64| tasks.iter().map(|task| of(task)).sum::<f64>();
    let checks = [
        ("GPUs asked", sum(&asked), expected.gpus_required, 1e-6),
        // KAI rounds the accepted amount up to a hundredth of a card.
        (
            "GPUs accepted",
            sum(&|task| session.cards_of(&task.id).unwrap_or_default()),
            expected.gpus_accepted,
            0.01,
        ),
        (
            "milli-CPU",
            sum(&|task| task.cpu_millis),
            expected.cpu_millis_required,
            1e-6,
        ),
        (
            "bytes",
            sum(&|task| task.mem_bytes),
            expected.mem_bytes_required,
            1e-6,
        ),
    ];
    checks
        .into_iter()
        .filter_map(|(what, has, expected, tolerance)| {
            let expected = expected?;
            ((has - expected).abs() > tolerance).then(|| format!("{has} {what}, not {expected}"))
        })
        .collect()
}

/// The GPUs that a task requests.
fn asked(task: &ScenarioTask) -> f64 {
    match task.gpu.kind.as_str() {
        "whole" => task.gpu.gpus,
        "fraction" => {
            let devices = f64::from(task.gpu.num_devices.unwrap_or(1).max(1));
            (task.gpu.portion.unwrap_or_default() * 100.0).round() * devices / 100.0
        }
        _ => 0.0,
    }
}
