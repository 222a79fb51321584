//! The commands to build, explore, test and install Apportion.
//!
//! Cargo builds crates one by one. What runs is a tree of programs together with the libraries that they preload or
//! that stand in for others. Only this program knows how to assemble that tree ([`stage`]). Every other task starts
//! from it, so that a test, the demo and an installation run the same files.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;
use apportion_image::Platform;
use clap::Parser;

mod autoscaler;
mod cases;
mod chart;
mod clients;
mod cluster;
mod compare;
mod cross;
mod deviations;
mod docs;
mod drivers;
mod emulated;
mod frameworks;
mod fuzz;
mod gpu_pack;
mod image;
mod kai_diff;
mod kai_e2e;
mod kai_groups;
mod lint;
mod oracle_pod_groups;
mod oracles;
mod release;
mod scenarios;
mod soak;
mod stage;
mod steps;
mod suites;
mod tally;
mod test_programs;
mod workspace;

use cases::{CaseOptions, CaseSuite};
use deviations::KnownDeviations;
use gpu_pack::BuildProfile;
use steps::run;
use workspace::Workspace;

/// The cases that do not pass, and why.
const DEVIATIONS: &str = "scheduler-shim/policy/deviations.json";

/// Build, run, test and install Apportion.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", version, disable_help_subcommand = true)]
enum XtaskCommand {
    /// Build everything into target/apportion, or target/apportion-release.
    Build {
        /// Build with optimisation (the preload library always is).
        #[arg(long)]
        release: bool,
        /// Build for another platform, into target/cross: aarch64-unknown-linux-gnu or x86_64-unknown-linux-gnu.
        #[arg(long, value_name = "TRIPLE", default_value_t = Platform::HOST, hide_default_value = true)]
        target: Platform,
    },
    /// Run the demonstration: on a real GPU if there is a driver, else on a simulated one.
    Demo {
        /// Arguments for `apportion demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run a real Kubernetes cluster on this machine, with simulated GPUs.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Run every test that needs neither a GPU nor a cluster.
    Test {
        /// Run what a pull request needs: skip the long suites, the account pages under loom and the clients
        /// from PyPI.
        #[arg(long)]
        quick: bool,
        /// Test programs to run at the same time [default: the number of processors].
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
        jobs: Option<u32>,
        /// Instead, test the preloaded library for another platform, under QEMU: aarch64-unknown-linux-gnu.
        #[arg(long, value_name = "TRIPLE", conflicts_with_all = ["quick", "jobs"])]
        target: Option<Platform>,
        /// Arguments for the test programs, such as a test name.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run frameworks from PyPI on the simulated driver, with and without a limit, and print a table.
    Frameworks(frameworks::FrameworkOptions),
    /// Fetch NVIDIA's driver libraries and compare their answers with and without Apportion; needs no GPU.
    Drivers {
        /// Driver branches, such as 535 [default: all of Debian's that have cuGetProcAddress].
        branches: Vec<String>,
    },
    /// Build the book from docs/ with `mdbook`.
    Docs(docs::DocsOptions),
    /// Check formatting, lints, documentation, licences and advisories.
    Lint,
    /// Check the Helm chart, the plain manifests and the alerts (needs `helm` and `promtool`).
    Chart {
        /// Write the plain manifests again.
        #[arg(long)]
        update: bool,
        /// Instead, write the chart as a package into this folder.
        #[arg(long, value_name = "FOLDER", conflicts_with = "update")]
        package: Option<PathBuf>,
        /// Values with the images that the package names: images.json of `cargo xtask image`.
        #[arg(long, value_name = "FILE", requires = "package")]
        images: Option<PathBuf>,
    },
    /// Build the container images of the chart with optimisation, as files for `docker load`,
    /// `ctr images import` and `kind load image-archive`. Each has its bill of materials (CycloneDX) beside it, and
    /// images.json has the chart's values with their digests.
    Image {
        /// Folder for the files.
        #[arg(long, default_value = "target/images")]
        out: PathBuf,
        /// Where the images will be pushed, such as ghcr.io/NAME: images.json names them there.
        #[arg(long, default_value = "apportion")]
        registry: String,
        /// Platforms to build for, with commas between [default: this machine's]. Several are in one file with an
        /// image index.
        #[arg(long, value_name = "TRIPLES", value_delimiter = ',', default_value = Platform::HOST.triple(), hide_default_value = true)]
        target: Vec<Platform>,
    },
    /// Make the files of a release: images and their bills of materials, the preload library, the kubectl plugin, the
    /// chart, checksums, and the script that publishes them. Checks first that tag, version and changelog agree.
    Release(release::ReleaseOptions),
    /// Build the pack for tests on a machine with a GPU, with optimisation: one folder of at most 60 MiB with programs,
    /// libraries and the script that runs them.
    GpuPack {
        /// Folder of the pack; an old pack is replaced [default: gpu-pack in the target folder].
        #[arg(long)]
        out: Option<PathBuf>,
        /// Build without optimisation and skip the size check, for tests on this machine.
        #[arg(long)]
        debug: bool,
    },
    /// Run the benchmarks and print ratios.
    Bench {
        /// One section (calls, contention, starts, elastic), one file of `benches/benches` (such as claims), or `api` with
        /// its arguments: the scheduler on a real API server, whose programs `cargo xtask cluster up` builds.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Compare Apportion with other libraries that limit GPU memory, on the simulated driver.
    Compare(compare::CompareOptions),
    /// Run scheduling scenarios: our own and those made of KAI's tests, or those of a folder.
    Scenarios(CaseOptions),
    /// Run the policy beside KAI Scheduler itself, on random clusters, and report where the two differ.
    KaiDiff(kai_diff::KaiDiffOptions),
    /// Check the promises of the policy on random clusters, step by step.
    Soak {
        /// Clusters to check each promise on.
        #[arg(long, default_value_t = 8_000)]
        cases: u32,
        /// Seed of an earlier run, for the same clusters.
        #[arg(long)]
        seed: Option<u64>,
        /// Instead, run this many steps of the scheduler's model alone.
        #[arg(long, value_name = "STEPS", conflicts_with = "api")]
        model: Option<u64>,
        /// Instead, run this many steps of the scheduler and agents on a real API server, as fast as the server
        /// allows.
        #[arg(long, value_name = "STEPS")]
        api: Option<u64>,
    },
    /// Fuzz everything that reads what strangers write, with libFuzzer (needs a C++ compiler).
    Fuzz(fuzz::FuzzOptions),
    /// Ask the policy's rules single questions, and compare with KAI's answers.
    Oracles(CaseOptions),
    /// Ask KAI's own pod grouper and ours the same random questions, and compare the answers.
    KaiGroups(kai_groups::KaiGroupsOptions),
    /// Ask an unmodified Cluster Autoscaler how many nodes waiting shares need, from none, and whether they go again.
    Autoscaler(autoscaler::AutoscalerOptions),
    /// Build with optimisation and install the programs and libraries.
    Install {
        /// Folder for `bin` and `lib/apportion`.
        #[arg(long, default_value = "/usr/local")]
        prefix: PathBuf,
    },
}

fn main() -> ExitCode {
    match perform(XtaskCommand::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: XtaskCommand) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match task {
        XtaskCommand::Build { release, target } => {
            let staged = stage::build(&workspace.for_platform(target)?, release)?;
            println!("{}", staged.display());
        }
        XtaskCommand::Demo { args } => {
            let staged = stage::build(&workspace, false)?;
            run(Command::new(staged.join("bin/apportion"))
                .arg("demo")
                .args(args))?;
        }
        XtaskCommand::Cluster(task) => return cluster::perform(&workspace, task),
        XtaskCommand::Fuzz(options) => return fuzz::perform(&workspace, &options),
        XtaskCommand::Frameworks(options) => return frameworks::perform(&workspace, &options),
        XtaskCommand::Test {
            target: Some(target),
            args,
            ..
        } => return emulated::test(&workspace, target, &args),
        XtaskCommand::Test {
            quick, jobs, args, ..
        } => return suites::test(&workspace, quick, jobs, &args),
        XtaskCommand::Compare(options) => compare::run(&workspace, &options)?,
        XtaskCommand::Drivers { branches } => return drivers::compare(&workspace, &branches),
        XtaskCommand::Docs(options) => docs::perform(&workspace, &options)?,
        XtaskCommand::Lint => lint::check(&workspace)?,
        XtaskCommand::Chart {
            update,
            package: None,
            ..
        } => chart::check(&workspace, update)?,
        XtaskCommand::Chart {
            package: Some(folder),
            images,
            ..
        } => chart::package(&workspace, &folder, images.as_deref())?,
        XtaskCommand::Soak {
            cases,
            seed,
            model,
            api,
        } => soak::run(&workspace, soak::SoakTarget::of(cases, model, api), seed)?,
        XtaskCommand::Bench { args } => suites::bench(&workspace, &args)?,
        XtaskCommand::Scenarios(options) => return ask(&workspace, &scenarios::SUITE, &options),
        XtaskCommand::KaiGroups(options) => {
            let is_fine = kai_groups::run(&workspace, &options)?;
            return Ok(if is_fine {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        XtaskCommand::Autoscaler(options) => {
            let is_fine = autoscaler::run(&workspace, &options)?;
            return Ok(if is_fine {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        XtaskCommand::Oracles(options) => return ask(&workspace, &oracles::SUITE, &options),
        XtaskCommand::KaiDiff(options) => kai_diff::run(&workspace, &options)?,
        XtaskCommand::Image {
            out,
            registry,
            target,
        } => image::make(&workspace, &target, &out, &registry)?,
        XtaskCommand::Release(options) => release::perform(&workspace, &options)?,
        XtaskCommand::GpuPack { out, debug } => {
            let profile = if debug {
                BuildProfile::Debug
            } else {
                BuildProfile::Release
            };
            let out = out.unwrap_or_else(|| workspace.target.join("gpu-pack"));
            gpu_pack::make(&workspace, profile, &out)?;
        }
        XtaskCommand::Install { prefix } => {
            let staged = stage::build(&workspace, true)?;
            stage::install(&staged, &prefix)?;
            println!("{}", prefix.join("bin/apportion").display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs cases. The exit code is a failure if a case fails that is not listed as a deviation.
fn ask(workspace: &Workspace, suite: &CaseSuite, options: &CaseOptions) -> Result<ExitCode> {
    let listed = KnownDeviations::read(&workspace.root.join(DEVIATIONS))?;
    Ok(if suite.run(&workspace.root, options, &listed)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
