//! The test programs that Cargo builds, run side by side.
//!
//! Cargo runs the programs of a workspace one after another. Most of ours wait for other processes, so the machine
//! would be idle most of the time. Cargo also resolves features for the packages that a command names. So `cargo test
//! --package A` compiles libraries again that `cargo test --workspace` compiled with one more feature. Therefore one
//! command over the workspace builds all programs, and this module runs them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::typed;
use crate::tally::TestTally;

/// One program that runs tests.
#[derive(Clone, Debug)]
pub(crate) struct TestProgram {
    /// The package that its tests belong to.
    pub(crate) package: String,
    /// Cargo's name for the target.
    pub(crate) target: String,
    /// Whether it is a file or folder below `tests`, and not the tests inside a library or program.
    pub(crate) is_integration: bool,
    /// The package's folder, in which its tests run.
    folder: PathBuf,
    executable: PathBuf,
}

/// The result of one program.
struct TestProgramOutcome {
    output: Vec<u8>,
    tally: TestTally,
    took: Duration,
}

/// Runs `cargo`, which must be `cargo test`, with `--no-run`. Returns what it built.
pub(crate) fn build(cargo: &mut Command) -> Result<Vec<TestProgram>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let name = typed(cargo);
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {name}"))?;
    let mut programs = Vec::new();
    for line in BufReader::new(child.stdout.take().context("the output is a pipe")?).lines() {
        let line = line.with_context(|| format!("failed to read from {name}"))?;
        programs.extend(
            serde_json::from_str(&line)
                .ok()
                .and_then(|message| read(&message)),
        );
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{name} ended with {status}");
    }
    // A fixed order, whichever compiled first. Suites that share a cluster run in it.
    programs
        .sort_by(|one, other| (&one.package, &one.target).cmp(&(&other.package, &other.target)));
    Ok(programs)
}

/// The test program in one message of Cargo's, if any.
fn read(message: &Value) -> Option<TestProgram> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let id = message["package_id"].as_str()?;
    let described = id.rsplit_once('#')?.1;
    // If a package is named like its folder, its id has only the version.
    let package = match described.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name()?.to_str()?.to_owned(),
    };
    Some(TestProgram {
        package,
        target: message["target"]["name"].as_str()?.to_owned(),
        is_integration: message["target"]["kind"][0] == "test",
        folder: folder.to_owned(),
        executable: message["executable"].as_str()?.into(),
    })
}

/// Runs `programs`, at most `jobs` at once, each set up by `prepare`. The output of a program is shown when it ends.
pub(crate) fn run(
    programs: &[TestProgram],
    jobs: usize,
    prepare: &(dyn Fn(&mut Command) + Sync),
) -> TestTally {
    // The long ones first: suites of processes take minutes, tests inside crates take seconds.
    let (suites, inline): (Vec<_>, Vec<_>) =
        programs.iter().partition(|program| program.is_integration);
    let waiting = Mutex::new(suites.into_iter().chain(inline).collect::<VecDeque<_>>());
    let tally = Mutex::new(TestTally::default());
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(program) = waiting
                    .lock()
                    .ok()
                    .and_then(|mut waiting| waiting.pop_front())
                {
                    let outcome = program.run(prepare);
                    if let Ok(mut tally) = tally.lock() {
                        // Under the lock, so that outputs do not mix.
                        program.show(&outcome);
                        *tally += outcome.tally;
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap_or(TestTally {
        passed: 0,
        failed: 1,
    })
}

impl TestProgram {
    /// A command that runs it in the folder that Cargo would use.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    fn run(&self, prepare: &(dyn Fn(&mut Command) + Sync)) -> TestProgramOutcome {
        let begun = Instant::now();
        let mut command = self.command();
        prepare(command.stdin(Stdio::null()));
        let (mut output, succeeded) = match command.output() {
            Ok(output) => {
                let mut text = output.stdout;
                text.extend(output.stderr);
                if !output.status.success() {
                    text.extend(format!("{} ended with {}\n", self.target, output.status).bytes());
                }
                (text, output.status.success())
            }
            Err(error) => {
                let text = format!("failed to start {}: {error}\n", self.executable.display());
                (text.into_bytes(), false)
            }
        };
        if output.last().is_some_and(|last| *last != b'\n') {
            output.push(b'\n');
        }
        let mut tally = TestTally::of(&String::from_utf8_lossy(&output));
        if !succeeded {
            // A crash without a failed test counts as one failure.
            tally.failed = tally.failed.max(1);
        }
        TestProgramOutcome {
            output,
            tally,
            took: begun.elapsed(),
        }
    }

    fn show(&self, outcome: &TestProgramOutcome) {
        let mut out = std::io::stdout().lock();
        let (package, target) = (&self.package, &self.target);
        // An error means that the terminal is gone, and nobody reads this.
        let _ = writeln!(out, "\n     Running {package} {target}");
        let _ = out.write_all(&outcome.output);
        let _ = writeln!(
            out,
            "     {package} {target} took {:.1} s",
            outcome.took.as_secs_f64()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_test_programs_among_what_cargo_says() {
        let built = serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///src/proto/abi#apportion-abi@0.1.0",
            "manifest_path": "/src/proto/abi/Cargo.toml",
            "target": { "name": "loom", "kind": ["test"] },
            "profile": { "test": true },
            "executable": "/target/debug/deps/loom-1",
        });
        let program = read(&built).unwrap();
        assert_eq!(
            (&*program.package, &*program.target),
            ("apportion-abi", "loom")
        );
        assert!(program.is_integration);
        assert_eq!(program.folder, Path::new("/src/proto/abi"));

        let mut library = built.clone();
        library["profile"]["test"] = false.into();
        assert!(read(&library).is_none());
        let mut short = built;
        short["package_id"] = "path+file:///src/xtask#0.1.0".into();
        short["manifest_path"] = "/src/xtask/Cargo.toml".into();
        assert_eq!(read(&short).unwrap().package, "xtask");
    }

    /// A shell, whose arguments say what it does.
    fn shell() -> TestProgram {
        TestProgram {
            package: "p".into(),
            target: "t".into(),
            is_integration: true,
            folder: std::env::temp_dir(),
            executable: "/bin/sh".into(),
        }
    }

    #[test]
    fn counts_what_passed_and_what_died() {
        let passes = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'";
        let passed = run(&[shell()], 1, &|sh| {
            sh.args(["-c", passes]);
        });
        assert_eq!(
            passed,
            TestTally {
                passed: 3,
                failed: 0
            }
        );
        let died = run(&[shell()], 1, &|sh| {
            sh.args(["-c", "kill -9 $$"]);
        });
        assert_eq!(
            died,
            TestTally {
                passed: 0,
                failed: 1
            }
        );
    }

    #[test]
    fn programs_run_side_by_side() {
        // The first to start waits for the second.
        let folder = std::env::temp_dir().join(format!("side-by-side-{}", std::process::id()));
        let script = format!(
            "cd {0} && if mkdir first; then for i in $(seq 100); do [ -d second ] && exit 0; sleep 0.1; done; \
             exit 1; else mkdir second; fi",
            folder.display()
        );
        std::fs::create_dir_all(&folder).unwrap();
        let both = [shell(), shell()];
        let tally = run(&both, 2, &|sh| {
            sh.args(["-c", &script]);
        });
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(tally.failed, 0);
    }
}
