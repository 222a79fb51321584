//! Fuzzing: libFuzzer with coverage, on the usual toolchain.
//!
//! The targets are in `tests/fuzz/fuzz_targets`, in the layout of `cargo fuzz`, which can run them on a nightly
//! toolchain. Here they are built without it: the compiler's coverage flags are stable. No sanitizer is needed, because
//! the targets are safe Rust with overflow checks and assertions. The findings are below `fuzz` in the target folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::steps::{run, succeeds};
use crate::workspace::Workspace;

mod stats;

use stats::FuzzStats;

/// The compiler flags that count edges and record compared values for libFuzzer, as `cargo fuzz` sets them.
const FLAGS: [&str; 7] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// An explicit target: so build scripts and macros, which do not link libFuzzer, are compiled without the flags.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// The limits: seconds for one input, MiB of memory, and bytes of an input.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=16384"];
/// The exit status for wrong arguments, as in clap.
const USAGE: u8 = 2;

/// What to fuzz, and for how long.
#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// Fuzz targets [default: all]
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Run one target on this input only.
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    input: Option<PathBuf>,
    /// Print the targets.
    #[arg(long)]
    list: bool,
}

/// A file of `fuzz_targets`.
struct FuzzTarget {
    name: String,
    /// The first sentence of its first comment.
    summary: String,
}

/// The folders of the targets and of the results.
struct FuzzFolders {
    /// The folder of the targets.
    source: PathBuf,
    /// The folder of builds and findings.
    target: PathBuf,
}

