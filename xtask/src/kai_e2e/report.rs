//! The results of the specs: Ginkgo's report, and the copy that is kept between runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Ginkgo's message for a spec that it skipped because another one failed.
const EARLIER: &str = "earlier spec in an ordered container failed";
/// The node type of a failure in the set-up of a container.
const BEFORE: &str = "BeforeAll";

/// The result of a spec.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SpecState {
    Passed,
    Failed,
    /// The spec itself says that it cannot run here.
    Skipped,
    /// Its suite was not started.
    NotRun,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpecReport {
    /// The texts of its containers and its own.
    pub(super) name: String,
    pub(super) state: SpecState,
    /// Why it failed or was skipped.
    pub(super) message: String,
    /// How long it took.
    pub(super) seconds: u64,
    /// The containers whose set-up failed, if that is why it failed.
    #[serde(default)]
    unprepared: Option<String>,
}

impl SpecReport {
    /// Whether it was skipped because another spec failed.
    pub(super) fn was_passed_over(&self) -> bool {
        self.state == SpecState::Skipped && self.message.contains(EARLIER)
    }

    fn of(report: &Value) -> Option<Self> {
        if report["LeafNodeType"] != "It" {
            return None;
        }
        let containers = report["ContainerHierarchyTexts"].as_array();
        let texts = containers.into_iter().flatten().filter_map(Value::as_str);
        let texts: Vec<&str> = texts.chain(report["LeafNodeText"].as_str()).collect();
        let state = match report["State"].as_str()? {
            "passed" => SpecState::Passed,
            "skipped" | "pending" => SpecState::Skipped,
            _ => SpecState::Failed,
        };
        let failure = &report["Failure"];
        let message = failure["Message"].as_str().unwrap_or_default();
        let depth = failure["FailureNodeContainerIndex"].as_u64().unwrap_or(0);
        let is_unprepared = state == SpecState::Failed && failure["FailureNodeType"] == BEFORE;
        let containers = texts.iter().take(usize::try_from(depth).ok()? + 1);
        let containers: Vec<&str> = containers.copied().collect();
        Some(Self {
            name: texts.join(" "),
            state,
            message: message.to_owned(),
            seconds: report["RunTime"].as_u64().unwrap_or_default() / 1_000_000_000,
            unprepared: is_unprepared.then(|| containers.join(" ")),
        })
    }
}

/// Counts skipped specs as failed if the set-up of their container failed: another run would not change that.
pub(super) fn settle(specs: &mut [SpecReport]) {
    let failed: Vec<SpecReport> = specs
        .iter()
        .filter(|spec| spec.unprepared.is_some())
        .cloned()
        .collect();
    for spec in specs.iter_mut().filter(|spec| spec.was_passed_over()) {
        if let Some(failed) = failed.iter().find(|failed| {
            let containers = failed.unprepared.as_deref();
            containers.is_some_and(|containers| spec.name.starts_with(containers))
        }) {
            spec.state = SpecState::Failed;
            spec.message.clone_from(&failed.message);
        }
    }
}

/// The specs in Ginkgo's report that were selected.
pub(super) fn of_ginkgo(file: &Path) -> Result<Vec<SpecReport>> {
    let reading = || format!("failed to read {}", file.display());
    let text = fs::read_to_string(file).with_context(reading)?;
    let suites: Vec<Value> = serde_json::from_str(&text).with_context(reading)?;
    let specs = suites
        .iter()
        .flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    Ok(specs.filter_map(SpecReport::of).collect())
}

fn place(folder: &Path, suite: &str) -> PathBuf {
    folder.join(format!("{}.json", suite.replace('/', "_")))
}

/// Stores the results of a suite.
pub(super) fn write(folder: &Path, suite: &str, specs: &[SpecReport]) -> Result<()> {
    let path = place(folder, suite);
    fs::write(&path, serde_json::to_string_pretty(specs)?)
        .with_context(|| format!("failed to write {}", path.display()))
}

/// The results of the last run of a suite.
pub(super) fn read(folder: &Path, suite: &str) -> Result<Option<Vec<SpecReport>>> {
    let path = place(folder, suite);
    match fs::read(&path) {
        Err(_) => Ok(None),
        Ok(text) => {
            let specs = serde_json::from_slice(&text);
            Ok(Some(specs.with_context(|| {
                format!("failed to read {}", path.display())
            })?))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(state: &str, message: &str) -> SpecReport {
        let report = json!({"LeafNodeType": "It", "ContainerHierarchyTexts": ["Quota", "GPU"],
            "LeafNodeText": "runs", "State": state, "RunTime": 2_500_000_000_u64,
            "Failure": {"Message": message}});
        SpecReport::of(&report).expect("it is a spec")
    }

    #[test]
    fn a_spec_has_the_name_that_a_person_sees() {
        let spec = spec("passed", "");
        assert_eq!((spec.name.as_str(), spec.seconds), ("Quota GPU runs", 2));
    }

    #[test]
    fn what_could_not_be_set_up_is_not_run_again() {
        let failed = json!({"LeafNodeType": "It", "ContainerHierarchyTexts": ["Quota", "GPU"],
            "LeafNodeText": "runs", "State": "failed",
            "Failure": {"Message": "no driver", "FailureNodeType": "BeforeAll", "FailureNodeContainerIndex": 0}});
        let after = "Spec skipped because an earlier spec in an ordered container failed";
        let mut specs = [
            SpecReport::of(&failed).expect("it is a spec"),
            spec("skipped", after),
        ];
        settle(&mut specs);
        assert_eq!(specs[1].state, SpecState::Failed);
        assert_eq!(specs[1].message, "no driver");
    }

    #[test]
    fn a_spec_that_another_kept_from_running_is_run_again() {
        let after = "Spec skipped because an earlier spec in an ordered container failed";
        assert!(spec("skipped", after).was_passed_over());
        assert!(!spec("skipped", "the cluster has no such driver").was_passed_over());
        assert!(!spec("failed", "earlier").was_passed_over());
    }
}
