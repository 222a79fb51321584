//! Runs scheduling scenarios: the policy on clusters for which somebody wrote down what must happen.
//!
//! It knows how scenarios are written and run, and nothing of any particular one. A `cycle` is one run of
//! its actions. `rounds` are full runs, each on what the one before it left, where what was bound runs and
//! what was evicted waits again; what is expected must then hold, and go on to hold round after round.
//!
//! Those of our own lie beside the policy. What `random.json` expects is what KAI Scheduler itself (Apache-2.0,
//! commit d5bc503a) decided on those clusters, which were drawn at random.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use apportion_policy::cluster::Status;
use apportion_policy::{Action, Decision, Outcome, Session, plan};
use serde_json::json;

mod build;
mod compare;
mod format;
mod usual;
#[cfg(test)]
mod variants;

use format::{Claim, ClaimResult, Consumer, Mode, Rounds, Scenario, Task};

use crate::deviations::Deviations;

/// What came of one scenario.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) id: String,
    pub(crate) features: Vec<String>,
    /// What was wrong; nothing when it passed.
    pub(crate) wrong: Vec<String>,
}

/// Runs every scenario below `folder` whose id contains `filter`, and reports.
///
/// Returns whether all passed but those that are listed as deviations.
pub(crate) fn run(
    folder: &Path,
    filter: &str,
    as_json: bool,
    deviations: &Deviations,
) -> Result<bool> {
    let verdicts = verdicts(folder, filter)?;
    let failed: Vec<&Verdict> = verdicts
        .iter()
        .filter(|one| !one.wrong.is_empty())
        .collect();
    let by_feature = by_feature(&verdicts);
    if as_json {
        let ids: Vec<&str> = failed.iter().map(|one| one.id.as_str()).collect();
        let features: BTreeMap<_, _> = by_feature
            .iter()
            .map(|(name, (passed, failed))| (name, json!({"passed": passed, "failed": failed})))
            .collect();
        let passed = verdicts.len() - failed.len();
        println!(
            "{}",
            json!({"passed": passed, "failed": ids, "by_feature": features})
        );
    } else {
        for one in &failed {
            let mark = if deviations.reason(&one.id).is_some() {
                "deviates"
            } else {
                "FAILED"
            };
            println!("{mark} {}: {}", one.id, one.wrong.join("; "));
        }
        for (name, (passed, failed)) in &by_feature {
            println!("{name:20} {passed:4} of {:4}", passed + failed);
        }
        println!(
            "{} of {} passed",
            verdicts.len() - failed.len(),
            verdicts.len()
        );
    }
    let listed = |one: &&Verdict| deviations.reason(&one.id).is_some();
    Ok(failed.iter().all(listed))
}

/// Runs every scenario of the files in `folder`, in order.
pub(crate) fn verdicts(folder: &Path, filter: &str) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    for path in crate::deviations::json_files(folder)? {
        let text = fs::read_to_string(&path)?;
        let scenarios: Vec<Scenario> = serde_json::from_str(&text)
            .with_context(|| format!("failed to read {}", path.display()))?;
        for scenario in scenarios {
            if scenario.id.contains(filter) {
                let wrong =
                    play(&scenario).with_context(|| format!("failed to run {}", scenario.id))?;
                verdicts.push(Verdict {
                    id: scenario.id,
                    features: scenario.features,
                    wrong,
                });
            }
        }
    }
    Ok(verdicts)
}

fn by_feature(verdicts: &[Verdict]) -> BTreeMap<&str, (usize, usize)> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for one in verdicts {
        let features = one.features.iter().map(String::as_str);
        let plain = one.features.is_empty().then_some("(plain)");
        for feature in features.chain(plain) {
            let count = counts.entry(feature).or_default();
            if one.wrong.is_empty() {
                count.0 += 1;
            } else {
                count.1 += 1;
            }
        }
    }
    counts
}

/// Runs one scenario; returns what was wrong.
fn play(scenario: &Scenario) -> Result<Vec<String>> {
    match scenario.mode {
        Mode::Cycle => {
            let actions = scenario.actions.iter().map(|name| build::action(name));
            let actions: Vec<Action> = actions.collect::<Result<_>>()?;
            Ok(once(scenario, &actions)?.0)
        }
        Mode::Rounds => {
            let rounds = scenario.rounds.unwrap_or(Rounds {
                until_match: 2,
                after_match: 5,
            });
            play_rounds(scenario.clone(), rounds)
        }
    }
}

