//! The list of cases that do not pass, each with the reason.
//!
//! A case that fails and is not listed fails the run. The list names a case by its position in KAI's sources, because
//! other files with the same cases have other ids, or by its id.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cases::CaseName;

/// Reasons by position or id.
#[derive(Debug, Default)]
pub(crate) struct KnownDeviations(BTreeMap<String, String>);

impl KnownDeviations {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = || format!("failed to read {}", path.display());
        let text = fs::read_to_string(path).with_context(failed)?;
        Self::parse(&text).with_context(failed)
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        Ok(Self(serde_json::from_str(text)?))
    }

    /// Why a case may fail, if it may.
    pub(crate) fn reason(&self, name: &CaseName) -> Option<&str> {
        self.0
            .get(&name.id)
            .or_else(|| self.0.get(name.position.as_ref()?))
            .map(String::as_str)
    }

    /// The listed positions and ids, with their reasons.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> impl Iterator<Item = (&str, &str)> {
        let listed = self.0.iter();
        listed.map(|(name, reason)| (name.as_str(), reason.as_str()))
    }
}
