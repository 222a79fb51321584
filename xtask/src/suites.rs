//! The test command of the README: everything that needs neither a GPU nor a cluster.
//!
//! There are three kinds of suites. The crates' own tests. The process suites, which find the staged tree, the clients'
//! Python and the driver's headers through the environment. And the lock-free pages under `loom`, which replaces the
//! atomics and so needs its own build.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Result, anyhow};

use crate::clients;
use crate::gpu_pack::{self, BuildProfile};
use crate::stage;
use crate::steps::run;
use crate::tally::count;
use crate::test_programs;
use crate::workspace::Workspace;

/// The variable with the staged tree for the process suites.
const STAGED: &str = "APPORTION_STAGED";
/// The variable with the Python of the third-party clients.
const PYTHON: &str = "APPORTION_PYTHON";
/// The variable with the folder of the driver's headers.
const HEADERS: &str = "APPORTION_CUDA_HEADERS";
/// The variable with the pack for a machine with a card.
const GPU_PACK: &str = "APPORTION_GPU_PACK";
/// The feature that builds the suite of the third-party clients.
const CLIENTS: &str = "apportion-tests/clients";

/// Suites that take long, because they kill and wait many times. Pull requests skip them.
const LONG: &[(&str, &str)] = &[("apportion-tests", "kills")];

/// Runs all suites, then prints what was left out and how many tests passed and failed.
pub(crate) fn test(
    workspace: &Workspace,
    is_quick: bool,
    jobs: Option<u32>,
    args: &[String],
) -> Result<ExitCode> {
    let pack = workspace.target.join("gpu-pack-debug");
    gpu_pack::make(workspace, BuildProfile::Debug, &pack)?;
    let staged = workspace.staged(false);
    let (python, headers) = if is_quick {
        (Err(anyhow!("--quick")), Err(anyhow!("--quick")))
    } else {
        from_pypi(workspace)
    };

    let mut cargo = workspace.cargo();
    cargo.args(["test", "--workspace"]);
    if python.is_ok() {
        cargo.args(["--features", CLIENTS]);
    }
    let mut programs = test_programs::build(&mut cargo)?;
    programs.retain(|program| {
        let name = (program.package.as_str(), program.target.as_str());
        !(is_quick && LONG.contains(&name))
    });
    let jobs = match jobs {
        Some(jobs) => usize::try_from(jobs)?,
        None => thread::available_parallelism()?.get(),
    };
    let mut tally = test_programs::run(&programs, jobs, &|program| {
        program.env(STAGED, &staged).env(GPU_PACK, &pack).args(args);
        if let Ok(python) = &python {
            program.env(PYTHON, python);
        }
        if let Ok(headers) = &headers {
            program.env(HEADERS, headers);
        }
    });
    if !is_quick {
        tally += count(with(&mut loom(workspace), args))?;
    }

    let parts = [
        ("the third-party clients", python),
        ("the driver's headers", headers),
    ];
    for (part, got) in parts {
        if let Err(missing) = got {
            println!("left out: {part} ({missing:#})");
            tally.failed += u64::from(!is_quick && clients::must_be_complete());
        }
    }
    if is_quick {
        let long: Vec<_> = LONG
            .iter()
            .map(|(package, target)| format!("{package} {target}"))
            .collect();
        println!("left out: loom, {} (--quick)", long.join(", "));
    }
    println!("{tally}");
    Ok(match tally.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The Python with the third-party clients, and the folder with the driver's headers.
fn from_pypi(workspace: &Workspace) -> (Result<PathBuf>, Result<PathBuf>) {
    let python = clients::python(workspace);
    let headers = match &python {
        Ok(python) => clients::headers(workspace, python),
        Err(missing) => Err(anyhow!("{missing:#}")),
    };
    (python, headers)
}

/// Runs the benches on an optimised tree: pairs in processes first, then the files of `benches/benches`. The first argument
/// may be the name of such a file, or `api` for those of the scheduler on an API server.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    let staged = stage::build(workspace, true)?;
    if let [section, args @ ..] = args
        && section == "api"
    {
        let package = "apportion-bench-api";
        run(workspace
            .cargo()
            .args(["build", "--release", "--package", package]))?;
        // Not by `cargo run`: that process becomes the bench, and the memory of its compilers would count as the bench's.
        let mut api = Command::new(workspace.target.join("release").join(package));
        return run(api.env(STAGED, &staged).args(args));
    }
    let package = ["--package", "apportion-benches"];
    let bench_files = |which: &[&str]| {
        // The program that benches of shares start. `cargo bench` does not build programs of another package.
        let victim = ["--package", "apportion-tests", "--bin", "victim"];
        run(workspace.cargo().args(["build", "--release"]).args(victim))?;
        let mut files = workspace.cargo();
        files.arg("bench").args(package).args(which);
        run(files.env(STAGED, &staged))
    };
    if let [section] = args
        && has_bench(workspace, section)
    {
        return bench_files(&["--bench", section]);
    }
    let mut pairs = workspace.cargo();
    pairs
        .args(["run", "--release", "--bin", "apportion-bench"])
        .args(package);
    run(with(pairs.env(STAGED, &staged), args))?;
    if args.is_empty() {
        bench_files(&[])
    } else {
        Ok(())
    }
}

/// Whether `cargo bench` has a bench of this name.
fn has_bench(workspace: &Workspace, name: &str) -> bool {
    let file = format!("benches/benches/{name}.rs");
    workspace.root.join(file).is_file()
}

/// The account pages under `loom`. Optimised, because a model runs thousands of times.
fn loom(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo_in(&workspace.root, &workspace.target.join("loom"));
    cargo.env("RUSTFLAGS", "--cfg loom");
    cargo.args([
        "test",
        "--release",
        "--package",
        "apportion-abi",
        "--test",
        "loom",
    ]);
    cargo
}

/// Passes `args` on to the test programs.
fn with<'a>(cargo: &'a mut Command, args: &[String]) -> &'a mut Command {
    if args.is_empty() {
        cargo
    } else {
        cargo.arg("--").args(args)
    }
}
