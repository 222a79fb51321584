//! The list of scenarios and oracle cases that are not passed, each with the reason.
//!
//! A case that fails and is not on the list fails the run; the list can't excuse what nobody wrote down.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Reasons by id.
#[derive(Debug, Default)]
pub(crate) struct Deviations(BTreeMap<String, String>);

impl Deviations {
    /// Reads the list.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        let list = serde_json::from_str(&text)
            .with_context(|| format!("failed to read {}", path.display()))?;
        Ok(Self(list))
    }

    /// Why a case is not passed, if it may be.
    pub(crate) fn reason(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }
}

/// The JSON files of a folder, by name.
pub(crate) fn json_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to open {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
