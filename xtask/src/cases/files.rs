//! Reads files of cases.
//!
//! A file is a list of cases, or an object with that list under `cases`. The object's `settings` apply to each of its
//! cases, unless the case has its own. The rest of the object says where the cases come from. The suites know what a
//! case means.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// The name of a case.
#[derive(Clone, Debug)]
pub(crate) struct CaseName {
    pub(crate) id: String,
    /// The file and line of the test that it was made from, such as `pkg/some_test.go:12`. Files that were made
    /// elsewhere may use another id for the same case; the position is the same.
    pub(crate) position: Option<String>,
}

impl CaseName {
    pub(crate) fn of(case: &Value) -> Self {
        let file = case["file"].as_str();
        let position = file.zip(case["line"].as_u64());
        Self {
            id: case["id"].as_str().unwrap_or_default().to_owned(),
            position: position.map(|(file, line)| format!("{file}:{line}")),
        }
    }

    /// Whether its id or its position contains `part`.
    pub(crate) fn contains(&self, part: &str) -> bool {
        let position = self.position.as_ref();
        self.id.contains(part) || position.is_some_and(|position| position.contains(part))
    }
}

impl fmt::Display for CaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        match &self.position {
            Some(position) => write!(f, " [{position}]"),
            None => Ok(()),
        }
    }
}

/// A file of cases.
pub(crate) struct CaseFile {
    /// Its name without the extension.
    pub(crate) name: String,
    pub(crate) cases: Vec<Value>,
}

/// Reads the files of a folder, sorted by name. A folder without cases is an error.
pub(crate) fn read(folder: &Path) -> Result<Vec<CaseFile>> {
    let mut files = Vec::new();
    for path in json_files(folder)? {
        let failed = || format!("failed to read {}", path.display());
        let text = fs::read_to_string(&path).with_context(failed)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        files.push(CaseFile {
            name: name.into_owned(),
            cases: cases(&text).with_context(failed)?,
        });
    }
    ensure!(
        files.iter().any(|file| !file.cases.is_empty()),
        "{} has no cases",
        folder.display()
    );
    Ok(files)
}

pub(super) fn json_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to open {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn cases(text: &str) -> Result<Vec<Value>> {
    let mut head = match serde_json::from_str(text)? {
        Value::Array(cases) => return Ok(cases),
        Value::Object(head) => head,
        _ => bail!("it is neither a list of cases nor an object with one"),
    };
    let Some(Value::Array(mut cases)) = head.remove("cases") else {
        bail!("it has no list 'cases'");
    };
    if let Some(Value::Object(settings)) = head.remove("settings") {
        cases.iter_mut().for_each(|case| fill_in(case, &settings));
    }
    Ok(cases)
}

/// Adds the settings that a case does not have itself.
fn fill_in(case: &mut Value, settings: &Map<String, Value>) {
    let Some(case) = case.as_object_mut() else {
        return;
    };
    let own = case.entry("settings").or_insert_with(|| json!({}));
    let Some(own) = own.as_object_mut() else {
        return;
    };
    for (name, value) in settings {
        own.entry(name).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_and_an_object_with_a_list_are_the_same() {
        let list = r#"[{"id": "a"}, {"id": "b"}]"#;
        let headed = format!(r#"{{"source": {{"commit": "c"}}, "cases": {list}}}"#);
        assert_eq!(cases(list).unwrap(), cases(&headed).unwrap());
    }

    #[test]
    fn settings_of_a_file_give_way_to_those_of_a_case() {
        let text = r#"{"settings": {"x": 1, "y": 2}, "cases": [{"settings": {"y": null}}, {}]}"#;
        let expected = [
            json!({"settings": {"x": 1, "y": null}}),
            json!({"settings": {"x": 1, "y": 2}}),
        ];
        assert_eq!(cases(text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_file_of_cases_is_said_in_one_line() {
        for (text, said) in [
            ("7", "neither a list"),
            (r#"{"cases": 7}"#, "no list 'cases'"),
            ("{", "EOF"),
        ] {
            let error = format!("{:#}", cases(text).unwrap_err());
            assert!(error.contains(said), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_name_says_the_position_where_there_is_one() {
        let full = CaseName::of(&json!({"id": "a-1", "file": "x_test.go", "line": 7}));
        assert_eq!(full.to_string(), "a-1 [x_test.go:7]");
        let plain = CaseName::of(&json!({"id": "a-1", "file": "x_test.go"}));
        assert_eq!(plain.to_string(), "a-1");
    }
}