fn play_rounds(mut scenario: Scenario, rounds: Rounds) -> Result<Vec<String>> {
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

/// Runs `actions` once; returns what is wrong then, and the scenario as it goes on.
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

/// The scenario after what was decided has been done.
fn carried_on(scenario: &Scenario, session: &Session<'_>) -> Scenario {
    let mut after = scenario.clone();
    for job in &mut after.jobs {
        for task in &mut job.tasks {
            let Some(outcome) = session.outcome(&task.id) else {
                continue;
            };
            for claim in &mut after.dra.claims {
                let is_named = task.resource_claims.contains(&claim.name);
                if is_named && !matches!(outcome.status, Status::Pending) {
                    note_use(claim, task, &outcome);
                }
            }
            match outcome.status {
                Status::Binding => {
                    "Running".clone_into(&mut task.state);
                    if let Some(place) = outcome.place {
                        task.node = Some(place.node);
                        task.gpu_groups = place.cards;
                    }
                }
                Status::Releasing if job.delete_on_evict => "Releasing".clone_into(&mut task.state),
                Status::Pipelined | Status::Releasing => {
                    "Pending".clone_into(&mut task.state);
                    task.node = None;
                }
                _ => {}
            }
        }
    }
    after
}

/// Enters in a claim that a pod got its devices, or that it has lost them.
fn note_use(claim: &mut Claim, task: &Task, outcome: &Outcome) {
    let status = claim.status.get_or_insert_default();
    status.reserved_for.retain(|pod| pod.name != task.id);
    if let (true, Some(place)) = (outcome.status.is_allocated(), &outcome.place) {
        status.reserved_for.push(Consumer {
            name: task.id.clone(),
        });
        let allocation = status.allocation.get_or_insert_default();
        if allocation.devices.results.is_empty() {
            let pool = place.node.clone();
            allocation.devices.results.push(ClaimResult { pool });
        }
    }
    if status.reserved_for.is_empty() {
        claim.status = None;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn own() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../scheduler-shim/policy/scenarios")
    }

    /// The scenarios derived from KAI's tests; nothing where they are not at hand.
    fn shared() -> std::path::PathBuf {
        let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/scenarios");
        if shared.is_dir() { shared } else { own() }
    }

    #[test]
    fn every_scenario_of_our_own_comes_out_as_written() {
        let verdicts = verdicts(&own(), "").unwrap();
        assert!(verdicts.len() > 10, "{}", verdicts.len());
        for verdict in verdicts {
            assert!(
                verdict.wrong.is_empty(),
                "{}: {:?}",
                verdict.id,
                verdict.wrong
            );
        }
    }

    /// What goes wrong with the scenarios of a folder when they are told differently.
    fn wrong_in(folder: &Path, tell: fn(&Value) -> Value) -> Vec<String> {
        let mut wrong = Vec::new();
        for path in crate::deviations::json_files(folder).unwrap() {
            let text = fs::read_to_string(path).unwrap();
            for told in serde_json::from_str::<Vec<Value>>(&text).unwrap() {
                let scenario: Scenario = serde_json::from_value(tell(&told)).unwrap();
                for one in play(&scenario).unwrap() {
                    wrong.push(format!("{}: {one}", scenario.id));
                }
            }
        }
        wrong
    }

    #[test]
    fn a_cluster_described_backwards_comes_out_the_same() {
        assert_eq!(wrong_in(&own(), variants::backwards), [""; 0]);
        assert_eq!(wrong_in(&shared(), variants::backwards), [""; 0]);
    }

    #[test]
    fn other_names_in_the_same_order_come_out_the_same() {
        assert_eq!(wrong_in(&own(), variants::renamed), [""; 0]);
        assert_eq!(wrong_in(&shared(), variants::renamed), [""; 0]);
    }

    #[test]
    fn an_outcome_that_differs_is_said_in_words() {
        let text = fs::read_to_string(own().join("allocate.json")).unwrap();
        let text = text.replace("\"Binding\"", "\"Pending\"");
        let scenarios: Vec<Scenario> = serde_json::from_str(&text).unwrap();
        let wrong = play(&scenarios[0]).unwrap();
        assert!(wrong[0].ends_with("is Binding, not Pending"), "{wrong:?}");
    }
}
