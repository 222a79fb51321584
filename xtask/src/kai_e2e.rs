//! `cargo xtask cluster kai-e2e DIR`: KAI's own end-to-end suite, unchanged, on a cluster with Apportion in place of
//! KAI.
//!
//! DIR is a checkout of KAI; nothing of it is copied. The chart runs in real pods on the node with the kubelet. The
//! suite's pods are placed on nodes with real agents and simulated GPUs, where a stand-in reports that they run. If a
//! spec of an ordered container fails, Ginkgo skips the rest. These specs are run again without it, so that each spec
//! counts for itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use apportion_cluster::LocalCluster;
use clap::Args;

use crate::workspace::Workspace;

mod chart;
mod known_failures;
mod operators;
mod place;
mod report;
mod suite;
mod table;

use suite::E2eSuite;

/// Options of `cargo xtask cluster kai-e2e`.
#[derive(Args)]
pub(crate) struct KaiE2eOptions {
    /// A checkout of KAI Scheduler.
    dir: PathBuf,
    /// Run only the suites whose folder contains this, such as allocate/quota; can be repeated. `scale` and the folders
    /// of `suites` are there.
    #[arg(long, value_name = "TEXT")]
    suite: Vec<String>,
    /// How long a spec waits for one thing, in seconds. KAI waits 300; with less, a spec fails sooner.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=300))]
    patience: u32,
    /// How many nodes with GPUs a new cluster has. KAI's usual test cluster has 4; one spec needs 8.
    #[arg(long, value_name = "NODES", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    gpu_nodes: u8,
    /// Leave the cluster running, for another run or to look at it.
    #[arg(long)]
    keep: bool,
    /// Print the table of the last run of each suite, and run nothing.
    #[arg(long, conflicts_with_all = ["suite", "keep"])]
    table: bool,
    /// Write the table into docs/development/kai-e2e.md, too.
    #[arg(long)]
    update: bool,
}

impl KaiE2eOptions {
    /// Whether no cluster is needed.
    pub(crate) fn only_prints(&self) -> bool {
        self.table
    }

    /// Whether to keep the cluster.
    pub(crate) fn keeps(&self) -> bool {
        self.keep
    }
}

/// Runs the suites on `cluster` and prints the table. The exit code says whether each spec that did not pass has a
/// reason.
pub(crate) fn run(
    workspace: &Workspace,
    cluster: &mut LocalCluster,
    options: &KaiE2eOptions,
) -> Result<ExitCode> {
    let results = results(workspace);
    let suites: Vec<E2eSuite> = find(&options.dir)?
        .into_iter()
        .filter(|suite| {
            let mut wanted = options.suite.iter();
            options.suite.is_empty() || wanted.any(|wanted| suite.folder.contains(wanted.as_str()))
        })
        .collect();
    ensure!(!suites.is_empty(), "no suite of KAI has such a folder");
    place::prepare(workspace, cluster, &options.dir, options.gpu_nodes.into())?;
    let built = workspace.target.join("kai-e2e/programs");
    for suite in &suites {
        let program = suite.build(&options.dir, &built, options.patience)?;
        let specs = if known_failures::not_run(&suite.folder) {
            suite.list(&program, &results)?
        } else {
            suite.run(&program, cluster, &results)?
        };
        report::write(&results, &suite.folder, &specs)?;
        println!("{}: {}", suite.folder, table::count(&specs));
    }
    show(workspace, options)
}

/// Prints the table of the existing results.
pub(crate) fn show(workspace: &Workspace, options: &KaiE2eOptions) -> Result<ExitCode> {
    let mut all = Vec::new();
    for suite in find(&options.dir)? {
        if let Some(specs) = report::read(&results(workspace), &suite.folder)? {
            all.push((suite.folder, specs));
        }
    }
    let text = table::of(&all);
    println!("\n{text}");
    if options.update {
        table::update(&workspace.root.join("docs/development/kai-e2e.md"), &text)?;
    }
    let unexplained = table::unexplained(&all);
    for line in &unexplained {
        println!("no reason is listed: {line}");
    }
    Ok(if unexplained.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn results(workspace: &Workspace) -> PathBuf {
    workspace.target.join("kai-e2e/results")
}

fn find(dir: &Path) -> Result<Vec<E2eSuite>> {
    let dir = dir.join("test/e2e");
    let suites = suite::below(&dir)?;
    ensure!(
        !suites.is_empty(),
        "{} has no suites; hint: name a checkout of KAI Scheduler",
        dir.display()
    );
    Ok(suites)
}

/// The absolute path, for programs that run in another folder.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("failed to find {}", path.display()))
}
