//! Who waits at Apportion's end although KAI would serve them.
//!
//! Two schedulers may come to different ends that are equally right: two jobs of one queue may want the last GPU of its
//! quota. So a job counts only if three things hold. It waits at our end and is entitled to what it waits for. KAI
//! serves it at its own end. And KAI, given our end as its start, goes on and serves it from there.

use std::collections::BTreeSet;

use anyhow::Result;
use apportion_policy::{Entitlement, Session};
use serde_json::Value;

use super::course::{Course, carry_on};
use super::oracle::Oracle;
use super::standings::{id, jobs, running, tasks};
use crate::scenarios::{NOW, cluster_of};

/// A job that waits, and why it ought not to.
pub(crate) type Unserved = (String, Entitlement);

/// The jobs that KAI serves and Apportion leaves waiting.
pub(crate) fn unserved(oracle: &mut Oracle, ours: &Course, kais: &Course) -> Result<Vec<Unserved>> {
    let suspects = entitled(&ours.end, &kais.end)?;
    if suspects.is_empty() {
        return Ok(suspects);
    }
    let further = carry_on(&ours.end, |cluster| Ok(oracle.decided(cluster)?.tasks))?;
    let served = |suspect: &Unserved| runs_more(&suspect.0, &further.end, &ours.end);
    Ok(suspects.into_iter().filter(served).collect())
}

/// The jobs that are entitled to run more pods at our end, and do at KAI's.
fn entitled(our_end: &Value, kais_end: &Value) -> Result<Vec<Unserved>> {
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
    let runs: BTreeSet<&str> = running(cluster);
    let found = jobs(cluster).filter(|job| job["name"] == name);
    let pods = found.flat_map(tasks);
    pods.filter(|task| runs.contains(id(task))).count()
}
