//! Jobs that wait at Apportion's end although KAI would serve them.
//!
//! Two schedulers may come to different ends that are equally right: two jobs of one queue may want the last GPU of its
//! quota. So a job counts only if three things hold. It waits at our end and is entitled to what it waits for. KAI
//! serves it at its own end. And KAI, started from our end, serves it each time it is asked. Priority entitles a job
//! only to the GPUs of its own queue, so there jobs of lower priority must have left, and their GPUs and the idle ones must
//! be enough.
//!
//! KAI may serve a job by a move that it does not complete: it evicts pods that it may only move, and then gives their
//! new places to others. If the job that loses them was as entitled to them, one claim is served at the cost of
//! another. Such jobs are counted apart. So are jobs that KAI serves at the cost of another queue that holds exactly its
//! fair share: KAI's sum of its shares is a little more, because it adds with rounding errors. So are jobs that KAI
//! serves only by a step that leaves a gang with too few pods: Apportion takes no such step, because the pods that are
//! left would wait for the others. And so are jobs that would lose their place to another one if KAI did not overlook the
//! room for that: the policy serves them if it overlooks it, too.

use std::collections::BTreeSet;

use anyhow::Result;
use apportion_policy::cluster::KaiBehavior;
use apportion_policy::{Entitlement, Session};
use serde_json::Value;

use super::oracle::KaiOracle;
use super::pod_outcomes::{
    PodOutcome, PolicyVariant, carried_on, decided_in, id, jobs, running, tasks,
};
use super::scheduling_run::{SchedulingRun, carry_on, thousandths};
use crate::scenarios::{NOW, cluster_of};

/// How often KAI is asked to continue from our end. A job counts only if KAI serves it every time.
const TIMES: usize = 5;

/// A waiting job, and why it should not wait.
pub(crate) type UnservedJob = (String, Entitlement);

/// The jobs that KAI serves and Apportion leaves waiting.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct UnservedJobs {
    /// Those that should not wait.
    pub(crate) starved: Vec<UnservedJob>,
    /// Those that KAI serves at the cost of a moved job that is as entitled.
    pub(crate) for_moved: Vec<UnservedJob>,
    /// Those that KAI serves by evicting a job whose queues hold no more than their fair shares: it adds with rounding
    /// errors.
    pub(crate) for_rounding_errors: Vec<UnservedJob>,
    /// Those that KAI serves by a step that leaves a gang with too few pods.
    pub(crate) for_broken: Vec<UnservedJob>,
    /// Those that KAI serves because it overlooks the room for another job.
    pub(crate) for_overlooked: Vec<UnservedJob>,
}

/// The jobs that KAI serves and Apportion leaves waiting.
pub(crate) fn unserved(
    oracle: &mut KaiOracle,
    ours: &SchedulingRun,
    kais: &SchedulingRun,
) -> Result<UnservedJobs> {
    let mut served = entitled(&ours.end, &kais.end)?;
    let mut found = UnservedJobs::default();
    for _ in 0..TIMES {
        if served.is_empty() {
            break;
        }
        let further = carry_on(&ours.end, |cluster| Ok(oracle.decided(cluster)?.tasks))?;
        served.retain(|(job, why)| {
            runs_more(job, &further.end, &ours.end)
                && (*why != Entitlement::Priority
                    || has_room_of_lower(job, &ours.end, &further.end))
        });
        let losers = losers(&further)?;
        let (for_moved, rest): (Vec<_>, Vec<_>) = served
            .into_iter()
            .partition(|(_, why): &UnservedJob| losers.iter().any(|loser| loser <= why));
        found.for_moved.extend(for_moved);
        let victims = evicted_within_share(&further)?;
        let (for_rounding_errors, rest): (Vec<_>, Vec<_>) =
            (rest.into_iter()).partition(|(job, why): &UnservedJob| {
                let queue = queue_of(job, &ours.end);
                let mut others = victims.iter().filter(|(of, _)| *of != queue);
                others.any(|(_, loser)| loser <= why)
            });
        found.for_rounding_errors.extend(for_rounding_errors);
        if breaks_gang(&further) {
            found.for_broken.extend(rest);
            served = Vec::new();
        } else {
            served = rest;
        }
    }
    let overlooks = PolicyVariant {
        as_kai: BTreeSet::from([KaiBehavior::NarrowsDomains]),
        ..PolicyVariant::default()
    };
    let ours_then = carry_on(&ours.end, |cluster| decided_in(cluster, &overlooks))?;
    (found.for_overlooked, found.starved) = served
        .into_iter()
        .partition(|(job, _)| runs_more(job, &ours_then.end, &ours.end));
    Ok(found)
}

