//! KAI's pod grouper as a program: KAI's tests, with ours overlaid.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::oracle_pod_groups::CallOutcome;
use crate::steps;

/// The files that are overlaid on KAI's tree, with their sources in ours.
const LAID: [(&str, &str); 2] = [
    (
        "pkg/podgrouper/podgrouper/hub/apportion_groups_test.go",
        "xtask/kai/groups_test.go",
    ),
    (
        "pkg/podgrouper/podgrouper/plugins/karta/apportion_groups.go",
        "xtask/kai/groups_karta.go",
    ),
];
const PACKAGE: &str = "./pkg/podgrouper/podgrouper/hub";

pub(super) struct GrouperProgram {
    path: PathBuf,
    folder: PathBuf,
}

/// KAI's answer to a question.
#[derive(Debug)]
pub(super) enum GrouperAnswer {
    Group(Value),
    /// An error, or a panic of the grouper.
    Error(String),
    /// Not a valid question: Go's types refuse it.
    Unaskable(String),
}

impl GrouperProgram {
    /// Builds the program from KAI's tree and our files.
    pub(super) fn build(kai: &Path, ours: &Path, folder: &Path) -> Result<Self> {
        let failed = || format!("failed to find KAI Scheduler in {}", kai.display());
        let kai = kai.canonicalize().with_context(failed)?;
        ensure!(kai.join(PACKAGE).is_dir(), failed());
        fs::create_dir_all(folder)?;
        let laid = LAID.map(|(there, here)| {
            let place = kai.join(there).display().to_string();
            (place, Value::from(ours.join(here).display().to_string()))
        });
        let overlay = folder.join("overlay.json");
        let replaced: serde_json::Map<String, Value> = laid.into_iter().collect();
        fs::write(&overlay, json!({"Replace": replaced}).to_string())?;
        let path = folder.join("groups.test");
        let mut go = Command::new("go");
        go.args(["test", "-c", "-overlay"]).arg(&overlay);
        steps::run(go.arg("-o").arg(&path).arg(PACKAGE).current_dir(kai))?;
        Ok(Self {
            path,
            folder: folder.to_owned(),
        })
    }

    /// Asks all questions. The answers are in the same order.
    pub(super) fn ask(&self, questions: &[Value]) -> Result<Vec<GrouperAnswer>> {
        let (asked, answered) = (
            self.folder.join("questions.json"),
            self.folder.join("answers.json"),
        );
        fs::write(&asked, serde_json::to_string(questions)?)?;
        let mut program = Command::new(&self.path);
        let names = ["-test.run", "^TestApportionAsks$", "-test.timeout", "1h"];
        program.args(names).current_dir(&self.folder);
        let kai_answer = program
            .env("APPORTION_QUESTIONS", &asked)
            .env("APPORTION_ANSWERS", &answered)
            .output()?;
        let log = String::from_utf8_lossy(&kai_answer.stdout);
        ensure!(kai_answer.status.success(), "KAI's grouper failed: {log}");
        let answers: Vec<Value> = serde_json::from_str(&fs::read_to_string(&answered)?)?;
        ensure!(
            answers.len() == questions.len(),
            "KAI did not answer everything"
        );
        Ok(answers.iter().map(GrouperAnswer::read).collect())
    }
}

impl GrouperAnswer {
    fn read(kai_answer: &Value) -> Self {
        let text = |field: &str| kai_answer[field].as_str().map(str::to_owned);
        match (
            text("error").or_else(|| text("panic")),
            kai_answer.get("unaskable"),
        ) {
            (_, Some(why)) => Self::Unaskable(why.to_string()),
            (Some(error), _) => Self::Error(error),
            (None, _) => Self::Group(kai_answer["group"].clone()),
        }
    }

    /// The answer in the form that the oracles check.
    pub(super) fn outcome(&self) -> CallOutcome {
        match self {
            Self::Group(group) => CallOutcome::new(None, group.clone()),
            Self::Error(error) => CallOutcome::new(Some(error.clone()), Value::Null),
            Self::Unaskable(why) => {
                CallOutcome::new(Some(format!("it cannot be asked: {why}")), Value::Null)
            }
        }
    }
}
