//! The test command of the README: everything that needs neither a GPU nor a cluster.
//!
//! The suites are the crates' own tests and the process suites (one run of `cargo test`, which finds the
//! staged tree, the clients' Python and the driver's headers in the environment), and the lock-free pages
//! under `loom`, which replaces the atomics and so needs a build of its own.

use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};

use crate::clients;
use crate::gpu_pack::{self, Profile};
use crate::stage;
use crate::steps::run;
use crate::tally::{Tally, count};
use crate::workspace::Workspace;

/// Where the process suites look for the programs and libraries.
const STAGED: &str = "APPORTION_STAGED";
/// The Python that has the third-party clients.
const PYTHON: &str = "APPORTION_PYTHON";
/// The folder that has the driver's headers.
const HEADERS: &str = "APPORTION_CUDA_HEADERS";
/// The pack for a machine with a card.
const GPU_PACK: &str = "APPORTION_GPU_PACK";
/// The feature that builds the suite of the third-party clients.
const CLIENTS: &str = "apportion-tests/clients";

/// Runs all suites, then prints what was left out and how many tests passed and failed.
pub(crate) fn test(workspace: &Workspace, args: &[String]) -> Result<ExitCode> {
    let staged = workspace.staged();
    let pack = workspace.target.join("gpu-pack-debug");
    gpu_pack::make(workspace, Profile::Debug, &pack)?;
    let python = clients::python(workspace);
    let headers = match &python {
        Ok(python) => clients::headers(workspace, python),
        Err(missing) => Err(anyhow!("{missing:#}")),
    };
    let mut tally = Tally::default();

    let mut cargo = workspace.cargo();
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .env(STAGED, &staged)
        .env(GPU_PACK, &pack);
    if let Ok(python) = &python {
        cargo.args(["--features", CLIENTS]).env(PYTHON, python);
    }
    if let Ok(headers) = &headers {
        cargo.env(HEADERS, headers);
    }
    tally += count(with(&mut cargo, args))?;

    tally += count(with(&mut loom(workspace), args))?;

    let parts = [
        ("the third-party clients", python),
        ("the driver's headers", headers),
    ];
    for (part, got) in parts {
        if let Err(missing) = got {
            println!("left out: {part} ({missing:#})");
            tally.failed += u64::from(clients::must_be_complete());
        }
    }
    println!("{tally}");
    Ok(if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the benches against an optimised tree: pairs in processes first, then single functions. With `api` as the
/// first argument, those of the scheduler on an API server instead.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    let staged = stage::build(workspace, true)?;
    if let [section, args @ ..] = args
        && section == "api"
    {
        let mut api = workspace.cargo();
        api.args(["run", "--release", "--package", "apportion-bench-api"]);
        return run(with(api.env(STAGED, &staged), args));
    }
    let package = ["--package", "apportion-benches"];
    let mut pairs = workspace.cargo();
    pairs
        .args(["run", "--release", "--bin", "apportion-bench"])
        .args(package);
    run(with(pairs.env(STAGED, &staged), args))?;
    run(workspace
        .cargo()
        .arg("bench")
        .args(package)
        .env(STAGED, &staged))
}

/// The account pages under `loom`; optimised, because a model runs thousands of times.
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

/// Hands `args` on to the harnesses.
fn with<'a>(cargo: &'a mut Command, args: &[String]) -> &'a mut Command {
    if args.is_empty() {
        cargo
    } else {
        cargo.arg("--").args(args)
    }
}
