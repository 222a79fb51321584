//! `cargo xtask cluster test`: the suites that need a cluster.
//!
//! Suites share the node of their cluster, so each cluster runs one at a time. They mostly wait, for a kubelet that
//! looks once a second and for programs that start and end. So a run of all suites uses a second cluster beside the
//! first, and takes little more than half of the time.

use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use apportion_cluster::{ClusterFolder, ClusterState, LocalCluster};

use super::{ClusterOptions, bring_up, end};
use crate::steps::run;
use crate::test_programs::{self, ProgramSetup, TestProgram};
use crate::workspace::Workspace;

/// The variable that tells the suites of a running cluster.
const CLUSTER: &str = "APPORTION_CLUSTER";
/// The packages of the suites, and the features to build them with.
const SUITES: &str = "apportion-cluster";
const SCHEDULER: &str = "apportion-tests";
const FEATURES: &str = "apportion-cluster/suites,apportion-tests/control-plane";
/// The suites that take a minute or more, the longest first. They run first, so that none of them is left for the end.
const LONG: &[&str] = &[
    "dra",
    "attacks",
    "examples",
    "takeover",
    "chart",
    "crowd",
    "artefacts",
    "install",
    "idle",
    "elastic",
    "delivery",
];

/// What to run the suites with.
pub(super) struct SuiteRun<'a> {
    pub(super) workspace: &'a Workspace,
    pub(super) folder: &'a ClusterFolder,
    pub(super) shape: &'a ClusterOptions,
    pub(super) args: &'a [String],
}

/// The suites that were built.
struct BuiltSuites {
    of_cluster: Vec<TestProgram>,
    /// The scheduler's suite starts its own API servers and needs no cluster.
    scheduler: Option<TestProgram>,
}

impl SuiteRun<'_> {
    /// Runs the suites with these names, or all. Stops the clusters that were started for them.
    pub(super) fn test(&self, names: &[String]) -> Result<()> {
        let suites = self.build(names)?;
        let failed = if names.is_empty() {
            self.run_all(&suites)?
        } else {
            self.run_named(&suites)?
        };
        if failed.is_empty() {
            Ok(())
        } else {
            bail!("failed: {}", failed.join(", "))
        }
    }

    fn build(&self, names: &[String]) -> Result<BuiltSuites> {
        let mut cargo = self.workspace.cargo();
        cargo.args(["test", "--workspace", "--features", FEATURES]);
        match names {
            [] => cargo.arg("--tests"),
            _ => cargo.args(names.iter().flat_map(|name| ["--test", name.as_str()])),
        };
        let built = test_programs::build(&mut cargo)?;
        let mut suites = BuiltSuites {
            of_cluster: Vec::new(),
            scheduler: None,
        };
        for program in built {
            if program.package == SUITES {
                suites.of_cluster.push(program);
            } else if program.package == SCHEDULER && program.target == "scheduler" {
                suites.scheduler = Some(program);
            }
        }
        let known = || suites.of_cluster.iter().chain(&suites.scheduler);
        if let Some(other) = names
            .iter()
            .find(|name| !known().any(|program| program.target == **name))
        {
            bail!("{other} needs no cluster; hint: cargo test --workspace --test {other}");
        }
        if names.is_empty() && suites.scheduler.is_none() {
            bail!("no test suite of the scheduler was found");
        }
        Ok(suites)
    }

    /// Runs a few suites one after another, with their output as it comes. Returns those that failed.
    fn run_named(&self, suites: &BuiltSuites) -> Result<Vec<String>> {
        let starts_one = !suites.of_cluster.is_empty() && !is_up(self.folder);
        if starts_one {
            bring_up(self.workspace, self.folder, self.shape)?;
        }
        let mut failed = Vec::new();
        for program in suites.of_cluster.iter().chain(&suites.scheduler) {
            println!("\n     Running {} {}", program.package, program.target);
            let begun = Instant::now();
            let mut command = program.command();
            if suites.of_cluster.is_empty() {
                // Two tests at once are enough for a small machine.
                command.arg("--test-threads=2");
            }
            self.prepare(&mut command, self.folder);
            if run(&mut command).is_err() {
                failed.push(program.target.clone());
            }
            let took = begun.elapsed().as_secs_f64();
            println!(
                "     {} {} took {took:.1} s",
                program.package, program.target
            );
        }
        if starts_one {
            end(self.folder)?;
        }
        Ok(failed)
    }

    /// Runs all suites on two clusters, and the scheduler's beside them. Returns those that failed.
    fn run_all(&self, suites: &BuiltSuites) -> Result<Vec<String>> {
        let second = second_folder(self.folder)?;
        let mut started = Vec::new();
        for folder in [self.folder, &second] {
            if is_up(folder) {
                continue;
            }
            if let Err(error) = bring_up(self.workspace, folder, self.shape) {
                started.into_iter().try_for_each(end)?;
                return Err(error);
            }
            started.push(folder);
        }
        let on_first = |command: &mut Command| self.prepare(command, self.folder);
        let on_second = |command: &mut Command| self.prepare(command, &second);
        let alone = |command: &mut Command| {
            command.arg("--test-threads=1");
            self.prepare(command, self.folder);
        };
        let lanes: [&ProgramSetup<'_>; 2] = [&on_first, &on_second];
        let alone: &ProgramSetup<'_> = &alone;
        let scheduler: Vec<_> = suites.scheduler.iter().collect();
        let (mut failed, of_scheduler) = thread::scope(|scope| {
            let beside = scope.spawn(|| test_programs::run_in_lanes(&scheduler, &[alone]).1);
            let failed = test_programs::run_in_lanes(&in_order(&suites.of_cluster), &lanes).1;
            let of_scheduler = beside.join();
            (
                failed,
                of_scheduler.unwrap_or_else(|_| vec![SCHEDULER.to_owned()]),
            )
        });
        failed.extend(of_scheduler);
        started.into_iter().try_for_each(end)?;
        Ok(failed)
    }

    fn prepare(&self, command: &mut Command, folder: &ClusterFolder) {
        command.args(self.args).env(CLUSTER, folder.path()).env(
            "APPORTION_STAGED",
            self.workspace.staged(self.shape.release),
        );
    }
}

/// The folder of the second cluster.
pub(super) fn second_folder(first: &ClusterFolder) -> Result<ClusterFolder> {
    let mut path = first.path().as_os_str().to_owned();
    path.push("-2");
    ClusterFolder::new(path.as_ref())
}

fn is_up(folder: &ClusterFolder) -> bool {
    LocalCluster::at(folder).is_some_and(|cluster| cluster.state() == ClusterState::Up)
}

/// The long suites first.
fn in_order(programs: &[TestProgram]) -> Vec<&TestProgram> {
    let mut all: Vec<_> = programs.iter().collect();
    all.sort_by_key(|program| {
        let place = LONG.iter().position(|name| *name == program.target);
        place.unwrap_or(LONG.len())
    });
    all
}
