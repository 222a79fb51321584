//! Asks KAI's own pod grouper and ours the same questions, and reports where the answers differ.
//!
//! A question is an owner, a pod and the other objects of the cluster, in the format of the pod group oracles. First
//! come those oracles themselves: KAI must give their answers, or the program that asks it is wrong. The other
//! questions are random variants of them ([`generate`]). KAI answers in a checkout that the user names ([`kai`]);
//! nothing in it is changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cases;
use crate::oracle_pod_groups::{answer, checked};
use crate::oracles::KAI;
use crate::workspace::Workspace;

mod deviations;
mod equality;
mod generate;
mod kai;

/// Which questions to ask.
#[derive(clap::Args)]
pub(crate) struct KaiGroupsOptions {
    /// A checkout of KAI Scheduler (needs `go`, which fetches what KAI needs).
    dir: PathBuf,
    /// Questions to draw.
    #[arg(long, default_value_t = 2_000)]
    cases: u32,
    /// Seed of an earlier run, for the same questions.
    #[arg(long)]
    seed: Option<u64>,
    /// Differences to print; all are in target/kai-groups/differences.json.
    #[arg(long, default_value_t = 10)]
    show: usize,
}

/// At least this many percent of the answers must be equal.
const WANTED: usize = 98;

/// The results of the random questions for one grouper.
#[derive(Default)]
struct GrouperTally {
    same: usize,
    /// Answers that differ for a documented reason.
    deviating: usize,
    different: usize,
}

/// Asks. Returns whether enough answers are equal.
pub(crate) fn run(workspace: &Workspace, options: &KaiGroupsOptions) -> Result<bool> {
    let seed = match options.seed {
        Some(seed) => seed,
        None => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    let folder = workspace.root.join(&workspace.target).join("kai-groups");
    let kai = kai::GrouperProgram::build(&options.dir, &workspace.root, &folder)?;
    let oracles = oracles(workspace)?;
    validate(&kai, &oracles)?;
    println!("seed {seed}");
    let questions = generate::questions(&oracles, options.cases, seed);
    compare(&kai, &questions, options.show, &folder)
}

/// The oracles that ask for a pod group.
fn oracles(workspace: &Workspace) -> Result<Vec<Value>> {
    let files = cases::read(&workspace.root.join(KAI))?;
    let file = files.into_iter().find(|file| file.name == "pod-groups");
    let cases = file.context("the repository has no oracles of pod groups")?;
    let steps = cases.cases.iter().flat_map(|case| {
        let steps = case["steps"].as_array().into_iter().flatten();
        steps.map(|step| {
            let mut step = step.clone();
            step["id"] = case["id"].clone();
            step
        })
    });
    Ok(steps
        .filter(|step| step["call"] == "pod_group")
        .map(generate::with_keys)
        .collect())
}

/// Checks that the program that asks KAI gives the answers of KAI's tests.
fn validate(kai: &kai::GrouperProgram, oracles: &[Value]) -> Result<()> {
    let mut agree = 0;
    for (step, kai_answer) in oracles.iter().zip(kai.ask(oracles)?) {
        let outcome = kai_answer.outcome();
        let wrong = checked(step, &outcome);
        match wrong.as_slice() {
            [] => agree += 1,
            _ => println!(
                "KAI itself does not answer {} as stated: {}",
                step["id"],
                wrong.join("; ")
            ),
        }
    }
    println!(
        "KAI answers {agree} of {} oracles as they state",
        oracles.len()
    );
    ensure!(
        agree * 100 >= oracles.len() * WANTED,
        "the questions do not reach KAI as they are meant"
    );
    Ok(())
}

fn compare(
    kai: &kai::GrouperProgram,
    questions: &[Value],
    show: usize,
    folder: &std::path::Path,
) -> Result<bool> {
    let mut tallies: BTreeMap<String, GrouperTally> = BTreeMap::new();
    let mut differences = Vec::new();
    let mut unasked = 0;
    for (question, kai_answer) in questions.iter().zip(kai.ask(questions)?) {
        if let kai::GrouperAnswer::Unaskable(_) = kai_answer {
            unasked += 1;
            continue;
        }
        let ours = answer(question)?;
        let grouper = question["grouper"].as_str().unwrap_or_default();
        let tally = tallies.entry(grouper.to_owned()).or_default();
        let found = equality::differences(&kai_answer, &ours);
        if found.is_empty() {
            tally.same += 1;
        } else if deviations::reason(question, &kai_answer, &ours).is_some() {
            tally.deviating += 1;
        } else {
            tally.different += 1;
            differences.push(json!({"differs": found, "question": question}));
        }
    }
    for one in differences.iter().take(show) {
        println!("{}: {}", one["question"]["grouper"], one["differs"]);
    }
    let path = folder.join("differences.json");
    fs::write(&path, serde_json::to_string(&differences)?)?;
    Ok(report(&tallies, unasked))
}

fn report(tallies: &BTreeMap<String, GrouperTally>, unasked: usize) -> bool {
    for (grouper, tally) in tallies {
        let asked = tally.same + tally.deviating + tally.different;
        println!(
            "{grouper:20} {:5} of {asked:5}  {:4} deviate",
            tally.same, tally.deviating
        );
    }
    let sum = |of: fn(&GrouperTally) -> usize| tallies.values().map(of).sum::<usize>();
    let (same, deviating, different) = (
        sum(|one| one.same),
        sum(|one| one.deviating),
        sum(|one| one.different),
    );
    let asked = same + deviating + different;
    println!(
        "{same} of {asked} answers are equal, {deviating} deviate as listed, {different} differ"
    );
    println!("{unasked} questions were not put to KAI: its types refuse the pod");
    asked > 0 && same * 100 >= (same + different) * WANTED
}
