//! Runs scheduling scenarios: the policy on clusters with known right results.
//!
//! This module knows how scenarios are written and run, and no particular one. A `cycle` is one run of its actions.
//! `rounds` are full runs, each on the result of the one before: bound pods then run, and evicted pods wait again. The
//! expectations must hold in the end, and in every later round.
//!
//! The repository has our own scenarios and scenarios made from KAI's tests; the tests below run all of them. The
//! expectations in `random.json` are the decisions of KAI Scheduler itself (Apache-2.0, commit d5bc503a) on random
//! clusters.

use anyhow::Result;
use apportion_policy::cluster::{Cluster, TaskStatus};
use apportion_policy::{Action, Decision, Session, TaskOutcome, plan};
use serde::Deserialize;
use serde_json::Value;

mod build;
mod compare;
mod defaults;
mod format;
#[cfg(test)]
mod variants;

use format::{
    ClaimConsumer, ClaimResult, Scenario, ScenarioClaim, ScenarioMode, ScenarioRounds, ScenarioTask,
};

pub(crate) use build::NOW;

use crate::cases::CaseSuite;

const OWN: &str = "scheduler-shim/policy/scenarios";
/// The scenarios made from KAI's tests.
pub(crate) const KAI: &str = "scheduler-shim/policy/scenarios/kai";

pub(crate) const SUITE: CaseSuite = CaseSuite {
    folders: &[OWN, KAI],
    counted_by: "by_feature",
    tags: features,
    ask: |_, case| play(&Scenario::deserialize(case)?),
};

/// The features of a scenario; without any it is plain.
fn features(_: &str, case: &Value) -> Vec<String> {
    let features = case["features"].as_array().into_iter().flatten();
    let mut features: Vec<String> = features
        .filter_map(|feature| feature.as_str().map(str::to_owned))
        .collect();
    if features.is_empty() {
        features.push("(plain)".to_owned());
    }
    features
}

/// The cluster of a scenario.
pub(crate) fn cluster_of(case: &Value) -> Result<Cluster> {
    build::cluster(&Scenario::deserialize(case)?)
}

/// Runs one scenario. Returns what was wrong.
fn play(scenario: &Scenario) -> Result<Vec<String>> {
    match scenario.mode {
        ScenarioMode::Cycle => {
            let actions = scenario.actions.iter().map(|name| build::action(name));
            let actions: Vec<Action> = actions.collect::<Result<_>>()?;
            Ok(once(scenario, &actions)?.0)
        }
        ScenarioMode::Rounds => {
            let rounds = scenario.rounds.unwrap_or(ScenarioRounds {
                until_match: 2,
                after_match: 5,
            });
            play_rounds(scenario.clone(), rounds)
        }
    }
}

fn play_rounds(mut scenario: Scenario, rounds: ScenarioRounds) -> Result<Vec<String>> {
    for _ in 0..rounds.until_match {
        let (wrong, after) = once(&scenario, &Action::ALL)?;
        let too_much: Vec<String> = wrong
            .into_iter()
            .filter(|text| text.ends_with(" expected"))
            .collect();
        if !too_much.is_empty() {
            return Ok(too_much);
        }
        scenario = after;
    }
    let (wrong, _) = once(&scenario, &[])?;
    if !wrong.is_empty() {
        return Ok(wrong);
    }
    for round in 0..rounds.after_match {
        let (wrong, after) = once(&scenario, &Action::ALL)?;
        if !wrong.is_empty() {
            let wrong = wrong.into_iter();
            return Ok(wrong
                .map(|text| format!("round {}: {text}", round + 1))
                .collect());
        }
        scenario = after;
    }
    Ok(Vec::new())
}

