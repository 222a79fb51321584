//! KAI itself, as a program that decides one cluster at a time.
//!
//! The program's sources are in `xtask/kai-diff`. Go builds them as a part of the checkout (`-overlay`). So they can
//! use KAI's packages, and nothing is written into the checkout.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use apportion_cluster::operators::KaiCheckout;
use serde::Deserialize;
use serde_json::{Value, json};

use super::pod_outcomes::PodOutcomes;
use crate::steps::run;
use crate::workspace::Workspace;

/// Our sources, and their package in the tree that Go builds.
const SOURCES: &str = "xtask/kai-diff";
const PACKAGE: &str = "cmd/apportion-oracle";

/// A running oracle. It ends when its standard input is closed.
pub(crate) struct KaiOracle {
    program: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What KAI decides in one cycle.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CycleDecision {
    /// The outcome of each pod.
    pub(crate) tasks: PodOutcomes,
    /// The pods that were placed in the cycle and lost their place again.
    pub(crate) taken_back: Vec<String>,
    /// The pods that were evicted more than once.
    pub(crate) evicted_twice: Vec<String>,
}

/// The program's answer for one cluster.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OracleAnswer {
    Decided(CycleDecision),
    /// Why the fixtures of KAI's tests can't express the cluster.
    Cannot(String),
    /// The error of KAI.
    Error(String),
}

impl KaiOracle {
    /// Builds the program in a checkout of KAI and starts it.
    pub(crate) fn start(workspace: &Workspace, checkout: &Path) -> Result<Self> {
        let checkout = KaiCheckout::at(checkout)?;
        let checkout = checkout.path();
        let built = workspace.target.join("kai-diff");
        fs::create_dir_all(&built)?;
        let program = built.join("oracle");
        let overlay = built.join("overlay.json");
        let replace = overlaid(&workspace.root.join(SOURCES), &checkout.join(PACKAGE))?;
        fs::write(&overlay, json!({ "Replace": replace }).to_string())?;
        let mut build = Command::new("go");
        build
            .args(["build", "-overlay"])
            .arg(&overlay)
            .arg("-o")
            .arg(&program)
            .arg(format!("./{PACKAGE}"))
            .current_dir(checkout);
        run(&mut build).context("failed to build the oracle; it needs Go")?;
        let mut program = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the oracle")?;
        let questions = program.stdin.take();
        let answers = program
            .stdout
            .take()
            .context("the oracle has no standard output")?;
        Ok(Self {
            program,
            questions,
            answers: BufReader::new(answers),
        })
    }

    /// Asks KAI about one cluster.
    pub(crate) fn ask(&mut self, cluster: &Value) -> Result<OracleAnswer> {
        let questions = self
            .questions
            .as_mut()
            .context("the oracle has no standard input")?;
        writeln!(questions, "{cluster}").context("the oracle has ended")?;
        questions.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the oracle has ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// KAI's decisions for a cluster that its fixtures must be able to express.
    pub(crate) fn decided(&mut self, cluster: &Value) -> Result<CycleDecision> {
        match self.ask(cluster)? {
            OracleAnswer::Decided(decided) => Ok(decided),
            OracleAnswer::Cannot(what) => {
                bail!("KAI's fixtures can't express {}: {what}", cluster["id"])
            }
            OracleAnswer::Error(what) => bail!("KAI failed on {}: {what}", cluster["id"]),
        }
    }
}

impl Drop for KaiOracle {
    fn drop(&mut self) {
        self.questions = None;
        // The exit status adds nothing to the answers.
        let _ended = self.program.wait();
    }
}

/// Where each of our files is in the tree that Go builds.
fn overlaid(sources: &Path, package: &Path) -> Result<BTreeMap<String, String>> {
    let files = fs::read_dir(sources)
        .with_context(|| format!("failed to read {}", sources.display()))?
        .collect::<std::io::Result<Vec<_>>>()?;
    let of_go = files
        .iter()
        .filter(|file| file.path().extension() == Some("go".as_ref()));
    let text = |path: &Path| path.display().to_string();
    Ok(of_go
        .map(|file| (text(&package.join(file.file_name())), text(&file.path())))
        .collect())
}
