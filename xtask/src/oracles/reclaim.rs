//! Which queue may reclaim from which, within which limits, and which queue goes first.

use std::cmp::Ordering;

use anyhow::{Context, Result, bail};
use apportion_policy::amounts::{ResourceAmounts, ResourceKind};
use apportion_policy::queue_order::{QueueChange, compare};
use apportion_policy::reclaimable::{
    Losses, QueueLoss, Reclaimer, can_reclaim, exceeds_fair_share, guarantees_quota, is_candidate,
    is_quota_candidate, reclaimable,
};
use serde_json::{Value, json};

use super::queues::{amounts, find, queue, tree};
use super::{differs, number};

pub(super) fn ask(case: &Value) -> Result<Option<String>> {
    let inputs = &case["inputs"];
    let expected = &case["expected"];
    let kind = case["kind"].as_str().unwrap_or_default();
    if let Some(verdict) = of_two_queues(kind, inputs) {
        return Ok(differs(&json!(verdict), &expected["result"]));
    }
    match kind {
        "can_reclaim" | "reclaimable" | "filter_victim" => {
            let verdict = of_a_tree(kind, inputs)?;
            Ok(differs(&json!(verdict), &expected["result"]))
        }
        "over_limit" | "non_preemptible_over_quota" => {
            let queue = queue(&inputs["queue"]);
            let more = amounts(&inputs["requested"]);
            let over = match kind {
                "over_limit" => queue.over_limit(more),
                _ => queue.over_quota(more),
            };
            let answer = json!({"result": over.is_some(), "resource": over.map(name)});
            Ok(differs(&answer, expected))
        }
        "hierarchy_over_limit"
        | "hierarchy_non_preemptible_over_quota"
        | "job_over_capacity"
        | "non_preemptible_job_over_quota"
        | "task_over_capacity_on_node" => {
            let verdict = is_schedulable(kind, inputs)?;
            Ok(differs(&json!(verdict), &expected["schedulable"]))
        }
        "queue_order" | "queue_order_under_utilized" | "queue_order_under_quota_with_job" => {
            Ok(differs(&json!(order(kind, inputs)), &expected["result"]))
        }
        other => bail!("unknown kind {other}"),
    }
}

fn of_two_queues(kind: &str, inputs: &Value) -> Option<bool> {
    let victim = || queue(&inputs["reclaimee_queue"]);
    let taker = || queue(&inputs["reclaimer_queue"]);
    let left = amounts(&inputs["reclaimee_remaining"]);
    let wants = amounts(&inputs["requested"]);
    Some(match kind {
        "reclaimer_fits_deserved_quota" => taker().deserves(wants),
        "reclaimee_exceeds_deserved_quota" => !left.within(victim().deserved()),
        "fits_maintain_fair_share" | "strategy_maintain_fair_share" => {
            exceeds_fair_share(&victim(), left)
        }
        "strategy_guarantee_deserved_quota" => guarantees_quota(&taker(), wants, &victim(), left),
        "deserved_quota_candidate" => is_quota_candidate(&victim(), wants),
        _ => return None,
    })
}

fn of_a_tree(kind: &str, inputs: &Value) -> Result<bool> {
    let tree = tree(&inputs["queues"])?;
    let given = &inputs["reclaimer"];
    let reclaimer = Reclaimer {
        queue: find(&tree, &given["queue"])?,
        is_preemptible: given["preemptible"].as_bool().unwrap_or_default(),
        wants: amounts(&given["requested"]),
    };
    Ok(match kind {
        "can_reclaim" => can_reclaim(&tree, reclaimer),
        "filter_victim" => {
            let victim = find(&tree, &inputs["victim_queue"])?;
            is_candidate(&tree, reclaimer, victim)
        }
        _ => {
            let mut victims = Losses::new();
            let given = inputs["victims_by_queue"].as_object();
            for (name, losses) in given.into_iter().flatten() {
                let queue = find(&tree, &json!(name))?;
                let losses = losses.as_array().context("victims are a list")?;
                victims.insert(
                    queue,
                    vec![
                        losses
                            .iter()
                            .map(|given| QueueLoss {
                                amounts: amounts(given),
                                ..QueueLoss::default()
                            })
                            .collect(),
                    ],
                );
            }
            reclaimable(&tree, reclaimer, &victims, number(&inputs["multiplier"]))
        }
    })
}

fn is_schedulable(kind: &str, inputs: &Value) -> Result<bool> {
    let tree = tree(&inputs["queues"])?;
    let job = &inputs["job"];
    let leaf = find(&tree, &job["queue"])?;
    let more = match kind {
        "task_over_capacity_on_node" => {
            asked(&[&inputs["task"]], number(&inputs["node_gpu_memory_mib"]))
        }
        "job_over_capacity" | "non_preemptible_job_over_quota" => {
            let tasks: Vec<&Value> = job["tasks"].as_array().into_iter().flatten().collect();
            asked(&tasks, number(&inputs["gpu_memory_basis_mib"]))
        }
        _ => amounts(&inputs["requested"]),
    };
    let checks_limit = !kind.contains("non_preemptible");
    let checks_quota = kind != "hierarchy_over_limit" && !is_preemptible(job);
    Ok(!tree.upward(leaf).any(|at| {
        let queue = tree.get(at);
        (checks_limit && queue.over_limit(more).is_some())
            || (checks_quota && queue.over_quota(more).is_some())
    }))
}

/// KAI's zero value of preemptibility is not "preemptible".
fn is_preemptible(job: &Value) -> bool {
    job["preemptibility"].as_str() == Some("preemptible")
}

/// What tasks request. Bytes of a card count as a part of a card with `card_mib`.
fn asked(tasks: &[&Value], card_mib: f64) -> ResourceAmounts {
    let asks = tasks.iter().map(|task| {
        let memory = number(&task["gpu_memory_mib"]);
        let parts = if memory > 0.0 && card_mib > 0.0 {
            memory / card_mib * number(&task["num_devices"])
        } else {
            0.0
        };
        ResourceAmounts::new(
            number(&task["cpu"]),
            number(&task["memory"]),
            number(&task["gpus"]) + parts,
        )
    });
    asks.sum()
}

fn order(kind: &str, inputs: &Value) -> i32 {
    let card_mib = number(&inputs["min_node_gpu_memory_mib"]);
    let prospect = |side: &str| {
        let tasks = &inputs[format!("{side}_job")]["tasks"];
        let tasks: Vec<&Value> = tasks.as_array().into_iter().flatten().collect();
        let victims = inputs[format!("{side}_victims")].as_array();
        QueueChange {
            job: asked(&tasks, card_mib),
            victims: victims.into_iter().flatten().map(amounts).sum(),
        }
    };
    let (left, right) = (queue(&inputs["left_queue"]), queue(&inputs["right_queue"]));
    let (l_next, r_next) = (prospect("left"), prospect("right"));
    let order = match kind {
        "queue_order_under_utilized" => left.is_over_utilized().cmp(&right.is_over_utilized()),
        "queue_order_under_quota_with_job" => {
            right.deserves(r_next.job).cmp(&left.deserves(l_next.job))
        }
        _ => compare((&left, l_next), (&right, r_next), amounts(&inputs["total"])),
    };
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

fn name(resource: ResourceKind) -> &'static str {
    match resource {
        ResourceKind::Cpu => "cpu",
        ResourceKind::Memory => "memory",
        ResourceKind::Gpu => "gpu",
    }
}
