//! Compares Apportion with other libraries that limit GPU memory, on one simulated driver: which bypasses work, what a
//! call costs, and what is left after kills and invalid arguments.
//!
//! The programs are in `tests/compare/programs`; each takes memory in one way. The driver says what they held, because
//! no library can change that. The other libraries are built from checkouts that the user names. Without them the
//! columns are a program without any library and one with Apportion, and the result is checked against the
//! documentation.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::stage;
use crate::workspace::Workspace;

mod build;
mod bypasses;
mod costs;
mod invalid_arguments;
mod kills;
mod machine;
mod memory_limiter;
mod other_libraries;
mod races;
mod report;
mod side_effects;
mod timeout;

use memory_limiter::MemoryLimiter;
use report::CompareReport;

/// What to compare, and where to write the result.
#[derive(Args, Debug)]
pub(crate) struct CompareOptions {
    /// A checkout of Project-HAMi/HAMi-core
    #[arg(long, value_name = "DIR")]
    hami_core: Option<PathBuf>,
    /// A checkout of coldzerofear/vgpu-manager
    #[arg(long, value_name = "DIR")]
    vgpu_manager: Option<PathBuf>,
    /// Run for about a minute: each way once, fewer races, kills and nonsense arguments, no costs
    #[arg(long)]
    quick: bool,
    /// Run only these sections
    #[arg(long, value_name = "SECTION")]
    only: Vec<CompareSection>,
    /// Also write the tables to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// One table of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CompareSection {
    /// Ways round a limit
    Ways,
    /// Processes and threads that take memory at the same time
    Races,
    /// What a call costs
    Costs,
    /// Starting
    Starts,
    /// Killing
    Kills,
    /// Nonsense arguments
    Harm,
    /// What a library leaves as it was
    Manners,
}

type CompareFunction = fn(&CompareSetup, &mut CompareReport) -> Result<()>;

/// The tables in order.
const SECTIONS: [(CompareSection, CompareFunction); 7] = [
    (CompareSection::Ways, bypasses::compare),
    (CompareSection::Races, races::compare),
    (CompareSection::Costs, costs::compare_calls),
    (CompareSection::Starts, costs::compare_starts),
    (CompareSection::Kills, kills::compare),
    (CompareSection::Harm, invalid_arguments::compare),
    (CompareSection::Manners, side_effects::compare),
];

/// What every section needs.
struct CompareSetup {
    contenders: Vec<MemoryLimiter>,
    programs: build::ComparePrograms,
    staged: PathBuf,
    is_quick: bool,
}

impl CompareSetup {
    /// The names of the columns.
    fn columns(&self) -> impl Iterator<Item = String> {
        self.contenders
            .iter()
            .map(|contender| contender.name().to_owned())
    }
}

/// Runs the comparison. A result that contradicts the documentation is an error.
pub(crate) fn run(workspace: &Workspace, options: &CompareOptions) -> Result<()> {
    let staged = stage::build(workspace, false)?;
    let folder = workspace.target.join("compare");
    let programs = build::programs(workspace, &staged, &folder)?;
    let mut contenders = vec![MemoryLimiter::Plain, MemoryLimiter::Apportion];
    if let Some(checkout) = &options.hami_core {
        contenders.push(other_libraries::hami_core(
            workspace, &staged, checkout, &folder,
        )?);
    }
    if let Some(checkout) = &options.vgpu_manager {
        contenders.push(other_libraries::vgpu_manager(
            workspace, &staged, checkout, &folder,
        )?);
    }
    let setting = CompareSetup {
        contenders,
        programs,
        staged,
        is_quick: options.quick,
    };
    let mut report = CompareReport::default();
    for (section, compare) in SECTIONS {
        let is_wanted = options.only.is_empty() || options.only.contains(&section);
        // Costs take minutes, and the benches hold our own to a budget.
        let is_slow = matches!(section, CompareSection::Costs | CompareSection::Starts);
        if is_wanted && !(is_slow && options.quick) {
            compare(&setting, &mut report)?;
        }
    }
    if let Some(file) = &options.markdown {
        fs::write(file, report.markdown())
            .with_context(|| format!("failed to write {}", file.display()))?;
    }
    match report.surprises() {
        [] => Ok(()),
        surprises => bail!(
            "Apportion did other than docs/comparison.md says: {}",
            surprises.join("; ")
        ),
    }
}
