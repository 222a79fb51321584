//! Parses libFuzzer's log.

use std::fmt;
use std::path::Path;

/// The figures of one target's run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FuzzStats {
    runs: u64,
    per_second: u64,
    /// Edges of the program that some input reached.
    coverage: u64,
    /// Inputs that are worth keeping.
    inputs: u64,
    /// The failure, in readable lines.
    pub(crate) failure: Option<String>,
}

impl FuzzStats {
    /// Parses the log of a run.
    pub(crate) fn read(target: &str, log: &str, has_succeeded: bool, path: &Path) -> Self {
        let states = log.lines().filter(|line| line.starts_with('#'));
        let most = |name: &str| {
            let numbers = states.clone().filter_map(|line| number_after(line, name));
            numbers.max().unwrap_or(0)
        };
        let stat = |name: &str| {
            let numbers = log.lines().filter_map(|line| number_after(line, name));
            numbers.max()
        };
        // A run that is killed prints no final statistics.
        let counted = states
            .clone()
            .filter_map(|line| line[1..].split_whitespace().next()?.parse().ok());
        Self {
            runs: stat("stat::number_of_executed_units:")
                .unwrap_or_else(|| counted.max().unwrap_or(0)),
            per_second: stat("stat::average_exec_per_sec:").unwrap_or_else(|| most("exec/s:")),
            coverage: most("cov:"),
            inputs: most("corp:"),
            failure: (!has_succeeded).then(|| failure(target, log, path)),
        }
    }
}

fn failure(target: &str, log: &str, path: &Path) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let at = lines.iter().position(|line| line.contains(" panicked at "));
    let why = match at {
        // The panic message is on the next line.
        Some(at) => lines[at..]
            .iter()
            .take(2)
            .copied()
            .collect::<Vec<_>>()
            .join(" "),
        None => {
            let error = lines.iter().find(|line| line.contains("ERROR: libFuzzer:"));
            error.map_or("it ended early", |error| *error).to_owned()
        }
    };
    let mut input = log
        .lines()
        .filter_map(|line| line.split_once("Test unit written to "));
    let again = match input.next_back() {
        Some((_, input)) => {
            format!("input:  {input}\n    repeat: cargo xtask fuzz {target} --input {input}\n    ")
        }
        None => String::new(),
    };
    format!("{}\n    {again}log:    {}", why.trim(), path.display())
}

/// The number that follows a name in a line.
fn number_after(line: &str, name: &str) -> Option<u64> {
    let (_, rest) = line.split_once(name)?;
    let digits = rest.trim_start();
    let end = digits
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

impl fmt::Display for FuzzStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            runs,
            per_second,
            coverage,
            inputs,
            ..
        } = self;
        write!(f, "{runs:>11} {per_second:>9} {coverage:>9} {inputs:>7}  ")?;
        match &self.failure {
            None => f.write_str("ok"),
            Some(failure) => write!(f, "FAILED: {failure}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_run_says_how_far_it_came() {
        let log = "#2\tINITED cov: 9 ft: 10 corp: 1/1b exec/s: 0 rss: 30Mb\n\
            #98454\tDONE   cov: 713 ft: 2144 corp: 310/9Kb lim: 4096 exec/s: 16409 rss: 91Mb\n\
            stat::number_of_executed_units: 98454\nstat::average_exec_per_sec:     16409\n";
        let stats = FuzzStats::read("images", log, true, Path::new("images.log"));
        assert_eq!(
            stats.to_string(),
            "      98454     16409       713     310  ok"
        );
    }

    #[test]
    fn a_failure_names_its_input_and_how_to_repeat_it() {
        let log = "#16\tNEW    cov: 7 ft: 8 corp: 3/9b exec/s: 0 rss: 30Mb\n\
            thread '<unnamed>' (7) panicked at fuzz_targets/images.rs:9:5:\nindex out of bounds\n\
            ==7== ERROR: libFuzzer: deadly signal\n\
            artifact_prefix='f/'; Test unit written to f/crash-1\n";
        let stats = FuzzStats::read("images", log, false, Path::new("images.log"));
        assert_eq!((stats.runs, stats.coverage), (16, 7));
        let failure = stats.failure.unwrap_or_default();
        assert_eq!(
            failure,
            "thread '<unnamed>' (7) panicked at fuzz_targets/images.rs:9:5: index out of bounds\n    \
            input:  f/crash-1\n    repeat: cargo xtask fuzz images --input f/crash-1\n    log:    images.log"
        );
    }
}