/// Whether jobs of lower priority in its queue left as many GPUs to a job as it has now, together with the idle ones.
fn has_room_of_lower(job: &str, start: &Value, end: &Value) -> bool {
    let gained = held(job, end).saturating_sub(held(job, start));
    let left = lower(job, start).map(|other| held(other, start).saturating_sub(held(other, end)));
    let left: u64 = left.sum();
    left > 0 && gained <= left + idle(start)
}

/// The GPUs that no pod holds, in thousandths.
fn idle(cluster: &Value) -> u64 {
    let nodes = cluster["nodes"].as_array().into_iter().flatten();
    let all: u64 = nodes
        .filter_map(|node| node["gpus_allocatable"].as_u64())
        .sum();
    let names = jobs(cluster).filter_map(|job| job["name"].as_str());
    let in_use: u64 = names.map(|job| held(job, cluster)).sum();
    (all * 1000).saturating_sub(in_use)
}

/// The GPUs of a job's running pods, in thousandths.
fn held(name: &str, cluster: &Value) -> u64 {
    running_tasks(name, cluster).map(thousandths).sum()
}

/// Whether a cycle leaves a gang with too few pods that was whole, or had none, at the start.
fn breaks_gang(run: &SchedulingRun) -> bool {
    let Some((start, _)) = run.cycles.first() else {
        return false;
    };
    let broken_before = broken_gangs(start);
    let later = run.cycles.iter().skip(1).map(|(at, _)| at);
    later.chain([&run.end]).any(|at| {
        let mut broken = broken_gangs(at).into_iter();
        broken.any(|job| !broken_before.contains(job))
    })
}

/// The jobs of which pods run, but too few of a pod set.
fn broken_gangs(cluster: &Value) -> BTreeSet<&str> {
    let running = running(cluster);
    let runs = |task: &&Value| running.contains(id(task));
    let is_broken = |job: &&Value| {
        let in_set = |set: &Value| {
            let of_set = tasks(job).filter(|task| task["subgroup"] == set["name"]);
            of_set.filter(runs).count() as u64
        };
        let sets = job["subgroups"]["pod_sets"].as_array();
        let mut sets = sets.into_iter().flatten();
        tasks(job).any(|task| runs(&task))
            && sets.any(|set| in_set(set) < set["min_available"].as_u64().unwrap_or_default())
    };
    jobs(cluster)
        .filter(is_broken)
        .filter_map(|job| job["name"].as_str())
        .collect()
}

/// Why the jobs were entitled to what they had that have fewer pods at the end although KAI evicted none of them. It
/// only moved some, and then gave their new places to others.
fn losers(run: &SchedulingRun) -> Result<Vec<Entitlement>> {
    let Some((start, _)) = run.cycles.first() else {
        return Ok(Vec::new());
    };
    let evicted = evicted(run);
    let spared = jobs(start).filter(|job| !tasks(job).any(|task| evicted.contains(id(task))));
    let names = spared.filter_map(|job| job["name"].as_str());
    let mut losers = Vec::new();
    for job in names.filter(|job| runs_more(job, start, &run.end)) {
        losers.extend(entitlement_to_places(start, job)?);
    }
    Ok(losers)
}

/// The queues of the jobs that were evicted although they were entitled to their places by the quotas or fair shares of
/// their queues, and these entitlements.
fn evicted_within_share(run: &SchedulingRun) -> Result<Vec<(&Value, Entitlement)>> {
    let Some((start, _)) = run.cycles.first() else {
        return Ok(Vec::new());
    };
    let evicted = evicted(run);
    let jobs = jobs(start).filter(|job| tasks(job).any(|task| evicted.contains(id(task))));
    let mut victims = Vec::new();
    for job in jobs.filter_map(|job| job["name"].as_str()) {
        let why = entitlement_to_places(start, job)?;
        let why = why.filter(|why| *why != Entitlement::Priority);
        victims.extend(why.map(|why| (queue_of(job, start), why)));
    }
    Ok(victims)
}

/// Why a job was entitled to the places that it has.
fn entitlement_to_places(start: &Value, job: &str) -> Result<Option<Entitlement>> {
    let cluster = cluster_of(&without_places(start, job))?;
    Ok(Session::open(NOW, &cluster).entitlement(job))
}

fn queue_of<'c>(name: &str, cluster: &'c Value) -> &'c Value {
    let job = jobs(cluster).find(|job| job["name"] == name);
    job.map_or(&Value::Null, |job| &job["queue"])
}

