//! Runs the policy beside KAI Scheduler itself on random clusters, and reports where the two differ.
//!
//! KAI's decisions are not written down here. A program inside a checkout of KAI makes them ([`KaiOracle`]), with the
//! session of KAI's own tests and with KAI's own actions. The program is trusted only after it reproduces the results
//! of KAI's tests.
//!
//! There are two comparisons. Apportion decides each of KAI's cycles from the same start. And each scheduler runs the
//! cluster alone until nothing changes. A difference is not an error, because some are intended
//! (docs/scheduler/fair-share.md). It is an error if Apportion leaves an entitled job waiting that KAI serves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

mod cause;
mod generate;
mod jobs;
mod kai_tests;
mod oracle;
mod pod_outcomes;
mod random;
mod remaining_capacity;
mod report;
mod scheduling_run;
mod shrink;
mod theme;
mod unserved;

use cause::DifferenceCause;
use oracle::{CycleDecision, KaiOracle};
use pod_outcomes::{DecisionDifference, PodOutcomes, decided, difference};
use report::KaiDiffReport;
use scheduling_run::{EndComparison, carry_on};
use unserved::unserved;

use crate::cases;
use crate::workspace::Workspace;

/// How often KAI is asked about a difference, to see whether it always decides the same.
const ASKED_AGAIN: usize = 10;

/// Run the policy beside KAI Scheduler itself.
#[derive(Args)]
pub(crate) struct KaiDiffOptions {
    /// A checkout of KAI Scheduler; nothing is written there (needs `go`).
    dir: PathBuf,
    /// Random clusters to compare.
    #[arg(long, default_value_t = 2_000)]
    clusters: u64,
    /// Seed of an earlier run, for the same clusters.
    #[arg(long)]
    seed: Option<u64>,
    /// Only clusters of this theme.
    #[arg(long)]
    theme: Option<String>,
    /// Instead of random clusters, those of the files in this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["clusters", "seed", "theme"])]
    cases: Option<PathBuf>,
    /// Make clusters that differ as small as possible before they are written (minutes for each).
    #[arg(long)]
    shrink: bool,
    /// Folder for the clusters that differ [default: kai-diff in the target folder].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Compares, prints the report, and writes the clusters that differ. Returns false if an entitled job is left waiting.
pub(crate) fn compare(workspace: &Workspace, options: &KaiDiffOptions) -> Result<bool> {
    let mut oracle = KaiOracle::start(workspace, &options.dir)?;
    let stated = kai_tests::validate(&mut oracle, &workspace.root)?;
    println!("KAI's own tests: {stated}");
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| workspace.target.join("kai-diff"));
    fs::create_dir_all(&out).with_context(|| format!("failed to make {}", out.display()))?;
    let mut report = KaiDiffReport::default();
    for cluster in clusters(options)? {
        let theme = cluster["features"][0].as_str().unwrap_or("cases");
        let found = compare_cluster(&mut oracle, &cluster)?;
        report.enter(theme, &found);
        for finding in &found.findings {
            println!("{finding}");
            let written = if options.shrink {
                shrink::shrink(&mut oracle, finding)?
            } else {
                finding.written()
            };
            write(&out, &finding.file(), &written)?;
        }
    }
    print!("{report}");
    println!("what differs is in {}", out.display());
    Ok(report.is_good())
}

