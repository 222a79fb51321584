//! On the simulated driver without a limit, everything that CUDA documents holds.

use std::process::Command;

use crate::machine::{ConformanceMachine, PROGRAM};

pub(crate) fn cases() -> Vec<String> {
    let list = Command::new(PROGRAM).arg("--list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let names = list.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_simulated_driver_does_what_cuda_documents() {
    let machine = ConformanceMachine::start();
    let (held, out, err) = machine.ask(&[]);
    assert!(held, "{err}");
    let cases = cases();
    assert!(cases.len() > 10);
    for case in cases {
        let record = format!("\"case\":\"{case}\"");
        assert!(out.contains(&record), "{case} found nothing out");
    }
}

/// A driver may lack newer functions. This one has all functions of CUDA's headers up to its version.
#[test]
fn the_simulated_driver_has_every_entry_point_of_its_version() {
    let machine = ConformanceMachine::start();
    let (_, out, _) = machine.ask(&["entry_points"]);
    let seen = |fact: &str| {
        let records = out.lines().filter(|line| line.contains(fact));
        let seen = records
            .filter_map(|line| line.rsplit_once("\"seen\":"))
            .next();
        seen.map(|(_, seen)| seen.trim_end_matches('}').to_owned())
    };
    let asked = seen("entry points asked for").unwrap();
    assert!(asked.parse::<u32>().unwrap() > 500, "{asked}");
    assert_eq!(seen("entry points found"), Some(asked), "{out}");
}

#[test]
fn a_machine_is_like_itself() {
    let machine = ConformanceMachine::start();
    let (_, first, _) = machine.ask(&["rounding", "pools"]);
    let record = machine.folder().join("first");
    std::fs::write(&record, first).unwrap();
    let record = record.to_str().unwrap();
    let (_, _, err) = machine.ask(&["rounding", "pools", "--compare", record]);
    assert!(!err.contains("differs:"), "{err}");
}

#[test]
fn a_case_that_cannot_run_is_a_failure_and_not_a_pass() {
    let machine = ConformanceMachine::start();
    let broken = r#"{"AddRule":{"function":"cuMemAlloc_v2","nth":3,"effect":{"error":999}}}"#;
    let rule = Command::new(machine.library("apportion-simd"))
        .arg("--socket")
        .arg(machine.socket())
        .args(["--ask", broken])
        .output()
        .unwrap();
    assert!(rule.status.success(), "{rule:?}");
    let (held, _, err) = machine.ask(&["rounding"]);
    assert!(!held);
    assert!(err.contains("cuMemAlloc_v2 returned 999"), "{err}");
}

#[test]
fn an_unknown_case_is_bad_usage() {
    let output = Command::new(PROGRAM).arg("nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
}