/// The cluster if all pods of a job waited.
fn without_places(cluster: &Value, name: &str) -> Value {
    let job = jobs(cluster).find(|job| job["name"] == name);
    let pods = job.into_iter().flat_map(tasks).map(|task| {
        let outcome = PodOutcome {
            status: "Releasing".to_owned(),
            ..PodOutcome::default()
        };
        (id(task).to_owned(), outcome)
    });
    carried_on(cluster, &pods.collect())
}

/// The pods that ran and were evicted, not moved.
fn evicted(run: &SchedulingRun) -> BTreeSet<&str> {
    let mut evicted = BTreeSet::new();
    for (start, outcomes) in &run.cycles {
        evicted.extend(running(start).into_iter().filter(|task| {
            let outcome = outcomes.get(*task);
            outcome.is_some_and(|outcome| outcome.status == "Releasing")
        }));
    }
    evicted
}

/// The jobs of lower priority in the queue of a job.
fn lower<'c>(job: &str, cluster: &'c Value) -> impl Iterator<Item = &'c str> {
    let found = jobs(cluster).find(|other| other["name"] == job);
    let others = jobs(cluster).filter(move |other| {
        found.is_some_and(|job| {
            other["queue"] == job["queue"] && other["priority"].as_i64() < job["priority"].as_i64()
        })
    });
    others.filter_map(|other| other["name"].as_str())
}

/// The jobs that are entitled to more running pods than at our end, and have them at KAI's.
fn entitled(our_end: &Value, kais_end: &Value) -> Result<Vec<UnservedJob>> {
    let cluster = cluster_of(our_end)?;
    let session = Session::open(NOW, &cluster);
    let names = jobs(our_end).filter_map(|job| job["name"].as_str());
    let more = names.filter(|job| runs_more(job, kais_end, our_end));
    Ok(more
        .filter_map(|job| Some((job.to_owned(), session.entitlement(job)?)))
        .collect())
}

/// Whether more pods of a job run in one cluster than in the other.
fn runs_more(job: &str, one: &Value, other: &Value) -> bool {
    count(job, one) > count(job, other)
}

fn count(name: &str, cluster: &Value) -> usize {
    running_tasks(name, cluster).count()
}

