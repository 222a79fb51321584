//! Checkpoints of a process: its states, what is refused in each, and that its memory comes back byte for byte.
//!
//! Two processes each want 60 % of the card. They take turns: one sleeps in the host while the other runs.

use std::io::{BufRead, BufReader, Error, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::code::ResultCode;
use crate::layout::LockArguments;
use crate::record::{CaseError, CaseReport};
use crate::session::{DriverSession, MIB, must};

/// A sleeper writes and checks one word in each such piece of its memory.
const STRIDE: usize = 2 * MIB;
/// How long a locked process is seen to wait.
const LOCKED: Duration = Duration::from_millis(200);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The second process. For each line of input it does what the line says, and prints the result.
pub(crate) fn sleep() -> Result<(), CaseError> {
    let session = DriverSession::start()?;
    let (_, total) = session.memory_info()?;
    let bytes = total / 5 * 3 / STRIDE * STRIDE;
    let mut address = 0;
    writeln!(std::io::stdout().lock(), "{bytes}")?;
    for line in std::io::stdin().lock().lines() {
        let answer = match line?.as_str() {
            "fill" => match session.cuda.alloc(Some(&mut address), bytes) {
                ResultCode::SUCCESS => fill(&session, address, bytes)?,
                code => format!("{code:?}"),
            },
            "check" => check(&session, address, bytes)?,
            _ => "unknown".to_owned(),
        };
        writeln!(std::io::stdout().lock(), "{answer}")?;
    }
    Ok(())
}

fn word(at: usize) -> u64 {
    (at as u64 + u64::from(std::process::id())).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(session: &DriverSession, address: u64, bytes: usize) -> Result<String, CaseError> {
    for at in (0..bytes).step_by(STRIDE) {
        let word = word(at);
        let from = (&raw const word).cast();
        let code = session.cuda.copy_in(address + at as u64, from, 8);
        must("cuMemcpyHtoD_v2", code)?;
    }
    Ok("filled".to_owned())
}

fn check(session: &DriverSession, address: u64, bytes: usize) -> Result<String, CaseError> {
    for at in (0..bytes).step_by(STRIDE) {
        let mut seen = 0_u64;
        let code = session
            .cuda
            .copy_out((&raw mut seen).cast(), address + at as u64, 8);
        must("cuMemcpyDtoH_v2", code)?;
        if seen != word(at) {
            return Ok(format!("changed at {at}"));
        }
    }
    Ok("intact".to_owned())
}

/// A second process, and what it prints.
struct Sleeper {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    bytes: usize,
}

impl Sleeper {
    fn start() -> Result<Self, CaseError> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--sleep")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CaseError::Process(Error::other("it has no pipes")));
        };
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            // The case may end before the process.
            lines.try_for_each(|line| send.send(line))
        });
        let mut sleeper = Self {
            child,
            input,
            lines,
            bytes: 0,
        };
        sleeper.bytes = sleeper.answer(PATIENCE).parse().unwrap_or(0);
        if sleeper.bytes == 0 {
            return Err(CaseError::Process(Error::other("it did not start")));
        }
        Ok(sleeper)
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn ask(&mut self, line: &str) -> Result<(), CaseError> {
        writeln!(self.input, "{line}")?;
        Ok(())
    }

    /// Its next line, or `nothing`.
    fn answer(&self, longest: Duration) -> String {
        let answer = self.lines.recv_timeout(longest);
        answer.unwrap_or_else(|_| "nothing".to_owned())
    }

    fn say(&mut self, line: &str) -> Result<String, CaseError> {
        self.ask(line)?;
        Ok(self.answer(PATIENCE))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const RUNNING: u32 = 0;
const LOCKED_STATE: u32 = 1;
const CHECKPOINTED: u32 = 2;

fn state(session: &DriverSession, sleeper: &Sleeper) -> Result<u32, CaseError> {
    let mut state = u32::MAX;
    let code = session.cuda.process_state(sleeper.pid(), Some(&mut state));
    must("cuCheckpointProcessGetState", code)?;
    Ok(state)
}

/// Locks and checkpoints a process, and says how long the checkpoint took for a GiB.
fn put_to_sleep(session: &DriverSession, sleeper: &Sleeper) -> Result<f64, CaseError> {
    let locked = session.cuda.process_lock(sleeper.pid(), None);
    must("cuCheckpointProcessLock", locked)?;
    let begun = Instant::now();
    let code = session.cuda.process_checkpoint(sleeper.pid(), None);
    must("cuCheckpointProcessCheckpoint", code)?;
    Ok(per_gib(begun, sleeper))
}

/// Restores and unlocks a process, and says how long the restore took for a GiB.
fn wake(session: &DriverSession, sleeper: &Sleeper) -> Result<f64, CaseError> {
    let begun = Instant::now();
    let code = session.cuda.process_restore(sleeper.pid(), None);
    must("cuCheckpointProcessRestore", code)?;
    let taken = per_gib(begun, sleeper);
    let code = session.cuda.process_unlock(sleeper.pid(), None);
    must("cuCheckpointProcessUnlock", code)?;
    Ok(taken)
}

fn per_gib(begun: Instant, sleeper: &Sleeper) -> f64 {
    begun.elapsed().as_secs_f64() * (1 << 30) as f64 / sleeper.bytes as f64
}

pub(super) fn run(report: &CaseReport) -> Result<(), CaseError> {
    let session = DriverSession::open()?;
    let mut first = Sleeper::start()?;
    report.equals(
        "a process can fill 60 % of the card",
        "filled",
        first.say("fill")?,
    );
    states(report, &session, &mut first)?;
    turns(report, &session, first)
}

/// The states of a process, in their order, and what is refused in each.
fn states(
    report: &CaseReport,
    session: &DriverSession,
    sleeper: &mut Sleeper,
) -> Result<(), CaseError> {
    let (cuda, pid) = (&session.cuda, sleeper.pid());
    let illegal = ResultCode::ILLEGAL_STATE;
    report.equals(
        "a new process is running",
        RUNNING,
        state(session, sleeper)?,
    );
    report.equals(
        "a running process is not checkpointed",
        illegal,
        cuda.process_checkpoint(pid, None),
    );
    report.observed(
        "a running process is unlocked",
        cuda.process_unlock(pid, None),
    );
    let arguments = LockArguments::within(10_000);
    let locked = cuda.process_lock(pid, Some(&arguments));
    report.equals("a process is locked in time", ResultCode::SUCCESS, locked);
    report.equals("it is locked then", LOCKED_STATE, state(session, sleeper)?);
    report.equals(
        "a locked process is not locked again",
        illegal,
        cuda.process_lock(pid, None),
    );
    sleeper.ask("check")?;
    report.equals("its calls wait", "nothing", sleeper.answer(LOCKED));
    let unlocked = cuda.process_unlock(pid, None);
    report.equals("it is unlocked", ResultCode::SUCCESS, unlocked);
    report.equals("its calls go on", "intact", sleeper.answer(PATIENCE));

    let used = || -> Result<i64, CaseError> { Ok(session.card_memory()?.0.used as i64) };
    let before = used()?;
    let slept = put_to_sleep(session, sleeper)?;
    report.observed("seconds that a checkpoint takes for a GiB", slept);
    let freed = before - used()?;
    // Under a limit NVML shows what is charged, and a checkpointed process stays charged.
    report.observed(
        "a checkpointed process leaves the card's memory",
        freed >= sleeper.bytes as i64,
    );
    let list = session.running()?;
    let is_listed = list.iter().any(|one| one.pid == sleeper.child.id());
    report.observed("NVML lists a checkpointed process", is_listed);
    report.equals(
        "it is checkpointed then",
        CHECKPOINTED,
        state(session, sleeper)?,
    );
    report.equals(
        "a checkpointed process is not unlocked",
        illegal,
        cuda.process_unlock(pid, None),
    );
    let woken = wake(session, sleeper)?;
    report.observed("seconds that a restore takes for a GiB", woken);
    report.equals("it is running again", RUNNING, state(session, sleeper)?);
    report.equals("its memory is as it was", "intact", sleeper.say("check")?);
    Ok(())
}

/// Two processes, of which the card has room for one.
fn turns(
    report: &CaseReport,
    session: &DriverSession,
    mut first: Sleeper,
) -> Result<(), CaseError> {
    let mut second = Sleeper::start()?;
    report.observed("a second process that does not fit", second.say("fill")?);
    put_to_sleep(session, &first)?;
    // Where a limit holds for both, a checkpointed process is still charged.
    let filled = second.say("fill")?;
    report.observed("the same when the first is checkpointed", &filled);
    if filled != "filled" {
        wake(session, &first)?;
        report.equals("the first wakes", "intact", first.say("check")?);
        return Ok(());
    }
    report.observed(
        "a restore that does not fit",
        session.cuda.process_restore(first.pid(), None),
    );
    report.observed("the state after it", state(session, &first)?);
    for _ in 0..2 {
        put_to_sleep(session, &second)?;
        wake(session, &first)?;
        report.equals(
            "the first's memory is intact",
            "intact",
            first.say("check")?,
        );
        put_to_sleep(session, &first)?;
        wake(session, &second)?;
        report.equals(
            "the second's memory is intact",
            "intact",
            second.say("check")?,
        );
    }
    drop(first);
    report.equals(
        "a sleeper's end harms nobody",
        "intact",
        second.say("check")?,
    );
    Ok(())
}
