//! More random steps than fit the tests: the same tests, with a longer run set in the environment.
//!
//! Without a seed each run takes other steps, so that many runs add up. The seed is printed.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::stage;
use crate::steps;
use crate::workspace::Workspace;

/// The variables with the number of steps and the seed.
const STEPS: &str = "APPORTION_STEPS";
const SEED: &str = "APPORTION_SEED";

#[derive(Clone, Copy, Debug)]
pub(crate) enum SoakTarget {
    /// The policy, with this many clusters for each promise.
    Policy(u32),
    /// The running scheduler's model, on a fake cluster.
    Model(u64),
    /// The scheduler and agents, on a real API server.
    Api(u64),
}

impl SoakTarget {
    /// The target for the given options.
    pub(crate) fn of(cases: u32, model: Option<u64>, api: Option<u64>) -> Self {
        let model = model.map(Self::Model);
        model.or(api.map(Self::Api)).unwrap_or(Self::Policy(cases))
    }
}

pub(crate) fn run(workspace: &Workspace, what: SoakTarget, seed: Option<u64>) -> Result<()> {
    let seed = match seed {
        Some(seed) => seed,
        None => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
    };
    println!("seed {seed}");
    let mut cargo = match what {
        SoakTarget::Policy(cases) => policy(workspace, cases),
        SoakTarget::Model(steps) => model(workspace, steps),
        SoakTarget::Api(steps) => api(workspace, steps)?,
    };
    let seed = seed.to_string();
    cargo.env("PROPTEST_RNG_SEED", &seed).env(SEED, &seed);
    steps::run_tests(&mut cargo)
}

/// The property tests of the policy's steps, optimised.
fn policy(workspace: &Workspace, cases: u32) -> Command {
    println!("{cases} cases of each promise");
    let mut cargo = workspace.cargo();
    cargo
        .args(["test", "--release", "--package", "apportion-policy"])
        .args(["--test", "steps", "--test", "victims"])
        .env("PROPTEST_CASES", cases.to_string());
    cargo
}

/// The model's own tests on the fake cluster.
fn model(workspace: &Workspace, steps: u64) -> Command {
    println!("{steps} steps of the model");
    let mut cargo = workspace.cargo();
    cargo
        .args(["test", "--release", "--package", "apportion-scheduler"])
        .args(["--bin", "apportion-scheduler", "--", "live::fake_cluster"])
        .env(STEPS, steps.to_string());
    cargo
}

/// A control plane with agents that are killed again and again.
fn api(workspace: &Workspace, steps: u64) -> Result<Command> {
    println!("{steps} steps against an API server");
    let staged = stage::build(workspace, false)?;
    let mut cargo = workspace.cargo();
    cargo
        .args(["test", "--package", "apportion-tests"])
        .args(["--features", "control-plane", "--test", "scheduler"])
        .args(["--", "anything", "--nocapture"])
        .env("APPORTION_STAGED", staged)
        .env(STEPS, steps.to_string());
    Ok(cargo)
}