fn running_tasks<'c>(name: &str, cluster: &'c Value) -> impl Iterator<Item = &'c Value> {
    let runs: BTreeSet<&str> = running(cluster);
    let found = jobs(cluster).filter(move |job| job["name"] == name);
    let pods = found.flat_map(tasks);
    pods.filter(move |task| runs.contains(id(task)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One node of 4 GPUs. In queue `a` a job of priority 50 holds `held` GPUs, and another job waits for 1 GPU.
    fn cluster(quota: f64, weight: f64, held: u64, priority: i32, preemptible: bool) -> Value {
        let job = |name: &str, priority: i32, preemptible: bool, gpus: u64, state: &str| {
            json!({
                "name": name, "queue": "a", "priority": priority, "preemptible": preemptible,
                "subgroups": {"pod_sets": [{"name": "default", "min_available": 1}]},
                "tasks": [{
                    "id": format!("{name}-0"), "state": state, "node": "n0", "subgroup": "default",
                    "gpu": {"kind": "whole", "gpus": gpus},
                }],
            })
        };
        json!({
            "mode": "cycle", "actions": [], "expected": {},
            "nodes": [{"name": "n0", "gpus_allocatable": 4}],
            "queues": [{"name": "a", "deserved_gpus": quota, "over_quota_weight": weight}],
            "jobs": [job("held", 50, true, held, "Running"), job("waits", priority, preemptible, 1, "Pending")],
        })
    }

    fn entitlement(cluster: &Value) -> Option<Entitlement> {
        let cluster = cluster_of(cluster).unwrap();
        Session::open(NOW, &cluster).entitlement("waits")
    }

    #[test]
    fn a_job_is_entitled_by_quota_then_share_then_priority() {
        assert_eq!(
            entitlement(&cluster(4.0, 0.0, 3, 50, true)),
            Some(Entitlement::Quota)
        );
        assert_eq!(
            entitlement(&cluster(1.0, 1.0, 3, 50, true)),
            Some(Entitlement::FairShare)
        );
        assert_eq!(
            entitlement(&cluster(1.0, 0.0, 3, 60, true)),
            Some(Entitlement::Priority)
        );
        assert_eq!(entitlement(&cluster(1.0, 0.0, 3, 50, true)), None);
    }

    #[test]
    fn what_may_not_be_preempted_is_entitled_to_its_quota_only() {
        assert_eq!(
            entitlement(&cluster(1.0, 1.0, 3, 100, false)),
            Some(Entitlement::FairShare)
        );
        assert_eq!(entitlement(&cluster(0.0, 1.0, 3, 100, false)), None);
    }

    #[test]
    fn a_job_that_runs_is_entitled_to_nothing_more() {
        let cluster = cluster_of(&cluster(4.0, 1.0, 3, 50, true)).unwrap();
        assert_eq!(Session::open(NOW, &cluster).entitlement("held"), None);
    }

    #[test]
    fn only_jobs_of_lower_priority_give_way() {
        let of = |priority| {
            let cluster = cluster(1.0, 0.0, 3, priority, true);
            lower("waits", &cluster)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(60), ["held"]);
        assert_eq!(of(50), [""; 0]);
    }

    #[test]
    fn priority_entitles_to_no_more_than_lower_jobs_of_the_queue_hold_and_what_is_idle() {
        let start = cluster(1.0, 0.0, 2, 60, true);
        let mut end = start.clone();
        end["jobs"][0]["tasks"][0]["state"] = json!("Pending");
        end["jobs"][1]["tasks"][0]["state"] = json!("Running");
        for (gpus, is_entitled) in [(1, true), (4, true), (5, false)] {
            end["jobs"][1]["tasks"][0]["gpu"]["gpus"] = json!(gpus);
            let found = has_room_of_lower("waits", &start, &end);
            assert_eq!(found, is_entitled, "{gpus}");
        }
        end["jobs"][0]["tasks"][0]["state"] = json!("Running");
        assert!(!has_room_of_lower("waits", &start, &end), "nobody left");
    }

    #[test]
    fn jobs_are_suspects_only_if_more_of_their_pods_run_at_kais_end() {
        let ours = cluster(4.0, 0.0, 3, 50, true);
        let mut kais = ours.clone();
        assert_eq!(entitled(&ours, &kais).unwrap(), []);
        kais["jobs"][1]["tasks"][0]["state"] = json!("Running");
        let suspects = entitled(&ours, &kais).unwrap();
        assert_eq!(suspects, [("waits".to_owned(), Entitlement::Quota)]);
    }
    /// KAI takes the place of `held` in this way.
    fn taken(status: &str) -> SchedulingRun {
        let start = cluster(1.0, 1.0, 3, 50, true);
        let outcome = PodOutcome {
            status: status.to_owned(),
            ..PodOutcome::default()
        };
        let outcomes = [("held-0".to_owned(), outcome)].into();
        let end = carried_on(&start, &outcomes);
        SchedulingRun {
            cycles: vec![(start, outcomes)],
            end,
            rests: true,
        }
    }

    #[test]
    fn a_gang_with_too_few_pods_is_broken() {
        let mut cluster = cluster(1.0, 1.0, 1, 50, true);
        assert_eq!(broken_gangs(&cluster), BTreeSet::new());
        cluster["jobs"][0]["subgroups"]["pod_sets"][0]["min_available"] = json!(2);
        let mut more = cluster["jobs"][0]["tasks"][0].clone();
        more["id"] = json!("held-1");
        let tasks = cluster["jobs"][0]["tasks"].as_array_mut().unwrap();
        tasks.push(more);
        assert_eq!(broken_gangs(&cluster), BTreeSet::new());
        cluster["jobs"][0]["tasks"][1]["state"] = json!("Pending");
        assert_eq!(broken_gangs(&cluster), BTreeSet::from(["held"]));
        let run = |end: &Value| SchedulingRun {
            cycles: vec![(cluster.clone(), std::collections::BTreeMap::new())],
            end: end.clone(),
            rests: true,
        };
        assert!(!breaks_gang(&run(&cluster)), "it was broken before");
    }

    #[test]
    fn a_victim_was_within_the_share_of_its_queue_if_that_held_no_more() {
        let fair = json!("a");
        let mut run = taken("Releasing");
        assert_eq!(
            evicted_within_share(&run).unwrap(),
            [(&fair, Entitlement::FairShare)]
        );
        let queue = &mut run.cycles[0].0["queues"][0];
        queue["over_quota_weight"] = json!(0.0);
        assert_eq!(evicted_within_share(&run).unwrap(), []);
        assert_eq!(evicted_within_share(&taken("Running")).unwrap(), []);
    }

    #[test]
    fn only_a_job_that_is_moved_pays_for_another() {
        let moved = losers(&taken("Pipelined")).unwrap();
        assert_eq!(moved, [Entitlement::FairShare]);
        assert_eq!(losers(&taken("Releasing")).unwrap(), []);
        assert_eq!(losers(&taken("Running")).unwrap(), []);
    }
}
