//! The comparisons: which programs run, and what counts as a difference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use apportion_intercept::ROWS;

use crate::elf;
use crate::run_mode::{RunMode, RunSetup, UnpackedDriver};

mod exports;
mod simulated;

/// One column of the table.
pub(crate) struct DriverCheck {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&RunSetup, &UnpackedDriver) -> Result<CheckOutcome>,
}

/// Every check, in column order.
pub(crate) const CHECKS: &[DriverCheck] = &[
    DriverCheck {
        name: "exports without a reason",
        run: exports::run,
    },
    DriverCheck {
        name: "look-ups",
        run: look_up,
    },
    DriverCheck {
        name: "simulated",
        run: simulated::run,
    },
    DriverCheck {
        name: "dlsym",
        run: doors,
    },
    DriverCheck {
        name: "calls",
        run: calls,
    },
    DriverCheck {
        name: "runtime",
        run: runtime,
    },
    DriverCheck {
        name: "nvidia-smi",
        run: nvidia_smi,
    },
    DriverCheck {
        name: "conformance",
        run: conformance,
    },
];

/// The result of a check.
#[derive(Default)]
pub(crate) struct CheckOutcome {
    /// How many answers were compared.
    pub(crate) compared: usize,
    /// Additional text for the table.
    pub(crate) note: String,
    /// The differences, one sentence each.
    pub(crate) differences: Vec<String>,
}

impl CheckOutcome {
    /// The cell of the table.
    pub(crate) fn cell(&self) -> String {
        let count = match self.differences.len() {
            0 if self.compared == 0 => return "left out".to_owned(),
            0 => format!("{} same", self.compared),
            wrong => format!("{wrong} of {} differ", self.compared),
        };
        if self.note.is_empty() {
            count
        } else {
            format!("{count}, {}", self.note)
        }
    }
}

type Answers = BTreeMap<String, String>;

