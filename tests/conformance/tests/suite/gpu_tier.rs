//! Tests the pack for a machine with a card, on the simulated driver. A card may be available for only a few minutes,
//! so the pack must work at once.
//!
//! Each test copies the pack to a folder of its own and runs it with only a `PATH` in its environment, so that it
//! cannot find files of the checkout.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::machine::{PROGRAM, end_of};

/// Names the pack that `cargo xtask test` has made.
const PACK: &str = "APPORTION_GPU_PACK";

/// Runs forever. When its shell is killed, its child ends soon after.
const FOR_EVER: &str = "while :; do sleep 1; done";

/// A copy of the pack.
struct PackCopy(TempDir);

impl PackCopy {
    fn new() -> Self {
        let beside = Path::new(PROGRAM).ancestors().nth(2).unwrap();
        let made =
            std::env::var_os(PACK).map_or_else(|| beside.join("gpu-pack-debug"), PathBuf::from);
        assert!(
            made.join("run").exists(),
            "{} is not there; run `cargo xtask gpu-pack --debug --out target/gpu-pack-debug` first",
            made.display()
        );
        let folder = TempDir::new().unwrap();
        let copied = Command::new("cp")
            .arg("-a")
            .arg(made.join("."))
            .arg(folder.path())
            .status()
            .unwrap();
        assert!(copied.success());
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a program by a shell script.
    fn replace(&self, program: &str, script: &str) {
        let path = self.path("bin").join(program);
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }

    /// The pack's script in an empty environment, with its records in `out`.
    fn script(&self, arguments: &[&str]) -> Command {
        let mut run = Command::new(self.path("run"));
        run.env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir("/")
            .args(arguments);
        run
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut run = self.script(&["--sim"]);
        run.args(arguments).arg("--out").arg(self.path("out"));
        run
    }

    /// The record from the archive, unpacked by ordinary tools. `None` if there is no record yet.
    fn record(&self) -> Option<Value> {
        let archive = self.path("out/gpu-record.tar.gz");
        let mut tar = Command::new("tar");
        tar.arg("xzOf").arg(archive).arg("gpu-record/record.json");
        let said = tar.stderr(Stdio::null()).output().unwrap();
        serde_json::from_slice(&said.stdout).ok()
    }

    /// The running programs of this pack: process ids and command lines.
    fn left_running(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            if words.contains(self.0.path().to_str().unwrap()) {
                found.push((entry.file_name().into_string().unwrap(), words));
            }
        }
        found
    }

    /// Kills what is left of a run that was killed itself.
    fn end_the_rest(&self) {
        for (pid, _) in self.left_running() {
            // It may have ended meanwhile.
            let _ = Command::new("kill").arg("-KILL").arg(pid).status();
        }
    }