/// Fuzzes the targets, as many at the same time as there are CPUs.
pub(crate) fn perform(workspace: &Workspace, options: &FuzzOptions) -> Result<ExitCode> {
    let folders = FuzzFolders {
        source: workspace.root.join("tests/fuzz"),
        target: workspace.target.join("fuzz"),
    };
    let all = folders.targets()?;
    let names = || all.iter().map(|target| target.name.as_str());
    if options.list {
        let width = names().map(str::len).max().unwrap_or(0);
        for target in &all {
            println!("{:width$}  {}", target.name, target.summary);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let unknown = options
        .targets
        .iter()
        .find(|asked| !names().any(|name| name == *asked));
    if let Some(unknown) = unknown {
        let known: Vec<&str> = names().collect();
        return Ok(misused(&format!(
            "there is no fuzz target {unknown}; hint: the targets are {}",
            known.join(", ")
        )));
    }
    let chosen: Vec<&str> = if options.targets.is_empty() {
        names().collect()
    } else {
        options.targets.iter().map(String::as_str).collect()
    };
    match (&options.input, chosen.as_slice()) {
        (Some(input), [target]) => {
            if !input.is_file() {
                return Ok(misused(&format!("there is no file {}", input.display())));
            }
            folders.build(workspace, &chosen)?;
            run(Command::new(folders.program(target))
                .arg("-timeout=10")
                .arg(input))?;
            Ok(ExitCode::SUCCESS)
        }
        (Some(_), _) => Ok(misused("--input needs one fuzz target")),
        (None, chosen) => {
            folders.build(workspace, chosen)?;
            fuzz_all(&folders, chosen, options.seconds)
        }
    }
}

fn misused(why: &str) -> ExitCode {
    eprintln!("xtask: {why}");
    ExitCode::from(USAGE)
}

fn fuzz_all(folders: &FuzzFolders, chosen: &[&str], seconds: u32) -> Result<ExitCode> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let width = chosen.iter().map(|name| name.len()).max().unwrap_or(0);
    println!(
        "{:width$}  {:>11} {:>9} {:>9} {:>7}  result",
        "target", "runs", "runs/s", "coverage", "inputs"
    );
    let waiting = Mutex::new(chosen.iter());
    let is_clean = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers.min(chosen.len()))
            .map(|_| {
                scope.spawn(|| -> Result<bool> {
                    let mut is_clean = true;
                    while let Some(target) =
                        waiting.lock().ok().and_then(|mut waiting| waiting.next())
                    {
                        let stats = folders.fuzz(target, seconds)?;
                        println!("{target:width$}  {stats}");
                        is_clean &= stats.failure.is_none();
                    }
                    Ok(is_clean)
                })
            })
            .collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")));
        results.collect::<Result<Vec<bool>>>()
    })?;
    Ok(if is_clean.into_iter().all(|clean| clean) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl FuzzFolders {
    fn targets(&self) -> Result<Vec<FuzzTarget>> {
        let folder = self.source.join("fuzz_targets");
        let mut targets = Vec::new();
        for entry in
            fs::read_dir(&folder).with_context(|| format!("failed to read {}", folder.display()))?
        {
            let path = entry?.path();
            if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
                let text = fs::read_to_string(&path)?;
                let comment = text
                    .lines()
                    .map_while(|line| line.strip_prefix("//!"))
                    .map(str::trim);
                let comment = comment.collect::<Vec<_>>().join(" ");
                let summary = comment
                    .split_inclusive(". ")
                    .next()
                    .unwrap_or_default()
                    .trim();
                targets.push(FuzzTarget {
                    name: name.to_owned(),
                    summary: summary.to_owned(),
                });
            }
        }
        targets.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(targets)
    }

    /// Builds all targets in one build, with counters in everything that they use.
    fn build(&self, workspace: &Workspace, chosen: &[&str]) -> Result<()> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        if !succeeds(Command::new(&compiler).arg("--version")) {
            bail!(
                "libFuzzer needs a C++ compiler, and {} does not run; hint: apt-get install g++",
                compiler.display()
            );
        }
        let mut cargo = workspace.cargo_in(&self.source, &self.target.join("build"));
        cargo
            .args([
                "build",
                "--quiet",
                "--release",
                "--locked",
                "--target",
                PLATFORM,
            ])
            .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
        for target in chosen {
            cargo.args(["--bin", target]);
        }
        run(&mut cargo)
    }

    fn program(&self, target: &str) -> PathBuf {
        self.target
            .join("build")
            .join(PLATFORM)
            .join("release")
            .join(target)
    }

    /// Fuzzes one target. It starts with the repository's inputs and those that earlier runs found.
    fn fuzz(&self, target: &str, seconds: u32) -> Result<FuzzStats> {
        let made = |kind: &str| -> Result<PathBuf> {
            let folder = self.target.join(kind).join(target);
            fs::create_dir_all(&folder)
                .with_context(|| format!("failed to create {}", folder.display()))?;
            Ok(folder)
        };
        let (found, failed, scratch) = (made("corpus")?, made("failures")?, made("scratch")?);
        let log = self.target.join(format!("{target}.log"));
        let output =
            File::create(&log).with_context(|| format!("failed to create {}", log.display()))?;
        let mut program = Command::new(self.program(target));
        program
            .args(LIMITS)
            .args(["-print_final_stats=1", "-use_value_profile=1"])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", failed.display()))
            .args(existing(
                self.source.join(format!("dictionaries/{target}.dict")),
                "-dict=",
            ))
            .arg(&found)
            .args(existing(self.source.join("corpus").join(target), ""))
            .env("TMPDIR", &scratch)
            .stdout(output.try_clone()?)
            .stderr(output);
        let status = program
            .status()
            .with_context(|| format!("failed to start {target}"))?;
        let _ = fs::remove_dir_all(&scratch);
        let text = fs::read(&log).with_context(|| format!("failed to read {}", log.display()))?;
        let text = String::from_utf8_lossy(&text);
        Ok(FuzzStats::read(target, &text, status.success(), &log))
    }
}

/// An argument with a path, if the path exists.
fn existing(path: PathBuf, prefix: &str) -> Option<String> {
    let is_there = Path::new(&path).exists();
    is_there.then(|| format!("{prefix}{}", path.display()))
}