fn answers(printed: &str) -> Answers {
    let lines = printed.lines().filter_map(|line| line.split_once('\t'));
    lines
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Every answer that differs in `ours`.
fn compare(plain: &Answers, ours: &Answers, way: RunMode) -> Vec<String> {
    let keys: BTreeSet<&String> = plain.keys().chain(ours.keys()).collect();
    let nothing = "nothing".to_owned();
    keys.into_iter()
        .filter_map(|key| {
            let (plain, ours) = (
                plain.get(key).unwrap_or(&nothing),
                ours.get(key).unwrap_or(&nothing),
            );
            (plain != ours).then(|| format!("{key}: {plain}, but {} {ours}", way.as_str()))
        })
        .collect()
}

/// Runs a task in all modes, and compares the answers with those without the library. Also returns the answers under a
/// limit.
fn in_all_ways(
    setup: &RunSetup,
    driver: &UnpackedDriver,
    task: &[&str],
    as_compared: fn(&str) -> String,
) -> Result<(CheckOutcome, Answers)> {
    let [plain, unlimited, limited] = thread::scope(|scope| {
        let started = RunMode::ALL
            .map(|way| scope.spawn(move || anyhow::Ok(answers(&setup.inside(driver, way, task)?))));
        started.map(|thread| thread.join().expect("no check panics"))
    });
    let (plain, limited) = (plain?, limited?);
    ensure!(!plain.is_empty(), "{} found nothing", task.join(" "));
    let mut outcome = CheckOutcome {
        compared: plain.len(),
        ..CheckOutcome::default()
    };
    for (way, ours) in [
        (RunMode::Unlimited, &unlimited?),
        (RunMode::Limited, &limited),
    ] {
        let compared = ours
            .iter()
            .map(|(key, value)| (key.clone(), as_compared(value)))
            .collect();
        outcome.differences.extend(compare(&plain, &compared, way));
    }
    Ok((outcome, limited))
}

/// Replaces hooks by the driver's functions of the same name.
fn without_hooks(answer: &str) -> String {
    answer.replace("hook:", "driver:")
}

fn unchanged(answer: &str) -> String {
    answer.to_owned()
}

/// Reports the hookable functions that a limited program got from the driver itself, and counts the hooks that it got.
fn hooks_in(outcome: &mut CheckOutcome, limited: &Answers) {
    let of_table: BTreeSet<_> = ROWS
        .iter()
        .map(|row| row.symbol.to_string_lossy())
        .collect();
    let mut hooks = BTreeSet::new();
    for (key, answer) in limited {
        for word in answer.split([' ', ';']) {
            if let Some(hook) = word.strip_prefix("hook:") {
                hooks.insert(hook);
            }
            if let Some(past) = word.strip_prefix("driver:")
                && of_table.contains(past)
            {
                outcome
                    .differences
                    .push(format!("{key}: {past} has no hook"));
            }
        }
    }
    outcome.note = format!("{} hooks", hooks.len());
    if hooks.is_empty() {
        outcome
            .differences
            .push("no hook was handed out".to_owned());
    }
}

fn look_up(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let (mut outcome, limited) = in_all_ways(setup, driver, &["look-up"], without_hooks)?;
    hooks_in(&mut outcome, &limited);
    let asked = limited.get("asked").context("it did not come to its end")?;
    outcome.compared = asked.parse().context("a count is a number")?;
    Ok(outcome)
}

fn doors(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let (mut outcome, limited) = in_all_ways(setup, driver, &["doors"], without_hooks)?;
    hooks_in(&mut outcome, &limited);
    Ok(outcome)
}

fn calls(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let seed = setup.seed.to_string();
    let (mut outcome, limited) = in_all_ways(setup, driver, &["calls", &seed], unchanged)?;
    let deaths = limited.values().filter(|one| one.starts_with("signal "));
    outcome.note = format!("{} end by a signal", deaths.count());
    Ok(outcome)
}

/// The shared libraries of the CUDA runtime, by their paths in its packages.
const RUNTIMES: [&str; 2] = [
    "nvidia/cuda_runtime/lib/libcudart.so.12",
    "nvidia/cu13/lib/libcudart.so.13",
];

fn runtime(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let mut all = CheckOutcome::default();
    let Some(folder) = &setup.runtimes else {
        return Ok(all);
    };
    for library in RUNTIMES {
        let path = folder.join(library);
        ensure!(path.exists(), "{} is not there", path.display());
        let path = path.to_str().context("the path is not plain")?;
        let (one, _) = in_all_ways(setup, driver, &["runtime", path], unchanged)?;
        all.compared += one.compared;
        all.differences.extend(one.differences);
    }
    Ok(all)
}

/// Command lines of people and monitoring programs.
const COMMAND_LINES: &[&[&str]] = &[
    &[],
    &["-L"],
    &["-q"],
    &["-q", "-x"],
    &["-q", "-d", "MEMORY"],
    &["-i", "0"],
    &["--query-gpu=memory.total,memory.used", "--format=csv"],
    &["--query-compute-apps=pid,used_memory", "--format=csv"],
    &["--help-query-gpu"],
    &["topo", "-m"],
    &["pmon", "-c", "1"],
    &["dmon", "-c", "1"],
    &["mig", "-lgi"],
    &["nvlink", "-s"],
    &["--version"],
    &["-h"],
    &["--no-such-option"],
];

fn nvidia_smi(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let program = driver.folder.join("nvidia-smi");
    let mut outcome = CheckOutcome::default();
    if !program.exists() {
        return Ok(outcome);
    }
    for words in COMMAND_LINES {
        let plain = printed(setup, driver, RunMode::Plain, &program, words)?;
        outcome.compared += 1;
        for way in RunMode::OURS {
            let ours = printed(setup, driver, way, &program, words)?;
            if ours != plain {
                let words = words.join(" ");
                outcome.differences.push(format!(
                    "nvidia-smi {words}: {plain:?}, but {} {ours:?}",
                    way.as_str()
                ));
            }
        }
    }
    Ok(outcome)
}

/// How a program ends, and all its output.
fn printed(
    setup: &RunSetup,
    driver: &UnpackedDriver,
    way: RunMode,
    program: &Path,
    words: &[&str],
) -> Result<(String, String, String)> {
    let output = setup.command(driver, way, program).args(words).output();
    let output = output.with_context(|| format!("failed to start {}", program.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((
        output.status.to_string(),
        text(&output.stdout),
        text(&output.stderr),
    ))
}

/// The cases that need no card.
const CASES: [&str; 3] = ["driver_lookup", "entry_points", "deadly_nulls"];

/// Compares the facts of the conformance cases: documented ones must hold, and all must be the same with the library.
fn conformance(setup: &RunSetup, driver: &UnpackedDriver) -> Result<CheckOutcome> {
    let run = |way| printed(setup, driver, way, &setup.conformance, &CASES);
    let (status, plain, said) = run(RunMode::Plain)?;
    let mut outcome = CheckOutcome {
        compared: plain.lines().count(),
        ..CheckOutcome::default()
    };
    if status != "exit status: 0" {
        outcome.differences.push(format!("{status}: {said}"));
    }
    for way in RunMode::OURS {
        let (_, ours, _) = run(way)?;
        let (plain, ours) = (facts(&plain), facts(&ours));
        outcome.differences.extend(compare(&plain, &ours, way));
    }
    Ok(outcome)
}

/// The records as answers, one per fact.
fn facts(records: &str) -> Answers {
    let lines = records.lines().enumerate();
    lines
        .map(|(place, line)| (format!("record {place:03}"), line.to_owned()))
        .collect()
}

/// The symbols of a driver's library, by the library's soname.
fn library(driver: &UnpackedDriver, name: &str) -> Result<BTreeMap<String, elf::ExportedSymbol>> {
    let path: PathBuf = driver.folder.join(name);
    let file =
        std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    elf::exports(&file).with_context(|| format!("{} is no library", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_missing_or_another_is_a_difference() {
        let plain = answers("a\t1\nb\t2\n");
        assert!(compare(&plain, &plain, RunMode::Limited).is_empty());
        for (ours, named) in [
            ("a\t1\n", "b: 2"),
            ("a\t1\nb\t3\n", "b: 2"),
            ("a\t1\nb\t2\nc\t4\n", "c: nothing"),
        ] {
            let found = compare(&plain, &answers(ours), RunMode::Limited);
            assert!(found.len() == 1 && found[0].starts_with(named), "{found:?}");
        }
    }

    #[test]
    fn a_function_of_the_table_that_is_handed_out_itself_is_a_difference() {
        let (mut good, mut bad) = (CheckOutcome::default(), CheckOutcome::default());
        hooks_in(
            &mut good,
            &answers("a\t2000: 0 0 hook:cuMemAlloc_v2; 3000: 0 0 driver:cuInit; \n"),
        );
        assert_eq!((good.note.as_str(), good.differences.len()), ("1 hooks", 0));
        hooks_in(
            &mut bad,
            &answers("a\t2000: 0 0 hook:cuMemFree_v2; 3020: 0 0 driver:cuMemAlloc_v2; \n"),
        );
        assert_eq!(bad.differences, ["a: cuMemAlloc_v2 has no hook"]);
    }
}
