//! The script of the GPU tier, on the simulated driver: a script that only runs when a card is lent must
//! not be broken then.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::machine::{PROGRAM, end_of, staged};

/// Whether leaving something out is a failure.
fn must_be_complete() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

fn has_python() -> bool {
    let mut python = Command::new("python3");
    let python = python.arg("--version").stdout(Stdio::null()).status();
    python.is_ok_and(|status| status.success())
}

/// The script on the simulated driver, for rows with programs of a folder; `None` where it cannot run.
fn tier(rows: &[&str], programs: &Path, out: &Path) -> Option<Command> {
    if !has_python() {
        assert!(!must_be_complete(), "python3 is not installed");
        println!("left out: python3 is not installed");
        return None;
    }
    let mut run = Command::new("python3");
    run.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/run"))
        .arg("--sim")
        .args(rows)
        .arg("--staged")
        .arg(staged())
        .arg("--programs")
        .arg(programs)
        .arg("--out")
        .arg(out);
    Some(run)
}

#[test]
fn the_gpu_tier_runs_on_the_simulated_driver() {
    let programs = Path::new(PROGRAM).parent().unwrap();
    let out = TempDir::new().unwrap();
    let Some(mut run) = tier(&["conformance", "victim"], programs, out.path()) else {
        return;
    };
    let (held, table, err) = end_of(&mut run);
    assert!(held, "{table}\n{err}");
    for row in [
        "conformance limited",
        "victim: plain",
        "victim: stream order",
    ] {
        let found = table.lines().find(|line| line.contains(row)).unwrap();
        let is_fine = found.contains("| ok") || !must_be_complete() && found.contains("left out");
        assert!(is_fine, "{found}");
    }
    let records = fs::read_to_string(out.path().join("conformance.out")).unwrap();
    assert!(records.lines().count() > 100, "{records}");
}

#[test]
fn the_gpu_tier_names_a_fact_that_does_not_hold() {
    let (programs, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let program = programs.path().join("apportion-conformance");
    let records = r#"{"case":"plain","fact":"no bytes","kind":"documented","holds":false,"seen":0,"wanted":1}
{"case":"queries","fact":"it lowers free","kind":"documented","holds":false,"seen":[3,4]}
{"case":"queries","fact":"both move alike","kind":"observed","holds":true,"seen":false}"#;
    let script = format!("#!/bin/sh\necho '{records}'\necho '0 hold' >&2\nexit 1\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let Some(mut run) = tier(&["conformance limited"], programs.path(), out.path()) else {
        return;
    };
    let (held, table, err) = end_of(&mut run);
    let named = "| plain: no bytes: 0 instead of 1; queries: it lowers free: [3, 4]; 0 hold";
    assert!(!held && table.contains(named), "{table}\n{err}");
}
