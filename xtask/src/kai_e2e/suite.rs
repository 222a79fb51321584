//! One suite of KAI's: a folder with a Ginkgo program, which `go test -c` compiles and which writes a report.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use apportion_cluster::LocalCluster;
use serde_json::json;

use super::absolute;
use super::report::{self, SpecReport, SpecState};
use crate::steps::run;

/// The file of KAI's with the timeout of a spec, and how it writes the timeout.
const WAITS: &str = "test/e2e/modules/wait/watcher/watcher.go";
const WAITS_SO_LONG: &str = "5 * time.Minute";
/// What ends a spec's file that starts Ginkgo.
const STARTS: &str = "RunSpecs(";

pub(super) struct E2eSuite {
    /// Its folder below `test/e2e`, without `suites`.
    pub(super) folder: String,
    path: PathBuf,
}

/// All suites below `dir`, sorted.
pub(super) fn below(dir: &Path) -> Result<Vec<E2eSuite>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("failed to read {}", folder.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with("_test.go")
                && fs::read_to_string(&path)?.contains(STARTS)
            {
                let name = folder.strip_prefix(dir)?.to_string_lossy().into_owned();
                let name = name.strip_prefix("suites/").unwrap_or(&name).to_owned();
                found.insert(name, folder.clone());
            }
        }
    }
    Ok(found
        .into_iter()
        .map(|(folder, path)| E2eSuite { folder, path })
        .collect())
}

impl E2eSuite {
    /// Compiles the suite of the checkout `dir` into the folder `built`. Returns the program.
    pub(super) fn build(&self, dir: &Path, built: &Path, patience: u32) -> Result<PathBuf> {
        let name = self.folder.replace('/', "_");
        let program = absolute(&built.join(format!("{name}-{patience}.test")))?;
        if program.exists() {
            return Ok(program);
        }
        fs::create_dir_all(built)?;
        let waits = absolute(&dir.join(WAITS))?;
        let text = fs::read_to_string(&waits)
            .with_context(|| format!("failed to read {}", waits.display()))?;
        ensure!(
            text.contains(WAITS_SO_LONG),
            "{} says no longer how long a spec waits",
            waits.display()
        );
        let shorter = absolute(&built.join("watcher.go"))?;
        let seconds = format!("{patience} * time.Second");
        fs::write(&shorter, text.replace(WAITS_SO_LONG, &seconds))?;
        let overlay = built.join("overlay.json");
        fs::write(
            &overlay,
            json!({"Replace": {waits.to_string_lossy(): shorter}}).to_string(),
        )?;
        let mut go = Command::new("go");
        go.current_dir(&self.path)
            .args(["test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay"])
            .arg(absolute(&overlay)?)
            .arg("-o")
            .arg(&program)
            .arg(".");
        run(&mut go)?;
        Ok(program)
    }

    /// Runs the suite. Returns the result of each spec.
    pub(super) fn run(
        &self,
        program: &Path,
        cluster: &LocalCluster,
        results: &Path,
    ) -> Result<Vec<SpecReport>> {
        let mut specs = self.start(program, results, &[], Some(cluster))?;
        // Each round leaves out one more failed spec of each ordered container.
        loop {
            report::settle(&mut specs);
            let left: Vec<String> = specs
                .iter()
                .filter(|spec| spec.was_passed_over())
                .map(|spec| format!("(^| ){}$", escaped(&spec.name)))
                .collect();
            if left.is_empty() {
                return Ok(specs);
            }
            let focus: Vec<String> = left
                .iter()
                .map(|name| format!("--ginkgo.focus={name}"))
                .collect();
            let again = self.start(program, results, &focus, Some(cluster))?;
            let rerun_reports: BTreeMap<String, SpecReport> = again
                .into_iter()
                .filter(|spec| !spec.was_passed_over())
                .map(|spec| (spec.name.clone(), spec))
                .collect();
            let mut is_stuck = true;
            for spec in specs.iter_mut().filter(|spec| spec.was_passed_over()) {
                if let Some(new) = rerun_reports.get(&spec.name) {
                    *spec = new.clone();
                    is_stuck = false;
                }
            }
            if is_stuck {
                return Ok(specs);
            }
        }
    }

    /// The specs, none of them run.
    pub(super) fn list(&self, program: &Path, results: &Path) -> Result<Vec<SpecReport>> {
        let mut specs = self.start(program, results, &["--ginkgo.dry-run".to_owned()], None)?;
        for spec in &mut specs {
            spec.state = SpecState::NotRun;
        }
        Ok(specs)
    }

    fn start(
        &self,
        program: &Path,
        results: &Path,
        more: &[String],
        cluster: Option<&LocalCluster>,
    ) -> Result<Vec<SpecReport>> {
        fs::create_dir_all(results)?;
        let name = self.folder.replace('/', "_");
        let file = absolute(&results.join(format!("{name}.ginkgo.json")))?;
        let log = fs::File::create(results.join(format!("{name}.log")))?;
        let mut command = Command::new(program);
        command
            .current_dir(&self.path)
            .arg(format!("--ginkgo.json-report={}", file.display()))
            .args([
                "--ginkgo.no-color",
                "--ginkgo.timeout=3h",
                "--test.timeout=0",
            ])
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(cluster) = cluster {
            command.env("KUBECONFIG", cluster.folder().kubeconfig());
        }
        let _ = fs::remove_file(&file);
        // The status says only that a spec failed; the report counts.
        let _ = command
            .status()
            .with_context(|| format!("failed to start {}", program.display()))?;
        report::of_ginkgo(&file)
    }
}

/// A regular expression that matches `text` literally.
fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            r"\.+*?()|[]{}^$"
                .contains(letter)
                .then_some('\\')
                .into_iter()
                .chain([letter])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_pattern_of_itself() {
        assert_eq!(escaped("max (2) pods - a.b"), r"max \(2\) pods - a\.b");
    }
}