/// The clusters to compare.
fn clusters(options: &KaiDiffOptions) -> Result<Box<dyn Iterator<Item = Value>>> {
    if let Some(folder) = &options.cases {
        let files = cases::read(folder)?;
        let cases = files.into_iter().flat_map(|file| file.cases);
        return Ok(Box::new(cases.map(|mut case| {
            case["mode"] = json!("cycle");
            case
        })));
    }
    let themes: Vec<theme::ClusterTheme> = theme::ALL
        .into_iter()
        .filter(|theme| options.theme.as_ref().is_none_or(|name| name == theme.name))
        .collect();
    ensure!(!themes.is_empty(), "there is no such theme");
    let seed = match options.seed {
        Some(seed) => seed,
        None => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    println!("seed {seed}, {} clusters", options.clusters);
    Ok(Box::new((0..options.clusters).map(move |number| {
        let theme = &themes[number as usize % themes.len()];
        generate::cluster(theme, seed.wrapping_add(number))
    })))
}

/// The comparison of one cluster.
pub(crate) struct ClusterComparison {
    /// The number of cycles, and of those in which KAI does not always decide the same.
    pub(crate) cycles: usize,
    pub(crate) undecided: usize,
    pub(crate) end: EndComparison,
    pub(crate) findings: Vec<ClusterFinding>,
}

/// A difference, with the cluster that shows it.
pub(crate) struct ClusterFinding {
    pub(crate) cluster: Value,
    pub(crate) what: FindingKind,
}

/// The kind of a difference.
pub(crate) enum FindingKind {
    /// One cycle: its number, the difference, KAI's decisions, and the cause if it is known.
    Cycle(
        usize,
        DecisionDifference,
        PodOutcomes,
        Option<DifferenceCause>,
    ),
    End(EndComparison),
    /// Entitled jobs that wait. With a cause they are not entitled, because KAI serves them by mistake.
    Unserved(Vec<unserved::UnservedJob>, Option<DifferenceCause>),
}

/// Compares one cluster, cycle by cycle and at the end.
fn compare_cluster(oracle: &mut KaiOracle, cluster: &Value) -> Result<ClusterComparison> {
    let kais = carry_on(cluster, |at| Ok(oracle.decided(at)?.tasks))?;
    let mut found = ClusterComparison {
        cycles: kais.cycles.len(),
        undecided: 0,
        end: EndComparison::Same,
        findings: Vec::new(),
    };
    for (number, (start, outcomes)) in kais.cycles.iter().enumerate() {
        let ours = decided(start)?;
        let Some(differs) = difference(outcomes, &ours) else {
            continue;
        };
        let Some(again) = asked_again(oracle, start, outcomes)? else {
            found.undecided += 1;
            continue;
        };
        let cause = DifferenceCause::asked(oracle, start, &again, &ours)?;
        found.findings.push(ClusterFinding {
            cluster: start.clone(),
            what: FindingKind::Cycle(number, differs, outcomes.clone(), cause),
        });
    }
    let ours = carry_on(cluster, decided)?;
    found.end = EndComparison::of(&ours, &kais);
    if found.end == EndComparison::Same {
        return Ok(found);
    }
    found.findings.push(ClusterFinding {
        cluster: cluster.clone(),
        what: FindingKind::End(found.end),
    });
    let waiting = unserved(oracle, &ours, &kais)?;
    let mistake = DifferenceCause::mistake(cluster);
    let kinds = [
        (waiting.starved, mistake),
        (waiting.for_moved, Some(DifferenceCause::LosesMoved)),
        (waiting.for_rounding_errors, Some(DifferenceCause::Rounds)),
        (waiting.for_broken, Some(DifferenceCause::BreaksGang)),
        (
            waiting.for_overlooked,
            Some(DifferenceCause::AboveCommonDomain),
        ),
    ];
    for (jobs, mistake) in kinds.into_iter().filter(|(jobs, _)| !jobs.is_empty()) {
        found.findings.push(ClusterFinding {
            cluster: cluster.clone(),
            what: FindingKind::Unserved(jobs, mistake),
        });
    }
    Ok(found)
}

/// What KAI decides when it is asked again; `None` if that is not always the same.
fn asked_again(
    oracle: &mut KaiOracle,
    start: &Value,
    before: &PodOutcomes,
) -> Result<Option<CycleDecision>> {
    for _ in 1..ASKED_AGAIN {
        if difference(before, &oracle.decided(start)?.tasks).is_some() {
            return Ok(None);
        }
    }
    let last = oracle.decided(start)?;
    Ok(difference(before, &last.tasks).is_none().then_some(last))
}

impl ClusterFinding {
    fn id(&self) -> &str {
        self.cluster["id"].as_str().unwrap_or("cluster")
    }

    /// The name of its file.
    fn file(&self) -> String {
        let kind = match &self.what {
            FindingKind::Cycle(number, ..) => format!("cycle{number}"),
            FindingKind::End(_) => "end".to_owned(),
            FindingKind::Unserved(..) => "unserved".to_owned(),
        };
        format!("{}-{kind}.json", self.id().replace([':', '/'], "-"))
    }

    /// The cluster, with KAI's decisions as the expected ones.
    fn written(&self) -> Value {
        let mut written = self.cluster.clone();
        if let FindingKind::Cycle(_, _, outcomes, _) = &self.what {
            written["expected"] = expected(outcomes);
        }
        written
    }
}

/// The expectations of a scenario in which KAI's decisions are right.
pub(crate) fn expected(outcomes: &PodOutcomes) -> Value {
    let tasks: BTreeMap<&String, Value> = outcomes
        .iter()
        .map(|(task, pod_outcome)| {
            let mut expected = json!({"status": pod_outcome.status});
            if let Some(node) = &pod_outcome.node {
                expected["node"] = json!(node);
            }
            (task, expected)
        })
        .collect();
    json!({ "tasks": tasks })
}

impl std::fmt::Display for ClusterFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.id())?;
        match &self.what {
            FindingKind::Cycle(number, differs, _, cause) => {
                let what = match differs {
                    DecisionDifference::Node => "node",
                    DecisionDifference::Fate => "fate",
                };
                let cause = cause.map_or("not explained", DifferenceCause::words);
                write!(f, "another {what} in cycle {} ({cause})", number + 1)
            }
            FindingKind::End(end) => write!(f, "the end: {}", end.words()),
            FindingKind::Unserved(jobs, mistake) => {
                let jobs = jobs.iter().map(|(job, why)| format!("{job} ({why:?})"));
                let jobs: Vec<String> = jobs.collect();
                let jobs = jobs.join(", ");
                match mistake {
                    Some(mistake) => write!(f, "not entitled: {jobs} ({})", mistake.words()),
                    None => write!(f, "UNSERVED: {jobs}"),
                }
            }
        }
    }
}

fn write(folder: &Path, name: &str, cluster: &Value) -> Result<()> {
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(&json!([cluster]))?;
    fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
}

/// Runs the comparison. An entitled job that is left waiting is an error.
pub(crate) fn run(workspace: &Workspace, options: &KaiDiffOptions) -> Result<()> {
    if !compare(workspace, options)? {
        bail!("a job that is entitled to its place waits, and KAI starts it");
    }
    Ok(())
}
