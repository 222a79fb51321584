//! Runs the cases one by one, each in a process of its own, and counts their results.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::record::{FactRecord, FactSource};

/// Runs `cases` and passes every line on at once.
pub(crate) fn run(cases: &[&str], timeout: Duration) -> Vec<FactRecord> {
    let mut records = Vec::new();
    for case in cases {
        let from = records.len();
        if let Some(trouble) = one(case, timeout, &mut records) {
            let record = FactRecord {
                case: (*case).to_owned(),
                fact: "the case runs to its end".to_owned(),
                kind: FactSource::Documented,
                holds: false,
                seen: json!(trouble),
                wanted: None,
            };
            records.push(record);
        }
        for record in &records[from..] {
            let line = serde_json::to_string(record).expect("a record is plain data");
            // A closed output is no error: the reader has stopped.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }
    records
}

/// Runs one case. Returns an error message if its process failed.
fn one(case: &str, timeout: Duration, records: &mut Vec<FactRecord>) -> Option<String> {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(format!("this program was not found: {error}")),
    };
    let started = Command::new(program)
        .args(["--here", case])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    match started {
        Ok(child) => follow(child, timeout, records),
        Err(error) => Some(format!("it did not start: {error}")),
    }
}

fn follow(mut child: Child, timeout: Duration, records: &mut Vec<FactRecord>) -> Option<String> {
    let (sender, lines) = mpsc::channel();
    let output = child.stdout.take()?;
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + timeout;
    let ended = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => records.extend(serde_json::from_str::<FactRecord>(&line).ok()),
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    if !ended {
        // If this fails, the process has already ended.
        let _ = child.kill();
    }
    let status = child.wait();
    match status {
        Ok(status) if ended && status.success() => None,
        Ok(_) if !ended => Some(format!("it took more than {} s", timeout.as_secs())),
        Ok(status) => Some(status.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Prints the counts. True if all documented facts hold.
pub(crate) fn summarise(records: &[FactRecord]) -> bool {
    let documented = records
        .iter()
        .filter(|one| one.kind == FactSource::Documented);
    let (held, broken): (Vec<&FactRecord>, Vec<&FactRecord>) =
        documented.partition(|one| one.holds);
    for one in &broken {
        let wanted = one.wanted.as_ref();
        let wanted = wanted.map_or_else(String::new, |value| format!(" instead of {value}"));
        eprintln!("{}: {}: {}{wanted}", one.case, one.fact, one.seen);
    }
    let observed = records.len() - held.len() - broken.len();
    eprintln!(
        "{} documented facts hold, {} do not; {observed} more were observed",
        held.len(),
        broken.len()
    );
    broken.is_empty() && !held.is_empty()
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    line
}
