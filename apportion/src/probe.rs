//! Queries the driver through a separate program: a driver that hangs or crashes then affects only that program.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use apportion_exit::CommandFailure;
use serde::Deserialize;

use crate::instance::TargetInstance;

/// The program, in the library folder.
const PROGRAM: &str = "apportion-probe";
/// How long a driver may take to answer. Its first use after a boot takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

/// The answers of the driver's two libraries.
#[derive(Debug, Deserialize)]
pub(crate) struct ProbeReport {
    pub(crate) nvml: ProbeAnswer,
    pub(crate) cuda: ProbeAnswer,
}

/// The answer of one library.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProbeAnswer {
    Found(ProbedLibrary),
    Error(String),
}

/// What a library found.
#[derive(Debug, Deserialize)]
pub(crate) struct ProbedLibrary {
    /// The driver's version, or the version of CUDA that it serves.
    pub(crate) version: String,
    pub(crate) cards: Vec<ProbedCard>,
}

/// A card, as a library sees it.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct ProbedCard {
    /// The UUID as NVML prints it.
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
}

pub(crate) fn program(instance: &TargetInstance) -> Result<PathBuf, CommandFailure> {
    instance.library(PROGRAM)
}

/// Asks the driver of `instance`.
pub(crate) fn ask(instance: &TargetInstance) -> Result<ProbeReport, CommandFailure> {
    let failed = || CommandFailure::new("failed to query the driver");
    let mut child = Command::new(program(instance)?)
        .arg("cards")
        .envs(instance.driver_env()?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failed().because(e))?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().map_err(|e| failed().because(e))? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                let _ = child.kill();
                return Err(failed().because(format!("no answer in {} s", PATIENCE.as_secs())));
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    let mut text = String::new();
    if let Some(mut output) = child.stdout.take() {
        output
            .read_to_string(&mut text)
            .map_err(|e| failed().because(e))?;
    }
    serde_json::from_str(&text)
        .map_err(|e| failed().because(format!("{PROGRAM} ended with {status}, {e}")))
}
