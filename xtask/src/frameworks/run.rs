//! Runs the programs of a case at the same time, and collects their output and the driver's figures.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cases::FrameworkCase;
use super::environments::PythonEnvironments;
use super::machine::FrameworkMachine;
use super::output::{ProgramCheck, ProgramOutput};

/// The timeout of a case. Importing a framework alone takes most of a minute on a busy machine.
const PATIENCE: Duration = Duration::from_secs(480);
const PAUSE: Duration = Duration::from_millis(50);

/// Without a limit or with one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitMode {
    Plain,
    Limited,
}

impl LimitMode {
    /// The name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Limited => "limited",
        }
    }
}

/// The result of one program.
pub(crate) struct FrameworkOutcome {
    pub(crate) said: ProgramOutput,
    /// Its limit, or the size of the card.
    pub(crate) card: u64,
    /// The card's peak memory during the case, as the driver counts it.
    pub(crate) high_water: u64,
}

struct RunningProgram {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
    card: u64,
}

/// Runs a case once.
pub(crate) fn case(
    machine: &mut FrameworkMachine,
    environments: &PythonEnvironments,
    case: &FrameworkCase,
    mode: LimitMode,
) -> Result<Vec<FrameworkOutcome>> {
    eprintln!("{}, {}:", case.title, mode.name());
    machine.high_water()?;
    let begun = Instant::now();
    let mut running = Vec::new();
    for (place, _) in case.members.iter().enumerate() {
        running.push(start(machine, environments, case, place, mode)?);
    }
    let ends: Vec<_> = running
        .iter_mut()
        .map(|program| end(&mut program.child, begun))
        .collect();
    let high_water = machine.high_water()?;
    // Programs that share a card may together hold the sum of their limits.
    let most = running
        .iter()
        .map(|program| program.card)
        .sum::<u64>()
        .min(machine.card());
    let outcomes = running.iter().zip(ends).map(|(program, end)| {
        let mut outcome = gather(program, high_water)?;
        let held = outcome.said.bytes("held").unwrap_or(0);
        outcome
            .said
            .checks
            .push(ended(&outcome.said, &end?, &program.errors));
        outcome.said.checks.push(ProgramCheck {
            name: "the driver's high-water mark is within the limit".to_owned(),
            holds: high_water <= most && high_water >= held && high_water > 0,
            seen: format!("{} of {}", mib(high_water), mib(most)),
        });
        for check in &outcome.said.checks {
            let verdict = if check.holds { "ok" } else { "FAILED" };
            eprintln!("  {verdict:6} {} ({})", check.name, check.seen);
        }
        Ok(outcome)
    });
    let outcomes: Result<Vec<_>> = outcomes.collect();
    eprintln!("  {:.0} s", begun.elapsed().as_secs_f64());
    outcomes
}

fn start(
    machine: &FrameworkMachine,
    environments: &PythonEnvironments,
    case: &FrameworkCase,
    place: usize,
    mode: LimitMode,
) -> Result<RunningProgram> {
    let member = &case.members[place];
    let is_limited = mode == LimitMode::Limited;
    let card = if is_limited {
        machine.limit(member.share)?
    } else {
        machine.card()
    };
    let by_nvml = if is_limited {
        card
    } else {
        machine.card_by_nvml()
    };
    let logs = environments.scratch("logs");
    fs::create_dir_all(&logs).with_context(|| format!("failed to make {}", logs.display()))?;
    let log = |kind| {
        logs.join(format!(
            "{}-{place}-{}.{kind}",
            file_name(case.title),
            mode.name()
        ))
    };
    let (output, errors) = (log("out"), log("err"));

    let mut command = machine.apportion(is_limited.then_some(member.share));
    command.arg(environments.python(member.environment));
    command
        .args(member.launcher)
        .arg(environments.program(member.program));
    command
        .env("CARD_BYTES", card.to_string())
        .env("CARD_NVML_BYTES", by_nvml.to_string());
    command.env("PYTHONPYCACHEPREFIX", environments.scratch("pycache"));
    command.env("TRITON_CACHE_DIR", environments.scratch("triton"));
    command.envs(member.variables.iter().copied());
    let libraries = environments.nvidia_libraries(member.environment);
    if let Ok(libraries) = std::env::join_paths(libraries) {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    if let Some(tool) = member.tool {
        command.env("TOOL", environments.tool(tool)?);
    }
    if case.members.len() > 1 {
        let others = (0..case.members.len()).filter(|other| *other != place);
        let others: Vec<_> = others.map(|other| other.to_string()).collect();
        command
            .env("MEETING", machine.folder())
            .env("MEETING_SELF", place.to_string());
        command.env("MEETING_OTHERS", others.join(" "));
    }
    let child = started(&mut command, &output, &errors)?;
    Ok(RunningProgram {
        child,
        output,
        errors,
        card,
    })
}

/// Starts a command in its own process group.
fn started(command: &mut Command, output: &Path, errors: &Path) -> Result<Child> {
    let file = |path: &Path| {
        File::create(path).with_context(|| format!("failed to write {}", path.display()))
    };
    let command = command
        .stdin(Stdio::null())
        .stdout(file(output)?)
        .stderr(file(errors)?);
    command
        .process_group(0)
        .spawn()
        .context("failed to start apportion")
}

/// Waits for a program. After the timeout its whole process group is killed.
fn end(child: &mut Child, begun: Instant) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if begun.elapsed() > PATIENCE {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            return Ok(child.wait()?);
        }
        thread::sleep(PAUSE);
    }
}

fn gather(program: &RunningProgram, high_water: u64) -> Result<FrameworkOutcome> {
    let output = fs::read(&program.output)
        .with_context(|| format!("failed to read {}", program.output.display()))?;
    let said = ProgramOutput::read(&String::from_utf8_lossy(&output));
    Ok(FrameworkOutcome {
        said,
        card: program.card,
        high_water,
    })
}

/// The check that the program reached its end with status 0. On failure it shows the last line on standard error.
fn ended(said: &ProgramOutput, status: &ExitStatus, errors: &Path) -> ProgramCheck {
    let errors = fs::read(errors).unwrap_or_default();
    let errors = String::from_utf8_lossy(&errors);
    let last = errors
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or_default();
    let way = status
        .signal()
        .map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
    let holds = said.is_complete && status.success();
    let seen = if holds { way } else { format!("{way}: {last}") };
    ProgramCheck {
        name: "the program comes to its end".to_owned(),
        holds,
        seen,
    }
}

/// A title as part of a file name.
fn file_name(title: &str) -> String {
    title
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect()
}

/// Bytes in MiB, with a decimal only if needed.
pub(crate) fn mib(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{:.1} MiB", bytes as f64 / MIB as f64)
    }
}
