//! Counts tests: every test program ends with one line that says how many passed.

use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::steps::typed;

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestTally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl AddAssign for TestTally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl std::fmt::Display for TestTally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

impl TestTally {
    /// Counts the tests in the output of a test program.
    pub(crate) fn of(output: &str) -> Self {
        let mut tally = Self::default();
        for counted in output.lines().filter_map(read) {
            tally += counted;
        }
        tally
    }
}

/// Runs `cargo test …`, shows its output as it comes, and counts.
///
/// A run that fails without a failed test (a compile error, or a crash) counts as one failure.
pub(crate) fn count(command: &mut Command) -> Result<TestTally> {
    let name = typed(command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {name}"))?;
    let mut tally = TestTally::default();
    let lines = BufReader::new(child.stdout.take().context("the output is a pipe")?).lines();
    for line in lines {
        let line = line.with_context(|| format!("failed to read from {name}"))?;
        writeln!(std::io::stdout(), "{line}")?;
        tally += read(&line).unwrap_or_default();
    }
    let status = child.wait()?;
    if !status.success() {
        eprintln!("xtask: {name} ended with {status}");
        tally.failed = tally.failed.max(1);
    }
    Ok(tally)
}

/// The counts in one line, if it is the line with the result.
fn read(line: &str) -> Option<TestTally> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        counts
            .split("; ")
            .find_map(|part| part.strip_suffix(word)?.trim().parse().ok())
    };
    Some(TestTally {
        passed: number("passed")?,
        failed: number("failed")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_result_line_of_a_harness() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; \
                    finished in 0.00s";
        assert_eq!(
            read(line),
            Some(TestTally {
                passed: 12,
                failed: 3
            })
        );
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(read("test charges ... ok"), None);
        assert_eq!(read("test result: unreadable"), None);
    }

    #[test]
    fn a_harness_that_dies_is_a_failure() {
        let mut dies = Command::new("sh");
        dies.args(["-c", "exit 101"]);
        assert_eq!(
            count(&mut dies).unwrap(),
            TestTally {
                passed: 0,
                failed: 1
            }
        );
    }
}