    /// Fails if a process of this pack outlives its run.
    fn leaves_nothing(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.left_running().is_empty() {
            assert!(
                Instant::now() < end,
                "still running: {:?}",
                self.left_running()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn row<'a>(record: &'a Value, name: &str) -> &'a Value {
    let rows = record["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no row {name} in {record:#}"))
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tell(child: &Child, signal: &str) {
    let told = Command::new("kill")
        .arg(signal)
        .arg(child.id().to_string())
        .status();
    assert!(told.unwrap().success());
}

#[test]
fn a_copy_of_the_pack_runs_alone() {
    let pack = PackCopy::new();
    // Without an account our own library limits nothing, so it can act as another preloaded library.
    let other = pack.path("apportion/lib/apportion/libapportion_cuda.so");
    let (held, out, err) = end_of(pack.run(&[]).arg("--hami-core").arg(other));
    assert!(held, "{out}\n{err}");
    let record = pack.record().unwrap();
    assert_eq!(record["ended"], "done");
    assert_eq!(record["machine"]["simulated"], true);
    for name in [
        "look-ups",
        "look-ups limited",
        "victim: plain",
        "victim: stream order",
        "conformance",
        "conformance limited",
        "two victims at once 0.7",
        "two victims at once 0.2",
        "timing: calls",
        "timing: accuracy",
    ] {
        let verdict = row(&record, name)["verdict"].as_str().unwrap();
        assert!(verdict.starts_with("ok"), "{name}: {verdict}");
    }
    // Both sources have seen the program, and neither above its limit.
    let victim = row(&record, "victim: plain");
    let size = |name: &str| victim[name].as_u64().unwrap();
    assert_eq!(size("limit"), 2000 << 20);
    assert_eq!(size("sees"), size("limit"));
    assert!(size("claims") > size("limit") / 2 && size("claims") <= size("limit"));
    assert!(size("peak") > size("limit") / 2 && size("peak") <= size("limit"));
    let larger = row(&record, "two victims at once 0.7")["refused"]
        .as_u64()
        .unwrap();
    let smaller = row(&record, "two victims at once 0.2")["refused"]
        .as_u64()
        .unwrap();
    assert!(larger > 3 * smaller, "{larger} {smaller}");
    let samples = &row(&record, "timing: calls")["samples"];
    for side in ["plain", "apportion", "hami-core"] {
        assert_eq!(
            samples[side]["alloc"].as_array().unwrap().len(),
            2,
            "{samples}"
        );
    }
    // Two files, with names that every tool accepts.
    let mut files: Vec<_> = fs::read_dir(pack.path("out"))
        .unwrap()
        .map(|one| one.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["gpu-record.tar.gz", "table.txt"]);
    pack.leaves_nothing();
}

#[test]
fn a_row_that_hangs_costs_its_own_time() {
    let pack = PackCopy::new();
    // A process that left the session is recognized by the pack's path in its command line.
    let path = pack.0.path().display();
    let stray = format!("setsid sh -c '{FOR_EVER}; : {path}' &");
    pack.replace("apportion-conformance", &format!("{stray}\n{FOR_EVER}"));
    let (held, out, err) =
        end_of(&mut pack.run(&["--row-seconds", "2", "look-ups", "victim: plain"]));
    assert!(!held, "{out}\n{err}");
    let record = pack.record().unwrap();
    let hung = row(&record, "look-ups")["verdict"].as_str().unwrap();
    assert!(hung.contains("failed to end within 2 s"), "{hung}");
    assert_eq!(row(&record, "victim: plain")["verdict"], "ok");
    pack.leaves_nothing();
}

#[test]
fn a_row_that_crashes_costs_itself() {
    let pack = PackCopy::new();
    pack.replace("victim", "kill -SEGV $$");
    let (held, out, err) = end_of(&mut pack.run(&["victim: p", "look-ups"]));
    assert!(!held, "{out}\n{err}");
    let record = pack.record().unwrap();
    let crashed = row(&record, "victim: plain")["verdict"].as_str().unwrap();
    assert!(crashed.contains("ended with -11"), "{crashed}");
    let next = row(&record, "victim: pitched")["verdict"].as_str().unwrap();
    assert!(next.contains("ended with -11"), "{next}");
    assert_eq!(row(&record, "look-ups")["failed"], false);
}

#[test]
fn whoever_ends_a_run_gets_the_record_of_what_was_done() {
    for (signal, ended) in [("-TERM", "SIGTERM"), ("-KILL", "running")] {
        let pack = PackCopy::new();
        pack.replace("apportion-bench", FOR_EVER);
        let mut run = pack.run(&["victim: plain", "timing: calls"]);
        let mut run = run
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the first row is recorded", || {
            let rows = pack.record()?;
            rows["rows"]
                .as_array()
                .filter(|rows| !rows.is_empty())
                .map(drop)
        });
        // The second row has begun when its program runs.
        wait_for("the second row runs", || {
            let all = pack.left_running();
            all.iter()
                .any(|(_, words)| words.contains("apportion-bench"))
                .then_some(())
        });
        tell(&run, signal);
        let begun = Instant::now();
        run.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20));
        let record = pack.record().unwrap();
        assert_eq!(record["ended"], ended);
        assert_eq!(row(&record, "victim: plain")["verdict"], "ok");
        if ended == "SIGTERM" {
            assert_eq!(record["running"], "timing: calls");
            pack.leaves_nothing();
        } else {
            // Nothing else will kill them.
            pack.end_the_rest();
        }
    }
}

