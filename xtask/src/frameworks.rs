//! `cargo xtask frameworks`: unmodified frameworks from PyPI as clients of the simulated driver, each without a limit
//! and with one.
//!
//! The programs under `tests/frameworks/programs` contain the checks. This module creates the environments that they
//! need ([`environments`]), runs them on simulated machines ([`machine`]), asks the driver for their peak memory, and
//! prints one table ([`table`]). A framework that is not available is left out, with the reason. That is a failure only
//! in CI, and only if it was named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::clients;
use crate::stage;
use crate::workspace::Workspace;

mod cases;
mod environments;
mod machine;
mod output;
mod run;
mod table;

use cases::{FRAMEWORKS, FrameworkCase};
use environments::PythonEnvironments;
use machine::FrameworkMachine;
use run::{FrameworkOutcome, LimitMode};
use table::FrameworkRow;

/// The variable that names a staged tree to use unchanged, as for the process suites.
const STAGED: &str = "APPORTION_STAGED";

/// Which frameworks to run, and where to write the table.
#[derive(Args)]
pub(crate) struct FrameworkOptions {
    /// Frameworks to run, by their names in `--list` [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// List the frameworks and their requirements, and exit
    #[arg(long)]
    list: bool,
    /// Also write the table to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Run only programs whose title contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// Runs the frameworks and prints the table. Fails if a check failed.
pub(crate) fn perform(workspace: &Workspace, options: &FrameworkOptions) -> Result<ExitCode> {
    if let Some(name) = options
        .names
        .iter()
        .find(|name| !FRAMEWORKS.iter().any(|framework| framework.name == *name))
    {
        bail!("there is no framework {name:?}; hint: `cargo xtask frameworks --list`");
    }
    if options.list {
        print!("{}", table::list());
        return Ok(ExitCode::SUCCESS);
    }
    let staged = match std::env::var_os(STAGED) {
        Some(staged) => staged.into(),
        None => stage::build(workspace, false)?,
    };
    let environments = PythonEnvironments::new(workspace, &staged);
    let mut report = FrameworkReport::default();
    for framework in FRAMEWORKS {
        let is_named = options.names.iter().any(|name| name == framework.name);
        if !(is_named || options.names.is_empty()) {
            continue;
        }
        if let Err(missing) = environments.make_all(framework) {
            report
                .left_out
                .push(format!("left out: {} ({missing:#})", framework.name));
            report.failed += u64::from(is_named && clients::must_be_complete());
            continue;
        }
        for case in framework
            .cases
            .iter()
            .filter(|case| case.title.contains(&options.only))
        {
            report.add(both(&staged, &environments, case)?);
        }
    }
    let text = report.text();
    if let Some(file) = &options.markdown {
        fs::write(file, &text).with_context(|| format!("failed to write {}", file.display()))?;
    }
    print!("{text}");
    Ok(if report.failed == 0 && report.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs a case without a limit, and then with one.
fn both(
    staged: &Path,
    environments: &PythonEnvironments,
    case: &'static FrameworkCase,
) -> Result<Vec<FrameworkRow>> {
    let plain = one(staged, environments, case, LimitMode::Plain)?;
    let limited = one(staged, environments, case, LimitMode::Limited)?;
    let pairs = case.members.iter().zip(plain.into_iter().zip(limited));
    Ok(pairs
        .map(|(member, (plain, limited))| FrameworkRow::new(case, member, plain, limited))
        .collect())
}

/// Each mode gets its own machine, so that nothing that one leaves behind disturbs the other.
fn one(
    staged: &Path,
    environments: &PythonEnvironments,
    case: &'static FrameworkCase,
    mode: LimitMode,
) -> Result<Vec<FrameworkOutcome>> {
    let mut machine = FrameworkMachine::start(staged, case.card_mib << 20)?;
    run::case(&mut machine, environments, case, mode)
}

/// The rows and their sums.
#[derive(Default)]
struct FrameworkReport {
    rows: Vec<FrameworkRow>,
    left_out: Vec<String>,
    passed: u64,
    failed: u64,
}

impl FrameworkReport {
    fn add(&mut self, rows: Vec<FrameworkRow>) {
        for row in rows {
            let (passed, failed) = row.count();
            self.passed += passed;
            self.failed += failed;
            self.rows.push(row);
        }
    }

    /// The table, the failed checks, what was left out, and the sums.
    fn text(&self) -> String {
        let mut text = table::of(&self.rows);
        for line in self
            .rows
            .iter()
            .flat_map(FrameworkRow::failures)
            .chain(self.left_out.iter().cloned())
        {
            text.push_str(&format!("\n{line}\n"));
        }
        text.push_str(&format!(
            "\n{} passed, {} failed\n",
            self.passed, self.failed
        ));
        text
    }
}
