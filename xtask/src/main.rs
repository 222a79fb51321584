//! What a person types to build, see, test and install Apportion.
//!
//! Cargo builds crates one by one; what runs is a tree of programs beside the libraries that they
//! preload or stand in for. Only this program knows how that tree is put together ([`stage`]), and
//! every other task starts from it, so that a test, the demo and an installation run the same files.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Parser;

mod cases;
mod chart;
mod clients;
mod cluster;
mod compare;
mod deviations;
mod docs;
mod drivers;
mod frameworks;
mod gpu_pack;
mod lint;
mod oracle_pod_groups;
mod oracles;
mod scenarios;
mod soak;
mod stage;
mod steps;
mod suites;
mod tally;
mod test_programs;
mod workspace;

use cases::{Options, Suite};
use deviations::Deviations;
use gpu_pack::Profile;
use steps::run;
use workspace::Workspace;

/// What is not passed, and why.
const DEVIATIONS: &str = "scheduler-shim/policy/deviations.json";

/// Builds, shows, tests and installs Apportion.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", version, disable_help_subcommand = true)]
enum Task {
    /// Build everything and stage it under target/apportion, or target/apportion-release.
    Build {
        /// Optimise; the preloaded library always is.
        #[arg(long)]
        release: bool,
    },
    /// Two programs share a card: the real one with a driver, else a simulated one.
    Demo {
        /// Arguments for `apportion demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// A real Kubernetes on this machine, beside simulated cards.
    #[command(subcommand)]
    Cluster(cluster::Task),
    /// Run every test that needs neither a GPU nor a cluster.
    Test {
        /// Only what a pull request needs: without the long suites, the account pages under loom and the clients
        /// from PyPI.
        #[arg(long)]
        quick: bool,
        /// How many test programs run at once [default: as many as the machine has processors].
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
        jobs: Option<u32>,
        /// Arguments for the tests themselves, such as a name to look for.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run frameworks from PyPI on the simulated driver, without a limit and with one, and print a table.
    Frameworks(frameworks::Options),
    /// Fetch NVIDIA's own driver libraries and compare what they do with and without ours; no card is needed.
    Drivers {
        /// Driver branches, such as 535 [default: all with cuGetProcAddress that Debian has].
        branches: Vec<String>,
    },
    /// Build the book, docs/ as pages of HTML, with `mdbook`.
    Docs(docs::Options),
    /// Check format, lints, documentation, licences and advisories.
    Lint,
    /// Check the chart, its plain manifests and its alerts (with `helm` and `promtool`).
    Chart {
        /// Write the plain manifests anew.
        #[arg(long)]
        update: bool,
    },
    /// Build with optimisation and pack the images that the chart names, as files for `docker load`,
    /// `ctr images import` and `kind load image-archive`.
    Image {
        /// The folder that gets the files.
        #[arg(long, default_value = "target/images")]
        out: PathBuf,
    },
    /// Build with optimisation and pack what a machine with a card needs into one folder of at most 60 MiB: programs,
    /// libraries, and the script that runs them.
    GpuPack {
        /// The folder, which is made anew [default: gpu-pack in the target folder].
        #[arg(long)]
        out: Option<PathBuf>,
        /// Do not optimise, and do not check the size: for tests on this machine.
        #[arg(long)]
        debug: bool,
    },
    /// Run the benches; they print ratios.
    Bench {
        /// Arguments for the pairs, such as one section: calls, contention, starts; or `api` and its arguments:
        /// the scheduler on a real API server, whose programs `cargo xtask cluster up` builds.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Compare Apportion with other libraries that limit GPU memory, on the simulated driver.
    Compare(compare::Options),
    /// Run scheduling scenarios: our own and those made of KAI's tests, or those of a folder.
    Scenarios(Options),
    /// Carry random clusters on, step after step, and look at what the policy promises.
    Soak {
        /// How many clusters each promise is held against.
        #[arg(long, default_value_t = 8_000)]
        cases: u32,
        /// The seed of an earlier run, to have the same clusters again.
        #[arg(long)]
        seed: Option<u64>,
        /// Take so many steps with the scheduler's model and nothing else, in place of that.
        #[arg(long, value_name = "STEPS", conflicts_with = "api")]
        model: Option<u64>,
        /// Take so many steps with the scheduler, agents and a real API server, in place of that, as fast as the API
        /// server takes them.
        #[arg(long, value_name = "STEPS")]
        api: Option<u64>,
    },
    /// Ask the policy's rules single questions, and compare with KAI's answers.
    Oracles(Options),
    /// Build with optimisation and copy the programs and libraries below a folder.
    Install {
        /// The folder that gets `bin` and `lib/apportion`.
        #[arg(long, default_value = "/usr/local")]
        prefix: PathBuf,
    },
}

fn main() -> ExitCode {
    match perform(Task::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match task {
        Task::Build { release } => {
            let staged = stage::build(&workspace, release)?;
            println!("{}", staged.display());
        }
        Task::Demo { args } => {
            let staged = stage::build(&workspace, false)?;
            run(Command::new(staged.join("bin/apportion"))
                .arg("demo")
                .args(args))?;
        }
        Task::Cluster(task) => return cluster::perform(&workspace, task),
        Task::Frameworks(options) => return frameworks::perform(&workspace, &options),
        Task::Test { quick, jobs, args } => {
            return suites::test(&workspace, quick, jobs, &args);
        }
        Task::Compare(options) => compare::run(&workspace, &options)?,
        Task::Drivers { branches } => return drivers::compare(&workspace, &branches),
        Task::Docs(options) => docs::perform(&workspace, &options)?,
        Task::Lint => lint::check(&workspace)?,
        Task::Chart { update } => chart::check(&workspace, update)?,
        Task::Soak {
            cases,
            seed,
            model,
            api,
        } => soak::run(&workspace, soak::What::of(cases, model, api), seed)?,
        Task::Bench { args } => suites::bench(&workspace, &args)?,
        Task::Scenarios(options) => return ask(&workspace, &scenarios::SUITE, &options),
        Task::Oracles(options) => return ask(&workspace, &oracles::SUITE, &options),
        Task::Image { out } => {
            let tree = workspace.target.join("image");
            stage::install(&stage::build(&workspace, true)?, &tree)?;
            stage::strip(&tree)?;
            for image in apportion_cluster::image::released(&tree)? {
                let path = apportion_cluster::image::pack(&image, &out)?;
                println!("{}  {}", path.display(), image.name);
            }
        }
        Task::GpuPack { out, debug } => {
            let profile = if debug {
                Profile::Debug
            } else {
                Profile::Release
            };
            let out = out.unwrap_or_else(|| workspace.target.join("gpu-pack"));
            gpu_pack::make(&workspace, profile, &out)?;
        }
        Task::Install { prefix } => {
            let staged = stage::build(&workspace, true)?;
            stage::install(&staged, &prefix)?;
            println!("{}", prefix.join("bin/apportion").display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs cases; a failure is one that is not listed as a deviation.
fn ask(workspace: &Workspace, suite: &Suite, options: &Options) -> Result<ExitCode> {
    let listed = Deviations::read(&workspace.root.join(DEVIATIONS))?;
    Ok(match suite.run(&workspace.root, options, &listed)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