#[test]
fn a_run_is_over_when_its_time_is() {
    let pack = PackCopy::new();
    pack.replace("apportion-conformance", FOR_EVER);
    let begun = Instant::now();
    let (held, out, err) = end_of(&mut pack.run(&["--seconds", "14", "look-ups", "victim: plain"]));
    assert!(!held, "{out}\n{err}");
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    let record = pack.record().unwrap();
    assert_eq!(
        row(&record, "victim: plain")["verdict"],
        "left out: no time"
    );
}

#[test]
fn what_the_driver_takes_unannounced_is_shown_and_bounded() {
    for (unannounced, is_fine) in [(96_u64, true), (256, false)] {
        let pack = PackCopy::new();
        // In a full share, a kernel that makes the simulated driver take memory that no call announces.
        let script = format!("total fill 64M\\nlaunch {unannounced}M\\ntotal fill 64M");
        let patched = format!("SCRIPTS = [('unannounced', '{script}')]\n\n\ndef rows(");
        let victims = pack.path("tier/victims.py");
        let text = fs::read_to_string(&victims).unwrap();
        fs::write(&victims, text.replacen("def rows(", &patched, 1)).unwrap();
        let (_, out, err) = end_of(&mut pack.run(&["victim: unannounced"]));
        let record = pack.record().unwrap_or_else(|| panic!("{out}\n{err}"));
        let row = row(&record, "victim: unannounced");
        let verdict = row["verdict"].as_str().unwrap();
        let above = row["above"]
            .as_u64()
            .unwrap_or_else(|| panic!("{out}\n{err}"));
        assert_eq!(above, row["peak"].as_u64().unwrap() - (2000 << 20));
        assert!(above < unannounced << 20, "{above}");
        assert!(row["claims"].as_u64() <= row["limit"].as_u64(), "{row}");
        let is_named = verdict.contains("NVML above the limit by");
        assert_eq!(is_named, !is_fine, "{verdict}");
        assert!(!verdict.contains("claims above"), "{verdict}");
    }
}

#[test]
fn the_pack_names_a_fact_that_does_not_hold() {
    let pack = PackCopy::new();
    let records = r#"{"case":"plain","fact":"no bytes","kind":"documented","holds":false,"seen":0,"wanted":1}
{"case":"queries","fact":"it lowers free","kind":"documented","holds":false,"seen":[3,4]}
{"case":"queries","fact":"both move alike","kind":"observed","holds":true,"seen":false}"#;
    pack.replace(
        "apportion-conformance",
        &format!("echo '{records}'\necho '0 hold' >&2\nexit 1"),
    );
    let (held, out, err) = end_of(&mut pack.run(&["conformance limited"]));
    let named = "plain: no bytes: 0 instead of 1; queries: it lowers free: [3, 4]; 0 hold";
    assert!(!held && out.contains(named), "{out}\n{err}");
}

#[test]
fn a_record_is_compared_with_the_simulated_driver() {
    let pack = PackCopy::new();
    let (held, out, err) = end_of(&mut pack.run(&["conformance"]));
    assert!(held, "{out}\n{err}");
    let record = pack.path("out/gpu-record.tar.gz");
    let record = record.to_str().unwrap();
    let there = pack.path("simulated.jsonl");
    let facts = fs::read_to_string(&there).unwrap();
    let (_, same, _) = end_of(&mut pack.script(&["--compare", record]));
    let counted = same
        .lines()
        .find(|line| line.starts_with("conformance: "))
        .unwrap();
    assert!(counted.contains(" facts, "), "{same}");

    let fact = facts
        .lines()
        .find(|line| line.contains("\"case\":\"rounding\""))
        .unwrap();
    let mut changed: Value = serde_json::from_str(fact).unwrap();
    changed["seen"] = "something else".into();
    fs::write(&there, facts.replace(fact, &changed.to_string())).unwrap();
    let (_, other, _) = end_of(&mut pack.script(&["--compare", record]));
    let named = format!("rounding: {}: ", changed["fact"].as_str().unwrap());
    assert!(
        other.contains(&named) && other.contains("and there \"something else\""),
        "{other}"
    );
    assert!(!same.contains("something else"));
}

#[test]
fn what_the_tier_says_of_what_it_saw() {
    let checks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/checks/test_tier.py");
    let (held, _, err) = end_of(Command::new("python3").arg(checks));
    assert!(held && err.contains("\nOK"), "{err}");
}
