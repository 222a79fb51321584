//! How long a job is protected from preemption and reclaim.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apportion_kubernetes::parse_long_duration;
use apportion_policy::min_runtime::{
    MinRuntimeResolution, against_reclaim, along, is_candidate, is_protected, keeps_minimum,
};
use serde_json::{Value, json};

use super::{differs, number};

/// Late enough that no age is negative.
const NOW: Duration = Duration::from_secs(1_000_000_000);

pub(super) fn ask(case: &Value) -> Result<Option<String>> {
    let inputs = &case["inputs"];
    let expected = &case["expected"];
    let queues = CaseQueues::of(inputs);
    match case["kind"].as_str().unwrap_or_default() {
        "parse_duration" => {
            let text = inputs["text"].as_str().unwrap_or_default();
            let answer = parse_long_duration(text).unwrap_or_default().is_zero();
            Ok(differs(&json!({"zero": answer}), expected))
        }
        "hierarchy_path" => {
            let path = queues.path(&inputs["queue"]);
            let names: Vec<&str> = path.iter().filter_map(|at| at["uid"].as_str()).collect();
            Ok(differs(&json!({"path": names}), expected))
        }
        kind @ ("preempt_min_runtime" | "reclaim_min_runtime") => {
            let reclaims = kind == "reclaim_min_runtime";
            let victim = &inputs["victim_queue"];
            let taker = &inputs["pending_queue"];
            let error = victim.is_null() || (reclaims && taker.is_null());
            let method = resolution(&inputs["method"]);
            let minimum = queues.minimum(reclaims, method, taker, victim);
            let answer = json!({"error": error, "seconds": minimum.as_secs_f64()});
            Ok(differs(&rounded(answer), &rounded(expected.clone())))
        }
        kind @ ("preempt_filter" | "reclaim_filter") => {
            let victim = &inputs["victim"];
            let is_safe = queues.is_safe(kind == "reclaim_filter", inputs, victim)?;
            let is_elastic = pods(victim) > count(&victim["min_available"]);
            let answer = is_candidate(is_safe, is_elastic);
            Ok(differs(&json!({"allowed": answer}), expected))
        }
        kind @ ("preempt_validator" | "reclaim_validator") => {
            let mut allowed = true;
            for victim in inputs["victims"].as_array().into_iter().flatten() {
                let job = &victim["job"];
                let minimum = count(&job["min_available"]);
                let gone = victim["evicted_pods"].as_array().map_or(0, Vec::len);
                let is_safe = queues.is_safe(kind == "reclaim_validator", inputs, job)?;
                let is_elastic = pods(job) > minimum;
                allowed &= !is_elastic || keeps_minimum(is_safe, pods(job), gone, minimum);
            }
            Ok(differs(&json!({"allowed": allowed}), expected))
        }
        other => bail!("unknown kind {other}"),
    }
}

/// The queues of a case by name, and the defaults for queues without their own value.
struct CaseQueues<'v> {
    by_name: BTreeMap<&'v str, &'v Value>,
    inputs: &'v Value,
}

impl<'v> CaseQueues<'v> {
    fn of(inputs: &'v Value) -> Self {
        let queues = inputs["queues"].as_array().into_iter().flatten();
        let named = queues.filter_map(|queue| Some((queue["uid"].as_str()?, queue)));
        Self {
            by_name: named.collect(),
            inputs,
        }
    }

    /// The path from the top to `queue`, which need not be one of the case's queues.
    fn path(&self, queue: &'v Value) -> Vec<&'v Value> {
        let first = (!queue.is_null()).then_some(queue);
        let mut path: Vec<&Value> = std::iter::successors(first, |at: &&'v Value| {
            self.by_name.get(at["parent"].as_str()?).copied()
        })
        .collect();
        path.reverse();
        path
    }

    fn minimum(
        &self,
        reclaims: bool,
        method: MinRuntimeResolution,
        taker: &'v Value,
        victim: &'v Value,
    ) -> Duration {
        let is_unknown = victim.is_null() || (reclaims && taker.is_null());
        let (taker, victim) = (self.path(taker), self.path(victim));
        let (field, default) = if reclaims {
            ("reclaim_min_runtime_s", "default_reclaim_s")
        } else {
            ("preempt_min_runtime_s", "default_preempt_s")
        };
        let values = victim.iter().map(|queue| queue[field].as_f64());
        let values: Vec<_> = values
            .map(|value| value.map(Duration::from_secs_f64))
            .collect();
        let default = Duration::from_secs_f64(number(&self.inputs[default]));
        if is_unknown {
            return default;
        }
        if !reclaims {
            return along(&values, default);
        }
        let both = taker.iter().zip(&victim);
        let shared = both.take_while(|(left, right)| left["uid"] == right["uid"]);
        against_reclaim(method, &values, shared.count(), default)
    }

    fn is_safe(&self, reclaims: bool, inputs: &'v Value, victim: &Value) -> Result<bool> {
        let queue = |job: &Value| {
            let name = job["queue"].as_str().context("a job has a queue")?;
            let found = self.by_name.get(name);
            found
                .copied()
                .with_context(|| format!("there is no queue {name}"))
        };
        let method = resolution(&inputs["reclaim_method"]);
        let taker = queue(&inputs["pending_job"])?;
        let minimum = self.minimum(reclaims, method, taker, queue(victim)?);
        let started = victim["started_ago_s"]
            .as_f64()
            .map(|ago| NOW.saturating_sub(Duration::from_secs_f64(ago)));
        Ok(is_protected(started, minimum, NOW))
    }
}

fn resolution(method: &Value) -> MinRuntimeResolution {
    match method.as_str() {
        Some("queue") => MinRuntimeResolution::Queue,
        _ => MinRuntimeResolution::LowestCommonAncestor,
    }
}

fn pods(job: &Value) -> usize {
    job["pods"].as_array().map_or(0, Vec::len)
}

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap_or_default()).unwrap_or(usize::MAX)
}

/// The same object with its seconds as a floating-point number.
fn rounded(mut value: Value) -> Value {
    let seconds = value["seconds"].as_f64();
    value["seconds"] = json!(seconds);
    value
}