/// Runs `actions` once. Returns what is wrong then, and the scenario after the decisions.
fn once(scenario: &Scenario, actions: &[Action]) -> Result<(Vec<String>, Scenario)> {
    let cluster = build::cluster(scenario)?;
    let session = if actions == Action::ALL {
        plan(build::NOW, &cluster)
    } else {
        let mut session = Session::open(build::NOW, &cluster);
        for &action in actions {
            session.run(action);
        }
        session
    };
    let decisions: Vec<Decision> = session.decisions();
    let wrong = compare::differences(scenario, &session, &decisions);
    Ok((wrong, carried_on(scenario, &session)))
}

/// The scenario after the decisions were carried out.
fn carried_on(scenario: &Scenario, session: &Session<'_>) -> Scenario {
    let mut after = scenario.clone();
    let nominated = session.nominated_pods();
    for job in &mut after.jobs {
        for task in &mut job.tasks {
            task.nominated = nominated.contains(task.id.as_str());
            let Some(outcome) = session.outcome(&task.id) else {
                continue;
            };
            for claim in &mut after.dra.claims {
                let is_named = task.resource_claims.contains(&claim.name);
                if is_named && !matches!(outcome.status, TaskStatus::Pending) {
                    record_use(claim, task, &outcome);
                }
            }
            match outcome.status {
                TaskStatus::Binding => {
                    "Running".clone_into(&mut task.state);
                    if let Some(placement) = outcome.placement {
                        task.node = Some(placement.node);
                        task.gpu_groups = placement.cards;
                    }
                }
                TaskStatus::Releasing if job.delete_on_evict => {
                    "Releasing".clone_into(&mut task.state)
                }
                TaskStatus::Pipelined | TaskStatus::Releasing => {
                    "Pending".clone_into(&mut task.state);
                    task.node = None;
                }
                _ => {}
            }
        }
    }
    after
}

/// Records in a claim that a pod got its devices, or that it lost them.
fn record_use(claim: &mut ScenarioClaim, task: &ScenarioTask, outcome: &TaskOutcome) {
    let status = claim.status.get_or_insert_default();
    status.reserved_for.retain(|pod| pod.name != task.id);
    if let (true, Some(placement)) = (outcome.status.is_allocated(), &outcome.placement) {
        status.reserved_for.push(ClaimConsumer {
            name: task.id.clone(),
        });
        let allocation = status.allocation.get_or_insert_default();
        if allocation.devices.results.is_empty() {
            let pool = placement.node.clone();
            allocation.devices.results.push(ClaimResult { pool });
        }
    }
    if status.reserved_for.is_empty() {
        claim.status = None;
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::cases;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// What is wrong with the repository's scenarios after `change` changed them.
    fn wrong_when(change: fn(&Value) -> Value) -> Vec<String> {
        let mut wrong = Vec::new();
        for folder in SUITE.folders {
            let files = cases::read(&root().join(folder)).unwrap();
            for case in files.iter().flat_map(|file| &file.cases) {
                let id = &case["id"];
                let failures = (SUITE.ask)("", &change(case)).unwrap();
                wrong.extend(
                    failures
                        .into_iter()
                        .map(|failures| format!("{id}: {failures}")),
                );
            }
        }
        wrong
    }

    #[test]
    fn a_cluster_described_backwards_comes_out_the_same() {
        assert_eq!(wrong_when(variants::backwards), [""; 0]);
    }

    #[test]
    fn other_names_in_the_same_order_come_out_the_same() {
        assert_eq!(wrong_when(variants::renamed), [""; 0]);
    }

    #[test]
    fn an_outcome_that_differs_is_said_in_words() {
        let mut files = cases::read(&root().join(OWN)).unwrap();
        let case = &mut files[0].cases[0];
        let text = case.to_string().replace("\"Binding\"", "\"Pending\"");
        let wrong = (SUITE.ask)("", &text.parse().unwrap()).unwrap();
        assert!(wrong[0].ends_with("is Binding, not Pending"), "{wrong:?}");
    }

    #[test]
    fn what_is_no_scenario_does_not_pass() {
        assert!((SUITE.ask)("", &serde_json::json!({"id": "empty"})).is_err());
    }
}
